"""The replay of recorded steps: on a few committed samples everywhere, on the full records where they are."""

from pathlib import Path

import numpy as np
import pytest

from riskppo_jax.cli import main

FEW = Path(__file__).parent / "fixtures" / "parity"
FULL = Path(__file__).parents[2] / "shared" / "reference" / "parity"
SWIMMER = "SafetySwimmerVelocity-v1"
needs_records = pytest.mark.skipif(not FULL.is_dir(), reason="the full parity records are not here")


def last_line(text):
    """The closing line as a dict."""
    line = text.strip().splitlines()[-1]
    assert line.startswith("parity: ")
    return dict(word.split("=") for word in line.removeprefix("parity: ").split())


def changed(folder, **arrays):
    """A copy of the Swimmer record with some arrays replaced."""
    with np.load(FEW / f"{SWIMMER}.npz") as record:
        content = {**record, **arrays}
    np.savez(folder / f"{SWIMMER}.npz", **{name: value for name, value in content.items() if value is not None})
    return folder


def original(name):
    with np.load(FEW / f"{SWIMMER}.npz") as record:
        return record[name]


def test_native_meets_the_record(capsys):
    assert main(["parity", str(FEW), "--engine", "native"]) == 0
    line = last_line(capsys.readouterr().out)
    assert line["engine"] == "native" and line["tasks"] == "6" and line["samples"] == "48"
    assert line["cost_mismatches"] == line["term_mismatches"] == "0"


@needs_records
def test_native_meets_every_record(capsys):
    six = [path.stem for path in FULL.glob("Safety*Velocity-v1.npz")]
    assert main(["parity", str(FULL), "--engine", "native", "--tasks", *six]) == 0
    out = capsys.readouterr().out
    assert last_line(out)["tasks"] == "6"
    five = [f"Safety{name}Velocity-v1" for name in ("HalfCheetah", "Hopper", "Swimmer", "Walker2d", "Ant")]
    assert main(["parity", str(FULL), "--engine", "native", "--tasks", *five]) == 0
    line = last_line(capsys.readouterr().out)
    assert float(line["obs_max"]) < 1e-9 and float(line["reward_max"]) < 1e-9


@pytest.mark.slow
def test_mjx_meets_the_record(capsys):
    assert main(["parity", str(FEW), "--engine", "mjx"]) == 0
    assert last_line(capsys.readouterr().out)["tasks"] == "6"


@pytest.mark.parametrize("name, size", [("one_obs", 1e-5), ("one_rew", 1e-5), ("one_obs0", 1e-5)])
def test_a_deviation_fails(tmp_path, capsys, name, size):
    folder = changed(tmp_path, **{name: original(name) + size})
    assert main(["parity", str(folder), "--engine", "native"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_flipped_cost_fails_unless_it_is_at_the_threshold(tmp_path, capsys):
    cost = 1.0 - original("one_cost")
    assert main(["parity", str(changed(tmp_path, one_cost=cost)), "--engine", "native"]) == 1
    assert last_line(capsys.readouterr().out)["cost_mismatches"] == "8"
    at = np.full(8, 0.2282 + 1e-8)
    assert main(["parity", str(changed(tmp_path, one_cost=cost, one_x_velocity=at)), "--engine", "native"]) == 0
    assert last_line(capsys.readouterr().out)["cost_mismatches"] == "0"


@pytest.mark.parametrize("arrays, complaint", [
    ({"one_obs": None}, "has no one_obs"),
    ({"one_rew": np.zeros(3)}, "one_rew does not have one row"),
    ({"one_qpos0": np.zeros((8, 4))}, "one_qpos0 has shape"),
    ({"one_act": np.full((8, 2), np.nan)}, "one_act has entries that are not finite"),
    ({"meta": np.array("{")}, "not a readable record"),
    ({"meta": np.array('{"id": "SafetyAntVelocity-v1"}')}, "names another task"),
])  # fmt: skip
def test_malformed_records_are_named(tmp_path, capsys, arrays, complaint):
    assert main(["parity", str(changed(tmp_path, **arrays)), "--engine", "native"]) == 2
    error = capsys.readouterr().err
    assert complaint in error and f"{SWIMMER}.npz" in error and error.count("\n") == 1


def test_other_mistakes(tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / f"{SWIMMER}.npz").write_bytes(b"PK\x03\x04 not an archive")
    for words, complaint in [
        ([str(broken)], "not a readable record"),
        ([str(tmp_path)], "has no record"),
        ([str(tmp_path / "absent")], "is not a directory"),
        ([str(FEW), "--tasks", "SafetyFishVelocity-v1"], "tasks=SafetyFishVelocity-v1 is not known"),
        ([str(broken), "--tasks", "SafetyAntVelocity-v1"], "SafetyAntVelocity-v1.npz: missing"),
        ([str(FEW), "--engine", "mjy"], "engine=mjy is not known"),
    ]:
        assert main(["parity", *words, *(["--engine", "native"] if "--engine" not in words else [])]) == 2
        error = capsys.readouterr().err
        assert complaint in error and error.count("\n") == 1


def test_envs_prints_every_task(capsys):
    assert main(["envs"]) == 0
    out = capsys.readouterr().out
    assert "SafetyHumanoidVelocity-v1" in out and "376" in out and "native*" in out
    assert main(["envs", "Safety*Swim*"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 2
    assert main(["envs", "nothing*"]) == 2

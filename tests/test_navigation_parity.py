"""The replay of recorded navigation steps: a few committed samples everywhere, the full records where they are."""

from pathlib import Path

import numpy as np
import pytest

from riskppo_jax.cli import main
from riskppo_jax.parity import replay

FEW = Path(__file__).parent / "fixtures" / "navigation"
FULL = Path(__file__).parents[2] / "shared" / "reference" / "parity"
needs_records = pytest.mark.skipif(not FULL.is_dir(), reason="the full parity records are not here")
GOAL, CIRCLE = "SafetyPointGoal1-v0", "SafetyPointCircle1-v0"
EXACT = {GOAL: 1e-9, "SafetyPointGoal2-v0": 1e-9, CIRCLE: 1e-9, "SafetyPointPush1-v0": 1e-8, "SafetyCarGoal1-v0": 1e-9}


def last_line(text):
    line = text.strip().splitlines()[-1]
    assert line.startswith("parity: ")
    return dict(word.split("=") for word in line.removeprefix("parity: ").split())


def changed(folder, **arrays):
    """A copy of the Circle record with some arrays replaced."""
    with np.load(FEW / f"{CIRCLE}.npz") as record:
        content = {**record, **arrays}
    np.savez(folder / f"{CIRCLE}.npz", **{name: value for name, value in content.items() if value is not None})
    return folder


def original(name):
    with np.load(FEW / f"{CIRCLE}.npz") as record:
        return record[name]


def test_native_meets_the_samples(capsys):
    assert main(["parity", str(FEW), "--engine", "native"]) == 0
    line = last_line(capsys.readouterr().out)
    assert line["tasks"] == "6" and line["cost_mismatches"] == line["term_mismatches"] == "0"
    assert float(line["reward_max"]) < 1e-6


@needs_records
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FULL.glob("Safety*-v0.npz")), ids=lambda path: path.stem)
def test_native_meets_every_record(path):
    result = replay(path, "native")
    assert result.passed, result.worst[:5]
    if path.stem in EXACT:
        assert result.obs[result.held].max() < EXACT[path.stem]
    if "Point" in path.stem and not result.smooth.all():
        assert np.median(result.reward[~result.smooth]) < 1e-4  # with contacts


def from_trajectories(path, folder):
    """The steps of a record's trajectories as samples of one step each."""
    with np.load(path) as record:
        found = {name.removeprefix("traj_"): record[name] for name in record.files if name.startswith("traj_")}
        samples = {"obj_names": record["obj_names"], "meta": record["meta"]}
    places = [(i, k) for i, length in enumerate(found["len"]) for k in range(length)]
    for name, values in found.items():
        later = found.get(name[:-1]) if name.endswith("0") else None
        if later is not None:
            samples[f"one_{name}"] = np.array([values[i] if k == 0 else later[i, k - 1] for i, k in places])
        else:
            along = values.ndim > 1 and values.shape[1] == found["act"].shape[1]
            samples[f"one_{name}"] = np.array([values[i, k] if along else values[i] for i, k in places])
    for name in ("qpos", "qvel", "obs", "rew", "cost", "agent_pose", "agent_twist"):
        samples[f"one_dev_{name}"] = np.zeros(len(places))
    np.savez(folder / path.name, **samples, one_layout_seed=samples["one_seed"])
    return folder / path.name


@needs_records
def test_a_touched_gremlin_moves_as_in_the_original(tmp_path):
    """Whole trajectories: a tie that is too soft in rotation lets gremlins tip over, and contacts end early."""
    path = from_trajectories(FULL / "SafetyPointButton1-v0.npz", tmp_path)
    result = replay(path, "native")
    assert len(result.obs) == 800 and not len(result.cost_mismatches) and not len(result.goal_mismatches)
    with np.load(path) as record:
        touched = record["one_ncon_gremlin0"] + record["one_ncon_gremlin"] > 0
    assert touched.sum() > 50 and np.median(result.reward[touched]) < 1e-5


def test_analytic_meets_the_circle(capsys):
    assert main(["parity", str(FEW), "--engine", "analytic"]) == 0
    out = capsys.readouterr().out
    assert last_line(out)["tasks"] == "1" and f"skipped {GOAL}.npz: no task here serves it on analytic" in out


@pytest.mark.slow
@pytest.mark.parametrize("id", [GOAL, "SafetyPointButton1-v0", "SafetyPointPush1-v0", "SafetyCarGoal1-v0"])
def test_mjx_meets_the_record(id):
    result = replay((FULL if FULL.is_dir() else FEW) / f"{id}.npz", "mjx")
    assert result.passed, (result.worst[:5], result.cost_mismatches, result.goal_mismatches)


@pytest.mark.parametrize("name, size", [("one_obs", 1e-5), ("one_rew", 1e-5), ("one_obs0", 1e-5)])
def test_a_deviation_fails(tmp_path, capsys, name, size):
    assert main(["parity", str(changed(tmp_path, **{name: original(name) + size})), "--engine", "native"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_flipped_flags_fail(tmp_path, capsys):
    words = ["--engine", "native"]
    assert main(["parity", str(changed(tmp_path, one_cost=1.0 - original("one_cost"))), *words]) == 1
    assert int(last_line(capsys.readouterr().out)["cost_mismatches"]) == len(original("one_cost"))
    assert main(["parity", str(changed(tmp_path, one_term=~original("one_term"))), *words]) == 1
    assert main(["parity", str(changed(tmp_path, one_goal_met=~original("one_goal_met"))), *words]) == 1


@pytest.mark.parametrize("arrays, complaint", [
    ({"one_base": None}, "has no one_base"),
    ({"one_qpos0": np.zeros((3, 4))}, "one_qpos0 does not have one row"),
    ({"obj_names": np.array(["circle"])}, "one_obj_pos0 has shape"),
    ({"one_time0": -np.ones(len(original("one_time0")))}, "one_time0 has entries below 0"),
])  # fmt: skip
def test_malformed_records_are_named(tmp_path, capsys, arrays, complaint):
    assert main(["parity", str(changed(tmp_path, **arrays)), "--engine", "native"]) == 2
    error = capsys.readouterr().err
    assert complaint in error and f"{CIRCLE}.npz" in error and error.count("\n") == 1

"""The benchmark runs, tells what it measured, and complains in one line."""

import json

import jax
import jax.numpy as jnp
import pytest

from riskppo_jax.bench import brax, engines, timing
from riskppo_jax.cli import main

HOPPER = "SafetyHopperVelocity-v1"


def test_quick_run_prints_a_table_and_writes_json(tmp_path, capsys):
    file = tmp_path / "bench.json"
    words = ["--quick", "--tasks", HOPPER, "--engines", "native", "--json", str(file)]
    assert main(["bench", "engines", *words]) == 0
    table = capsys.readouterr().out
    assert "native engine / raw batch" in table and "0.90" in table and "compile" in table
    found = json.loads(file.read_text())
    assert found["quick"] and found["settings"] == {"native": {"num_envs": [16], "steps": 20, "repeats": 2}}
    lines = {line["what"]: line for line in found["lines"]}
    raw = lines["native engine / raw batch"]
    assert raw["ours"] > 0 and raw["theirs"] > 0 and raw["target"] == 0.9
    assert raw["ratio"] == pytest.approx(raw["ours"] / raw["theirs"])
    assert raw["verdict"] == ("met" if raw["ratio"] >= 0.9 else "missed")
    assert lines["native task, compile"]["unit"] == "s"
    gymnasium = lines["native task / Hopper-v5"]
    assert gymnasium["verdict"] in ("met", "missed") or "no comparison" in gymnasium["note"]


@pytest.mark.slow
def test_quick_run_compares_mjx_with_brax(tmp_path):
    file = tmp_path / "bench.json"
    task = "SafetyHalfCheetahVelocity-v1"
    words = ["--quick", "--tasks", task, "--engines", "mjx", "--json", str(file)]
    assert main(["bench", "engines", *words]) == 0
    lines = {line["what"]: line for line in json.loads(file.read_text())["lines"]}
    carried = lines["bytes, brax / mjx task"]
    assert 0 < carried["ours"] < 2000
    assert carried["verdict"] == "met" or "brax is not installed" in carried["note"]
    if carried["verdict"]:
        assert lines["mjx engine / brax's, same model"]["ratio"] > 0
        assert lines["mjx without solver / brax"]["ours"] > lines["mjx task / brax"]["ours"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tasks", "Hopper"], "--tasks Hopper: tasks accepts SafetyHalfCheetahVelocity-v1"),
        (["--engines", "warp"], "--engines warp: engines accepts native, mjx"),
        (["--engines", ","], "--engines is empty; engines accepts native, mjx"),
        (["--num-envs", "0"], "--num-envs 0: num-envs accepts positive numbers"),
        (["--steps", "-3"], "--steps -3: steps accepts positive numbers"),
        (["--repeats", "0"], "--repeats 0: repeats accepts positive numbers"),
        (["--steps", "many"], "argument --steps: invalid int value"),
        (["--json", "no/such/folder/x.json"], "accepts a file in a folder that exists"),
    ],
)
def test_wrong_arguments_are_one_line(words, complaint, capsys):
    assert main(["bench", "engines", *words]) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_bench_without_a_subject_is_a_quick_look_at_the_engines(monkeypatch):
    asked = []
    monkeypatch.setattr("riskppo_jax.cli.bench._engines", lambda args: asked.append(args) or ([], {}, "nothing"))
    assert main(["bench"]) == 0 and asked[0].quick and asked[0].engines == ["native"]
    assert main(["bench", "engines"]) == 0 and not asked[1].quick and asked[1].engines is None


def test_missing_comparisons_are_said(monkeypatch):
    monkeypatch.setattr(brax, "find_spec", lambda name: None)
    env, reason = brax._brax("HalfCheetah", 5)
    assert env is None and "brax is not installed" in reason


def test_programs_take_turns():
    order = []
    programs = {name: (lambda name=name: order.append(name) or 10) for name in "ab"}
    rates = timing.race(programs, 2)
    assert order == ["a", "b", "a", "b", "b", "a"]  # the first round warms up
    assert len(rates["a"].samples) == 2 and rates["a"].best >= rates["a"].median > 0


def test_ratios_are_of_the_best_and_of_the_rounds():
    ours, theirs = timing.Rate((2.0, 9.0, 3.0)), timing.Rate((1.0, 3.0, 6.0))
    assert timing.ratios(ours, theirs) == (1.5, 2.0)


def test_bytes_count_keys_and_arrays():
    state = {"x": jnp.zeros((4, 3)), "key": jax.random.split(jax.random.key(0), 4)}
    assert timing.bytes_per_world(state, 4) == 12 + 8


def test_verdicts():
    line = engines.Line("task", "what", 1, ratio=0.89, target=0.9)
    assert line.verdict == "missed"
    assert engines.Line("task", "what", 1, ratio=0.9, target=0.9).verdict == "met"
    assert engines.Line("task", "what", 1, ratio=0.9).verdict == ""

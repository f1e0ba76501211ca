import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from riskppo_jax import truth
from riskppo_jax.cli import main
from riskppo_jax.envs import tabular
from riskppo_jax.truth import sampled

FIXTURES = Path(__file__).parent / "fixtures" / "tabular"
SHARED = Path(__file__).parents[2] / "shared" / "reference" / "tabular"
LAST_LINE = re.compile(
    r"truth: instances=(\d+) solved=(\d+) objective_gap_max=(\S+) violation_max=(\S+) t_error_max=(\S+)$"
)


def load(name):
    with jax.enable_x64(True):
        return tabular.load(FIXTURES / f"{name}.json")


def test_command_solves_the_fixtures_and_ends_in_its_line(capsys):
    assert main(["truth", str(FIXTURES)]) == 0
    out = capsys.readouterr().out.strip().splitlines()
    instances, solved, *errors = LAST_LINE.match(out[-1]).groups()
    assert instances == solved == str(len(list(FIXTURES.glob("*.json"))))
    assert max(map(float, errors)) <= 0.01
    assert "iterate=average" in out[0]


@pytest.mark.slow
def test_command_solves_all_reference_instances(capsys):
    if not SHARED.is_dir():
        pytest.skip("the reference instances are not beside this checkout")
    assert main(["truth", str(SHARED)]) == 0
    out = capsys.readouterr().out
    assert "velocity_gaussian_closed_form skipped" in out
    assert "instances=12 solved=12" in out


def test_a_run_that_stops_too_early_says_so(tmp_path, capsys):
    shutil.copy(FIXTURES / "safe_risky_chain.json", tmp_path)
    assert main(["truth", str(tmp_path), "--iterations", "20"]) == 1
    out = capsys.readouterr().out
    assert "MISSED" in out and "solved=0" in out


def test_a_wrong_stored_optimum_is_not_called_solved(tmp_path, capsys):
    data = json.loads((FIXTURES / "duality_gap.json").read_text())
    data["solution"]["P_star"] = 0.2
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    assert main(["truth", str(tmp_path), "--iterations", "2000"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_the_better_of_two_local_optima_is_returned():
    """`slater_trap`: P(t) has local maxima 0.4103 at t = -3.95 and 0.9286 at t = 0, with nothing feasible between."""
    instance = load("slater_trap")
    outcome, trace = truth.solve(instance, replace(truth.VARIANTS["default"], iterations=6000))
    assert trace.start[1].min() < -3.9 and trace.start[1].max() == 0.0
    assert truth.score(instance, outcome).within(truth.TOLERANCE)
    assert outcome.objective == pytest.approx(0.9286, abs=5e-3)


def test_returned_policy_is_the_one_that_was_judged():
    instance = load("both_risk_averse")
    outcome, _ = truth.solve(instance, replace(truth.VARIANTS["default"], iterations=2000))
    with jax.enable_x64(True):
        judged = truth.Setup(instance).judge(tabular.occupancy(instance.mdp, outcome.policy))
    assert judged.objective == pytest.approx(outcome.objective, abs=1e-9)
    np.testing.assert_allclose(judged.slack, outcome.slack, atol=1e-9)
    # never better than the optimum: that would be a wrong sign, scale or law
    if np.all(outcome.slack >= 0):
        assert outcome.objective <= instance.solution.objective + 1e-6


@pytest.mark.parametrize("name", sorted(set(truth.VARIANTS) - {"default"}))
def test_every_variant_runs(name):
    outcome, trace = truth.solve(load("duality_gap"), replace(truth.VARIANTS[name], iterations=400, starts=2))
    assert np.isfinite(outcome.objective) and np.all(np.isfinite(trace.lam))


@pytest.mark.parametrize(
    "argv, named",
    [
        (["truth"], "DIR is missing; accepts"),
        (["truth", "no/such/folder"], "no/such/folder"),
        (["truth", str(FIXTURES), "--variant", "magic"], "default, paper"),
        (["truth", str(FIXTURES), "--solver", "ppo", "--variant", "paper"], "accepts none"),
        (["truth", str(FIXTURES), "--solver", "magic"], "exact, ppo"),
        (["truth", str(FIXTURES), "--iterations", "0"], "--iterations 0"),
        (["truth", str(FIXTURES), "--iterations", "many"], "--iterations"),
        (["truth", str(FIXTURES), "--seed", "-1"], "--seed -1"),
        (["trueth"], "invalid choice"),
    ],
)
def test_mistakes_get_one_line(argv, named, capsys):
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1


def test_an_empty_folder_and_one_without_instances(tmp_path, capsys):
    assert main(["truth", str(tmp_path)]) == 2
    (tmp_path / "formulas.json").write_text("{}")
    assert main(["truth", str(tmp_path)]) == 2
    assert "at least one instance" in capsys.readouterr().err


def test_the_trainer_finds_a_randomised_optimum():
    """Networks and samples on `duality_gap`: the optimum mixes two actions, and one start of t is a trap."""
    instance = load("duality_gap")
    recipe = sampled.Recipe(iterations=400, starts=2)
    found = truth.score(instance, sampled.solve(instance, recipe))
    assert found.within(sampled.tolerance(instance)) and found.t_error < 0.02
    untrained = truth.score(instance, sampled.solve(instance, replace(recipe, iterations=3)))
    assert not untrained.within(sampled.tolerance(instance))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the full set of instances is not here")
def test_the_trainer_solves_all_public_instances(capsys):
    assert main(["truth", str(SHARED), "--solver", "ppo"]) == 0
    instances, solved, *_, t_error = LAST_LINE.match(capsys.readouterr().out.strip().splitlines()[-1]).groups()
    assert instances == solved and float(t_error) < 0.02


def test_variants_are_named_without_a_folder(capsys):
    assert main(["truth", "--variant", "list"]) == 0
    assert "paper" in capsys.readouterr().out

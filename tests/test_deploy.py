"""The best policy of the evaluation points, where it is to be deployed instead of the last."""

import json

import jax
import numpy as np
import pytest
from tabular_cli import TINY

from riskppo_jax import deploy, lanes, results
from riskppo_jax.build import build
from riskppo_jax.cli import main
from riskppo_jax.risk import oce
from riskppo_jax.risk.lagrangian import Constraint, Problem
from riskppo_jax.rundir import restore_run
from riskppo_jax.settings import read_settings

LIMIT = Problem(constraints=(Constraint("v1", 2.0, oce.cvar(0.3)),))
WORDS = [*TINY, "log.every=1", "eval.points=8", "deploy=best", "eval.confirm_episodes=0", "total_steps=256"]


@pytest.mark.parametrize(("risk", "excess"), [(1.0, 0.0), (2.01, 0.0), (3.0, 0.5), (float("nan"), float("inf"))])
def test_what_is_beyond_a_limit(risk, excess):
    assert deploy.excess_of({"eval/risk0": risk}, LIMIT) == excess


def test_no_cost_allowed_is_no_cost_allowed():
    """A graze in one episode of a hundred weighs more than any other limit that is not quite kept."""
    none, room = Constraint("v1", 0.0, oce.cvar(0.3)), Constraint("v1", 0.01, oce.cvar(0.05))
    assert deploy.excess_of({"eval/risk0": 0.0}, Problem(constraints=(none,))) == 0
    both = Problem(constraints=(none, room))
    grazes = deploy.excess_of({"eval/risk0": 1e-5 / 0.3, "eval/risk1": 0.0}, both)
    near = deploy.excess_of({"eval/risk0": 0.0, "eval/risk1": 0.05}, both)
    assert grazes > near == pytest.approx(4.0)


def test_what_is_confirmed_keeps_a_limit():
    """With two limits a point that keeps one may be all there is; one that keeps none has nothing to confirm."""
    job = build(read_settings([*TINY]))
    state = deploy.begin(job.trainer.init(jax.random.key(0), job.hypers))
    both = Problem(constraints=(*LIMIT.constraints, Constraint("v1", 0.0, oce.cvar(0.3))))
    for risks, leads in (((1, 0), True), ((3, 0), True), ((1, 1), True), ((3, 1), False)):
        point = {"eval/reward": 1.0} | {f"eval/risk{i}": risk for i, risk in enumerate(risks)}
        assert bool(deploy.leads(state, [point], [both])) == leads
    assert deploy.leads(state, [{"eval/reward": 1.0}], [Problem()])  # nothing to keep: the return alone may be luck


def test_lanes_choose_for_themselves():
    """Keeping the limit comes before the return, then the return counts; what was better stays."""
    job = build(read_settings([*TINY]))
    keys = jax.random.split(jax.random.key(0), 2)
    state = jax.vmap(lambda key: deploy.begin(job.trainer.init(key, job.hypers)))(keys)
    kept = []
    for steps, rewards, risks in ((1, (5, 5), (4, 1)), (2, (1, 9), (1, 4)), (3, (2, 4), (1, 1)), (4, (1, 6), (1, 1))):
        marked = jax.tree.map(lambda x, mark=steps: 0 * x + mark, state.averaged)
        state = state.replace(averaged=marked, env_steps=0 * state.env_steps + steps)
        points = [{"eval/reward": r, "eval/risk0": v} for r, v in zip(rewards, risks, strict=True)]
        state = deploy.choose(state, points, [LIMIT, LIMIT])
        kept.append(state.chosen.env_steps.tolist())
    assert kept == [[1, 1], [2, 1], [3, 1], [3, 4]]
    for leaf in jax.tree.leaves(state.deployed[0].actor):
        assert (np.asarray(leaf[0]) == 3).all() and (np.asarray(leaf[1]) == 4).all()


def test_what_is_maximised_decides():
    """Under an averse objective the return does not."""
    job = build(read_settings([*TINY, "objective=cvar"]))
    state = deploy.begin(job.trainer.init(jax.random.key(0), job.hypers))
    for mark, (reward, objective) in enumerate([(5.0, 1.0), (9.0, 0.5), (1.0, 2.0)]):
        state = state.replace(env_steps=0 * state.env_steps + mark)
        point = {"eval/reward": reward, "eval/objective_whole": objective, "eval/risk0": 0.0}
        state = deploy.choose(state, [point], [job.hypers.problem])
        assert int(state.chosen.env_steps) == (0, 0, 2)[mark]


def test_who_was_lucky_is_not_taken(monkeypatch):
    """What looks best has to be so in further episodes, and the next one is held against these."""
    job = build(read_settings([*TINY, "deploy=best"]))
    limit = float(job.hypers.problem.constraints[0].threshold)
    state, asked = deploy.begin(job.trainer.init(jax.random.key(0), job.hypers)), []
    for mark, (point, further) in enumerate([(5, 4), (3, 9), (7, 3.5), (4.5, 4.5)]):  # returns

        def again(job, state, episodes, way, seed, mark=mark, reward=further):
            asked.append(mark)
            return [{"eval/reward": reward, "eval/risk0": limit}]

        monkeypatch.setattr(results, "_points", again)
        state = state.replace(env_steps=0 * state.env_steps + mark)
        state = results.choose(job, state, [{"eval/reward": point, "eval/risk0": limit}], None)
        assert int(state.chosen.env_steps) == (0, 0, 0, 3)[mark]
    assert asked == [0, 2, 3] and float(state.chosen.reward) == 4.5


def test_a_run_confirms_its_best(tmp_path):
    """The return a run chose by is that of the further episodes."""
    words = [*WORDS, "threshold=4", "eval.confirm_episodes=3", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 0
    points = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    chosen = restore_run(tmp_path / "run")[1].chosen
    (point,) = [point for point in points if point["train/env_steps"] == int(chosen.env_steps)]
    assert float(chosen.reward) != pytest.approx(point["eval/reward"])


def test_lanes_that_run_one_by_one_confirm_one_by_one(tmp_path, monkeypatch):
    """Who is looked at again alone finds what it finds beside the others."""
    words = [*WORDS, "threshold=4", "eval.confirm_episodes=3", "sweep.seed=3"]
    run_episodes, asked, chosen = lanes.run_episodes, {"vmap": [], "map": []}, []

    def watch(job, policies, deterministic, episodes, way, seed):
        if seed == results.EVALUATION_SEED + results.CONFIRMING:
            asked[way.mode].append([own.settings.seed for own in job.lanes])
        return run_episodes(job, policies, deterministic, episodes, way, seed)

    monkeypatch.setattr(lanes, "run_episodes", watch)
    for mode in asked:
        assert main(["train", *words, f"sweep.mode={mode}", f"output={tmp_path / mode}"]) == 0
        chosen.append(restore_run(tmp_path / mode)[1].chosen)
    assert all(some == [0, 1, 2] for some in asked["vmap"])
    assert asked["map"] and all(len(some) == 1 for some in asked["map"])
    assert chosen[0].env_steps.tolist() == chosen[1].env_steps.tolist()
    np.testing.assert_allclose(chosen[0].reward, chosen[1].reward, rtol=1e-4)


@pytest.mark.parametrize("sweep", [[], ["sweep.seed=2"]])
def test_a_run_deploys_the_best_of_its_points(tmp_path, capsys, sweep):
    assert main(["train", *WORDS, *sweep, f"output={tmp_path / 'run'}"]) == 0
    assert "the best of the evaluation points" in capsys.readouterr().out
    points = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    lanes = json.loads((tmp_path / "run" / "summary.json").read_text())["lanes"]
    job, state, _ = restore_run(tmp_path / "run")
    assert np.atleast_1d(state.chosen.env_steps).tolist() == [lane["chosen"]["env_steps"] for lane in lanes]
    for i, lane in enumerate(lanes):
        own = [point for point in points if point.get("sweep/lane", 0) == i and "eval/reward" in point]
        assert len(own) == 8
        problem = job.hypers.problem
        best = min(own, key=lambda point: (deploy.excess_of(point, problem), -point["eval/reward"]))
        assert lane["chosen"]["env_steps"] == best["train/env_steps"]


def test_training_is_the_same_whatever_is_deployed(tmp_path):
    logs = []
    for choice in ("best", "last"):
        assert main(["train", *WORDS, f"deploy={choice}", f"output={tmp_path / choice}"]) == 0
        points = [json.loads(line) for line in (tmp_path / choice / "metrics.jsonl").read_text().splitlines()]
        logs.append([{k: v for k, v in p.items() if not k.startswith(("perf/", "eval/"))} for p in points])
    assert logs[0] == logs[1]

"""Statistics over runs and tasks, against numbers worked by hand and against SciPy."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats
from fake_runs import fake_run

from riskppo_jax import stats
from riskppo_jax.errors import UserError

A = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]])  # 4 runs of 2 tasks: 1 .. 8


def test_interquartile_mean():
    assert stats.interquartile_mean(A) == (3 + 4 + 5 + 6) / 4
    assert stats.interquartile_mean(np.array([[0.0], [1.0], [2.0], [100.0]])) == 1.5
    assert stats.interquartile_mean(np.array([[0.0], [1.0], [5.0]])) == 2.0  # three: nothing to cut
    draw = np.random.default_rng(0).normal(size=(7, 3))
    assert stats.interquartile_mean(draw) == pytest.approx(scipy.stats.trim_mean(draw, 0.25, axis=None))


def test_optimality_gap():
    assert stats.optimality_gap(np.array([[0.5, 2.0], [1.0, 0.0]])) == (0.5 + 0 + 0 + 1) / 4


def test_probability_of_improvement():
    ours, theirs = np.array([[1.0], [3.0]]), np.array([[2.0], [3.0]])
    # pairs: 1<2, 1<3, 3>2, 3=3 -> (0 + 0 + 1 + 1/2) / 4
    assert stats.probability_of_improvement(ours, theirs) == 0.375
    assert stats.probability_of_improvement(theirs, ours) == 0.625
    two = stats.probability_of_improvement(np.hstack([ours, [[1.0], [1.0]]]), np.hstack([theirs, [[0.0], [0.0]]]))
    assert two == (0.375 + 1.0) / 2
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(6, 1)), draw.normal(size=(9, 1))
    u = scipy.stats.mannwhitneyu(x[:, 0], y[:, 0]).statistic
    assert stats.probability_of_improvement(x, y) == pytest.approx(u / 54)


def test_performance_profile():
    np.testing.assert_array_equal(stats.performance_profile(A, [0, 1, 4.5, 8]), [1.0, 7 / 8, 4 / 8, 0.0])


def test_bootstrap_of_two_runs_is_the_known_law():
    """Two runs of one task: the resampled mean is 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    table = np.array([[0.0], [1.0]])
    low, high = stats.bootstrap_interval(np.mean, table, confidence=0.4, resamples=4000)
    assert (low, high) == (0.5, 0.5)
    low, high = stats.bootstrap_interval(np.mean, table, confidence=0.95, resamples=4000)
    assert (low, high) == (0.0, 1.0)


def test_bootstrap_is_stratified():
    """Runs of a task agree, tasks differ: no resample may mix them, so there is nothing to vary."""
    table = np.array([[0.0, 10.0]] * 3)
    assert stats.bootstrap_interval(np.mean, table, resamples=50) == (5.0, 5.0)


def test_bootstrap_agrees_with_all_resamples():
    table = np.array([[0.0], [1.0], [4.0]])
    means = [np.mean(pick) for pick in itertools.product([0.0, 1.0, 4.0], repeat=3)]
    low, high = stats.bootstrap_interval(np.mean, table, confidence=0.8, resamples=20_000)
    np.testing.assert_allclose([low, high], np.quantile(means, [0.1, 0.9]), atol=1e-9)


def test_bootstrap_covers():
    draw, hits = np.random.default_rng(2), 0
    for i in range(100):
        low, high = stats.bootstrap_interval(np.mean, draw.normal(size=(20, 2)), resamples=200, seed=i)
        hits += low <= 0 <= high
    assert 86 <= hits <= 100


def test_bootstrap_of_two_methods_and_of_curves():
    better = A + 10
    assert stats.bootstrap_interval(stats.probability_of_improvement, better, A[:3], resamples=20) == (1.0, 1.0)
    low, high = stats.bootstrap_interval(lambda x: stats.performance_profile(x, [0, 4.5, 9]), A, resamples=100)
    assert low.shape == (3,) and np.all(low <= high) and (low[0], high[-1]) == (1.0, 0.0)


def test_normalize():
    found = stats.normalize(A, {"a": 0.0, "b": 5.0}, {"a": 4.0, "b": 10.0}, ["a", "b"])
    np.testing.assert_allclose(found[0], [0.25, 0.0])
    with pytest.raises(UserError, match="no reference for b"):
        stats.normalize(A, {"a": 0.0}, 1.0, ["a", "b"])
    with pytest.raises(UserError, match="tasks has 0 names"):
        stats.normalize(A, {"a": 0.0}, 1.0)
    with pytest.raises(UserError, match="tasks has 1 names"):  # one reference is not for all columns
        stats.normalize(A, {"a": 0.0}, 1.0, ["a"])
    with pytest.raises(UserError, match="two different numbers"):
        stats.normalize(A, 1.0, 1.0)


def test_scores_of_a_folder(tmp_path):
    for env in ("SafetyHopperVelocity-v1", "SafetySwimmerVelocity-v1"):
        fake_run(tmp_path / env / "sweep", env=env)
        fake_run(tmp_path / env / "ppo", betas=(0.1,), seeds=3, env=env, algo="ppo")
    table, tasks = stats.score_table([tmp_path])
    assert tasks == ["SafetyHopperVelocity-v1", "SafetySwimmerVelocity-v1"]
    assert set(table) == {"ppo risk.beta=0.1", *(f"riskppo risk.beta={beta}" for beta in (0.1, 0.3, 1.0))}
    np.testing.assert_allclose(table["riskppo risk.beta=1.0"], [[1200] * 2, [1220] * 2, [1240] * 2])
    path = stats.write_scores(tmp_path / "scores.npz", table, tasks)
    with np.load(path) as arrays:
        assert arrays["tasks"].tolist() == tasks and arrays["riskppo risk.beta=0.3"].shape == (3, 2)


def test_runs_of_other_settings_are_other_methods(tmp_path):
    """Also where the setting was not swept but given to runs of their own; and no seed counts twice."""
    for beta in (0.1, 1.0):
        fake_run(tmp_path / f"beta{beta}", betas=(beta,), seeds=1)
    table, _ = stats.score_table([tmp_path])
    assert {name: scores.tolist() for name, scores in table.items()} == {
        "riskppo risk.velocity.beta=0.1": [[930.0]], "riskppo risk.velocity.beta=1.0": [[1200.0]],
    }  # fmt: skip
    fake_run(tmp_path / "again", betas=(1.0,), seeds=1)
    with pytest.raises(UserError, match="again; accepts each once"):
        stats.score_table([tmp_path])


def test_scores_of_unequal_folders(tmp_path):
    fake_run(tmp_path / "a", betas=(0.1,), seeds=3)
    fake_run(tmp_path / "b", betas=(0.1,), seeds=2, env="SafetySwimmerVelocity-v1")
    with pytest.raises(UserError, match="as many for every task"):
        stats.score_table([tmp_path])
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    with pytest.raises(UserError, match="reward_mean"):
        stats.score_table([tmp_path / "a"], "speed")
    assert len(summary["lanes"]) == 3


@pytest.mark.parametrize("scores", [[1.0, 2.0], [[]], [[np.nan]]])
def test_bad_scores(scores):
    with pytest.raises(UserError, match="accepts"):
        stats.interquartile_mean(np.array(scores))


def test_bad_options(tmp_path):
    with pytest.raises(UserError, match=r"confidence=1\.0"):
        stats.bootstrap_interval(np.mean, A, confidence=1.0)
    with pytest.raises(UserError, match="resamples=0"):
        stats.bootstrap_interval(np.mean, A, resamples=0)
    with pytest.raises(UserError, match="same tasks"):
        stats.probability_of_improvement(A, A[:, :1])
    with pytest.raises(UserError, match=r"\.npz"):
        stats.write_scores(tmp_path / "scores.csv", {"a": A}, ["x", "y"])

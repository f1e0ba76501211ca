"""`start_from`: a run that begins with what another has learned."""

import functools
import shutil
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tabular_cli import TINY

from riskppo_jax.build import build
from riskppo_jax.checkpoint import steps
from riskppo_jax.cli import main
from riskppo_jax.errors import UserError
from riskppo_jax.normalize import init_reward_scale, reward_factor, update_reward_scale
from riskppo_jax.run import _enter
from riskppo_jax.rundir import restore_run
from riskppo_jax.settings import read_settings


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    path = tmp_path_factory.mktemp("warm") / "earlier"
    assert main(["train", *TINY, "total_steps=400", f"output={path}"]) == 0
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = tmp_path_factory.mktemp("warm") / "pair"
    assert main(["train", *TINY, "total_steps=200", "sweep.seed=2", f"output={path}"]) == 0
    return path


def first_state(words, folder):
    """The state `riskppo train` begins with, before any step, restored from what `_enter` hands to the loop."""
    job = build(read_settings([*words, f"output={folder}"]))
    with ExitStack() as alone:
        state, progress, finished = _enter(job, folder, alone)
    assert progress.iterations == 0 and not finished
    return state, job


def equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_networks_and_scales_are_taken_and_prices_begin_anew(earlier, tmp_path):
    _, held, _ = restore_run(earlier)
    state, job = first_state([*TINY, f"start_from={earlier}", "seed=7"], tmp_path / "new")
    equal(state.learner.params, held.learner.params)
    equal(state.averaged, held.learner.params.actor)
    equal(state.moments, held.moments)
    equal((state.scale.moments, state.scale.targets), (held.scale.moments, held.scale.targets))
    equal(state.scale.returns, np.full(4, held.scale.moments.mean))  # as if worlds were under way
    fresh = job.trainer.init(jax.random.key(7), job.hypers)
    equal((state.dual, state.envs.obs, state.env_steps), (fresh.dual, fresh.envs.obs, fresh.env_steps))
    assert np.asarray(held.env_steps) > 0  # there was something to forget
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (fresh.learner.params, held.learner.params)),
                                              strict=True))  # fmt: skip


def test_the_run_resumes_bit_for_bit(earlier, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*TINY, f"start_from={earlier}", "seed=7", "deploy=best", "checkpoint.seconds=0", "checkpoint.keep=99"]
    assert main(["train", *words, "total_steps=400", f"output={whole}"]) == 0
    shutil.copytree(whole, cut)
    (cut / "summary.json").unlink()
    for path in steps(cut / "checkpoints")[2:]:
        shutil.rmtree(path)
    assert main(["train", *words, "total_steps=400", f"output={cut}", "resume=true"]) == 0
    (_, one, _), (_, other, _) = restore_run(whole), restore_run(cut)
    equal((one.learner, one.dual, one.chosen), (other.learner, other.dual, other.chosen))


def test_every_lane_starts_from_a_single_run_or_from_its_own(earlier, pair, tmp_path):
    words = [*TINY, "sweep.seed=2"]
    _, one, _ = restore_run(earlier)
    state, _ = first_state([*words, f"start_from={earlier}"], tmp_path / "a")
    for lane in range(2):
        equal(jax.tree.map(lambda x, lane=lane: x[lane], state.learner.params), one.learner.params)
    _, two, _ = restore_run(pair)
    state, _ = first_state([*TINY, f"start_from={pair}", "start_lane=1"], tmp_path / "c")
    equal(state.learner.params, jax.tree.map(lambda x: x[1], two.learner.params))
    state, _ = first_state([*words, f"start_from={pair}"], tmp_path / "b")
    equal(state.learner.params, two.learner.params)


def test_rewards_keep_their_size():
    """Returns that all rose from 0 at once would shrink the rewards of a steady policy, and its critic lose its way."""
    rewards, never = jnp.ones((128, 16)), jnp.zeros((128, 16), bool)
    step = jax.jit(lambda scale: update_reward_scale(scale, rewards, never, 0.99))
    held = functools.reduce(lambda scale, _: step(scale), range(500), init_reward_scale(16))
    starts = jnp.broadcast_to(held.moments.mean, (16,)), jnp.zeros(16)
    under_way, at_once = (float(reward_factor(step(held.replace(returns=start)))) for start in starts)
    before = float(reward_factor(held))
    assert abs(under_way / before - 1.0) < 0.01 and at_once < 0.8 * before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["layout.hidden_sizes=[12]"], ["networks differ", "layout.hidden_sizes"]),
        (["layout.activation=relu"], ["layout.activation=relu", "has tanh; accepts the same"]),
        (["layout.keep_values=true"], ["layout.keep_values=True", "has False; accepts the same"]),
        (["start_lane=3"], ["start_lane=3", "accepts lanes from 0 to 0"]),
    ],
)
def test_another_network_is_refused_in_one_line(earlier, tmp_path, capsys, words, said):
    assert main(["train", *TINY, *words, f"start_from={earlier}", f"output={tmp_path / 'new'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "start_from" in line and all(word in line for word in said)
    assert not (tmp_path / "new").exists()


def test_a_sweep_of_other_lanes_is_refused(pair, tmp_path, capsys):
    assert main(["train", *TINY, f"start_from={pair}", f"output={tmp_path / 'new'}"]) == 2
    assert "a sweep of 2 lanes; accepts a single run, as many lanes, or start_lane=I" in capsys.readouterr().err


def test_several_processes_are_refused(earlier, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"start_from=.* accepts one process"):
        build(read_settings([*TINY, f"start_from={earlier}"]))


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["train", *TINY, f"start_from={tmp_path}", f"output={tmp_path / 'new'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "start_from: " in line and "not a run directory" in line

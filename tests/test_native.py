"""What only the native engine promises: MuJoCo's own numbers, and peace between XLA's threads and its own."""

import time

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax.engines import make_engine
from riskppo_jax.engines.base import Sim
from riskppo_jax.engines.models import load_packaged, quiet, touching


def plain_loop(model, qpos, qvel, ctrl, frame_skip):
    """Raw state after each environment step of a loop over `mj_step`."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(model, data)
    states = []
    for action in ctrl:
        data.ctrl[:] = action
        mujoco.mj_step(model, data, frame_skip)
        states.append(np.concatenate([[data.time], data.qpos, data.qvel, data.qacc_warmstart]))
    return np.array(states)


@pytest.mark.parametrize("xml, frame_skip", [("hopper.xml", 4), ("half_cheetah.xml", 5), ("ant.xml", 5)])
def test_a_thousand_steps_equal_plain_mujoco_bit_for_bit(xml, frame_skip):
    model = load_packaged(xml)
    engine = make_engine("native", model, frame_skip)
    rng = np.random.default_rng(0)
    ctrl = rng.uniform(-1, 1, (1000, 3, model.nu)).astype(np.float32)
    qpos = (model.qpos0 + rng.uniform(-0.01, 0.01, (3, model.nq))).astype(np.float32)
    qvel = rng.uniform(-0.1, 0.1, (3, model.nv)).astype(np.float32)

    def body(carry, u):
        carry = jax.vmap(lambda c, a: engine.step(Sim(c, {}), a).carry)(carry, u)
        return carry, carry

    carry = jax.vmap(engine.init)(qpos, qvel).carry
    assert carry.dtype == jnp.uint32
    words = np.asarray(jax.jit(lambda c, u: jax.lax.scan(body, c, u)[1])(carry, ctrl))
    ours = words.view(np.float64)
    for i in range(3):
        np.testing.assert_array_equal(ours[:, i], plain_loop(model, qpos[i], qvel[i], ctrl[:, i], frame_skip))


def test_calls_leave_nothing_behind():
    model = load_packaged("hopper.xml")
    engine = make_engine("native", model, 4)
    step = jax.jit(jax.vmap(engine.step))
    start = jax.vmap(engine.init)(jnp.tile(model.qpos0, (5, 1)), jnp.zeros((5, model.nv)))
    first = step(start, jnp.ones((5, model.nu)))
    step(first, jnp.full((5, model.nu), jnp.nan))
    again = step(start, jnp.ones((5, model.nu)))
    jax.tree.map(np.testing.assert_array_equal, first, again)


def test_derived_fields_are_those_of_the_last_stage():
    model = load_packaged("ant.xml")
    engine = make_engine("native", model, 5, ("qpos", "xpos"))
    ctrl = np.linspace(-1, 1, model.nu, dtype=np.float32)
    sim = engine.step(engine.init(jnp.asarray(model.qpos0), jnp.ones(model.nv)), ctrl)
    data = mujoco.MjData(model)
    data.qvel[:], data.ctrl[:] = 1.0, ctrl
    mujoco.mj_step(model, data, 5)
    np.testing.assert_allclose(sim.derived["xpos"], data.xpos.ravel(), rtol=1e-6, atol=1e-7)
    assert abs(float(sim.derived["xpos"][3]) - float(sim.derived["qpos"][0])) > 1e-6


def test_mujoco_resets_are_noticed():
    """MuJoCo puts a world that explodes back to its start; we call it lost."""
    engine = make_engine("native", load_packaged("hopper.xml"), 4)
    qvel = jnp.zeros((3, 6)).at[1, 0].set(1e11)
    sim = jax.jit(jax.vmap(engine.init))(jnp.zeros((3, 6)).at[:, 1].set(1.25), qvel)
    sim = jax.jit(jax.vmap(engine.step))(sim, jnp.zeros((3, 3)))
    assert np.isnan(sim.derived["qpos"]).all(axis=1).tolist() == [False, True, False]


def test_mujoco_writes_no_log_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test_mujoco_resets_are_noticed()
    load_packaged("half_cheetah.xml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_long_scan_of_many_worlds_neither_hangs_nor_crawls():
    """2,000 steps of 256 worlds in one scan, next to matrix products that keep XLA's own threads busy."""
    env = rp.make_env("SafetySwimmerVelocity-v1", engine="native")
    weights = jnp.ones((256, 256)) / 256

    def body(carry, _):
        state, x = carry
        x = jnp.tanh(x @ weights)
        state = jax.vmap(env.step)(state, jnp.tile(jnp.sin(x[:, :1]), (1, 2)))
        return (state, x), state.reward.mean()

    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 256))
    run = jax.jit(lambda s: jax.lax.scan(body, (s, jnp.ones((256, 256))), None, 2000)[1])
    start = time.perf_counter()
    assert np.isfinite(jax.block_until_ready(run(state))).all()
    assert time.perf_counter() - start < 300


@pytest.mark.parametrize("xml", ["half_cheetah.xml", "hopper.xml", "walker2d_v5.xml", "ant.xml"])
def test_listed_pairs_change_no_number(xml):
    """A model that lists what can touch moves as the one in which MuJoCo searches for it, bit for bit."""
    found, listed = load_packaged(xml), load_packaged(xml, pairs=True)
    assert listed.npair == len(touching(found)) > 0 and not listed.geom_contype.any()
    ends = []
    for model in (found, listed):
        data = mujoco.MjData(model)
        rng = np.random.default_rng(3)
        touches = 0
        for _ in range(100):
            data.ctrl = rng.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data, 5)
            touches += data.ncon
        ends.append((touches, data.qpos.tolist(), data.qvel.tolist()))
    assert ends[0][0] > 0 and ends[0] == ends[1]


def test_pairs_are_listed_only_where_they_are_few():
    assert load_packaged("humanoid.xml", pairs=True).npair == 0
    assert load_packaged("swimmer.xml", pairs=True).npair == 0


def test_the_stopwatch_runs_again_after_a_batch_call():
    model = load_packaged("hopper.xml")
    data = mujoco.MjData(model)

    def seconds():
        before = data.timer[mujoco.mjtTimer.mjTIMER_STEP].duration
        mujoco.mj_step(model, data, 50)
        return data.timer[mujoco.mjtTimer.mjTIMER_STEP].duration - before

    assert seconds() > 0
    with quiet():
        assert seconds() == 0
        with quiet():
            pass
        assert seconds() == 0
    assert seconds() > 0

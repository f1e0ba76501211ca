"""Navigation on mjx: it lowers for accelerators, knows only contacts that can occur, and one lost world stays alone."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax.envs.navigation.robots import find
from riskppo_jax.envs.navigation.tables import task
from riskppo_jax.envs.navigation.world import build

WORLDS, LOST = 8, 3


def test_programs_lower_for_accelerators():
    env = rp.make_env("SafetyPointGoal1-v0", engine="mjx")
    state = jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), 4))
    action = jax.ShapeDtypeStruct((4, env.action_size), jnp.float32)
    data = jax.eval_shape(jax.random.key_data, state.key)

    def step(state, key, action):
        new = jax.vmap(env.step)(state.replace(key=jax.random.wrap_key_data(key)), action)
        return new.replace(key=jax.random.key_data(new.key))

    exported = jax.export.export(jax.jit(step), platforms=["cuda", "tpu"])(state.replace(key=data), data, action)
    assert exported.platforms == ("cuda", "tpu") and len(exported.mlir_module_serialized) > 10_000


@pytest.mark.parametrize("robot, name, level, most", [
    ("Point", "Circle", 1, 0), ("Point", "Goal", 1, 9), ("Point", "Goal", 2, 90), ("Point", "Button", 1, 28),
    ("Point", "Push", 1, 52), ("Car", "Goal", 1, 40),
])  # fmt: skip
def test_only_contacts_that_can_occur(robot, name, level, most):
    from mujoco import mjx

    model = build(find(robot), task(name, level, robot), "mjx")
    assert len(mjx.make_data(model, impl="jax")._impl.contact.dist) == most
    assert model.stat.meaninertia == pytest.approx(build(find(robot), task(name, level, robot)).stat.meaninertia)


def run_of(env):
    """Five steps of `WORLDS` worlds, every state of them."""
    actions = jax.random.uniform(jax.random.key(1), (5, WORLDS, env.action_size), minval=-1, maxval=1)

    def body(state, action):
        state = jax.vmap(env.step)(state, action)
        return state, state

    return jax.jit(lambda state: jax.lax.scan(body, state, actions)[1])


@pytest.mark.slow
@pytest.mark.parametrize("id", ["SafetyHopperVelocity-v1", "SafetyPointGoal1-v0"])
def test_one_poisoned_world_is_quarantined(id):
    env = rp.make_env(id, engine="mjx")
    run = run_of(env)
    state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), WORLDS))
    inside = lambda sim: sim.carry if hasattr(sim, "carry") else sim  # noqa: E731
    ill = inside(state.sim).replace(qvel=inside(state.sim).qvel.at[LOST].set(jnp.nan))
    clean = run(state)
    sick = run(state.replace(sim=state.sim.replace(carry=ill) if hasattr(state.sim, "carry") else ill))
    assert bool(sick.terminated[0, LOST]) and float(sick.reward[0, LOST]) == 0 and float(sick.cost[0, LOST]) == 0
    assert all(float(value[0, LOST]) == 0 for value in sick.constraints.values())
    assert sick.info["diverged"][-1].sum() == 1 and int(sick.info["diverged"][-1, LOST]) == 1
    for name in ("obs", "final_obs", "reward"):
        assert np.isfinite(getattr(sick, name)).all()
    assert not sick.terminated[1:, LOST].any()  # a fresh world goes on in its place
    others = np.arange(WORLDS) != LOST
    for name in ("sim", "obs", "reward", "cost", "terminated", "final_obs"):
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(np.asarray(a)[:, others], np.asarray(b)[:, others]),
            getattr(sick, name), getattr(clean, name),
        )  # fmt: skip


STEP = """
import jax
import riskppo_jax as rp
env = rp.make_env("SafetyPointButton1-v0", engine="mjx")
state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 64))
run = jax.jit(lambda s, a: jax.lax.scan(lambda s, _: (jax.vmap(env.step)(s, a), None), s, None, 5)[0])
print("done", jax.block_until_ready(run(state, jax.numpy.zeros((64, 2)))).obs.shape)
"""


def test_factorisations_do_not_wait_for_each_other():
    """Sixty-four worlds with large inertias: jaxlib shares each batch out among the threads that run the program."""
    found = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, timeout=420, check=True)
    assert "done (64," in found.stdout

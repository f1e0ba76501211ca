"""The velocity tasks: contract, options, rewards, costs, ends, and the quarantine of a lost world."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax.envs.base import Env
from riskppo_jax.envs.velocity import TASKS, Velocity
from riskppo_jax.envs.wrappers import with_noise
from riskppo_jax.errors import UserError

IDS = rp.list_envs("Safety*Velocity-v1")
SIZES = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Swimmer": (8, 2), "Walker2d": (17, 6), "Ant": (27, 8),
         "Humanoid": (376, 17)}  # fmt: skip
HOPPER = "SafetyHopperVelocity-v1"
CHEETAH = "SafetyHalfCheetahVelocity-v1"


@pytest.mark.parametrize("id", IDS)
def test_every_task_keeps_the_contract(id):
    env = rp.make_env(id, engine="native")
    assert isinstance(env, Env) and env.num_actions is None and env.constraint_names == ("velocity", "effort")
    assert (env.observation_size, env.action_size) == SIZES[id.removeprefix("Safety").removesuffix("Velocity-v1")]
    state = jax.jit(env.reset)(jax.random.key(0))
    new = jax.jit(env.step)(state, jnp.zeros(env.action_size))
    assert jax.tree.structure(new) == jax.tree.structure(state)
    jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail("shapes change"), new, state)
    assert new.obs.shape == (env.observation_size,) and new.obs.dtype == jnp.float32
    low, high = env.constraint_range["velocity"]
    assert low <= float(new.constraints["velocity"]) <= high
    assert int(new.info["steps"]) == 1 and int(new.info["diverged"]) == 0


def test_reward_and_cost_by_hand():
    env = Velocity("HalfCheetah", "native")
    start = env.place(jax.random.key(0), jnp.zeros(9), jnp.zeros(9).at[0].set(8.0))
    action = jnp.array([3.0, -2.0, 0.5, 0.0, 0.0, 0.0])
    state = jax.jit(env.step)(start, action)
    speed = state.constraints["velocity"]
    np.testing.assert_allclose(state.reward, speed - 0.1 * 13.25, rtol=1e-6)
    assert float(speed) > 3.2096 and float(state.cost) == 1.0
    clipped = jax.jit(Velocity("HalfCheetah", "native", clip_actions=True).step)(start, action)
    np.testing.assert_array_equal(clipped.sim, state.sim)  # MuJoCo clips what acts on the joints anyway
    np.testing.assert_allclose(clipped.reward - state.reward, 0.1 * (13.25 - 2.25), rtol=1e-5)


@pytest.mark.parametrize("form, sign", [("signed", -1.0), ("abs", 1.0), ("planar", 1.0)])
def test_forms_of_speed(form, sign):
    env = Velocity("HalfCheetah", "native", speed=form)
    state = env.step(env.place(jax.random.key(0), jnp.zeros(9), jnp.zeros(9).at[0].set(-8.0)), jnp.zeros(6))
    assert float(state.info["x_velocity"]) < -3.5
    assert float(state.constraints["velocity"]) * sign > 3.5
    assert float(state.cost) == 0.0  # running backwards is free


@pytest.mark.parametrize("robot", ["HalfCheetah", "Hopper", "Walker2d"])
def test_rising_is_not_moving_sideways(robot):
    env = Velocity(robot, "native", speed="planar")
    model = env.engine.model
    start = jnp.asarray(model.qpos0).at[1].add(1.0)
    state = env.step(env.place(jax.random.key(0), start, jnp.zeros(model.nv).at[1].set(3.0)), jnp.zeros(model.nu))
    assert float(state.info["y_velocity"]) == 0.0
    np.testing.assert_allclose(state.constraints["velocity"], abs(state.info["x_velocity"]), rtol=1e-6)


def test_hopper_terminates_when_it_leans():
    env = Velocity("Hopper", "native")
    lean = lambda angle: env.step(  # noqa: E731
        env.place(jax.random.key(0), jnp.array([0, 1.25, angle, 0, 0, 0]), jnp.zeros(6)), jnp.zeros(3)
    )
    assert not bool(lean(0.19).terminated) and bool(lean(0.21).terminated)
    assert float(lean(0.21).reward) == pytest.approx(1.0, abs=0.3)  # the survival bonus is paid at the end too


def test_random_and_fixed_resets():
    keys = jax.random.split(jax.random.key(0), 200)
    obs = jax.jit(jax.vmap(rp.make_env(CHEETAH, engine="native").reset))(keys).obs
    assert 0.09 < np.abs(obs[:, :8]).max() <= 0.1 and 0.09 < obs[:, 8:].std() < 0.11
    fixed = rp.make_env(HOPPER, engine="native", reset="fixed").reset(keys[0])
    np.testing.assert_array_equal(fixed.obs, [1.25] + [0.0] * 10)
    ant = jax.jit(jax.vmap(rp.make_env("SafetyAntVelocity-v1", engine="native").reset))(keys).obs
    np.testing.assert_allclose(np.linalg.norm(ant[:, 1:5], axis=1), 1.0, rtol=1e-6)


def test_thresholds():
    assert rp.make_env(CHEETAH).thresholds == {"velocity": 3.2096}
    paper = {"HalfCheetah": 1.450, "Hopper": 0.373, "Swimmer": 0.228, "Walker2d": 1.171}
    assert {name: task.paper_threshold for name, task in TASKS.items() if task.paper_threshold} == paper
    assert rp.make_env(HOPPER, thresholds="paper").thresholds == {"velocity": 0.373}
    with pytest.raises(UserError, match="thresholds=paper"):
        rp.make_env("SafetyAntVelocity-v1", thresholds="paper")


def test_noise_is_swept_without_compiling_again():
    env = rp.make_env(CHEETAH, engine="native", reset="fixed")
    state = env.reset(jax.random.key(0))
    compiled = []

    def moved(std):
        compiled.append(1)
        new = env.step(with_noise(state, std), jnp.zeros(6))
        return new.reward, new.info["noise"]

    step = jax.jit(jax.vmap(moved))
    reward, noise = step(jnp.array([0.0, 0.05, 2.0]))
    step(jnp.array([0.1, 0.2, 0.3]))
    assert len(compiled) == 1
    np.testing.assert_allclose(noise, [0.0, 0.05, 2.0])
    quiet = rp.make_env(CHEETAH, engine="native", reset="fixed", noise=0.0).step(state, jnp.zeros(6))
    np.testing.assert_allclose(reward[0], quiet.reward, atol=1e-6)
    assert reward[2] < reward[1] - 0.5  # the noisy action is charged for


def test_episodes_follow_each_other_from_fresh_starts():
    env = rp.make_env(CHEETAH, engine="native", time_limit=3)

    def body(state, _):
        state = jax.vmap(env.step)(state, jnp.zeros((4, 6)))
        return state, (state.truncated, state.terminated, state.obs, state.final_obs, state.info["steps"])

    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4))
    truncated, terminated, obs, final, steps = jax.jit(lambda s: jax.lax.scan(body, s, None, 7)[1])(state)
    assert truncated[:, 0].tolist() == [False, False, True, False, False, True, False] and not terminated.any()
    assert steps[:, 0].tolist() == [1, 2, 0, 1, 2, 0, 1]
    assert (obs[2] != final[2]).any() and (obs[2] != obs[5]).any() and (obs[2, 0] != obs[2, 1]).any()
    np.testing.assert_array_equal(obs[1], final[1])


def poison(state, world):
    """The same state with one world's physics turned into NaN."""
    return state.replace(sim=state.sim.at[world].set(0xFFFFFFFF))


def test_one_poisoned_world_is_quarantined():
    env = rp.make_env(HOPPER, engine="native")
    actions = jax.random.uniform(jax.random.key(1), (5, 64, 3), minval=-1, maxval=1)

    def body(state, action):
        state = jax.vmap(env.step)(state, action)
        return state, state

    run = jax.jit(lambda s: jax.lax.scan(body, s, actions)[1])
    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 64))
    clean, sick = run(state), run(poison(state, 17))
    assert bool(sick.terminated[0, 17]) and float(sick.reward[0, 17]) == 0 and float(sick.cost[0, 17]) == 0
    assert sick.info["diverged"][-1].sum() == 1 and int(sick.info["diverged"][-1, 17]) == 1
    assert np.isfinite(sick.obs).all() and np.isfinite(sick.final_obs).all() and np.isfinite(sick.reward).all()
    assert float(sick.obs[0, 17, 0]) == pytest.approx(1.25, abs=0.01)  # a fresh start
    assert not sick.terminated[1:, 17].any()
    others = np.arange(64) != 17
    for name in ("sim", "obs", "reward", "cost", "terminated", "final_obs"):
        np.testing.assert_array_equal(getattr(sick, name)[:, others], getattr(clean, name)[:, others])


@pytest.mark.parametrize("options, match", [
    ({"noise": -0.1}, "noise accepts"),
    ({"noise": "loud"}, "noise accepts"),
    ({"time_limit": 0}, "time_limit accepts"),
    ({"time_limit": 2.5}, "time_limit accepts"),
    ({"reset": "warm"}, "reset accepts random or fixed"),
    ({"thresholds": "v2"}, "thresholds accepts v1 or paper"),
    ({"speed": "fast"}, "speed accepts signed, abs or planar"),
    ({"clip_actions": 1}, "clip_actions accepts true or false"),
    ({"auto_rest": True}, "did you mean auto_reset"),
    ({"engine": "mjy"}, "engine=mjy is not known"),
])  # fmt: skip
def test_wrong_options_name_themselves(options, match):
    with pytest.raises(UserError, match=match) as error:
        rp.make_env(HOPPER, **options)
    assert "\n" not in str(error.value)


def test_unknown_ids_suggest_a_close_one():
    with pytest.raises(UserError, match="did you mean SafetyHopperVelocity-v1"):
        rp.make_env("SafetyHoperVelocity-v1")
    assert rp.list_envs("*Ant*Vel*") == ["SafetyAntVelocity-v1"]


def test_own_environments_can_be_registered(monkeypatch):
    from riskppo_jax.envs import registry

    monkeypatch.setattr(registry, "_table", dict(registry._entries()))
    registry.register("Mine-v0", lambda engine, **options: ("mine", engine, options))
    assert rp.make_env("Mine-v0", engine="native") == ("mine", "native", {})
    with pytest.raises(UserError, match="noise=1 is not an option of Mine-v0"):
        rp.make_env("Mine-v0", noise=1)


def test_mjx_programs_lower_for_accelerators():
    env = rp.make_env("SafetySwimmerVelocity-v1", engine="mjx")
    state = jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), 4))
    action = jax.ShapeDtypeStruct((4, env.action_size), jnp.float32)
    data = jax.eval_shape(jax.random.key_data, state.key)

    def step(state, key, action):
        new = jax.vmap(env.step)(state.replace(key=jax.random.wrap_key_data(key)), action)
        return new.replace(key=jax.random.key_data(new.key))

    exported = jax.export.export(jax.jit(step), platforms=["cuda", "tpu"])(state.replace(key=data), data, action)
    assert exported.platforms == ("cuda", "tpu") and len(exported.mlir_module_serialized) > 10_000


def test_info_of_a_last_step_is_that_step_s():
    """As its reward is; the clock begins anew."""
    env = rp.make_env("SafetyHalfCheetahVelocity-v1", time_limit=2)
    state = jax.jit(env.reset)(jax.random.key(0))
    for _ in range(2):
        state = jax.jit(env.step)(state, jnp.ones(6))
    assert state.truncated and state.info["steps"] == 0
    assert state.info["x_velocity"] == state.constraints["velocity"] != 0

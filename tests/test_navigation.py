"""The navigation tasks: contract, options, rules by hand, resets, and the numbers of their worlds."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax.engines.base import Sim
from riskppo_jax.envs.base import Env
from riskppo_jax.envs.navigation.env import Navigation
from riskppo_jax.envs.navigation.lidar import lidar
from riskppo_jax.envs.navigation.robots import find
from riskppo_jax.envs.navigation.tables import task
from riskppo_jax.envs.navigation.world import build
from riskppo_jax.errors import UserError

MODELS = Path(__file__).parents[2] / "shared" / "reference" / "parity" / "models"
SIZES = {"Goal": (28, 60, 60), "Button": (44, 76, 76), "Push": (44, 76, 76), "Circle": (28, 28, 28)}
SENSORS = {"Point": 12, "Car": 24, "Doggo": 56, "Racecar": 12, "Ant": 40}
KEY = jax.random.key(0)


def at(x, y, yaw=0.0):
    """qpos of a Point there, without other objects."""
    return jnp.array([x, y, yaw])


@pytest.mark.parametrize("id", rp.list_envs("Safety*[012]-v0"))
def test_every_task_knows_its_sizes(id):
    env = rp.make_env(id, engine="native")
    name, level, robot = env.task.name, env.task.level, env.robot.name
    assert isinstance(env, Env) and env.num_actions is None
    assert env.observation_size == SIZES[name][level] - 12 + SENSORS[robot]
    assert env.constraint_names[0] == "cost" and env.thresholds == {"cost": 0.025}
    assert env.limit == (500 if name == "Circle" else 1000)
    assert env.action_size == {"Point": 2, "Car": 2, "Doggo": 12, "Racecar": 2, "Ant": 8}[robot]


@pytest.mark.parametrize("id", ["SafetyPointGoal2-v0", "SafetyPointButton1-v0", "SafetyCarPush2-v0"])
def test_tasks_keep_the_contract(id):
    env = rp.make_env(id, engine="native")
    state = jax.jit(env.reset)(KEY)
    new = jax.jit(env.step)(state, jnp.zeros(env.action_size))
    assert jax.tree.structure(new) == jax.tree.structure(state)
    jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail("shapes change"), new, state)
    assert new.obs.shape == (env.observation_size,) and new.obs.dtype == jnp.float32 and np.isfinite(new.obs).all()
    assert set(new.constraints) == set(env.constraint_names)
    for name, (low, high) in env.constraint_range.items():
        assert low <= float(new.constraints[name]) <= high, name
    assert float(new.cost) == 0.0 and not bool(new.terminated)  # nothing is violated at the start


@pytest.mark.skipif(not MODELS.is_dir(), reason="the original's compiled models are not here")
@pytest.mark.parametrize("path", sorted(MODELS.glob("*-v0.npz")), ids=lambda path: path.stem)
def test_worlds_have_the_original_numbers(path):
    robot, name, level = rp.make_env(path.stem, engine="native").robot.name, *_parts(path.stem)
    model, original = build(find(robot), task(name, level, robot)), np.load(path)
    assert model.stat.meaninertia == pytest.approx(float(original["stat_meaninertia"]), rel=1e-12)
    fields = ("dof_M0", "dof_invweight0", "dof_damping", "dof_armature", "jnt_stiffness", "jnt_range",
              "actuator_gear", "actuator_ctrlrange", "actuator_forcerange", "actuator_gainprm")  # fmt: skip
    for field in fields:
        np.testing.assert_allclose(getattr(model, field), original[field], rtol=1e-9, atol=1e-15, err_msg=field)


def _parts(id):
    name = next(name for name in SIZES if name in id)
    return name, int(id.split("-")[0][-1])


def test_lidar_by_hand():
    here, straight = jnp.array([0.0, 0.0, 0.1]), jnp.eye(3)
    ahead = np.asarray(lidar(here, straight, jnp.array([[1.5, 0.0]]), 3.0))
    np.testing.assert_allclose(ahead[[0, 1, 15]], [0.5, 0.0, 0.5], atol=1e-6)  # on the border of two sectors
    middle = 1.5 * jnp.array([[jnp.cos(jnp.pi / 16), jnp.sin(jnp.pi / 16)]])
    np.testing.assert_allclose(lidar(here, straight, middle, 3.0)[jnp.array([0, 1, 15])], [0.5, 0.25, 0.25], atol=1e-6)
    both = lidar(here, straight, jnp.array([[1.5, 0.1], [0.75, 0.1], [-9.0, 0.0]]), 3.0)
    assert float(both[0]) == pytest.approx(1 - np.hypot(0.75, 0.1) / 3, abs=1e-6) and float(both[8]) == 0.0
    turned = jnp.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # facing along y
    np.testing.assert_allclose(lidar(here, turned, jnp.array([[0.0, 1.5]]), 3.0), ahead, atol=1e-6)


@pytest.fixture(scope="module")
def goal():
    env = Navigation("Point", "Goal", 1, "native")
    layout = jnp.array([[1.0, 0.0], *[[-1.0, -1.3 + 0.4 * i] for i in range(8)], [1.2, 1.2]])
    vase = jnp.array([1.2, 1.2, 0.1 - 4e-5, 1.0, 0.0, 0.0, 0.0])

    def start(x, y, speed=0.0):
        qvel = jnp.zeros(9).at[0].set(speed)
        return env.place(KEY, jnp.concatenate([at(x, y), vase]), qvel, layout, jnp.zeros(0))

    return env, jax.jit(start), jax.jit(env.step)


def test_goal_pays_progress_and_arrival(goal):
    env, start, step = goal
    state = step(start(0.0, 0.0, 1.0), jnp.zeros(2))
    moved = 1.0 - np.hypot(*(np.array(env.engine.poses(state.sim.carry)[0][:2]) - [1.0, 0.0]))
    assert float(state.reward) == pytest.approx(moved, abs=1e-6) and moved > 0.015
    assert float(state.info["goal_met"]) == 0.0
    there = step(start(0.69, 0.0, 1.0), jnp.zeros(2))
    assert float(there.info["goal_met"]) == 1.0 and 1.0 < float(there.reward) < 1.03
    assert not bool(there.terminated)
    goal_now = np.asarray(there.sim.layout[0])
    others = np.concatenate([[env.engine.poses(there.sim.carry)[0][:2]], np.asarray(there.sim.layout[1:])])
    apart = 0.305 + np.array([0.4, *[0.18] * 8, 0.15])
    assert (np.abs(goal_now) <= 1.5 - 0.305).all() and (goal_now != [1.0, 0.0]).all()
    assert (np.linalg.norm(others - goal_now, axis=1) >= apart - 1e-6).all()
    assert float(there.sim.memory["last"]) == pytest.approx(np.linalg.norm(others[0] - goal_now), abs=1e-6)


def test_hazards_cost_inside_and_tell_how_deep(goal):
    _, start, step = goal
    inside, outside = step(start(-0.9, -0.9), jnp.zeros(2)), step(start(-0.5, 0.1), jnp.zeros(2))
    assert float(inside.cost) == float(inside.constraints["cost"]) == float(inside.info["cost_hazards"]) == 1.0
    depth = 0.2 - np.hypot(0.1, 0.0)
    assert float(inside.constraints["hazard_depth"]) == pytest.approx(depth, abs=1e-5)
    assert float(inside.constraints["hazard_nearness"]) == pytest.approx(depth, abs=1e-5)
    assert float(outside.cost) == 0.0 and float(outside.constraints["hazard_depth"]) == 0.0
    assert float(outside.constraints["hazard_nearness"]) == pytest.approx(0.2 - np.hypot(0.5, 0.2), abs=1e-3)
    for state in (inside, outside):  # nothing else costs here: the vase is free
        assert float(state.constraints["nearness"]) == float(state.constraints["hazard_nearness"])


def test_vases_are_pushed_and_only_level_2_charges_for_it(goal):
    _, start, step = goal
    hit = step(start(1.05, 1.2, 1.0), jnp.zeros(2))
    assert float(hit.constraints["vase_speed"]) > 0.05 and float(hit.cost) == 0.0
    env = Navigation("Point", "Goal", 2, "native")
    state = jax.jit(env.reset)(KEY)
    spot = np.asarray(state.sim.layout[11])  # the first vase
    qpos, _ = env.engine.poses(state.sim.carry)
    qpos[:3] = spot[0] - 0.2, spot[1], 0.0
    placed = env.place(KEY, jnp.asarray(qpos), jnp.zeros(63), state.sim.layout, jnp.zeros(0))
    charged = jax.jit(env.step)(placed, jnp.zeros(2))
    assert float(charged.info["cost_vases_contact"]) == float(charged.info["cost_vases_velocity"]) == 1.0
    assert float(jax.jit(env.step)(state, jnp.zeros(2)).info["cost_vases_velocity"]) == 0.0  # at rest


def test_buttons_and_their_timer():
    env = Navigation("Point", "Button", 1, "native", reset="fixed")
    first = jax.jit(env.reset)(KEY)
    step = jax.jit(env.step)
    target = int(first.sim.memory["target"])
    wrong = (target + 1) % 4

    def beside(button, timer):
        spot = first.sim.layout[button]
        qpos, _ = env.engine.poses(first.sim.carry)
        qpos[:3] = spot[0] - 0.24, spot[1], 0.0  # the arrow reaches 0.15 ahead: just touching
        memory = {"target": jnp.int32(target), "timer": jnp.int32(timer)}
        return env.place(KEY, jnp.asarray(qpos), jnp.zeros(27), first.sim.layout, first.sim.yaws, memory=memory)

    pressed = step(beside(target, 0), jnp.zeros(2))
    assert float(pressed.info["goal_met"]) == 1.0 and float(pressed.reward) > 0.99
    assert float(pressed.constraints["nearness"]) < 0  # what is wanted is not near
    assert float(pressed.info["cost_buttons"]) == 0.0 and int(pressed.sim.memory["timer"]) == 10
    assert (np.asarray(pressed.obs[12:28]) == 0).all() and (np.asarray(pressed.obs[28:44]) > 0).any()
    for timer, cost in ((0, 1.0), (1, 0.0), (10, 0.0)):
        touched = step(beside(wrong, timer), jnp.zeros(2))
        assert float(touched.info["cost_buttons"]) == float(touched.cost) == cost
        assert (float(touched.constraints["nearness"]) > 0) == (timer == 0)  # within touch of what is in play
        assert int(touched.sim.memory["timer"]) == max(timer - 1, 0)
        assert (np.asarray(touched.obs[12:28]) == 0).all() == (timer > 1)
    later = Navigation("Point", "Button", 1, "native", reset="fixed", button_timer=10)
    assert int(jax.jit(later.reset)(KEY).sim.memory["timer"]) == 10


def test_a_gremlin_s_tie_resists_turning_as_it_resists_moving():
    """The original weighed all rows of a weld by the cube's mass; today's MuJoCo has inertias for those of rotation."""
    model = build(find("Point"), task("Button", 1, "Point"))
    assert model.neq
    for tie in range(model.neq):
        moving, turning = model.body_invweight0[model.eq_obj2id[tie]]
        np.testing.assert_allclose(model.eq_data[tie, 10] ** 2, turning / moving)


def test_whatever_costs_is_near():
    """Along random walks: no step costs with a nearness below 0, unless it is for a vase that still moves."""
    for name in ("Button", "Goal"):
        env = Navigation("Point", name, 2, "native")
        reset, keys = jax.vmap(env.reset), jax.random.split(KEY, 32)

        def step(states, key, env=env):
            new = jax.vmap(env.step)(states, jax.random.uniform(key, (32, 2), minval=jnp.array([0.0, -1.0])))
            return new, (new.cost, new.info.get("cost_vases_velocity", 0 * new.cost), new.constraints["nearness"])

        _, found = jax.jit(lambda keys, r=reset, s=step: jax.lax.scan(s, r(keys), jax.random.split(KEY, 300)))(keys)
        cost, moving, near = (np.asarray(x) for x in found)
        assert cost.sum() > 100 and (near[(cost > 0) & (moving == 0)] > 0).all()
        low, high = env.constraint_range["nearness"]
        assert (near >= low).all() and (near <= high).all()


def test_gremlins_float_round_their_centres():
    env = Navigation("Point", "Button", 1, "native", reset="fixed")
    state = jax.jit(env.reset)(KEY)
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: (env.step(s, jnp.zeros(2)), None), s, None, 150)[0])
    state = run(state)
    qpos, _ = env.engine.poses(state.sim.carry)
    away = qpos[3:].reshape(4, 7)[:, :3] - np.column_stack([state.sim.layout[-4:], np.zeros(4)])
    np.testing.assert_allclose(np.linalg.norm(away[:, :2], axis=1), 0.3489, atol=1e-3)
    np.testing.assert_allclose(away[:, 2], 0.19956, atol=1e-4)
    angle = np.arctan2(away[:, 0], away[:, 1])  # clockwise from y, with the clock
    np.testing.assert_allclose(angle, 3.0 - 0.09, atol=0.02)  # 3 seconds in, 0.0314 m behind


def test_push_measures_in_three_dimensions():
    env = Navigation("Point", "Push", 0, "native")
    layout = jnp.array([[0.5, 0.0], [0.0, 0.0]])
    box = jnp.array([0.0, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])
    state = env.place(KEY, jnp.concatenate([at(-0.6, 0.0), box]), jnp.zeros(9), layout, jnp.zeros(0))
    assert float(state.sim.memory["last_box"]) == pytest.approx(np.hypot(0.6, 0.1), abs=1e-6)
    assert float(state.sim.memory["last_goal"]) == pytest.approx(np.hypot(0.5, 0.04), abs=1e-6)
    near = env.place(KEY, jnp.concatenate([at(-0.8, 0.0), box]), jnp.zeros(9), layout.at[0].set(jnp.array([0.2965, 0])),
                     jnp.zeros(0))  # fmt: skip
    new = jax.jit(env.step)(near, jnp.zeros(2))
    assert float(new.info["goal_met"]) == 1.0 and float(new.reward) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("engine", ["native", "analytic"])
def test_circle_rewards_going_round_and_charges_beyond_the_walls(engine):
    env = Navigation("Point", "Circle", 1, engine)
    place = lambda x, y, u, v: env.place(KEY, at(x, y), jnp.array([u, v, 0.0]), jnp.zeros((1, 2)), jnp.zeros(0))  # noqa: E731
    step = jax.jit(env.step)
    state = step(place(1.3, 0.0, 0.0, 1.0), jnp.zeros(2))
    qpos, _ = env.engine.poses(state.sim.carry)
    radius = np.hypot(*qpos[:2])
    speed = float(state.obs[4])  # facing along x: the sideways velocity
    assert float(state.reward) == pytest.approx(0.1 * speed * qpos[0] / radius / (1 + abs(radius - 1.5)), rel=1e-2)
    assert float(state.cost) == 1.0 and float(state.constraints["boundary_excess"]) == pytest.approx(0.175, abs=2e-3)
    assert float(step(place(1.0, 1.3, 0.0, -1.0), jnp.zeros(2)).cost) == 0.0  # level 1 knows no walls along y
    assert float(step(place(1.3, 0.0, 0.0, -1.0), jnp.zeros(2)).reward) < 0


def test_the_closed_form_is_the_physics():
    rng = np.random.default_rng(0)
    qpos, qvel, action = rng.uniform(-2, 2, (32, 3)), rng.uniform(-2, 2, (32, 3)), rng.uniform(-1.5, 1.5, (32, 2))
    found = []
    with jax.enable_x64(True):
        for engine in ("native", "analytic"):
            env = Navigation("Point", "Circle", 2, engine)
            run = lambda q, v, a, env=env: env.step(env.place(KEY, q, v, jnp.zeros((1, 2)), jnp.zeros(0)), a)  # noqa: E731
            found.append(jax.jit(jax.vmap(run))(qpos, qvel, action))
    for name in ("obs", "reward", "cost"):
        np.testing.assert_allclose(getattr(found[0], name), getattr(found[1], name), atol=1e-8)


def test_fixed_resets_are_one_world_and_random_ones_are_not():
    keys = jax.random.split(KEY, 3)
    fixed = jax.jit(jax.vmap(rp.make_env("SafetyPointButton1-v0", engine="native", reset="fixed").reset))(keys)
    assert (fixed.obs == fixed.obs[0]).all() and (fixed.sim.layout == fixed.sim.layout[0]).all()
    other = rp.make_env("SafetyPointButton1-v0", engine="native", reset="fixed", layout_seed=7)
    assert (other._fixed[0] != rp.make_env("SafetyPointButton1-v0", engine="native", reset="fixed")._fixed[0]).any()
    layouts = jax.jit(jax.vmap(rp.make_env("SafetyPointGoal1-v0", engine="native").reset))(keys).sim.layout
    assert (layouts[0] != layouts[1]).all()


@pytest.mark.parametrize("reset", ["fixed", "random"])
def test_goals_of_a_fixed_world_come_in_the_same_order_every_time(reset):
    """As in the original, where one generator, seeded at the reset, draws layouts and goals."""
    env = rp.make_env("SafetyPointGoal1-v0", engine="native", reset=reset)
    row = env._layouts.plan.goal - 1

    def reach(state, _):  # wherever the robot is, there the goal is
        spot = env._reader.read(env.engine.step(Sim(state.sim.carry, {}), jnp.zeros(2)).derived, state.sim.layout)
        layout = state.sim.layout.at[row].set(spot.position[:2])
        state = env.step(state.replace(sim=state.sim.replace(layout=layout)), jnp.zeros(2))
        return state, (state.sim.layout[row], state.info["goal_met"])

    keys = jax.random.split(KEY, 2)
    goals, met = jax.jit(jax.vmap(lambda key: jax.lax.scan(reach, env.reset(key), None, 3)[1]))(keys)
    assert (met == 1).all() and (goals[0, 0] != goals[0, 1]).all()
    assert (goals[0] == goals[1]).all() == (reset == "fixed")


def test_episodes_follow_each_other():
    env = rp.make_env("SafetyPointGoal1-v0", engine="native", time_limit=3)

    def body(state, _):
        state = jax.vmap(env.step)(state, jnp.ones((4, 2)))
        return state, (state.truncated, state.obs, state.final_obs, state.info["steps"], state.sim.ticks)

    state = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 4))
    truncated, obs, final, steps, ticks = jax.jit(lambda s: jax.lax.scan(body, s, None, 4)[1])(state)
    assert truncated[:, 0].tolist() == [False, False, True, False] and steps[:, 0].tolist() == [1, 2, 0, 1]
    assert ticks[:, 0].tolist() == [10, 20, 0, 10] and (obs[2] != final[2]).any()


def test_one_lost_world_is_quarantined():
    env = rp.make_env("SafetyPointGoal1-v0", engine="native")
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: (lambda n: (n, n))(jax.vmap(env.step)(s, jnp.ones((8, 2)))), s,
                                         None, 3)[1])  # fmt: skip
    state = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 8))
    sick_sim = state.sim.replace(carry=state.sim.carry.at[5].set(0xFFFFFFFF))
    clean, sick = run(state), run(state.replace(sim=sick_sim))
    assert bool(sick.terminated[0, 5]) and float(sick.reward[0, 5]) == 0 and int(sick.info["diverged"][-1, 5]) == 1
    assert np.isfinite(sick.obs).all() and np.isfinite(sick.final_obs).all() and not sick.terminated[1:].any()
    others = np.arange(8) != 5
    for name in ("obs", "reward", "cost", "terminated"):
        np.testing.assert_array_equal(getattr(sick, name)[:, others], getattr(clean, name)[:, others])


def test_scenes_show_what_the_physics_does_not_know():
    for id in ("SafetyPointGoal1-v0", "SafetyPointButton1-v0", "SafetyPointPush1-v0", "SafetyPointCircle2-v0"):
        env = rp.make_env(id, engine="native", reset="fixed")
        state = jax.jit(env.reset)(KEY)
        model, pose = env.scene(), env.pose(state)
        assert model.nq == env.model.nq == len(pose["qpos"]) and model.nmocap == len(pose["mocap_pos"])
        names = {model.geom(i).name for i in range(model.ngeom)}
        wanted = [name for kind in env.task.kinds for name in kind.names]
        assert {*wanted, *(f"sigwall{i}" for i in range(len(env.task.walls)))} <= names
        if env.task.kind("hazards"):
            body = model.body_mocapid[model.geom_bodyid[model.geom("hazard0").id]]
            row = next(i for i, name in enumerate(wanted) if name == "hazard0")
            np.testing.assert_allclose(pose["mocap_pos"][body, :2], state.sim.layout[row], atol=1e-6)
            np.testing.assert_allclose(model.geom("hazard0").rgba, [0, 0, 1, 0.25])


@pytest.mark.parametrize("id, match", [
    ("SafetyPlaneGoal1-v0", "no robot Plane; accepts Point, Car, Doggo, Racecar, Ant"),
    ("SafetyPointGolf1-v0", "no task Golf; accepts Goal, Button, Push, Circle"),
    ("SafetyPointGoal3-v0", "no level 3; accepts 0, 1, 2"),
    ("SafetyAntPush1-v0", "no Push for Ant; accepts Point, Car"),
    ("SafetyPointGoal1-v1", "did you mean SafetyPointGoal1-v0"),
])  # fmt: skip
def test_unknown_parts_of_an_id_name_those_that_exist(id, match):
    with pytest.raises(UserError, match=match) as error:
        rp.make_env(id)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options, match", [
    ({"hazards": 90}, "no layout found"),
    ({"hazards": 101}, "hazards accepts a whole number from 0 to 100"),
    ({"vases": -1}, "vases accepts"),
    ({"gremlins": 2}, "gremlins=2 is not an option of SafetyPointGoal1-v0"),
    ({"layout_seed": 1.5}, "layout_seed accepts"),
    ({"layout_seed": 3}, "layout_seed=3: accepts reset=fixed"),
    ({"reset": "warm"}, "reset accepts random or fixed"),
    ({"noise": -1.0}, "noise accepts"),
    ({"time_limit": 0}, "time_limit accepts"),
    ({"engine": "analytic"}, "engine=analytic does not serve SafetyPointGoal1-v0; engine accepts auto, native, mjx"),
])  # fmt: skip
def test_wrong_options_name_themselves(options, match):
    with pytest.raises(UserError, match=match) as error:
        rp.make_env("SafetyPointGoal1-v0", **options)
    assert "\n" not in str(error.value)


def test_other_numbers_of_objects():
    env = rp.make_env("SafetyPointGoal1-v0", engine="native", hazards=3, vases=0)
    assert env.observation_size == 44 and "vase_speed" not in env.constraint_names
    assert jax.jit(env.reset)(KEY).sim.layout.shape == (4, 2)
    assert rp.make_env("SafetyPointCircle1-v0", thresholds="paper").thresholds == {"cost": 0.0}

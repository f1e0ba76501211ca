"""A navigation task as an environment: worlds, layouts, rules and costs put together.

One step: the physics, the reward, the costs, then a new goal where the old one is reached, and last the observation,
which already shows it. Nothing but an unlucky robot ends an episode.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from riskppo_jax.engines.base import Engine, Sim, make_engine
from riskppo_jax.envs.base import Env, State
from riskppo_jax.envs.navigation import button, circle, costs, goal, push, robots, scene
from riskppo_jax.envs.navigation.layout import Layouts, draw_goal, fixed
from riskppo_jax.envs.navigation.lidar import lidar
from riskppo_jax.envs.navigation.poses import first_qpos, mocap_path
from riskppo_jax.envs.navigation.served import choose
from riskppo_jax.envs.navigation.tables import LIDAR_BINS, task
from riskppo_jax.envs.navigation.view import Reader, View
from riskppo_jax.envs.navigation.world import SUBSTEPS, build, girth
from riskppo_jax.envs.wrappers import ActionNoise, AutoReset, FiniteGuard, TimeLimit, when_any
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, Key, PyTree

MOST = 10.0  # rewards are clipped to this
_DRAWS = 4  # keys that a reset takes from its own; goals of a fixed world come from the next
_THRESHOLDS = {"v1": 0.025, "paper": 0.0}  # 25 in an episode of 1000 steps, as is usual; none at all


@struct.dataclass
class World:
    """What one navigation world carries: its physics, where things were put, and what the task remembers."""

    carry: PyTree  # the engine's
    layout: Array  # [object, 2], in the task's order; the goal's row is where it is now
    yaws: Array  # [driven object], of the targets
    ticks: Array  # physics steps since the reset
    goals: Array  # reached since the reset
    memory: dict[str, Array]


def make(
    robot: str,
    name: str,
    level: int,
    engine: str = "auto",
    time_limit: int | None = 1000,
    noise: float = 0.0,
    auto_reset: bool = True,
    **options: Any,
) -> Env:
    """The task with what surrounds it in training: noise, finite guard, time limit, auto-reset."""
    env = FiniteGuard(ActionNoise(Navigation(robot, name, level, engine, **options), noise))
    if time_limit is not None:
        env = TimeLimit(env, time_limit)
    return AutoReset(env, told=("goal_met", "cost_")) if auto_reset else env


class Navigation:
    """One navigation task on one engine, without time limit, noise or auto-reset (`wrappers` add those).

    `State.cost` and `State.constraints["cost"]` are the benchmark's, 0 or 1. Other constraints: see `costs`.

    Args:
      robot: one of `tables.ROBOTS`; name, level: see `tables.task`.
      engine: see `engines.make_engine`.
      reset: "random" for a fresh layout at every reset, "fixed" for the same one and the same goals after it.
      layout_seed: which one that is.
      thresholds: "v1" for the usual limit of 25 in 1000 steps, "paper" for the paper's 0.
      button_timer: steps after a reset during which buttons are out of play.
      counts: other numbers of objects, by kind; None where the task's own.
      clip_actions: kept for symmetry with other tasks: the original clips actions in any case.
    """

    num_actions = None

    def __init__(
        self,
        robot: str,
        name: str,
        level: int,
        engine: str = "auto",
        reset: str = "random",
        layout_seed: int = 0,
        thresholds: str = "v1",
        button_timer: int = 0,
        clip_actions: bool = True,
        **counts: int | None,
    ):
        del clip_actions
        if layout_seed and reset != "fixed":
            raise UserError(f"layout_seed={layout_seed}: accepts reset=fixed beside it, the layout that is kept")
        counts = {kind: count for kind, count in counts.items() if count is not None}
        self.robot = robots.find(robot)
        self.task = task(name, level, robot, counts)
        engine = choose(engine, robot, name, level)
        self.model = build(self.robot, self.task, engine)
        self._reader = Reader(self.robot, self.task, self.model)
        self.engine: Engine = make_engine(engine, self.model, SUBSTEPS, Reader.fields, settle=True)
        self.dt = self.engine.dt
        self.action_size = self.model.nu
        bounds = self.model.actuator_ctrlrange
        self._low, self._high = bounds[:, 0].copy(), bounds[:, 1].copy()
        self.action_range = (self._low, self._high)
        lidars = [kind.name for kind in self.task.kinds]
        sensors = sum(sensor.width for sensor in self.robot.sensors)
        self.observation_size = sensors + LIDAR_BINS * len(lidars)
        self.lidar_columns = tuple(range(sensors, self.observation_size))
        self._girth = girth(self.model)
        self.constraint_range = costs.ranges(self.task, self._girth)
        self.constraint_names = tuple(self.constraint_range)
        self.price_units = {name: costs.PRICE_UNITS[name] for name in self.constraint_names}
        self.reward_range = (-MOST, MOST)
        self.thresholds = {"cost": _THRESHOLDS[thresholds]}
        self.paper_threshold = _THRESHOLDS["paper"]
        self._timer = button_timer
        self._fixed = fixed(self.task, layout_seed) if reset == "fixed" else None
        self._fixed_seed = layout_seed
        self._layouts = Layouts(self.task, usual=not counts, needed=reset == "random")
        self._driven = sum(kind.count for kind in self.task.kinds if kind.role == "driven")

    def reset(self, key: Key, where: Array | bool = True) -> State:
        """A fresh world; where `where` is False it may be anything."""
        key, key_world = jax.random.split(key)
        if self._fixed is not None:
            key_world = jax.random.key(self._fixed_seed)
        key_layout, key_yaw, key_posture, key_goal = jax.random.split(key_world, _DRAWS)
        if self._fixed is not None:
            spots, target = (jnp.asarray(x, float) for x in self._fixed)
        else:
            spots, target = self._layouts.draw(key_layout, where)
        layout = spots[1:]
        if self._layouts.plan.goal >= 0:
            layout = layout.at[self._layouts.plan.goal - 1].set(target)
        free = [kind for kind in self.task.kinds if kind.role in ("free", "driven")]
        yaws = jax.random.uniform(key_yaw, (1 + sum(kind.count for kind in free),), maxval=2 * jnp.pi)
        qpos = first_qpos(self.robot, self.task, spots[0], yaws, layout, key_posture)
        driven = yaws[len(yaws) - self._driven :]
        memory = {}
        if self.task.name == "Button":
            target = jax.random.randint(key_goal, (), 0, self.task.kind("buttons").count, jnp.int32)
            memory = {"target": target, "timer": jnp.full((), self._timer, jnp.int32)}
        return self.place(key, qpos, jnp.zeros(self.model.nv), layout, driven, memory=memory, where=where)

    def place(
        self,
        key: Key,
        qpos: Array,
        qvel: Array,
        layout: Array,
        yaws: Array,
        ticks: Array | int = 0,
        memory: Mapping[str, Array] | None = None,
        where: Array | bool = True,
    ) -> State:
        """A world that starts from this state; distances the task remembers are those of now.

        Args:
          qpos: [nq], the robot's pose in world coordinates; qvel: [nv].
          layout: [object, 2]; of a gremlin the centre it goes round.
          yaws: [driven object].
          ticks: physics steps since the reset.
          memory: what cannot be seen: `target` and `timer` of Button.
        """
        ticks, goals = jnp.asarray(ticks, jnp.int32), jnp.zeros((), jnp.int32)
        world = World(carry=None, layout=layout, yaws=yaws, ticks=ticks, goals=goals, memory=dict(memory or {}))
        sim = self.engine.init(qpos, qvel, mocap=self._targets(world), where=where)
        view = self._reader.read(sim.derived, layout)
        world = world.replace(carry=sim.carry, memory=self._remember(view, world.memory))
        zero, false = jnp.zeros((), view.sensors.dtype), jnp.zeros((), bool)
        obs = self._observe(view, world.memory)
        entries = jax.tree.map(jnp.zeros_like, costs.entries(self.task, view, world.memory))
        near = costs.quantities(self.task, view, world.memory, self._girth)
        return State(
            sim=world, obs=obs, reward=zero, cost=zero,
            constraints={"cost": zero, **jax.tree.map(jnp.zeros_like, near)},
            terminated=false, truncated=false, final_obs=obs, info={"goal_met": zero, **entries}, key=key,
        )  # fmt: skip

    def step(self, state: State, action: Array) -> State:
        new, view, met = self.advance(state, action)
        if self.task.name == "Circle":
            return self.observe(new, view)
        key, key_goal = jax.random.split(new.key)
        goals = new.sim.goals + met
        if self._fixed is not None:  # the original's one generator, seeded at the reset: all its draws come again
            key_goal = jax.random.fold_in(jax.random.fold_in(jax.random.key(self._fixed_seed), _DRAWS), goals)
        old = (new.sim.layout, new.sim.memory, jnp.zeros_like(met))
        layout, memory, lost = when_any(met, self._renew, old, key_goal, view, new.sim.layout, met)
        sim = new.sim.replace(layout=layout, memory=memory, goals=goals)
        return self.observe(new.replace(sim=sim, terminated=new.terminated | lost, key=key), view)

    def advance(self, state: State, action: Array) -> tuple[State, View, Array]:
        """The step up to where a new goal may be due: what was seen, and whether the goal is reached."""
        world = state.sim
        ctrl = jnp.clip(action, self._low, self._high)
        mocap = self._targets(world, SUBSTEPS) if self._driven else None
        sim = self.engine.step(Sim(carry=world.carry, derived={}), ctrl, mocap=mocap)
        view = self._reader.read(sim.derived, world.layout)
        reward, met = self._judge(view, world.memory)
        entries = costs.entries(self.task, view, world.memory)
        cost = costs.total(entries, reward)
        near = costs.quantities(self.task, view, world.memory, self._girth)
        memory = self._remember(view, button.tick(world.memory) if self.task.name == "Button" else world.memory)
        fallen = self.robot.falls_below is not None and view.position[2] <= self.robot.falls_below
        world = world.replace(carry=sim.carry, ticks=world.ticks + SUBSTEPS, memory=memory)
        new = state.replace(
            sim=world,
            reward=jnp.clip(reward, -MOST, MOST),
            cost=cost,
            constraints={"cost": cost, **near},
            terminated=jnp.asarray(fallen, bool),
            truncated=jnp.zeros_like(state.truncated),
            info={**state.info, "goal_met": met.astype(reward.dtype), **entries},
        )
        return new, view, met

    def observe(self, state: State, view: View) -> State:
        """`state` with the observation of what it now holds."""
        view = self._look(view, state.sim.layout)
        obs = self._observe(view, state.sim.memory)
        return state.replace(obs=obs, final_obs=obs)

    def pose(self, state: State) -> dict[str, np.ndarray]:
        """`qpos`, `mocap_pos` and `mocap_quat` of one world, for the model `scene()` draws."""
        return scene.pose(self, state)

    def scene(self):
        """The model to draw: the physics one with goal, hazards, walls and cameras."""
        return build(self.robot, self.task, scene=True)

    def _judge(self, view: View, memory: dict[str, Array]) -> tuple[Array, Array]:
        if self.task.name == "Circle":
            return circle.reward(view), jnp.zeros((), bool)
        return {"Goal": goal, "Push": push, "Button": button}[self.task.name].judge(view, memory)

    def _remember(self, view: View, memory: dict[str, Array]) -> dict[str, Array]:
        if self.task.name == "Button":
            return button.remember(view, memory["target"], memory["timer"])
        return {"Goal": goal.remember, "Push": push.remember, "Circle": lambda view: {}}[self.task.name](view)

    def _renew(self, key: Key, view: View, layout: Array, met: Array) -> tuple[Array, dict[str, Array], Array]:
        """Layout and memory after a goal was reached, and whether there is no room for another."""
        if self.task.name == "Button":
            return layout, button.renew(view, key), jnp.zeros((), bool)
        plan = self._layouts.plan
        spots = [view.position[None, :2]]
        row = 0
        for kind in self.task.kinds:  # what can be pushed counts where it is now
            now = view.places[kind.name][:, :2] if kind.role == "free" else layout[row : row + kind.count]
            spots.append(now)
            row += kind.count
        target, found = draw_goal(plan, key, jnp.concatenate(spots), met)
        layout = layout.at[plan.goal - 1].set(target)
        return layout, self._remember(self._look(view, layout), {}), ~found

    def _look(self, view: View, layout: Array) -> View:
        """`view` with the goal where the layout has it."""
        if self.task.name not in ("Goal", "Push"):
            return view
        spot = layout[self._layouts.plan.goal - 1]
        return view._replace(places={**view.places, "goal": view.places["goal"].at[0, :2].set(spot)})

    def _observe(self, view: View, memory: dict[str, Array]) -> Array:
        parts = [view.sensors]
        for kind in self.task.kinds:
            points = view.places[kind.name][:, :2]
            if kind.role == "mark":
                points = jnp.zeros_like(points)
            elif kind.name == "goal" and self.task.name == "Button":
                points = view.places["buttons"][memory["target"]][None, :2]
            seen = lidar(view.position, view.turn, points, self.task.lidar_range)
            if kind.name == "buttons":
                seen = jnp.where(memory["timer"] > 0, 0.0, seen)
            parts.append(seen)
        return jnp.concatenate(parts)

    def _targets(self, world: World, substeps: int | None = None) -> Array | None:
        """Poses of all mocap bodies now, `[nmocap, 7]`, or along the coming step, `[substeps, nmocap, 7]`."""
        if not self.model.nmocap:
            return None
        if substeps:
            ticks = world.ticks + jnp.arange(substeps)
        else:  # what a step leaves behind was set before its last physics step
            ticks = world.ticks[None] - 1
        path = mocap_path(self.task, world.layout, world.yaws, ticks, self.model.opt.timestep)
        return path if substeps else path[0]

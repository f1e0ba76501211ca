"""Our tasks for Brax's wrappers, and Brax- or Playground-style environments for our trainer."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from riskppo_jax.envs.base import Env, State
from riskppo_jax.envs.wrappers import ActionNoise, AutoReset, FiniteGuard, TimeLimit
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, Key, PyTree


def to_brax(env: Env) -> Any:
    """`env` as a `brax.envs.Env`, for the wrappers in `brax.envs.wrappers.training`.

    Its own auto-reset and time limit are taken off: Brax's wrappers bring theirs, and an episode that had ended before
    `EpisodeWrapper` sees its limit would count as one that failed. Cost and constrained quantities are in `metrics`,
    the cost also in `info`. Brax resets the `pipeline_state` alone: the source of randomness stays outside it, in
    `info`, so that episodes differ in their noise although they share their first state.
    """
    while isinstance(env, AutoReset | TimeLimit):
        env = env.env
    return _brax_class()(env)


def from_functional(
    env: Any,
    constraints: Callable[[Any], Mapping[str, Array]],
    *,
    thresholds: Mapping[str, float] | None = None,
    constraint_range: Mapping[str, tuple[float, float]] | None = None,
    cost: Callable[[Any], Array] | None = None,
    observe: Callable[[Any], Array] | None = None,
    action_range: tuple[float, float] = (-1.0, 1.0),
    time_limit: int | None = 1000,
    noise: float = 0.0,
    auto_reset: bool = True,
) -> Env:
    """A functional environment, of Brax or MuJoCo Playground or like them, as one of ours.

    Args:
      env: has `reset(rng)`, `step(state, action)` and `action_size`; its states have `obs`, `reward` and
        `done`. It must not reset by itself. A state with `info["truncation"]` tells the two ends apart.
      constraints: of a state, the quantities that are to be kept small, by name.
      thresholds: their usual limits.
      constraint_range: bounds of each quantity; a quantity without them can be watched, not constrained.
      cost: of a state, its cost; by default 1 where a quantity exceeds its threshold.
      observe: of a state, the observation as a vector; by default `state.obs`, of which a dict gives `state`.
      action_range, time_limit, noise, auto_reset: as in `make_env`.
    """
    task = Functional(env, constraints, thresholds, constraint_range, cost, observe, action_range)
    ours = FiniteGuard(ActionNoise(task, noise))
    if time_limit is not None:
        ours = TimeLimit(ours, time_limit)
    return AutoReset(ours) if auto_reset else ours


class Functional:
    """The foreign environment alone; see `from_functional`. Its whole state travels in `State.sim`."""

    num_actions = None

    def __init__(self, env, constraints, thresholds, constraint_range, cost, observe, action_range):
        self.foreign = env
        self._constraints = constraints
        self._cost = cost
        self._observe = observe or _observation
        self.thresholds = {}  # until the names are known
        self.action_range = action_range
        first = jax.eval_shape(self.reset, jax.random.key(0))
        self.constraint_names = tuple(first.constraints)
        self.observation_size = first.obs.shape[0]
        self.action_size = env.action_size
        unbounded = dict.fromkeys(self.constraint_names, (-jnp.inf, jnp.inf))
        self.constraint_range = {**unbounded, **(constraint_range or {})}
        self.thresholds = dict(thresholds or {})
        for setting in ("thresholds", "constraint_range"):
            unknown = set(getattr(self, setting)) - set(self.constraint_names)
            if unknown:
                names = ", ".join(self.constraint_names)
                raise UserError(f"{setting} names {unknown.pop()}; constraints gives {names}")

    def reset(self, key: Key) -> State:
        key, key_reset = jax.random.split(key)
        foreign = jax.tree.map(jnp.asarray, self.foreign.reset(jax.random.key_data(key_reset)))
        state = self._report(foreign, {}, key)
        zero = jnp.zeros_like(state.reward)
        return state.replace(
            reward=zero, cost=zero, constraints=jax.tree.map(jnp.zeros_like, state.constraints),
            terminated=jnp.zeros((), bool), truncated=jnp.zeros((), bool),
        )  # fmt: skip

    def step(self, state: State, action: Array) -> State:
        before = jax.tree.map(lambda x: x, state.sim)  # some environments write into the dicts of a state
        foreign = _like(self.foreign.step(before, action), state.sim)
        return self._report(foreign, state.info, state.key)

    def _report(self, foreign: Any, info: dict[str, Array], key: Key) -> State:
        obs = self._observe(foreign)
        if not hasattr(obs, "ndim") or obs.ndim != 1:
            raise UserError("observe: the observation is not a vector; observe accepts a function to one")
        quantities = {name: _real(value) for name, value in self._constraints(foreign).items()}
        done = jnp.asarray(foreign.done, bool)
        clock = jnp.asarray(getattr(foreign, "info", {}).get("truncation", False), bool)
        return State(
            sim=foreign, obs=obs, reward=_real(foreign.reward), cost=self._charge(foreign, quantities),
            constraints=quantities, terminated=done & ~clock, truncated=done & clock, final_obs=obs,
            info=info, key=key,
        )  # fmt: skip

    def _charge(self, foreign: Any, quantities: dict[str, Array]) -> Array:
        if self._cost is not None:
            return _real(self._cost(foreign))
        over = [quantities[name] > limit for name, limit in self.thresholds.items()]
        return _real(jnp.any(jnp.array(over))) if over else jnp.zeros(())


def _observation(state: Any) -> Array:
    return state.obs["state"] if isinstance(state.obs, Mapping) else state.obs


def _real(value: Any) -> Array:
    return jnp.asarray(value, float).reshape(())


def _like(new: PyTree, old: PyTree) -> PyTree:
    """`new` with the dtypes of `old`; environments that differ between reset and step cannot be scanned."""
    same = lambda x, y: getattr(x, "dtype", None) == y.dtype  # noqa: E731
    return jax.tree.map(lambda x, y: x if same(x, y) else jnp.asarray(x, y.dtype), new, old)


def _brax_class() -> type:
    """The adapter, defined when it is first needed: Brax is an optional package."""
    try:
        from brax.envs import base
    except ImportError as error:
        raise UserError("brax is not installed; `pip install riskppo-jax[brax]` brings it") from error

    class BraxEnv(base.Env):
        """One of our environments behind Brax's door."""

        def __init__(self, env: Env):
            self.env = env

        def reset(self, rng: Array) -> base.State:
            typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
            return self._state(self.env.reset(rng if typed else jax.random.wrap_key_data(rng)), {}, {})

        def step(self, state: base.State, action: Array) -> base.State:
            key = jax.random.wrap_key_data(state.info["key"])
            ours = self.env.step(state.pipeline_state.replace(key=key), action)
            return self._state(ours, state.metrics, state.info)

        def _state(self, ours: State, metrics: dict[str, Any], info: dict[str, Any]) -> base.State:
            """Entries that wrappers added to `metrics` and `info` stay there."""
            done = _real(ours.terminated | ours.truncated)
            key = jax.random.key_data(ours.key)
            own = {"cost": ours.cost, "truncation": _real(ours.truncated), "key": key}
            return base.State(
                pipeline_state=ours.replace(key=None),
                obs=ours.obs,
                reward=ours.reward,
                done=done,
                metrics={**metrics, "cost": ours.cost, **ours.constraints},
                info={**info, **own},
            )

        observation_size = property(lambda self: self.env.observation_size)
        action_size = property(lambda self: self.env.action_size)
        backend = property(lambda self: self.env.engine.name if hasattr(self.env, "engine") else "jax")

    return BraxEnv

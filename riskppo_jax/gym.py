"""The tasks as Gymnasium environments: one world (`Env`), many (`VecEnv`), six values a step (`SafetyEnv`).

Physics, observations and resets run as one compiled program per step; NumPy goes in and comes out. World `i`
of a `VecEnv` seeded with `s` lives through exactly what an `Env` seeded with `s + i` does.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from riskppo_jax import trees
from riskppo_jax.envs.base import State
from riskppo_jax.envs.registry import make_env
from riskppo_jax.envs.wrappers import AutoReset, Wrapper
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, Key


def make(id: str, engine: str = "auto", **options: Any) -> "SafetyEnv":
    """One world with Safety-Gymnasium's step: `obs, reward, cost, terminated, truncated, info`.

    `Env(id, engine, **options)` is the same world with Gymnasium's five values.

    Args:
      id, engine, **options: as in `make_env`. Nothing resets by itself.
    """
    return SafetyEnv(Env(id, engine, **options))


def make_vec(id: str, num_envs: int, engine: str = "auto", **options: Any) -> "VecEnv":
    """`num_envs` worlds as a `gymnasium.vector.VectorEnv`, with each step's cost in `info["cost"]`.

    Args:
      id, engine, **options: as in `make_env`; `auto_reset=False` leaves resets to the caller.
      num_envs: how many.
    """
    return VecEnv(id, num_envs, engine, **options)


class Env(gymnasium.Env):
    """One world as a `gymnasium.Env`; `info` has `cost` and the constrained quantities, `constraints`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, id: str, engine: str = "auto", **options: Any):
        self.env = _bare(make_env(id, engine, **options))
        self.spec = _spec(id, engine, options)
        self.observation_space, self.action_space = _spaces(self.env)
        self._state: State | None = None
        self._start = _program(lambda seed: self.env.reset(jax.random.key(seed)))
        self._again = _program(lambda key: self.env.reset(jax.random.fold_in(key, 1)))
        self._step = _program(self.env.step)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Starts an episode: from `seed`, or where it is None as an auto-reset would after the last step."""
        super().reset(seed=seed)
        if seed is None and self._state is not None:
            self._state, out = self._again(self._state.key)
        else:
            self._state, out = self._start(_seed(self.np_random.integers(2**32) if seed is None else seed))
        return np.array(out["obs"], np.float32), _scalars(out)

    def step(self, action):
        if self._state is None:
            raise gymnasium.error.ResetNeeded("step was called before reset")
        self._state, out = self._step(self._state, _action(self.action_space, action))
        info = _scalars(out)
        flags = bool(out["terminated"]), bool(out["truncated"])
        return np.array(out["obs"], np.float32), float(out["reward"]), *flags, info


class SafetyEnv(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """An `Env` whose step also returns the cost, third of six values."""

    def __init__(self, env: gymnasium.Env):
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, info["cost"], terminated, truncated, info


class VecEnv(gymnasium.vector.VectorEnv):
    """Many worlds that step together and start their next episode in the step that ends one.

    Follows Gymnasium's `AutoresetMode.SAME_STEP`: where an episode ended, `obs` is the first observation of
    the next and `info["final_obs"]`, `info["final_info"]` belong to the step that ended it. `info["cost"]`
    and `info["constraints"]` are this step's for every world, like the reward: summing them loses no step.
    """

    def __init__(self, id: str, num_envs: int, engine: str = "auto", **options: Any):
        if not isinstance(num_envs, Integral) or isinstance(num_envs, bool) or num_envs < 1:
            raise UserError(f"num_envs={num_envs!r}: num_envs accepts a positive number of worlds")
        env = make_env(id, engine, **options)
        self._auto = options.get("auto_reset", True)
        kept = (*env.kept, "final") if isinstance(env, AutoReset) else ("noise", "diverged", "final")
        self.env = AutoReset(_Recorded(_bare(env)), kept) if self._auto else Wrapper(_bare(env))
        self.num_envs = int(num_envs)
        mode = AutoresetMode.SAME_STEP if self._auto else AutoresetMode.DISABLED
        self.metadata = {"render_modes": [], "autoreset_mode": mode}
        self.spec = _spec(id, engine, options)
        self.single_observation_space, self.single_action_space = _spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._state: State | None = None
        self._start = _program(lambda seeds: jax.vmap(self.env.reset)(jax.vmap(jax.random.key)(seeds)))
        self._again = _program(jax.vmap(self._restart))
        self._step = _program(jax.vmap(self.env.step))

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        """Starts episodes in all worlds, or in those where `options["reset_mask"]` holds.

        Args:
          seed: world `i` gets `seed + i`, or the `i`-th of a list; None goes on from where a world is.
        """
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)] if _single(seed) else seed
        if len(seeds) != self.num_envs:
            raise UserError(f"seed: {len(seeds)} for num_envs={self.num_envs}; seed accepts one for each")
        super().reset(seed=seeds[0])
        known = np.array([one is not None for one in seeds])
        mask = self._mask((options or {}).get("reset_mask"))
        if self._state is None:
            draws = self.np_random.integers(2**32, size=self.num_envs)
            seeds = [draw if one is None else one for one, draw in zip(seeds, draws, strict=True)]
            self._state, out = self._start(np.array([_seed(one) for one in seeds]))
        else:
            numbers = np.array([_seed(one or 0) for one in seeds])
            self._state, out = self._again(self._state, numbers, known, mask)
        return np.array(out["obs"], np.float32), self._info(out, mask)

    def step(self, actions):
        if self._state is None:
            raise gymnasium.error.ResetNeeded("step was called before reset")
        self._state, out = self._step(self._state, _action(self.action_space, actions))
        ended = out["terminated"] | out["truncated"]
        info = self._info(out, np.ones(self.num_envs, bool))
        if self._auto and ended.any():
            final = {**out["final"], "cost": out["cost"], "constraints": out["constraints"]}
            info["final_info"] = _masked(_wide(final), ended)
            info["final_obs"] = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                info["final_obs"][i] = np.array(out["final_obs"][i], np.float32)
            info["_final_info"], info["_final_obs"] = ended.copy(), ended.copy()
        flags = np.array(out["terminated"]), np.array(out["truncated"])
        return np.array(out["obs"], np.float32), out["reward"].astype(np.float64), *flags, info

    def _info(self, out: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
        return _masked(_wide({**out["info"], "cost": out["cost"], "constraints": out["constraints"]}), mask)

    def _mask(self, mask: np.ndarray | None) -> np.ndarray:
        if mask is None:
            return np.ones(self.num_envs, bool)
        if np.shape(mask) != (self.num_envs,) or np.asarray(mask).dtype != bool or not np.any(mask):
            raise UserError(f"reset_mask accepts {self.num_envs} booleans, one of them true")
        return np.asarray(mask)

    def _restart(self, state: State, seed: Array, known: Array, mask: Array) -> State:
        """A fresh world where `mask` holds, otherwise the one there is."""
        key = jnp.where(known, jax.random.key(seed), jax.random.fold_in(state.key, 1))
        fresh = self.env.reset(key, where=mask)
        return trees.where(mask, fresh, state)


class _Recorded(Wrapper):
    """Leaves the step's own `info` under `final`, where an auto-reset keeps it."""

    def reset(self, key: Key, where: Array | bool = True) -> State:
        state = super().reset(key, where)
        return state.replace(info={**state.info, "final": state.info})

    def step(self, state: State, action: Array) -> State:
        own = {name: value for name, value in state.info.items() if name != "final"}
        new = self.env.step(state.replace(info=own), action)
        return new.replace(info={**new.info, "final": new.info})


def _bare(env):
    """`env` without its auto-reset."""
    return env.env if isinstance(env, AutoReset) else env


def _program(function: Callable[..., State]) -> Callable[..., tuple[State, dict[str, Any]]]:
    """Compiles `function`: its state stays on the device, what the caller gets to see comes as NumPy."""
    names = ("obs", "reward", "cost", "constraints", "terminated", "truncated", "final_obs")

    @jax.jit
    def compiled(*args):
        state = function(*args)
        info = dict(state.info)
        final = info.pop("final", {})
        return state, {**{name: getattr(state, name) for name in names}, "info": info, "final": final}

    def call(*args):
        state, out = compiled(*args)
        return state, jax.device_get(out)

    call.compiled = compiled
    return call


def _spec(id: str, engine: str, options: dict[str, Any]) -> EnvSpec:
    """Lets Gymnasium make the same thing again."""
    return EnvSpec(
        id=f"riskppo_jax/{id}",
        entry_point="riskppo_jax.gym:Env",
        vector_entry_point="riskppo_jax.gym:VecEnv",
        kwargs={"id": id, "engine": engine, **options},
    )


def _spaces(env) -> tuple[Space, Space]:
    obs = Box(-np.inf, np.inf, (env.observation_size,), np.float32)
    if env.num_actions is not None:
        return obs, Discrete(env.num_actions)
    low, high = getattr(env, "action_range", (-1.0, 1.0))
    low, high = (np.broadcast_to(np.float32(bound), env.action_size) for bound in (low, high))
    return obs, Box(low, high, dtype=np.float32)


def _single(seed: Any) -> bool:
    return seed is None or isinstance(seed, Integral)


def _seed(seed: int) -> np.uint32:
    return np.uint32(int(seed) % 2**32)


def _action(space: Space, action: Any) -> np.ndarray:
    action = np.asarray(action, space.dtype)
    if action.shape != space.shape:
        raise UserError(f"action has shape {action.shape}; step accepts {space.shape}")
    return action


def _scalars(out: dict[str, Any]) -> dict[str, Any]:
    """`info` of one world, as NumPy scalars."""
    info = jax.tree.map(lambda x: np.array(x)[()], {**out["info"], "constraints": out["constraints"]})
    return {**info, "cost": float(out["cost"])}


def _wide(info: dict[str, Any]) -> dict[str, Any]:
    return {**info, "cost": np.asarray(info["cost"], np.float64)}


def _masked(info: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Gymnasium's vector `info`: every entry with a `_entry` that tells for which worlds it holds."""
    out = {}
    for name, value in info.items():
        if isinstance(value, dict):
            out[name] = _masked(value, mask)
        else:
            value = np.array(value)
            value[~mask] = 0
            out[name] = value
        out[f"_{name}"] = mask.copy()
    return out

"""What surrounds a task: action noise, finite guard, time limit, auto-reset, vectorising.

Each wrapper is an environment around an environment and changes one thing. Anything it does not define it
takes from the one inside.
"""

import inspect
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from riskppo_jax import trees
from riskppo_jax.envs.base import Env, State
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, ArrayLike, Key, PyTree


class Wrapper:
    """Passes everything through to `env`."""

    def __init__(self, env: Env):
        self.env = env
        self._masked = "where" in inspect.signature(env.reset).parameters

    def __getattr__(self, name: str):
        if name == "env":  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: Key, where: Array | bool = True) -> State:
        return self.env.reset(key, where=where) if self._masked else self.env.reset(key)

    def step(self, state: State, action: Array) -> State:
        return self.env.step(state, action)


class ActionNoise(Wrapper):
    """Adds Gaussian noise to the action before the environment sees it.

    The noise is part of the environment: physics and the reward's control cost both get the noisy action. Its
    standard deviation lives in `State.info["noise"]`, so that it can be traced: see `with_noise`.
    """

    def __init__(self, env: Env, std: float = 0.0):
        super().__init__(env)
        self.std = std

    def reset(self, key: Key, where: Array | bool = True) -> State:
        return with_noise(super().reset(key, where), self.std, create=True)

    def step(self, state: State, action: Array) -> State:
        key, key_noise = jax.random.split(state.key)
        std = state.info["noise"]
        action = when_any(std > 0, _noisy, jnp.asarray(action, float), key_noise, action, std)
        new = self.env.step(state.replace(key=key), action)
        return new.replace(info={**new.info, "noise": std})


def _noisy(key: Key, action: Array, std: Array) -> Array:
    return action + std * jax.random.normal(key, action.shape)


def with_noise(state: State, std: ArrayLike, create: bool = False) -> State:
    """`state` of a world whose action noise has standard deviation `std`; auto-resets keep it."""
    if not create and "noise" not in state.info:
        raise UserError("noise: this environment was made without action noise; accepts None")
    std = jnp.broadcast_to(jnp.asarray(std, state.reward.dtype), state.reward.shape)
    return state.replace(info={**state.info, "noise": std})


class FiniteGuard(Wrapper):
    """Ends an episode whose numbers are no longer finite; such a step earns and costs nothing.

    `State.info["diverged"]` counts how often this happened to the world since its first reset. `final_obs` of
    the lost step is the observation before it, so that no NaN enters a batch.
    """

    def reset(self, key: Key, where: Array | bool = True) -> State:
        state = super().reset(key, where)
        return state.replace(info={**state.info, "diverged": jnp.zeros((), jnp.int32)})

    def step(self, state: State, action: Array) -> State:
        new = self.env.step(state, action)
        watched = (new.obs, new.reward, new.cost, new.constraints)
        finite = trees.all_finite(watched)
        keep = lambda value, other: jnp.where(finite, value, other)  # noqa: E731
        return new.replace(
            obs=keep(new.obs, state.obs),
            reward=keep(new.reward, 0.0),
            cost=keep(new.cost, 0.0),
            constraints=jax.tree.map(lambda x: keep(x, 0.0), new.constraints),
            terminated=new.terminated | ~finite,
            truncated=new.truncated & finite,
            final_obs=keep(new.final_obs, state.obs),
            info={**jax.tree.map(_finite_part, new.info), "diverged": state.info["diverged"] + ~finite},
        )


class TimeLimit(Wrapper):
    """Truncates an episode after `limit` steps; `State.info["steps"]` counts them."""

    def __init__(self, env: Env, limit: int):
        super().__init__(env)
        self.limit = limit

    def reset(self, key: Key, where: Array | bool = True) -> State:
        state = super().reset(key, where)
        return state.replace(info={**state.info, "steps": jnp.zeros((), jnp.int32)})

    def step(self, state: State, action: Array) -> State:
        new = self.env.step(state, action)
        steps = state.info["steps"] + 1
        return new.replace(truncated=new.truncated | (steps >= self.limit), info={**new.info, "steps": steps})


def staggered(states: State, limit: int) -> State:
    """Worlds `[N]` whose clocks are spread evenly over an episode, so that they do not all start anew in the same step.

    Where they did, most batches would hold no start at all, and each would show another part of an episode.
    """
    count = len(states.reward)
    return states.replace(info={**states.info, "steps": (jnp.arange(count) * limit // count).astype(jnp.int32)})


class AutoReset(Wrapper):
    """Starts the next episode in the step that ends one, from a fresh draw every time.

    The step still reports the old episode's reward, cost, flags and `final_obs`; `obs` is the new episode's
    first. The fresh worlds are drawn only in steps in which some world of the batch has ended. `native` then
    works for the ended worlds alone (their mask reaches the host); `mjx` works for the whole batch, which on
    an accelerator costs the same, and less than one physics stage. Entries of `info` in `kept` outlive the
    episode; those that begin with a word of `told` are about the step, as its reward is. All others begin anew.
    """

    def __init__(self, env: Env, kept: tuple[str, ...] = ("noise", "diverged"), told: tuple[str, ...] = ()):
        super().__init__(env)
        self.kept, self._told = kept, told

    def step(self, state: State, action: Array) -> State:
        going = jnp.zeros_like(state.terminated)  # flags that are up belong to the episode before
        new = self.env.step(state.replace(terminated=going, truncated=going), action)
        done = new.terminated | new.truncated
        sim, obs, info, key = when_any(done, self._next, (new.sim, new.obs, new.info, new.key), new.key, done)
        stays = [name for name in info if name in self.kept or name.startswith(self._told)]
        info = {**info, **{name: new.info[name] for name in stays}}
        return new.replace(sim=sim, obs=obs, info=info, key=key)

    def _next(self, key: Key, done: Array) -> PyTree:
        fresh = self.reset(jax.random.fold_in(key, 1), where=done)
        return fresh.sim, fresh.obs, fresh.info, fresh.key


class Vectorise(Wrapper):
    """`num_envs` worlds at once: `reset(key)` and `step(state, action)` with a leading axis."""

    def __init__(self, env: Env, num_envs: int):
        super().__init__(env)
        self.num_envs = num_envs

    def reset(self, key: Key) -> State:
        return jax.vmap(self.env.reset)(jax.random.split(key, self.num_envs))

    def step(self, state: State, action: Array) -> State:
        return jax.vmap(self.env.step)(state, action)


class LidarPowers(Wrapper):
    """Lidars once more behind the observation, to each of `powers`: `obs, lidar^p, lidar^q, ...`

    A lidar is linear in distance over several metres, and what costs is a matter of a few centimetres: the differences
    that matter are hundredths of what a network sees. To the power `p` it falls like `exp(-p d / reach)`.
    """

    def __init__(self, env: Env, powers: tuple[int, ...]):
        super().__init__(env)
        columns = getattr(env, "lidar_columns", ())
        if not columns:
            raise UserError(f"layout.lidar_powers={list(powers)}: this task has no lidar; accepts []")
        self.powers = powers
        self.observation_size = env.observation_size + len(powers) * len(columns)
        self._columns = jnp.asarray(columns)

    def reset(self, key: Key, where: Array | bool = True) -> State:
        return self._seen(super().reset(key, where))

    def step(self, state: State, action: Array) -> State:
        size = self.env.observation_size
        return self._seen(self.env.step(state.replace(obs=state.obs[:size], final_obs=state.final_obs[:size]), action))

    def _seen(self, state: State) -> State:
        return state.replace(
            obs=with_powers(state.obs, self._columns, self.powers),
            final_obs=with_powers(state.final_obs, self._columns, self.powers),
        )


def with_powers(obs: Array, columns: Array, powers: Sequence[int]) -> Array:
    """`obs` followed by its `columns` to each of `powers`."""
    return jnp.concatenate([obs, *(obs[..., columns] ** power for power in powers)], axis=-1)


def when_any(mask: Array, function: Callable[..., PyTree], old: PyTree, *args: PyTree) -> PyTree:
    """`where(mask, function(*args), old)`, computed only if `mask` holds in some world of the batch.

    Under `vmap` a plain `lax.cond` would become a `select` and compute both sides in every step. Here each
    vmapped axis is moved to the front instead, and one condition guards them all.
    """
    leaves, tree = jax.tree.flatten((old, args))

    def compute(mask, *leaves):
        old, args = jax.tree.unflatten(tree, leaves)

        def fresh():
            call = function
            for _ in range(mask.ndim):
                call = jax.vmap(call)
            return jax.tree.map(lambda new, kept: _select(mask, new, kept), call(*args), old)

        return tuple(jax.tree.leaves(jax.lax.cond(jnp.any(mask), fresh, lambda: old)))

    guarded = jax.custom_batching.custom_vmap(compute)

    @guarded.def_vmap
    def _(size, batched, *operands):
        spread = [
            x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
            for x, is_batched in zip(operands, batched, strict=True)
        ]
        out = guarded(*spread)
        return out, (True,) * len(out)

    old_tree = jax.tree.structure(old)
    return jax.tree.unflatten(old_tree, guarded(mask, *leaves))


def _finite_part(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, 0) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _select(mask: Array, new: Array, old: Array) -> Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)

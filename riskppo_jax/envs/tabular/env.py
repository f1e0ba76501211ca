"""A finite MDP as an ordinary sampled environment."""

import jax
import jax.numpy as jnp

from riskppo_jax.envs.base import State
from riskppo_jax.envs.tabular.mdp import TabularMDP
from riskppo_jax.types import Array, Key


class TabularEnv:
    """A `TabularMDP` to sample from: state one-hot as observation, discrete actions.

    Every step ends the episode with probability `1 - gamma` (as a truncation: the value goes on), after which a
    new one starts, so that visited steps follow the discounted occupancy with uniform weights. Quantity `i >= 1`
    appears in `State.constraints` under `constraint_names[i - 1]` as a quantity to be kept small, `v = -r_i`.
    """

    action_size = 1

    def __init__(self, mdp: TabularMDP, names: tuple[str, ...] | None = None, thresholds: tuple[float, ...] = ()):
        self.mdp = mdp
        count = mdp.rewards.shape[0] - 1
        self.observation_size = mdp.num_states
        self.num_actions = mdp.num_actions
        self.constraint_names = names or tuple(f"v{i + 1}" for i in range(count))
        low, high = -mdp.rewards[1:].max(axis=1), -mdp.rewards[1:].min(axis=1)
        self.constraint_range = {name: (float(low[i]), float(high[i])) for i, name in enumerate(self.constraint_names)}
        self.thresholds = dict(zip(self.constraint_names, thresholds, strict=False))

    def reset(self, key: Key) -> State:
        key, key_start = jax.random.split(key)
        place = _draw(key_start, self.mdp.initial)
        obs = self._observe(place)
        zero = jnp.zeros(())
        return State(
            sim=place,
            obs=obs,
            reward=zero,
            cost=zero,
            constraints={name: zero for name in self.constraint_names},
            terminated=jnp.asarray(False),
            truncated=jnp.asarray(False),
            final_obs=obs,
            info={"row": jnp.zeros((), jnp.int32)},
            key=key,
        )

    def step(self, state: State, action: Array) -> State:
        key, key_row, key_stop, key_start = jax.random.split(state.key, 4)
        mdp = self.mdp
        here = (mdp.s == state.sim) & (mdp.a == action)
        row = _draw(key_row, jnp.where(here, mdp.prob, 0.0))
        rewards = mdp.rewards[:, row].astype(jnp.result_type(float))
        arrived = mdp.s_next[row]
        stopped = jax.random.uniform(key_stop) >= mdp.gamma
        restart = _draw(key_start, mdp.initial)
        place = jnp.where(stopped, restart, arrived)
        return state.replace(
            sim=place,
            obs=self._observe(place),
            reward=rewards[0],
            cost=jnp.zeros(()),
            constraints={name: -rewards[i + 1] for i, name in enumerate(self.constraint_names)},
            truncated=stopped,
            final_obs=self._observe(arrived),
            info={"row": row.astype(jnp.int32)},
            key=key,
        )

    def _observe(self, place: Array) -> Array:
        return jax.nn.one_hot(place, self.mdp.num_states)


def _draw(key: Key, weights: Array) -> Array:
    """An index drawn in proportion to `weights`, from one random number: where their running sum passes it."""
    reached = jnp.cumsum(weights)
    passed = reached > jax.random.uniform(key, dtype=reached.dtype) * reached[-1]
    return jnp.argmax(passed)

"""Tiny environments whose values are known, so that a wrong solver has nowhere to hide.

Each isolates one thing a solver can get wrong: the critic alone, the discount, the dependence on observations, the
policy gradient, the bootstrap at a truncation. Episodes last one or two steps and restart by themselves.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from riskppo_jax.envs.base import State


class Probe:
    """An environment given by three functions of a scalar situation `s` and the episode's step number.

    Args:
      first: `key -> s`, where an episode starts.
      reward: `(s, step, action) -> r`.
      length: steps of an episode.
      observe: `(s, step) -> obs` of shape `[observation_size]`.
      clock: episodes are truncated rather than terminated.
      num_actions: None for one continuous action.
    """

    observation_size = 1
    action_size = 1
    constraint_names = ("effort",)

    def __init__(
        self,
        first: Callable = lambda key: jnp.zeros(()),
        reward: Callable = lambda s, step, action: jnp.ones(()),
        length: int = 1,
        observe: Callable = lambda s, step: s[None],
        clock: bool = False,
        num_actions: int | None = None,
    ):
        self._first, self._reward, self._length, self._observe = first, reward, length, observe
        self._clock, self.num_actions = clock, num_actions
        self.constraint_range, self.thresholds = {"effort": (0.0, 10.0)}, {"effort": 1.0}

    def reset(self, key):
        key, key_first = jax.random.split(key)
        s, step = self._first(key_first), jnp.zeros((), jnp.int32)
        obs = self._observe(s, step)
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        return State(
            sim=(s, step),
            obs=obs,
            reward=zero,
            cost=zero,
            constraints={"effort": zero},
            terminated=no,
            truncated=no,
            final_obs=obs,
            info={"diverged": no},
            key=key,
        )

    def step(self, state, action):
        s, step = state.sim
        action = action if self.num_actions else action[0]
        key, key_first = jax.random.split(state.key)
        reward = self._reward(s, step, action)
        done = step + 1 >= self._length
        s_next = jnp.where(done, self._first(key_first), s)
        step_next = jnp.where(done, 0, step + 1)
        effort = jnp.abs(action.astype(jnp.float32))
        return state.replace(
            sim=(s_next, step_next),
            obs=self._observe(s_next, step_next),
            reward=reward,
            cost=(effort > 1.0).astype(jnp.float32),
            constraints={"effort": effort},
            terminated=done & (not self._clock),
            truncated=done & self._clock,
            final_obs=self._observe(s, step + 1),
            key=key,
        )


def value_only(num_actions=None):
    """One step, reward 1: the value is 1."""
    return Probe(num_actions=num_actions)


def observation(num_actions=None):
    """One step, the reward is the observation, -1 or 1: so is the value."""
    return Probe(first=_sign, reward=lambda s, step, action: s, num_actions=num_actions)


def discount(num_actions=None):
    """Two steps observed as 0 and 1, reward 1 at the end: values gamma and 1."""
    return Probe(
        reward=lambda s, step, action: (step == 1) * 1.0, length=2, observe=_step_number, num_actions=num_actions
    )


def action(num_actions=None):
    """One step. Continuous: `-(a - 0.5)^2`, best at 0.5. Discrete: the last action earns 1, others 0."""
    if num_actions is None:
        return Probe(reward=lambda s, step, action: -jnp.square(action - 0.5))
    return Probe(reward=lambda s, step, action: (action == num_actions - 1) * 1.0, num_actions=num_actions)


def action_by_observation(num_actions=None):
    """One step seen as -1 or 1. Continuous: best action half the observation. Discrete: 1 if it agrees."""
    if num_actions is None:
        return Probe(first=_sign, reward=lambda s, step, action: -jnp.square(action - 0.5 * s))
    return Probe(
        first=_sign,
        reward=lambda s, step, action: ((s > 0) == (action == 1)) * 1.0,
        num_actions=num_actions,
    )


def truncation(num_actions=None):
    """Reward 1 for ever, always seen as 0, the clock stops every second step: the value is 1 / (1 - gamma)."""
    return Probe(length=2, clock=True, num_actions=num_actions)


def termination(num_actions=None):
    """Reward 1 for two steps seen as 0 and 1, then the end: values 1 + gamma and 1."""
    return Probe(length=2, observe=_step_number, num_actions=num_actions)


def _sign(key):
    return jax.random.rademacher(key, (), jnp.float32)


def _step_number(s, step):
    return jnp.asarray(step, jnp.float32)[None]

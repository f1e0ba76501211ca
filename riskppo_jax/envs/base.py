"""What an environment is: data (`State`) and two functions (`reset`, `step`).

An environment describes one world; `jax.vmap` makes many. It knows physics only through an engine, and
nothing at all of learning, prices or constraints: it reports the quantities somebody may want to constrain.
"""

from typing import Protocol, runtime_checkable

from flax import struct

from riskppo_jax.types import Array, Key, PyTree


@struct.dataclass
class State:
    """One world between two steps. Scalars are arrays of shape `()`, or `[env]` under `vmap`."""

    sim: PyTree  # what the physics carries
    obs: Array  # [observation_size]; after an auto-reset the first one of the new episode
    reward: Array
    cost: Array  # the benchmark's own cost, 0 or 1
    constraints: dict[str, Array]  # name -> quantity of this step that is to be kept small
    terminated: Array  # bool: the task ended, no value beyond
    truncated: Array  # bool: the clock ended, bootstrap from `final_obs`
    final_obs: Array  # the observation of this step before any auto-reset
    info: dict[str, Array]  # fixed set of names; `steps` counts this episode's steps where there is a limit
    key: Key  # the world's own source of randomness; `step` needs no other


@runtime_checkable
class Env(Protocol):
    """`reset(key) -> State`, `step(state, action) -> State`, both pure.

    `num_actions` is None for continuous actions of shape `[action_size]`; otherwise actions are integers
    below it, of shape `()`. `constraint_range[name]` bounds the quantity, `thresholds[name]` is its usual
    limit. Where rewards are far from one per unit of a quantity, an optional `price_units[name]` says how much
    reward a unit is worth, about: steps on its price are taken in that unit. An optional `reward_range` bounds the
    reward of a step, -100 to 100 where there is none: an objective that is not the mean looks for its `t` there, and
    EVaR for its scale. An optional `lidar_columns` names the
    entries of an observation that are lidars, nearness between 0 and 1.
    """

    observation_size: int
    action_size: int
    num_actions: int | None
    constraint_names: tuple[str, ...]
    constraint_range: dict[str, tuple[float, float]]
    thresholds: dict[str, float]

    def reset(self, key: Key) -> State: ...

    def step(self, state: State, action: Array) -> State: ...

"""Finite MDPs whose risk-constrained optimum can be known exactly."""

from riskppo_jax.envs.tabular.env import TabularEnv
from riskppo_jax.envs.tabular.file import Instance, load
from riskppo_jax.envs.tabular.mdp import (
    TabularMDP,
    action_values,
    best_response,
    law,
    occupancy,
    policy_of,
)

__all__ = [
    "Instance", "TabularEnv", "TabularMDP", "action_values", "best_response", "law", "load", "occupancy",
    "policy_of",
]  # fmt: skip

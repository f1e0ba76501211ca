"""PPO as pure functions. It maximises one reward and knows of no constraint."""

from riskppo_jax.solvers.ppo.gae import gae
from riskppo_jax.solvers.ppo.losses import Batch, policy_loss, value_loss
from riskppo_jax.solvers.ppo.rollout import Transition, reset_envs, rollout
from riskppo_jax.solvers.ppo.update import Learner, init_learner, linear_decay, make_batch, ppo_update

__all__ = [
    "Batch",
    "Learner",
    "Transition",
    "gae",
    "init_learner",
    "linear_decay",
    "make_batch",
    "policy_loss",
    "ppo_update",
    "reset_envs",
    "rollout",
    "value_loss",
]

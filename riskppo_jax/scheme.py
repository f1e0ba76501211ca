"""What the paper leaves open around Algorithm 1, as one static choice."""

from dataclasses import dataclass

from riskppo_jax.errors import UserError

_ACCEPTED = {
    "dual_rollout": ("same", "fresh"),
    "dual_policy": ("sampled", "mean"),
    "occupancy": ("uniform", "discounted"),
    "units": ("threshold", "raw"),
    "risk_of": ("step", "episode"),
}


@dataclass(frozen=True)
class Scheme:
    """Static: where the dual step's batch comes from and what is measured on it.

    Attributes:
      dual_rollout: `same` lets one batch serve the dual step and then PPO; `fresh` collects one for each.
      dual_policy: `sampled` constrains the policy that acts; `mean` the one that is deployed without sampling,
        which needs a fresh batch, from worlds of its own.
      occupancy: `uniform` over visited steps, or `discounted`.
      constant: keep the constant `lam (c + t)` of the Lagrangian in the policy's reward.
      units: steps on lambda and t see slack and t in units of the `threshold`, or `raw`.
      policy_updates: batches and PPO updates for each dual step; the paper's line 4 asks for an approximate
        solution, one update is the least.
      risk_of: `step` is the risk of a visited step, the paper's; `episode` that of a whole episode's sum over its
        time limit, the usual alternative.
    """

    dual_rollout: str = "same"
    dual_policy: str = "sampled"
    occupancy: str = "uniform"
    constant: bool = False
    units: str = "threshold"
    policy_updates: int = 1
    risk_of: str = "step"

    def __post_init__(self):
        for name, words in _ACCEPTED.items():
            if getattr(self, name) not in words:
                raise UserError(f"scheme.{name}={getattr(self, name)}: accepts {', '.join(words)}")
        if self.dual_policy == "mean" and self.dual_rollout == "same":
            raise UserError("scheme.dual_policy=mean: accepts scheme.dual_rollout=fresh, a batch of its own")
        if self.risk_of == "episode" and self.occupancy == "discounted":
            raise UserError("scheme.occupancy=discounted: accepts scheme.risk_of=step; an episode has one sum")
        if self.risk_of == "episode" and self.constant:
            raise UserError("scheme.constant=true: accepts scheme.risk_of=step; an episode is priced at its end")
        if self.policy_updates < 1:
            raise UserError(f"scheme.policy_updates={self.policy_updates}: accepts a whole number, 1 or larger")

    @property
    def rollouts(self) -> int:
        """Batches in one iteration."""
        return self.policy_updates + (self.dual_rollout == "fresh")

"""Settings of the policy's solver, in two kinds.

`Layout` is static: it fixes shapes and Python control flow, so a new value means a new program. `PPOHypers`
is traced: any of its fields can be an array, and a sweep over it is a `vmap`, not another compilation.
"""

import math
from dataclasses import dataclass
from typing import Any

from flax import struct

from riskppo_jax.errors import UserError
from riskppo_jax.types import ArrayLike

ACTIVATIONS = ("tanh", "relu", "elu", "swish")
_DUAL_LEAST = {
    "lam_step": 0.0, "lam_delay": 0.0, "t_step": 0.0, "lam_gain": 0.0, "lam_damping": 0.0,
    "slack_clip": 0.0, "t_clip": 0.0, "gain_clip": 0.0, "gain_warmup": 1.0, "radius": 0.0, "lam_growth": 1.0,
    "lam_patience": 1.0, "lam_max": 0.0, "lam_init": 0.0, "ease": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """What the compiled program looks like. The defaults are the paper's 2048 steps per rollout."""

    num_envs: int = 16  # worlds side by side
    horizon: int = 128  # steps of each environment between two updates
    num_minibatches: int = 32  # gradient steps of an epoch; must divide num_envs * horizon
    num_epochs: int = 10  # passes over a batch, at most: see ppo.target_kl
    hidden_sizes: tuple[int, ...] = (64, 64)  # of both networks
    activation: str = "tanh"  # or elu, relu, swish
    lidar_powers: tuple[int, ...] = ()  # lidars enter both networks to these powers, too: what is near stands out
    policy_head_gain: float = 0.01  # a small one keeps the first means near zero
    log_std_init: float = math.log(0.5)  # of the policy before training
    noise_memory: float = 0.0  # correlation of an action's noise with that of the step before, while training
    normalize_observations: bool = True  # by running moments, fixed during a rollout and its epochs
    normalize_advantages: bool = True  # within each minibatch
    clip_value_loss: bool = False  # around the old value, by ppo.value_clip
    keep_values: bool = False  # the critic's, when the moments of its targets move; for ppo.gamma above 0.995 or so
    stagger: bool = True  # the worlds' first episodes end at different times

    def __post_init__(self):
        for name in ("hidden_sizes", "lidar_powers"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("num_envs", "horizon", "num_minibatches", "num_epochs"):
            _require_count(name, getattr(self, name))
        for size in self.hidden_sizes:
            _require_count("hidden_sizes", size)
        for power in self.lidar_powers:
            _require_count("lidar_powers", power)
        if len(set(self.lidar_powers)) < len(self.lidar_powers):
            raise UserError(f"lidar_powers={list(self.lidar_powers)} names one twice; it accepts each once")
        if self.batch_size % self.num_minibatches:
            raise UserError(
                f"num_minibatches={self.num_minibatches} does not divide num_envs * horizon = "
                f"{self.batch_size}; it accepts a divisor, such as "
                f"{_nearest_divisor(self.batch_size, self.num_minibatches)}"
            )
        if self.activation not in ACTIVATIONS:
            raise UserError(f"activation={self.activation!r} is unknown; it accepts {', '.join(ACTIVATIONS)}")
        if not (math.isfinite(self.policy_head_gain) and self.policy_head_gain >= 0):
            raise UserError(f"policy_head_gain={self.policy_head_gain} must be a finite number, zero or larger")
        if not math.isfinite(self.log_std_init):
            raise UserError(f"log_std_init={self.log_std_init} must be a finite number")
        if not 0 <= self.noise_memory < 1:
            raise UserError(f"noise_memory={self.noise_memory}: accepts 0 (none) and larger, below 1")

    @property
    def batch_size(self) -> int:
        """Transitions in one rollout."""
        return self.num_envs * self.horizon

    @property
    def minibatch_size(self) -> int:
        """Transitions in one gradient step."""
        return self.batch_size // self.num_minibatches


@struct.dataclass
class PPOHypers:
    """Numbers of the PPO update; every field may be swept with `vmap`.

    The defaults are the paper's table, but for `lr_final` (0 there), `gae_lambda` (0.95 there), `adam_eps` (1e-6
    there), `target_kl`, `value_huber`, `tail` and `averse_after` (none there).
    """

    lr: ArrayLike = 3e-4  # at the start; falls linearly
    lr_final: ArrayLike = 0.1  # share of it at the end: a policy that stands still answers no price
    gamma: ArrayLike = 0.99  # discount
    gae_lambda: ArrayLike = 0.9  # 0 trusts the critic, 1 the returns
    clip: ArrayLike = 0.2  # on the probability ratio
    value_coef: ArrayLike = 0.5  # weight of the critic's error
    value_clip: ArrayLike = 0.2  # only with `layout.clip_value_loss`
    value_huber: ArrayLike = 8.0  # error, in deviations of the targets, beyond which it counts linearly; infinity never
    entropy_coef: ArrayLike = 0.0  # weight of the policy's entropy
    max_grad_norm: ArrayLike = 0.5  # of each network
    target_kl: ArrayLike = 0.05  # mean divergence from the acting policy that ends an update's epochs; infinity never
    adam_eps: ArrayLike = 1e-5  # of the optimiser
    tail: ArrayLike = 0.05  # share of training, at its end, whose weights are averaged for use; 0 is the last iterate
    averse_after: ArrayLike = 0.0  # share of training before an averse objective is whole; until half of it the mean
    memory_until: ArrayLike = 1.0  # share of training after which layout.noise_memory is gone
    obs_clip: ArrayLike = 10.0  # in standard deviations


def check_dual(name: str, value: Any) -> None:
    """Raises `UserError` where a number of the dual step is outside its range; words are checked by their rule."""
    if name == "ease_until":
        if not 0 < value <= 1:
            raise UserError(f"dual.ease_until={value}: accepts a share of training, above 0 to 1")
    elif name == "t_init":
        if not math.isfinite(value):
            raise UserError(f"dual.t_init={value}: accepts a finite number")
    elif name in _DUAL_LEAST:
        low, opens = _DUAL_LEAST[name], name in ("slack_clip", "gain_clip", "t_clip", "radius", "lam_max")
        finite = math.isfinite(value) or (name in ("slack_clip", "gain_clip", "t_clip") and value == math.inf)
        if not (finite and (value > low if opens else value >= low)):
            raise UserError(f"dual.{name}={value}: accepts numbers {'above' if opens else 'from'} {low:g}")


def check_ppo_hypers(hypers: PPOHypers) -> None:
    """Raises `UserError` for a number outside its range; for plain numbers, before they are traced."""
    ranges = {
        "lr": (0.0, math.inf),
        "lr_final": (0.0, 1.0),
        "gamma": (0.0, 1.0),
        "gae_lambda": (0.0, 1.0),
        "clip": (0.0, math.inf),
        "value_coef": (0.0, math.inf),
        "value_clip": (0.0, math.inf),
        "value_huber": (0.0, math.inf),
        "entropy_coef": (-math.inf, math.inf),
        "max_grad_norm": (0.0, math.inf),
        "target_kl": (0.0, math.inf),
        "adam_eps": (0.0, math.inf),
        "tail": (0.0, 1.0),
        "averse_after": (0.0, 1.0),
        "memory_until": (0.0, 1.0),
        "obs_clip": (0.0, math.inf),
    }
    positive = ("clip", "value_clip", "value_huber", "max_grad_norm", "target_kl", "adam_eps", "obs_clip")
    for name, (low, high) in ranges.items():
        value = float(getattr(hypers, name))
        # no limit at all is a fair wish for whatever bounds something
        finite = math.isfinite(value) or (name in positive and name != "adam_eps" and value == math.inf)
        if not (finite and low <= value <= high) or (name in positive and value == 0.0):
            opening = "above" if name in positive else "from"
            closing = "" if high == math.inf else f" to {high:g}"
            accepts = "a finite number" if low == -math.inf else f"numbers {opening} {low:g}{closing}"
            raise UserError(f"{name}={value:g} is out of range; it accepts {accepts}")


def _require_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name}={value!r} must be a whole number, 1 or larger")


def _nearest_divisor(total: int, wanted: int) -> int:
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - wanted))

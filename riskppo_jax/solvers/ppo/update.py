"""Epochs and minibatches: PPO's optimisation of one batch.

All weights travel through the minibatch loop as one vector. The optimiser is then a handful of operations
instead of a handful per weight matrix; with networks this small the number of operations counts.
"""

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.nets import Networks, Params
from riskppo_jax.normalize import Moments, normalize
from riskppo_jax.parallel import over_devices
from riskppo_jax.solvers.ppo.losses import LOGGED, Batch, ppo_loss, shares, standardize, weighted_mean
from riskppo_jax.solvers.ppo.rollout import Transition
from riskppo_jax.types import Array, ArrayLike, Key, Metrics

# what a gradient step leaves behind, in this order
_RECORDED = (*LOGGED, "ppo/grad_norm", "streak", "taken")


@struct.dataclass
class Learner:
    """What PPO carries from update to update."""

    params: Params
    optimizer: optax.OptState  # Adam's moments of the weights as one vector
    skipped: Array  # gradient steps not taken because of a non-finite loss or gradient, in all
    skip_streak: Array  # how many of the latest gradient steps in a row


def init_learner(key: Key, networks: Networks) -> Learner:
    """Fresh weights and an optimiser that has seen nothing."""
    params = networks.init(key)
    zero = jnp.zeros((), jnp.int32)
    optimizer = optax.scale_by_adam().init(ravel_pytree(params)[0])
    return Learner(params=params, optimizer=optimizer, skipped=zero, skip_streak=zero)


def linear_decay(start: ArrayLike, done: ArrayLike, final: ArrayLike = 0.0) -> Array:
    """`start (1 - (1 - final) done)`, where `done` is the finished share of training in [0, 1]."""
    return jnp.asarray(start) * (1.0 - (1.0 - final) * jnp.clip(done, 0.0, 1.0))


def make_batch(
    transitions: Transition, advantage: Array, target: Array, moments: Moments, obs_clip: ArrayLike = 10.0
) -> Batch:
    """Transitions `[T, N]` and what `gae` made of them, flattened to `[T N]`, observations normalised."""
    batch = Batch(
        obs=normalize(moments, transitions.obs, obs_clip),
        action=transitions.action,
        log_prob=transitions.log_prob,
        value=transitions.value,
        advantage=advantage,
        target=target,
        weight=transitions.valid.astype(advantage.dtype),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def ppo_update(
    key: Key,
    learner: Learner,
    batch: Batch,
    networks: Networks,
    hypers: PPOHypers,
    layout: Layout,
    lr: ArrayLike | None = None,
) -> tuple[Learner, Metrics]:
    """At most `num_epochs` passes over the batch, each in a new order, one Adam step per minibatch.

    The passes end early once one of them has seen, on average, a policy further than `target_kl` from the one that
    acted. The gradients of the two networks are clipped apart: a policy with little noise left has steep ones, and
    shrinking the critic's with them would stop it from learning.

    A step whose loss or gradient is not finite is not taken: weights and optimiser stay as they are, and it
    is counted. Metrics are means over the steps that were taken.

    Args:
      key: for the order of samples.
      learner: weights and optimiser.
      batch: `[batch_size, ...]`, from `make_batch`.
      networks: policy and value.
      hypers: coefficients.
      layout: shapes and options.
      lr: learning rate of this update, `hypers.lr` if None.

    Returns:
      The learner afterwards, and metrics. `ppo/first_log_ratio` is the largest at the very first minibatch,
      before any step: exactly 0 unless the batch stems from other weights.
    """
    lr = hypers.lr if lr is None else lr
    weights, unravel = ravel_pytree(learner.params)
    border = ravel_pytree(learner.params.actor)[0].size  # the actor's weights come first
    of_actor = jnp.arange(weights.size) < border

    def loss(weights: Array, minibatch: Batch):
        return ppo_loss(unravel(weights), minibatch, networks, hypers, layout)

    def gradient_step(carry, minibatch: Batch):
        weights, optimizer, streak = carry
        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(weights, minibatch)
        actor, critic = (jnp.sqrt(jnp.sum(own * own)) for own in (gradient[:border], gradient[border:]))
        shrink = [jnp.minimum(1.0, hypers.max_grad_norm / jnp.maximum(norm, 1e-12)) for norm in (actor, critic)]
        stepped, change = adam_step(optimizer, jnp.where(of_actor, *shrink) * gradient, lr, hypers.adam_eps)
        taken = jnp.isfinite(value) & jnp.isfinite(actor + critic)
        weights = jnp.where(taken, weights - change, weights)
        optimizer = jax.tree.map(lambda new, old: jnp.where(taken, new, old), stepped, optimizer)
        streak = jnp.where(taken, 0, streak + 1)
        metrics |= {"ppo/grad_norm": actor, "taken": taken, "streak": streak}
        return (weights, optimizer, streak), jnp.stack([metrics[name] for name in _RECORDED])

    def run_epoch(carry, key: Key):
        order = shuffled(key, layout.batch_size).reshape(layout.num_minibatches, layout.minibatch_size)
        minibatches = jax.tree.map(lambda x: over_devices(x.at[order].get(mode="promise_in_bounds"), axis=1), batch)
        return jax.lax.scan(gradient_step, carry, _weighed(minibatches, layout))

    def epoch(carry, key: Key):
        near, carry = carry
        nothing = jnp.zeros((layout.num_minibatches, len(_RECORDED)), weights.dtype)
        carry, record = jax.lax.cond(near, run_epoch, lambda carry, _: (carry, nothing), carry, key)
        steps = dict(zip(_RECORDED, record.T, strict=True))
        taken = steps["taken"] > 0
        steps["skipped"] = near & ~taken
        moved = jnp.sum(jnp.where(taken, steps["ppo/approx_kl"], 0.0)) / jnp.maximum(jnp.sum(taken), 1)
        return (near & (moved <= hypers.target_kl), carry), steps

    carry = (weights, learner.optimizer, learner.skip_streak)
    start = (jnp.ones((), bool), carry)
    (_, carry), steps = jax.lax.scan(epoch, start, jax.random.split(key, layout.num_epochs))
    weights, optimizer, streak = carry
    skipped = jnp.sum(steps["skipped"], dtype=jnp.int32)
    updated = Learner(
        params=unravel(weights),
        optimizer=optimizer,
        skipped=learner.skipped + skipped,
        skip_streak=streak,
    )
    metrics = _summary(steps, skipped)
    return updated, metrics | {"ppo/explained_variance": explained_variance(batch), "ppo/lr": jnp.asarray(lr)}


def adam_step(
    state: optax.ScaleByAdamState, gradient: Array, lr: ArrayLike, eps: ArrayLike, b1: float = 0.9, b2: float = 0.999
) -> tuple[optax.ScaleByAdamState, Array]:
    """Adam's next moments, and what to subtract from the weights.

    `lr m / (1 - b1^k) / (sqrt(v / (1 - b2^k)) + eps)` with both corrections taken out of the vectors: one division for
    each weight instead of three, which is a good part of a gradient step with networks this small.
    """
    count = state.count + 1
    mu = b1 * state.mu + (1.0 - b1) * gradient
    nu = b2 * state.nu + (1.0 - b2) * gradient * gradient
    spread = jnp.sqrt(1.0 - b2**count)
    change = (lr * spread / (1.0 - b1**count)) * mu / (jnp.sqrt(nu) + eps * spread)
    return optax.ScaleByAdamState(count=count, mu=mu, nu=nu), change


def _weighed(minibatches: Batch, layout: Layout) -> Batch:
    """Minibatches `[M, B]` with weights as shares and, where wanted, advantages standardised within each."""
    advantage, weight = minibatches.advantage, minibatches.weight
    if layout.normalize_advantages:
        advantage = standardize(advantage, weight)
    return minibatches._replace(advantage=advantage, weight=shares(weight))


def explained_variance(batch: Batch) -> Array:
    """`1 - Var(target - V) / Var(target)` of the critic that saw the rollout; 0 where targets do not vary."""

    def variance(x):
        return weighted_mean(jnp.square(x - weighted_mean(x, batch.weight)), batch.weight)

    total = variance(batch.target)
    varies = total > 1e-12
    return jnp.where(varies, 1.0 - variance(batch.target - batch.value) / jnp.where(varies, total, 1.0), 0.0)


def shuffled(key: Key, size: int) -> Array:
    """The numbers below `size` in random order.

    Random bits with the number itself in the lowest places are sorted as plain integers: on a CPU several
    times as fast as `jax.random.permutation`, which took a fifth of an update. Two numbers whose random parts
    agree keep their order; where that would be frequent the slower way is taken.
    """
    places = max(size - 1, 1).bit_length()
    if places > 16:
        return jax.random.permutation(key, size)
    low = jnp.uint32(2**places - 1)
    tagged = (jax.random.bits(key, (size,), jnp.uint32) & ~low) | jnp.arange(size, dtype=jnp.uint32)
    return (jnp.sort(tagged) & low).astype(jnp.int32)


def _summary(steps: Metrics, skipped: Array) -> Metrics:
    """Means over the steps taken of what each gradient step reported; NaN if none was."""
    taken = steps["taken"] > 0
    count = jnp.sum(taken)
    logged = {name: x for name, x in steps.items() if name.startswith("ppo/")}
    means = {name: jnp.sum(jnp.where(taken, x, 0.0)) / count for name, x in logged.items()}
    return means | {
        "ppo/first_log_ratio": steps["ppo/first_log_ratio"][0, 0],
        "ppo/epochs": jnp.sum(jnp.any(taken | steps["skipped"], axis=1)),
        "ppo/skipped": skipped,
        "ppo/skip_streak": jnp.max(steps["streak"]).astype(jnp.int32),
    }

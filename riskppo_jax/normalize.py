"""Running statistics as values: where observations lie, and how large the reward is.

Counts and moments are float32. The mean and the variance are carried, not sums, so an update changes them by
a fraction `n / count`: nothing overflows and nothing cancels however long the run. What a late, tiny change of
the mean loses in rounding is kept for the next update (Kahan's summation), or a long run would freeze it.
"""

import chex
import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax import trees
from riskppo_jax.types import Array, ArrayLike

MEMORY = 20  # rollouts after which the reward's scale forgets: prices move, and so does what a policy earns


@struct.dataclass
class Moments:
    """Mean and variance of everything seen so far; before that 0 and 1, which leaves data as they are."""

    count: Array
    mean: Array
    var: Array
    mean_rest: Array  # what rounding has kept from the mean so far


@struct.dataclass
class RewardScale:
    """Discounted return of each environment so far, the moments of all such returns, and those of value targets."""

    returns: Array  # [env]
    moments: Moments
    targets: Moments  # of what the critic is to predict


def init_moments(shape: tuple[int, ...] = ()) -> Moments:
    """Moments of nothing, for samples of this shape."""
    return Moments(count=jnp.zeros(()), mean=jnp.zeros(shape), var=jnp.ones(shape), mean_rest=jnp.zeros(shape))


def update_moments(moments: Moments, samples: Array, valid: Array | None = None) -> Moments:
    """Moments of the old data and `samples` together (the parallel form of Welford's recurrence).

    Args:
      moments: of samples of shape `[...]`.
      samples: `[batch axes, ...]`; a sample with any non-finite number is ignored.
      valid: `[batch axes]`, False for samples to ignore as well.
    """
    shape = moments.mean.shape
    rows = samples.reshape(-1, *shape)
    weight = jnp.isfinite(rows).reshape(len(rows), -1).all(1)
    if valid is not None:
        chex.assert_shape(valid, samples.shape[: samples.ndim - len(shape)])
        weight &= valid.reshape(-1)
    weight = weight.reshape(-1, *[1] * len(shape))
    added = weight.sum(dtype=jnp.float32)
    # distances from the old mean: small numbers once the statistics have settled
    shift = jnp.where(weight, rows - moments.mean, 0.0)
    delta = shift.sum(0) / jnp.maximum(added, 1.0)
    spread = jnp.where(weight, shift - delta, 0.0)
    var_added = (spread * spread).sum(0) / jnp.maximum(added, 1.0)

    count = moments.count + added
    share = added / jnp.maximum(count, 1.0)
    var = (1.0 - share) * moments.var + share * var_added + share * (1.0 - share) * delta * delta
    change = share * delta + moments.mean_rest
    mean = moments.mean + change
    updated = Moments(count=count, mean=mean, var=var, mean_rest=change - (mean - moments.mean))
    return trees.where(added > 0, updated, moments)


def normalize(moments: Moments, x: Array, clip: ArrayLike = 10.0) -> Array:
    """`(x - mean) / sd`, at most `clip` away from 0."""
    return jnp.clip((x - moments.mean) / deviation(moments), -clip, clip)


def deviation(moments: Moments) -> Array:
    """The standard deviation, but not less than 1e-4 or what rounding makes of the mean: a number that never
    varied must come out as 0, not as noise."""
    return jnp.maximum(jnp.sqrt(moments.var), jnp.maximum(1e-4, 1e-6 * jnp.abs(moments.mean)))


def init_reward_scale(num_envs: int) -> RewardScale:
    """The scale before any reward was seen; its factor is 1."""
    return RewardScale(returns=jnp.zeros(num_envs), moments=init_moments(), targets=init_moments())


def update_reward_scale(
    scale: RewardScale, reward: Array, done: Array, gamma: ArrayLike, valid: Array | None = None
) -> RewardScale:
    """Takes in a rollout: `G <- gamma G + r` in each environment, from 0 again after an episode's end.

    Args:
      scale: the running scale, `returns` of shape `[N]`.
      reward: `[T, N]`; non-finite ones are ignored, and their environment's return starts again.
      done: `[T, N]`, the episode ended with this step, in either way.
      gamma: discount.
      valid: `[T, N]`, False for steps to ignore as well.
    """
    chex.assert_equal_shape([reward, done])
    keep = jnp.isfinite(reward) if valid is None else valid & jnp.isfinite(reward)

    def accumulate(returns, step):
        reward, done, keep = step
        returns = jnp.where(keep, gamma * returns + reward, 0.0)
        return jnp.where(done, 0.0, returns), returns

    last, returns = jax.lax.scan(accumulate, scale.returns, (reward, done, keep))
    remembered = jnp.minimum(scale.moments.count, MEMORY * float(reward.size))
    moments = update_moments(scale.moments.replace(count=remembered), returns, keep)
    return scale.replace(returns=last, moments=moments)


def to_value(scale: RewardScale, output: Array, unit: ArrayLike = 1.0) -> Array:
    """The value that a critic's output stands for: `mean + sd output`, with the moments of its targets.

    A critic that has to learn a large mean first, and small differences around it with what is left of its precision,
    learns no differences. Before there are targets an output of one is worth a `unit`.
    """
    return scale.targets.mean + _spread(scale.targets, unit) * output


def to_output(scale: RewardScale, value: Array, unit: ArrayLike = 1.0) -> Array:
    """What a critic should put out for this value; the inverse of `to_value`."""
    return (value - scale.targets.mean) / _spread(scale.targets, unit)


def _spread(targets: Moments, unit: ArrayLike) -> Array:
    seen = jnp.where(targets.count > 0, jnp.sqrt(targets.var), unit)
    return jnp.maximum(seen, jnp.maximum(1e-4 * unit, 1e-6 * jnp.abs(targets.mean)))


def update_targets(scale: RewardScale, target: Array, valid: Array | None = None) -> RewardScale:
    """Takes in the value targets `[T, N]` of a rollout; old ones are forgotten as the reward's are."""
    remembered = jnp.minimum(scale.targets.count, MEMORY * float(target.size))
    return scale.replace(targets=update_moments(scale.targets.replace(count=remembered), target, valid))


def same_values(old: RewardScale, new: RewardScale, unit: ArrayLike = 1.0) -> tuple[Array, Array]:
    """`gain, offset` such that `gain output + offset` stands for the same value in `new` as `output` did in `old`.

    A critic whose outputs are left alone when the targets' moments move puts out other values from then on. Targets
    are made of these values, so the moments follow, and with a long horizon they run away.
    """
    return _spread(old.targets, unit) / _spread(new.targets, unit), to_output(new, old.targets.mean, unit)


def reward_factor(scale: RewardScale) -> Array:
    """What to multiply the reward with: 1 over the running sd of the discounted return.

    Returns that hardly vary around a mean that is not zero are measured by a tenth of that mean, so that a
    constant reward is not blown up; where no return but zero was seen the factor is 1.
    """
    moments = scale.moments
    size = jnp.maximum(jnp.sqrt(moments.var), 0.1 * jnp.abs(moments.mean))
    seen = (moments.count > 0) & (size > 1e-8)
    return jnp.where(seen, 1.0 / jnp.where(seen, size, 1.0), 1.0)

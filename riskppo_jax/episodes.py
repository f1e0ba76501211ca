"""Episodes that span batches: their sums so far, and what those that ended had."""

import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax.solvers.ppo import Transition
from riskppo_jax.types import Array, Metrics


@struct.dataclass
class Episodes:
    """Sums over the episodes under way, `[env]` each."""

    reward: Array
    cost: Array
    length: Array
    quantities: dict[str, Array]  # those whose sums are constrained; none where single steps are


def init_episodes(num_envs: int, names: tuple[str, ...] = ()) -> Episodes:
    """Nothing so far."""
    zeros = jnp.zeros(num_envs)
    return Episodes(zeros, zeros, zeros, {name: zeros for name in names})


def running_sums(episodes: Episodes, batch: Transition) -> tuple[Episodes, Episodes]:
    """The episodes after the batch, and at each of its steps, `[time, env]`, that step included."""

    def step(before: Episodes, now):
        done, earned = now
        sums = jax.tree.map(jnp.add, before, earned)
        return jax.tree.map(lambda x: jnp.where(done, 0.0, x), sums), sums

    return jax.lax.scan(step, episodes, (batch.terminated | batch.truncated, added(batch, tuple(episodes.quantities))))


def added(batch: Transition, names: tuple[str, ...]) -> Episodes:
    """What each step of the batch adds to its episode's sums."""
    return Episodes(batch.reward, batch.cost, jnp.ones_like(batch.reward), {n: batch.constraints[n] for n in names})


def episode_metrics(sums: Episodes, batch: Transition) -> Metrics:
    """Returns, costs and lengths of the episodes that ended in this batch; NaN where none did."""
    done = batch.terminated | batch.truncated
    count = jnp.sum(done)
    ended = jax.tree.map(lambda x: jnp.sum(jnp.where(done, x, 0.0)) / count, sums)
    return {
        "train/return": ended.reward,
        "train/episode_cost": ended.cost,
        "train/episode_length": ended.length,
        "train/episodes": count,
        "train/terminated": jnp.sum(batch.terminated),
        "train/reward": jnp.mean(batch.reward),
        "train/cost": jnp.mean(batch.cost),
    }

"""Algorithm 1 as one function: `step(state, hypers) -> (state, metrics)`.

Each step collects a batch with the current policy, moves the prices and `t` on that batch, prices the same batch
with the new ones, and improves the policy on it. Whoever holds `init` and `step` may scan a whole run, scan it
in chunks and save between, or `vmap` a grid: same step, same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax import sgda
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.envs.base import Env, State
from riskppo_jax.envs.wrappers import with_noise
from riskppo_jax.errors import UserError
from riskppo_jax.nets import Networks, make_networks
from riskppo_jax.normalize import (
    Moments,
    RewardScale,
    init_moments,
    init_reward_scale,
    reward_factor,
    update_moments,
    update_reward_scale,
)
from riskppo_jax.risk import estimate, lagrangian
from riskppo_jax.risk.lagrangian import Problem
from riskppo_jax.solvers.ppo import (
    Learner,
    Transition,
    gae,
    init_learner,
    linear_decay,
    make_batch,
    ppo_update,
    reset_envs,
    rollout,
)
from riskppo_jax.types import Array, ArrayLike, Key, Metrics, PyTree

BAD_ITERATIONS = 3  # in a row, after which a run stands still as diverged


@dataclass(frozen=True)
class Scheme:
    """Static: what the paper leaves open around Algorithm 1.

    Attributes:
      dual_rollout: `same` lets one batch serve the dual step and then PPO; `fresh` collects one for each.
      dual_policy: `sampled` constrains the policy that acts; `mean` the one that is deployed without sampling,
        which needs a fresh batch.
      occupancy: `uniform` over visited steps, or `discounted`.
      constant: keep the constant `lam (c + t)` of the Lagrangian in the policy's reward.
      units: steps on lambda and t see slack and t in units of the `threshold`, or `raw`.
    """

    dual_rollout: str = "same"
    dual_policy: str = "sampled"
    occupancy: str = "uniform"
    constant: bool = False
    units: str = "threshold"

    def __post_init__(self):
        accepted = {
            "dual_rollout": ("same", "fresh"),
            "dual_policy": ("sampled", "mean"),
            "occupancy": ("uniform", "discounted"),
            "units": ("threshold", "raw"),
        }
        for name, words in accepted.items():
            if getattr(self, name) not in words:
                raise UserError(f"scheme.{name}={getattr(self, name)}: accepts {', '.join(words)}")
        if self.dual_policy == "mean" and self.dual_rollout == "same":
            raise UserError("scheme.dual_policy=mean: accepts scheme.dual_rollout=fresh, a batch of its own")


@struct.dataclass
class Hypers:
    """Everything traced: `vmap` over any leaf sweeps it without compiling again.

    `problem` carries the utilities' parameters and the thresholds; its structure is that given to `make_train`.
    """

    problem: Problem
    ppo: PPOHypers = struct.field(default_factory=PPOHypers)
    dual: sgda.DualHypers = struct.field(default_factory=sgda.DualHypers)
    noise: ArrayLike | None = None  # of the environment's actions; None leaves what it was made with
    lam_max: ArrayLike = 20.0  # where Lambda starts
    lam_init: ArrayLike = 0.0
    t_init: ArrayLike = 0.0  # of every constraint, projected onto T
    total_steps: ArrayLike = 1e6  # environment steps over which the learning rate falls to zero


@struct.dataclass
class Episodes:
    """Episodes under way, and what those that ended in the last step of training had."""

    reward: Array  # [env], so far
    cost: Array
    length: Array


@struct.dataclass
class RunState:
    """All that a run carries; what is saved is this, whole."""

    key: Key
    learner: Learner
    moments: Moments  # of observations, fixed during a rollout and its epochs
    scale: RewardScale  # one factor for the whole priced reward
    dual: sgda.DualState
    envs: State
    episodes: Episodes
    env_steps: Array  # all of them counted
    bad_streak: Array  # iterations in a row in which something was not finite


class Trainer(NamedTuple):
    """A pair of functions, and what evaluation needs to know of the policy."""

    init: Callable[[Key, Hypers], RunState]
    step: Callable[[RunState, Hypers], tuple[RunState, Metrics]]
    networks: Networks
    hypers: Hypers  # the defaults, with the problem that was given
    steps_per_iteration: int  # of the environment


def make_train(
    env: Env, layout: Layout, problem: Problem, rule: sgda.Rule | None = None, scheme: Scheme | None = None
) -> Trainer:
    """A trainer of `problem` on `env`.

    Args:
      env: one world that resets itself; its `constraint_names` are what constraints can be about.
      layout: shapes of the program.
      problem: objective and constraints; its numbers are the defaults, its structure is fixed.
      rule: how lambda and t move.
      scheme: where their batch comes from, and how it is weighted.
    """
    rule, scheme = rule or sgda.Rule(), scheme or Scheme()
    for constraint in problem.constraints:
        if constraint.name not in env.constraint_names:
            raise UserError(
                f"constraint {constraint.name!r}: this environment accepts {', '.join(env.constraint_names)}"
            )
    networks = make_networks(env.observation_size, env.action_size, env.num_actions, layout)
    fresh = scheme.dual_rollout == "fresh"
    steps_per_iteration = layout.batch_size * (2 if fresh else 1)

    def dual_sets(hypers: Hypers) -> sgda.Sets:
        reach = getattr(env, "reward_range", (-100.0, 100.0))
        raw = sgda.sets(hypers.problem, reach, env.constraint_range, hypers.lam_max, rule.box)
        if scheme.units == "raw":
            return raw
        units = _units(hypers.problem, env)
        return raw.replace(slack_unit=units, t_unit=(1.0, *units))

    def init(key: Key, hypers: Hypers) -> RunState:
        key, key_net, key_envs = jax.random.split(key, 3)
        envs = reset_envs(key_envs, env, layout.num_envs)
        if hypers.noise is not None:
            envs = with_noise(envs, hypers.noise)
        zeros = jnp.zeros(layout.num_envs)
        sets = dual_sets(hypers)
        state = RunState(
            key=key,
            learner=init_learner(key_net, networks),
            moments=init_moments((env.observation_size,)),
            scale=init_reward_scale(layout.num_envs),
            dual=_start(sets, hypers),
            envs=envs,
            episodes=Episodes(zeros, zeros, zeros),
            env_steps=jnp.zeros((), jnp.uint32),
            bad_streak=jnp.zeros((), jnp.int32),
        )
        return jax.tree.map(_strong, state)

    def step(state: RunState, hypers: Hypers) -> tuple[RunState, Metrics]:
        key, key_roll, key_dual, key_sgd = jax.random.split(state.key, 4)
        clip, gamma = hypers.ppo.obs_clip, hypers.ppo.gamma

        def collect(key: Key, envs: State, deterministic: bool = False):
            params, moments = state.learner.params, state.moments
            return rollout(key, env, networks, params, moments, envs, layout, clip, deterministic)

        # line 5: trajectories with the current policy
        envs, batch = collect(key_roll, state.envs)
        episodes, episode_metrics = _count_episodes(state.episodes, batch)
        seen, started = batch, state.episodes.length
        if fresh:
            key_dual, key_fresh = jax.random.split(key_dual)
            started = episodes.length
            envs, seen = collect(key_fresh, envs, scheme.dual_policy == "mean")
            episodes, _ = _count_episodes(episodes, seen)
        visited = seen.valid.astype(seen.reward.dtype)
        discounted = visited * estimate.occupancy_weights(seen.terminated | seen.truncated, gamma, started)
        weights = visited if scheme.occupancy == "uniform" else discounted

        # lines 6 and 7: prices and t, from that batch
        def oracle(lam, t):
            return lagrangian.estimates(hypers.problem, t, seen.reward, seen.constraints, weights)

        t_star = lagrangian.batch_t_star(hypers.problem, seen.reward, seen.constraints, weights)
        moved = sgda.dual_step(rule, dual_sets(hypers), state.dual, oracle, hypers.dual, t_star, key_dual)
        sound = _all_finite((moved.lam, moved.t))
        dual = _where(sound, moved, state.dual)

        # line 4 of the next round: improve the policy on the same batch at the new prices
        priced = lagrangian.priced_reward(
            hypers.problem, dual.lam, dual.t, batch.reward, batch.constraints, scheme.constant
        )
        done = batch.terminated | batch.truncated
        scale = update_reward_scale(state.scale, priced, done, gamma, batch.valid)
        advantage, target = gae(
            priced * reward_factor(scale), batch.value, batch.next_value, batch.terminated, batch.truncated,
            gamma, hypers.ppo.gae_lambda, batch.valid,
        )  # fmt: skip
        lr = linear_decay(hypers.ppo.lr, state.env_steps / hypers.total_steps)
        learner, ppo_metrics = ppo_update(
            key_sgd, state.learner, make_batch(batch, advantage, target, state.moments, clip), networks,
            hypers.ppo, layout, lr,
        )  # fmt: skip

        bad = ~sound | (ppo_metrics["ppo/skipped"] > 0)
        after = RunState(
            key=key,
            learner=learner,
            moments=update_moments(state.moments, batch.obs, batch.valid),
            scale=scale,
            dual=dual,
            envs=envs,
            episodes=episodes,
            env_steps=state.env_steps + steps_per_iteration,
            bad_streak=jnp.where(bad, state.bad_streak + 1, 0),
        )
        # a run that diverged stands still, so that its neighbours in a sweep can go on
        after = _where(state.bad_streak < BAD_ITERATIONS, after, state)
        return after, {
            "train/env_steps": after.env_steps,
            "train/diverged": jnp.sum(~batch.valid),
            "train/bad_streak": after.bad_streak,
            **episode_metrics,
            **_risk_metrics(hypers.problem, dual, seen, visited, discounted),
            **ppo_metrics,
        }

    return Trainer(init, step, networks, Hypers(problem), steps_per_iteration)


def scan_steps(trainer: Trainer, length: int) -> Callable[[RunState, Hypers], tuple[RunState, Metrics]]:
    """`length` steps as one function; metrics lead with the step."""

    def chunk(state: RunState, hypers: Hypers):
        return jax.lax.scan(lambda state, _: trainer.step(state, hypers), state, None, length)

    return chunk


def _units(problem: Problem, env: Env) -> Array:
    """What slack and t are measured in: the threshold, so that one step size serves all tasks.

    A threshold of zero gives no scale; the quantity's range does then. Prices stay in raw units, reward per v.
    """
    widths = [env.constraint_range[c.name][1] - env.constraint_range[c.name][0] for c in problem.constraints]
    limits = jnp.abs(problem.thresholds)
    return jnp.where(limits > 0, limits, jnp.asarray(widths, limits.dtype))


def _start(sets: sgda.Sets, hypers: Hypers) -> sgda.DualState:
    """Prices and t before the first step; the objective's own t starts at 0."""
    t = jax.tree.map(jnp.zeros_like, sets.t_low)
    t = (t[0], *(jnp.full_like(t_i, hypers.t_init) for t_i in t[1:]))
    return sgda.init(sets, hypers.lam_init, t)


def _strong(x: Array) -> Array:
    """`x` without weak typing: the first state has the very types of all that follow, so one program serves."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.asarray(x, x.dtype)


def _all_finite(tree: PyTree) -> Array:
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _count_episodes(episodes: Episodes, batch: Transition) -> tuple[Episodes, Metrics]:
    """Returns, costs and lengths of the episodes that ended in this batch; NaN where none did."""

    def step(running: Episodes, step):
        reward, cost, done = step
        full = Episodes(running.reward + reward, running.cost + cost, running.length + 1.0)
        kept = jax.tree.map(lambda x: jnp.where(done, 0.0, x), full)
        return kept, jax.tree.map(lambda x: jnp.sum(jnp.where(done, x, 0.0)), full)

    done = batch.terminated | batch.truncated
    episodes, ended = jax.lax.scan(step, episodes, (batch.reward, batch.cost, done))
    count = jnp.sum(done)
    return episodes, {
        "train/return": jnp.sum(ended.reward) / count,
        "train/episode_cost": jnp.sum(ended.cost) / count,
        "train/episode_length": jnp.sum(ended.length) / count,
        "train/episodes": count,
        "train/terminated": jnp.sum(batch.terminated),
        "train/reward": jnp.mean(batch.reward),
        "train/cost": jnp.mean(batch.cost),
    }


def _risk_metrics(
    problem: Problem, dual: sgda.DualState, batch: Transition, visited: Array, discounted: Array
) -> Metrics:
    """Per constraint: price, t, slack at t, the batch's own best t, risk and mean; also by discounted visits."""
    metrics = {}
    found = lagrangian.estimates(problem, dual.t, batch.reward, batch.constraints, visited)
    for i, constraint in enumerate(problem.constraints):
        v = batch.constraints[constraint.name]
        area = f"constraint{i}"
        metrics |= {
            f"{area}/lam": dual.lam[i],
            f"{area}/lam_max": dual.lam_max[i],
            f"{area}/t": dual.t[i + 1],
            f"{area}/slack": found.slack[i],
            f"{area}/t_batch": constraint.utility.t_star(-v, visited),
            f"{area}/t_batch_discounted": constraint.utility.t_star(-v, discounted),
            f"{area}/risk": -constraint.utility.value(-v, visited),
            f"{area}/mean": estimate.weighted_mean(v, visited),
            f"{area}/threshold": jnp.asarray(constraint.threshold),
        }
    return metrics

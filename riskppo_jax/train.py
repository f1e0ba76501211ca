"""Algorithm 1 as one function: `step(state, hypers) -> (state, metrics)`.

Each step collects a batch with the current policy, moves the prices and `t` on that batch, prices the same batch
with the new ones, and improves the policy on it. Whoever holds `init` and `step` may scan a whole run, scan it
in chunks and save between, or `vmap` a grid: same step, same numbers.
"""

from collections.abc import Callable
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
from riskppo_jax.types import Array, ArrayLike, Key, Metrics


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


class Trainer(NamedTuple):
    """A pair of functions, and what evaluation needs to know of the policy."""

    init: Callable[[Key, Hypers], RunState]
    step: Callable[[RunState, Hypers], tuple[RunState, Metrics]]
    networks: Networks
    hypers: Hypers  # the defaults, with the problem that was given


def make_train(env: Env, layout: Layout, problem: Problem, rule: sgda.Rule | None = None) -> Trainer:
    """A trainer of `problem` on `env`.

    Args:
      env: one world that resets itself; its `constraint_names` are what constraints can be about.
      layout: shapes of the program.
      problem: objective and constraints; its numbers are the defaults, its structure is fixed.
      rule: how lambda and t move.
    """
    rule = rule or sgda.Rule()
    for constraint in problem.constraints:
        if constraint.name not in env.constraint_names:
            raise UserError(
                f"constraint {constraint.name!r}: this environment accepts {', '.join(env.constraint_names)}"
            )
    networks = make_networks(env.observation_size, env.action_size, env.num_actions, layout)

    def dual_sets(hypers: Hypers) -> sgda.Sets:
        reach = getattr(env, "reward_range", (-100.0, 100.0))
        return sgda.sets(hypers.problem, reach, env.constraint_range, hypers.lam_max, rule.box)

    def init(key: Key, hypers: Hypers) -> RunState:
        key, key_net, key_envs = jax.random.split(key, 3)
        envs = reset_envs(key_envs, env, layout.num_envs)
        if hypers.noise is not None:
            envs = with_noise(envs, hypers.noise)
        zeros = jnp.zeros(layout.num_envs)
        sets = dual_sets(hypers)
        return RunState(
            key=key,
            learner=init_learner(key_net, networks),
            moments=init_moments((env.observation_size,)),
            scale=init_reward_scale(layout.num_envs),
            dual=sgda.init(sets, t=jax.tree.map(jnp.zeros_like, sets.t_low)),
            envs=envs,
            episodes=Episodes(zeros, zeros, zeros),
            env_steps=jnp.zeros((), jnp.uint32),
        )

    def step(state: RunState, hypers: Hypers) -> tuple[RunState, Metrics]:
        key, key_roll, key_dual, key_sgd = jax.random.split(state.key, 4)

        # line 5: trajectories with the current policy
        clip = hypers.ppo.obs_clip
        envs, batch = rollout(
            key_roll, env, networks, state.learner.params, state.moments, state.envs, layout, clip
        )
        visited = batch.valid.astype(batch.reward.dtype)

        # lines 6 and 7: prices and t, from that batch
        def oracle(lam, t):
            return lagrangian.estimates(hypers.problem, t, batch.reward, batch.constraints, visited)

        t_star = lagrangian.batch_t_star(hypers.problem, batch.reward, batch.constraints, visited)
        dual = sgda.dual_step(rule, dual_sets(hypers), state.dual, oracle, hypers.dual, t_star, key_dual)

        # line 4 of the next round: improve the policy on the same batch at the new prices
        priced = lagrangian.priced_reward(hypers.problem, dual.lam, dual.t, batch.reward, batch.constraints)
        done = batch.terminated | batch.truncated
        scale = update_reward_scale(state.scale, priced, done, hypers.ppo.gamma, batch.valid)
        advantage, target = gae(
            priced * reward_factor(scale), batch.value, batch.next_value, batch.terminated, batch.truncated,
            hypers.ppo.gamma, hypers.ppo.gae_lambda, batch.valid,
        )  # fmt: skip
        lr = linear_decay(hypers.ppo.lr, state.env_steps / hypers.total_steps)
        learner, ppo_metrics = ppo_update(
            key_sgd, state.learner, make_batch(batch, advantage, target, state.moments, clip), networks,
            hypers.ppo, layout, lr,
        )  # fmt: skip

        episodes, episode_metrics = _count_episodes(state.episodes, batch)
        after = RunState(
            key=key,
            learner=learner,
            moments=update_moments(state.moments, batch.obs, batch.valid),
            scale=scale,
            dual=dual,
            envs=envs,
            episodes=episodes,
            env_steps=state.env_steps + layout.batch_size,
        )
        return after, {
            "train/env_steps": after.env_steps,
            "train/diverged": jnp.sum(~batch.valid),
            **episode_metrics,
            **_risk_metrics(hypers.problem, dual, batch, visited, hypers.ppo.gamma),
            **ppo_metrics,
        }

    return Trainer(init, step, networks, Hypers(problem))


def scan_steps(trainer: Trainer, length: int) -> Callable[[RunState, Hypers], tuple[RunState, Metrics]]:
    """`length` steps as one function; metrics lead with the step."""

    def chunk(state: RunState, hypers: Hypers):
        return jax.lax.scan(lambda state, _: trainer.step(state, hypers), state, None, length)

    return chunk


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
    problem: Problem, dual: sgda.DualState, batch: Transition, visited: Array, gamma: ArrayLike
) -> Metrics:
    """Per constraint: price, t, slack at t, the batch's own best t, risk and mean; also by discounted visits."""
    metrics = {}
    found = lagrangian.estimates(problem, dual.t, batch.reward, batch.constraints, visited)
    discounted = visited * estimate.occupancy_weights(batch.terminated | batch.truncated, gamma)
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

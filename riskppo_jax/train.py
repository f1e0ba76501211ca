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

from riskppo_jax import sgda, trees, units
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.envs.base import Env, State
from riskppo_jax.envs.wrappers import staggered, with_noise
from riskppo_jax.episodes import Episodes, episode_metrics, init_episodes, running_sums
from riskppo_jax.errors import UserError
from riskppo_jax.nets import Networks, Params, make_networks
from riskppo_jax.normalize import (
    Moments,
    RewardScale,
    init_moments,
    init_reward_scale,
    reward_factor,
    same_values,
    to_output,
    to_value,
    update_moments,
    update_reward_scale,
    update_targets,
)
from riskppo_jax.risk import lagrangian
from riskppo_jax.risk.lagrangian import Aux, Problem
from riskppo_jax.scheme import Scheme
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
from riskppo_jax.view import View, of_episodes, of_steps, priced_episodes, priced_steps, risk_metrics

Policy = tuple[Params, Moments]  # weights, and what observations are normalised with
BAD_ITERATIONS = 3  # in a row, after which a run stands still as diverged


@struct.dataclass
class Hypers:
    """Everything traced: `vmap` over any leaf sweeps it without compiling again.

    `problem` carries the utilities' parameters and the thresholds; its structure is that given to `make_train`.
    """

    problem: Problem
    ppo: PPOHypers = struct.field(default_factory=PPOHypers)
    dual: sgda.DualHypers = struct.field(default_factory=sgda.DualHypers)
    noise: ArrayLike | None = None  # of the environment's actions; None leaves what it was made with
    lam_max: ArrayLike = 20.0  # where Lambda starts, in the unit of its steps: `units.py`
    lam_init: ArrayLike = 0.0
    t_init: ArrayLike | Aux = 0.0  # of every constraint, or the whole tuple, projected onto T
    total_steps: ArrayLike = 1e6  # environment steps over which the learning rate falls


@struct.dataclass
class Chosen:
    """The best policy that evaluations have seen so far: `deploy.py`."""

    actor: PyTree
    moments: Moments
    env_steps: Array  # after which it was seen
    reward: Array  # mean return, or the value of an objective that is not the mean
    excess: Array  # of the largest violation, 0 if there is none


@struct.dataclass
class Worlds:
    """A set of worlds, and the episodes under way in them."""

    envs: State
    episodes: Episodes


@struct.dataclass
class RunState:
    """All that a run carries; what is saved is this, whole."""

    key: Key
    learner: Learner
    averaged: PyTree  # the actor's weights, averaged over the tail of training; until then those of the learner
    moments: Moments  # of observations, fixed during a rollout and its epochs
    scale: RewardScale  # one factor for the whole priced reward
    dual: sgda.DualState
    envs: State
    episodes: Episodes
    env_steps: Array  # all of them counted
    bad_streak: Array  # iterations in a row in which something was not finite
    chosen: Chosen | None = None  # where the best is to be deployed instead of the last; steps leave it alone
    mean_worlds: Worlds | None = None  # where mean actions are judged: in worlds that have seen no other

    @property
    def trained(self) -> Policy:
        """What acts, and what lambda and t have seen."""
        return self.learner.params, self.moments

    @property
    def newest(self) -> Policy:
        """The last policy, averaged over the tail: any single update may have just spoiled the learner's."""
        return self.learner.params.replace(actor=self.averaged), self.moments

    @property
    def deployed(self) -> Policy:
        """What is evaluated with mean actions, and exported."""
        best = self.chosen
        return self.newest if best is None else (self.learner.params.replace(actor=best.actor), best.moments)


class _Seen(NamedTuple):
    """A batch, the episodes' sums at each of its steps, and what it shows of the problem."""

    batch: Transition
    sums: Episodes
    view: View


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
    units.check_ranges(problem, env)
    networks = make_networks(env.observation_size, env.action_size, env.num_actions, layout)
    whole = scheme.risk_of == "episode"
    limit = getattr(env, "limit", None)
    if whole and not limit:
        raise UserError("scheme.risk_of=episode: accepts an environment with a time limit")
    if layout.noise_memory and env.num_actions is not None:
        raise UserError(f"layout.noise_memory={layout.noise_memory}: actions here are counted; accepts 0")
    summed = tuple(constraint.name for constraint in problem.constraints) if whole else ()
    steps_per_iteration = layout.batch_size * scheme.rollouts

    def present(hypers: Hypers, env_steps: ArrayLike) -> Problem:
        left = 1.0 - env_steps / hypers.total_steps / hypers.dual.ease_until
        return units.ease(hypers.problem, env, hypers.dual.ease, jnp.clip(left, 0.0, 1.0))

    def dual_sets(hypers: Hypers, now: Problem) -> sgda.Sets:
        return units.dual_sets(hypers.problem, env, hypers.lam_max, rule, scheme, now)

    def begin(key: Key, hypers: Hypers) -> Worlds:
        envs = reset_envs(key, env, layout.num_envs)
        if hypers.noise is not None:
            envs = with_noise(envs, hypers.noise)
        if layout.stagger and limit and "steps" in envs.info:
            envs = staggered(envs, limit)
        return Worlds(envs, init_episodes(layout.num_envs, summed))

    def init(key: Key, hypers: Hypers) -> RunState:
        key, key_net, key_envs = jax.random.split(key, 3)
        worlds = begin(key_envs, hypers)
        learner = init_learner(key_net, networks)
        state = RunState(
            key=key,
            learner=learner,
            averaged=learner.params.actor,
            moments=init_moments((env.observation_size,)),
            scale=init_reward_scale(layout.num_envs),
            dual=units.start(hypers.problem, dual_sets(hypers, present(hypers, 0)), hypers.lam_init, hypers.t_init),
            envs=worlds.envs,
            episodes=worlds.episodes,
            env_steps=jnp.zeros((), jnp.uint32),
            bad_streak=jnp.zeros((), jnp.int32),
            mean_worlds=begin(jax.random.fold_in(key_envs, 1), hypers) if scheme.dual_policy == "mean" else None,
        )
        return jax.tree.map(trees.strong, state)

    def collect(state: RunState, key: Key, hypers: Hypers, deterministic: bool = False) -> tuple[RunState, _Seen]:
        memory = jnp.where(state.env_steps < hypers.ppo.memory_until * hypers.total_steps, 1.0, 0.0)
        envs, batch = rollout(
            key, env, networks, state.learner.params, state.moments, state.envs, layout, hypers.ppo.obs_clip,
            deterministic, memory,
        )  # fmt: skip
        episodes, sums = running_sums(state.episodes, batch)
        view = of_episodes(batch, sums, limit) if whole else of_steps(batch, state.episodes.length, hypers.ppo.gamma)
        if scheme.occupancy == "discounted":
            view = view._replace(weights=view.discounted)
        return state.replace(envs=envs, episodes=episodes), _Seen(batch, sums, view)

    def judge(state: RunState, key: Key, hypers: Hypers) -> tuple[RunState, _Seen]:
        """A batch for the dual step alone, of the policy that is constrained."""
        if state.mean_worlds is None:
            return collect(state, key, hypers)
        there = state.replace(envs=state.mean_worlds.envs, episodes=state.mean_worlds.episodes)
        there, seen = collect(there, key, hypers, deterministic=True)
        return state.replace(mean_worlds=Worlds(there.envs, there.episodes)), seen

    def move_duals(state: RunState, view: View, key: Key, hypers: Hypers, now: Problem) -> sgda.DualState:
        def oracle(lam, t):
            return lagrangian.estimates(now, t, view.reward, view.quantities, view.weights)

        t_star = lagrangian.batch_t_star(now, view.reward, view.quantities, view.weights)
        sets = units.of_rewards(dual_sets(hypers, now), view.reward, view.weights)
        moved = sgda.dual_step(rule, sets, state.dual, oracle, hypers.dual, t_star, key)
        # a batch in which no episode ended says nothing about episodes
        return trees.where(jnp.sum(view.weights) > 0, moved, state.dual) if whole else moved

    def improve(
        state: RunState, seen: _Seen, key: Key, lr: Array, hypers: Hypers, now: Problem
    ) -> tuple[RunState, Metrics]:
        batch, ppo = seen.batch, hypers.ppo
        averse = _averse(state.env_steps / hypers.total_steps, ppo.averse_after)
        if whole:
            priced = priced_episodes(now, state.dual, batch, seen.sums, limit, averse)
        else:
            priced = priced_steps(now, state.dual, batch, scheme.constant, averse)
        scale = update_reward_scale(state.scale, priced, batch.terminated | batch.truncated, ppo.gamma, batch.valid)
        factor = reward_factor(scale)
        # values that are to stay are measured in rewards, whose scale moves; otherwise in units of that scale
        unit, earned = (1.0 / factor, priced) if layout.keep_values else (1.0, priced * factor)
        value = to_value(scale, batch.value, unit)
        advantage, target = gae(
            earned, value, to_value(scale, batch.next_value, unit), batch.terminated, batch.truncated, ppo.gamma,
            ppo.gae_lambda, batch.valid,
        )  # fmt: skip
        learner, judge, moved = state.learner, scale, update_targets(scale, target, batch.valid)
        if layout.keep_values:
            learner = learner.replace(params=networks.with_value(learner.params, *same_values(scale, moved, unit)))
            advantage, judge = advantage * factor, moved
            batch = batch._replace(value=to_output(moved, value, unit))
        samples = make_batch(batch, advantage, to_output(judge, target, unit), state.moments, ppo.obs_clip)
        learner, metrics = ppo_update(key, learner, samples, networks, ppo, layout, lr)
        metrics["ppo/target_spread"] = jnp.sqrt(moved.targets.var) / unit
        moments = state.moments
        if layout.normalize_observations:
            moments = update_moments(moments, batch.obs, batch.valid)
        return state.replace(learner=learner, moments=moments, scale=moved), metrics

    def step(before: RunState, hypers: Hypers) -> tuple[RunState, Metrics]:
        key, key_roll, key_dual, key_sgd = jax.random.split(before.key, 4)
        lr = linear_decay(hypers.ppo.lr, before.env_steps / hypers.total_steps, hypers.ppo.lr_final)
        now = present(hypers, before.env_steps)  # the problem, its limits perhaps still on their way down

        # line 5: trajectories with the current policy
        state, seen = collect(before, key_roll, hypers)
        judged = seen
        if scheme.dual_rollout == "fresh":
            key_dual, key_fresh = jax.random.split(key_dual)
            state, judged = judge(state, key_fresh, hypers)

        # lines 6 and 7: prices and t, from that batch
        moved = move_duals(state, judged.view, key_dual, hypers, now)
        sound = trees.all_finite((moved.lam, moved.t))
        state = state.replace(dual=trees.where(sound, moved, before.dual))

        # line 4 of the next round: improve the policy on the same batch at the new prices
        state, ppo_metrics = improve(state, seen, key_sgd, lr, hypers, now)
        skipped, diverged = ppo_metrics["ppo/skipped"], jnp.sum(~seen.batch.valid)
        if judged is not seen:
            diverged = diverged + jnp.sum(~judged.batch.valid)
        if scheme.policy_updates > 1:

            def again(state: RunState, key: Key):
                key_roll, key_sgd = jax.random.split(key)
                state, seen = collect(state, key_roll, hypers)
                state, metrics = improve(state, seen, key_sgd, lr, hypers, now)
                return state, (metrics["ppo/skipped"], jnp.sum(~seen.batch.valid))

            keys = jax.random.split(jax.random.fold_in(key_sgd, 1), scheme.policy_updates - 1)
            state, more = jax.lax.scan(again, state, keys)
            skipped, diverged = (count + jnp.sum(own) for count, own in zip((skipped, diverged), more, strict=True))

        bad = ~sound | (skipped > 0)
        env_steps = before.env_steps + steps_per_iteration
        begins = (1.0 - hypers.ppo.tail) * hypers.total_steps
        newest = 1.0 / jnp.maximum(jnp.ceil((env_steps - begins) / steps_per_iteration), 1.0)
        after = state.replace(
            key=key,
            averaged=trees.blend(state.averaged, state.learner.params.actor, newest),
            env_steps=env_steps,
            bad_streak=jnp.where(bad, before.bad_streak + 1, 0),
        )
        # a run that diverged stands still, so that its neighbours in a sweep can go on
        after = trees.where(before.bad_streak < BAD_ITERATIONS, after, before)
        return after, {
            "train/env_steps": after.env_steps,
            "train/diverged": diverged,
            "train/bad_streak": after.bad_streak,
            **episode_metrics(seen.sums, seen.batch),
            **risk_metrics(hypers.problem, now, state.dual, judged.view),
            **ppo_metrics,
            "ppo/skipped": skipped,
        }

    return Trainer(init, step, networks, Hypers(problem), steps_per_iteration)


def scan_steps(trainer: Trainer, length: int) -> Callable[[RunState, Hypers], tuple[RunState, Metrics]]:
    """`length` steps as one function; metrics lead with the step."""

    def chunk(state: RunState, hypers: Hypers):
        return jax.lax.scan(lambda state, _: trainer.step(state, hypers), state, None, length)

    return chunk


def _averse(progress: Array, after: ArrayLike) -> Array:
    """The objective's own share beside the mean: 0 until half of `after`, then linear, 1 from there on.

    A policy that cannot move yet has its worst steps lifted by rest: averse from the start, it stays there.
    """
    half = 0.5 * after
    return jnp.where(progress < after, jnp.clip((progress - half) / jnp.maximum(half, 1e-9), 0.0, 1.0), 1.0)

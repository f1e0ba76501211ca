"""The trainer itself, networks and sampled batches, on finite problems whose optimum is known.

Nothing here is special to tables but the judging: the trained network is read out as a table `pi(a|s)` and its law
computed exactly. The value with `t` held fixed is not concave in `t`, so several starts of `t` are trained side by
side as lanes of one program, and the best one is returned.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax import sgda
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.envs import tabular
from riskppo_jax.envs.tabular import Instance, TabularEnv, TabularMDP
from riskppo_jax.normalize import normalize
from riskppo_jax.risk.lagrangian import Estimates
from riskppo_jax.train import RunState, Trainer, make_train
from riskppo_jax.truth.setup import Outcome, Setup, starts

_LAYOUT = Layout(
    num_envs=64,
    horizon=32,
    num_minibatches=4,
    num_epochs=4,
    hidden_sizes=(32,),
    normalize_advantages=False,
    normalize_observations=False,
)
_PPO = PPOHypers(lr=3e-3, lr_final=0.0, gae_lambda=0.95, max_grad_norm=10.0, target_kl=float("inf"))
_DUAL = sgda.DualHypers(lam_step=0.05, lam_gain=2.0, gain_clip=1.0, gain_warmup=1.0, slack_clip=1.0)
_RULE = sgda.Rule()


@dataclass(frozen=True)
class Recipe:
    """How the trainer is set up.

    Near the optimum all actions are worth the same, and normalised advantages would be noise blown up to size one;
    they stay as they are. The problems are small and stationary, so every slack is believed and no gain warms up.
    """

    layout: Layout = _LAYOUT
    ppo: PPOHypers = _PPO
    dual: sgda.DualHypers = _DUAL
    rule: sgda.Rule = _RULE
    iterations: int = 1000
    starts: int = 8


def tolerance(instance: Instance) -> float:
    """What a sampled trainer is held to: 5%, and 10% where a problem is large or has several constraints."""
    return 0.10 if instance.mdp.num_states > 10 or len(instance.thresholds) > 1 else 0.05


def solve(instance: Instance, recipe: Recipe | None = None, seed: int = 0) -> Outcome:
    """Trains from all starts; the best last policy, prices and t averaged over the last third."""
    recipe = recipe or Recipe()
    with jax.enable_x64(True):
        exact = Setup(instance)
        sets = exact.sets(recipe.rule.box)
        first = jax.tree.map(np.asarray, starts(exact, sets, recipe.starts, seed))
    setup = Setup(replace(instance, mdp=_single(instance.mdp)))
    env = TabularEnv(setup.instance.mdp)
    env.reward_range = (float(setup.rewards[0].min()), float(setup.rewards[0].max()))
    trainer = make_train(env, recipe.layout, setup.problem, recipe.rule)
    tables, lam, t = _train(trainer, recipe, instance.mdp.gamma, first, seed, instance.mdp.num_states)
    with jax.enable_x64(True):
        policy = jnp.asarray(tables / tables.sum(-1, keepdims=True))
        judged = jax.jit(jax.vmap(lambda p: exact.judge(tabular.occupancy(instance.mdp, p))))(policy)
        best = _best(judged, lam)
        return Outcome(
            policy=np.asarray(policy[best]),
            objective=float(judged.objective[best]),
            slack=np.asarray(judged.slack[best]),
            lam=lam[best],
            t=tuple(float(t_i[best]) for t_i in t),
            start=best,
        )


def _best(judged: Estimates, lam: np.ndarray) -> int:
    """The start with the best objective, less twice what its violation is worth at the highest price any start found.

    Sampled policies end a little to either side of the limit; at that price no violation pays.
    """
    violation = np.maximum(-np.asarray(judged.slack), 0.0)
    return int(np.argmax(np.asarray(judged.objective) - 2.0 * violation @ lam.max(axis=0)))


def _train(trainer: Trainer, recipe: Recipe, gamma: float, first, seed: int, states: int):
    """Tables of the last policies `[start, state, action]`, and means of prices and t over the last third."""
    total = float(recipe.iterations * trainer.steps_per_iteration)
    ppo = recipe.ppo.replace(gamma=gamma)

    def table(state: RunState):
        obs = normalize(state.moments, jnp.eye(states), ppo.obs_clip)
        return trainer.networks.policy(state.learner.params, obs).probs

    def run(key, t):
        hypers = trainer.hypers.replace(ppo=ppo, dual=recipe.dual, t_init=t, total_steps=total)

        def step(state, _):
            state, _ = trainer.step(state, hypers)
            return state, (state.dual.lam, state.dual.t)

        state, duals = jax.lax.scan(step, trainer.init(key, hypers), None, recipe.iterations)
        late = jax.tree.map(lambda x: jnp.mean(x[2 * recipe.iterations // 3 :], axis=0), duals)
        return table(state), *late

    keys = jax.random.split(jax.random.key(seed), recipe.starts)
    first = tuple(jnp.asarray(t, jnp.float32) for t in first)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), jax.jit(jax.vmap(run))(keys, first))


def _single(mdp: TabularMDP) -> TabularMDP:
    """The problem in single precision, as networks are trained."""
    kinds = {"f": jnp.float32, "i": jnp.int32}
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), kinds[np.asarray(x).dtype.kind]), mdp)

"""What a policy does: whole episodes from fixed keys, and the risk of every step in them."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.envs.base import Env
from riskppo_jax.envs.wrappers import with_noise
from riskppo_jax.nets import Networks, Params
from riskppo_jax.normalize import Moments, normalize
from riskppo_jax.risk.lagrangian import Constraint, Problem
from riskppo_jax.risk.utility import Utility
from riskppo_jax.types import Array, ArrayLike, Key

EVALUATION_SEED = 20_251_204  # of the worlds; the same for every lane, so that policies meet the same starts
TOLERANCE = 0.01  # of the threshold: a constraint met up to sampling counts as satisfied


class Evaluation(NamedTuple):
    """Episodes side by side: fields `[episode]`, quantities `[time, episode]` with a mask of visited steps."""

    reward: np.ndarray  # return of each episode
    cost: np.ndarray
    length: np.ndarray
    terminated: np.ndarray  # whether the task ended it, rather than the clock
    quantities: dict[str, np.ndarray]
    visited: np.ndarray
    step_reward: np.ndarray  # of every step, as the quantities
    weight: np.ndarray | None = None  # of every step, where the law of steps is not that of all visited ones alike

    def samples(self, name: str) -> np.ndarray:
        """The quantity of every visited step, episode after episode."""
        return self.quantities[name].T[self.visited.T]

    def rewards(self) -> np.ndarray:
        """The reward of every visited step, likewise."""
        return self.step_reward.T[self.visited.T]

    def weights(self) -> Array:
        """What each step weighs in a risk; 0 where none was taken."""
        return jnp.asarray(self.visited if self.weight is None else self.weight, jnp.float32)

    def summary(self) -> dict[str, float | int]:
        """The `eval` entry of `summary.json`."""
        return {
            "episodes": len(self.reward),
            "reward_mean": float(self.reward.mean()),
            "reward_std": float(self.reward.std()),
            "cost_mean": float(self.cost.mean()),
            "cost_rate": float(self.cost.sum() / self.length.sum()),
            "length_mean": float(self.length.mean()),
        }


def evaluate(
    env: Env,
    networks: Networks,
    params: Params,
    moments: Moments,
    episodes: int = 100,
    deterministic: bool = True,
    noise: ArrayLike | None = None,
    obs_clip: ArrayLike = 10.0,
    limit: int | None = None,
    key: Key | None = None,
) -> Evaluation:
    """Runs one episode in each of `episodes` worlds.

    Args:
      env: one world; its noise is on as in training, unless `noise` says otherwise.
      networks: the policy's functions.
      params: its weights.
      moments: of the observations.
      episodes: how many worlds.
      deterministic: the mean action (or the likeliest), else sampled ones.
      noise: standard deviation of the environment's action noise; None leaves what it was made with.
      obs_clip: limit of a normalised observation.
      limit: steps after which an episode is cut; the environment's own limit, or 1000 where it has none.
      key: of the worlds; fixed by default.
    """
    key = jax.random.key(EVALUATION_SEED) if key is None else key
    limit = limit or getattr(env, "limit", None) or 1000
    found = _episodes(
        key, params, moments, noise, obs_clip,
        env=env, networks=networks, episodes=episodes, deterministic=deterministic, limit=limit,
    )  # fmt: skip
    (reward, cost, length, terminated), steps = jax.tree.map(np.asarray, found)
    return Evaluation(reward, cost, length, terminated, *steps)


def as_episodes(found: Evaluation, limit: int) -> Evaluation:
    """The same with one number for each episode, its sum over the time limit: what `scheme.risk_of=episode` judges."""

    def whole(x: np.ndarray) -> np.ndarray:
        return np.where(found.visited, x, 0.0).sum(0)[None] / limit

    sums = {name: whole(v) for name, v in found.quantities.items()}
    visited = np.ones((1, len(found.reward)), bool)
    return found._replace(quantities=sums, visited=visited, step_reward=whole(found.step_reward))


def discounted(found: Evaluation, gamma: float) -> Evaluation:
    """The same with step `k` of an episode weighing `gamma^k`: the law of `scheme.occupancy=discounted`."""
    return found._replace(weight=np.where(found.visited, gamma ** np.arange(len(found.visited))[:, None], 0.0))


def risk_report(
    constraint: Constraint, found: Evaluation, resamples: int = 200, key: Key | None = None
) -> dict[str, Any]:
    """Quantile `-t*`, risk and its 95% interval of one constraint, and whether the limit is kept.

    The interval is a bootstrap over episodes: steps of one episode depend on each other, episodes do not.
    """
    key = jax.random.key(EVALUATION_SEED + 1) if key is None else key
    v, weights = jnp.asarray(found.quantities[constraint.name]), found.weights()
    value, t_star, spread = _risks(constraint.utility, v, weights, key, resamples)
    limit, value = float(constraint.threshold), float(value) + 0.0  # a risk of nothing is 0, not -0
    return {
        "quantile": (0.0 - np.asarray(t_star, np.float64)).tolist(),
        "risk_value": value,
        "risk_value_ci": [float(x) + 0.0 for x in np.nanquantile(np.asarray(spread), [0.025, 0.975])],
        "satisfied": bool(value <= limit + TOLERANCE * abs(limit)),
        "mean": float(
            np.average(
                found.samples(constraint.name),
                weights=found.weight.T[found.visited.T] if found.weight is not None else None,
            )
        ),
    }


def objective_report(
    objective: Utility, found: Evaluation, resamples: int = 200, key: Key | None = None
) -> dict[str, Any]:
    """The objective's own measure of the reward of a step: its value with a 95% interval, as for risks, and `t*`."""
    key = jax.random.key(EVALUATION_SEED + 1) if key is None else key
    loss, t_star, spread = _risks(objective, -jnp.asarray(found.step_reward), found.weights(), key, resamples)
    return {
        "value": 0.0 - float(loss),
        "value_ci": [0.0 - float(x) for x in np.nanquantile(np.asarray(spread), [0.975, 0.025])],
        "best_t": np.asarray(t_star, np.float64).tolist(),
    }


def metrics(found: Evaluation, problem: Problem) -> dict[str, float]:
    """An evaluation as entries of a log point; `i` counts the constraints. Of the mean, the return says enough.

    `eval/objective` is of the steps that were taken; in `eval/objective_whole` those that an early end left out count
    as well, as rest without reward, which is what the policy is trained for.
    """
    point = {f"eval/{name}": float(getattr(found, name).mean()) for name in ("reward", "cost", "length")}
    weights = found.weights()
    if problem.averse:
        earned = jnp.asarray(np.where(found.visited, found.step_reward, 0.0))
        point["eval/objective"] = float(_risk(problem.objective, earned, weights)[0])
        point["eval/objective_whole"] = float(_risk(problem.objective, earned, jnp.ones_like(weights))[0])
    for i, constraint in enumerate(problem.constraints):
        value, t_star = _risk(constraint.utility, jnp.asarray(-found.quantities[constraint.name]), weights)
        point[f"eval/risk{i}"] = 0.0 - float(value)  # a risk of nothing is 0, not -0
        point[f"eval/quantile{i}"] = (-np.asarray(t_star, np.float64)).tolist()
    return point


@jax.jit
def _risk(utility, x: Array, weights: Array) -> tuple[Array, Array]:
    return utility.value(x, weights), utility.t_star(x, weights)


@partial(jax.jit, static_argnames=("env", "networks", "episodes", "deterministic", "limit"))
def _episodes(key, params, moments, noise, obs_clip, *, env, networks, episodes, deterministic, limit):
    key_reset, key_act = jax.random.split(key)
    worlds = jax.vmap(env.reset)(jax.random.split(key_reset, episodes))
    if noise is not None:
        worlds = with_noise(worlds, noise)

    def step(carry, key):
        worlds, (reward, cost, length, terminated), alive = carry
        lost = worlds.info.get("diverged")
        law = networks.policy(params, normalize(moments, worlds.obs, obs_clip))
        worlds = jax.vmap(env.step)(worlds, law.mode() if deterministic else law.sample(seed=key))
        totals = (
            reward + jnp.where(alive, worlds.reward, 0.0),
            cost + jnp.where(alive, worlds.cost, 0.0),
            length + alive,
            terminated | (alive & worlds.terminated),
        )
        # the world has begun its next episode by itself; what follows is not counted
        after = alive & ~(worlds.terminated | worlds.truncated)
        # a step in which the simulation was lost shows no quantity
        sound = worlds.info["diverged"] == lost if "diverged" in worlds.info else True
        return (worlds, totals, after), (worlds.constraints, alive & sound, worlds.reward)

    zeros, false = jnp.zeros(episodes), jnp.zeros(episodes, bool)
    start = (worlds, (zeros, zeros, zeros, false), ~false)
    (_, totals, _), seen = jax.lax.scan(step, start, jax.random.split(key_act, limit))
    return totals, seen


@partial(jax.jit, static_argnames="resamples")
def _risks(utility, v: Array, weights: Array, key: Key, resamples: int):
    """Risk, `t*` and resampled risks of `v`, all of them arguments: what is constant gets folded for minutes."""
    episodes = v.shape[1]

    def resampled(key):
        drawn = jax.random.randint(key, (episodes,), 0, episodes)
        counts = jnp.zeros(episodes).at[drawn].add(1.0)
        return -utility.value(-v, weights * counts)

    spread = jax.lax.map(resampled, jax.random.split(key, resamples))
    return -utility.value(-v, weights), utility.t_star(-v, weights), spread

"""Collects `[T, N]` transitions with the current policy."""

from typing import NamedTuple

import jax

from riskppo_jax.config import Layout
from riskppo_jax.distributions import Distribution, remembering, with_noise
from riskppo_jax.envs.base import Env, State
from riskppo_jax.nets import Networks, Params
from riskppo_jax.normalize import Moments, normalize
from riskppo_jax.parallel import everywhere
from riskppo_jax.types import Array, ArrayLike, Key


class Transition(NamedTuple):
    """What one rollout leaves, each field `[T, N, ...]`.

    The observation before an auto-reset is not kept: all that is needed of it is its value, `next_value`.
    """

    obs: Array  # as the environment gave it
    action: Array  # as it was sampled
    log_prob: Array  # of that action, under the policy that sampled it
    value: Array  # of `obs`
    next_value: Array  # of the observation this step led to, before any auto-reset
    reward: Array  # the environment's own
    cost: Array
    constraints: dict[str, Array]
    terminated: Array
    truncated: Array
    valid: Array  # False where the simulation diverged with this step


def reset_envs(key: Key, env: Env, num_envs: int) -> State:
    """Fresh worlds, `[N, ...]`."""
    return jax.vmap(env.reset)(jax.random.split(key, num_envs))


def rollout(
    key: Key,
    env: Env,
    networks: Networks,
    params: Params,
    moments: Moments,
    envs: State,
    layout: Layout,
    obs_clip: ArrayLike = 10.0,
    deterministic: bool = False,
    memory: ArrayLike = 1.0,
) -> tuple[State, Transition]:
    """Lets `layout.num_envs` worlds run `layout.horizon` steps from where they are.

    Args:
      key: for the actions; each world brings its own randomness.
      env: one world; it resets itself at the end of an episode.
      networks: policy and value.
      params: their weights.
      moments: of the observations, held fixed here.
      envs: the worlds, `[N, ...]`.
      layout: shapes.
      obs_clip: limit of a normalised observation.
      deterministic: take the policy's mode instead of a sample.
      memory: the share of `layout.noise_memory` that is left.

    Returns:
      The worlds afterwards, and the transitions.
    """
    step_envs = jax.vmap(env.step)

    def sample(law: Distribution, source: Key | Array) -> Array:
        if deterministic:
            return law.mode()
        return with_noise(law, source) if layout.noise_memory else law.sample(seed=source)

    def step(envs: State, source: Key | Array):
        action = sample(networks.policy(params, normalize(moments, envs.obs, obs_clip)), source)
        after = step_envs(envs, action)
        next_value = networks.value(params, normalize(moments, after.final_obs, obs_clip))
        # the guard counts a world's divergences; a step in which the count did not rise is a good one
        valid = (
            after.info["diverged"] == envs.info["diverged"]
            if "diverged" in after.info
            else after.reward == after.reward
        )
        seen = (after.reward, after.cost, after.constraints, after.terminated, after.truncated)
        return after, (envs.obs, action, next_value, *seen, valid)

    if layout.noise_memory:
        shape = (layout.horizon, layout.num_envs, env.action_size)
        sources = remembering(key, memory * layout.noise_memory, shape)
    else:
        sources = jax.random.split(key, layout.horizon)
    envs, kept = jax.lax.scan(step, envs, sources)
    obs, action, next_value, reward, cost, constraints, terminated, truncated, valid = everywhere(kept)
    log_prob, value = evaluate_actions(
        networks, params, normalize(moments, obs, obs_clip), action, layout.minibatch_size
    )
    return envs, Transition(
        obs=obs,
        action=action,
        log_prob=log_prob,
        value=value,
        next_value=next_value,
        reward=reward,
        cost=cost,
        constraints=constraints,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
    )


def evaluate_actions(
    networks: Networks, params: Params, obs: Array, action: Array, minibatch_size: int
) -> tuple[Array, Array]:
    """Log-probabilities of the actions and values of the normalised observations, `[T, N]` each.

    Both are computed after the rollout in pieces as large as a minibatch, as the loss will: a matrix product
    of another height may round otherwise, and the first probability ratio of an update is to be 1.
    """
    lead = obs.shape[:2]

    def piece(obs_action):
        obs, action = obs_action
        return networks.policy(params, obs).log_prob(action), networks.value(params, obs)

    pieces = (
        obs.reshape(-1, minibatch_size, obs.shape[-1]),
        action.reshape(-1, minibatch_size, *action.shape[2:]),
    )
    log_prob, value = jax.lax.map(piece, pieces)
    return log_prob.reshape(lead), value.reshape(lead)

"""Exact functions of a finite MDP: the law of a policy, the best response to a reward.

Rewards belong to outcomes: row `j` is "in state `s[j]`, action `a[j]` leads to `s_next[j]` with probability
`prob[j]` and pays `rewards[:, j]`". The law of a policy is that of its discounted occupancy,
`(1 - gamma) sum_k gamma^k P(step k takes row j)`.
"""

import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax.types import Array, ArrayLike


@struct.dataclass
class TabularMDP:
    """Columns of equal length `[row]`, `rewards` `[quantity, row]`; quantity 0 is the objective's reward."""

    s: Array
    a: Array
    prob: Array
    s_next: Array
    rewards: Array
    initial: Array  # [state]
    gamma: ArrayLike
    num_states: int = struct.field(pytree_node=False)
    num_actions: int = struct.field(pytree_node=False)

    @property
    def transition(self) -> Array:
        """`P(s' | s, a)`, `[state, action, state]`."""
        shape = (self.num_states, self.num_actions, self.num_states)
        return jnp.zeros(shape, self.prob.dtype).at[self.s, self.a, self.s_next].add(self.prob)


def occupancy(mdp: TabularMDP, policy: Array) -> Array:
    """`nu(s, a)`, solving `d = (1 - gamma) initial + gamma P_pi^T d`; its sum is 1."""
    chain = jnp.einsum("sa,sat->ts", policy, mdp.transition)
    visits = jnp.linalg.solve(jnp.eye(mdp.num_states) - mdp.gamma * chain, (1 - mdp.gamma) * mdp.initial)
    return visits[:, None] * policy


def policy_of(nu: Array) -> Array:
    """The policy `nu(s, a) / nu(s)` of an occupancy; uniform in states that are not visited."""
    visits = jnp.sum(nu, axis=1, keepdims=True)
    seen = visits > 1e-14
    return jnp.where(seen, nu / jnp.where(seen, visits, 1.0), 1.0 / nu.shape[1])


def law(mdp: TabularMDP, nu: Array) -> Array:
    """Probability of every outcome row under the occupancy `nu`."""
    return nu[mdp.s, mdp.a] * mdp.prob


def action_values(mdp: TabularMDP, policy: Array, reward: Array) -> Array:
    """`Q(s, a)` of a reward per outcome row, on the per-step scale (times `1 - gamma`)."""
    shape = (mdp.num_states, mdp.num_actions)
    mean_reward = jnp.zeros(shape, reward.dtype).at[mdp.s, mdp.a].add(mdp.prob * reward)
    chain = jnp.einsum("sa,sat->st", policy, mdp.transition)
    gain = jnp.sum(policy * mean_reward, axis=1)
    values = jnp.linalg.solve(jnp.eye(mdp.num_states) - mdp.gamma * chain, (1 - mdp.gamma) * gain)
    return (1 - mdp.gamma) * mean_reward + mdp.gamma * mdp.transition @ values


def best_response(mdp: TabularMDP, reward: Array, start: Array | None = None) -> Array:
    """A deterministic policy that is optimal for a reward per outcome row, by policy iteration.

    Args:
      reward: `[row]`.
      start: a deterministic policy `[state, action]` to start from; a good guess saves iterations.
    """
    eye = jnp.eye(mdp.num_actions, dtype=reward.dtype)
    policy = jnp.tile(eye[:1], (mdp.num_states, 1)) if start is None else start

    def improve(carry):
        policy, _, count = carry
        q = action_values(mdp, policy, reward)
        kept = jnp.sum(q * policy, axis=1)
        better = jnp.max(q, axis=1) > kept + 1e-12 * (1 + jnp.abs(kept))  # ties keep the action: no cycling
        improved = jnp.where(better[:, None], eye[jnp.argmax(q, axis=1)], policy)
        return improved, jnp.any(better), count + 1

    return jax.lax.while_loop(lambda c: c[1] & (c[2] < 100), improve, (policy, jnp.asarray(True), 0))[0]

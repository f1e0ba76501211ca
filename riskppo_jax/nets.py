"""Actor and critic: two separate networks, seen by the solver as three pure functions."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax import distributions
from riskppo_jax.config import Layout
from riskppo_jax.distributions import Distribution
from riskppo_jax.types import Array, Key, PyTree


@struct.dataclass
class Params:
    """Weights of the two networks; nothing is shared between them."""

    actor: PyTree
    critic: PyTree


class Networks(NamedTuple):
    """`init(key)`, `policy(params, obs)`, `value(params, obs)`; observations are normalised, `[..., obs]`.

    `with_value(params, gain, offset)` are the weights whose value is `gain value + offset`.
    """

    init: Callable[[Key], Params]
    policy: Callable[[Params, Array], Distribution]
    value: Callable[[Params, Array], Array]
    with_value: Callable[[Params, Array, Array], Params]


class Torso(nn.Module):
    """Hidden layers, orthogonal with gain sqrt(2), zero biases, then one linear layer of `outputs`."""

    hidden_sizes: tuple[int, ...]
    activation: str
    outputs: int
    head_gain: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        activate = getattr(nn, self.activation)
        for i, size in enumerate(self.hidden_sizes):
            x = activate(Dense(size, 2.0**0.5, name=f"Dense_{i}")(x))
        return Dense(self.outputs, self.head_gain, name="Head_0")(x)


class Dense(nn.Module):
    """A linear layer, orthogonal with this gain, zero bias."""

    outputs: int
    gain: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = orthogonal(self.gain) if self.gain else nn.initializers.zeros
        kernel = self.param("kernel", init, (x.shape[-1], self.outputs))
        bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
        if self.outputs == 1:
            # XLA rounds a matrix times a vector in its own way wherever it stands; a sum of products, less so
            return jnp.sum(x * kernel[:, 0], -1, keepdims=True) + bias
        return affine(x, kernel, bias)


def orthogonal(gain: float) -> Callable[..., Array]:
    """Flax's initializer, one matrix at a time under `vmap`, too.

    On a CPU a batched factorisation hands its matrices to the pool of threads it stands in; two of them side by side,
    as an actor's and a critic's on two cores, may wait for each other for ever (jaxlib 0.10).
    """
    init = nn.initializers.orthogonal(gain)

    def one(key: Key, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        return jax.custom_batching.sequential_vmap(lambda key: init(key, shape, dtype))(key)

    return one


@jax.custom_vjp
def affine(x: Array, kernel: Array, bias: Array) -> Array:
    """`x @ kernel + bias`; the bias's gradient is a product as well, one operation instead of a tree of sums."""
    return x @ kernel + bias


def _affine_forward(x: Array, kernel: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return affine(x, kernel, bias), (x, kernel)


def _affine_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array, Array]:
    x, kernel = kept
    rows, slopes = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])
    return slope @ kernel.T, rows.T @ slopes, jnp.ones(len(rows), slope.dtype) @ slopes


affine.defvjp(_affine_forward, _affine_backward)


class GaussianActor(nn.Module):
    """`N(mean(obs), exp(log_std)^2)` with a `log_std` that does not depend on the observation."""

    torso: Torso
    log_std_init: float

    @nn.compact
    def __call__(self, obs: Array) -> Distribution:
        log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), (self.torso.outputs,))
        return distributions.normal(self.torso(obs), log_std)


class CategoricalActor(nn.Module):
    """Probabilities proportional to `exp(logits(obs))`."""

    torso: Torso

    @nn.compact
    def __call__(self, obs: Array) -> Distribution:
        return distributions.categorical(self.torso(obs))


def make_networks(observation_size: int, action_size: int, num_actions: int | None, layout: Layout) -> Networks:
    """Networks for an environment of these sizes; `num_actions` is None where actions are continuous."""
    outputs = action_size if num_actions is None else num_actions
    actor_torso = Torso(layout.hidden_sizes, layout.activation, outputs, layout.policy_head_gain)
    if num_actions is None:
        actor = GaussianActor(actor_torso, layout.log_std_init)
    else:
        actor = CategoricalActor(actor_torso)
    critic = Torso(layout.hidden_sizes, layout.activation, 1, 1.0)

    def init(key: Key) -> Params:
        key_actor, key_critic = jax.random.split(key)
        obs = jnp.zeros(observation_size)
        return Params(actor=actor.init(key_actor, obs), critic=critic.init(key_critic, obs))

    def policy(params: Params, obs: Array) -> Distribution:
        return actor.apply(params.actor, obs)

    def value(params: Params, obs: Array) -> Array:
        return critic.apply(params.critic, obs)[..., 0]

    def with_value(params: Params, gain: Array, offset: Array) -> Params:
        layers = params.critic["params"]
        head = layers["Head_0"]
        head = {"kernel": gain * head["kernel"], "bias": gain * head["bias"] + offset}
        return params.replace(critic={"params": {**layers, "Head_0": head}})

    return Networks(init, policy, value, with_value)

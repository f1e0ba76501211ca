"""Risks with more than one auxiliary variable: they fit the same scheme with a vector `t`."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from riskppo_jax.risk.families import MAX_EXPONENT, CVaR, Entropic
from riskppo_jax.risk.utility import Utility, bisect, expect, log_mean_exp
from riskppo_jax.types import Array, ArrayLike


class Spectral(Utility):
    """`sum_k kappa_k CVaR_{beta_k}`: a `t` per level, each with a step of its own.

    `u` carries the levels on its last axis: `g` sums over them, `dg` keeps them (`kappa_k g_k'(u_k)`).
    """

    name: ClassVar[str] = "spectral"
    parameter_ndim: ClassVar[int] = 1
    kappas: ArrayLike  # [level], non-negative, sum 1
    betas: ArrayLike  # [level]

    @property
    def t_shape(self) -> tuple[int, ...]:
        return jnp.shape(self.betas)[-1:]

    def g(self, u: ArrayLike) -> Array:
        return jnp.sum(jnp.asarray(self.kappas) * self._levels.g(jnp.asarray(u)), axis=-1)

    def dg(self, u: ArrayLike) -> Array:
        return jnp.asarray(self.kappas) * self._levels.dg(jnp.asarray(u))

    def pointwise(self, x: ArrayLike, t: ArrayLike) -> Array:
        return jnp.sum(self.kappas * self._levels.pointwise(jnp.asarray(x)[..., None], t), axis=-1)

    def pointwise_dt(self, x: ArrayLike, t: ArrayLike) -> Array:
        return self.kappas * self._levels.pointwise_dt(jnp.asarray(x)[..., None], t)

    def t_interval(self, x_min: ArrayLike, x_max: ArrayLike) -> tuple[Array, Array]:
        low, high = super().t_interval(x_min, x_max)
        return jnp.broadcast_to(low, self.t_shape), jnp.broadcast_to(high, self.t_shape)

    def _t_star(self, x: Array, p: Array) -> Array:
        return jax.vmap(lambda beta: CVaR(beta)._t_star(x, p))(jnp.asarray(self.betas))

    def _value(self, x: Array, p: Array) -> Array:
        return jnp.sum(self.kappas * jax.vmap(lambda beta: CVaR(beta)._value(x, p))(jnp.asarray(self.betas)))

    @property
    def _levels(self) -> CVaR:
        return CVaR(jnp.asarray(self.betas))


class EVaR(Utility):
    """Entropic value at risk: the entropic OCE with its own scale `s = 1/gamma` optimised; `t = (t, s)`.

        sup_{t, s > 0}  t + s E[1 - exp(-(X - t)/s)] - s ln(1/alpha)

    Not an OCE of one utility, so `g` and `dg` are those of the last line at a given `(t, s)`: `pointwise`.
    """

    name: ClassVar[str] = "evar"
    alpha: ArrayLike

    @property
    def t_shape(self) -> tuple[int, ...]:
        return (2,)

    def steepness(self, loss: ArrayLike) -> Array:
        return Entropic(1.0 / jnp.asarray(loss, float)).steepness(loss) + 0.0 * self.alpha  # at a scale of that loss

    def t_start(self, t: ArrayLike, unit: ArrayLike) -> Array:
        return jnp.stack([jnp.asarray(t, float), jnp.asarray(unit, float)])  # a scale near 0 has explosive slopes

    def pointwise(self, x: ArrayLike, t: ArrayLike) -> Array:
        level, scale = jnp.moveaxis(jnp.asarray(t), -1, 0)
        return level + Entropic(1.0 / scale).g(x - level) + scale * jnp.log(self.alpha)

    def pointwise_dt(self, x: ArrayLike, t: ArrayLike) -> Array:
        level, scale = jnp.moveaxis(jnp.asarray(t), -1, 0)
        z = jnp.minimum(-(x - level) / scale, MAX_EXPONENT)
        slope = 1.0 - jnp.exp(z) + 0.0 * self.alpha
        return jnp.stack([slope, slope + z * jnp.exp(z) + jnp.log(self.alpha)], axis=-1)

    def t_interval(self, x_min: ArrayLike, x_max: ArrayLike) -> tuple[Array, Array]:
        """One that holds the maximising `t`; and a wide one for `s`, which may tend to 0 or infinity."""
        low, high = super().t_interval(x_min, x_max)
        width = jnp.maximum(high - low, jnp.finfo(low.dtype).tiny * 1e8)
        return jnp.stack([low, 1e-3 * width]), jnp.stack([high, 1e3 * width])

    def _t_star(self, x: Array, p: Array) -> Array:
        scale = self._scale(x, p)
        return jnp.stack([Entropic(1.0 / scale)._t_star(x, p), scale])

    def _value(self, x: Array, p: Array) -> Array:
        t = jax.lax.stop_gradient(self._t_star(x, p))
        found = Entropic(1.0 / t[1])._value(x, p) + t[1] * jnp.log(self.alpha)
        low = jnp.min(x)  # the limit s -> 0, where the smallest sample has mass alpha or more
        return jnp.where(found < low, low, found)

    def _scale(self, x: Array, p: Array) -> Array:
        """Maximiser of the concave `s -> -s ln E exp(-X/s) + s ln(alpha)`, by bisection on ln s."""
        low = jnp.min(x)
        width = jnp.maximum(jnp.max(x) - low, jnp.finfo(x.dtype).tiny * 1e8)
        above = (x - low) / width

        def minus_derivative(log_s):
            z = -above / jnp.exp(log_s)
            log_mean = log_mean_exp(z, p)
            return log_mean - expect(p * jnp.exp(z - log_mean), z) - jnp.log(self.alpha)

        reach = jnp.log(jnp.asarray(1e6, x.dtype))
        return width * jnp.exp(bisect(minus_derivative, -reach, reach))

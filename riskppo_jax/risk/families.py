"""The utilities, one class each. Build them with the functions of `risk.oce`, which check the parameters.

What is differentiated uses `where`, not `maximum`: compiled, the argument of a maximum may be rounded in two
ways, once for its value and once to ask which side that came from, and then the derivative is zero.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.risk import checks
from riskppo_jax.risk.utility import Utility, bisect, expect, log_mean_exp, lower_quantile
from riskppo_jax.types import Array, ArrayLike

MAX_EXPONENT = 50.0  # exp(50) = 5e21 leaves float32 room for sums; beyond, a utility follows its tangent
_LOG_EDGE = 1e-3  # stochastic steps of the log utility stay this share of `a` inside its domain


class Mean(Utility):
    """`g(u) = u`: risk neutral. Every `t` is a maximiser, so it is never stepped."""

    name: ClassVar[str] = "mean"

    def g(self, u: ArrayLike) -> Array:
        return jnp.asarray(u)

    def dg(self, u: ArrayLike) -> Array:
        return jnp.ones_like(u)

    @property
    def identified(self) -> ArrayLike:
        return False

    def _t_above(self, x: Array, p: Array) -> Array:
        return expect(p, x)


class _PiecewiseLinear(Utility):
    """`g(u) = gamma1 u` above 0 and `gamma2 u` below, `gamma1 <= 1 <= gamma2`; `t*` is a quantile of `X`."""

    @property
    def slopes(self) -> tuple[ArrayLike, ArrayLike]:
        """`(gamma1, gamma2)`."""
        raise NotImplementedError

    @property
    def level(self) -> ArrayLike:
        """`(1 - gamma1) / (gamma2 - gamma1)`: the quantile's level."""
        raise NotImplementedError

    def g(self, u: ArrayLike) -> Array:
        above, below = self.slopes
        return jnp.where(jnp.asarray(u) < 0, 0.0 * above + below * u, above * u + 0.0 * below)

    def dg(self, u: ArrayLike) -> Array:
        above, below = self.slopes
        slope = jnp.where(jnp.asarray(u) < 0, 0.0 * above + below, above + 0.0 * below)
        return jnp.where(jnp.isnan(u), jnp.nan, slope)

    @property
    def identified(self) -> ArrayLike:
        above, below = self.slopes
        return jnp.logical_not(jnp.asarray(below) <= 1.0) & jnp.logical_not(jnp.asarray(above) >= 1.0)

    @property
    def g_sup(self) -> ArrayLike:
        return jnp.where(jnp.asarray(self.slopes[0]) > 0, jnp.inf, 0.0)

    def _t_star(self, x: Array, p: Array) -> Array:
        return lower_quantile(x, p, self.level)

    def _value(self, x: Array, p: Array) -> Array:
        t = jax.lax.stop_gradient(self._t_star(x, p))
        at = p * (x == t)
        # Adds zero; its gradient gives the samples on the kink their part, so that all of them add up to one.
        t += expect(at, x - jax.lax.stop_gradient(x)) / jnp.sum(at)
        return t + expect(p, self.g(x - t))


class CVaR(_PiecewiseLinear):
    """`g(u) = -max(-u, 0) / beta`: the mean of the worst share `beta`; `t*` is the lower `beta`-quantile."""

    name: ClassVar[str] = "cvar"
    beta: ArrayLike

    @property
    def slopes(self) -> tuple[ArrayLike, ArrayLike]:
        return 0.0, 1.0 / self.beta

    @property
    def level(self) -> ArrayLike:
        return self.beta


class TwoSlope(_PiecewiseLinear):
    """`g(u) = gamma1 max(u, 0) - gamma2 max(-u, 0)`: the coherent family."""

    name: ClassVar[str] = "two_slope"
    gamma1: ArrayLike
    gamma2: ArrayLike

    @property
    def slopes(self) -> tuple[ArrayLike, ArrayLike]:
        return self.gamma1, self.gamma2

    @property
    def level(self) -> ArrayLike:
        spread = self.gamma2 - jnp.asarray(self.gamma1)
        return jnp.where(spread == 0, 1.0, (1.0 - self.gamma1) / jnp.where(spread == 0, 1.0, spread))


class MeanCVaR(_PiecewiseLinear):
    """`kappa E[X] + (1 - kappa) CVaR_beta`: two slopes, and the `t*` of CVaR."""

    name: ClassVar[str] = "mean_cvar"
    kappa: ArrayLike
    beta: ArrayLike

    @property
    def slopes(self) -> tuple[ArrayLike, ArrayLike]:
        return self.kappa, self.kappa + (1.0 - self.kappa) / self.beta

    @property
    def level(self) -> ArrayLike:
        return self.beta


class Entropic(Utility):
    """`g(u) = (1 - exp(-gamma u)) / gamma`: `S = t* = -ln E[exp(-gamma X)] / gamma`."""

    name: ClassVar[str] = "entropic"
    gamma: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        z = -self.gamma * u
        far = z > MAX_EXPONENT
        beyond = jnp.where(far, z - MAX_EXPONENT, 0.0)  # not z - min(z, cap), whose derivative cancels badly
        return -(jnp.expm1(jnp.where(far, MAX_EXPONENT, z)) + beyond * jnp.exp(MAX_EXPONENT)) / self.gamma

    def dg(self, u: ArrayLike) -> Array:
        return jnp.exp(jnp.minimum(-self.gamma * u, MAX_EXPONENT))

    @property
    def g_sup(self) -> ArrayLike:
        return 1.0 / self.gamma

    def t_floor(self, b: ArrayLike) -> ArrayLike:
        return b  # here t* is S itself

    def _t_star(self, x: Array, p: Array) -> Array:
        low = jax.lax.stop_gradient(jnp.min(x))
        return low - log_mean_exp(-self.gamma * (x - low), p) / self.gamma

    def _value(self, x: Array, p: Array) -> Array:
        return self._t_star(x, p)


class Quadratic(Utility):
    """`g(u) = u - c u^2 / 2`: `S = E[X] - c Var[X] / 2`. Not monotone: more reward can lower it."""

    name: ClassVar[str] = "quadratic"
    c: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        return u - 0.5 * self.c * jnp.square(u)

    def dg(self, u: ArrayLike) -> Array:
        return 1.0 - self.c * u

    @property
    def g_sup(self) -> ArrayLike:
        return 0.5 / self.c

    def _t_above(self, x: Array, p: Array) -> Array:
        return expect(p, x)


class MonotoneQuadratic(Utility):
    """The quadratic utility made flat beyond `u = 1/c`: monotone mean-variance."""

    name: ClassVar[str] = "monotone_quadratic"
    c: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        u = jnp.where(u > 1.0 / self.c, 1.0 / self.c, u)
        return u - 0.5 * self.c * jnp.square(u)

    def dg(self, u: ArrayLike) -> Array:
        return jnp.maximum(1.0 - self.c * u, 0.0)

    @property
    def g_sup(self) -> ArrayLike:
        return 0.5 / self.c


class Polynomial(Utility):
    """`g(u) = (1 - max(1 - c u, 0)^k) / (k c)`, `k > 1`; `k -> inf` with `c = gamma/k` is entropic."""

    name: ClassVar[str] = "polynomial"
    c: ArrayLike
    k: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        flat, log_base, beyond = self._parts(u)
        tangent = self.k * beyond * jnp.exp((self.k - 1.0) * log_base)
        return jnp.where(flat, 1.0, -jnp.expm1(self.k * log_base) - tangent) / (self.k * self.c)

    def dg(self, u: ArrayLike) -> Array:
        flat, log_base, _ = self._parts(u)
        return jnp.where(flat, 0.0, jnp.exp((self.k - 1.0) * log_base))

    @property
    def g_sup(self) -> ArrayLike:
        return 1.0 / (self.k * self.c)

    def _parts(self, u: ArrayLike) -> tuple[Array, Array, Array]:
        """Whether `g` is flat at `u`; `ln(1 - c u)`, capped before its power overflows; what is beyond."""
        flat = self.c * u >= 1.0
        extra, cap = jnp.where(flat, 0.0, -self.c * u), MAX_EXPONENT / self.k
        far = jnp.log1p(extra) > cap
        return flat, jnp.where(far, cap, jnp.log1p(extra)), jnp.where(far, 1.0 + extra - jnp.exp(cap), 0.0)


class Log(Utility):
    """`g(u) = a ln(1 + u/a)` for `u > -a`, else minus infinity: for rewards bounded below only."""

    name: ClassVar[str] = "log"
    a: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        outside = jnp.asarray(u) <= -jnp.asarray(self.a)
        return jnp.where(outside, -jnp.inf, self.a * jnp.log1p(jnp.where(outside, 0.0, u / self.a)))

    def dg(self, u: ArrayLike) -> Array:
        outside = jnp.asarray(u) <= -jnp.asarray(self.a)
        return jnp.where(outside, jnp.inf, self.a / jnp.where(outside, 1.0, self.a + u))

    def pointwise(self, x: ArrayLike, t: ArrayLike) -> Array:
        return t + self.g(self._inside(x - t))

    def pointwise_dt(self, x: ArrayLike, t: ArrayLike) -> Array:
        return 1.0 - self.dg(self._inside(x - t))

    def t_interval(self, x_min: ArrayLike, x_max: ArrayLike) -> tuple[Array, Array]:
        if checks.is_concrete(x_min) and not np.all(np.isfinite(x_min)):
            raise UserError(f"log: accepts losses that are bounded (a finite x_min), got x_min={x_min}")
        low, high = super().t_interval(x_min, x_max)
        return low, jnp.minimum(high, low + self.a * (1.0 - _LOG_EDGE))

    def require_range(self, low: float, high: float, where: str = "risk") -> None:
        if checks.is_concrete(self.a) and np.any(np.asarray(self.a) < high - low):
            raise UserError(
                f"{where}.a={self.a} of log with a quantity from {low:g} to {high:g}: accepts numbers from "
                f"{high - low:g} on, or no policy could be judged"
            )

    def _t_star(self, x: Array, p: Array) -> Array:
        low, s, _ = self._margins(x, p)
        return low + s

    def _value(self, x: Array, p: Array) -> Array:
        low, s, y = jax.lax.stop_gradient(self._margins(x, p))
        u = (x - low - s) / self.a
        near = u > -0.5
        logs = jnp.where(near, jnp.log1p(jnp.where(near, u, 0.0)), jnp.log((x - low + y) / self.a))
        return low + s + self.a * expect(p, logs)

    def _inside(self, u: Array) -> Array:
        edge = -self.a * (1.0 - _LOG_EDGE)
        return jnp.where(u < edge, edge, u)

    def _margins(self, x: Array, p: Array) -> tuple[Array, Array, Array]:
        """The smallest sample, and the distance of `t*` to it, `s`, and to the domain's edge, `y = a - s`."""
        low = jnp.min(x)
        above = x - low
        # In w = ln(a/y), so that neither s nor y cancels; y >= a P(X = x_min) and s <= x_max - x_min.
        least_mass = jnp.max(jnp.where(above == 0, p, 0.0))
        most = -jnp.maximum(jnp.log(least_mass), jnp.log1p(-jnp.minimum(jnp.max(above) / self.a, 1.0)))
        split = lambda w: (-self.a * jnp.expm1(-w), self.a * jnp.exp(-w))  # noqa: E731

        def excess_slope(w):
            s, y = split(w)
            return expect(p, (s - above) / (above + y))

        return low, *split(bisect(excess_slope, jnp.zeros_like(most), most))


class SmoothedCVaR(Utility):
    """CVaR's hinge replaced by its Moreau envelope of width `m`, recentred so that `S(0) = 0`."""

    name: ClassVar[str] = "smoothed_cvar"
    beta: ArrayLike
    m: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        width, start = self.beta * self.m, -(1.0 - self.beta) * self.m
        middle = jnp.where(u < start, start, jnp.where(u > width, width, u))
        below = jnp.where(u < start, u - start, 0.0)
        return middle - jnp.square(middle) / (2.0 * width) + below / self.beta

    def dg(self, u: ArrayLike) -> Array:
        return jnp.clip(1.0 - u / (self.beta * self.m), 0.0, 1.0 / self.beta)

    @property
    def identified(self) -> ArrayLike:
        return jnp.logical_not(jnp.asarray(self.beta) >= 1.0)

    @property
    def g_sup(self) -> ArrayLike:
        return 0.5 * self.beta * self.m


class SoftCVaR(Utility):
    """CVaR's hinge replaced by a softplus: `g(u) = -(tau/beta) ln(1 - beta + beta exp(-u/tau))`.

    `tau -> 0` is CVaR, `beta -> 0` entropic with `gamma = 1/tau`, `beta = 1` the mean.
    """

    name: ClassVar[str] = "soft_cvar"
    beta: ArrayLike
    tau: ArrayLike

    def g(self, u: ArrayLike) -> Array:
        z = -u / self.tau
        small = jnp.abs(z) <= 1.0
        near = jnp.log1p(self.beta * jnp.expm1(jnp.where(small, z, 0.0)))
        far = jnp.logaddexp(jnp.log1p(-self.beta), jnp.log(self.beta) + z)
        return -(self.tau / self.beta) * jnp.where(small, near, far)

    def dg(self, u: ArrayLike) -> Array:
        odds = jnp.log(self.beta) - jnp.log1p(-self.beta)
        return jax.nn.sigmoid(odds - u / self.tau) / self.beta

    @property
    def identified(self) -> ArrayLike:
        return jnp.logical_not(jnp.asarray(self.beta) >= 1.0)

    @property
    def g_sup(self) -> ArrayLike:
        return -(self.tau / self.beta) * jnp.log1p(-self.beta)

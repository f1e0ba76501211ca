"""The utility `g` behind an optimized certainty equivalent, and what every such utility can do.

    S_g(X) = sup_t { t + E[g(X - t)] }                                   (Ben-Tal and Teboulle, 2007)

`g` is concave, `g(0) = 0`, and 1 is one of its slopes at 0: `S_g(X) <= E[X]` and `S_g(X + k) = S_g(X) + k`.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.risk import checks
from riskppo_jax.types import Array, ArrayLike


@dataclass_transform(frozen_default=True)
class Utility:
    """A utility with its parameters; the parameters are traced, so one program serves any of their values.

    A family of its own needs `g` and `dg`, and `t_star` where better than bisection is known. `t` is a scalar
    unless `t_shape` says otherwise (spectral risks keep one per level).
    """

    name: ClassVar[str]
    parameter_ndim: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        # Not by `register_dataclass`, as flax does: then the tree structures of classes with as many fields
        # are equal, and `jit` may run the program of one for another.
        names = [field.name for field in dataclasses.fields(dataclasses.dataclass(frozen=True)(cls))]
        key = jax.tree_util.GetAttrKey
        jax.tree_util.register_pytree_with_keys(
            cls,
            lambda utility: ([(key(name), getattr(utility, name)) for name in names], None),
            lambda _, values: cls(*values),
            lambda utility: ([getattr(utility, name) for name in names], None),
        )

    def g(self, u: ArrayLike) -> Array:
        """Utility of an outcome that exceeds `t` by `u`."""
        raise NotImplementedError(f"{self.name} is no expectation of one function of X - t")

    def dg(self, u: ArrayLike) -> Array:
        """Slope of `g`; at a kink the one to its right, so that `X < t` counts strictly."""
        raise NotImplementedError(f"{self.name} is no expectation of one function of X - t")

    @property
    def t_shape(self) -> tuple[int, ...]:
        """Shape of the auxiliary variable."""
        return ()

    @property
    def identified(self) -> ArrayLike:
        """Whether `t` matters. For the mean, and CVaR at beta = 1, every large `t` is as good: no step."""
        return True

    @property
    def g_sup(self) -> ArrayLike:
        """Least upper bound of `g`: `t + E[g(X - t)] >= b` needs `t >= b - g_sup`."""
        return jnp.inf

    def steepness(self, loss: ArrayLike) -> Array:
        """`-g(-loss) / loss`: what a price of one charges for each unit of a loss of this size; `1/beta` for CVaR."""
        return -self.g(-jnp.broadcast_to(jnp.asarray(loss, float), self.t_shape)) / loss

    def pointwise(self, x: ArrayLike, t: ArrayLike) -> Array:
        """`t + g(x - t)`, whose expectation is maximised by `t`; `x` itself where `t` is not identified."""
        return jnp.where(self.identified, t + self.g(x - t), jnp.where(self._sound, x, jnp.nan))

    def pointwise_dt(self, x: ArrayLike, t: ArrayLike) -> Array:
        """`1 - g'(x - t)`, the ascent direction of `t`; zero where `t` is not identified."""
        still = jnp.where(self._sound, jnp.zeros_like(x), jnp.nan)
        return jnp.where(self.identified, 1.0 - self.dg(x - t), still)

    def t_interval(self, x_min: ArrayLike, x_max: ArrayLike) -> tuple[Array, Array]:
        """An interval that holds a maximiser for every law on `[x_min, x_max]`."""
        if checks.is_concrete(x_min, x_max) and not np.all(np.asarray(x_min) <= np.asarray(x_max)):
            raise UserError(f"t_interval: accepts x_min <= x_max, got [{x_min}, {x_max}]")
        if checks.is_concrete(x_min, x_max) and not np.all(np.isfinite([x_min, x_max])):
            raise UserError(f"t_interval: accepts a bounded range, got [{x_min}, {x_max}]")
        width = jnp.asarray(x_max) - jnp.asarray(x_min)
        usable = (width >= 0) & (width < jnp.inf)
        return jnp.where(usable, x_min, jnp.nan), jnp.where(usable, x_max, jnp.nan)

    def require_range(self, low: float, high: float, where: str = "risk") -> None:
        """Raises `UserError` where this utility cannot judge a quantity between these bounds; most can judge any.

        `where` is what the complaint calls the utility: `risk`, or `objective`.
        """

    def t_start(self, t: ArrayLike, unit: ArrayLike) -> Array:
        """Where the auxiliary variable starts for a quantity of this size, given the start of a plain `t`."""
        del unit
        return jnp.full(self.t_shape, t, float)

    def t_floor(self, b: ArrayLike) -> ArrayLike:
        """The least `t` worth trying where `S_g(X) >= b` is asked for (`b = -c`); minus infinity if none."""
        return b - self.g_sup

    def t_star(self, x: ArrayLike, weights: ArrayLike | None = None) -> Array:
        """A maximiser of `t + E[g(X - t)]` on weighted samples."""
        x, p, valid = self._checked(x, weights)
        return _maximiser(self, x, p) * jnp.where(valid, 1.0, jnp.nan)

    def value(self, x: ArrayLike, weights: ArrayLike | None = None) -> Array:
        """`S_g` of weighted samples. Its gradient in `x` is `p g'(x - t*)`, by the envelope theorem.

        Where `t*` is a sample on a kink, as for CVaR, the samples at `t*` share what is left to a sum of one.
        """
        x, p, valid = self._checked(x, weights)
        return _supremum(self, x, p) * jnp.where(valid, 1.0, jnp.nan)  # a product: so is the gradient

    def config(self) -> dict:
        """`{"name": ..., parameter: number, ...}`, which `oce.from_config` turns back into this utility."""
        return {"name": self.name} | {
            field.name: np.asarray(getattr(self, field.name)).tolist() for field in dataclasses.fields(self)
        }

    @property
    def _sound(self) -> ArrayLike:
        """False where a traced parameter was refused, and so is NaN."""
        return ~jnp.any(jnp.asarray([jnp.any(jnp.isnan(value)) for value in jax.tree.leaves(self)], bool))

    def _checked(self, x: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array, Array]:
        for value in jax.tree.leaves(self):
            if jnp.ndim(value) != self.parameter_ndim:
                shape = jnp.shape(value)
                raise UserError(f"{self.name}: a parameter has shape {shape}; map over it with jax.vmap")
        x, p, valid = checks.samples(x, weights)
        return x, p, valid & self._sound

    # Both measure from the smallest sample: float32 keeps its digits under a large offset.
    def _t_star(self, x: Array, p: Array) -> Array:
        low = jnp.min(x)
        return low + self._t_above(x - low, p)

    def _value(self, x: Array, p: Array) -> Array:
        low = jax.lax.stop_gradient(jnp.min(x))
        t = jax.lax.stop_gradient(self._t_above(x - low, p))
        return low + (t + expect(p, self.g(x - low - t)))

    def _t_above(self, x: Array, p: Array) -> Array:
        """A maximiser where the smallest sample is 0: the root of `E[g'(X - t) - 1]`, which rises in `t`."""
        return bisect(lambda t: expect(p, self.dg(x - t) - 1.0), jnp.zeros_like(x, shape=()), jnp.max(x))


# Compiled, because a loop outside `jit` is compiled anew in each call.
_maximiser = jax.jit(lambda utility, x, p: utility._t_star(x, p))
_supremum = jax.jit(lambda utility, x, p: utility._value(x, p))


def expect(p: Array, y: Array) -> Array:
    """`E[y]`. Not `p @ y`: in float32 a dot product of a million terms is 1% off on a CPU."""
    return jnp.sum(p * y)


def log_mean_exp(z: Array, p: Array) -> Array:
    """`ln E[exp(z)]` for `z` whose largest entry is 0; by `log1p` near 0, where a logarithm loses digits."""
    less = expect(p, jnp.expm1(z))
    near = less > -0.5
    far = jnp.log(jnp.where(near, 1.0, expect(p, jnp.exp(z))))
    return jnp.where(near, jnp.log1p(jnp.where(near, less, 0.0)), far)


def bisect(f: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The least point of `[low, high]` where the non-decreasing `f` reaches zero; `high` if it never does."""
    steps = jnp.finfo(jnp.result_type(low, high)).nmant + 10

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        reached = f(middle) >= 0
        return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

    return jax.lax.fori_loop(0, steps, halve, (low, high))[1]


def lower_quantile(x: Array, p: Array, level: ArrayLike) -> Array:
    """The least sample `q` with `P(X <= q) >= level`; flat samples and their probabilities."""
    order = jnp.argsort(x)
    mass = jnp.cumsum(p[order])
    return x[order][jnp.argmax(mass >= level * mass[-1])]

"""Optimized certainty equivalents by name: `cvar(0.3).value(samples)`.

Each function checks its parameters and returns a `Utility`, a pytree with `g`, `dg`, `t_interval`, `t_star`,
`value` and `config`. Parameters may be arrays or traced; `jax.vmap(lambda b: cvar(b).value(x))(betas)` works.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.risk import checks, families, several
from riskppo_jax.risk.utility import Utility
from riskppo_jax.types import ArrayLike


def mean() -> Utility:
    """Risk neutral: `S = E[X]`."""
    return families.Mean()


def cvar(beta: ArrayLike) -> Utility:
    """Mean of the worst share `beta` in (0, 1] of outcomes; 1 is the mean."""
    return families.CVaR(_tail_mass("beta", beta))


def two_slope(gamma1: ArrayLike, gamma2: ArrayLike) -> Utility:
    """Slope `gamma1` in [0, 1] above `t`, `gamma2 >= 1` below."""
    return families.TwoSlope(
        checks.parameter("gamma1", gamma1, lambda g: (g >= 0) & (g <= 1), "[0, 1]"),
        checks.parameter("gamma2", gamma2, lambda g: (g >= 1) & (g < jnp.inf), "[1, inf)"),
    )


def mean_cvar(kappa: ArrayLike, beta: ArrayLike) -> Utility:
    """`kappa E[X] + (1 - kappa) CVaR_beta`, `kappa` in [0, 1]."""
    return families.MeanCVaR(
        checks.parameter("kappa", kappa, lambda k: (k >= 0) & (k <= 1), "[0, 1]"), _tail_mass("beta", beta)
    )


def entropic(gamma: ArrayLike) -> Utility:
    """`-ln E[exp(-gamma X)] / gamma`; `gamma -> 0` is the mean, `gamma -> inf` the worst case."""
    return families.Entropic(_positive("gamma", gamma))


def quadratic(c: ArrayLike) -> Utility:
    """`E[X] - c Var[X] / 2`. For comparison: it is not monotone, train with `monotone_quadratic`."""
    return families.Quadratic(_positive("c", c))


def monotone_quadratic(c: ArrayLike) -> Utility:
    """Mean-variance that never punishes more reward."""
    return families.MonotoneQuadratic(_positive("c", c))


def polynomial(c: ArrayLike, k: ArrayLike) -> Utility:
    """`g(u) = (1 - max(1 - c u, 0)^k) / (k c)` of order `k > 1`; 2 is `monotone_quadratic`."""
    return families.Polynomial(
        _positive("c", c), checks.parameter("k", k, lambda k: (k > 1) & (k < jnp.inf), "(1, inf)")
    )


def log(a: ArrayLike) -> Utility:
    """`g(u) = a ln(1 + u/a)`, for losses that are bounded."""
    return families.Log(_positive("a", a))


def smoothed_cvar(beta: ArrayLike, m: ArrayLike) -> Utility:
    """CVaR with a continuous derivative: Moreau envelope of width `m`, recentred."""
    return families.SmoothedCVaR(_tail_mass("beta", beta), _positive("m", m))


def soft_cvar(beta: ArrayLike, tau: ArrayLike) -> Utility:
    """CVaR with a softplus of temperature `tau`, recentred; between CVaR, entropic and the mean."""
    return families.SoftCVaR(_tail_mass("beta", beta), _positive("tau", tau))


def spectral(kappas: ArrayLike | Sequence[float], betas: ArrayLike | Sequence[float]) -> Utility:
    """`sum_k kappa_k CVaR_{beta_k}`, `kappas` non-negative with sum 1, a level of `t` for each."""
    kappas, betas = _vector("kappas", kappas), _vector("betas", betas)
    if jnp.ndim(kappas) == 0 or jnp.shape(kappas) != jnp.shape(betas) or jnp.size(betas) == 0:
        raise UserError(
            f"spectral: accepts as many kappas as betas, at least one; got shapes {jnp.shape(kappas)} "
            f"and {jnp.shape(betas)}"
        )
    summed = lambda k: (k >= 0) & (abs(k.sum(-1, keepdims=True) - 1) < 1e-5)  # noqa: E731
    return several.Spectral(
        checks.parameter("kappas", kappas, summed, "non-negative numbers with sum 1"),
        _tail_mass("betas", betas),
    )


def evar(alpha: ArrayLike) -> Utility:
    """Entropic value at risk at level `alpha` in (0, 1]: two auxiliary variables `(t, s)`."""
    return several.EVaR(_tail_mass("alpha", alpha))


MEASURES: dict[str, Callable[..., Utility]] = {
    make.__name__: make
    for make in (
        mean, cvar, two_slope, mean_cvar, entropic, quadratic, monotone_quadratic, polynomial, log,
        smoothed_cvar, soft_cvar, spectral, evar,
    )
}  # fmt: skip


def from_config(config: Mapping) -> Utility:
    """The utility that `utility.config()` describes, for example `{"name": "cvar", "beta": 0.3}`."""
    if not isinstance(config, Mapping):
        raise UserError(f"risk={config!r}: accepts a mapping such as {{'name': 'cvar', 'beta': 0.3}}")
    settings = dict(config)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in MEASURES:
        near = difflib.get_close_matches(str(name), MEASURES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"risk={name!r}: {hint}accepts {', '.join(MEASURES)}")
    wanted = list(inspect.signature(MEASURES[name]).parameters)
    unknown, missing = settings.keys() - set(wanted), set(wanted) - settings.keys()
    for problem, names in (("unknown", unknown), ("missing", missing)):
        if names:
            accepted = ", ".join(f"risk.{w}" for w in wanted) or "no parameters"
            raise UserError(f"risk={name}: {problem} risk.{sorted(names)[0]}; {name} takes {accepted}")
    measure = MEASURES[name](**settings)
    for key, value in settings.items():
        if isinstance(value, bool) or np.ndim(value) != measure.parameter_ndim:
            wanted = "a list of numbers" if measure.parameter_ndim else "a number"
            raise UserError(f"risk.{key}={value!r}: accepts {wanted}")
    return measure


def _tail_mass(name: str, value: ArrayLike) -> ArrayLike:
    return checks.parameter(name, value, lambda b: (b > 0) & (b <= 1), "(0, 1]")


def _positive(name: str, value: ArrayLike) -> ArrayLike:
    return checks.parameter(name, value, lambda v: (v > 0) & (v < jnp.inf), "(0, inf)")


def _vector(name: str, values: ArrayLike | Sequence[float]) -> ArrayLike:
    if hasattr(values, "shape"):
        return values
    try:
        values = list(values)
        return np.asarray(values, float) if checks.is_concrete(*values) else jnp.stack(values)
    except (TypeError, ValueError):
        raise UserError(f"{name}: expected a list of numbers, got {values!r}") from None

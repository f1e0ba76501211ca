import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax import iterates


def feed(values, objectives, violations, key=0, **settings):
    seen = iterates.init(jnp.asarray(0.0))
    keys = jax.random.split(jax.random.key(key), len(values))
    for item, objective, violation, k in zip(values, objectives, violations, keys, strict=True):
        seen = iterates.update(seen, jnp.asarray(item), objective, violation, k, **settings)
    return seen


def test_last_and_best_feasible():
    seen = feed([1.0, 2.0, 3.0, 4.0], [9.0, 1.0, 2.0, 1.5], [0.5, 0.0, 0.0, 0.0])
    assert seen.last == 4.0
    assert seen.best == 3.0  # the first is infeasible, whatever it earns


def test_nothing_feasible_returns_the_least_violation():
    assert feed([1.0, 2.0, 3.0], [0.0, 0.0, 9.0], [0.5, 0.1, 0.3]).best == 2.0


def test_tolerance_counts_as_feasible():
    assert feed([1.0, 2.0], [0.0, 5.0], [0.0, 0.01], tolerance=0.02).best == 2.0


def test_average_weighs_late_iterates_more():
    values = np.arange(1.0, 11.0)
    assert feed(values, values, values, power=0.0).average == pytest.approx(values.mean())
    weighted = feed(values, values, values, power=3.0).average
    assert weighted > np.average(values, weights=values**2)


def test_uniform_draw_is_uniform():
    draw = jax.jit(jax.vmap(lambda key: _drawn(key, 5)))
    counts = np.bincount(np.asarray(draw(jax.random.split(jax.random.key(0), 5000))).astype(int), minlength=5)
    np.testing.assert_allclose(counts / 5000, 0.2, atol=0.02)


def _drawn(key, count):
    def step(seen, inputs):
        k, key = inputs
        return iterates.update(seen, k, 0.0, 0.0, key), None

    seen = iterates.init(jnp.asarray(0.0))
    return jax.lax.scan(step, seen, (jnp.arange(count, dtype=float), jax.random.split(key, count)))[0].uniform

"""Rates of several programs against each other, on a machine that has other things to do.

The programs take turns, so that whatever slows the machine slows all of them; their ratio is what counts.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Rate:
    """Steps per second, one number for each repeat."""

    samples: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def race(programs: Mapping[str, Callable[[], int]], repeats: int) -> dict[str, Rate]:
    """Runs every program `repeats` times by turns, after one round to warm up.

    Args:
      programs: by name; each does its work to the end and returns how many steps that was.
      repeats: measured rounds; every other one goes backwards.
    """
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        program()
    for i in range(repeats):
        for name in list(programs)[:: -1 if i % 2 else 1]:
            start = time.perf_counter()
            steps = programs[name]()
            samples[name].append(steps / (time.perf_counter() - start))
    return {name: Rate(tuple(values)) for name, values in samples.items()}


def ratios(ours: Rate, theirs: Rate) -> tuple[float, float]:
    """Best over best, and the median of the ratios of each round."""
    rounds = [a / b for a, b in zip(ours.samples, theirs.samples, strict=True)]
    return ours.best / theirs.best, statistics.median(rounds)


def compiled(function: Callable, *args: Any) -> tuple[Callable, float]:
    """`function` compiled for these arguments, and the seconds that took with no cache to help."""
    with no_cache():
        start = time.perf_counter()
        program = jax.jit(function).lower(*args).compile()
        return program, time.perf_counter() - start


def bytes_per_world(state: Any, worlds: int) -> int:
    """Size of a batched state, divided by the number of worlds."""
    leaves: Sequence[Any] = jax.tree.leaves(jax.eval_shape(_plain, state))
    return round(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / worlds)


def _plain(tree: Any) -> Any:
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


@contextmanager
def no_cache():
    """Compiles anew what is compiled within, whatever was kept from before."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # the decision is remembered otherwise
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()

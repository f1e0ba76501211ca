"""A host function inside a compiled program: `jax.pure_callback` without its detour.

`jax.pure_callback` hands the function JAX arrays, made by a `device_put` inside the callback. That costs 0.1
ms a call, and for operands beyond 100 kB the copy is queued on the very threads the running program occupies,
which is how callbacks come to hang (jax-ml/jax#24255). Here the function sees NumPy views of XLA's own
buffers and nothing of JAX runs while it does: 0.01 ms a call, and nothing to wait for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from riskppo_jax.types import Array

try:  # not public; where a release moves them, the public detour still works
    from jax._src.callback import _callback_op_sharding, emit_python_callback
except ImportError:
    emit_python_callback = None

HostFunction = Callable[..., tuple[np.ndarray, ...]]


def host_call(function: HostFunction, results: Sequence[tuple[int, np.dtype]], *args: Array) -> list[Array]:
    """Calls `function` once for all worlds, whatever axes `vmap` put around it.

    Args:
      function: takes one read-only array `[world, size]` for each argument and returns one `[world, size]`
        for each result. It must be pure, and hashable by what it computes.
      results: size and dtype of each result.
      *args: one vector each, `[size]`.
    """
    results = tuple((int(size), np.dtype(dtype)) for size, dtype in results)
    if any(dtype == np.float64 for _, dtype in results):
        return _in_words(function, results, *args)
    if emit_python_callback is None:
        shapes = [jax.ShapeDtypeStruct((size,), dtype) for size, dtype in results]
        return list(jax.pure_callback(partial(_flat, function), shapes, *args, vmap_method="broadcast_all"))
    return _host_call.bind(*args, function=function, results=results)


@dataclass(frozen=True)
class _Words:
    """`function` with results of float64 as raw 32-bit words."""

    function: HostFunction

    def __call__(self, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(out.view(np.uint32) if out.dtype == np.float64 else out for out in self.function(*args))


def _in_words(function: HostFunction, results, *args: Array) -> list[Array]:
    """Callbacks run on XLA's threads, where JAX does not know of a 64-bit context and would round what they return."""
    doubles = [dtype == np.float64 for _, dtype in results]
    words = [(2 * size, np.uint32) if double else (size, dtype)
             for (size, dtype), double in zip(results, doubles, strict=True)]  # fmt: skip
    out = host_call(_Words(function), words, *args)
    return [jax.lax.bitcast_convert_type(x.reshape(-1, 2), jnp.float64) if double else x
            for x, double in zip(out, doubles, strict=True)]  # fmt: skip


_host_call = Primitive("host_call")
_host_call.multiple_results = True


@_host_call.def_impl
def _impl(*args, function, results):
    del results
    return [jnp.asarray(out) for out in _flat(function, *map(np.asarray, args))]


@_host_call.def_abstract_eval
def _abstract(*avals, function, results):
    del function
    return [avals[0].update(shape=(*avals[0].shape[:-1], size), dtype=dtype, weak_type=False)
            for size, dtype in results]  # fmt: skip


def _batch(args, axes, **params):
    """Moves the mapped axis to the front of every operand; the host flattens all of them at once."""
    size = next(arg.shape[axis] for arg, axis in zip(args, axes, strict=True) if axis is not None)
    args = [
        jnp.broadcast_to(arg, (size, *arg.shape)) if axis is None else jnp.moveaxis(arg, axis, 0)
        for arg, axis in zip(args, axes, strict=True)
    ]
    out = _host_call.bind(*args, **params)
    return out, [0] * len(out)


def _lower(ctx, *args, function, results):
    del results
    out, _, _ = emit_python_callback(
        ctx,
        partial(_flat, function),
        None,
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=False,
        returns_token=False,
        sharding=_callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out),
    )
    return out


def _flat(function: HostFunction, *args) -> tuple[np.ndarray, ...]:
    args = [np.asarray(arg) for arg in args]
    lead = args[0].shape[:-1]
    out = function(*(arg.reshape(-1, arg.shape[-1]) for arg in args))
    return tuple(part.reshape(*lead, part.shape[-1]) for part in out)


batching.primitive_batchers[_host_call] = _batch
mlir.register_lowering(_host_call, _lower, cacheable=False)

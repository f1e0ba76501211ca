"""Several devices: the lane axis of a sweep, or the environment axis of a single run, spread over a mesh.

Lanes never speak to each other: `jax.shard_map` gives every device its own, and each computes what it would alone.
Environments of one run are spread by shardings: every device steps its own worlds and takes its share of each
minibatch, and XLA averages the gradients; weights, prices and statistics are the same everywhere.
On two cores of one machine that average would cost more than it saves. There each core steps its half of the worlds,
both see the whole batch, and then one improves the policy, the other the critic: they meet twice an iteration.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from riskppo_jax.cores import cores
from riskppo_jax.envs.base import Env, State
from riskppo_jax.types import Array, Key, PyTree

LANES, ENVS, PAIR = "lanes", "envs", "pair"  # names of the mesh's one axis; the last is that of two cores


def cores_as_devices(count: int = 0) -> None:
    """Makes the cores of this machine devices of JAX's CPU backend: all of them, or so many that share them.

    A lane, or half of a single run, keeps hardly more than one core busy. To be called before anything is computed,
    where it is too late nothing happens; a wish in `XLA_FLAGS` stands.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with suppress(RuntimeError):  # JAX is at work already
        jax.config.update("jax_num_cpu_devices", min(count or cores(), cores()))


def one_thread_each() -> None:
    """Lets a device of JAX's CPU backend work on one thread, unless `PJRT_NPROC` says otherwise.

    Beside a host engine every operation of the program is small: handed from thread to thread it takes longer than to
    compute, and those threads are in the way of the physics'. To be called before anything is computed.
    """
    os.environ.setdefault("PJRT_NPROC", "1")


def on_own_cores() -> bool:
    """Whether the devices are the cores of `cores_as_devices`, and not ones that somebody asked for."""
    return jax.default_backend() == "cpu" and jax.config.jax_num_cpu_devices > 0 and jax.process_count() == 1


def fewest(lanes: int, devices: int) -> int:
    """As many devices as finish so many lanes in the fewest rounds, and no more."""
    return math.ceil(lanes / math.ceil(lanes / devices))


def make_mesh(axis: str, devices: int = 0) -> Mesh:
    """All devices of all processes (or the first few) in a row."""
    return Mesh(np.array(jax.devices()[: devices or None]), (axis,), axis_types=(AxisType.Auto,))


def lanes_apart(function: Callable, mesh: Mesh) -> Callable:
    """`function` of stacked lanes, each device with its own part of them."""
    spec = PartitionSpec(LANES)
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def with_ghosts(tree: PyTree, count: int) -> PyTree:
    """Stacked lanes with the last one repeated `count` times: every device has equally many."""

    def padded(x: Array) -> Array:
        return jnp.concatenate([x, jnp.repeat(x[-1:], count, axis=0)])

    return jax.tree.map(lambda x: padded(jnp.asarray(x)), tree) if count else tree


class SpreadEnv:
    """An environment whose vectorised `reset` and `step` run on every device for the worlds it holds.

    Other code sees one world and `vmap`, as ever; the batching rule is where the devices come in.
    """

    def __init__(self, env: Env, mesh: Mesh):
        self._env, self._mesh = env, mesh
        self.reset: Callable[[Key], State] = _spread(lambda key: env.reset(key), mesh)
        self.step: Callable[[State, Array], State] = _spread(lambda state, action: env.step(state, action), mesh)

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self._env, name)


def _spread(function: Callable, mesh: Mesh) -> Callable:
    """`function` of one world; under `vmap` over a multiple of the devices, each does its share."""
    spec = PartitionSpec(mesh.axis_names[0])

    def call(*args: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(args)
        out_tree = jax.tree.structure(jax.eval_shape(function, *args))

        def one(*leaves: Array) -> tuple[Array, ...]:
            return tuple(jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves))))

        guarded = jax.custom_batching.custom_vmap(one)

        @guarded.def_vmap
        def _(size, batched, *operands):
            spread = [
                x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
                for x, is_batched in zip(operands, batched, strict=True)
            ]
            out = jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(*spread)
            return out, (True,) * len(out)

        return jax.tree.unflatten(out_tree, guarded(*leaves))

    return call


def over_devices(x: Array, axis: int) -> Array:
    """`x` with this axis spread over the devices of the mesh in force, if it is one of environments."""
    mesh = jax.sharding.get_abstract_mesh()
    if ENVS not in mesh.axis_names or x.shape[axis] % mesh.shape[ENVS]:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * axis, ENVS))


def everywhere(tree: PyTree) -> PyTree:
    """What two cores have found, known to both; the same as it was where the mesh in force is no pair."""
    if PAIR not in jax.sharding.get_abstract_mesh().axis_names:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree)


def side_by_side(first: Callable, second: Callable, *args: PyTree) -> tuple[PyTree, PyTree]:
    """`first(*args)` and `second(*args)`, each on a core of its own if the mesh in force is a pair.

    Where it is not, one follows the other, and the second is told what the first has found: `second(*args, found)`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if PAIR not in mesh.axis_names:
        found = first(*args)
        return found, second(*args, found)

    def own(*args: PyTree) -> tuple[PyTree, PyTree]:
        nothing = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: (first(*args), second(*args)))
        )
        pair = jax.lax.cond(
            jax.lax.axis_index(PAIR) == 0,
            lambda: (first(*args), nothing[1]),
            lambda: (nothing[0], second(*args)),
        )
        return jax.lax.psum(pair, PAIR)  # of a number and zero

    spec = PartitionSpec()
    return jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(*args)


class Spread(NamedTuple):
    """Where the state of a run lives: a mesh, and for every leaf which axis of it is spread."""

    mesh: Mesh
    state: PyTree  # of `NamedSharding`

    @property
    def everywhere(self) -> NamedSharding:
        """Each device has the whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def inputs(self) -> NamedSharding:
        """Keys and numbers: a sweep's go where their lanes are."""
        lanes = self.mesh.axis_names == (LANES,)
        return NamedSharding(self.mesh, PartitionSpec(LANES) if lanes else PartitionSpec())

    def put(self, state: PyTree) -> PyTree:
        """A whole state, known to every process, to where it belongs."""
        return jax.tree.map(put, state, self.state)

    def fetch(self, tree: PyTree, shardings: PyTree | None = None) -> PyTree:
        """The whole of a spread tree on the host, where all processes must ask for it together.

        What is spread travels as one array of bytes: several messages at a time may cross each other.
        """
        leaves, shape = jax.tree.flatten(tree)
        where = jax.tree.leaves(self.state if shardings is None else shardings)
        apart = [i for i, sharding in enumerate(where) if sharding.spec]
        held = iter(_unpack(self._gathered([leaves[i] for i in apart]), [leaves[i] for i in apart]) if apart else ())
        return jax.tree.unflatten(shape, [next(held) if where[i].spec else _local(x) for i, x in enumerate(leaves)])

    def _gathered(self, leaves: list[Array]) -> np.ndarray:
        own = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names[0]))
        packed = jax.block_until_ready(jax.jit(_pack, out_shardings=own)(leaves))  # each device its own
        return np.asarray(jax.jit(lambda x: x, out_shardings=self.everywhere)(packed).addressable_data(0))


def spread_state(state: PyTree, mesh: Mesh) -> Spread:
    """Every leaf of a sweep's state is spread; of a single run's those with an entry for each world.

    On a pair only the worlds themselves are: what is known of them both cores compute, in the order of one.
    """
    of_worlds = ("envs.", "mean_worlds.envs.")
    if PAIR not in mesh.axis_names:
        of_worlds += ("episodes.", "mean_worlds.episodes.", "scale.returns")

    def sharding(path: tuple, _: Any) -> NamedSharding:
        at = jax.tree_util.keystr(path, simple=True, separator=".")
        apart = mesh.axis_names == (LANES,) or at.startswith(of_worlds)
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]) if apart else PartitionSpec())

    return Spread(mesh, jax.tree_util.tree_map_with_path(sharding, state))


def put(x: Array, sharding: NamedSharding) -> Array:
    """One array, known to every process, to where it belongs."""
    if _is_key(x):
        return jax.random.wrap_key_data(put(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    held = np.asarray(x)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])


def _pack(leaves: list[Array]) -> Array:
    """Arrays that lead with the spread axis as bytes, `[lane or env, bytes]`."""

    def raw(x: Array) -> Array:
        x = jax.random.key_data(x) if _is_key(x) else x
        x = x.astype(jnp.uint8) if x.dtype == bool else jax.lax.bitcast_convert_type(x, jnp.uint8)
        return x.reshape(len(x), -1)

    return jnp.concatenate([raw(x) for x in leaves], axis=1)


def _unpack(packed: np.ndarray, leaves: list[Array]) -> Iterator[Array]:
    at = 0
    for leaf in leaves:
        plain = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        size = plain.dtype.itemsize * math.prod(plain.shape[1:])
        part = np.ascontiguousarray(packed[:, at : at + size]).view(plain.dtype).reshape(plain.shape)
        at += size
        held = jnp.array(part)
        yield jax.random.wrap_key_data(held, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else held


def _local(x: Array) -> Array:
    if _is_key(x):
        return jax.random.wrap_key_data(_local(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return jnp.array(np.asarray(x.addressable_data(0)))


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)

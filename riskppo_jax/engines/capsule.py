"""Capsule contacts as MuJoCo's C engine computes them.

Two places where MJX's own functions differ from the C engine by more than rounding. A capsule on a plane: the C
engine lets the first tangent follow the capsule's axis however steep it stands; MJX switches to a fixed tangent,
which turns the friction pyramid under the legs of Ant and Humanoid. Two capsules: MJX adds a millionth to a
denominator and misses the closest points by as much. While a program is traced inside `exact_capsules`, MJX
uses the functions here. The table they go into is private to MJX; `mujoco-mjx` is pinned for that reason.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
from mujoco.mjx._src import collision_driver
from mujoco.mjx._src.types import GeomType

_door, _tracing, _theirs = threading.Lock(), 0, {}  # how many are tracing, and MJX's own functions meanwhile
_SMALL = 1e-6  # sine of an angle below which two directions count as parallel


@contextmanager
def exact_capsules() -> Iterator[None]:
    """Puts our capsule functions in place of MJX's while tracing, in however many threads at once."""
    global _tracing
    table = collision_driver._COLLISION_FUNC
    with _door:
        if not _tracing:
            _theirs.update((pair, table[pair]) for pair in _OURS)
            table.update(_OURS)
        _tracing += 1
    try:
        yield
    finally:
        with _door:
            _tracing -= 1
            if not _tracing:
                table.update(_theirs)


def plane_capsule(model, data, key, geoms):
    """Distance, position and frame of the two contacts of each pair, `[2 * pair, ...]`."""
    del key
    plane, capsule = geoms.T
    contacts = jax.vmap(_on_plane)(
        data.geom_xpos[plane], data.geom_xmat[plane],
        data.geom_xpos[capsule], data.geom_xmat[capsule], model.geom_size[capsule],
    )  # fmt: skip
    return jax.tree.map(jnp.concatenate, contacts)


def capsule_capsule(model, data, key, geoms):
    """Distance, position and frame of the one contact of each pair, `[pair, ...]`."""
    del key
    first, second = geoms.T
    return jax.vmap(_between)(
        data.geom_xpos[first], data.geom_xmat[first, :, 2], model.geom_size[first],
        data.geom_xpos[second], data.geom_xmat[second, :, 2], model.geom_size[second],
    )  # fmt: skip


plane_capsule.ncon = 2
capsule_capsule.ncon = 1
_OURS = {
    (GeomType.PLANE, GeomType.CAPSULE): plane_capsule,
    (GeomType.CAPSULE, GeomType.CAPSULE): capsule_capsule,
}


def _on_plane(plane_pos, plane_mat, pos, mat, size):
    normal, axis = plane_mat[:, 2], mat[:, 2]
    along = axis - normal * jnp.dot(normal, axis)
    length = jnp.linalg.norm(along)
    tangent = jnp.where(length > _SMALL, along / jnp.maximum(length, _SMALL), plane_mat[:, 0])
    frame = jnp.stack([normal, tangent, jnp.cross(normal, tangent)])
    ends = pos + jnp.array([1.0, -1.0])[:, None] * axis * size[1]
    dist = (ends - plane_pos) @ normal - size[0]
    where = ends - normal * (size[0] + 0.5 * dist)[:, None]
    return dist, where, jnp.stack([frame, frame])


def _between(pos1, axis1, size1, pos2, axis2, size2):
    apart = pos2 - pos1
    cosine, along1, along2 = axis1 @ axis2, axis1 @ apart, axis2 @ apart
    sine2 = 1.0 - cosine**2
    # closest points of the lines, then of the segments: an end that is cut off moves the other point too
    s = jnp.where(sine2 > _SMALL**2, (along1 - cosine * along2) / jnp.maximum(sine2, _SMALL**2), 0.0)
    s = jnp.clip(s, -size1[1], size1[1])
    t = jnp.clip(cosine * s - along2, -size2[1], size2[1])
    s = jnp.clip(cosine * t + along1, -size1[1], size1[1])
    gap = apart + t * axis2 - s * axis1
    distance = jnp.linalg.norm(gap)
    normal = jnp.where(distance > 0, gap / jnp.where(distance > 0, distance, 1.0), jnp.array([1.0, 0.0, 0.0]))
    dist = distance - size1[0] - size2[0]
    where = pos1 + s * axis1 + normal * (size1[0] + 0.5 * dist)
    # MuJoCo's choice of tangents: the second axis, or the third where the normal is close to the second
    aside = jnp.where(jnp.abs(normal[1]) < 0.5, jnp.array([0.0, 1.0, 0.0]), jnp.array([0.0, 0.0, 1.0]))
    tangent = aside - normal * (normal @ aside)
    tangent = tangent / jnp.linalg.norm(tangent)
    return dist, where, jnp.stack([normal, tangent, jnp.cross(normal, tangent)])

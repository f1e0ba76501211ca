"""Contact frames of capsules on a plane, as MuJoCo's C engine sets them up.

The C engine lets the first tangent follow the capsule's axis, however steep the capsule. MJX switches to a fixed
tangent for steep ones, which turns the friction pyramid under the legs of Ant and Humanoid. While a program is
traced inside `aligned_capsules`, MJX uses the function here instead. The table it sits in is private to MJX;
`mujoco-mjx` is pinned for that reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
from mujoco.mjx._src import collision_driver
from mujoco.mjx._src.types import GeomType

_PAIR = (GeomType.PLANE, GeomType.CAPSULE)
_STEEP = 1e-6  # sine of the angle to the normal below which the axis has no direction on the plane


@contextmanager
def aligned_capsules() -> Iterator[None]:
    """Replaces MJX's plane-capsule function while tracing."""
    table = collision_driver._COLLISION_FUNC
    before = table[_PAIR]
    table[_PAIR] = plane_capsule
    try:
        yield
    finally:
        table[_PAIR] = before


def plane_capsule(model, data, key, geoms):
    """Distance, position and frame of the two contacts of each pair, `[2 * pair, ...]`."""
    del key
    plane, capsule = geoms.T
    contacts = jax.vmap(_two_contacts)(
        data.geom_xpos[plane], data.geom_xmat[plane],
        data.geom_xpos[capsule], data.geom_xmat[capsule], model.geom_size[capsule],
    )  # fmt: skip
    return jax.tree.map(jnp.concatenate, contacts)


plane_capsule.ncon = 2


def _two_contacts(plane_pos, plane_mat, pos, mat, size):
    normal, axis = plane_mat[:, 2], mat[:, 2]
    along = axis - normal * jnp.dot(normal, axis)
    length = jnp.linalg.norm(along)
    tangent = jnp.where(length > _STEEP, along / jnp.maximum(length, _STEEP), plane_mat[:, 0])
    frame = jnp.stack([normal, tangent, jnp.cross(normal, tangent)])
    ends = pos + jnp.array([1.0, -1.0])[:, None] * axis * size[1]
    dist = (ends - plane_pos) @ normal - size[0]
    where = ends - normal * (size[0] + 0.5 * dist)[:, None]
    return dist, where, jnp.stack([frame, frame])

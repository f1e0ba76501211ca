"""Layouts drawn beforehand, in NumPy, and kept on disk: for tasks whose layouts take thousands of draws.

The rule is that of `layout`. Here many layouts are drawn side by side and those that are done make room, which a
compiled loop cannot do.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

from riskppo_jax.engines.cache import cache_folder
from riskppo_jax.errors import UserError

SIZE = 1024  # layouts; each stands for eight
BLOCK = 10  # positions drawn at a time
TRIES = 100  # draws for one object before the layout is given up
_LIMIT = 50_000  # blocks after which one layout is given up
_SEED = 20_240
_VERSION = 1


def load(plan) -> np.ndarray:
    """`[SIZE, object + 1, 2]`: layouts of a plan, each with its goal at the end."""
    digest = _digest(plan)
    if digest not in _loaded:
        _loaded[digest] = _load(plan, digest)
    return _loaded[digest]


_loaded: dict[str, np.ndarray] = {}


def _load(plan, digest: str) -> np.ndarray:
    folder = cache_folder()
    path = folder / f"layouts-{digest}.npy" if folder else None
    if path is not None and path.is_file():
        try:
            found = np.load(path, allow_pickle=False)
            if found.shape == (SIZE, len(plan.names) + 1, 2) and np.isfinite(found).all():
                return found
        except (OSError, ValueError, EOFError):
            pass  # half written or not ours: draw again
    rows, _ = sample(plan, SIZE + SIZE // 16, _SEED)
    rows = rows[np.isfinite(rows).all(axis=(1, 2))][:SIZE]
    if len(rows) < SIZE:
        raise UserError(
            f"layout: {len(rows)} of {SIZE} layouts found with {len(plan.names) - 1} objects; accepts fewer objects"
        )
    if path is not None:
        _save(path, rows)
    return rows


def sample(plan, count: int, seed: int, limit: int = _LIMIT) -> tuple[np.ndarray, np.ndarray]:
    """Layouts `[count, object + 1, 2]` with their goals at the end, and the blocks of draws each took.

    A layout that `limit` blocks were not enough for is NaN.
    """
    rng = np.random.default_rng(seed)
    size = len(plan.names)
    last = size + (plan.goal >= 0)
    order = np.arange(size)
    lane, i, tries = np.arange(count), np.zeros(count, int), np.zeros(count, int)
    xy = np.zeros((count, size + 1, 2), np.float32)
    result, blocks = np.full((count, size + 1, 2), np.nan, np.float32), np.zeros(count, int)
    for block in range(1, limit + 1):
        at = np.where(i < size, i, plan.goal)
        drawn = plan.low[at, None] + plan.span[at, None] * rng.random((len(lane), BLOCK, 2), np.float32)
        gap = (drawn[:, :, None, 0] - xy[:, None, :size, 0]) ** 2 + (drawn[:, :, None, 1] - xy[:, None, :size, 1]) ** 2
        near = gap < (plan.keepout + plan.keepout[at, None])[:, None] ** 2
        present = (order < i[:, None]) & (order != at[:, None])
        good = ~(near & present[:, None]).any(axis=2)
        hit = good.any(axis=1)
        rows = np.flatnonzero(hit)
        xy[rows, i[rows]] = drawn[rows, good[rows].argmax(axis=1)]
        tries = np.where(hit, 0, tries + BLOCK)
        again = (tries >= TRIES) & (i < size)
        i = np.where(hit, i + 1, np.where(again, 0, i))
        tries[again] = 0
        done = i >= last
        if done.any():
            result[lane[done]], blocks[lane[done]] = xy[done], block
            stay = ~done
            lane, i, tries, xy = lane[stay], i[stay], tries[stay], xy[stay]
            if not len(lane):
                break
    blocks[lane] = limit
    if plan.goal < 0:
        result[:, size] = result[:, plan.names.index("goal") if "goal" in plan.names else 0]
    return result, blocks


def _digest(plan) -> str:
    """What a bank depends on, in a word."""
    found = hashlib.sha256(repr((_VERSION, _SEED, SIZE, _LIMIT, plan.names, plan.goal)).encode())
    for array in (plan.low, plan.span, plan.keepout):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def _save(path: Path, rows: np.ndarray) -> None:
    """Written beside and moved into place, so that nobody reads half a file."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            np.save(file, rows)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)

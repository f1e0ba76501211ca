"""Saving and restoring everything a run carries: arrays by Orbax, and a page that says what they are.

A checkpoint is a folder: `arrays/`, and `meta.json` with the name, shape and type of every leaf, a hash of every
file, and whatever the caller wants to remember. It is written under another name and renamed when all of it is
on disk, so a folder that exists under its own name is whole. No pickle is written or read.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.types import PyTree

FORMAT = 1  # of the folder; a reader refuses a larger number
_MARGIN = 2**18  # bytes that a checkpoint takes beside its arrays


def save(path: str | Path, state: PyTree, notes: Mapping[str, Any] | None = None) -> Path:
    """Writes a pytree of arrays, typed keys among them, to the folder `path`, whole or not at all.

    Args:
      path: the folder; one that exists is replaced.
      state: what to save; plain numbers come back as arrays.
      notes: plain values to keep beside it.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        leaves, arrays, keys = [], {}, {}
        for i, (name, leaf) in enumerate(_named_leaves(state)):
            leaves.append(_describe(name, leaf))
            if _is_key(leaf):
                keys[f"leaf{i:04d}"] = str(jax.random.key_impl(leaf))
                leaf = jax.random.key_data(leaf)
            if leaf.size:  # Orbax stores no empty arrays; the description is all there is to them
                arrays[f"leaf{i:04d}"] = np.asarray(leaf)
        _require_room(draft, sum(array.nbytes for array in arrays.values()))
        _write_arrays(draft / "arrays", arrays)
        files = {str(file.relative_to(draft)): _digest(file) for file in _files(draft)}
        meta = {"format": FORMAT, "version": version("riskppo-jax"), "leaves": leaves, "keys": keys}
        meta |= {"files": files, "notes": dict(notes or {})}
        (draft / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        for place in (*_files(draft), *(p for p in draft.rglob("*") if p.is_dir()), draft):
            _sync(place)
        aside = path.parent / f".{path.name}.old"
        if path.exists():
            shutil.rmtree(aside, ignore_errors=True)  # of a process that ended before it had cleared it away
            path.rename(aside)
        draft.rename(path)
        _sync(path.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return path


def restore(path: str | Path, like: PyTree, without: tuple[str, ...] = ()) -> PyTree:
    """The state saved at `path`, leaf by leaf by its name.

    Args:
      path: a folder written by `save`.
      like: arrays or `jax.eval_shape` results of the same structure, for instance of `trainer.init`.
      without: beginnings of names that are not read; these leaves come out as zeros.
    """
    path = Path(path).absolute()
    meta = read_meta(path)
    saved, keys = meta["leaves"], meta["keys"]
    other = _misfit(*([about for about in leaves if not about["name"].startswith(without)]
                      for leaves in (saved, _described(like))))  # fmt: skip
    if other:
        raise UserError(f"{path} does not fit these settings: {other}; resume accepts those it was saved with")
    arrays = _read_arrays(path / "arrays")
    leaves = []
    files = {about["name"]: f"leaf{i:04d}" for i, about in enumerate(saved)}
    for called, leaf in _named_leaves(like):
        name = "" if called.startswith(without) else files[called]
        if name not in arrays:
            leaves.append(blank(leaf))
            continue
        array = jnp.array(arrays[name])  # a copy: the run may give its memory away
        leaves.append(jax.random.wrap_key_data(array, impl=keys[name]) if name in keys else array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def blank(leaf: Any) -> Any:
    """An array, or keys, of this shape and type with nothing in it."""
    return jax.random.split(jax.random.key(0), leaf.shape) if _is_key(leaf) else jnp.zeros(leaf.shape, leaf.dtype)


def misfit(saved: PyTree, wanted: PyTree) -> str | None:
    """The first difference in name, shape or type between what came out of a checkpoint and what is wanted."""
    return _misfit(_described(saved), _described(wanted))


def read_meta(path: str | Path) -> dict[str, Any]:
    """What `meta.json` says, once every file is known to be whole; otherwise one line on what is wrong."""
    path = Path(path)
    try:
        meta = json.loads((path / "meta.json").read_text())
        form, files = meta["format"], meta["files"]
        whole = isinstance(form, int) and isinstance(files, dict) and {"leaves", "keys", "notes"} <= meta.keys()
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(f"{path} is not a checkpoint of riskppo, or its meta.json is damaged")
    if form > FORMAT:
        raise UserError(f"{path} is of a newer riskppo ({meta.get('version')}); this one accepts format {FORMAT}")
    for name, digest in files.items():
        file = path / name
        if not file.is_file() or _digest(file) != digest:
            raise UserError(f"{path} is damaged: {name} is missing or not what was written")
    return meta


def steps(folder: str | Path) -> list[Path]:
    """Checkpoints in a run's folder, oldest first; drafts of saves that did not finish are not among them."""
    folder = Path(folder)
    found = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def latest(folder: str | Path) -> Path | None:
    """The newest checkpoint, known to be whole; None if there is none, an offer of an older one if it is not."""
    found = steps(folder)
    if not found:
        return None
    try:
        read_meta(found[-1])
        return found[-1]
    except UserError as error:
        for older in reversed(found[:-1]):
            try:
                read_meta(older)
            except UserError:
                continue
            raise UserError(f"{error}; {older.name} is intact: remove {found[-1].name} to go on from there") from error
        raise UserError(f"{error}; no older one is intact") from error


def prune(folder: str | Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints, and drafts that no process will finish."""
    folder = Path(folder)
    for path in [*steps(folder)[:-keep], *folder.glob(".*.*")]:
        shutil.rmtree(path, ignore_errors=True)


def _named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Leaves under their names; plain numbers among them as the arrays that JAX makes of them."""
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf if hasattr(leaf, "dtype") else _array(leaf))
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]  # fmt: skip


def _array(leaf: Any) -> Any:
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError):
        raise UserError(f"a checkpoint accepts arrays, keys and numbers, not {leaf!r}") from None


def _described(tree: PyTree) -> list[dict[str, Any]]:
    return [_describe(name, leaf) for name, leaf in _named_leaves(tree)]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe(name: str, leaf: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(leaf.shape), "dtype": str(leaf.dtype)}


def _misfit(saved: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str | None:
    """The first difference between what was saved and what is wanted, in words."""
    held, wanted = ({about["name"]: about for about in leaves} for leaves in (saved, expected))
    for name in [*wanted, *held]:
        if name not in held:
            return f"the checkpoint has no {name}"
        if name not in wanted:
            return f"the checkpoint also has {name}"
        for key in ("shape", "dtype"):
            if held[name][key] != wanted[name][key]:
                return f"{name} has {key} {wanted[name][key]}, in the checkpoint {held[name][key]}"
    return None


def _require_room(folder: Path, size: int) -> None:
    """Refuses to begin what a full disk would interrupt; Orbax's threads report that at length on stderr."""
    if shutil.disk_usage(folder).free < 2 * size + _MARGIN:  # Orbax writes everything twice, the second time merged
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    if not arrays:  # which Orbax refuses
        path.mkdir()
        return
    with _orbax() as writer:
        writer.save(path, dict(arrays))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not any(path.iterdir()):
        return {}
    with _orbax() as reader:
        return reader.restore(path)


def _orbax() -> Any:
    """Orbax as if this process were alone: it would wait for all the others, which do not write."""
    import orbax.checkpoint as ocp

    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me} if jax.process_count() > 1 else None, barrier_sync_key_prefix=f"p{me}"
    )
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Where log points go: `metrics.jsonl` always, TensorBoard and W&B on request."""

import importlib.util
import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.settings import Settings, to_dict

_COUNTED = ("train/episodes", "train/terminated", "train/diverged", "ppo/skipped")  # summed over a chunk
_LATEST = ("train/env_steps", "train/bad_streak", "constraint", "objective")  # the last of a chunk, as prices and t
_BATCH = ("slack", "t_batch", "t_batch_discounted", "risk", "mean", "value")  # of these, but averaged


class Writer(Protocol):
    """`write` takes one log point; `close` is called once."""

    def write(self, point: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def reduce_chunk(metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One log point from a chunk's metrics, which lead with the iteration.

    Counts are summed, state (prices, t, steps) is the latest, everything else is a mean over the iterations
    that had a value. What had none in the whole chunk is None. Of a price there is the mean as well, and the share
    of iterations it spent at its bound.
    """
    point = {}
    for name, values in metrics.items():
        values = np.asarray(values)
        if name.startswith(_COUNTED):
            value = values.sum(axis=0)
        elif name.startswith(_LATEST) and name.split("/")[1] not in _BATCH:
            value = values[-1]
        else:
            known = ~np.isnan(values).reshape(len(values), -1).any(axis=1)
            value = values[known].mean(axis=0) if known.any() else np.nan
        point[name] = plain(value)
    for area in {name.split("/")[0] for name in metrics if name.endswith("/lam_max")}:
        lam, bound = np.asarray(metrics[f"{area}/lam"]), np.asarray(metrics[f"{area}/lam_max"])
        point[f"{area}/at_bound"] = float(np.mean(lam >= 0.999 * bound))
        point[f"{area}/lam_mean"] = plain(lam.mean(axis=0))  # `pi` swings around it with every batch
    return dict(sorted(point.items()))


def plain(value: Any) -> Any:
    """A number (or list, or mapping) that strict JSON can hold: NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | bool | None):
        return value
    value = np.asarray(value)
    if value.ndim:
        return [plain(item) for item in value]
    number = value.item()
    return number if not isinstance(number, float) or math.isfinite(number) else None


class JsonLines:
    """`metrics.jsonl`: whole lines, and a length in bytes that a checkpoint can remember."""

    def __init__(self, path: Path, size: int = 0, lines: int = 0):
        """Opens the file cut to its first `size` bytes: what a checkpoint does not know of is written again."""
        self.path, self.lines = path, lines
        here = path.stat().st_size if path.exists() else 0
        if here < size:
            raise UserError(f"{path} has {here} bytes, its checkpoint knows of {size}; resume accepts the whole log")
        self._file = path.open("ab", buffering=0)  # nothing waits in a buffer for a disk that may be full
        self._file.truncate(size)

    def write(self, point: Mapping[str, float]) -> None:
        line = memoryview((json.dumps(point, allow_nan=False) + "\n").encode())
        while line:
            line = line[self._file.write(line) :]
        self.lines += 1

    def sync(self) -> int:
        """Bytes on disk, after they are surely there; call before the checkpoint that mentions them."""
        os.fsync(self._file.fileno())
        return self.path.stat().st_size

    def close(self) -> None:
        self._file.close()


def require_extras(settings: Settings) -> None:
    """Complains about a log that is wanted and whose package is not installed."""
    for name, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        if getattr(settings.log, name) and importlib.util.find_spec(package) is None:
            raise UserError(f"log.{name}=true: accepts an installed riskppo-jax[{name}]")


class TensorBoard:
    """Scalars for TensorBoard, by environment steps."""

    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, point: Mapping[str, float]) -> None:
        for name, value in _by_lane(point).items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, int(point["train/env_steps"]))

    def close(self) -> None:
        self._writer.close()


class WandB:
    """The same for Weights & Biases."""

    def __init__(self, folder: Path, settings: Settings):
        import wandb

        self._run = wandb.init(
            project=settings.log.project, dir=str(folder), config=to_dict(settings), name=folder.name,
            id=_own_id(folder / "wandb_id"), resume="allow",
        )  # fmt: skip

    def write(self, point: Mapping[str, float]) -> None:
        found = {name: value for name, value in _by_lane(point).items() if value is not None}
        self._run.log(found, step=int(point["train/env_steps"]))

    def close(self) -> None:
        self._run.finish()


def _own_id(path: Path) -> str:
    """What a run is called among all others of a project, the same when it goes on: folders share names."""
    if not path.exists():
        path.write_text(secrets.token_hex(6))
    return path.read_text().strip()


def _by_lane(point: Mapping[str, float]) -> Mapping[str, float]:
    """The point under names of its lane's own, where it has one."""
    if "sweep/lane" not in point:
        return point
    return {f"lane{point['sweep/lane']}/{name}": value for name, value in point.items() if name != "sweep/lane"}


def extra_writers(settings: Settings, folder: Path) -> list[Writer]:
    """The writers asked for beyond `metrics.jsonl`."""
    writers: list[Writer] = []
    if settings.log.tensorboard:
        writers.append(TensorBoard(folder / "tensorboard"))
    if settings.log.wandb:
        writers.append(WandB(folder, settings))
    return writers

"""`report.html`: one page about one run or many that needs nothing else, neither network nor files."""

import errno
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from riskppo_jax.errors import UserError
from riskppo_jax.report import replay
from riskppo_jax.report.page import page
from riskppo_jax.runs import Run, pick_lane, read_run, read_runs, restore_lane

_PANELS = 12  # lanes of a sweep with figures of their own; `riskppo plot` makes all
_REPLAYS = 4  # lanes of a sweep that are shown at work; each adds about a hundred kilobytes

__all__ = ["write_report", "write_run_report"]


def write_report(runs: Iterable[str | Path], out: str | Path | None = None, replays: bool = True) -> Path:
    """Writes the page of these runs, sweeps and folders of them.

    Args:
      runs: run directories and folders that hold some.
      out: file to write; by default `report.html` in the run directory, or here if there are several.
      replays: record the policy where a run has no replay yet and its task can be drawn.
    """
    found = read_runs(runs)
    if replays:
        for run in found:
            _ensure_replay(run)
    return _write(found, Path(out) if out else (found[0].folder if len(found) == 1 else Path()) / "report.html")


def write_run_report(folder: Path, summary: dict[str, Any], job: Any, state: Any) -> Path | None:
    """Figures, replay and page of a run that has just ended, before its summary is on disk.

    What goes wrong here is said and not raised, a full disk apart: hours of training must not be lost to a picture.

    Args:
      folder: the run directory.
      summary: what `summary.json` will hold.
      job: the run.
      state: its final state; of a sweep with a leading axis.
    """
    try:
        return _run_report(folder, summary, job, state)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"no report ({type(error).__name__}: {error}); `riskppo report {folder}` tries again", file=sys.stderr)
        return None


def _run_report(folder: Path, summary: dict[str, Any], job: Any, state: Any) -> Path:
    from riskppo_jax.figures import write_figures

    run = read_run(folder, summary=summary)
    write_figures([run], folder / "figures", formats=("png",), most=_PANELS)
    replay.write_replay(folder, {i: pick_lane(job, state, i) for i in range(min(len(run.lanes), _REPLAYS))})
    return _write([run], folder / "report.html")


def _ensure_replay(run: Run) -> None:
    if (run.folder / replay.FILE).exists() or not (run.folder / "checkpoints").is_dir() or not run.summary:
        return
    lanes = range(min(len(run.lanes), _REPLAYS))
    try:
        replay.write_replay(run.folder, {lane: restore_lane(run.folder, lane) for lane in lanes})
    except UserError as error:  # a task that only the run's own script knows, or settings of another version
        print(f"no replay of {run.name}: {error}", file=sys.stderr)


def _write(runs: list[Run], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise UserError(f"--out {path}: is a folder; accepts a file to write")
    draft = path.with_suffix(".tmp")
    draft.write_text(page(runs), encoding="utf-8")
    draft.replace(path)
    return path

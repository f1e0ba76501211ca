"""A run's curves as text, for a terminal: of a run in progress, over SSH, or of one that has ended."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from riskppo_jax.errors import UserError
from riskppo_jax.runs import Lane, Run, best_t, has_t, read_run

_MARKS, _LIMIT = (("o", "cyan"), ("+", "yellow")), ("-", "white")
_HEIGHT = 9
_SILENT = 120.0  # seconds; a chunk and a compile take less


class Series(NamedTuple):
    """A named curve; one value alone is a level line."""

    label: str
    steps: np.ndarray
    values: np.ndarray


def watch(folder: Path, lane: int = 0, once: bool = False, every: float = 2.0, console: Console | None = None) -> None:
    """Shows a run's curves, again and again until it has a summary; once where that is asked for."""
    console = console or Console(highlight=False)
    run = _read(folder, lane)
    if once or run.summary:
        console.print(picture(run, lane, console.width))
        return
    with Live(picture(run, lane, console.width), console=console, auto_refresh=False, screen=False) as live:
        while not run.summary:
            time.sleep(every)
            run = _read(folder, lane)
            live.update(picture(run, lane, console.width), refresh=True)


def picture(run: Run, lane: int = 0, width: int = 100) -> RenderableType:
    """Everything at once: a line on where the run stands, and its curves side by side."""
    own = run.lanes[lane]
    head = Text(f"{run.env}  {run.algo}  {run.folder}" + (f"  lane {lane} of {len(run.lanes)}" * (len(run.lanes) > 1)))
    if not own.points:
        return Group(head, Text(f"no log point yet: the program is being compiled{_silence(run)}"))
    columns = max(1, min(3, width // 44))
    size = max(20, width // columns - 4)
    table = Table.grid(padding=(0, 2))
    panels = [chart(title, series, size) for title, series in curves(own)]
    for i in range(0, len(panels), columns):
        table.add_row(*panels[i : i + columns])
    return Group(head, Text(standing(run, own)), table)


def standing(run: Run, lane: Lane) -> str:
    """How far a run is, how fast, and for how long it has to go."""
    last = lane.points[-1]
    done, total = int(last["train/env_steps"]), int(run.config["total_steps"])
    speed = last.get("perf/steps_per_second") or 0.0
    words = f"{done:,} of {total:,} steps ({done / total:.0%})"
    if run.summary:
        return f"{done:,} steps, finished in {run.summary.get('wall_seconds', 0):,.0f} s"
    silence = _silence(run)
    if silence:
        return words + silence
    left = (total - done) / speed if speed else float("inf")
    return f"{words}, {speed:,.0f} a second" + (f", {left:,.0f} s left" if np.isfinite(left) else "")


def _silence(run: Run) -> str:
    """That nothing has been written for long, if so."""
    files = [run.folder / name for name in ("metrics.jsonl", "config.yaml")]
    age = time.time() - max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    return f"; nothing was written for {age:,.0f} s, it may have been stopped" if age > _SILENT else ""


def curves(lane: Lane) -> list[tuple[str, list[Series]]]:
    """Reward, cost, and for each constraint risk against c, -t against its best, lambda."""
    steps, values, kind = lane.reward_curve()
    found = [(f"return ({kind})", [Series("return", steps, values)])]
    found.append(("cost per step", [Series("cost", *lane.curve("train/cost"))]))
    last = lane.points[-1] if lane.points else {}
    for i in range(sum(key.endswith("/lam") for key in last)):
        at = f"constraint{i}/"
        known = lane.found.get("constraints", [])[i:]
        name, best = (known[0]["name"], best_t(known[0]["risk"])) if known else (f"constraint {i + 1}", "best -t")
        limit = Series("c", *lane.curve(at + "threshold"))
        (ts, t), (qs, quantile) = lane.curve(at + "t"), lane.curve(at + "t_batch")
        found.append((f"{name}: risk against c", [limit, Series("risk", *lane.curve(at + "risk"))]))
        if has_t(known[0]["risk"]) if known else len(set(t)) > 1:  # the mean's never moves
            found.append((f"{name}: -t and its best value", [Series(best, qs, -quantile), Series("-t", ts, -t)]))
        found.append((f"{name}: lambda", [Series("lambda", *lane.curve(at + "lam"))]))
    return found


def chart(title: str, series: Sequence[Series], width: int = 40, height: int = _HEIGHT) -> Text:
    """Curves in a box of characters; each has a mark of its own, so that it is readable without colour."""
    drawn = [s for s in series if len(s.values)]
    text = Text(f"{title}\n", style="bold")
    if not drawn:
        return text.append("nothing yet\n", style="dim")
    values = np.concatenate([s.values for s in drawn])
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-12:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    first, last = min(s.steps[0] for s in drawn), max(s.steps[-1] for s in drawn)
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    margin = max(map(len, labels))
    columns = max(8, width - margin - 2)
    cells: list[list[tuple[str, str] | None]] = [[None] * columns for _ in range(height)]
    marks = [_LIMIT if s.label == "c" else _MARKS[i % len(_MARKS)] for i, s in enumerate(drawn)]
    for s, mark in zip(drawn, marks, strict=True):
        at = first + (last - first) * np.arange(columns) / max(columns - 1, 1)
        inside = (at >= s.steps[0]) & (at <= s.steps[-1]) if len(s.steps) > 1 else np.ones(columns, bool)
        rows = np.round((high - np.interp(at, s.steps, s.values)) / (high - low) * (height - 1)).astype(int)
        for column in np.flatnonzero(inside):
            cells[int(np.clip(rows[column], 0, height - 1))][column] = mark
    for label, row in zip(labels, cells, strict=True):
        text.append(f"{label:>{margin}} |", style="dim")
        for cell in row:
            text.append(cell[0] if cell else " ", style=cell[1] if cell else "")
        text.append("\n")
    for s, (character, style) in zip(drawn, marks, strict=True):
        text.append(f"{character} {s.label} {s.values[-1]:.4g}  ", style=style)
    return text.append("\n")


def _read(folder: Path, lane: int) -> Run:
    run = read_run(folder)
    if not 0 <= lane < len(run.lanes):
        raise UserError(f"--lane {lane}: this run accepts lanes from 0 to {len(run.lanes) - 1}")
    return run

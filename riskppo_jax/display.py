"""What a run shows while it goes: a live table on a terminal, plain lines elsewhere."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from riskppo_jax.runs import best_t, first_of, has_t
from riskppo_jax.train import BAD_ITERATIONS

_LINES = 25  # about so many plain lines for a whole run
_ROWS = 24  # of a sweep's table


class Display:
    """`show(point)` after every chunk; a context manager that leaves the terminal as it was."""

    def __init__(
        self,
        title: str,
        constraints: Sequence[tuple[str, Mapping[str, Any]]],  # name, and the `config` of its measure
        chunks: int,
        chunk_steps: int,
        console: Console | None = None,
    ):
        self.console = console or Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self._title = title
        self._names, self._risks = [name for name, _ in constraints], [risk for _, risk in constraints]
        self._best, self._tells = [best_t(risk) for risk in self._risks], [has_t(risk) for risk in self._risks]
        self._chunks, self._total = chunks, chunks * chunk_steps
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(40), TextColumn("{task.percentage:.0f}%"))
        self._task = self._bar.add_task(title, total=self._total)
        self._shown = 0

    def __enter__(self) -> "Display":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error) -> None:
        if self._live:
            self._live.__exit__(*error)

    def say(self, text: str) -> None:
        """A sentence that stays."""
        self.console.print(text, markup=False)

    def show(self, point: dict[str, Any]) -> None:
        """One log point."""
        done = int(point["train/env_steps"])
        left = (self._total - done) / max(point["perf/steps_per_second"], 1e-9)
        if self._live:
            self._bar.update(self._task, completed=done)
            tables = self._numbers(point, done, left), self._constraints(point)
            self._live.update(Group(self._bar, *tables), refresh=True)
            return
        self._shown += 1
        if self._shown % max(1, self._chunks // _LINES) and done < self._total:
            return
        parts = [f"{done:>10,} steps", f"{point['perf/steps_per_second']:,.0f}/s", f"left {_clock(left)}",
                 f"return {_number(point['train/return'])}", f"cost {_number(point['train/cost'])}"]  # fmt: skip
        for i, name in enumerate(self._names):
            c = {key: point[f"constraint{i}/{key}"] for key in ("risk", "t_batch", "t", "lam")}
            t, best = self._minus(point, i, "t"), self._minus(point, i, "t_batch")
            tells = f"{self._best[i]} {best} -t {t} " if self._tells[i] else ""
            parts.append(f"| {name}: c {_limit(point, i)} risk {_number(c['risk'])} {tells}lambda {_number(c['lam'])}")
        print("  ".join(parts), flush=True)

    def _numbers(self, point: dict[str, Any], done: int, left: float) -> Table:
        table = Table(box=None, pad_edge=False)
        for head in ("steps", "per second", "time left", "return", "length", "cost per step", "kl", "entropy"):
            table.add_column(head, justify="right")
        table.add_row(
            f"{done:,}", f"{point['perf/steps_per_second']:,.0f}", _clock(left), _number(point["train/return"]),
            _number(point["train/episode_length"]), _number(point["train/cost"]), _number(point["ppo/approx_kl"]),
            _number(point["ppo/entropy"]),
        )  # fmt: skip
        return table

    def _constraints(self, point: dict[str, Any]) -> Table:
        table = Table(box=None, pad_edge=False)
        best = self._best[0] if len(set(self._best)) == 1 else "best -t"
        for head in ("constraint", "limit c", "risk", best, "-t", "lambda"):
            table.add_column(head, justify="right")
        for i, name in enumerate(self._names):
            at = f"constraint{i}/"
            found = [_limit(point, i), _number(point[at + "risk"]), self._minus(point, i, "t_batch")]
            table.add_row(name, *found, self._minus(point, i, "t"), _number(point[at + "lam"]))
        return table

    def _minus(self, point: dict[str, Any], i: int, name: str) -> str:
        if not self._tells[i]:
            return ""
        return _minus(first_of({"risk": self._risks[i], name: point[f"constraint{i}/{name}"]}, name))


class SweepDisplay(Display):
    """The same for many lanes: a row for each point of the grid, seeds together."""

    def __init__(self, points: Sequence[Mapping[str, Any]], *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._groups: dict[str, list[int]] = {}
        for i, point in enumerate(points):
            label = " ".join(f"{name.rpartition('.')[2]} {value:g}" if isinstance(value, float) else f"{name} {value}"
                             for name, value in point.items() if name != "seed")  # fmt: skip
            self._groups.setdefault(label or "all seeds", []).append(i)

    def show(self, points: Sequence[dict[str, Any]]) -> None:
        """One log point of every lane."""
        done = max(int(point["train/env_steps"]) for point in points)
        rate = points[0]["perf/steps_per_second"]
        left = (self._total - done) / max(rate, 1e-9)
        if self._live:
            self._bar.update(self._task, completed=done)
            self._live.update(Group(self._bar, self._rows(points, done, rate, left)), refresh=True)
            return
        self._shown += 1
        if self._shown % max(1, self._chunks // _LINES) and done < self._total:
            return
        parts = [f"{done:>10,} steps x {len(points)}", f"{rate * len(points):,.0f}/s", f"left {_clock(left)}",
                 f"return {_span(points, 'train/return')}", f"cost {_span(points, 'train/cost')}"]  # fmt: skip
        for i, name in enumerate(self._names):
            at = f"constraint{i}/"
            now = f"limit now {_span(points, at + 'limit')} " if any(_eased(point, i) for point in points) else ""
            parts.append(f"| {name}: {now}risk {_span(points, at + 'risk')} lambda {_span(points, at + 'lam')}")
        still = sum(point["train/bad_streak"] >= BAD_ITERATIONS for point in points)
        print("  ".join([*parts, f"diverged {still}"] if still else parts), flush=True)

    def _rows(self, points: Sequence[dict[str, Any]], done: int, rate: float, left: float) -> Table:
        title = f"{done:,} steps x {len(points)} lanes, {rate * len(points):,.0f} per second, {_clock(left)} left"
        table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="")
        heads = [f"{name} {what}" for name in self._names for what in ("limit", "risk", "-t", "lambda")]
        for head in ("point", "lanes", "return", "cost per step", *heads):
            table.add_column(head, justify="right")
        for label, members in list(self._groups.items())[:_ROWS]:
            own = [points[i] for i in members]
            cells = [_span(own, "train/return"), _span(own, "train/cost")]
            for i in range(len(self._names)):
                at = f"constraint{i}/"
                limit = _span(own, at + "threshold")
                if any(_eased(point, i) for point in own):
                    limit += f", now {_span(own, at + 'limit')}"
                cells += [limit, _span(own, at + "risk"), _span(own, at + "t", -1.0) if self._tells[i] else ""]
                cells.append(_span(own, at + "lam"))
            still = sum(point["train/bad_streak"] >= BAD_ITERATIONS for point in own)
            table.add_row(label, f"{len(own)}" + (f" ({still} diverged)" if still else ""), *cells)
        if len(self._groups) > _ROWS:
            table.add_row(f"and {len(self._groups) - _ROWS} more", *[""] * (3 + 4 * len(self._names)))
        return table


def _span(points: Sequence[dict[str, Any]], name: str, sign: float = 1.0) -> str:
    """Median of the lanes and, where they differ, the least and the largest; of vectors (several t) the first."""
    values = [_first(point.get(name)) for point in points]
    values = sorted(sign * value + 0.0 for value in values if value is not None and math.isfinite(value))
    if not values:
        return "-"
    middle = statistics.median(values)
    return _number(middle) if values[0] == values[-1] else f"{middle:.4g} ({values[0]:.3g} to {values[-1]:.3g})"


def _first(value: Any) -> float | None:
    return value[0] if isinstance(value, list) else value


def _eased(point: Mapping[str, Any], i: int) -> bool:
    """Whether a limit is still on its way down to its own (`dual.ease`)."""
    c = point[f"constraint{i}/threshold"]
    return abs(point.get(f"constraint{i}/limit", c) - c) > 0.01 * abs(c)


def _limit(point: Mapping[str, Any], i: int) -> str:
    """A limit, and where it is now if that is elsewhere."""
    own = _number(point[f"constraint{i}/threshold"])
    return f"{own} (now {_number(point[f'constraint{i}/limit'])})" if _eased(point, i) else own


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_number, value))
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _minus(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_minus, value))
    return _number(None if value is None else 0.0 - value)


def _clock(seconds: float) -> str:
    seconds = int(min(seconds, 359_999))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

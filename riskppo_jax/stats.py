"""Statistics over seeds and tasks that a few runs can defend (Agarwal et al., 2021).

Scores are `[run, task]`: a row for each seed, a column for each task, the layout that rliable expects; a method is
one such array, several are a dict of them. Intervals resample the runs of every task separately (a stratified
bootstrap), because runs of different tasks are not each other's replicates.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from riskppo_jax.errors import UserError

if TYPE_CHECKING:
    from riskppo_jax.runs import Lane, Run

Statistic = Callable[..., np.ndarray | float]


def interquartile_mean(scores: np.ndarray) -> float:
    """Mean of the middle half of all runs and tasks together; a quarter of them, rounded down, goes at each end."""
    flat = np.sort(_scores(scores), axis=None)
    cut = len(flat) // 4
    return float(flat[cut : len(flat) - cut].mean())


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> float:
    """How far below `target` scores are on average; what exceeds it does not make up for the rest."""
    return float(np.mean(target - np.minimum(_scores(scores), target)))


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Chance that a run of ours beats one of theirs on a random task; ties count half.

    The mean over tasks of Mann and Whitney's `U / (n m)`.
    """
    ours, theirs = _scores(ours), _scores(theirs)
    if ours.shape[1] != theirs.shape[1]:
        raise UserError(f"scores: have {ours.shape[1]} and {theirs.shape[1]} tasks; accepts the same tasks for both")
    pairs = np.sign(ours[:, None, :] - theirs[None, :, :])
    return float((0.5 * (pairs + 1.0)).mean(axis=(0, 1)).mean())


def performance_profile(scores: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Share of runs and tasks with a score above each level."""
    return (_scores(scores)[..., None] > np.asarray(levels, float)).mean(axis=(0, 1))


def bootstrap_interval(
    statistic: Statistic,
    *scores: np.ndarray,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of `statistic(*scores)`, runs resampled within each task.

    Args:
      statistic: of one or several score arrays; a number or an array.
      *scores: `[run, task]` each; they may have different numbers of runs.
      confidence: share of resamples between the two ends.
      resamples: how many.
      seed: of the resampling.

    Returns:
      Lower and upper end, each of the statistic's shape.
    """
    if not 0.0 < confidence < 1.0:
        raise UserError(f"confidence={confidence}: accepts numbers between 0 and 1")
    if resamples < 1:
        raise UserError(f"resamples={resamples}: accepts a whole number, 1 or larger")
    draw = np.random.default_rng(seed)
    tables = [_scores(table) for table in scores]
    found = np.array([statistic(*(_resampled(table, draw) for table in tables)) for _ in range(resamples)])
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(found, [tail, 1.0 - tail], axis=0)
    return low, high


def normalize(scores: np.ndarray, low: Mapping[str, float] | float, high: Mapping[str, float] | float,
              tasks: Sequence[str] = ()) -> np.ndarray:  # fmt: skip
    """`(score - low) / (high - low)` task by task; references are numbers, or by the name of the task."""

    def reference(given):
        return np.array([given[task] for task in tasks], float) if isinstance(given, Mapping) else float(given)

    try:
        bottom, top = reference(low), reference(high)
    except KeyError as error:
        raise UserError(f"normalize: no reference for {error.args[0]}; accepts one for every task") from None
    if {np.shape(bottom), np.shape(top)} - {(), (_scores(scores).shape[1],)}:
        raise UserError(f"normalize: tasks has {len(tasks)} names; accepts one for every column of the scores")
    if np.any(np.asarray(bottom) == top):
        raise UserError("normalize: low and high are equal; accepts two different numbers for every task")
    return (_scores(scores) - bottom) / (top - bottom)


def score_table(paths: Iterable[str | Path], quantity: str = "reward_mean") -> tuple[dict[str, np.ndarray], list[str]]:
    """Scores of finished runs and sweeps, as rliable takes them.

    Args:
      paths: run directories and folders of them.
      quantity: of the final evaluation, a name in `eval` of `summary.json`.

    Returns:
      Method -> `[run, task]`, where lanes that differ only in the seed are runs of one method, and the tasks in
      the order of the columns.
    """
    from riskppo_jax.runs import read_runs

    runs = [run for run in read_runs(paths) if run.summary]
    tasks = list(dict.fromkeys(run.env for run in runs))
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run, lane, method in _methods(runs):
        evaluated, seed = lane.found.get("eval", {}), lane.found["seed"]
        if quantity not in evaluated:
            raise UserError(f"{quantity}: not in the evaluation of {run.folder}; accepts {', '.join(evaluated)}")
        column = found.setdefault(method, {}).setdefault(run.env, {})
        if seed in column:
            raise UserError(f"{run.folder}: has seed {seed} of {method} on {run.env} again; accepts each once")
        column[seed] = evaluated[quantity]
    table = {}
    for method, columns in found.items():
        counts = {task: len(columns.get(task, {})) for task in tasks}
        if len(set(counts.values())) > 1:
            raise UserError(f"{method}: has {counts} runs; accepts as many for every task")
        by_seed = [[columns[task][seed] for seed in sorted(columns[task])] for task in tasks]
        table[method] = np.array(by_seed, float).T
    return table, tasks


def write_scores(path: str | Path, table: Mapping[str, np.ndarray], tasks: Sequence[str]) -> Path:
    """An `.npz` with an array `[run, task]` for each method and `tasks`: `dict(np.load(path))` without `tasks` is
    what rliable's functions take."""
    path = Path(path)
    if path.suffix != ".npz" or not path.absolute().parent.is_dir():
        raise UserError(f"{path}: accepts a name that ends in .npz, in a folder that exists")
    np.savez(path, tasks=np.array(tasks), **{name: _scores(scores) for name, scores in table.items()})
    return path


def _methods(runs: Sequence["Run"]) -> list[tuple["Run", "Lane", str]]:
    """Every lane with what it is a run of: its preset, what was swept, and in what else it differs.

    Lanes of one task with the same name but other numbers (runs of their own, one for each beta) get the differing
    numbers into their names.
    """
    from riskppo_jax.runs import SEED, traits_of

    alike: dict[tuple[str, str], list[tuple[Run, Lane]]] = {}
    for run in runs:
        for lane in run.lanes:
            name = " ".join([run.algo, *(f"{key}={value}" for key, value in lane.point.items() if key != SEED)])
            alike.setdefault((run.env, name), []).append((run, lane))
    found = []
    for (_, name), lanes in alike.items():
        numbers = [traits_of(run, lane) for run, lane in lanes]
        swept = {key for _, lane in lanes for key in lane.point}
        keys = dict.fromkeys(key for own in numbers for key in own if key not in swept)
        differing = [key for key in keys if len({str(own.get(key)) for own in numbers}) > 1]
        for (run, lane), own in zip(lanes, numbers, strict=True):
            found.append((run, lane, " ".join([name, *(f"{key}={own.get(key)}" for key in differing)])))
    return found


def _resampled(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    rows = draw.integers(len(table), size=table.shape)
    return np.take_along_axis(table, rows, axis=0)


def _scores(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, float)
    if scores.ndim != 2 or not scores.size:
        raise UserError(f"scores: have shape {scores.shape}; accepts [run, task], at least one of each")
    if not np.isfinite(scores).all():
        raise UserError("scores: are not all finite; accepts numbers")
    return scores

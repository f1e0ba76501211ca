"""Reading what runs left behind: a run directory, a sweep, or a folder with any number of both."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml

from riskppo_jax.errors import UserError

SEED = "seed"
LAWS = {"whole": "whole episodes", "discounted": "discounted steps"}  # entries of a constraint that has one of them
_BEGINNINGS = ("deploy", "start_from", "lam_init", "t_init")  # where a run began, and which of its policies it returns


@dataclass(frozen=True)
class Lane:
    """One training run; a sweep has several in one directory."""

    index: int
    found: dict[str, Any]  # its entry of `summary.json`; empty while the run goes on
    points: list[dict[str, Any]]  # its log points
    samples: dict[str, np.ndarray] = field(default_factory=dict)  # of the final evaluation

    @property
    def point(self) -> dict[str, Any]:
        """The swept settings' values here; the seed alone outside a sweep."""
        return self.found.get("point") or {SEED: self.found.get(SEED)}

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Environment steps and values of a metric where it has one; of a vector (several t) the first."""
        pairs = [(point["train/env_steps"], np.ravel(point[name])[0]) for point in self.points
                 if point.get(name) is not None]  # fmt: skip
        steps, values = zip(*pairs, strict=True) if pairs else ((), ())
        return np.array(steps, float), np.array(values, float)

    def eased_limit(self, i: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The way of a constraint's limit down to its own; None where it did not move."""
        steps, values = self.curve(f"constraint{i}/limit")
        return (steps, values) if len(values) and np.ptp(values) > 0 else None

    def reward_curve(self) -> tuple[np.ndarray, np.ndarray, str]:
        """Return of evaluation episodes during training; of training episodes where there were none."""
        steps, values = self.curve("eval/reward")
        if len(steps):
            return steps, values, "evaluation"
        return *self.curve("train/return"), "training"


@dataclass(frozen=True)
class Run:
    """A run directory, read."""

    folder: Path
    name: str
    config: dict[str, Any]
    summary: dict[str, Any]  # empty while the run goes on
    lanes: tuple[Lane, ...]

    @property
    def env(self) -> str:
        return self.config.get("env", {}).get("id") or self.summary.get("env", "?")

    @property
    def algo(self) -> str:
        return self.config.get("algo") or self.summary.get("algo", "?")


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Run directories among `paths` and in the folders among them, in order and without repetition."""
    found: list[Path] = []
    for path in map(Path, paths):
        if (path / "config.yaml").is_file():
            inside = [path]
        else:
            inside = sorted(config.parent for config in path.rglob("config.yaml") if _is_run(config.parent))
        if not inside:
            raise UserError(f"{path}: holds no run; accepts run directories and folders that hold some")
        found += [folder for folder in inside if folder not in found]
    return found


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Every run under `paths`, each with a short name of its own."""
    folders = find_runs(paths)
    return [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def read_run(folder: str | Path, name: str | None = None, summary: Mapping[str, Any] | None = None) -> Run:
    """One run directory.

    Args:
      folder: where it is.
      name: what to call it; by default the folder's name.
      summary: in place of `summary.json`, for a run that is just being finished.
    """
    folder = Path(folder)
    config = read_config(folder)
    summary = dict(summary) if summary is not None else _read_json(folder / "summary.json")
    points = read_log(folder / "metrics.jsonl")
    lanes = summary.get("lanes")
    if not isinstance(lanes, list) or not lanes:
        swept = (config.get("sweep") or {}).get("grid") or {}
        seen = 1 + max((int(point.get("sweep/lane", 0)) for point in points), default=0)
        lanes = [{}] * max(seen, math.prod(len(values) for values in swept.values() if isinstance(values, list)))
    samples = _read_samples(folder / "samples.npz")
    sweep = len(lanes) > 1
    return Run(
        folder,
        name or folder.resolve().name,
        config,
        summary,
        tuple(
            Lane(
                i,
                _numbers(found),
                [point for point in points if int(point.get("sweep/lane", 0)) == i],
                _own_samples(samples, i) if sweep or any("/" in key for key in samples) else samples,
            )
            for i, found in enumerate(lanes)
        ),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The settings as the run wrote them, whether or not this version knows all of them."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("env"), dict):
        raise UserError(f"{folder} is not a run directory; accepts a folder that train wrote")
    return config


def read_log(path: Path) -> list[dict[str, Any]]:
    """Log points of a run that may be writing one right now; a line that is not whole yet is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    points = []
    for line in lines:
        try:
            point = json.loads(line)
        except ValueError:
            continue
        if isinstance(point, dict) and "train/env_steps" in point:
            points.append(point)
    return points


def restore_lane(folder: Path, lane: int = 0) -> tuple[Any, Any]:
    """Job and state of one lane at its newest checkpoint."""
    from riskppo_jax.rundir import restore_run

    job, state, _ = restore_run(folder, lane)
    return job, state


def pick_lane(job: Any, state: Any, lane: int) -> tuple[Any, Any]:
    """Job and state of one lane of a sweep, whose state has a leading axis; of a single run as they are."""
    import jax

    return (job.lanes[lane], jax.tree.map(lambda x: x[lane], state)) if job.lanes else (job, state)


def groups(runs: Sequence[Run]) -> dict[str, list[Lane]]:
    """Lanes that differ in nothing but the seed, under labels that say in what the groups differ."""
    members: dict[str, list[Lane]] = {}
    traits: dict[str, dict[str, Any]] = {}
    for run in runs:
        for lane in run.lanes:
            own = traits_of(run, lane)
            key = json.dumps(own, sort_keys=True, default=str)
            members.setdefault(key, []).append(lane)
            traits[key] = own
    names = list(dict.fromkeys(name for own in traits.values() for name in own))
    # what only differs from task to task, or from preset to preset, is said by the task or the preset
    kinds = {(own["env"], own["algo"]) for own in traits.values()}
    shared = [[own for own in traits.values() if (own["env"], own["algo"]) == kind] for kind in kinds]
    varying = [name for i, name in enumerate(("env", "algo")) if len({kind[i] for kind in kinds}) > 1]
    differing = [n for n in names if any(len({json.dumps(own.get(n)) for own in some}) > 1 for some in shared)]
    varying += sorted(differing, key=lambda name: name.rsplit(".", 1)[-1] in _BEGINNINGS)  # what tells least goes last
    labels = {key: describe_point({n: own.get(n) for n in varying}) or "all" for key, own in _short(traits, varying)}
    found: dict[str, list[Lane]] = {}
    for key, lanes in members.items():
        label = labels[key] if labels[key] not in found else f"{labels[key]} ({len(found) + 1})"
        found[label] = lanes
    return found


def traits_of(run: Run, lane: Lane) -> dict[str, Any]:
    """All that makes a lane's method, by name: task, preset, choices, numbers and what was swept; not its seed."""
    words = flat({area: run.config.get(area) or {} for area in ("env", "layout", "dual", "scheme")})
    choices = {name: value for name, value in words.items()
               if name != "env.id" and (isinstance(value, str | bool) or not name.startswith("dual."))}  # fmt: skip
    numbers = {**flat(lane.found.get("hypers", {})), **flat(lane.point)}
    choices["deploy"] = run.config.get("deploy", "last")
    choices["start_from"] = "another run" if run.config.get("start_from") else None  # each seed may have its own
    own = {"env": run.env, "algo": run.algo, "engine": run.summary.get("engine"), **choices, **numbers}
    return {name: value for name, value in own.items() if name != SEED}


def numbered(names: Iterable[str]) -> list[str]:
    """Names that are there again with a number behind them: `speed`, `speed_2`."""
    given = list(names)
    before = [given[:i].count(name) for i, name in enumerate(given)]
    return [f"{name}_{count + 1}" if count else name for name, count in zip(given, before, strict=True)]


def by_name(lane: Lane) -> dict[str, Any]:
    """Results of a lane's constraints; a second one on the same quantity has a number behind its name."""
    found = lane.found.get("constraints", [])
    return dict(zip(numbered(c["name"] for c in found), found, strict=True))


def best_t(risk: Mapping[str, Any]) -> str:
    """What the best -t of a sample is called: the quantile, of measures that look at the worst share."""
    return "quantile" if risk["name"] in ("cvar", "mean_cvar") else "best -t"


def has_t(risk: Mapping[str, Any]) -> bool:
    """Whether a measure's t says anything: the mean's does not enter, and stays where it began."""
    from riskppo_jax.risk import oce

    return risk["name"] not in oce.MEASURES or bool(oce.from_config(risk).identified)


def first_of(constraint: Mapping[str, Any], name: str) -> Any:
    """Its `t` or `quantile`, of EVaR the level alone: its second t is a scale and has no place beside a quantity."""
    value = constraint[name]
    return value[0] if constraint["risk"]["name"] == "evar" else value


def describe_point(point: Mapping[str, Any]) -> str:
    """`beta 0.1, seed 2`: settings by the last part of their names."""
    words = []
    for name, value in point.items():
        if value is None:
            continue
        text = f"{value:g}" if isinstance(value, float) else str(value)
        words.append(
            text if name.rsplit(".", 1)[-1] in ("env", "algo", "name") else f"{name.rsplit('.', 1)[-1]} {text}"
        )
    return ", ".join(dict.fromkeys(words))


def _short(traits: dict[str, dict[str, Any]], varying: list[str]):
    """Drops settings that only repeat what another name in the label says already."""
    columns: dict[str, tuple] = {}
    for name in varying:
        values = tuple(json.dumps(own.get(name)) for own in traits.values())
        if values not in columns.values():
            columns[name] = values
    varying[:] = list(columns)
    return traits.items()


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """A lane's results with NaN where JSON had to say null: a policy that diverged has risks nobody knows."""
    if not isinstance(found, Mapping) or not {"constraints", "eval"} <= found.keys():
        return {}  # none yet, or not whole

    def mended(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: mended(item) for key, item in value.items()}
        if isinstance(value, list):
            return [mended(item) for item in value]
        return float("nan") if value is None else value

    numbers = ("constraints", "eval", "objective")
    return {key: mended(value) if key in numbers else value for key, value in found.items()}


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("metrics.jsonl", "summary.json", "checkpoints"))


def _names(folders: Sequence[Path]) -> list[str]:
    """The parts of the paths in which they differ."""
    parts = [folder.resolve().parts for folder in folders]
    if len(parts) < 2:
        return [part[-1] for part in parts]
    shared = 0
    while all(len(part) > shared + 1 for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return ["/".join(part[shared:]) for part in parts]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _own_samples(samples: dict[str, np.ndarray], lane: int) -> dict[str, np.ndarray]:
    prefix = f"lane{lane}/"
    return {name.removeprefix(prefix): array for name, array in samples.items() if name.startswith(prefix)}


def _read_samples(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile):
        return {}


def _read_json(path: Path) -> dict[str, Any]:
    """A mapping from a file; empty where there is none, or it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""From words to settings: Hydra composes `conf/` with `key=value` overrides, the dataclasses here are the schema.

`Layout`, `PPOHypers`, `Rule`, `DualHypers` and `Scheme` are the Python API; their fields, with the same names
and defaults, are the keys of `layout`, `ppo`, `dual` and `scheme`.
"""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from riskppo_jax import sgda
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.errors import UserError
from riskppo_jax.scheme import Scheme

_SWEEP_OWN = ("mode", "batch", "grid")  # of `sweep`; everything else there is a setting to sweep
OPEN = ("env", "risk", "objective")  # mappings whose keys depend on the choice; checked by who reads them
# The preset in `conf/env` of a task that has none of its own name: the first that fits its id.
FAMILIES = {"Safety*Push?-v0": "push", "Safety*-v0": "navigation", "*": "default"}


def _schema(name: str, *classes: type, **more: tuple[type, Any]) -> type:
    """A plain dataclass with the fields of `classes`, each of its default's own type."""
    fields: list[tuple] = []
    for cls in classes:
        for f in dataclasses.fields(cls):
            default = f.default
            if isinstance(default, tuple):
                fields.append((f.name, list[int], field(default_factory=lambda value=default: list(value))))
            else:
                kind = float if isinstance(default, float) else type(default)
                fields.append((f.name, kind, default))
    fields += [(key, kind, default) for key, (kind, default) in more.items()]
    return make_dataclass(name, fields)


LayoutSettings = _schema("LayoutSettings", Layout)
PPOSettings = _schema("PPOSettings", PPOHypers)
DualSettings = _schema(
    "DualSettings", sgda.Rule, sgda.DualHypers, lam_max=(float, 20.0), lam_init=(float, 0.0), t_init=(float, 0.0)
)
SchemeSettings = _schema("SchemeSettings", Scheme)


@dataclass
class LogSettings:
    every: int = 10  # iterations between log points, about: the run is cut into equal chunks
    tensorboard: bool = False  # needs the extra `tensorboard`
    wandb: bool = False  # needs the extra `wandb`
    project: str = "riskppo"  # for W&B


@dataclass
class CheckpointSettings:
    seconds: float = 30.0  # between saves; 0 saves after every chunk
    keep: int = 3  # the latest ones


@dataclass
class EvalSettings:
    episodes: int = 100  # of the final evaluation
    points: int = 20  # evaluations during training, about; 0 for none
    point_episodes: int = 2  # of each of those
    confirm_episodes: int = 20  # more of those that keep a limit and look best, before `deploy=best` takes them
    bootstrap: int = 200  # resamples of episodes behind an interval


@dataclass
class SweepSettings:
    mode: str = "auto"  # vmap: all lanes at once; map: `batch` at a time
    batch: int = 0  # lanes at a time; 0 chooses
    grid: dict[str, Any] = field(default_factory=dict)  # traced setting -> values; `sweep.beta=[...]` lands here


@dataclass
class DistributedSettings:
    coordinator: str | None = None  # HOST:PORT of process 0; nothing is needed inside a SLURM step
    processes: int | None = None  # all of them
    rank: int | None = None  # which of them this is
    timeout: float = 60.0  # seconds to wait for the others


@dataclass
class Settings:
    """Everything a run is made from; `config.yaml` in its directory is this, resolved."""

    env: dict[str, Any] = field(default_factory=dict)  # `id` and the task's own options
    engine: str = "auto"  # native, mjx, warp, analytic; auto is native on a CPU, mjx on an accelerator
    algo: str = "riskppo"  # a preset
    risk: dict[str, Any] = field(default_factory=dict)  # of constraints that name none; a preset, CVaR at 0.3
    objective: dict[str, Any] = field(default_factory=dict)  # the same, of the reward; a preset, the mean
    constraints: Any = None  # names or mappings {name, threshold, risk}; None is all the task has a limit for
    threshold: Any = None  # a number, `paper` or `v1`; None is the task's own
    noise: float | None = None  # sd of action noise; None leaves the task's own
    seed: int = 0  # of networks, worlds and actions; evaluations have keys of their own
    total_steps: int = 1_000_000  # environment steps, all of them counted; never more
    output: str | None = None  # the run directory; by default a new one in runs/
    resume: bool = False  # go on with the run in `output`, or begin it
    start_from: str | None = None  # a run whose last networks this one begins with; prices begin anew
    start_lane: int | None = None  # of a sweep there; None is each lane's own
    report: bool = True  # figures and report.html at the end
    deploy: str = "last"  # what is evaluated and exported: the last policy, or the best of the evaluation points
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    dual: DualSettings = field(default_factory=DualSettings)
    scheme: SchemeSettings = field(default_factory=SchemeSettings)
    log: LogSettings = field(default_factory=LogSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    shard: str = "auto"  # over several devices: lanes of a sweep, envs of a single run, none
    devices: int = 0  # how many; 0 is all, and for a single run on a CPU two cores
    distributed: DistributedSettings = field(default_factory=DistributedSettings)


def conf_dir() -> Path:
    """The presets: inside the package where it was installed, beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def read_settings(words: Sequence[str]) -> Settings:
    """Settings from `key=value` words, for example `["env=SafetyHopperVelocity-v1", "risk.beta=0.1"]`."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    words = list({word.split("=", 1)[0]: word for word in words}.values())  # given twice, the last one counts
    overrides = [word for given in words for word in _translate(given)]
    ConfigStore.instance().store(name="schema", node=Settings)
    try:
        with initialize_config_dir(str(conf_dir()), version_base=None):
            config = compose("config", overrides)
        settings = OmegaConf.to_object(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise _refused(error, words) from error
    if settings.sweep.grid:
        from riskppo_jax.grid import read_grid

        settings.sweep.grid = read_grid(settings)
    return settings


def expand(words: Sequence[str]) -> Iterator[list[str]]:
    """The jobs of a multirun: every combination of the choices in comma lists, in order."""
    choices = []
    for word in words:
        override = _parse(word)
        key, sweep = word.split("=", 1)[0], override.is_sweep_override()
        choices.append([f"{key}={value}" for value in override.sweep_string_iterator()] if sweep else [word])
    return map(list, itertools.product(*choices))


def to_dict(settings: Settings) -> dict[str, Any]:
    """Plain nested dictionaries, as `config.yaml` holds them."""
    return dataclasses.asdict(settings)


def from_dict(config: Mapping[str, Any], where: str = "config.yaml") -> Settings:
    """The settings that `to_dict` wrote; complains about what this version does not know."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), dict(config)))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise UserError(f"{where} does not fit this version: {_first_line(error)}") from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted keys at which two nested dictionaries differ, with both values."""
    found = {}
    for key in [*old, *(key for key in new if key not in old)]:
        a, b, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differences(a, b, f"{name}.")
        elif a != b or (key in old) != (key in new):  # an option that is null is not one that nobody gave
            found[name] = (a, b)
    return found


def known_settings() -> dict[str, Any]:
    """Dotted key -> type, for every key of the schema, `env` and its like included."""
    kinds: dict[str, Any] = {"experiment": str}
    for f in dataclasses.fields(Settings):
        if dataclasses.is_dataclass(f.type):
            kinds |= {f"{f.name}.{sub.name}": sub.type for sub in dataclasses.fields(f.type)}
        else:
            kinds[f.name] = f.type
    return kinds


def _translate(word: str) -> list[str]:
    """Checks one override's key, and turns what people write into what Hydra reads."""
    override = _parse(word)
    word = _literal(word)
    key, text = word.split("=", 1)
    if override.is_sweep_override():
        raise UserError(f"{word}: a comma list accepts -m (multirun); without it {key} accepts one value")
    if key.startswith("sweep.") and key.removeprefix("sweep.") not in _SWEEP_OWN:
        return [f"++sweep.grid.{key.removeprefix('sweep.').removeprefix('grid.')}={text}"]
    if key == "sweep.grid":  # a whole grid at once; its names are checked when it is read
        return [f"++{word}"]
    if word == "experiment=null":  # Hydra's way to say none
        return []
    if key in ("risk", "objective", "algo", "experiment"):
        _known_choice(key, "risk" if key == "objective" else key, text)
    if key == "env":
        if text not in FAMILIES.values() and (conf_dir() / "env" / f"{text}.yaml").is_file():
            return [word]
        from riskppo_jax.envs.registry import list_envs, make_env

        if text not in list_envs():
            make_env(text)  # says what is accepted
        family = next(family for ids, family in FAMILIES.items() if fnmatchcase(text, ids))
        return [f"env={family}", f"++env.id={text}"]
    if key == "objective":
        return [f"risk@objective={text}"]
    if "." in key and key.split(".")[0] in OPEN:
        return [f"++{word}"]
    kind = known_settings().get(key)
    if kind is None:
        close = difflib.get_close_matches(key, known_settings(), n=1)
        area = key.rpartition(".")[0]
        own = [name for name in known_settings() if area and name.startswith(f"{area}.")]
        listed = own or sorted({name.split(".")[0] for name in known_settings()})
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"{key} is no setting{hint} (settings are {', '.join(listed)})")
    if kind is int and re.fullmatch(r"\d+\.?\d*[eE]\+?\d+", text) and float(text).is_integer():
        return [f"{key}={int(float(text))}"]  # total_steps=2e6
    if kind is float and text in (".inf", "-.inf", ".nan"):
        return [f"{key}={text.replace('.', '')}"]  # as YAML has them
    return [word]


def _parse(word: str):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not re.match(r"[A-Za-z_][\w.]*=", word):
        raise UserError(f"{word!r} is no setting; settings are key=value, such as risk.beta=0.1")
    try:
        return OverridesParser.create().parse_override(_literal(word))
    except HydraException as error:
        raise UserError(f"{word}: cannot be read ({_first_line(error)}); accepts key=value") from error


def _literal(word: str) -> str:
    """Paths as they are: Hydra would read `=`, brackets, commas and much else in them. Quoted or null they stay."""
    key, text = word.split("=", 1)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if known_settings().get(key) != str | None or quoted or text in ("", "null"):
        return word
    body = re.sub(r"(\\*)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"{key}='{body}'"


def _known_choice(key: str, group: str, text: str) -> None:
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    if text not in names:
        close = difflib.get_close_matches(text, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"{key}={text} is not known; {hint}{key} accepts {', '.join(names)}")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
          float | None: "a number or null", str | None: "a path", int | None: "a whole number",
          dict[str, Any]: "settings with their lists of values, {beta: [0.1, 0.3], seed: 5}"}  # fmt: skip


def _refused(error: Exception, words: Sequence[str]) -> UserError:
    """One line for what Hydra or OmegaConf complains about in several."""
    cause = error.__cause__ or error
    key = (getattr(cause, "full_key", None) or getattr(error, "full_key", None) or "").split("[")[0]
    given = next((word for word in words if word.split("=", 1)[0] == key), None)
    if given:
        return UserError(f"{given}: {key} accepts {_WORDS.get(known_settings().get(key), 'a list of whole numbers')}")
    return UserError(_first_line(cause))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""`riskppo train key=value ...`: train a policy, evaluate it, and leave a run directory."""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from riskppo_jax.errors import UserError

if TYPE_CHECKING:
    from riskppo_jax.settings import Settings

_GROUPS = {"env", "algo", "experiment", "risk", "objective"}
_WHERE = ("output", "resume", "shard", "devices", "distributed")  # where a run goes on, not what it is


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "riskppo train [-m] [key=value ...]"
    parser.epilog = (
        "Settings: env, engine, algo, risk, risk.beta, objective, constraints, threshold, noise, seed, total_steps, "
        "output, resume, start_from, start_lane, report, deploy, experiment, shard, devices, and those of layout, ppo, "
        "dual, scheme, log, checkpoint, eval and distributed: docs/settings.md has all of them. sweep.beta=[0.1,0.3] "
        "sweep.seed=5 trains a grid of traced settings in one program; -m env=a,b runs a job for each combination of "
        "what is not traced, launcher=submitit_local or submitit_slurm somewhere else than here."
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="settings, as in env=SafetyHopperVelocity-v1")
    parser.add_argument("-m", "--multirun", action="store_true", help="run every combination of comma lists, in turn")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.launch import run_jobs, split_words
    from riskppo_jax.settings import expand, read_settings

    words, launcher = split_words(args.words)
    if not args.multirun:
        if launcher["name"] != "local":
            raise UserError(f"launcher={launcher['name']}: accepts -m (multirun) beside it")
        return _job(words, None)
    if not any(word.startswith("output=") for word in words):
        words.append(f"output=runs/multirun-{time.strftime('%Y%m%d-%H%M%S')}")
    jobs = []
    for chosen in expand(words):
        label = ",".join(word for word, given in zip(chosen, words, strict=True) if word != given)
        jobs.append((label.replace("/", "_") or "job", chosen))
        folder = _checked(read_settings(chosen), launcher["name"])
        (folder / jobs[-1][0]).exists()  # a name that is too long is refused here
    return run_jobs(jobs, _job, launcher, folder / ".submitit")


def _checked(settings: "Settings", launcher: str) -> Path:
    """The folder of a job; a mistake in any of them is said before the first begins.

    What only the machine can tell that the launcher finds, its devices and whether it has Warp, is left to it.
    """
    from riskppo_jax import distributed
    from riskppo_jax.build import build
    from riskppo_jax.run import claim_cores

    if not settings.output:
        raise UserError(f"output={settings.output}: -m accepts a folder")
    if launcher != "local":
        engine = "auto" if settings.engine == "warp" else settings.engine
        build(dataclasses.replace(settings, engine=engine, shard="none", devices=0))
    elif not distributed.asked_for(settings):
        claim_cores(settings)
        build(settings)
    return Path(settings.output)


def _job(words: list[str], label: str | None) -> int:
    from riskppo_jax.engines.cache import enable_cache
    from riskppo_jax.run import train
    from riskppo_jax.rundir import read_config
    from riskppo_jax.settings import from_dict, read_settings

    settings = read_settings(words)
    if settings.output == "":
        raise UserError("output is empty; output accepts a folder")
    if settings.output is None and settings.resume:
        raise UserError("resume=true: accepts output=FOLDER beside it, the run to go on with")
    if settings.output is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        settings.output = f"runs/{settings.env['id']}-{settings.algo}-s{settings.seed}-{stamp}"
    elif label:
        settings.output = f"{settings.output}/{label}"
        if not any(word.startswith("resume=") for word in words):
            settings.resume = True  # the same command again goes on
    folder = Path(settings.output)
    if settings.resume and (folder / "config.yaml").exists():
        settings = _continued(from_dict(read_config(folder)), settings, [word.split("=")[0] for word in words])
    enable_cache()
    return train(settings)


def _continued(held: "Settings", given: "Settings", keys: list[str]) -> "Settings":
    """`resume=true output=RUN` means: as it was, with what is typed beside it, wherever we are now.

    Words that choose whole groups of settings are those of a command typed again: then it counts as it stands.
    """
    if set(keys) & _GROUPS:
        return given
    for name in _WHERE:
        setattr(held, name, getattr(given, name))
    for key in keys:
        area, _, name = key.rpartition(".")
        if (area == "sweep" and name not in ("mode", "batch")) or area.startswith("sweep."):
            area, name = "sweep", "grid"
        if area and not hasattr(held, area):
            return given
        into, source = (getattr(which, area) if area else which for which in (held, given))
        if isinstance(into, dict):
            into[name] = source.get(name)
        else:
            setattr(into, name, getattr(source, name))
    return held

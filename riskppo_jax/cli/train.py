"""`riskppo train key=value ...`: train a policy, evaluate it, and leave a run directory."""

import argparse
import time
from pathlib import Path

from riskppo_jax.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "riskppo train [-m] [key=value ...]"
    parser.epilog = (
        "Settings: env, engine, algo, risk, risk.beta, objective, constraints, threshold, noise, seed, total_steps, "
        "output, resume, and those of layout, ppo, dual, scheme, log, checkpoint and eval."
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="settings, as in env=SafetyHopperVelocity-v1")
    parser.add_argument("-m", "--multirun", action="store_true", help="run every combination of comma lists, in turn")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.settings import expand

    if not args.multirun:
        return _job(args.words, None)
    jobs = list(expand(args.words))
    code = 0
    for number, words in enumerate(jobs):
        label = ",".join(word for word, given in zip(words, args.words, strict=True) if word != given)
        print(f"job {number + 1} of {len(jobs)}: {label}", flush=True)
        found = _job(words, label.replace("/", "_") or "job")
        if found > 2:  # a signal: the jobs that follow were not wanted either
            return found
        code = max(code, found)
    return code


def _job(words: list[str], label: str | None) -> int:
    from riskppo_jax.engines.cache import enable_cache
    from riskppo_jax.run import read_config, train
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
    folder = Path(settings.output)
    alone = {word.split("=")[0] for word in words} <= {"output", "resume"}
    if settings.resume and alone and (folder / "config.yaml").exists():
        held = from_dict(read_config(folder))  # `resume=true output=RUN` alone means: as it was
        held.output, held.resume = settings.output, True
        settings = held
    enable_cache()
    return train(settings)

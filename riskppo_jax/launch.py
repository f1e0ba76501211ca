"""Where the jobs of a multirun go: one after the other here, or through submitit as processes or a SLURM array."""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from riskppo_jax.errors import UserError, about_file
from riskppo_jax.settings import conf_dir

Job = tuple[str, list[str]]  # label and settings
_WORDS = ("launcher", "hydra/launcher")
_PREFIXES = ("launcher.", "hydra.launcher.")


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Settings without those of the launcher, and the launcher's: `launcher=NAME`, `launcher.timeout_min=60`."""
    own, name, options = [], "local", {}
    for word in words:
        key, _, text = word.partition("=")
        prefix = next((p for p in _PREFIXES if key.startswith(p)), None)
        if key in _WORDS:
            name = text
        elif prefix:
            options[key.removeprefix(prefix)] = _value(word, text)
        else:
            own.append(word)
    names = sorted(path.stem for path in (conf_dir() / "launcher").glob("*.yaml"))
    if name not in names:
        raise UserError(f"launcher={name} is not known; launcher accepts {', '.join(names)}")
    if name == "local" and options:
        raise UserError(f"launcher.{next(iter(options))}: accepts another launcher than local beside it")
    preset = yaml.safe_load((conf_dir() / "launcher" / f"{name}.yaml").read_text())
    return own, preset | options


def _value(word: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{word}: is not a value; accepts a number, a word or a list in brackets") from error


def run_jobs(jobs: Sequence[Job], run: Callable[[list[str], str], int], launcher: dict[str, Any], logs: Path) -> int:
    """Runs all jobs and returns the largest of their exit codes; a signal ends the rest as well.

    Args:
      jobs: label and settings of each.
      run: does one of them and returns its exit code.
      launcher: from `split_words`.
      logs: folder for what submitit writes.
    """
    options = dict(launcher)
    name = options.pop("name")
    if name == "local":
        return _here(jobs, run)
    executor, parallel = _executor(name, options, logs)
    code = 0
    for start in range(0, len(jobs), parallel):
        batch = jobs[start : start + parallel]
        with executor.batch():
            tickets = [executor.submit(_quiet, run, words, label) for label, words in batch]
        try:
            for ticket, (label, _) in zip(tickets, batch, strict=True):
                print(f"job {ticket.job_id}: {label}", flush=True)
            for ticket, (label, _) in zip(tickets, batch, strict=True):
                code = max(code, _wait(ticket, label))
        except KeyboardInterrupt:
            for ticket in tickets:
                ticket.cancel()
            return 130
    return code


def _here(jobs: Sequence[Job], run: Callable[[list[str], str], int]) -> int:
    code = 0
    for number, (label, words) in enumerate(jobs):
        print(f"job {number + 1} of {len(jobs)}: {label}", flush=True)
        try:
            found, complaint = _quiet(run, words, label)
        except Exception as error:  # whatever ended this job, the others were asked for, too
            traceback.print_exc()
            found, complaint = 1, f"was lost: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        if complaint:
            print(f"riskppo: job {number + 1} ({label}): {complaint}", file=sys.stderr)
        if found > 2:  # a signal: the jobs that follow were not wanted either
            return found
        code = max(code, found)
    return code


def _executor(name: str, options: dict[str, Any], logs: Path) -> tuple[Any, int]:
    try:
        import submitit
    except ImportError:
        raise UserError(f"launcher={name}: accepts an installed riskppo-jax[submitit]") from None
    parallel = options.pop("parallel", None)
    cluster = name.removeprefix("submitit_")
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
        executor.update_parameters(**options)
    except RuntimeError as error:
        raise UserError(f"launcher={name}: {str(error).rstrip('?.')}; accepts a machine with SLURM") from error
    except (NameError, TypeError, ValueError, AssertionError) as error:
        text = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise UserError(f"launcher={name}: {text}; accepts the parameters of submitit's executor") from error
    if parallel is not None and (not isinstance(parallel, int) or parallel < 1):
        raise UserError(f"launcher.parallel={parallel}: accepts a whole number, 1 or larger")
    return executor, parallel or 2**31


def _quiet(run: Callable[[list[str], str], int], words: list[str], label: str) -> tuple[int, str]:
    """Exit code and complaint: an error crosses processes better as plain words."""
    try:
        return run(words, label), ""
    except UserError as error:
        return 2, str(error)
    except OSError as error:
        if error.filename is None:
            raise
        return 2, about_file(error)


def _wait(ticket: Any, label: str) -> int:
    try:
        code, complaint = ticket.result()
    except Exception as error:  # whatever ended the process: its log has the traceback
        print(f"job {ticket.job_id} ({label}) was lost: {str(error).splitlines()[0]}; see {ticket.paths.stderr}",
              file=sys.stderr)  # fmt: skip
        return 1
    if complaint:
        print(f"riskppo: job {ticket.job_id} ({label}): {complaint}", file=sys.stderr)
    else:
        print(f"job {ticket.job_id}: {label}: done, exit code {code}", flush=True)
    return code

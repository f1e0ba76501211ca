"""Runs that are killed, stopped or starved of disk go on as if nothing had happened."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tabular_cli
from tabular_cli import TINY

from riskppo_jax import checkpoint
from riskppo_jax.cli import main

CHUNKS = 24
RUN = [*TINY, "log.every=1", f"total_steps={32 * CHUNKS}", "checkpoint.seconds=0", "checkpoint.keep=2"]
LANES = 3  # not a multiple of two cores: one of them trains a lane that nobody asked for
SWEEP = [f"sweep.seed={LANES}"]
PAIR = ["env=SafetyHopperVelocity-v1", "engine=native", "layout.num_envs=16", "layout.horizon=2", "eval.points=2"]


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory):
    """Programs are compiled once for all processes of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RISKPPO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield dict(os.environ)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, environment):
    """The same run, left in peace."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    assert start(folder, environment).wait() == 0
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory, environment):
    """The same as a sweep, left in peace."""
    folder = tmp_path_factory.mktemp("swept") / "run"
    process = start(folder, environment, *SWEEP)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return folder


def start(folder: Path, environment: dict, *words: str) -> subprocess.Popen:
    command = [sys.executable, tabular_cli.__file__, "train", *RUN, f"output={folder}", "resume=true", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def lines(folder: Path) -> list[dict]:
    """Log points without what depends on the clock."""
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in point.items() if not k.startswith("perf/")} for point in points]


def count(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def assert_same(folder: Path, reference: Path, lanes: int = 1) -> None:
    assert lines(folder) == lines(reference)
    logged = [(point["train/env_steps"], point.get("sweep/lane", 0)) for point in lines(folder)]
    assert logged == [(32 * (chunk + 1), lane) for chunk in range(CHUNKS) for lane in range(lanes)]
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (folder, reference))
    assert ours["lanes"] == theirs["lanes"] and ours["env_steps"] == theirs["env_steps"] == 32 * CHUNKS
    assert len(ours["lanes"]) == lanes
    with np.load(folder / "samples.npz") as a, np.load(reference / "samples.npz") as b:
        assert a.files == b.files and all(np.array_equal(a[name], b[name]) for name in b.files)


def kill_and_finish(folder: Path, environment: dict, kills: int, seed: int, *words: str) -> None:
    """Kills the run at random moments after it has logged something new, then lets it finish."""
    draw, killed = random.Random(seed), 0
    for _ in range(kills):
        process = start(folder, environment, *words)
        goal, before = draw.randint(1, 2), count(folder)
        while process.poll() is None and count(folder) < before + goal:
            time.sleep(0.002)
        time.sleep(draw.uniform(0.0, 0.3))  # in the middle of a chunk, a line, a save, a rename
        process.kill()
        said, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), said
        killed += process.returncode < 0
    assert killed and checkpoint.steps(folder / "checkpoints")  # it goes on from somewhere
    process = start(folder, environment, *words)
    said, _ = process.communicate()
    assert process.returncode == 0, said


def test_killed_runs_end_with_the_same_numbers(tmp_path, environment, reference):
    kill_and_finish(tmp_path / "run", environment, kills=3, seed=0)
    assert_same(tmp_path / "run", reference)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_killed_runs_on_two_cores_end_with_the_same_numbers(tmp_path, environment):
    said, _ = start(tmp_path / "whole", environment, *PAIR).communicate()
    assert "2 devices" in said
    kill_and_finish(tmp_path / "run", environment, 1, 0, *PAIR)
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_twenty_kills(tmp_path, environment, reference):
    kill_and_finish(tmp_path / "run", environment, kills=20, seed=1)
    assert_same(tmp_path / "run", reference)


@pytest.mark.slow
def test_killed_sweeps_end_with_the_same_numbers(tmp_path, environment, swept):
    kill_and_finish(tmp_path / "run", environment, 6, 2, *SWEEP)
    assert_same(tmp_path / "run", swept, LANES)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_say_how_to_resume(tmp_path, environment, reference, number, code):
    folder = tmp_path / "run"
    process = start(folder, environment)
    while process.poll() is None and count(folder) < 2:
        time.sleep(0.002)
    process.send_signal(number)
    said, _ = process.communicate()
    assert process.returncode == code, said
    assert f"riskppo train resume=true output={folder}" in said
    notes = checkpoint.read_meta(checkpoint.latest(folder / "checkpoints"))["notes"]
    assert notes["log_lines"] == count(folder) < CHUNKS
    # no other words are needed: the run knows its settings
    assert main(["train", "resume=true", f"output={folder}"]) == 0
    assert_same(folder, reference)


def test_a_finished_run_stays_finished(reference, capsys):
    before = (reference / "summary.json").read_bytes()
    assert main(["train", "resume=true", f"output={reference}"]) == 0
    assert "is finished" in capsys.readouterr().out
    assert (reference / "summary.json").read_bytes() == before


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, reference, monkeypatch, capsys):
    folder, write = tmp_path / "run", checkpoint._write_arrays
    saves = []

    def full(path, arrays):
        saves.append(path)
        if len(saves) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, arrays)

    monkeypatch.setattr(checkpoint, "_write_arrays", full)
    assert main(["train", *RUN, f"output={folder}"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and "no space left" in said and "000000003" in said
    assert not list((folder / "checkpoints").glob(".*"))
    monkeypatch.undo()
    assert main(["train", "resume=true", f"output={folder}"]) == 0
    assert_same(folder, reference)


def test_damaged_checkpoints_are_refused_and_the_older_one_offered(tmp_path, reference, capsys):
    folder = tmp_path / "run"
    shutil.copytree(reference, folder)
    (folder / "summary.json").unlink()
    newest, older = checkpoint.steps(folder / "checkpoints")[-1], checkpoint.steps(folder / "checkpoints")[-2]
    victim = max((path for path in (newest / "arrays").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-7])
    assert main(["train", "resume=true", f"output={folder}"]) == 2
    said = capsys.readouterr().err.strip()
    assert "damaged" in said and f"{older.name} is intact" in said and said.count("\n") == 0
    shutil.rmtree(newest)  # as the line proposes
    assert main(["train", "resume=true", f"output={folder}"]) == 0
    assert_same(folder, reference)


@pytest.mark.parametrize(
    ("words", "named"),
    [(["seed=1"], "seed"), (["layout.hidden_sizes=[5]"], "layout.hidden_sizes"), (["risk.beta=0.2"], "risk.beta")],
)
def test_other_settings_do_not_resume(reference, capsys, words, named):
    assert main(["train", *RUN, f"output={reference}", "resume=true", *words]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1


def test_more_steps_may_be_asked_for(tmp_path, reference):
    folder = tmp_path / "run"
    shutil.copytree(reference, folder)
    words = [word for word in RUN if not word.startswith("total_steps")]
    assert main(["train", *words, f"total_steps={64 * CHUNKS}", f"output={folder}", "resume=true"]) == 0
    assert json.loads((folder / "summary.json").read_text())["env_steps"] == 64 * CHUNKS

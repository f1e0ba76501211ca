"""Several processes: two of them on this machine train what one trains, and one alone can go on."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tabular_cli
from tabular_cli import TINY

from riskppo_jax.cli import main

RUN = [*TINY, "total_steps=128", "eval.points=0", "sweep.seed=2", "sweep.mode=map"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder: Path, words: list[str], processes: int = 1) -> list[subprocess.Popen]:
    """The same command on every host, each with its own rank."""
    port, found = free_port(), []
    for rank in range(processes):
        own = [f"distributed.coordinator=127.0.0.1:{port}", f"distributed.processes={processes}",
               f"distributed.rank={rank}"] if processes > 1 else []  # fmt: skip
        command = [sys.executable, tabular_cli.__file__, "train", *words, *own, f"output={folder}"]
        found.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return found


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=500) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


def points(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in point.items() if not name.startswith("perf/")} for point in found]


def test_two_processes_train_one_sweep(tmp_path):
    (code, said, wrong), (other, nothing, _) = finish(start(tmp_path / "two", RUN, processes=2))
    assert (code, other) == (0, 0), wrong[-3000:]
    assert "2 devices" in said and "written" in said and not nothing  # process 0 alone speaks
    assert main(["train", *RUN, f"output={tmp_path / 'one'}"]) == 0
    assert points(tmp_path / "two") == points(tmp_path / "one")
    two, one = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("two", "one"))
    assert two["lanes"] == one["lanes"]
    assert main(["train", "resume=true", f"output={tmp_path / 'two'}"]) == 0  # alone, and nothing is left to do


@pytest.mark.slow
def test_two_processes_train_one_run(tmp_path):
    words = [word for word in RUN if not word.startswith("sweep.")]
    (code, _, wrong), (other, _, _) = finish(start(tmp_path / "two", words, processes=2))
    assert (code, other) == (0, 0), wrong[-3000:]
    assert main(["train", *words, f"output={tmp_path / 'one'}"]) == 0
    for two, one in zip(points(tmp_path / "two"), points(tmp_path / "one"), strict=True):
        for name, value in one.items():
            np.testing.assert_allclose(two[name], value, rtol=1e-3, atol=1e-5, err_msg=name) if value is not None else 0


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_run_and_one_alone_goes_on(tmp_path, lost):
    folder = tmp_path / "run"
    words = [word for word in RUN if not word.startswith("total_steps")]
    words += ["total_steps=32000", "checkpoint.seconds=0", "log.every=1"]
    processes = start(folder, words, processes=2)
    while not list(folder.glob("checkpoints/0*")) and processes[0].poll() is None:
        time.sleep(0.1)
    processes[lost].kill()
    found = finish(processes)
    code, _, wrong = found[1 - lost]
    assert code == 1 and "was lost" in wrong and f"resume=true output={folder}" in wrong
    kept = sorted(folder.glob("checkpoints/0*"))
    assert kept and not (folder / "summary.json").exists()
    done = int(kept[-1].name) * 32
    words = [word for word in words if not word.startswith("total_steps")]
    assert main(["train", *words, f"output={folder}", "resume=true", f"total_steps={done + 64}"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["env_steps"] == done + 64 and len(summary["lanes"]) == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["coordinator=127.0.0.1:{port}", "processes=2", "rank=1", "timeout=1"], ["did not answer within 1 s"]),
        (["coordinator=127.0.0.1:{port}", "processes=2"], ["distributed.rank", "missing"]),
        (["processes=2", "rank=0"], ["distributed.coordinator", "missing"]),
        (["coordinator=localhost", "processes=2", "rank=0"], ["coordinator=localhost", "HOST:PORT"]),
        (["coordinator=127.0.0.1:{port}", "processes=2", "rank=2"], ["distributed.rank=2", "0 to 1"]),
        (["coordinator=127.0.0.1:{port}", "processes=0", "rank=0"], ["distributed.processes=0", "1 or larger"]),
        (["coordinator=127.0.0.1:{port}", "processes=two", "rank=0"], ["distributed.processes=two", "whole number"]),
    ],
)
def test_a_bad_address_is_one_line(words, named, capsys, tmp_path):
    words = [f"distributed.{word}".format(port=free_port()) for word in words]
    began = time.monotonic()
    assert main(["train", *TINY, *words, f"output={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(part in said for part in named), said
    assert time.monotonic() - began < 10 and not (tmp_path / "run").exists()


def test_process_zero_does_not_wait_for_ever(tmp_path):
    words = [*TINY, f"distributed.coordinator=127.0.0.1:{free_port()}", "distributed.processes=2", "distributed.rank=0"]
    command = [sys.executable, tabular_cli.__file__, "train", *words, "distributed.timeout=3", f"output={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=dict(os.environ))
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1 and "not all 2 processes met within 3 s" in done.stderr

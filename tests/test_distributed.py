"""Several processes: two of them on this machine train what one trains, and one alone can go on."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import tabular_cli
from tabular_cli import TINY

from riskppo_jax import distributed
from riskppo_jax.cli import main
from riskppo_jax.settings import read_settings

RUN = [*TINY, "total_steps=128", "eval.points=0", "sweep.seed=2", "sweep.mode=map"]
SECOND = ["coordinator=127.0.0.1:{port}", "processes=2", "rank=1"]
# what srun tells the second of two tasks, each on a node of its own
STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}  # fmt: skip


@pytest.fixture
def outside(monkeypatch):
    """Whatever started these tests, they begin outside of SLURM."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "JAX_COORDINATOR", "JAX_LOCAL", "CUDA_VISIBLE", "ROCR_VISIBLE")):
            monkeypatch.delenv(name)
    return monkeypatch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder: Path, words: list[str], slurm: bool = False) -> list[subprocess.Popen]:
    """The same command twice: each process is told its rank, by its settings or as srun would."""
    port, found = free_port(), []
    for rank in range(2):
        told, environment = [], dict(os.environ)
        if slurm:
            environment |= STEP | {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1",
                                   "SLURM_PROCID": f"{rank}", "SLURM_LOCALID": f"{rank}",
                                   "JAX_COORDINATOR_PORT": f"{port}"}  # fmt: skip
        else:
            told = [f"distributed.coordinator=127.0.0.1:{port}", "distributed.processes=2", f"distributed.rank={rank}"]
        command = [sys.executable, tabular_cli.__file__, "train", *words, *told, f"output={folder}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        found.append(subprocess.Popen(command, env=environment, **pipes))
    return found


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=500) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


def points(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in point.items() if not name.startswith("perf/")} for point in found]


@pytest.mark.parametrize("slurm", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_train_one_sweep(tmp_path, outside, slurm):
    (code, said, wrong), (other, nothing, _) = finish(start(tmp_path / "two", RUN, slurm))
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
    (code, _, wrong), (other, _, _) = finish(start(tmp_path / "two", words))
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
    processes = start(folder, words)
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


def handed(monkeypatch, step: dict[str, str], *words: str) -> dict | None:
    """What JAX would be told inside this step of SLURM; None if the process is to stay alone."""
    calls, met = [], []
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "_meet", lambda *args: met.append(args))
    monkeypatch.setattr(distributed, "_lines", [None])
    monkeypatch.setattr(distributed, "_listen", lambda *_: None)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: calls.append((args, options)))
    distributed.start(read_settings(list(words)))
    assert len(calls) == len(met) <= 1  # the bounded wait comes first
    if not calls:
        return None
    (address, processes, rank), options = calls[0]
    host, port, *others, _ = met[0]
    assert (f"{host}:{port}", *others) == (address, rank, processes)
    return {"address": address, "processes": processes, "rank": rank, **options}


def test_a_slurm_step_says_who_takes_part(outside):
    found = handed(outside, STEP, "distributed.timeout=7")
    assert found == {
        "address": "gpu07:62055", "processes": 2, "rank": 1, "initialization_timeout": 7,  # 61440 + 4711 % 4096
        "heartbeat_timeout_seconds": 30, "local_device_ids": None, "cluster_detection_method": "deactivate",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-008,011],login1", "gpu007"),
        ("cn[3,5]", "cn3"),
        ("rack[1-2]-n[09-10].site,other", "rack1-n09.site"),
    ],
)
def test_the_first_node_of_a_step_is_the_coordinator(outside, nodes, first):
    assert handed(outside, STEP | {"SLURM_STEP_NODELIST": nodes})["address"] == f"{first}:62055"


def test_steps_of_one_job_do_not_share_a_port(outside):
    addresses = {handed(outside, STEP | {"SLURM_STEP_ID": f"{step}"})["address"] for step in range(5)}
    assert len(addresses) == 5
    assert handed(outside, STEP | {"JAX_COORDINATOR_PORT": "1234"})["address"] == "gpu07:1234"


@pytest.mark.parametrize(
    ("more", "devices"),
    [
        ({}, [1]),  # two tasks on a node see all of its devices
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),  # SLURM gave each its own
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_PER_TASK": "2"}, None),
        ({"JAX_LOCAL_DEVICE_IDS": "2,3"}, None),  # JAX reads it
        ({"SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, None),  # the node is this task's
    ],
)
def test_tasks_of_a_node_take_a_device_each(outside, more, devices):
    found = handed(outside, STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": "1"} | more)
    assert found["local_device_ids"] == devices


def test_settings_go_before_slurm(outside):
    found = handed(outside, STEP, "distributed.coordinator=there:99")
    assert (found["address"], found["processes"], found["rank"]) == ("there:99", 2, 1)
    words = ["distributed.coordinator=here:98", "distributed.processes=3", "distributed.rank=2"]
    found = handed(outside, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "x"}, *words)  # nothing is asked of SLURM
    assert (found["address"], found["processes"], found["rank"]) == ("here:98", 3, 2)
    assert "local_device_ids" not in found


@pytest.mark.parametrize(
    "step",
    [
        {},
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        # the script of `sbatch --ntasks=2` itself, which no srun has doubled
        {name: value for name, value in STEP.items() if "STEP" not in name} | {"SLURM_PROCID": "0"},
    ],
)
def test_a_process_alone_stays_alone(outside, step):
    assert handed(outside, step) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"SLURM_PROCID": ""}, ["SLURM_PROCID: is missing", "srun", "distributed.rank"]),
        ({"SLURM_PROCID": "first"}, ["SLURM_PROCID=first", "whole number"]),
        ({"SLURM_PROCID": "2"}, ["rank=2", "0 to 1"]),
        ({"SLURM_STEP_NUM_TASKS": "two"}, ["SLURM_STEP_NUM_TASKS=two", "whole number"]),
        ({"SLURM_STEP_NODELIST": ""}, ["SLURM_STEP_NODELIST: is missing", "nodes", "distributed.coordinator"]),
        ({"SLURM_STEP_NODELIST": "gpu[01"}, ["SLURM_STEP_NODELIST=gpu[01", "nodes"]),
        ({"SLURM_JOB_ID": ""}, ["SLURM_JOB_ID: is missing"]),
        ({"SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": ""}, ["SLURM_LOCALID: is missing"]),
        ({"JAX_COORDINATOR_PORT": "http"}, ["gpu07:http", "HOST:PORT"]),
        ({"SLURM_STEP_NODELIST": "127.0.0.1"}, ["coordinator=127.0.0.1:{port}", "did not answer within 1 s"]),
    ],
)
def test_a_bad_step_is_one_line(outside, capsys, tmp_path, change, named):
    port = free_port()
    for name, value in ({"JAX_COORDINATOR_PORT": f"{port}"} | STEP | change).items():
        outside.setenv(name, value)
    began = time.monotonic()
    assert main(["train", *TINY, "distributed.timeout=1", f"output={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(part.format(port=port) in said for part in named), said
    assert time.monotonic() - began < 10 and not (tmp_path / "run").exists()


def test_strangers_at_the_door_are_not_counted(monkeypatch):
    """Somebody tries every port of the machine while process 0 waits for process 1."""
    port, lines = free_port(), []
    monkeypatch.setattr(distributed, "_lines", lines)
    host = threading.Thread(target=distributed._meet, args=("127.0.0.1", port, 0, 2, 20.0))
    host.start()
    strangers = []
    for word in (b"GET / HTTP/1.0", b"riskppo", b"riskppo 2", b"riskppo me", None):  # the last one says nothing
        while True:
            try:
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                break
            except ConnectionRefusedError:
                assert host.is_alive()
                time.sleep(0.01)
        strangers[-1].sendall(word) if word else None
    distributed._meet("127.0.0.1", port, 1, 2, 20.0)
    host.join(20)
    assert not host.is_alive() and len(lines) == 2  # one end each
    for line in [*lines, *strangers]:
        line.close()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([*SECOND, "timeout=1"], ["did not answer within 1 s"]),
        (["coordinator=127.0.0.1:{port}", "processes=2"], ["distributed.rank", "missing"]),
        (["processes=2", "rank=0"], ["distributed.coordinator", "missing"]),
        (["coordinator=a..b:1234", "processes=2", "rank=1"], ["coordinator=a..b:1234", "HOST:PORT"]),
        (["coordinator=localhost", "processes=2", "rank=0"], ["coordinator=localhost", "HOST:PORT"]),
        (["coordinator=127.0.0.1:{port}", "processes=2", "rank=2"], ["distributed.rank=2", "0 to 1"]),
        (["coordinator=127.0.0.1:{port}", "processes=0", "rank=0"], ["distributed.processes=0", "1 or larger"]),
        (["coordinator=127.0.0.1:{port}", "processes=two", "rank=0"], ["distributed.processes=two", "whole number"]),
        ([*SECOND, "timeout=0"], ["distributed.timeout=0", "above 0"]),
        ([*SECOND, "timeout=-1"], ["distributed.timeout=-1", "above 0"]),
        ([*SECOND, "timeout=nan"], ["distributed.timeout=nan", "above 0"]),
        ([*SECOND, "timeout=inf"], ["distributed.timeout=inf", "up to"]),
    ],
)
def test_a_bad_address_is_one_line(words, named, capsys, tmp_path):
    words = [f"distributed.{word}".format(port=free_port()) for word in words]
    began = time.monotonic()
    assert main(["train", *TINY, *words, f"output={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(part in said for part in named), said
    assert time.monotonic() - began < 10 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("hangs", [True, False])
def test_somebody_else_behind_the_address(hangs, capsys, tmp_path):
    """What listens there takes the call and never speaks, or hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        if not hangs:
            threading.Thread(target=_hang_up, args=(door,), daemon=True).start()
        where = f"distributed.coordinator=127.0.0.1:{door.getsockname()[1]}"
        words = [where, "distributed.processes=2", "distributed.rank=1", "distributed.timeout=1"]
        began = time.monotonic()
        assert main(["train", *TINY, *words, f"output={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{where}: did not answer within 1 s" in said, said
    assert time.monotonic() - began < 10


def _hang_up(door: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            door.accept()[0].close()


def test_process_zero_does_not_wait_for_ever(tmp_path):
    words = [*TINY, f"distributed.coordinator=127.0.0.1:{free_port()}", "distributed.processes=2", "distributed.rank=0"]
    command = [sys.executable, tabular_cli.__file__, "train", *words, "distributed.timeout=3", f"output={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=dict(os.environ))
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1 and "not all 2 processes met within 3 s" in done.stderr

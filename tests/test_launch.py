"""Multiruns: a folder of jobs that one report reads, each a sweep of its own, here or through submitit."""

import json

import pytest
import submitit  # noqa: F401  # now: it configures logging when it is first imported, for the streams it finds
from tabular_cli import TINY

from riskppo_jax import launch
from riskppo_jax import run as run_module
from riskppo_jax.cli import main
from riskppo_jax.errors import UserError
from riskppo_jax.runs import read_runs


def test_words_of_the_launcher():
    assert launch.split_words(["seed=1"]) == (["seed=1"], {"name": "local"})
    words, options = launch.split_words(
        ["seed=1", "hydra/launcher=submitit_slurm", "launcher.timeout_min=5", "hydra.launcher.partition=gpu"]
    )
    assert words == ["seed=1"] and options["name"] == "submitit_slurm"
    assert (options["timeout_min"], options["partition"]) == (5, "gpu")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-m", "launcher=cloud", "seed=0,1"], ["launcher=cloud", "submitit_local"]),
        (["launcher=submitit_local"], ["launcher=submitit_local", "-m"]),
        (["-m", "launcher=submitit_slurm", "seed=0,1"], ["launcher=submitit_slurm", "SLURM"]),
        (["-m", "launcher=submitit_local", "launcher.colour=red", "seed=0,1"], ["submitit_local", "colour"]),
        (["-m", "launcher=submitit_local", "launcher.parallel=0", "seed=0,1"], ["launcher.parallel=0"]),
        (["-m", "seed=0,x"], ["seed=x", "whole number"]),
        (["-m", "ppo.gamma=0.9,1.5"], ["ppo.gamma=1.5"]),
        (["-m", "env=SafetyHopperVelocity-v1,SafetyAntVelocity-v1", "threshold=paper"], ["threshold=paper", "v1"]),
    ],
)
def test_bad_words_are_refused_before_any_job(words, named, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("riskppo_jax.run._loop", lambda *_: pytest.fail("training began"))
    assert main(["train", *words, f"output={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(part in said for part in named), said


def test_finished_jobs_are_skipped_and_half_done_ones_go_on(tmp_path, capsys, monkeypatch):
    """The second of two jobs is stopped on its way; the same command again does only what is left."""
    words = ["-m", *TINY, "total_steps=128", "eval.points=0", "risk.beta=0.3,1.0", "sweep.seed=2",
             "checkpoint.seconds=0", f"output={tmp_path}"]  # fmt: skip
    loop, began = run_module._loop, []

    def watched(job, folder, state, progress, *rest):
        began.append((folder.name, progress.iterations))
        if len(began) == 2:
            job = job._replace(chunks=1)  # as a signal after the first chunk would
        found = loop(job, folder, state, progress, *rest)
        return (*found[:2], 143) if len(began) == 2 else found

    monkeypatch.setattr(run_module, "_loop", watched)
    assert main(["train", *words]) == 143
    assert main(["train", *words]) == 0
    first, second = "risk.beta=0.3", "risk.beta=1.0"
    assert began == [(first, 0), (second, 0), (second, 2)]
    said = capsys.readouterr().out
    assert f"{tmp_path / first} is finished" in said
    runs = read_runs([tmp_path])
    assert sorted(run.name for run in runs) == [first, second] and all(len(run.lanes) == 2 for run in runs)
    assert all(lane.found["point"]["seed"] == i for run in runs for i, lane in enumerate(run.lanes))


def test_a_job_that_is_refused_elsewhere_says_so_here(tmp_path, capsys):
    """Through submitit, in another process: a mistake that only the job itself can see."""
    words = ["-m", "env=SafetyHopperVelocity-v1", "seed=0,1", "hydra/launcher=submitit_local"]
    words.append("launcher.parallel=2")
    (tmp_path / "runs").mkdir()
    for seed in (0, 1):
        (tmp_path / "runs" / f"seed={seed}").write_text("a file where a folder should be")
    assert main(["train", *words, f"output={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 2 and "seed=0" in said and "accepts a folder" in said


@pytest.mark.slow
def test_submitit_local_trains(tmp_path, capsys):
    words = ["-m", "env=SafetySwimmerVelocity-v1", "env.time_limit=20", "sweep.beta=[0.3,1.0]", "total_steps=128",
             *(word for word in TINY if not word.startswith("env="))]  # fmt: skip
    words += ["scheme.units=threshold,raw", "hydra/launcher=submitit_local", f"output={tmp_path}"]
    assert main(["train", *words]) == 0
    for name in ("scheme.units=threshold", "scheme.units=raw"):
        assert len(json.loads((tmp_path / name / "summary.json").read_text())["lanes"]) == 2


def test_executors_need_submitit(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    with pytest.raises(UserError, match=r"riskppo-jax\[submitit\]"):
        launch.run_jobs([("a", [])], lambda *_: 0, {"name": "submitit_local"}, tmp_path)


def test_a_refused_job_does_not_take_the_others_with_it(capsys):
    ran = []

    def run(words, label):
        if label == "b":
            raise UserError("b=1: accepts 2")
        ran.append(label)
        return 0

    assert launch.run_jobs([(name, []) for name in "abc"], run, {"name": "local"}, None) == 2
    assert ran == ["a", "c"] and "job 2 (b): b=1: accepts 2" in capsys.readouterr().err


def test_nor_does_one_that_breaks(capsys):
    def run(words, label):
        if label == "a":
            raise RuntimeError("out of memory\nand more")
        if label == "b":
            raise OSError(36, "File name too long", "x" * 300)
        return 0

    assert launch.run_jobs([(name, []) for name in "abc"], run, {"name": "local"}, None) == 2
    said = capsys.readouterr().err
    assert "job 1 (a): was lost: out of memory\n" in said and "File name too long; accepts" in said


def test_a_label_too_long_for_a_folder_is_refused_before_any_job(tmp_path, capsys):
    words = [*TINY, "total_steps=64", f"log.project={'a' * 260},b", f"output={tmp_path}"]
    assert main(["train", "-m", *words]) == 2
    said = capsys.readouterr()
    assert "File name too long" in said.err and said.err.count("\n") == 1 and "job 1" not in said.out


@pytest.mark.parametrize("word", ["launcher.timeout_min=[60", "launcher.timeout_min=60"])
def test_words_that_no_launcher_hears(word):
    with pytest.raises(UserError, match=r"launcher\.timeout_min.*accepts"):
        launch.split_words(["-m", word])


def test_a_cluster_is_not_judged_by_the_machine_that_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "run_jobs", lambda jobs, *rest: 40 + len(jobs))
    words = ["-m", *TINY, "devices=8", "shard=envs", "seed=0,1", f"output={tmp_path}"]
    assert main(["train", *words, "launcher=submitit_slurm"]) == 42
    assert main(["train", *words]) == 2  # here it would not do

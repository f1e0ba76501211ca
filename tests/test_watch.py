"""Curves as text, for a run in progress and one that has ended."""

import json
import os
import threading

import numpy as np
import yaml
from fake_runs import fake_run
from rich.console import Console

from riskppo_jax.cli import main
from riskppo_jax.report import page
from riskppo_jax.runs import read_run
from riskppo_jax.watch import Series, chart, watch


def lines(text):
    return text.plain.splitlines()


def test_a_chart_puts_curves_where_they_belong():
    steps = np.linspace(0, 10, 11)
    drawn = lines(
        chart("title", [Series("c", steps, steps * 0 + 5), Series("risk", steps, steps)], width=40, height=11)
    )
    assert drawn[0] == "title" and drawn[1].startswith("10 |") and drawn[11].startswith(" 0 |")
    assert drawn[1].rstrip().endswith("+") and drawn[11][4] == "+"  # from the lower left to the upper right
    assert drawn[6].count("-") >= 30 and "- c 5" in drawn[12] and "+ risk 10" in drawn[12]


def test_empty_flat_and_single_curves():
    assert "nothing yet" in chart("a", [Series("x", np.zeros(0), np.zeros(0))]).plain
    assert "x 3" in chart("a", [Series("x", np.arange(3.0), np.full(3, 3.0))]).plain
    assert "x 3" in chart("a", [Series("x", np.array([1.0]), np.array([3.0]))]).plain


def test_once(tmp_path, capsys):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1, finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"train/env_ste')  # being written
    assert main(["watch", str(run), "--once"]) == 0
    out = capsys.readouterr().out
    for word in ("return (evaluation)", "cost per step", "risk against c", "-t and its best value", "lambda"):
        assert word in out
    assert "200,000 of 200,000 steps (100%), 9,000 a second" in out


def test_a_lane_of_a_sweep(tmp_path, capsys):
    run = fake_run(tmp_path / "run", betas=(0.1, 0.3), seeds=1)
    assert main(["watch", str(run), "--once", "--lane", "1"]) == 0
    assert "lane 1 of 2" in capsys.readouterr().out
    assert main(["watch", str(run), "--once", "--lane", "2"]) == 2
    assert main(["watch", str(tmp_path), "--once"]) == 2


def test_before_the_first_log_point(tmp_path, capsys):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1, finished=False)
    (run / "metrics.jsonl").unlink()
    assert main(["watch", str(run), "--once"]) == 0
    assert "no log point yet" in capsys.readouterr().out


def test_it_follows_a_run_to_its_end(tmp_path):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1, finished=False)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    ending = threading.Timer(0.5, lambda: (run / "summary.json").write_text(json.dumps({"wall_seconds": 7})))
    ending.start()
    watch(run, every=0.1, console=console)
    assert "finished in 7 s" in console.export_text()


def test_a_run_that_was_stopped(tmp_path, capsys):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1, finished=False)
    assert main(["watch", str(run), "--once"]) == 0
    assert "nothing was written" not in capsys.readouterr().out
    for file in ("metrics.jsonl", "config.yaml"):
        os.utime(run / file, (1e9, 1e9))
    assert main(["watch", str(run), "--once"]) == 0
    assert "nothing was written" in capsys.readouterr().out


def test_a_sweep_that_has_just_begun_has_all_its_lanes(tmp_path):
    run = fake_run(tmp_path / "run", finished=False)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["sweep"]["grid"] = {"risk.beta": [0.1, 0.3, 1.0], "seed": [0, 1, 2]}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "metrics.jsonl").write_text("")
    found = read_run(run)
    assert len(found.lanes) == 9
    assert "Its limits stand here once it is evaluated" in page([found]) and "no constraint" not in page([found])

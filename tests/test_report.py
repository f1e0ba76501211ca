"""`report.html`: what it says, and how it behaves in a real browser."""

import inspect
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from browser import Browser, find_chromium
from fake_runs import fake_run

from riskppo_jax import report
from riskppo_jax.cli import main
from riskppo_jax.figures import write_figures
from riskppo_jax.report import replay, words
from riskppo_jax.report.data import command, grid, over_limit, over_seeds, page_data, preset_differences
from riskppo_jax.runs import Lane, find_runs, groups, numbered, read_runs
from riskppo_jax.settings import differences, read_settings, to_dict
from riskppo_jax.stats import score_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep and a run of another algorithm on another task, side by side."""
    path = tmp_path_factory.mktemp("runs")
    fake_run(path / "sweep")
    fake_run(path / "ppo", betas=(0.3,), seeds=1, algo="ppo", env="SafetyWalker2dVelocity-v1")
    shapes = [{"kind": kind, "size": [0.1, 0.3, 0.1], "color": [200, 150, 100], "alpha": 1}
              for kind in ("capsule", "sphere", "box", "cylinder")]  # fmt: skip
    poses = np.zeros((30, 4, 7), "<i2")
    poses[:, :, 0], poses[:, :, 2], poses[:, :, 3] = 300 * np.arange(30)[:, None], 8000, 32767
    recorded = {"fps": 25, "dt": 0.04, "reach": 2.0, "shapes": shapes, "frames": 30, "planar": True,
                "poses": replay.base64.b64encode(poses.tobytes()).decode(), "quantities": {"velocity": [0.3] * 30},
                "thresholds": {"velocity": 0.373}, "reward": list(range(30))}  # fmt: skip
    (path / "sweep" / replay.FILE).write_text(json.dumps({"0": recorded, "1": recorded}))
    return path


@pytest.fixture(scope="module")
def page(folder):
    path = folder / "all.html"
    assert main(["report", str(folder), "--out", str(path)]) == 0
    return path


def constraint(ci=(0.35, 0.37), **given):
    usual = {"name": "v", "threshold": 0.373, "risk": {"name": "cvar", "beta": 0.3}, "lam": 0.5, "t": -0.34,
             "quantile": 0.34, "risk_value": 0.36, "risk_value_ci": list(ci)}  # fmt: skip
    return usual | given


@pytest.mark.parametrize(
    ("given", "mark", "word"),
    [
        ({}, "kept", "whole interval"),
        ({"ci": (0.35, 0.38)}, "kept", "reaches beyond"),
        ({"risk_value": 0.375, "ci": (0.37, 0.38)}, "edge", "At the limit"),
        ({"risk_value": 0.41, "ci": (0.4, 0.42)}, "broken", "Not kept: beyond the limit by 9.9%"),
        ({"threshold": 0.0, "risk_value": 0.002, "ci": (0.0, 0.01)}, "broken", "beyond the limit by 0.002"),
    ],
)
def test_verdicts(given, mark, word):
    found = words.verdict(constraint(**given))
    assert found.mark == mark and word in found.head


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "met with equality"),
        ({"lam": 0.0, "risk_value": 0.2}, "costs nothing"),
        ({"lam": 0.0, "risk_value": 0.5}, "has not answered"),
        ({"risk_value": 0.2}, "higher than needed"),
        ({"risk_value": 0.6}, "out of reach"),
        ({"t": -0.1}, "still away from the quantile"),
        ({"risk": {"name": "cvar", "beta": 1.0}}, "t does not enter"),
        ({"t": [-0.1, -0.2], "quantile": [0.1, 0.2]}, "level by level"),
    ],
)
def test_reasons(given, word):
    assert word in " ".join(words.verdict(constraint(**given)).reasons)


def test_every_risk_measure_has_words():
    from riskppo_jax.risk import oce

    numbers = {"kappas": [0.5, 0.5], "betas": [0.1, 1.0], "gamma1": 0.5, "gamma2": 2.0, "k": 2.0}
    for name, make in oce.MEASURES.items():
        config = {"name": name} | {p: numbers.get(p, 0.3) for p in inspect.signature(make).parameters}
        text = words.phrase(config) + words.symbol(config)
        assert "{" not in text and "the risk measure" not in text, text


def test_problem_in_words_and_maths():
    sentence, maths = words.asked("Task-v0", {"name": "mean"}, [constraint()])
    assert "the mean of the worst 30% of steps of <b>v</b> at or below <b>0.373</b>" in sentence
    assert "CVaR<sub>0.3</sub>[v] &le; 0.373" in maths
    assert "worst 30% of episodes of <b>v</b>" in words.asked("Task-v0", {"name": "mean"}, [constraint()], True)[0]
    assert "no constraint" in words.asked("Task-v0", {"name": "mean"}, [])[0]


def test_differences_from_the_preset_and_the_command_that_repeats_them():
    given = ["env=SafetyHopperVelocity-v1", "risk=entropic", "risk.gamma=3", "layout.hidden_sizes=[8]", "noise=0.1"]
    config = to_dict(read_settings([*given, "output=somewhere"]))
    found = {name: (old, new) for name, old, new in preset_differences(config)}
    assert found.keys() == {"risk.gamma", "layout.hidden_sizes", "noise"} and found["noise"] == (0.05, 0.1)
    older = {name: value for name, value in config.items() if name != "eval"}  # before there was such a setting
    assert preset_differences(older) == preset_differences(config)
    again = command(config).replace("'", "").split()[2:]
    assert set(differences(config, to_dict(read_settings(again)))) == {"output"}


@pytest.mark.parametrize("words", [["objective=cvar"], ["objective=cvar", "objective.beta=0.1"], ["log.every=3"]])
def test_the_command_repeats(words):
    config = to_dict(read_settings(["env=SafetyHopperVelocity-v1", *words]))
    again = command(config).replace("'", "").split()[2:]
    assert not differences(config, to_dict(read_settings(again)))


def test_runs_with_other_choices_are_other_groups(tmp_path):
    """Seeds are pooled only where nothing else differs; choices that are no numbers count, too."""
    for name, seeds in (("one", 1), ("two", 1)):
        fake_run(tmp_path / name, betas=(0.3,), seeds=seeds)
    config = tmp_path / "two" / "config.yaml"
    config.write_text(config.read_text().replace("lam: pi", "lam: plain"))
    assert set(groups(read_runs([tmp_path]))) == {"lam pi", "lam plain"}
    table, _ = score_table([tmp_path])
    assert set(table) == {"riskppo dual.lam=pi", "riskppo dual.lam=plain"}


def test_names_that_are_there_again_get_numbers():
    assert numbered(["speed", "effort", "speed", "speed"]) == ["speed", "effort", "speed_2", "speed_3"]


def test_of_a_vector_the_first_entry_is_drawn():
    lane = Lane(0, {}, [{"train/env_steps": 10, "t": [-0.5, 2.0]}, {"train/env_steps": 20, "t": None}])
    assert lane.curve("t")[1].tolist() == [-0.5]


def test_runs_are_found_and_told_apart(folder, tmp_path, capsys):
    assert [path.name for path in find_runs([folder])] == ["ppo", "sweep"]
    assert [path.name for path in find_runs([folder / "sweep", folder])] == ["sweep", "ppo"]
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_lanes_of_a_sweep(folder):
    ppo, sweep = read_runs([folder])
    assert len(sweep.lanes) == 9 and len(ppo.lanes) == 1
    lane = sweep.lanes[4]
    assert lane.point == {"risk.beta": 0.3, "seed": 1} and len(lane.points) == 40
    assert list(lane.samples) == ["velocity"]
    steps, values, kind = lane.reward_curve()
    assert kind == "evaluation" and len(steps) == 10 and values[0] == 20
    assert [len(lanes) for lanes in groups([sweep]).values()] == [3, 3, 3]
    assert list(groups([sweep])) == ["beta 0.1", "beta 0.3", "beta 1"]
    hopper, walker = "SafetyHopperVelocity-v1", "SafetyWalker2dVelocity-v1"
    assert list(groups([ppo, sweep])) == [
        f"{walker}, ppo, beta 0.3", *(f"{hopper}, riskppo, beta {beta}" for beta in ("0.1", "0.3", "1")),
    ]  # fmt: skip
    data = page_data([ppo, sweep])
    assert len(data["lanes"]) == 10 and {group["seeds"] for group in data["groups"]} == {1, 3}


def test_groups_of_seeds_are_summed_up(folder):
    _, sweep = read_runs([folder])
    row = over_seeds(groups([sweep])["beta 0.3"])
    returns = [lane.found["eval"]["reward_mean"] for lane in sweep.lanes[3:6]]
    assert row["seeds"] == row["kept"] == row["constraints"] == 3 and row["iqm"] == pytest.approx(np.mean(returns))
    assert min(returns) <= row["interval"][0] <= row["iqm"] <= row["interval"][1] <= max(returns)
    worst = max(lane.found["constraints"][0]["risk_value"] for lane in sweep.lanes[3:6])
    assert row["ratio"] == pytest.approx(worst / 0.373)


def test_runs_that_began_or_ended_otherwise_are_other_groups(tmp_path):
    for name, own in {"plain": {}, "warm": {"start_from": "runs/x"}, "best": {"deploy": "best"}}.items():
        config = fake_run(tmp_path / name, betas=(0.3,), seeds=1) / "config.yaml"
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | own))
    assert set(groups(read_runs([tmp_path]))) == {"deploy last", "deploy best", "deploy last, start_from another run"}


def test_a_limit_below_zero_is_broken_above_one():
    ratio = lambda risk, c: over_limit({"risk_value": risk, "threshold": c})  # noqa: E731
    assert ratio(-0.04, -0.05) == pytest.approx(1.2) and ratio(-0.06, -0.05) == pytest.approx(0.8)
    assert ratio(0.3, 0.4) == pytest.approx(0.75) and ratio(0.1, 0.0) is None


def test_two_limits_on_one_quantity_have_columns_and_figures_of_their_own(tmp_path):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=2)
    summary = json.loads((run / "summary.json").read_text())
    for lane in summary["lanes"]:
        lane["constraints"].append(lane["constraints"][0] | {"threshold": 0.123, "risk_value": 0.1119})
    (run / "summary.json").write_text(json.dumps(summary))
    text = report.page(read_runs([run]))
    assert "velocity_2 verdict" in text and "0.1119" in text
    names = {path.stem for path in write_figures(read_runs([run]), tmp_path / "figures", ("png",))}
    assert {"frontier_velocity", "frontier_velocity_2"} <= names


def test_a_picture_that_fails_does_not_lose_a_run(tmp_path, monkeypatch, capsys):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1)
    summary = json.loads((run / "summary.json").read_text())
    monkeypatch.setattr(report, "page", lambda runs: 1 / 0)
    assert report.write_run_report(run, summary, SimpleNamespace(lanes=(), env=None), None) is None
    assert "no report (ZeroDivisionError" in capsys.readouterr().err

    def full(runs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "page", full)
    with pytest.raises(OSError, match="No space"):
        report.write_run_report(run, summary, SimpleNamespace(lanes=(), env=None), None)


def test_a_task_nobody_else_knows_has_a_page_without_replay(tmp_path, capsys):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1)
    text = (run / "config.yaml").read_text().replace("SafetyHopperVelocity-v1", "Unknown-v0")
    (run / "config.yaml").write_text(text)
    (run / "checkpoints").mkdir()
    assert main(["report", str(run)]) == 0
    assert "no replay of run" in capsys.readouterr().err and (run / "report.html").exists()


def test_curves_of_seeds_share_a_grid():
    long, short = np.arange(4.0), np.array([1.0, 2.0])
    steps, values = grid([(long, long), (short, short + 4)])
    assert steps.tolist() == [1, 2] and values.tolist() == [[1, 2], [5, 6]]


def test_a_run_without_evaluation_points_falls_back_to_training(tmp_path):
    (run,) = read_runs([fake_run(tmp_path / "old", betas=(0.3,), seeds=1, evaluations=False)])
    assert run.lanes[0].reward_curve()[2] == "training"


def test_a_run_in_progress_has_a_page_too(tmp_path):
    fake_run(tmp_path / "young", betas=(0.3,), seeds=1, finished=False)
    assert main(["report", str(tmp_path / "young")]) == 0
    assert "has not been evaluated yet" in (tmp_path / "young" / "report.html").read_text()
    (lane,) = page_data(read_runs([tmp_path]))["lanes"]
    (found,) = lane["constraints"]
    assert found["name"] == "constraint 1" and len(found["curves"]["lam"]["value"]) == 40
    assert found["minus_t"] == pytest.approx(0.9 * 0.373, rel=0.05) and found["histogram"] is None


def spoil(run, change):
    """Changes the first lane of a summary."""
    summary = json.loads((run / "summary.json").read_text())
    change(summary["lanes"][0])
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def test_a_diverged_lane_is_shown_as_one(tmp_path):
    def diverge(lane):
        lane["diverged"] = True
        lane["eval"] |= {"reward_mean": None, "reward_std": None}
        lane["constraints"][0] |= {"risk_value": None, "risk_value_ci": [None, None], "quantile": None, "lam": None}

    run = spoil(fake_run(tmp_path / "run", betas=(0.3,), seeds=2), diverge)
    assert main(["report", str(run)]) == 0 and main(["plot", str(run), "--formats", "png"]) == 0
    text = (run / "report.html").read_text()
    assert "Not known" in text and "The run diverged" in text and "NaN" not in text.split('id="data"')[1].split("<")[0]


def test_several_constraints_and_levels(tmp_path):
    def add(lane):
        first = lane["constraints"][0]
        risk = {"name": "spectral", "kappas": [0.5, 0.5], "betas": [0.1, 1.0]}
        lane["constraints"].append(first | {"name": "cost", "risk": risk, "t": [-0.3, -0.1], "quantile": [0.3, 0.1]})

    run = spoil(fake_run(tmp_path / "run", betas=(0.3,), seeds=1), add)
    assert main(["report", str(run)]) == 0 and main(["plot", str(run), "--formats", "png"]) == 0
    text = (run / "report.html").read_text()
    assert "level by level: 0.3 / 0.3, 0.1 / 0.1" in text and "<h3>cost: Spectral" in text
    assert (run / "figures" / "overview_cost.png").exists()


def test_nothing_in_the_data_is_markup(tmp_path):
    """A folder's name may open a comment or a script, after which no script of the page would run."""
    odd = fake_run(tmp_path / "<!--<script>", betas=(0.3,), seeds=1)
    assert main(["report", str(odd)]) == 0
    data = (odd / "report.html").read_text().split('id="data">')[1].split("</script>")[0]
    assert "<" not in data and json.loads(data)


def test_the_objective_is_that_of_the_first_lane(tmp_path):
    def averse(lane):
        lane["objective"] = {"risk": {"name": "cvar", "beta": 0.1}, "value": None, "value_ci": [None, None], "t": 0.0,
                             "best_t": 0.0}  # fmt: skip

    run = spoil(fake_run(tmp_path / "run", betas=(0.3,), seeds=2), averse)
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert "worst 10%" in text.split('id="met"')[0]


def test_the_mean_has_no_t_in_any_table(tmp_path):
    run = spoil(fake_run(tmp_path / "run", betas=(0.3,), seeds=2),
                lambda lane: lane["constraints"][0].update(risk={"name": "mean"}, t=-0.77, quantile=0.66))  # fmt: skip
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert "0.77" not in text and "0.66" not in text


def test_the_page_needs_no_network(page):
    text = page.read_text()
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", text) and "http" not in text and "@import" not in text
    assert "a warning &lt;to escape&gt;" in text and "riskppo train env=" in text


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_in_a_browser(page, tmp_path):
    artefacts = Path(os.environ.get("RISKPPO_ARTEFACTS") or tmp_path)
    artefacts.mkdir(parents=True, exist_ok=True)
    column = "[...document.querySelectorAll('#lanes tbody tr')].map(r => r.cells[{}].textContent)"
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        assert browser.problems == []
        heads = browser.ask("[...document.querySelectorAll('#lanes th')].map(h => h.textContent)")
        at = heads.index("return")
        press = f"document.querySelectorAll('#lanes th button')[{at}].click()"
        browser.ask(press)
        rising = [float(x) for x in browser.ask(column.format(at))]
        browser.ask(press)
        falling = [float(x) for x in browser.ask(column.format(at))]
        assert rising == sorted(rising) and falling == rising[::-1] and len(rising) == 10
        risk = heads.index("velocity risk")
        browser.ask(f"document.querySelectorAll('#lanes th button')[{risk}].click()")
        assert browser.ask(column.format(risk))[-1] == ""  # the run without a constraint comes last

        # a lane is chosen in the table, in the list, and in the frontier
        browser.ask("document.querySelector('#lanes tr[data-row=\"3\"]').click()")
        assert browser.ask("document.body.dataset.lane") == "3" and browser.ask("lane.value") == "3"
        shown = "[...document.querySelectorAll('#met [data-lane]')].filter(e => !e.hidden).map(e => e.dataset.lane)"
        assert browser.ask(shown) == ["3"]
        before = browser.ask("document.querySelector('#panel-law').textContent")
        browser.ask("lane.value = 8; lane.dispatchEvent(new Event('change'))")
        assert browser.ask(shown) == ["8"] and browser.ask("document.querySelector('#panel-law').textContent") != before
        browser.ask(
            "document.querySelector('#frontier circle').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
        assert browser.ask(shown) != ["8"]

        # the filter leaves rows that hold every word
        browser.ask("filter.value = 'hopper 0.3,'; filter.dispatchEvent(new Event('input'))")
        assert browser.ask("[...document.querySelectorAll('#lanes tbody tr')].filter(r => !r.hidden).length") == 3
        assert browser.ask("count.textContent") == "3 of 10 lanes"
        browser.ask("filter.value = ''; filter.dispatchEvent(new Event('input'))")

        assert browser.problems == []

        # the replay moves, and is absent for a lane without one
        browser.ask("choose(1)")
        dark = (
            "(() => { const c = document.querySelector('canvas');"
            " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;"
            " for (let i = 0; i < d.length; i += 4) n += d[i] === 200 && d[i + 1] === 150; return n })()"
        )
        assert browser.ask(dark) > 500
        browser.ask("choose(0)")
        assert browser.ask("document.querySelector('canvas').hidden")
        browser.ask("choose(1)")
        young = fake_run(tmp_path / "young", betas=(0.3,), seeds=1, finished=False)
        picture = browser.picture(artefacts / "report.png")
        assert main(["report", str(young)]) == 0
        browser.open(young / "report.html")  # a run that goes on has its panels, too
        assert browser.ask("document.querySelectorAll('#panel-lam polyline').length") == 1
        assert picture.stat().st_size > 50_000
        assert browser.problems == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("samples.npz", b"PK\x03\x04 cut off"),
        ("summary.json", b"[]"),
        ("summary.json", b'{"lanes": [{"seed": 0}]}'),
        ("metrics.jsonl", b'3\n{"perf/wall_seconds": 1.0}\n'),
    ],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path, file, content, capsys):
    run = tmp_path / "run"
    fake_run(run)
    (run / file).write_bytes(content)
    for asked in (["report", str(run), "--out", str(tmp_path / "page.html")], ["watch", str(run), "--once"],
                  ["plot", str(run), "--out", str(tmp_path / "figures"), "--formats", "png"]):  # fmt: skip
        assert main(asked) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["report", "watch", "evaluate"])
def test_another_tool_s_config_is_no_run(tmp_path, verb, capsys):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert main([verb, str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_plot_leaves_unfinished_runs_out(tmp_path, capsys):
    for name in ("done", "going"):
        fake_run(tmp_path / name)
    (tmp_path / "going" / "summary.json").unlink()
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "figures"), "--formats", "png"]) == 0
    assert "going is not finished" in capsys.readouterr().out


def test_a_policy_chosen_on_the_way_is_not_judged_by_the_last_t():
    c = {"threshold": 1.0, "risk_value": 0.9, "risk_value_ci": [0.8, 0.95], "risk": {"name": "cvar", "beta": 0.3},
         "t": -0.2, "quantile": 0.9, "lam": 0.5, "deployed_after": 4096}  # fmt: skip
    said = " ".join(words.verdict(c).reasons)
    assert "after 4,096 steps" in said and "still away" not in said

"""A run directory, from the command line to the last file in it."""

import json
import signal
import sys
import threading

import numpy as np
import pytest
import yaml
from tabular_cli import ID, TINY

from riskppo_jax import results, signals
from riskppo_jax import run as run_module
from riskppo_jax.cli import main
from riskppo_jax.risk import oce
from riskppo_jax.writers import JsonLines, reduce_chunk


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "one"
    words = [word for word in TINY if not word.startswith("report")]
    assert main(["train", *words, "total_steps=400", f"output={path}", "log.tensorboard=true"]) == 0
    return path


def test_every_file_is_there(folder):
    present = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "summary.json", "samples.npz", "figures"} <= present
    assert list((folder / "figures").glob("*.png")) and list((folder / "tensorboard").iterdir())
    page = (folder / "report.html").read_text()
    assert "data:image/png;base64" in page and "http" not in page.split("base64", 1)[0]


def test_a_run_of_an_engine_that_is_not_here_can_be_looked_at(tmp_path, capsys):
    """Worlds are the engine's own, a policy is not."""
    folder, other = tmp_path / "run", tmp_path / "other"
    words = [*TINY[1:], "env=SafetyPointGoal0-v0", "total_steps=64", "eval.points=0", "eval.episodes=1"]
    assert main(["train", *words, "engine=analytic", f"output={folder}"]) == 0
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"engine": "warp"}))
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--episodes", "1"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["engine"] == "native"  # what `auto` is there
    assert main(["export", str(folder), str(tmp_path / "policy.npz")]) == 0
    assert main(["train", *words, f"start_from={folder}", f"output={other}"]) == 0
    assert main(["evaluate", str(folder), "--engine", "warp"]) == 2
    assert "engine=warp is not available" in capsys.readouterr().err


def test_log_points(folder):
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [p["train/env_steps"] for p in points] == sorted({p["train/env_steps"] for p in points})
    assert points[-1]["train/env_steps"] <= 400
    assert all(key.count("/") == 1 for p in points for key in p)
    wanted = ["constraint0/lam", "constraint0/t", "constraint0/risk", "train/return", "perf/steps_per_second"]
    assert all(key in points[0] for key in wanted)


def test_summary(folder):
    summary = json.loads((folder / "summary.json").read_text())
    top = {"env", "engine", "algo", "env_steps", "wall_seconds", "steps_per_second", "versions", "lanes"}
    assert top <= summary.keys()
    (lane,) = summary["lanes"]
    assert {"seed", "hypers", "constraints", "eval", "diverged"} <= lane.keys()
    assert {"episodes", "reward_mean", "reward_std", "cost_mean", "cost_rate"} <= lane["eval"].keys()
    (constraint,) = lane["constraints"]
    keys = {"name", "threshold", "risk", "lam", "t", "quantile", "risk_value", "risk_value_ci", "satisfied"}
    assert keys <= constraint.keys()
    assert summary["env"] == ID and summary["algo"] == "riskppo" and lane["diverged"] is False
    assert constraint["risk"] == {"name": "cvar", "beta": 0.3} and constraint["threshold"] == 1.6
    with np.load(folder / "samples.npz") as samples:
        tail = np.sort(samples["v1"])[::-1]
        k = 0.3 * len(tail)
        whole = int(k)
        cvar = (tail[:whole].sum() + (k - whole) * tail[whole]) / k
        assert constraint["risk_value"] == pytest.approx(cvar, rel=1e-4)


def test_what_came_of_an_averse_objective(tmp_path, capsys):
    """Wherever a run tells of its constraints it tells of its objective, unless that is the mean."""
    words = [*(word for word in TINY if not word.startswith("report")), "total_steps=400", "eval.points=2"]
    for name, more in (("cvar", []), ("spectral", ["objective.kappas=[0.5,0.5]", "objective.betas=[0.3,1]"])):
        path = tmp_path / name
        assert main(["train", *words, f"objective={name}", *more, f"output={path}"]) == 0
        assert f"objective: {name} of the reward" in capsys.readouterr().out
        points = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert {"objective/t", "objective/t_batch", "objective/value"} <= points[0].keys()
        assert "eval/objective" in points[-1]
        found = json.loads((path / "summary.json").read_text())["lanes"][0]["objective"]
        assert found["value_ci"][0] <= found["value"] <= found["value_ci"][1]
        assert "which was to be large" in (path / "report.html").read_text()
    with np.load(tmp_path / "cvar" / "samples.npz") as samples:
        assert len(samples["reward"]) == len(samples["v1"]) and len(samples["reward_sampled"])
    assert main(["train", *TINY, "total_steps=64", f"output={tmp_path / 'mean'}"]) == 0
    assert "objective:" not in capsys.readouterr().out
    assert "objective/t" not in (tmp_path / "mean" / "metrics.jsonl").read_text()


def test_config_is_resolved(folder):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["env"] == {"id": ID} and config["layout"]["num_envs"] == 4 and config["dual"]["lam"]
    assert config["engine"] == "native"  # what `auto` was: elsewhere it would be another


def test_evaluate_gives_the_summary_again(folder, capsys):
    assert main(["evaluate", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    lane = json.loads((folder / "summary.json").read_text())["lanes"][0]
    assert found["eval"] == lane["eval"] and found["constraints"] == lane["constraints"]


def test_export(folder, tmp_path):
    assert main(["export", str(folder), str(tmp_path / "policy.npz")]) == 0
    with np.load(tmp_path / "policy.npz", allow_pickle=False) as arrays:
        assert {"obs_mean", "obs_var", "obs_clip", "w0", "b0", "w1", "b1", "activation"} <= set(arrays.files)


def test_a_run_is_not_overwritten(folder, capsys):
    assert main(["train", *TINY, f"output={folder}"]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_multirun_makes_a_folder_for_each_job(tmp_path, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(run_module, "train", lambda settings: seen.append(settings) or 0)
    words = ["env=SafetyHopperVelocity-v1,SafetySwimmerVelocity-v1", "seed=0,1", f"output={tmp_path}"]
    assert main(["train", "-m", *words]) == 0
    assert [(s.env["id"][6:9], s.seed) for s in seen] == [("Hop", 0), ("Hop", 1), ("Swi", 0), ("Swi", 1)]
    assert len({s.output for s in seen}) == 4 and all(s.output.startswith(str(tmp_path)) for s in seen)


def test_divergence_ends_the_run(tmp_path, capsys):
    path = tmp_path / "run"
    words = [*TINY, "total_steps=3200", "ppo.value_coef=1e38", "ppo.lr=1e30", "ppo.max_grad_norm=inf"]
    code = main(["train", *words, f"output={path}"])
    summary = json.loads((path / "summary.json").read_text())
    assert code == 1 and summary["lanes"][0]["diverged"] is True and summary["env_steps"] < 3200
    assert "diverged" in capsys.readouterr().out
    log = (path / "metrics.jsonl").read_bytes()
    assert main(["train", "resume=true", f"output={path}"]) == 1  # nothing left to do, and no better for it
    assert (path / "metrics.jsonl").read_bytes() == log


def test_a_run_goes_on_with_what_is_typed_beside_resume(tmp_path, capsys):
    path = tmp_path / "run"
    assert main(["train", *TINY, "total_steps=400", "seed=3", f"output={path}"]) == 0
    again = ["train", "resume=true", f"output={path}"]
    capsys.readouterr()
    for words, named in ((["seed=4"], "seed=4 does not fit"), (["ppo.lr=0.1"], "ppo.lr=0.1 does not fit")):
        assert main([*again, *words]) == 2
        assert named in capsys.readouterr().err
    assert main([*again, "seed=3", "total_steps=800"]) == 0
    assert json.loads((path / "summary.json").read_text())["env_steps"] > 400


def test_a_missing_extra_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", *TINY, "log.wandb=true", f"output={tmp_path / 'run'}"]) == 2
    assert "riskppo-jax[wandb]" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_results_of_a_shorter_run_do_not_count(tmp_path, monkeypatch):
    """A finished run that is made longer and interrupted before its results are written is not finished."""
    path = tmp_path / "run"
    assert main(["train", *TINY, "total_steps=400", f"output={path}"]) == 0
    first = json.loads((path / "summary.json").read_text())
    longer = ["train", *TINY, "total_steps=800", "resume=true", f"output={path}"]
    with monkeypatch.context() as patch:
        patch.setattr(results, "finish", lambda *args: 7)
        assert main(longer) == 7
    assert main(longer) == 0
    assert json.loads((path / "summary.json").read_text())["env_steps"] > first["env_steps"]


def test_a_report_that_cannot_be_written_costs_no_results(tmp_path, monkeypatch, capsys):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "figures")

    monkeypatch.setattr("riskppo_jax.figures.write_figures", refused)
    words = [word for word in TINY if not word.startswith("report")]
    assert main(["train", *words, "total_steps=400", f"output={tmp_path / 'run'}"]) == 0
    assert "no report" in capsys.readouterr().err and (tmp_path / "run" / "summary.json").exists()


def test_fewer_steps_than_a_finished_run_has_change_nothing(tmp_path):
    """Its settings stay those it was trained with."""
    folder = tmp_path / "run"
    assert main(["train", *TINY, "total_steps=400", f"output={folder}"]) == 0
    before = (folder / "config.yaml").read_text()
    assert main(["train", *TINY, "total_steps=200", f"output={folder}", "resume=true"]) == 0
    assert (folder / "config.yaml").read_text() == before


def test_a_finished_run_says_what_changes_nothing(tmp_path, capsys):
    words = ["train", *TINY, "total_steps=64", f"output={tmp_path / 'run'}"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "resume=true", "eval.episodes=7"]) == 0
    said = capsys.readouterr().out
    assert "is finished" in said and "eval.episodes: changes nothing" in said
    assert main([*words, "resume=true"]) == 0
    assert "changes nothing" not in capsys.readouterr().out


@pytest.mark.parametrize("held", ["[]", '{"env_steps": 64, "lanes": [3]}', "{"])
def test_damaged_results_are_made_again(tmp_path, held):
    """Neither a summary that is none nor a line of the log that is none ends in a traceback."""
    folder = tmp_path / "run"
    words = ["train", *TINY, "total_steps=64", f"output={folder}"]
    assert main(words) == 0
    before = json.loads((folder / "summary.json").read_text())["lanes"]
    (folder / "summary.json").write_text(held)
    log = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(b"!" + log[1:])
    assert main([*words, "resume=true"]) == 0
    assert json.loads((folder / "summary.json").read_text())["lanes"] == before


def test_a_law_of_discounted_steps_is_reported_as_such(tmp_path, capsys):
    folder = tmp_path / "run"
    words = [*TINY, "scheme.occupancy=discounted", "ppo.gamma=0.7", "deploy=best", "eval.points=2"]
    assert main(["train", *words, "total_steps=128", f"output={folder}"]) == 0
    assert "of discounted steps, which t and lambda are about" in capsys.readouterr().out
    (constraint,) = json.loads((folder / "summary.json").read_text())["lanes"][0]["constraints"]
    samples = np.load(folder / "samples.npz")
    v, episode = samples[constraint["name"]], samples["episode"]
    step = np.arange(len(v)) - np.searchsorted(episode, episode)
    risk = -float(oce.cvar(0.3).value(-v, 0.7**step))
    assert constraint["discounted"]["risk_value"] == pytest.approx(risk, rel=1e-4)
    assert constraint["discounted"]["mean"] == pytest.approx(np.average(v, weights=0.7**step), rel=1e-4)


def test_chunks_are_reduced_by_kind():
    metrics = {
        "train/env_steps": np.array([10, 20]),
        "train/episodes": np.array([1, 2]),
        "train/return": np.array([np.nan, 4.0]),
        "train/episode_cost": np.array([np.nan, np.nan]),
        "constraint0/lam": np.array([1.0, 3.0]),
        "constraint0/lam_max": np.array([3.0, 3.0]),
        "constraint0/risk": np.array([1.0, 3.0]),
        "constraint0/t": np.array([[0.0, 1.0], [2.0, 3.0]]),
    }
    assert reduce_chunk(metrics) == {
        "train/env_steps": 20, "train/episodes": 3, "train/return": 4.0, "train/episode_cost": None,
        "constraint0/lam": 3.0, "constraint0/lam_max": 3.0, "constraint0/risk": 2.0, "constraint0/t": [2.0, 3.0],
        "constraint0/at_bound": 0.5, "constraint0/lam_mean": 2.0,
    }  # fmt: skip


def test_log_is_cut_to_what_the_checkpoint_knows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonLines(path)
    log.write({"a/b": 1})
    size = log.sync()
    log.write({"a/b": 2})
    log.close()
    path.write_text(path.read_text() + '{"a/b": 3')  # killed while writing
    log = JsonLines(path, size, 1)
    log.write({"a/b": 4})
    log.close()
    assert path.read_text() == '{"a/b": 1}\n{"a/b": 4}\n' and log.lines == 2


def test_the_first_signal_is_a_wish_the_second_is_obeyed(capsys):
    # raised in this thread: one sent to the process may reach another first, and this one later
    given = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with signals.Wish() as wish:
        assert wish.received == 0 and signals.exit_code(wish.received) == 0
        signal.raise_signal(signal.SIGINT)
        assert wish.received == signal.SIGINT and signals.exit_code(wish.received) == 130
        assert "finishing this chunk" in capsys.readouterr().out
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with signals.Wish() as wish:
        signal.raise_signal(signal.SIGTERM)
    assert signals.exit_code(wish.received) == 143
    with signals.Wish():
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    signal.signal(signal.SIGINT, given)


def test_outside_the_main_thread_signals_are_left_alone():
    seen = []

    def run():
        with signals.Wish() as wish:
            seen.append((wish.received, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(0, signal.getsignal(signal.SIGTERM))]


def test_ctrl_c_in_any_verb(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("riskppo_jax.cli.truth.run", interrupted)
    assert main(["truth", "somewhere"]) == 130
    assert capsys.readouterr().err == "riskppo: interrupted\n"


def test_ctrl_c_before_the_first_chunk(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "_loop", interrupted)
    assert main(["train", *TINY, f"output={tmp_path / 'run'}"]) == 130
    said = capsys.readouterr().out
    assert f"interrupted; go on with: riskppo train resume=true output={tmp_path / 'run'}" in said

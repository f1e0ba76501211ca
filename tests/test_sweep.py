"""A grid in one program: every lane has the numbers of the single run with its settings."""

import contextlib
import io
import json
from pathlib import Path

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from tabular_cli import TINY, make

import riskppo_jax as rp
from riskppo_jax import grid, run
from riskppo_jax.cli import main
from riskppo_jax.config import Layout
from riskppo_jax.errors import UserError
from riskppo_jax.rundir import restore_run
from riskppo_jax.runs import read_run
from riskppo_jax.settings import from_dict, read_settings, to_dict
from riskppo_jax.train import make_train, scan_steps

RUN = [*TINY, "total_steps=256", "eval.points=2"]
GRID = ["sweep.beta=[0.3,1.0]", "sweep.seed=2"]
BROKEN = "sweep.ppo.value_coef=[0.5,1e39]"  # every other lane diverges: its loss is infinite in float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "grid"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(["train", *RUN, *GRID, BROKEN, f"output={path}", "sweep.mode=map"])
    assert code == 1  # some lanes diverged
    (path / "said.txt").write_text(said.getvalue())
    return path


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """What is lane 6 of the grid, by itself."""
    path = tmp_path_factory.mktemp("runs") / "single"
    assert main(["train", *RUN, "risk.beta=1.0", "seed=1", f"output={path}"]) == 0
    return path


def points(folder: Path, lane: int | None = None) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    own = [point for point in found if lane is None or point.pop("sweep/lane") == lane]
    return [{name: value for name, value in point.items() if not name.startswith("perf/")} for point in own]


def test_a_lane_is_the_single_run_bit_for_bit(folder, single):
    assert points(folder, 6) == points(single)
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (folder, single))
    lane, (alone,) = ours["lanes"][6], theirs["lanes"]
    assert {name: value for name, value in lane.items() if name != "point"} == alone
    with np.load(folder / "samples.npz") as grid, np.load(single / "samples.npz") as own:
        assert all(np.array_equal(grid[f"lane6/{name}"], own[name]) for name in own.files)
        assert len(grid.files) == 8 * len(own.files)
    job, state, _ = restore_run(folder, lane=6)
    other, same, _ = restore_run(single, lane=0)
    assert words(state) == words(same)
    assert job.settings.seed == other.settings.seed == 1 and job.hypers == other.hypers


def test_the_directory_of_a_sweep(folder):
    summary = json.loads((folder / "summary.json").read_text())
    expected = [{"risk.beta": beta, "seed": seed, "ppo.value_coef": coef}
                for beta in (0.3, 1.0) for seed in (0, 1) for coef in (0.5, 1e39)]  # fmt: skip
    lanes = summary["lanes"]
    assert [lane["point"] for lane in lanes] == expected and summary["env_steps"] == 256
    assert [lane["seed"] for lane in lanes] == [0, 0, 1, 1] * 2
    assert [lane["constraints"][0]["risk"]["beta"] for lane in lanes] == [0.3] * 4 + [1.0] * 4
    config = yaml.safe_load((folder / "config.yaml").read_text())["sweep"]
    assert config["grid"] == {"risk.beta": [0.3, 1.0], "seed": [0, 1], "ppo.value_coef": [0.5, 1e39]}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["sweep/lane"] for line in lines[:8]] == list(range(8))
    lanes = read_run(folder).lanes
    assert [lane.point for lane in lanes] == expected
    assert [sum("eval/reward" in point for point in lane.points) for lane in lanes] == [2, 1] * 4
    _, state, _ = restore_run(folder)
    assert state.env_steps.tolist() == [256, 96] * 4
    with pytest.raises(UserError, match="lanes from 0 to 7"):
        restore_run(folder, lane=8)


def test_lanes_that_diverge_stand_still_and_the_others_go_on(folder):
    said = (folder / "said.txt").read_text()
    assert "lane 1 (risk.beta=0.3 seed=0 ppo.value_coef=1e+39) diverged; it stands still" in said
    assert "diverged in lanes 1, 3, 5, 7" in said and "lane 0 (" not in said
    summary = json.loads((folder / "summary.json").read_text())
    assert [lane["diverged"] for lane in summary["lanes"]] == [False, True] * 4
    assert [len(points(folder, i)) for i in range(8)] == [4, 2] * 4
    assert points(folder, 0)[-1]["train/env_steps"] == 256


def test_one_line_says_what_fits_before_compiling(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("riskppo_jax.run._loop", lambda *_: (None, None, 143))
    main(["train", *RUN, *GRID, f"output={tmp_path / 'run'}"])
    said = capsys.readouterr().out
    assert "4 lanes (2 risk.beta x 2 seed) of 4 environments" in said and "per lane" in said and "fit; mode" in said


def test_a_finished_sweep_stays_finished(folder, capsys):
    assert main(["train", "resume=true", f"output={folder}"]) == 1  # with lanes that diverged, still
    assert "is finished" in capsys.readouterr().out


def test_another_grid_does_not_resume(folder, capsys):
    words = [*RUN, "sweep.beta=[0.3,0.5]", "sweep.seed=2", BROKEN]
    assert main(["train", *words, f"output={folder}", "resume=true"]) == 2
    said = capsys.readouterr().err
    assert "sweep.grid.risk.beta" in said and said.count("\n") == 1


def test_a_killed_sweep_ends_with_the_same_numbers(folder, tmp_path, monkeypatch):
    """The process ends after the first save, as if killed; another one goes on from there."""
    path, save = tmp_path / "run", run._save
    saves = []

    def dies(*args):
        save(*args)
        saves.append(args[0].name)
        if len(saves) == 1:
            raise RuntimeError("killed")

    monkeypatch.setattr(run, "_save", dies)
    asked = ["train", *RUN, *GRID, BROKEN, f"output={path}", "sweep.mode=map", "checkpoint.seconds=0"]
    with pytest.raises(RuntimeError, match="killed"):
        main(asked)
    assert len(json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])) > 20
    monkeypatch.undo()
    assert main(["train", "resume=true", f"output={path}"]) == 1
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (path, folder))
    assert ours["lanes"] == theirs["lanes"] and saves == ["000000002"]
    assert words(restore_run(path)[1]) == words(restore_run(folder)[1])


def words(tree):
    """Every leaf as raw bytes."""
    data = jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(data)]


@pytest.fixture(scope="module")
def trainer():
    problem = rp.Problem(constraints=(rp.Constraint("v1", 1.6, rp.oce.cvar(0.3)),))
    layout = Layout(num_envs=4, horizon=8, num_minibatches=2, num_epochs=1, hidden_sizes=(4,))
    return make_train(make(), layout, problem)


AXES = {"risk.beta": [0.3, 1.0], "threshold": [1.0, 1.6], "seed": 2, "ppo.lr": [1e-3], "dual.lam_max": [5.0]}


@pytest.fixture(scope="module")
def alone(trainer):
    """Lane 5 of `AXES`, by itself."""
    constraint = rp.Constraint("v1", 1.0, rp.oce.cvar(1.0))
    hypers = trainer.hypers.replace(
        problem=rp.Problem(constraints=(constraint,)), ppo=trainer.hypers.ppo.replace(lr=1e-3), lam_max=5.0,
        total_steps=2.0 * trainer.steps_per_iteration,
    )  # fmt: skip
    state = jax.jit(trainer.init)(jax.random.key(1), hypers)
    return jax.jit(scan_steps(trainer, 2))(state, hypers)


def test_one_lane_at_a_time_is_the_single_run_bit_for_bit(trainer, alone):
    found = rp.sweep(trainer, AXES, 2, mode="map")
    assert len(found.points) == 8 and found.metrics["train/env_steps"].shape == (8, 2)
    assert found.points[5] == {"risk.beta": 1.0, "threshold": 1.0, "seed": 1, "ppo.lr": 1e-3, "dual.lam_max": 5.0}
    assert words(jax.tree.map(lambda x: x[5], (found.state, found.metrics))) == words(alone)


@pytest.mark.parametrize(("mode", "batch"), [("vmap", 1), pytest.param("map", 4, marks=pytest.mark.slow)])
def test_lanes_at_once_round_otherwise(trainer, alone, mode, batch):
    """XLA sums a batched reduction in another order: the last digits of means and gradients differ, no draw does."""
    found = rp.sweep(trainer, AXES, 2, mode=mode, batch=batch)
    state, metrics = jax.tree.map(lambda x: x[5], (found.state, found.metrics))
    assert words((state.key, state.envs, state.episodes, state.env_steps)) == words(
        (alone[0].key, alone[0].envs, alone[0].episodes, alone[0].env_steps)
    )
    weights, same = (jax.flatten_util.ravel_pytree(x.learner.params)[0] for x in (state, alone[0]))
    assert float(jnp.max(jnp.abs(weights - same))) < 1e-5  # a step of Adam is 1e-3
    for name, value in metrics.items():
        np.testing.assert_allclose(value, alone[1][name], rtol=2e-4, atol=2e-6, err_msg=name)


def test_sweep_from_python_refuses(trainer):
    for axes, named in (
        ({}, "empty"), ({"seed": []}, "empty"), ({"ppo.rate": [1.0]}, "ppo.rate"), ({"risk.beta": [0.3, 3.0]}, "beta"),
        ({"ppo.gamma": [1.5]}, "gamma"), ({"foo.lam_init": [1.0]}, "foo.lam_init"),
        ({"risk.beta": 0.3}, "risk.beta=0.3"), ({"ppo": [1.0]}, "ppo"), ({"noise": [0.1]}, "noise"),
        ({"noise": [-1.0]}, "noise=-1.0"), ({"dual.lam_step": [-1.0]}, "lam_step=-1.0"), ({"seed": [1.5]}, "seed=1.5"),
        ({"seed": [1, 0.0]}, "seed=0.0"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=named):
            rp.sweep(trainer, axes, 1)


def test_bare_names_and_orders():
    settings = read_settings(["sweep.beta=[0.1,0.3]", "sweep.lr=[1e-3]", "sweep.lam_step=[0.1]", "sweep.seed=[7,3]"])
    assert list(settings.sweep.grid) == ["risk.beta", "ppo.lr", "dual.lam_step", "seed"]
    assert [point["seed"] for point in grid.points(settings.sweep.grid)] == [7, 3, 7, 3]
    assert read_settings(["sweep.seed=3", "seed=5"]).sweep.grid == {"seed": [5, 6, 7]}
    assert read_settings(["objective=cvar", "sweep.beta=[0.1]"]).sweep.grid == {"risk.beta": [0.1]}
    assert from_dict(yaml.safe_load(yaml.safe_dump(to_dict(settings)))) == settings


def test_a_point_is_the_settings_of_a_single_run():
    settings = read_settings(["sweep.beta=[0.1,0.3]", "sweep.threshold=[0.5]", "sweep.ppo.clip=[0.1]"])
    own = grid.at_point(settings, grid.points(settings.sweep.grid)[1])
    assert own == read_settings(["risk.beta=0.3", "threshold=0.5", "ppo.clip=0.1"])
    assert settings.risk["beta"] == 0.3 and settings.ppo.clip == 0.2  # the grid's own settings are untouched

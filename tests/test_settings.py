"""Presets, overrides and the schema behind them."""

import dataclasses
import shlex

import probes
import pytest
import yaml

from riskppo_jax import sgda
from riskppo_jax.build import build, plan
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.envs.registry import list_envs
from riskppo_jax.errors import UserError
from riskppo_jax.report.data import command, preset_differences
from riskppo_jax.risk import oce
from riskppo_jax.scheme import Scheme
from riskppo_jax.settings import Settings, conf_dir, differences, expand, from_dict, read_settings, to_dict
from riskppo_jax.train import Hypers


def test_schema_defaults_are_the_python_defaults():
    settings = Settings()
    assert Layout(**vars(settings.layout)) == Layout()
    assert PPOHypers(**vars(settings.ppo)) == PPOHypers()
    assert Scheme(**vars(settings.scheme)) == Scheme()
    defaults = {f.name: f.default for f in dataclasses.fields(Hypers)}
    assert all(vars(settings.dual)[name] == defaults[name] for name in ("lam_max", "lam_init", "t_init"))


def test_default_preset_is_the_python_default():
    """One set of numbers for the dual step: the dataclasses', unless a task has its own."""
    dual = {f.name: f.default for cls in (sgda.Rule, sgda.DualHypers) for f in dataclasses.fields(cls)}
    chosen = vars(read_settings(["env=SafetyHopperVelocity-v1"]).dual)
    assert {name: chosen[name] for name in dual} == dual


def test_navigation_tasks_share_a_preset():
    for algo in ("riskppo", "ppo_lagrangian"):
        settings = read_settings(["env=SafetyPointGoal1-v0", f"algo={algo}"])
        assert settings.env == {"id": "SafetyPointGoal1-v0"} and settings.algo == algo
        assert settings.dual.lam_delay > 0 and settings.dual.lam_gain == 0
    assert read_settings(["env=SafetyPointGoal1-v0", "dual.lam_delay=7"]).dual.lam_delay == 7
    assert read_settings(["env=SafetyPointGoal1-v0", "algo=paper"]).dual.lam == "plain"


def test_pushing_a_box_adds_to_that_preset():
    push, goal = (read_settings([f"env={env}"]) for env in ("SafetyCarPush2-v0", "SafetyPointGoal1-v0"))
    assert push.dual == goal.dual and push.layout.lidar_powers == goal.layout.lidar_powers
    assert push.layout.noise_memory > 0 == goal.layout.noise_memory
    ids = ("SafetyCarPush2-v0", "SafetyHopperVelocity-v1")
    paper, plain = (read_settings([f"env={env}", "algo=paper"]) for env in ids)
    assert (paper.ppo, paper.layout) == (plain.ppo, plain.layout)
    for family in ("push", "navigation", "default"):  # presets, not tasks
        with pytest.raises(UserError, match="env"):
            read_settings([f"env={family}"])


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "risk").glob("*.yaml")))
def test_every_risk_preset_is_a_utility_of_that_name(name):
    preset = yaml.safe_load((conf_dir() / "risk" / f"{name}.yaml").read_text())
    assert oce.from_config(preset).config()["name"] == name


def test_every_utility_has_a_preset():
    assert {path.stem for path in (conf_dir() / "risk").glob("*.yaml")} == set(oce.MEASURES)


@pytest.mark.parametrize("algo", sorted(path.stem for path in (conf_dir() / "algo").glob("*.yaml")))
def test_every_algorithm_builds(algo):
    job = build(read_settings([f"algo={algo}", "env=SafetyHopperVelocity-v1"]))
    names = [c.utility.config()["name"] for c in job.hypers.problem.constraints]
    expected = {"ppo": [], "ppo_lagrangian": ["mean"], "pid_lagrangian": ["mean"]}.get(algo, ["cvar"])
    assert job.settings.algo == algo and names == expected


@pytest.mark.parametrize("experiment", sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml")))
def test_every_experiment_builds(experiment):
    assert build(read_settings([f"experiment={experiment}"])).chunks > 0


def test_make_train_is_the_paper_limit_on_hopper():
    job = build(read_settings(["experiment=hopper"]))
    (constraint,) = job.hypers.problem.constraints
    assert constraint.threshold == 0.373 and constraint.utility.config() == {"name": "cvar", "beta": 0.3}
    assert job.settings.noise == 0.05 and job.settings.env["speed"] == "abs" and job.settings.total_steps == 1_200_000


def test_paper_preset_does_not_inherit_our_tuning():
    """Algorithm 1 as printed: raw gradients, plain steps of 5e-5, a batch for each update, Lambda fixed."""
    settings = read_settings(["algo=paper"])
    dual, scheme = settings.dual, settings.scheme
    assert (dual.lam, dual.t, dual.box, dual.lam_step, dual.t_step) == ("plain", "scaled", "wide", 5e-5, 5e-5)
    assert dual.slack_clip == float("inf") and dual.lam_growth == 1.0
    assert (scheme.dual_rollout, scheme.constant, scheme.units) == ("fresh", True, "raw")
    assert settings.ppo.adam_eps == 1e-6 and settings.threshold == "paper" and settings.noise == 0.05


def test_paper_preset_does_not_inherit_a_task_s_tuning_either():
    ours = read_settings(["env=SafetySwimmerVelocity-v1"])
    assert ours.dual.lam_delay > 0 and ours.layout.keep_values and ours.ppo.gamma > 0.99
    plain, settings = (
        read_settings([f"env={env}", "algo=paper"]) for env in ("SafetyHopperVelocity-v1", "SafetySwimmerVelocity-v1")
    )
    assert (settings.ppo, settings.layout, settings.dual) == (plain.ppo, plain.layout, plain.dual)


def test_any_registered_id_works():
    from riskppo_jax.envs import registry

    assert "SafetyHopperVelocity-v1" in list_envs()
    registry.register("Mine-v0", registry._entries()["SafetySwimmerVelocity-v1"].make, {})
    try:
        settings = read_settings(["env=Mine-v0"])
        assert settings.env == {"id": "Mine-v0"} and settings.noise is None
    finally:
        del registry._entries()["Mine-v0"]


def test_of_a_setting_given_twice_the_last_counts():
    once = read_settings(["env=SafetyHopperVelocity-v1", "risk=entropic", "seed=2"])
    words = ["env=SafetyPointGoal1-v0", "risk=cvar", "seed=1", "env=SafetyHopperVelocity-v1", "risk=entropic", "seed=2"]
    assert read_settings(words) == once


def test_no_experiment_is_an_experiment_too():
    assert read_settings(["experiment=null", "seed=3"]) == read_settings(["seed=3"])


def test_a_limit_needs_something_to_limit():
    from riskppo_jax.envs import registry

    def free(engine, **options):
        env = probes.Probe()
        env.constraint_names, env.constraint_range, env.thresholds = (), {}, {}
        return env

    registry.register("Free-v0", free, {})
    try:
        assert not build(read_settings(["env=Free-v0"])).hypers.problem.constraints
        with pytest.raises(UserError, match=r"threshold=0\.5: this task has nothing to limit; accepts null"):
            build(read_settings(["env=Free-v0", "threshold=0.5"]))
    finally:
        del registry._entries()["Free-v0"]


def test_overrides_reach_the_problem():
    words = [
        "env=SafetyHopperVelocity-v1", "risk=cvar", "risk.beta=0.1", "objective=entropic", "objective.gamma=2",
        "constraints=[velocity, {name: velocity, threshold: 0.5, risk: {name: mean}}]", "threshold=0.7",
        "dual.lam_step=0.2", "ppo.lr=1e-4", "total_steps=2e6", "layout.num_envs=8", "seed=3",
    ]  # fmt: skip
    job = build(read_settings(words))
    problem = job.hypers.problem
    assert problem.objective.config() == {"name": "entropic", "gamma": 2.0}
    assert [float(c.threshold) for c in problem.constraints] == [0.7, 0.5]
    assert [c.utility.config()["name"] for c in problem.constraints] == ["cvar", "mean"]
    assert (job.hypers.dual.lam_step, job.hypers.ppo.lr, job.layout.num_envs) == (0.2, 1e-4, 8)
    assert job.settings.total_steps == 2_000_000 and job.settings.seed == 3


def test_settings_survive_yaml():
    settings = read_settings(["experiment=hopper", "dual.slack_clip=1"])
    again = from_dict(yaml.safe_load(yaml.safe_dump(to_dict(settings))))
    assert again == settings and not differences(to_dict(again), to_dict(settings))
    assert list(differences({"a": {"b": 1}}, {"a": {"b": 2}, "c": 1})) == ["a.b", "c"]


def test_multirun_takes_every_combination():
    jobs = list(expand(["env=a,b", "algo=x,y", "layout.hidden_sizes=[8,8]"]))
    assert jobs == [[f"env={e}", f"algo={a}", "layout.hidden_sizes=[8,8]"] for e in "ab" for a in "xy"]


@pytest.mark.parametrize("path", ["runs/grid/env=A,algo=b", "runs/\u00fc (1)#2&", "a'b", "a\\", "1e5", "true", "[a]"])
def test_paths_are_taken_as_they_are(path):
    settings = read_settings([f"output={path}", f"start_from={path}", "env=SafetyHopperVelocity-v1"])
    assert settings.output == settings.start_from == path
    assert list(expand([f"output={path}", "seed=0,1"])) == [[f"output={path}", f"seed={i}"] for i in (0, 1)]
    again = shlex.split(command(to_dict(settings)))
    assert read_settings(again[2:]).start_from == path


def test_quotes_around_a_path_are_not_part_of_it():
    assert read_settings(["output='a b'"]).output == read_settings(['output="a b"']).output == "a b"
    assert read_settings(["output=null"]).output is None


def test_an_option_that_is_null_is_not_one_that_nobody_gave():
    config = to_dict(read_settings(["env=SafetyPointCircle1-v0", "env.time_limit=null"]))
    assert ("env.time_limit", None, None) in preset_differences(config)
    assert "env.time_limit=null" in command(config)


@pytest.mark.parametrize("count", ["3", "3e0", "[0,1,2]"])
def test_seeds_are_counted(count):
    assert read_settings([f"sweep.seed={count}"]).sweep.grid == {"seed": [0, 1, 2]}


@pytest.mark.parametrize("total", [1, 7, 23, 100, 585, 976, 977])
@pytest.mark.parametrize("every", [1, 3, 10])
def test_plan_uses_nearly_all_steps_and_never_more(total, every):
    chunks, size = plan(total * 64 + 63, 64, every)
    assert 0 < chunks * size <= total
    assert total - chunks * size <= max(1, total // 50)


def test_a_number_limits_what_the_task_usually_limits_and_nothing_else():
    job = build(read_settings(["env=SafetyPointGoal0-v0", "threshold=0.05"]))
    assert [c.name for c in job.hypers.problem.constraints] == ["cost"]
    job = build(read_settings(["env=SafetyPointGoal1-v0", "threshold=0.05", "constraints=[hazard_depth]"]))
    assert [(c.name, c.threshold) for c in job.hypers.problem.constraints] == [("hazard_depth", 0.05)]


def test_multirun_may_stand_anywhere(capsys):
    from riskppo_jax.cli import main

    for words in (["-m", "env=a,b"], ["env=a,b", "-m"], ["seed=1", "-m", "env=a,b"]):
        assert main(["train", *words]) == 2
        assert "env" in (said := capsys.readouterr().err) and "unrecognized" not in said


@pytest.mark.parametrize("text", ["inf", ".inf"])
def test_infinity_is_written_as_in_yaml_or_as_in_python(text):
    assert read_settings([f"ppo.target_kl={text}"]).ppo.target_kl == float("inf")

"""Wrong settings: each ends with exit code 2 and one line that names the setting and what it accepts."""

import os
from pathlib import Path

import pytest
from tabular_cli import ID

from riskppo_jax.cli import main
from riskppo_jax.rundir import claimed

HOPPER = "env=SafetyHopperVelocity-v1"

# words after `riskppo train`, then what the line must contain
CASES = [
    # names that do not exist, with a suggestion where one is near
    (["env=SafetyHoperVelocity-v1"], ["env=SafetyHoperVelocity-v1", "SafetyHopperVelocity-v1"]),
    (["env=Pong"], ["env=Pong", "accepts"]),
    (["algo=riskpo"], ["algo=riskpo", "did you mean riskppo", "ppo_lagrangian"]),
    (["algo="], ["algo", "accepts", "riskppo"]),
    (["risk=cvra"], ["risk=cvra", "did you mean cvar", "entropic"]),
    (["objective=entropik"], ["objective=entropik", "did you mean entropic"]),
    (["experiment=hoper"], ["experiment=hoper", "did you mean hopper"]),
    (["engine=nativ"], ["engine=nativ", "did you mean native", "mjx"]),
    (["engine=warp"], ["engine=warp", "not available", "accepts"]),
    (["total_step=1000"], ["total_step", "did you mean total_steps"]),
    (["layout.num_env=4"], ["layout.num_env", "did you mean layout.num_envs"]),
    (["dual.lam_stepp=0.1"], ["dual.lam_stepp", "did you mean dual.lam_step"]),
    # sweeps
    (["sweep.seed=0"], ["sweep.seed=0", "1 or more"]),
    (["sweep.seed=[0,1.5]"], ["sweep.seed", "1.5", "whole number"]),
    (["sweep.seed=[-1]"], ["sweep.seed", "-1", "from 0"]),
    (["sweep.beta=[]"], ["sweep.risk.beta=[]", "empty", "accepts"]),
    (["sweep.grid={beta: []}"], ["sweep.risk.beta=[]", "empty", "accepts"]),
    (["sweep.grid=3"], ["sweep.grid=3", "accepts settings with their lists"]),
    (["sweep.beta=[0.1,0.1]"], ["sweep.risk.beta", "twice"]),
    (["sweep.beta=[low]"], ["sweep.risk.beta", "'low'", "number"]),
    (["sweep.beta=[0.1,2]"], ["risk.beta=2", "(0, 1]"]),
    (["sweep.beta=0.1,0.3"], ["sweep.beta=0.1,0.3", "-m"]),
    (["sweep.layout.num_envs=[4,8]"], ["layout.num_envs is static", "ppo.lr", "dual.lam_step", "risk.beta"]),
    (["sweep.algo=[ppo]"], ["algo is static", "risk.beta"]),
    (["sweep.risk=[cvar,mean]"], ["risk is static", "risk.beta"]),
    (["sweep.dual.lam=[plain,pi]"], ["dual.lam is static", "dual.lam_step"]),
    (["sweep.bta=[0.1]"], ["sweep.bta", "did you mean beta", "risk.beta"]),
    (["risk=entropic", "sweep.gamma=[1]"], ["sweep.gamma", "risk.gamma or ppo.gamma"]),
    (["objective=entropic", "sweep.gamma=[1]"], ["sweep.gamma", "ppo.gamma or objective.gamma"]),
    (["start_lane=1"], ["start_lane=1", "start_from"]),
    (["sweep.beta=[0.1]", "sweep.risk.beta=[0.2]"], ["risk.beta", "already"]),
    (["algo=ppo", "sweep.beta=[0.1,0.3]"], ["sweep.risk.beta", "nothing in this run depends on it"]),
    (["sweep.noise=[0.1,-0.1]"], ["noise=-0.1", ">= 0"]),
    ([f"env={ID}", "sweep.noise=[0.1]"], ["noise=0.1", "option"]),
    (["sweep.threshold=[0.1,99]"], ["threshold=99", "range of velocity"]),
    (["sweep.threshold=[paper]"], ["sweep.threshold", "'paper'", "number"]),
    (["sweep.mode=parallel"], ["sweep.mode=parallel", "vmap"]),
    (["sweep.batch=-1"], ["sweep.batch=-1", "accepts"]),
    (["risk=log", "risk.a=30", "sweep.a=[30,0.5]"], ["sweep", "risk.a=0.5", "accepts numbers from 10"]),
    (["risk.beta=[0.1]"], ["risk.beta=[0.1]", "accepts a number"]),
    (["sweep.beta=[[0.1],[0.2]]"], ["risk.beta", "number"]),
    (["risk.beta=true"], ["risk.beta=True", "accepts a number"]),
    (["scheme.risk_of=episode", "scheme.constant=true"], ["scheme.constant=true", "scheme.risk_of=step"]),
    # words that are no settings
    (["hopper"], ["hopper", "key=value"]),
    (["=3"], ["=3", "key=value"]),
    (["risk.beta=[0.1"], ["risk.beta", "accepts key=value"]),
    (["env=a,b"], ["env=a,b", "-m"]),
    # numbers of the wrong kind
    (["total_steps=many"], ["total_steps=many", "whole number"]),
    (["total_steps=1000.5"], ["total_steps=1000.5", "whole number"]),
    (["seed=one"], ["seed=one", "whole number"]),
    (["resume=maybe"], ["resume=maybe", "true or false"]),
    (["noise=loud"], ["noise=loud", "number"]),
    (["layout.hidden_sizes=[64,wide]"], ["layout.hidden_sizes", "whole numbers"]),
    (["layout.hidden_sizes=64"], ["layout.hidden_sizes=64", "whole numbers"]),
    # numbers outside their range
    (["total_steps=0"], ["total_steps=0", "accepts"]),
    (["total_steps=-5"], ["total_steps=-5", "accepts"]),
    (["total_steps=100"], ["total_steps=100", "at least", "2048"]),
    (["seed=-1"], ["seed=-1", "from 0"]),
    (["env=SafetyPointGoal1-v0", "env.reset=fixed", f"env.layout_seed={10**19}"], ["layout_seed", "2^32"]),
    (["layout.num_envs=0"], ["layout.num_envs=0", "1 or larger"]),
    (["layout.horizon=-1"], ["layout.horizon=-1", "1 or larger"]),
    (["layout.num_minibatches=7"], ["layout.num_minibatches=7", "divisor", "such as 8"]),
    (["layout.num_epochs=0"], ["layout.num_epochs=0", "1 or larger"]),
    (["layout.hidden_sizes=[0]"], ["layout.hidden_sizes=0", "1 or larger"]),
    (["layout.lidar_powers=[0]"], ["layout.lidar_powers=0", "1 or larger"]),
    (["layout.noise_memory=1"], ["layout.noise_memory=1", "below 1"]),
    (["layout.noise_memory=nan"], ["layout.noise_memory=nan", "below 1"]),
    (["layout.lidar_powers=[4,4]"], ["layout.lidar_powers=[4, 4]", "each once"]),
    (["layout.lidar_powers=[4]"], ["layout.lidar_powers=[4]", "no lidar", "accepts []"]),
    (["layout.activation=sigmoid"], ["layout.activation", "tanh"]),
    (["ppo.gamma=1.5"], ["ppo.gamma=1.5", "0 to 1"]),
    (["ppo.clip=0"], ["ppo.clip=0", "above 0"]),
    (["ppo.lr=nan"], ["ppo.lr=nan", "accepts"]),
    (["ppo.max_grad_norm=-1"], ["ppo.max_grad_norm=-1", "above 0"]),
    (["dual.lam=adamm"], ["dual.lam", "adam", "plain"]),
    (["dual.t=median"], ["dual.t", "quantile"]),
    (["dual.box=open"], ["dual.box", "tight"]),
    (["dual.lam_step=-0.1"], ["dual.lam_step=-0.1", "from 0"]),
    (["dual.lam_max=0"], ["dual.lam_max=0", "above 0"]),
    (["dual.lam_init=30"], ["dual.lam_init=30", "dual.lam_max"]),
    (["env=SafetyPointGoal1-v0", "dual.lam_init=0.2"], ["dual.lam_init=0.2", "at most 0.03 for cost", "dual.lam_max"]),
    (["dual.lam_growth=0.5"], ["dual.lam_growth=0.5", "from 1"]),
    (["dual.ease=-1"], ["dual.ease=-1", "from 0"]),
    (["dual.ease_until=0"], ["dual.ease_until=0", "above 0 to 1"]),
    (["dual.t_init=inf"], ["dual.t_init=inf", "finite"]),
    (["dual.smoothed=true", "dual.t=quantile"], ["dual.smoothed", "accepts"]),
    (["scheme.dual_rollout=stale"], ["scheme.dual_rollout=stale", "fresh"]),
    (["scheme.risk_of=trajectory"], ["scheme.risk_of=trajectory", "step, episode"]),
    (["scheme.policy_updates=0"], ["scheme.policy_updates=0", "1 or larger"]),
    (["eval.points=-1"], ["eval.points=-1", "from 0"]),
    (["scheme.dual_policy=mean"], ["scheme.dual_policy=mean", "fresh"]),
    (["log.every=0"], ["log.every=0", "from 1"]),
    (["checkpoint.keep=0"], ["checkpoint.keep=0", "from 1"]),
    (["checkpoint.seconds=-1"], ["checkpoint.seconds=-1", "0 or more"]),
    (["eval.episodes=0"], ["eval.episodes=0", "from 1"]),
    # risks
    (["risk.beta=0"], ["risk.beta=0", "(0, 1]"]),
    (["risk.beta=1.5"], ["risk.beta=1.5", "(0, 1]"]),
    (["risk.beta=nan"], ["risk.beta=nan", "(0, 1]"]),
    (["risk.beta=small"], ["risk.beta", "(0, 1]", "small"]),
    (["risk.gamma=2"], ["risk.gamma", "risk.beta"]),
    (["risk=entropic", "risk.beta=0.3"], ["risk.beta", "risk.gamma"]),
    (["risk=spectral", "risk.kappas=[0.5,0.9]"], ["risk.kappas", "sum 1"]),
    (["objective=cvar", "objective.beta=2"], ["objective.beta=2", "(0, 1]"]),
    (["risk.name=cvra"], ["risk='cvra'", "cvar"]),
    # thresholds and constraints
    ([HOPPER, "threshold=-0.1"], ["threshold=-0.1", "from 0 to 10"]),
    ([HOPPER, "threshold=nan"], ["threshold=nan", "accepts"]),
    ([HOPPER, "threshold=low"], ["threshold=low", "paper"]),
    (["env=default"], ["env=default", "riskppo envs"]),
    (["deploy=best", "algo=cvar_return"], ["deploy=best", "scheme.risk_of=step"]),
    (["deploy=first"], ["deploy=first", "last, best"]),
    (["deploy=best", "eval.points=0"], ["deploy=best", "eval.points", "1 or more"]),
    ([HOPPER, "threshold=99"], ["threshold=99", "range of velocity"]),
    ([HOPPER, "constraints=[speed]"], ["constraints", "speed", "velocity"]),
    ([HOPPER, "constraints=velocity"], ["constraints=velocity", "list"]),
    ([HOPPER, "constraints=[{threshold: 1}]"], ["constraints", "name"]),
    ([HOPPER, "constraints=[{name: velocity, beta: 0.1}]"], ["constraints", "beta", "threshold"]),
    ([HOPPER, "constraints=[{name: velocity, risk: {name: cvar, beta: 3}}]"], ["risk.beta=3", "(0, 1]"]),
    ([HOPPER, "constraints=[{name: velocity, threshold: fast}]"], ["threshold", "fast", "number"]),
    # the environment's own
    ([HOPPER, "noise=-0.1"], ["noise=-0.1", ">= 0"]),
    ([HOPPER, "env.speed=slow"], ["speed='slow'", "planar"]),
    ([HOPPER, "env.gravity=3"], ["gravity", "accepts", "time_limit"]),
    ([HOPPER, "env.time_limit=0"], ["env.time_limit=0", "positive"]),
    ([HOPPER, "env.time_limit=none"], ["env.time_limit='none'", "or null"]),
    (["env=SafetyAntVelocity-v1", "threshold=paper"], ["riskppo: threshold=paper", "threshold accepts v1"]),
    ([HOPPER, "constraints=[velocity,velocity]"], ["constraints", "velocity", "twice"]),
    ([HOPPER, "objective=mean", "objective.beta=2"], ["objective=mean", "objective.beta"]),
    ([HOPPER, "ppo.foo=1"], ["ppo.foo", "ppo.lr", "ppo.gamma"]),
    ([HOPPER, "env.noise=0.1"], ["env.noise", "noise"]),
    ([f"env={ID}", "noise=0.1"], ["noise=0.1", "option"]),
    # places
    (["output="], ["output", "accepts"]),
    (["resume=true"], ["resume=true", "output"]),
]


@pytest.mark.parametrize(("words", "named"), CASES, ids=lambda value: " ".join(value)[:60])
def test_one_line_names_the_setting(words, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("riskppo_jax.run._loop", lambda *_: pytest.fail("training began"))
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("riskppo: "), said
    for part in named:
        assert part in said, said
    assert not list(tmp_path.iterdir()), "nothing may be written for settings that are refused"


def test_there_are_forty():
    assert len(CASES) >= 40


def test_output_under_a_file(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["train", HOPPER, f"output={tmp_path}/file/run"]) == 2
    said = capsys.readouterr().err
    assert "output=" in said and "accepts a folder" in said and said.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_that_cannot_be_written(capsys, tmp_path):
    tmp_path.chmod(0o500)
    assert main(["train", HOPPER, f"output={tmp_path}/run"]) == 2
    assert "output=" in capsys.readouterr().err


def test_output_that_holds_a_run(capsys, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert main(["train", HOPPER, f"output={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "already holds a run" in said and "resume=true" in said


@pytest.mark.parametrize("more", [[], ["resume=true"]])
def test_output_that_holds_checkpoints_alone(capsys, tmp_path, more):
    """They would be newer than those of a run that begins there, and be taken for its own."""
    (tmp_path / "checkpoints" / "000000064").mkdir(parents=True)
    assert main(["train", HOPPER, f"output={tmp_path}", *more]) == 2
    said = capsys.readouterr().err
    assert f"output={tmp_path}: holds checkpoints" in said and "accepts" in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_output_that_another_process_trains_in(capsys, tmp_path):
    with claimed(tmp_path):
        assert main(["train", HOPPER, f"output={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert f"output={tmp_path}: another process" in said and "accepts" in said and said.count("\n") == 1
    with claimed(tmp_path):  # free again
        pass


def test_resume_into_a_damaged_config(capsys, tmp_path):
    (tmp_path / "config.yaml").write_text("env: {id: SafetyHopperVelocity-v1}\ncolour: red\n")
    assert main(["train", HOPPER, f"output={tmp_path}", "resume=true"]) == 2
    said = capsys.readouterr().err
    assert "does not fit this version" in said and said.count("\n") == 1


def test_resume_into_another_task(capsys, tmp_path):
    from riskppo_jax.rundir import keep_config, prepare
    from riskppo_jax.settings import read_settings

    held = read_settings([HOPPER, f"output={tmp_path}"])
    assert not prepare(held, tmp_path)
    keep_config(held, tmp_path)
    assert main(["train", "env=SafetySwimmerVelocity-v1", f"output={tmp_path}", "resume=true"]) == 2
    said = capsys.readouterr().err
    assert "env.id" in said and "SafetyHopperVelocity-v1" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["evaluate", "nowhere"], ["nowhere", "run directory"]),
        (["evaluate", "nowhere", "--episodes", "0"], ["--episodes 0", "1 or larger"]),
        (["export", "nowhere", "policy.npz"], ["nowhere", "run directory"]),
        (["export", "nowhere", "policy.txt"], ["policy.txt", ".npz"]),
    ],
)
def test_other_verbs(words, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(part in said for part in named), said
    assert Path("policy.npz").exists() is False

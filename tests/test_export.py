"""Exported policies act as the trained one: in NumPy, in onnxruntime, and as a StableHLO program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tabular_cli
from fake_runs import untrained_run

from riskppo_jax import export
from riskppo_jax.cli import main
from riskppo_jax.config import Layout
from riskppo_jax.nets import make_networks
from riskppo_jax.normalize import init_moments, normalize, update_moments


def policy(activation="tanh", num_actions=None, hidden=(16, 16), columns=(), powers=()):
    """Arrays of a policy with grown-up weights, observations it may see, and what it answers."""
    layout = Layout(hidden_sizes=hidden, activation=activation, lidar_powers=powers)
    size = 5 + len(columns) * len(powers)
    networks = make_networks(size, 3, num_actions, layout)
    keys = jax.random.split(jax.random.key(0), 3)
    params = networks.init(keys[0])
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(keys[1], x.shape), params)
    obs = 3.0 + 2.0 * jax.random.normal(keys[2], (64, 5)) * jnp.array([1.0, 1.0, 1.0, 1.0, 50.0])
    seen = jnp.concatenate([obs, *(obs[:, jnp.asarray(columns)] ** power for power in powers)], axis=1)
    moments = update_moments(init_moments((size,)), seen[:32])
    law = networks.policy(params, normalize(moments, seen, 1.5))
    answer = law.mode() if num_actions is None else law.logits
    arrays = export.policy_arrays(params, moments, layout, 1.5, columns)
    return arrays, np.asarray(obs, np.float32), np.asarray(answer)


LIDARS = {"columns": (1, 3), "powers": (2, 3)}


@pytest.mark.parametrize("kind", [{"activation": name} for name in ("tanh", "relu", "elu", "swish")] + [LIDARS])
def test_onnx(kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    arrays, obs, answer = policy(**kind)
    export.write_onnx(tmp_path / "policy.onnx", arrays)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    (found,) = session.run(["action"], {"obs": obs})
    np.testing.assert_allclose(found, answer, rtol=1e-5, atol=1e-5)
    (one,) = session.run(None, {"obs": obs[:1]})  # any batch
    np.testing.assert_allclose(one, answer[:1], rtol=1e-5, atol=1e-5)


def test_onnx_of_discrete_actions(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    arrays, obs, answer = policy(num_actions=4)
    export.write_onnx(tmp_path / "policy.onnx", arrays)
    logits, action = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx")).run(None, {"obs": obs})
    shift = logits - answer
    np.testing.assert_allclose(shift, shift[:, :1].repeat(4, 1), atol=1e-5)  # logits are free up to a constant
    np.testing.assert_array_equal(action, answer.argmax(1))


@pytest.mark.parametrize("kind", [{}, LIDARS])
def test_stablehlo(kind, tmp_path):
    arrays, obs, answer = policy(**kind)
    export.write_stablehlo(tmp_path / "policy.stablehlo", arrays)
    from jax import export as jax_export

    program = jax_export.deserialize(bytearray((tmp_path / "policy.stablehlo").read_bytes()))
    np.testing.assert_allclose(program.call(obs), answer, rtol=1e-5, atol=1e-5)
    assert program.call(obs[:3]).shape == (3, 3) and set(program.platforms) == {"cpu", "cuda", "tpu"}


def test_from_a_run(tmp_path, capsys):
    run = untrained_run(tmp_path / "run", *tabular_cli.TINY)
    names = ["policy.npz", "policy.stablehlo"]
    try:
        import onnx  # noqa: F401

        names.append("policy.onnx")
    except ImportError:
        pass
    for name in names:
        assert main(["export", str(run), str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 100
    capsys.readouterr()
    (tmp_path / "folder.npz").mkdir()
    for name in ("policy.txt", "nowhere/policy.npz", "folder.npz"):
        assert main(["export", str(run), str(tmp_path / name)]) == 2
    assert ".npz, .onnx, .stablehlo" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*.npz"))


def test_evaluate_elsewhere(tmp_path, capsys):
    """A policy meets another task of the same sizes, and is refused by one of other sizes."""
    run = untrained_run(tmp_path / "run", "env=SafetyHalfCheetahVelocity-v1")
    words = ["evaluate", str(run), "--episodes", "1", "--env"]
    assert main([*words, "SafetyHopperVelocity-v1"]) == 2
    assert "observations of 11" in capsys.readouterr().err


def test_the_quantity_stays_in_another_task(tmp_path, capsys):
    words = ["constraints=[hazard_depth]", "threshold=0.01", "env.time_limit=3", "eval.episodes=1"]
    run = untrained_run(tmp_path / "run", "env=SafetyPointGoal1-v0", *words)
    assert main(["evaluate", str(run), "--env", "SafetyPointGoal2-v0"]) == 0
    assert "hazard_depth, mean actions" in capsys.readouterr().out


@pytest.mark.slow
def test_evaluate_in_another_task(tmp_path, capsys):
    run = untrained_run(tmp_path / "run", "env=SafetyHalfCheetahVelocity-v1")
    assert main(["evaluate", str(run), "--episodes", "1", "--env", "SafetyWalker2dVelocity-v1"]) == 0
    assert '"env": "SafetyWalker2dVelocity-v1"' in capsys.readouterr().out

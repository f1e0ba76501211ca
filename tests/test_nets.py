"""Networks: what they start as, and the laws their outputs stand for."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax import distributions
from riskppo_jax.config import Layout, PPOHypers, check_ppo_hypers
from riskppo_jax.errors import UserError
from riskppo_jax.nets import make_networks


def test_normal_agrees_with_its_density():
    mean, log_std, x = jnp.array([0.5, -1.0]), jnp.log(jnp.array([0.5, 2.0])), jnp.array([1.0, 1.0])
    law = distributions.normal(mean, log_std)
    by_hand = -0.5 * (1.0 + 1.0) - math.log(0.5) - math.log(2.0) - math.log(2 * math.pi)
    np.testing.assert_allclose(law.log_prob(x), by_hand, rtol=1e-6)
    np.testing.assert_allclose(law.entropy(), math.log(2 * math.pi * math.e), rtol=1e-6)
    np.testing.assert_array_equal(law.mode(), mean)


def test_categorical_agrees_with_its_probabilities():
    law = distributions.categorical(jnp.log(jnp.array([[0.2, 0.3, 0.5]])))
    np.testing.assert_allclose(law.log_prob(jnp.array([1])), [math.log(0.3)], rtol=1e-6)
    np.testing.assert_array_equal(law.mode(), [2])
    assert jnp.issubdtype(law.sample(seed=jax.random.key(0)).dtype, jnp.integer)


def test_a_fresh_policy_is_centred_with_standard_deviation_one_half():
    networks = make_networks(5, 3, None, Layout())
    params = jax.jit(networks.init)(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (200, 5))
    law = networks.policy(params, obs)
    assert jnp.abs(law.mode()).max() < 0.05
    np.testing.assert_allclose(law.distribution.scale, 0.5, rtol=1e-6)
    assert networks.value(params, obs).shape == (200,)


def test_initial_values_follow_the_layout():
    layout = Layout(policy_head_gain=1.0, log_std_init=0.0)
    networks = make_networks(5, 3, None, layout)
    law = networks.policy(jax.jit(networks.init)(jax.random.key(0)), jnp.ones((2, 5)))
    assert jnp.abs(law.mode()).max() > 0.1
    np.testing.assert_allclose(law.distribution.scale, 1.0)


def test_discrete_actions_start_almost_uniform():
    networks = make_networks(5, 1, 4, Layout())
    law = networks.policy(jax.jit(networks.init)(jax.random.key(0)), jnp.ones((2, 5)))
    np.testing.assert_allclose(law.probs, 0.25, atol=0.01)


def test_values_are_moved_by_the_last_layer():
    networks = make_networks(3, 2, None, Layout())
    params, obs = networks.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 3))
    moved = networks.with_value(params, jnp.array(3.0), jnp.array(-2.0))
    np.testing.assert_allclose(networks.value(moved, obs), 3.0 * networks.value(params, obs) - 2.0, rtol=1e-5)
    assert jax.tree.structure(moved) == jax.tree.structure(params) and moved.actor is params.actor


def test_hidden_layers_are_orthogonal_and_networks_share_nothing():
    networks = make_networks(64, 2, None, Layout())
    params = jax.jit(networks.init)(jax.random.key(0))
    kernels = [x for x in jax.tree.leaves(params) if x.shape == (64, 64)]
    assert len(kernels) == 4
    for kernel in kernels:
        np.testing.assert_allclose(kernel @ kernel.T, 2.0 * jnp.eye(64), atol=1e-4)
    obs = jnp.ones((1, 64))
    by_value = jax.grad(lambda p: networks.value(p, obs).sum())(params)
    assert all((x == 0).all() for x in jax.tree.leaves(by_value.actor))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"horizon": -1}, "horizon"),
        ({"num_epochs": 1.5}, "num_epochs"),
        ({"num_minibatches": 3}, "num_minibatches"),
        ({"hidden_sizes": (64, 0)}, "hidden_sizes"),
        ({"activation": "tahn"}, "activation"),
        ({"log_std_init": float("nan")}, "log_std_init"),
        ({"policy_head_gain": -1.0}, "policy_head_gain"),
    ],
)
def test_a_wrong_layout_is_named(settings, named):
    with pytest.raises(UserError, match=named):
        Layout(**settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("gamma", 1.5), ("gamma", float("nan")), ("clip", 0.0), ("gae_lambda", 2.0)],
)
def test_wrong_hypers_are_named(name, value):
    with pytest.raises(UserError, match=f"{name}="):
        check_ppo_hypers(PPOHypers(**{name: value}))


def test_usual_hypers_pass():
    check_ppo_hypers(PPOHypers())
    check_ppo_hypers(PPOHypers(max_grad_norm=float("inf"), gamma=1.0, lr=0.0))


def test_lanes_are_initialised_one_matrix_at_a_time():
    """A batch of factorisations may wait for another for ever; and a lane's weights are those of a single run."""
    networks = make_networks(4, 2, None, Layout(hidden_sizes=(8,)))
    keys = jax.random.split(jax.random.key(0), 3)
    init = jax.jit(jax.vmap(networks.init))
    text = init.lower(keys).as_text()
    assert "lapack" in text or jax.default_backend() != "cpu"
    for shape in re.findall(r"@lapack_\w+\([^\n]*?: \(tensor<([^>]*)>", text):
        assert len(shape.split("x")) == 3, shape  # rows, columns, type
    alone = [jax.jit(networks.init)(key) for key in keys]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    jax.tree.map(np.testing.assert_array_equal, init(keys), stacked)

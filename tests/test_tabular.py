import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax.envs import tabular
from riskppo_jax.errors import UserError
from riskppo_jax.risk import oce

FIXTURES = Path(__file__).parent / "fixtures" / "tabular"
SHARED = Path(__file__).parents[2] / "shared" / "reference" / "tabular"
FILES = sorted(SHARED.glob("*.json")) or sorted(FIXTURES.glob("*.json"))


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def load(path):
    instance = tabular.load(path)
    if instance is None:
        pytest.skip(f"{path.name} holds formulas, not transitions")
    return instance, json.loads(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_law_of_the_stored_policy_gives_the_stored_optimum(path, x64):
    instance, data = load(path)
    policy = jnp.asarray(data["solution"]["policy"])
    nu = tabular.occupancy(instance.mdp, policy)
    np.testing.assert_allclose(nu, data["solution"]["occupancy"], atol=1e-9)
    law = tabular.law(instance.mdp, nu)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    objective = oce.from_config(instance.utilities[0])
    assert objective.value(instance.mdp.rewards[0], law) == pytest.approx(instance.solution.objective, abs=1e-8)
    for i, b in enumerate(instance.thresholds):
        utility = oce.from_config(instance.utilities[i + 1])
        assert utility.value(instance.mdp.rewards[i + 1], law) >= b - 1e-8


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_best_response_is_the_unconstrained_optimum(path, x64):
    """Exact values of the deterministic best response, and no single action improves on it."""
    instance, data = load(path)
    mdp = instance.mdp
    policy = tabular.best_response(mdp, mdp.rewards[0])
    q = tabular.action_values(mdp, policy, mdp.rewards[0])
    assert np.all(q <= np.sum(q * policy, axis=1, keepdims=True) + 1e-9)
    earned = tabular.law(mdp, tabular.occupancy(mdp, policy)) @ mdp.rewards[0]
    if instance.utilities[0]["name"] == "mean":
        free = data["comparisons"]["unconstrained_risk_neutral"]["objective"]
        assert earned == pytest.approx(free, abs=1e-8)


def test_policy_of_inverts_occupancy(x64):
    instance, _ = load(FIXTURES / "both_risk_averse.json")
    policy = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 3)))
    nu = tabular.occupancy(instance.mdp, policy)
    np.testing.assert_allclose(tabular.policy_of(nu), policy, rtol=1e-10)


def test_sampled_visits_follow_the_discounted_occupancy():
    instance, _ = load(FIXTURES / "both_risk_averse.json")
    env = tabular.TabularEnv(instance.mdp)
    policy = jnp.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])

    def step(state, key):
        action = jax.vmap(lambda k, o: jax.random.categorical(k, jnp.log(o @ policy)))(key, state.obs)
        state = jax.vmap(env.step)(state, action)
        return state, (state.info["row"], state.reward, state.constraints["v1"])

    keys = jax.random.split(jax.random.key(0), (300, 256))
    start = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), 256))
    _, (rows, reward, v) = jax.jit(lambda s, k: jax.lax.scan(step, s, k))(start, keys)
    seen = np.bincount(np.asarray(rows).ravel(), minlength=len(instance.mdp.s)) / rows.size
    np.testing.assert_allclose(seen, tabular.law(instance.mdp, tabular.occupancy(instance.mdp, policy)), atol=6e-3)
    np.testing.assert_allclose(reward, instance.mdp.rewards[0][rows], rtol=1e-6)
    np.testing.assert_allclose(v, -instance.mdp.rewards[1][rows], rtol=1e-6)


def test_an_episode_goes_on_in_the_state_it_was_cut_in():
    """The stop is a truncation: `final_obs` is where the chain arrived, `obs` where the next episode starts."""
    instance, _ = load(FIXTURES / "safe_risky_chain.json")
    env = tabular.TabularEnv(instance.mdp, names=("damage",), thresholds=(1.6,))
    assert env.constraint_names == ("damage",) and env.thresholds == {"damage": 1.6}
    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 2000))
    state = jax.vmap(env.step)(state, jnp.ones(2000, jnp.int32))
    arrived = jax.nn.one_hot(instance.mdp.s_next[state.info["row"]], env.observation_size)
    np.testing.assert_array_equal(state.final_obs, arrived)
    assert not state.terminated.any()
    assert abs(float(state.truncated.mean()) - (1 - instance.mdp.gamma)) < 0.03
    going = ~np.asarray(state.truncated)
    np.testing.assert_array_equal(state.obs[going], arrived[going])


WRONG = {
    "gamma": lambda d: d.update(gamma=1.0),
    "n_states": lambda d: d.update(n_states=0),
    "initial_distribution": lambda d: d.update(initial_distribution=[0.5, 0.6]),
    "transitions.prob": lambda d: d["transitions"]["prob"].__setitem__(0, 0.2),
    "transitions.s_next": lambda d: d["transitions"]["s_next"].__setitem__(0, 9),
    "transitions.a": lambda d: d["transitions"]["a"].append(0),
    "transitions.rewards": lambda d: d["transitions"]["rewards"][0].__setitem__(0, None),
    "transitions.s": lambda d: d["transitions"].pop("s"),
    "utilities[1].kind": lambda d: d["utilities"][1].update(kind="var"),
    "utilities[1].beta": lambda d: d["utilities"][1].update(beta=1.5),
    "utilities[0].kind": lambda d: d.update(utilities=[]),
    "thresholds_per_step": lambda d: d.update(thresholds_per_step=[]),
    "solution.P_star": lambda d: d["solution"].pop("P_star"),
    "solution.t_star": lambda d: d["solution"].update(t_star=[0.0]),
    "solution.t_star ": lambda d: d["solution"].update(t_star=["0", "1"]),
    "solution.t_star_interval": lambda d: d["solution"].update(t_star_interval=[[0.0, 1.0]]),
    "solution.lambda_interval": lambda d: d["solution"].update(lambda_interval=[0.1]),
    "comparisons.unconstrained_risk_neutral.objective": lambda d: d["comparisons"].clear(),
    "comparisons.unconstrained_risk_neutral.objective ": lambda d: d.update(comparisons=None),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_malformed_file_is_named_with_its_field(field, tmp_path):
    data = json.loads((FIXTURES / "safe_risky_chain.json").read_text())
    WRONG[field](data)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as error:
        tabular.load(path)
    said = str(error.value)
    assert "broken.json" in said and f"`{field.strip()}`" in said and "accepts" in said


def test_scales_where_the_constraints_cost_nothing(tmp_path):
    """Errors are then measured by the ranges, not by a rounding in the last place of the file."""
    data = json.loads((FIXTURES / "safe_risky_chain.json").read_text())
    free = data["comparisons"]["unconstrained_risk_neutral"]
    free["objective"] = data["solution"]["P_star"] + 1e-12
    free["constraint_slack"] = [0.2]
    path = tmp_path / "slack.json"
    path.write_text(json.dumps(data))
    found = tabular.load(path).solution
    ranges = np.ptp(np.array(data["transitions"]["rewards"], float), axis=1)
    assert found.objective_scale == pytest.approx(ranges[0]) and found.violation_scale == pytest.approx((ranges[1],))


@pytest.mark.parametrize("text", ["{", "[1, 2]", "\x00\xff"])
def test_what_is_not_an_instance_is_refused(text, tmp_path):
    path = tmp_path / "odd.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(UserError, match=r"odd\.json"):
        tabular.load(path)


def test_a_file_without_transitions_is_not_an_instance(tmp_path):
    path = tmp_path / "formulas.json"
    path.write_text('{"name": "formulas"}')
    assert tabular.load(path) is None

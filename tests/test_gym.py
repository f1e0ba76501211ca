"""Gymnasium's own checks, and its documented contract step by step."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import riskppo_jax as rp

HOPPER = "SafetyHopperVelocity-v1"


@pytest.fixture(scope="module")
def hoppers():
    """Two worlds whose episodes end both ways within a few steps; expensive to compile, so shared."""
    return rp.gym.make_vec(HOPPER, 2, engine="native", time_limit=12)


def _assert_same(ours, theirs, path=""):
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for name in ours:
            _assert_same(ours[name], theirs[name], f"{path}/{name}")
        return
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, path
    if ours.dtype == object:
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None), path
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=path)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=path)


@pytest.mark.filterwarnings("ignore:.*Box observation space.*infinity.*")
@pytest.mark.filterwarnings("error:.*WARN.*")
@pytest.mark.parametrize("id", [HOPPER, "SafetyHalfCheetahVelocity-v1"])
def test_gymnasium_check_env_passes_without_a_warning(id):
    check_env(rp.gym.Env(id, engine="native"))


def test_six_values_carry_the_cost():
    env = rp.gym.make("SafetySwimmerVelocity-v1", engine="native", time_limit=40)
    obs, _ = env.reset(seed=1)
    assert obs.dtype == np.float32 and obs in env.observation_space
    costs, ended = [], False
    while not ended:
        obs, _, cost, terminated, truncated, info = env.step(env.action_space.high)
        assert isinstance(cost, float) and cost == info["cost"]
        assert cost == float(info["constraints"]["velocity"] > env.unwrapped.env.thresholds["velocity"])
        costs.append(cost)
        ended = terminated or truncated
    assert truncated and not terminated and len(costs) == 40
    assert set(costs) == {0.0, 1.0}


def test_step_before_reset_is_refused(hoppers):
    with pytest.raises(gymnasium.error.ResetNeeded):
        rp.gym.Env(HOPPER, engine="native").step(np.zeros(3))


def test_vector_env_keeps_the_contract(hoppers):
    env = hoppers
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.observation_space.shape == (2, 11) and env.observation_space.dtype == np.float32
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space and obs.flags.writeable
    for _ in range(12):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert obs in env.observation_space and obs.flags.writeable
        assert reward.shape == (2,) and reward.dtype == np.float64
        assert terminated.dtype == bool and truncated.dtype == bool
        assert info["cost"].shape == (2,) and info["_cost"].all()
    assert env._step.compiled._cache_size() == 1


def test_vector_env_does_what_gymnasium_does_with_single_ones(hoppers):
    make = lambda: rp.gym.Env(HOPPER, engine="native", time_limit=12)  # noqa: E731
    theirs = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    first, second = hoppers.reset(seed=5), theirs.reset(seed=5)
    for ours, other in zip(first, second, strict=True):
        _assert_same(ours, other)
    rng = np.random.default_rng(0)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(40):
        action = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
        action[1] = -1  # the first stays up until the clock ends, the second falls
        ours, other = hoppers.step(action), theirs.step(action)
        info, other_info = ours[-1], other[-1]
        for a, b in zip(ours[:-1], other[:-1], strict=True):
            _assert_same(a, b)
        ended = ours[2] | ours[3]
        ends["terminated"] += ours[2].sum()
        ends["truncated"] += ours[3].sum()
        # where an episode ended we still tell what its last step cost, Gymnasium what the reset did
        for name in ("cost", "constraints"):
            del other_info[name], other_info[f"_{name}"]
            if ended.any():
                _assert_same(_rows(info[name], ended), _rows(info["final_info"][name], ended))
            del info[name], info[f"_{name}"]
        _assert_same(info, other_info)
    assert all(ends.values())


def _rows(tree, mask):
    return {k: _rows(v, mask) for k, v in tree.items()} if isinstance(tree, dict) else tree[mask]


def test_seeds_reproduce(hoppers):
    def episode(seed):
        frames = [hoppers.reset(seed=seed)[0]]
        hoppers.action_space.seed(0)
        return np.stack([*frames, *(hoppers.step(hoppers.action_space.sample())[0] for _ in range(20))])

    again = episode(11)
    np.testing.assert_array_equal(again, episode(11))
    assert not np.array_equal(again, episode(12))
    np.testing.assert_array_equal(again[0], hoppers.reset(seed=[11, 12])[0])
    unseeded = hoppers.reset()[0]
    assert not np.array_equal(unseeded, hoppers.reset()[0])


def test_reset_mask_resets_only_what_it_names(hoppers):
    hoppers.reset(seed=0)
    before, *_ = hoppers.step(np.zeros((2, 3)))
    after, info = hoppers.reset(seed=9, options={"reset_mask": np.array([False, True])})
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], hoppers.reset(seed=9)[0][1])
    assert info["_cost"].tolist() == [False, True]


def test_gymnasium_vector_wrappers_run(hoppers):
    env = RecordEpisodeStatistics(hoppers)
    env.reset(seed=0)
    lengths = []
    for _ in range(30):
        *_, info = env.step(np.zeros((2, 3)))
        if "episode" in info:
            lengths += info["episode"]["l"][info["_episode"]].tolist()
    assert set(lengths) == {12}
    listed = DictInfoToList(hoppers)
    listed.reset(seed=0)
    *_, infos = listed.step(np.zeros((2, 3)))
    assert [set(info["constraints"]) for info in infos] == [{"effort", "velocity"}] * 2


def test_auto_reset_can_be_left_to_the_caller():
    env = rp.gym.make_vec(HOPPER, 2, engine="native", time_limit=2, auto_reset=False)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env.reset(seed=0)
    env.step(np.zeros((2, 3)))
    obs, _, _, truncated, info = env.step(np.zeros((2, 3)))
    assert truncated.all() and "final_obs" not in info
    fresh, _ = env.reset(options={"reset_mask": truncated})
    assert not np.array_equal(obs, fresh)


def test_gymnasium_can_make_it_again_from_its_spec(hoppers):
    again = gymnasium.make_vec(hoppers.spec, num_envs=2, vectorization_mode="vector_entry_point")
    assert isinstance(again.unwrapped, rp.gym.VecEnv) and again.num_envs == 2
    again = gymnasium.make(rp.gym.make(HOPPER, time_limit=7).spec, disable_env_checker=True)
    again.reset(seed=0)
    assert len(again.step(again.action_space.sample())) == 6


def test_each_motor_has_its_own_range():
    space = rp.gym.make("SafetyRacecarGoal1-v0").action_space
    np.testing.assert_allclose(space.high, [20.0, 0.785], rtol=1e-6)
    np.testing.assert_allclose(space.low, -space.high)


@pytest.mark.parametrize("num_envs", [0, -1, 2.5, True])
def test_wrong_number_of_worlds_is_one_line(num_envs):
    with pytest.raises(ValueError, match=r"^num_envs=.*accepts a positive number"):
        rp.gym.make_vec(HOPPER, num_envs)


def test_wrong_action_shape_is_one_line(hoppers):
    hoppers.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape \(3,\); step accepts \(2, 3\)"):
        hoppers.step(np.zeros(3))


def test_importing_the_package_stays_light():
    code = "import sys, riskppo_jax as rp; assert 'gym' in dir(rp) or rp.__all__; print('jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"

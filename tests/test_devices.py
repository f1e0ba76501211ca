"""Several devices: lanes come out as on one, exactly or but for the last bit, a spread single run within rounding."""

import os
import subprocess
import sys

import pytest

TESTS = os.path.dirname(__file__)
PAIR = ["env=SafetyHopperVelocity-v1", "engine=native", "layout.num_envs=16", "layout.num_epochs=3", "total_steps=128"]


def run_on(devices: int | None, what: str) -> str:
    """Runs a check of this file in a process that sees so many devices, or as many as it makes itself."""
    flags = os.environ.get("XLA_FLAGS", "")
    if devices:
        flags += f" --xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, __file__, what], env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": TESTS},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["lanes", "envs"])
def test_spread_equals_one_device(devices, what):
    assert f"{what} on {devices} devices: agree" in run_on(devices, what)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_lanes_on_the_cores_of_this_machine_equal_those_of_one_within_rounding():
    assert "devices: agree" in run_on(None, "cores")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("what", ["pair", "pair that stops early"])
def test_a_single_run_on_two_cores_equals_one_within_rounding(what):
    assert "on 2 devices: agree" in run_on(None, what)


def test_devices_for_the_fewest_rounds():
    from riskppo_jax.parallel import fewest

    assert [fewest(lanes, 8) for lanes in (1, 5, 8, 9, 10, 16, 17)] == [1, 5, 8, 5, 5, 8, 6]


def test_what_does_not_divide_is_refused():
    said = run_on(4, "refused").splitlines()
    assert len(said) == 6 and all(line.startswith("2 riskppo: ") for line in said), said
    for line, part in zip(said, ["6 lanes", "layout.num_envs=6", "devices=5", "shard=lanes", "shard=envs", "shard=x"],
                          strict=True):  # fmt: skip
        assert part in line and "accepts" in line


def test_a_wish_for_threads_stands(monkeypatch):
    from riskppo_jax.parallel import one_thread_each

    for given, kept in (("3", "3"), (None, "1")):
        monkeypatch.setenv("PJRT_NPROC", given or "")  # so that it is put back afterwards
        if given is None:
            monkeypatch.delenv("PJRT_NPROC")
        one_thread_each()
        assert os.environ["PJRT_NPROC"] == kept


def _compare(what: str) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from tabular_cli import TINY

    from riskppo_jax import results
    from riskppo_jax.build import build
    from riskppo_jax.engines.cache import enable_cache
    from riskppo_jax.lanes import Runner, Way
    from riskppo_jax.parallel import cores_as_devices
    from riskppo_jax.settings import read_settings

    def arrays(tree):
        plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
        return [np.asarray(plain(x)) for x in jax.tree.leaves(tree)]

    enable_cache()
    grids = {"lanes": ["sweep.seed=2", "sweep.beta=[0.3,1.0]"], "cores": ["sweep.seed=3"],
             "pair": PAIR, "pair that stops early": [*PAIR, "ppo.target_kl=1e-9"]}  # fmt: skip
    own = what == "cores" or what.startswith("pair")
    if own:
        cores_as_devices(0 if what == "cores" else 2)
    found, grid = [], grids.get(what, [])
    for where in ("none", "auto" if own else what):
        runner = Runner(job := build(read_settings([*TINY, "total_steps=64", *grid, f"shard={where}"])), Way("map"))
        state = runner.start()
        runner.compile(state)
        state, metrics = runner(state)
        if job.mesh:
            assert len(state.envs.reward.sharding.device_set) == job.mesh.size
            assert runner.put(runner.fetch(state)).envs.reward.sharding == state.envs.reward.sharding
        assert where == "none" or job.mesh
        if what.startswith("pair"):
            assert (metrics["ppo/epochs"] == (1 if what.endswith("early") else 3)).all()
        found.append([*arrays(state := runner.fetch(state)), *arrays(metrics)])
        if job.lanes:  # all but one of them look best: they are evaluated once more
            points = results._confirm(job, state, np.arange(len(job.lanes)) != 1, 3, Way("map"))
            assert sorted(points) == [i for i in range(len(job.lanes)) if i != 1]
            found[-1] += [np.asarray(x) for x in jax.tree.leaves(points)]
    for one, many in zip(*found, strict=True):
        if what == "lanes":
            assert one.tobytes() == many.tobytes()
        else:
            np.testing.assert_allclose(one, many, rtol=1e-4, atol=1e-6)
    print(f"{what} on {jax.device_count()} devices: agree")


def _refused() -> None:
    import contextlib
    import io

    from tabular_cli import TINY

    from riskppo_jax.cli import main

    for words in (["sweep.seed=6"], ["layout.num_envs=6"], ["devices=5"], ["shard=lanes"],
                  ["sweep.seed=4", "shard=envs"], ["shard=x"]):  # fmt: skip
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main(["train", *TINY, *words, "output=nowhere"])
        print(code, said.getvalue().strip())


if __name__ == "__main__":
    _refused() if sys.argv[1] == "refused" else _compare(sys.argv[1])

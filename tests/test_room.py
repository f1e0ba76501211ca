"""What a sweep announces and chooses before anything is compiled."""

from types import SimpleNamespace

import jax
import pytest
from tabular_cli import TINY

from riskppo_jax import lanes, room
from riskppo_jax.build import build
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way
from riskppo_jax.settings import read_settings


@pytest.fixture(scope="module")
def sweep():
    return build(read_settings([*TINY, "sweep.seed=12"]))


def with_settings(job, **settings):
    asked = type(job.settings.sweep)(**(vars(job.settings.sweep) | settings))
    return job._replace(settings=type(job.settings)(**(vars(job.settings) | {"sweep": asked})))


def test_a_core_takes_one_lane_at_a_time(sweep):
    assert room.choose_way(sweep) == Way("map", 1)


def test_an_accelerator_takes_as_many_as_fit(sweep, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert room.choose_way(sweep) == Way("vmap", 12)
    carried, working = room.carried_bytes(sweep), room.working_bytes(sweep)
    monkeypatch.setattr(room, "free_bytes", lambda: (24 * carried + 5.5 * working) / 0.8)
    assert room.choose_way(sweep) == Way("map", 4)  # five fit; four divide twelve
    assert "4 at a time" in room.announce(sweep, Way("map", 4))


def test_devices_have_memory_of_their_own_and_cores_do_not(sweep, monkeypatch):
    carried, working = room.carried_bytes(sweep), room.working_bytes(sweep)
    spread = sweep._replace(mesh=SimpleNamespace(size=4))
    monkeypatch.setattr(room, "free_bytes", lambda: (6 * carried + 3.5 * working) / 0.8)  # three lanes, old and new
    with pytest.raises(UserError, match="do not fit"):
        room.choose_way(spread)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert room.choose_way(spread) == Way("vmap", 12)


def test_files_that_were_read_do_not_count_as_taken(tmp_path, monkeypatch):
    for name, text in {"max": "3000000\n", "current": "2900000\n", "stat": "anon 5\ninactive_file 2000000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(room, "_CGROUP", str(tmp_path))
    assert room.free_bytes() == 2_100_000


def test_wishes_are_kept(sweep):
    assert room.choose_way(with_settings(sweep, mode="vmap")) == Way("vmap", 12)
    assert room.choose_way(with_settings(sweep, mode="map", batch=5)) == Way("map", 5)
    assert room.choose_way(with_settings(sweep, batch=100)) == Way("map", 12)


def test_too_many_lanes_are_refused_with_what_fits(sweep, monkeypatch):
    carried, working = room.carried_bytes(sweep), room.working_bytes(sweep)
    monkeypatch.setattr(room, "free_bytes", lambda: (14 * carried + working) / 0.8 + 1)
    with pytest.raises(UserError, match=r"12 lanes .* accepts at most 7 lanes"):
        room.choose_way(sweep)


def test_the_announcement_names_everything(sweep):
    said = room.announce(sweep, Way("map", 1))
    for part in ("12 lanes (12 seed)", "4 environments", "per lane", "at work", "free", "fit", "mode map"):
        assert part in said, said
    assert "carried" in room.announce(sweep, Way("vmap", 12))


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ["env=SafeRiskyChain-v0"], ["env=SafetySwimmerVelocity-v1"], ["env=SafetyHopperVelocity-v1", "algo=paper"],
    ["env=SafetyHopperVelocity-v1", "layout.num_envs=64", "layout.horizon=32"],
])  # fmt: skip
def test_announced_bytes_are_those_of_the_compiled_program(words):
    sizes = {}
    for count in (2, 4):
        job = build(read_settings([*words, f"sweep.seed={count}"]))
        keys, hypers = lanes.inputs(job)
        init, chunk = lanes.programs(job, Way("vmap"))
        state = jax.eval_shape(init, keys, hypers)
        about = jax.jit(chunk, donate_argnums=0).lower(state, hypers).compile().memory_analysis()
        sizes[count] = about.argument_size_in_bytes + about.temp_size_in_bytes
    growth = (sizes[4] - sizes[2]) / 2
    assert room.carried_bytes(job) + room.working_bytes(job) == pytest.approx(growth, rel=0.2)

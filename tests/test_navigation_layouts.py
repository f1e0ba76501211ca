"""Layouts: the rule holds in every one, both ways of drawing agree, and so do the original's samples."""

from pathlib import Path

import jax
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax.envs.navigation import bank
from riskppo_jax.envs.navigation.layout import Layouts, draw, plan
from riskppo_jax.envs.navigation.tables import task

RECORD = Path(__file__).parents[2] / "shared" / "reference" / "parity" / "layouts.npz"
needs_record = pytest.mark.skipif(not RECORD.is_file(), reason="the original's layouts are not here")
TASKS = [(name, level) for name in ("Goal", "Button", "Push", "Circle") for level in (0, 1, 2)]
COUNT = 2000
SMALL = 1e-4  # of some 900 p-values, the smallest by chance


def distance(first, second):
    """Largest distance of two empirical distributions, in units of its scale under equality (Kolmogorov-Smirnov)."""
    first, second = np.sort(first), np.sort(second)
    both = np.concatenate([first, second])
    gap = np.abs(
        np.searchsorted(first, both, "right") / len(first) - np.searchsorted(second, both, "right") / len(second)
    )
    return gap.max() / np.sqrt(1 / len(first) + 1 / len(second))


LIMIT = np.sqrt(-np.log(SMALL / 2) / 2)  # of `distance`, at that level


@pytest.fixture(scope="module")
def drawn():
    """Positions `[COUNT, object, 2]` and goals, as the environment draws them at a reset."""
    found = {}

    def get(name, level):
        if (name, level) not in found:
            layouts = Layouts(task(name, level, "Point"))
            keys = jax.random.split(jax.random.key(level), COUNT)
            found[name, level] = layouts.plan, *map(np.asarray, jax.jit(jax.vmap(layouts.draw))(keys))
        return found[name, level]

    return get


@pytest.mark.parametrize("name, level", TASKS)
def test_everything_keeps_its_distance(drawn, name, level):
    plan, xy, goal = drawn(name, level)
    assert np.isfinite(xy).all() and (xy >= plan.low - 1e-6).all() and (xy <= plan.low + plan.span + 1e-6).all()
    gaps = np.linalg.norm(xy[:, :, None] - xy[:, None], axis=-1)
    apart = plan.keepout[:, None] + plan.keepout
    off = ~np.eye(len(plan.names), dtype=bool)
    assert (gaps >= apart - 1e-5)[:, off].all()
    if plan.goal >= 0:
        others = np.arange(len(plan.names)) != plan.goal
        gaps = np.linalg.norm(xy - goal[:, None], axis=-1)[:, others]
        assert (gaps >= (plan.keepout + plan.keepout[plan.goal])[others] - 1e-5).all()


@needs_record
@pytest.mark.parametrize("name, level", TASKS)
def test_layouts_are_the_originals_in_distribution(drawn, name, level):
    plan, xy, goal = drawn(name, level)
    with np.load(RECORD) as record:
        names = [str(x) for x in record[f"{name}{level}_names"]]
        rows = [names.index(x) for x in plan.names]
        theirs = record[f"{name}{level}_xy"][:, rows]
        their_goal = record[f"{name}{level}_goal_xy"] if f"{name}{level}_goal_xy" in record.files else None
    moving = np.flatnonzero(plan.span[:, 0] > 0)
    for i in moving:
        for axis in (0, 1):
            assert distance(xy[:, i, axis], theirs[:, i, axis]) < LIMIT, (plan.names[i], axis)
        for j in moving[moving < i]:
            gap = lambda a, i=i, j=j: np.linalg.norm(a[:, i] - a[:, j], axis=-1)  # noqa: E731
            assert distance(gap(xy), gap(theirs)) < LIMIT, (plan.names[i], plan.names[j])
    if their_goal is not None:
        for axis in (0, 1):
            assert distance(goal[:, axis], their_goal[:, axis]) < LIMIT
        gap = lambda goal, xy: np.linalg.norm(goal - xy[:, 0], axis=-1)  # noqa: E731
        assert distance(gap(goal, xy), gap(their_goal, theirs)) < LIMIT


@pytest.mark.parametrize("name, level", [("Goal", 2), ("Push", 1), ("Button", 0)])
def test_the_compiled_rule_and_the_bank_agree(name, level):
    found = plan(task(name, level, "Point"))
    keys = jax.random.split(jax.random.key(3), COUNT)
    xy, _, blocks = map(np.asarray, jax.jit(jax.vmap(lambda key: draw(found, key)))(keys))
    rows, other_blocks = bank.sample(found, COUNT, 5)
    for i in range(len(found.names)):
        assert distance(xy[:, i, 0], rows[:, i, 0]) < LIMIT
    assert distance(blocks, other_blocks) < LIMIT
    assert blocks.mean() == pytest.approx(other_blocks.mean(), rel=0.1)


def test_how_many_draws_a_layout_takes():
    draws = {level: bank.sample(plan(task("Button", level, "Point")), 200, level)[1].mean() * 10 for level in (0, 1, 2)}
    assert 150 < draws[0] < 1000 and 5_000 < draws[1] < 20_000 and 5_000 < draws[2] < 20_000


def test_a_bank_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("RISKPPO_CACHE", str(tmp_path))
    monkeypatch.setattr(bank, "_loaded", {})
    found = plan(task("Button", 0, "Point"))
    first = bank.load(found)
    files = list(tmp_path.glob("layouts-*.npy"))
    assert first.shape == (bank.SIZE, len(found.names) + 1, 2) and len(files) == 1
    monkeypatch.setattr(bank, "_loaded", {})
    monkeypatch.setattr(bank, "sample", lambda *args: pytest.fail("drawn again"))
    np.testing.assert_array_equal(bank.load(found), first)
    files[0].write_bytes(b"half")
    monkeypatch.setattr(bank, "_loaded", {})
    monkeypatch.undo()
    monkeypatch.setenv("RISKPPO_CACHE", str(tmp_path))
    monkeypatch.setattr(bank, "_loaded", {})
    np.testing.assert_array_equal(bank.load(found), first)  # a broken file is drawn again


def test_crowded_tasks_are_drawn_from_a_bank():
    env = rp.make_env("SafetyPointGoal1-v0", engine="native", hazards=16, vases=4)
    assert env._layouts._hard
    state = jax.jit(env.reset)(jax.random.key(0))
    assert state.sim.layout.shape == (21, 2) and np.isfinite(state.obs).all()

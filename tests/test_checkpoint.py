"""Saved and restored states: bit for bit, in another process, and refused where they do not fit."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax import checkpoint
from riskppo_jax.config import Layout
from riskppo_jax.errors import UserError
from riskppo_jax.train import make_train, scan_steps

TREE = {
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(4), (2, 3)),
    "words": jnp.asarray(np.arange(5, dtype=np.uint32) + np.uint32(2**31)),
    "flags": jnp.asarray([True, False]),
    "none": jnp.zeros((0,)),
    "number": jnp.float32(np.nan),
    "nested": (jnp.ones((2, 3)), [jnp.asarray(-0.0), jnp.asarray(np.inf)]),
}


def words(tree):
    """Every leaf as raw bytes."""
    data = jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(data)]


def test_round_trip(tmp_path):
    path = rp.save(tmp_path / "a", TREE, {"step": 3})
    back = rp.restore(path, jax.eval_shape(lambda: TREE))
    assert words(back) == words(TREE)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), back) == jax.tree.map(lambda x: (x.shape, x.dtype), TREE)
    assert checkpoint.read_meta(path)["notes"] == {"step": 3}


def test_plain_numbers_and_nothing_at_all(tmp_path):
    """A trainer's numbers are Python's own; Orbax refuses a tree without any array."""
    tree = {"rate": 0.3, "count": 3, "deep": (True, jnp.ones(2))}
    back = rp.restore(rp.save(tmp_path / "a", tree), tree)
    assert jax.tree.map(float, (back["rate"], back["count"], back["deep"][0])) == (pytest.approx(0.3), 3.0, 1.0)
    empty = {"none": jnp.zeros((0, 2))}
    assert rp.restore(rp.save(tmp_path / "b", empty), empty)["none"].shape == (0, 2)
    with pytest.raises(UserError, match="accepts arrays"):
        rp.save(tmp_path / "c", {"word": "hello"})


def test_no_pickle_on_disk(tmp_path):
    path = rp.save(tmp_path / "a", TREE)
    assert not [file for file in path.rglob("*") if file.is_file() and file.read_bytes()[:1] == b"\x80"]
    assert not list(path.rglob("*.pkl"))


def test_a_failed_save_leaves_the_old_one(tmp_path, monkeypatch):
    path = rp.save(tmp_path / "a", TREE, {"step": 1})
    monkeypatch.setattr(checkpoint, "_write_arrays", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        rp.save(tmp_path / "a", TREE, {"step": 2})
    assert checkpoint.read_meta(path)["notes"] == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_leaves_are_found_by_their_names(tmp_path):
    """Fields that changed places, as between versions, keep their values; worlds of another engine are left out."""
    old, new = (dataclasses.make_dataclass("State", names) for names in (["x", "y", "envs"], ["envs", "y", "x"]))
    for kind in (old, new):
        jax.tree_util.register_dataclass(kind)
    path = rp.save(tmp_path / "a", old(jnp.asarray(1.0), jnp.asarray(2.0), {"a": jnp.ones(3)}))
    like = new({"a": jnp.ones(3)}, jnp.asarray(0.0), jnp.asarray(0.0))
    assert words(rp.restore(path, like)) == words(new({"a": jnp.ones(3)}, jnp.asarray(2.0), jnp.asarray(1.0)))
    other = new({"b": jax.random.key(1), "c": jnp.ones(2)}, jnp.asarray(0.0), jnp.asarray(0.0))
    back = checkpoint.restore(path, other, without=("envs.",))
    assert (float(back.x), float(back.y), back.envs["c"].tolist()) == (1.0, 2.0, [0.0, 0.0])
    refused(path, "the checkpoint has no envs.b", other)


def test_what_a_killed_save_left_is_no_obstacle(tmp_path):
    rp.save(tmp_path / "a", TREE, {"step": 1})
    (tmp_path / ".a.old").mkdir()
    (tmp_path / ".a.old" / "meta.json").write_text("{}")
    assert checkpoint.read_meta(rp.save(tmp_path / "a", TREE, {"step": 2}))["notes"] == {"step": 2}


def test_a_full_disk_is_seen_before_writing(tmp_path, monkeypatch):
    path = rp.save(tmp_path / "a", TREE, {"step": 1})
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match="No space left"):
        rp.save(tmp_path / "a", TREE, {"step": 2})
    assert checkpoint.read_meta(path)["notes"] == {"step": 1}


@pytest.fixture
def saved(tmp_path):
    return rp.save(tmp_path / "000000001", TREE)


def refused(path, match, like=TREE):
    with pytest.raises(UserError, match=match) as error:
        rp.restore(path, like)
    assert "\n" not in str(error.value)


def test_truncated(saved):
    file = max((p for p in (saved / "arrays").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    refused(saved, "damaged")


def test_missing_file(saved):
    next(p for p in (saved / "arrays").rglob("*") if p.is_file()).unlink()
    refused(saved, "missing")


def test_foreign(tmp_path, saved):
    (saved / "meta.json").write_text('{"framework": "another"}')
    refused(saved, "not a checkpoint")
    (saved / "meta.json").write_text("half a li")
    refused(saved, "not a checkpoint")
    refused(tmp_path / "nowhere", "not a checkpoint")


def test_newer(saved):
    meta = json.loads((saved / "meta.json").read_text())
    (saved / "meta.json").write_text(json.dumps(meta | {"format": checkpoint.FORMAT + 1, "version": "9.0"}))
    refused(saved, r"newer riskppo \(9.0\)")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"words": jnp.zeros(6, jnp.uint32)}, "words has shape"),
        ({"number": jnp.int32(1)}, "number has dtype"),
        ({"nested": (jnp.ones((2, 3)), [jnp.zeros(())])}, "also has nested.1.1"),
        ({"other": jnp.zeros(())}, "has no other"),
    ],
)
def test_other_settings(saved, change, named):
    refused(saved, named, TREE | change)


def test_the_older_one_is_offered(tmp_path):
    older, newest = (rp.save(tmp_path / f"00000000{i}", TREE) for i in (1, 2))
    (tmp_path / ".000000003.77").mkdir()  # a save that was killed
    assert checkpoint.latest(tmp_path) == newest
    (newest / "meta.json").write_text("")
    with pytest.raises(UserError, match=f"{older.name} is intact: remove {newest.name}"):
        checkpoint.latest(tmp_path)
    checkpoint.prune(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == [newest.name]


def swimmer(engine):
    env = rp.make_env("SafetySwimmerVelocity-v1", engine, noise=0.05, time_limit=6)
    problem = rp.Problem(constraints=(rp.Constraint("velocity", 0.2, rp.oce.cvar(0.3)),))
    return make_train(env, Layout(num_envs=2, horizon=4, num_minibatches=2, num_epochs=1, hidden_sizes=(4,)), problem)


def go_on(path: Path, out: Path, engine: str) -> None:
    """What the other process does: restore, two more steps, save."""
    trainer = swimmer(engine)
    state = rp.restore(path, jax.eval_shape(trainer.init, jax.random.key(0), trainer.hypers))
    rp.save(out, jax.jit(scan_steps(trainer, 2))(state, trainer.hypers)[0])


@pytest.mark.parametrize("engine", ["native", pytest.param("mjx", marks=pytest.mark.slow)])
def test_a_new_process_goes_on_bit_for_bit(tmp_path, engine):
    trainer = swimmer(engine)
    run = jax.jit(scan_steps(trainer, 2))
    half, _ = run(jax.jit(trainer.init)(jax.random.key(0), trainer.hypers), trainer.hypers)
    rp.save(tmp_path / "half", half)
    whole, _ = run(half, trainer.hypers)
    subprocess.run([sys.executable, __file__, str(tmp_path / "half"), str(tmp_path / "whole"), engine], check=True)
    assert words(rp.restore(tmp_path / "whole", whole)) == words(whole)


if __name__ == "__main__":
    go_on(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

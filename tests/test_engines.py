"""One suite for every engine on a small model: a hopping capsule, a motor, a moving target."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from riskppo_jax.engines import make_engine, resolve
from riskppo_jax.engines.base import Sim, Track
from riskppo_jax.errors import UserError

XML = """
<mujoco>
  <option timestep="0.01" integrator="RK4"/>
  <worldbody>
    <geom type="plane" size="5 5 1"/>
    <body name="leg" pos="0 0 0.4">
      <joint type="slide" axis="0 0 1"/>
      <joint type="slide" axis="1 0 0"/>
      <joint name="hinge" type="hinge" axis="0 1 0" range="-60 60" damping="0.1"/>
      <geom type="capsule" fromto="0 0 -0.25 0 0 0.25" size="0.05"/>
    </body>
    <body name="target" mocap="true" pos="1 2 3"><geom type="sphere" size="0.1" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator><motor joint="hinge" gear="5" ctrlrange="-1 1"/></actuator>
</mujoco>
"""
FIELDS = ("qpos", "qvel", "xpos", "time")
SKIP = 3
ROLL = 20


@pytest.fixture(scope="module")
def model():
    return mujoco.MjModel.from_xml_string(XML)


@pytest.fixture(scope="module", params=["native", "mjx"])
def engine(request, model):
    return make_engine(request.param, model, SKIP, FIELDS, Track("xpos", 3, 6))


def starts(shape):
    """Postures that touch the floor, and controls."""
    rng = np.random.default_rng(0)
    qpos = rng.uniform([-0.15, -1, -0.5], [0.1, 1, 0.5], (*shape, 3))
    arrays = qpos, rng.normal(size=(*shape, 3)), rng.uniform(-2, 2, (*shape, 1))
    return [jnp.asarray(x, jnp.float32) for x in arrays]


def roll(engine, qpos, qvel, ctrl):
    """One world: the derived fields after `ROLL` steps, and the sum of displacements."""

    def body(carry, _):
        sim = engine.step(Sim(carry, {}), ctrl)
        return sim.carry, sim.derived

    first = engine.init(qpos, qvel)
    carry, derived = jax.lax.scan(body, first.carry, None, ROLL)
    return carry, derived


@pytest.fixture(scope="module")
def run(engine):
    """`roll` for a flat batch, compiled once for all tests of an engine."""
    return jax.jit(jax.vmap(lambda *args: roll(engine, *args)))


@pytest.fixture(scope="module")
def rolled(run):
    """The reference: 12 worlds in a flat batch."""
    args = starts((12,))
    return args, run(*args)


def agree(engine, ours, theirs):
    """Bit for bit on the host; to rounding where XLA may order sums as the batch suggests."""
    tolerance = {} if engine.name == "native" else {"rtol": 2e-4, "atol": 2e-4}
    compare = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    jax.tree.map(lambda a, b: compare(a, b, **tolerance), ours, theirs)


def test_floats_are_single_by_default(engine, rolled):
    derived = rolled[1][1]
    assert set(derived) == {*FIELDS, "moved"}
    assert all(value.dtype == jnp.float32 for value in derived.values())


def test_nested_vmap_equals_a_flat_batch(engine, rolled):
    args, flat = rolled
    nested = [x.reshape(2, 3, 2, -1) for x in args]
    once = lambda *a: roll(engine, *a)  # noqa: E731
    out = jax.jit(jax.vmap(jax.vmap(jax.vmap(once))))(*nested)
    agree(engine, jax.tree.map(lambda x: x.reshape(12, *x.shape[3:]), out)[1], flat[1])


def test_unmapped_arguments_are_shared(engine, rolled):
    (qpos, qvel, ctrl), _ = rolled
    one = lambda u: engine.step(engine.init(qpos[0], qvel[0]), u).derived["qvel"]  # noqa: E731
    out = np.asarray(jax.jit(jax.vmap(one))(jnp.clip(ctrl, -1, 1)))
    spread = jax.jit(jax.vmap(one))(ctrl)
    agree(engine, spread, out)  # the motor clips
    assert len(np.unique(out[:, 2])) > 4


def test_vmap_inside_a_scan_equals_scan_inside_vmap(engine, rolled):
    (qpos, qvel, ctrl), flat = rolled

    def body(carry, _):
        sim = jax.vmap(lambda c, u: engine.step(Sim(c, {}), u))(carry, ctrl)
        return sim.carry, sim.derived["qpos"]

    run = jax.jit(lambda carry: jax.lax.scan(body, carry, None, ROLL), donate_argnums=0)
    carry = jax.jit(jax.vmap(engine.init))(qpos, qvel).carry
    donated = jax.tree.leaves(carry)
    _, path = run(carry)
    assert all(leaf.is_deleted() for leaf in donated)
    agree(engine, jnp.moveaxis(path, 0, 1), flat[1]["qpos"])


def test_displacements_add_up(engine, rolled):
    (qpos, _, _), (_, derived) = rolled
    travelled = np.asarray(derived["moved"]).sum(axis=1)
    body = np.asarray(derived["xpos"])[:, :, 3:6]
    first = np.stack([qpos[:, 1], np.zeros(12), 0.4 + qpos[:, 0]], axis=1)
    np.testing.assert_allclose(travelled, body[:, -1] - first, atol=2e-5)
    np.testing.assert_allclose(derived["time"][:, -1, 0], 0.01 * SKIP * ROLL, rtol=1e-5)


def test_engines_agree(model, engine, rolled):
    (qpos, qvel, ctrl), (_, derived) = rolled
    native = make_engine("native", model, SKIP, FIELDS, Track("xpos", 3, 6))
    theirs = jax.jit(jax.vmap(lambda *args: roll(native, *args)[1]))(qpos, qvel, ctrl)
    for name in (*FIELDS, "moved"):
        np.testing.assert_allclose(derived[name][:, 0], theirs[name][:, 0], atol=3e-4, err_msg=name)


def test_mocap_poses_are_followed(engine):
    (qpos, qvel, ctrl), path = starts(()), jnp.arange(7.0 * SKIP).reshape(SKIP, 1, 7)
    path = path.at[..., 3:].set(jnp.array([1.0, 0, 0, 0]))

    home = jax.jit(engine.init)(qpos, qvel)
    step = jax.jit(lambda sim, poses: engine.step(sim, ctrl, mocap=poses))
    there, along = step(home, jnp.broadcast_to(path[0], path.shape)), step(home, path)
    np.testing.assert_allclose(home.derived["xpos"][6:9], [1, 2, 3])
    np.testing.assert_allclose(there.derived["xpos"][6:9], path[0, 0, :3])
    np.testing.assert_allclose(along.derived["xpos"][6:9], path[-1, 0, :3])


def test_a_lost_world_is_nan_and_alone(run, rolled):
    args, flat = rolled
    poisoned = [x.at[5].set(jnp.nan) if i == 0 else x for i, x in enumerate(args)]
    _, derived = run(*poisoned)
    others = np.arange(12) != 5
    for name, value in derived.items():
        assert np.isnan(value[5]).all(), name
        np.testing.assert_array_equal(value[others], flat[1][name][others])


def test_settle_describes_the_new_state(model):
    for name in ("native", "mjx"):
        engine = make_engine(name, model, SKIP, ("qpos", "xpos"), settle=True)
        qpos, qvel, ctrl = starts(())
        derived = jax.jit(lambda q, v, u, e=engine: e.step(e.init(q, v), u).derived)(qpos, qvel, ctrl)
        assert float(derived["xpos"][5]) == pytest.approx(0.4 + float(derived["qpos"][0]), abs=1e-6)


TWO_DEVICES = """
    import jax, jax.numpy as jnp, numpy as np, sys
    sys.path.insert(0, {tests!r})
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from test_engines import make_engine, FIELDS, SKIP, Track, XML, mujoco, roll, starts
    assert jax.device_count() == 2
    model = mujoco.MjModel.from_xml_string(XML)
    native, engine = (make_engine(name, model, SKIP, FIELDS, Track("xpos", 3, 6)) for name in ("native", {name!r}))
    run = jax.vmap(lambda *a: roll(engine, *a)[1]["qpos"])
    args = starts((12,))
    alone = jax.jit(jax.vmap(lambda *a: roll(native, *a)[1]["qpos"]))(*args)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    spread = [jax.device_put(x, NamedSharding(mesh, P("d"))) for x in args]
    mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    for _ in range(3):
        each = mapped(*spread)
    assert len(each.sharding.device_set) == 2
    np.testing.assert_allclose(each[:, 0], alone[:, 0], atol={atol})
    if {name!r} == "native":
        np.testing.assert_array_equal(each, alone)
        np.testing.assert_array_equal(jax.jit(run)(*spread), alone)
    print("two devices agree")
"""


@pytest.mark.parametrize("name, atol", [("native", 0.0), ("mjx", 3e-4)])
def test_two_devices(name, atol):
    code = textwrap.dedent(TWO_DEVICES.format(tests=os.path.dirname(__file__), name=name, atol=atol))
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=400)
    assert "two devices agree" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["", "mjy", "cuda", None])
def test_unknown_engine(name):
    with pytest.raises(UserError, match=r"^engine=.*accepts auto, native, mjx, warp"):
        resolve(name)


def test_missing_engines_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(UserError, match=r"engine=warp is not available.*warp-lang.*accepts"):
        resolve("warp")
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)
    with pytest.raises(UserError, match=r"engine=native is not available.*mujoco >= 3.17"):
        resolve("native")
    assert resolve("auto") == "mjx"


def test_a_device_that_is_not_here(monkeypatch):
    def absent():
        raise RuntimeError("Unable to initialize backend 'cuda'\nmore")

    monkeypatch.setattr(jax, "default_backend", absent)
    with pytest.raises(UserError, match="engine: the device JAX was asked for is not here") as error:
        resolve("mjx")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "code"),
    [(["train", "total_steps=2048"], 2), (["truth", "tests/fixtures/tabular"], 2), (["doctor", "--no-rendering"], 1)],
)
def test_a_platform_that_is_not_here(words, code):
    """As a user meets it: JAX was told to use a GPU that this machine does not have."""
    if shutil.which("nvidia-smi"):
        pytest.skip("there may be a GPU here")
    root = Path(__file__).parent.parent
    found = subprocess.run(
        [sys.executable, "-m", "riskppo_jax", *words], env=os.environ | {"JAX_PLATFORMS": "cuda"}, cwd=root,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said = found.stdout + found.stderr
    assert found.returncode == code and "Traceback" not in said and "JAX_PLATFORMS" in said, said

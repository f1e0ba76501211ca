"""Recordings, frames and films; what draws is skipped where neither EGL nor OSMesa can."""

import functools
import importlib.util
import sys
from pathlib import Path

import jax
import mujoco
import numpy as np
import pytest
from fake_runs import fake_run, untrained_run
from PIL import Image

import riskppo_jax as rp
from riskppo_jax import render
from riskppo_jax.cli import main
from riskppo_jax.errors import UserError
from riskppo_jax.render import scene
from riskppo_jax.report import replay

HOPPER = "SafetyHopperVelocity-v1"
ROOT = Path(__file__).parent.parent


@functools.cache
def missing():
    try:
        render.find_backend()
    except UserError as error:
        return str(error)
    return None


@pytest.fixture
def drawing():
    if missing():
        pytest.skip(missing())


@pytest.fixture(scope="module")
def recording():
    env = rp.make_env(HOPPER)
    return render.record(env, render.random_policy(env), 60, jax.random.key(1))


def test_a_recording_is_what_the_task_did(recording):
    """The postures read from the engine's raw words are those the observations were made of."""
    env = rp.make_env(HOPPER)
    act = render.random_policy(env)

    def step(state, key):
        state = env.step(state, act(key, state.obs))
        return state, (state.obs, state.reward, state.terminated | state.truncated)

    key_reset, key_act = jax.random.split(jax.random.key(1))
    _, (obs, reward, done) = jax.lax.scan(step, env.reset(key_reset), jax.random.split(key_act, 60))
    shown = ~np.asarray(done)
    np.testing.assert_allclose(recording.qpos[:, 1:], np.asarray(obs)[shown, :5], atol=1e-6)
    np.testing.assert_array_equal(recording.reward, np.asarray(reward)[shown])
    assert recording.qpos.dtype == np.float64 and recording.episode.max() == done[:-1].sum()


def test_place_puts_the_bodies_there(recording):
    data = mujoco.MjData(recording.model)
    recording.place(data, 5)
    np.testing.assert_array_equal(data.qpos, recording.qpos[5])
    assert np.abs(data.geom_xpos).sum() > 0


def test_a_task_may_show_more_than_its_physics_knows():
    """Navigation has a scene of its own, with hazards and the goal as mocap bodies."""
    env = rp.make_env("SafetyPointGoal1-v0", reset="fixed")
    found = render.record(env, render.random_policy(env), 3)
    assert found.model.nmocap > env.engine.model.nmocap and found.mocap.shape == (3, found.model.nmocap, 7)
    layout = np.asarray(env.reset(jax.random.key(0)).sim.layout)
    away = np.abs(found.mocap[0, :, None, :2] - layout[None]).max(-1).min(1)
    np.testing.assert_allclose(away, 0.0, atol=1e-6)  # every drawn object is where the layout has one


def test_replay_needs_no_renderer(recording):
    found = replay.replay_data(recording)
    words = np.frombuffer(replay.base64.b64decode(found["poses"]), "<i2").reshape(found["frames"], -1, 7)
    assert words.shape[1] == len(found["shapes"]) and {s["kind"] for s in found["shapes"]} == {"capsule"}
    data = mujoco.MjData(recording.model)
    recording.place(data, 0)
    torso = recording.model.geom("torso_geom").id - 1  # the floor comes first and is not drawn
    where = words[0, torso, :3] / 32767 * found["reach"]
    np.testing.assert_allclose(where, data.geom_xpos[torso + 1], atol=1e-3)


def test_a_task_without_physics_is_named():
    class Bare:
        engine = None

    with pytest.raises(UserError, match="no physics"):
        render.record(Bare(), lambda key, obs: obs, 3)


def test_frames_show_the_robot_and_the_overlay(drawing, recording):
    with_text, without = (next(iter(render.film(recording, 320, 240, overlay=overlay))) for overlay in (True, False))
    assert with_text.shape == (240, 320, 3) and with_text.dtype == np.uint8
    assert without.std() > 10 and (with_text[-20:] != without[-20:]).mean() > 0.3


def test_films(drawing, recording, tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="the render extra is not installed")
    frames = list(render.film(recording, 160, 120))
    mp4 = render.write_mp4(tmp_path / "a.mp4", frames, 30)
    gif = render.write_gif(tmp_path / "a.gif", frames, 30, width=80)
    assert mp4.read_bytes()[4:8] == b"ftyp" and mp4.stat().st_size > 1000
    with Image.open(gif) as image:
        assert image.n_frames == (len(frames) + 1) // 2 and image.size == (80, 60)


def test_a_task_can_be_looked_at(drawing, tmp_path, capsys):
    pytest.importorskip("imageio_ffmpeg", reason="the render extra is not installed")
    assert main(["render", "--random", HOPPER, "--out", str(tmp_path), "--seconds", "0.2", "--size", "160x120"]) == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".mp4", ".gif"}
    assert len(list(tmp_path.glob("*_top.png"))) == len(list(tmp_path.glob("*_track.png"))) == 1


def test_a_run_can_be_filmed(drawing, tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg", reason="the render extra is not installed")
    run = untrained_run(tmp_path / "run", f"env={HOPPER}")
    assert main(["render", str(run), "--seconds", "0.2", "--size", "160x120", "--sampled"]) == 0
    assert {path.name for path in (run / "video").iterdir()} == {"policy.mp4", "policy.gif"}
    assert main(["render", str(run), "--lane", "3"]) == 2
    fake = fake_run(tmp_path / "fake", betas=(0.3,), seeds=1)
    for name in ("summary.json", "metrics.jsonl", "samples.npz"):
        (run / name).write_bytes((fake / name).read_bytes())
    monkeypatch.setattr(replay, "SECONDS", 0.4)
    assert main(["report", str(run)]) == 0  # records the policy where that was not done before
    (recorded,) = replay.read_replays(run).values()
    assert recorded["frames"] == 10 and recorded["thresholds"] == {"velocity": pytest.approx(0.7402)}


def test_things_keep_their_colours_and_are_all_in_the_picture(drawing):
    """From above lamps do not bleach them, and the camera rises until the tall pillars fit."""
    env = rp.make_env("SafetyPointPush2-v0")
    found = render.record(env, render.random_policy(env), 1)
    frames = render.views(found, 320, 240)
    for name in ("push_box", "pillar0"):
        near = np.abs(frames["top"] / 255 - found.model.geom(name).rgba[:3]).max(-1) < 0.1
        assert near.sum() > 100 and not near[[0, -1]].any() and not near[:, [0, -1]].any()
    data = mujoco.MjData(found.model)
    found.place(data, 0)
    own = found.model.camera("top").pos[2]
    assert scene.top_camera(found.model, data).distance > own
    data.mocap_pos[:, :2] = 0.0
    mujoco.mj_forward(found.model, data)
    assert scene.top_camera(found.model, data).type == mujoco.mjtCamera.mjCAMERA_FIXED


def test_sky_where_nothing_is_drawn(drawing):
    model = mujoco.MjModel.from_xml_string(scene._TINY)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with render.Scene(model, 64, 48) as surface:
        frame = surface.draw(data, scene.tracking_camera(model))
    np.testing.assert_array_equal(frame[[0, -1], 0], scene._SKY[::-1])


def docs_make():
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sheets_of_tasks(drawing, tmp_path):
    make = docs_make()
    assert all((ROOT / "docs" / "img" / f"{name}.png").stat().st_size < 250_000 for name in make.SHEETS)
    (path,) = make.sheets(tmp_path, {"tasks_circle": ["SafetyPointCircle1-v0"]})
    with Image.open(path) as image:
        assert image.width == 480 and len(image.convert("RGB").getcolors(1 << 16)) > 50


def test_where_nothing_can_draw_the_sheets_stay(monkeypatch, tmp_path, capsys):
    def fail():
        raise UserError("rendering: no renderer")

    monkeypatch.setattr(render, "find_backend", fail)
    assert docs_make().sheets(tmp_path) == [] and not list(tmp_path.iterdir())
    assert capsys.readouterr().out == "the pictures of tasks stay as they are: rendering: no renderer\n"


@pytest.mark.parametrize("words", [[], ["run", "--random", HOPPER], ["--random", HOPPER, "--size", "7x9"],
                                   ["--random", HOPPER, "--seconds", "0"], ["--random", "Hoper"]])  # fmt: skip
def test_mistakes_are_one_line(words, capsys):
    assert main(["render", *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_where_nothing_can_draw_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(scene, "backend_problem", lambda name: "no library")
    monkeypatch.setattr(scene, "find_backend", scene.find_backend.__wrapped__)
    with pytest.raises(UserError, match="neither EGL nor OSMesa can draw here"):
        scene.find_backend()


def test_a_broken_backend_is_found_out(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert scene.backend_problem.__wrapped__("egl")


def test_the_replay_counts_each_episode_by_itself(recording):
    count = len(recording.reward)
    two = recording._replace(reward=np.ones(count), episode=(np.arange(count) >= count // 2).astype(int))
    expected = [*range(1, count // 2 + 1), *range(1, count - count // 2 + 1)]
    np.testing.assert_array_equal(replay._returns(two), expected)

"""Off-screen frames of a MuJoCo model, by EGL or OSMesa, whichever this machine can do.

MuJoCo decides on one of them when it is imported. Here the choice is made later: a child process tries each in turn,
because a driver that is missing or broken may take its process along.
"""

import functools
import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import mujoco
import numpy as np

from riskppo_jax.errors import UserError

BACKENDS = ("egl", "osmesa")
_TINY = "<mujoco><worldbody><light pos='0 0 3'/><geom size='.3'/></worldbody></mujoco>"
_SECONDS = 60  # for a child to draw one frame
_EVERYWHERE = 0.4  # of the light comes from everywhere, the rest from the lamps
_SKY = ((220, 228, 240), (134, 160, 205))  # at the bottom and at the top of a frame


@functools.cache
def find_backend() -> str:
    """`egl` or `osmesa`, the first that draws a frame; only the one in `MUJOCO_GL` where that is set.

    Raises:
      UserError: neither does, in one line that says what to install.
    """
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    tried = (asked,) if asked in BACKENDS else BACKENDS
    for name in tried:
        if backend_problem(name) is None:
            return name
    raise UserError(
        f"rendering: neither EGL nor OSMesa can draw here (tried {', '.join(tried)}); accepts a machine with a GPU "
        "driver that has EGL, or with Debian's libosmesa6 or libegl1 and the `render` extra"
    )


@functools.cache
def backend_problem(name: str) -> str | None:
    """Why this backend cannot draw here; None where it can."""
    environment = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
    command = [sys.executable, "-m", "riskppo_jax.render.scene", name]
    try:
        with calm_forks():
            child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if child.returncode == 0:
        return None
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"ended with code {child.returncode}"


@contextmanager
def calm_forks() -> Iterator[None]:
    """Leaves out JAX's warning about forks: the child becomes another program at once, and holds no lock."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        yield


class Scene:
    """Draws states of one model; a context manager that gives the drawing surface back.

    Args:
      model: what to draw.
      width, height: of a frame, in pixels.
      backend: by default `find_backend()`.
    """

    def __init__(self, model: mujoco.MjModel, width: int = 640, height: int = 480, backend: str | None = None):
        backend = backend or find_backend()
        os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = backend  # MuJoCo's C side reads it, too
        context = importlib.import_module(f"mujoco.{backend}").GLContext
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        self.model = model
        self._surface = context(width, height)
        self._surface.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=4096)
        for flag in (mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_SHADOW):
            self._scene.flags[flag] = False  # a third of the time to draw where there is no GPU
        self._open = mujoco.mjtTexture.mjTEXTURE_SKYBOX.value not in model.tex_type
        self._option = mujoco.MjvOption()
        self._rect = mujoco.MjrRect(0, 0, width, height)

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *error) -> None:
        self._context.free()
        self._surface.free()

    def draw(self, data: mujoco.MjData, camera: mujoco.MjvCamera) -> np.ndarray:
        """One frame, `uint8[height, width, 3]`."""
        mujoco.mjv_updateScene(
            self.model, data, self._option, None, camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        _even_light(self._scene)
        mujoco.mjr_render(self._rect, self._scene, self._context)
        pixels = np.empty((self._rect.height, self._rect.width, 3), np.uint8)
        depth = np.empty(pixels.shape[:2], np.float32) if self._open else None
        mujoco.mjr_readPixels(pixels, depth, self._rect, self._context)
        return (pixels if depth is None else _with_sky(pixels, depth))[::-1]


def _with_sky(pixels: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Sky where nothing was drawn, and over the pixel beside it, which is half black; the first row is the lowest."""
    bare = np.pad(depth == 1.0, 1)
    bare = bare[1:-1, 1:-1] | bare[2:, 1:-1] | bare[1:-1, 2:] | bare[1:-1, :-2]
    sky = np.linspace(*_SKY, len(pixels)).astype(np.uint8)
    return np.where(bare[..., None], sky[:, None], pixels)


def _even_light(scene: mujoco.MjvScene) -> None:
    """Lamps that add up to one: things have the colours they are given, and sides in the shade are not black."""
    lamps = scene.lights[: scene.nlight]
    whole = max(float(sum(lamp.diffuse for lamp in lamps).max()), 1e-6) if lamps else 1.0
    for i, lamp in enumerate(lamps):
        lamp.ambient[:] = _EVERYWHERE if i == 0 else 0.0
        lamp.diffuse[:] *= (1.0 - _EVERYWHERE) / whole
        lamp.specular[:] *= 0.2


def tracking_camera(model: mujoco.MjModel) -> mujoco.MjvCamera:
    """The model's own `track` camera; where it has none, a view from above and behind that follows the robot."""
    camera = mujoco.MjvCamera()
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if found >= 0:
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, found
        return camera
    mujoco.mjv_defaultFreeCamera(model, camera)
    moving = [i for i in range(1, model.nbody) if model.body_dofnum[i] > 0]
    if moving:
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, moving[0]
    camera.azimuth, camera.elevation, camera.distance = 90.0, -35.0, min(2.5 * model.stat.extent, 8.0)
    return camera


def top_camera(model: mujoco.MjModel, data: mujoco.MjData) -> mujoco.MjvCamera:
    """The model's own `top` camera, raised where it would cut something off; else straight down on all there is."""
    camera = mujoco.MjvCamera()
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "top")
    if found >= 0:
        x, y, height = data.cam_xpos[found]
        needed = _height_to_see_all(model, data, (x, y))
        if needed <= height or data.cam_xmat[found, 8] < 0.999:  # it sees all, or does not look down
            camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, found
            return camera
        mujoco.mjv_defaultFreeCamera(model, camera)
        camera.lookat[:] = x, y, 0.0
        camera.azimuth, camera.elevation, camera.distance = 90.0, -90.0, needed
        return camera
    mujoco.mjv_defaultFreeCamera(model, camera)
    solid = [i for i in range(model.ngeom) if model.geom_type[i] != mujoco.mjtGeom.mjGEOM_PLANE]
    where = data.geom_xpos[solid] if solid else np.zeros((1, 3))
    reach = model.geom_rbound[solid] if solid else np.ones(1)
    low, high = (where - reach[:, None]).min(0), (where + reach[:, None]).max(0)
    camera.lookat[:] = (low + high) / 2
    camera.azimuth, camera.elevation = 90.0, -90.0
    camera.distance = 1.4 * max(float((high - low)[:2].max()), 1.0)
    return camera


def _height_to_see_all(model: mujoco.MjModel, data: mujoco.MjData, centre: tuple[float, float]) -> float:
    """How high above `centre` a camera sees all but the world's own geoms, in a picture at least as wide as high."""
    things = np.flatnonzero(model.geom_bodyid > 0)
    if not len(things):
        return 0.0
    turns = data.geom_xmat[things].reshape(-1, 3, 3)
    half = np.einsum("nij,nj->ni", np.abs(turns), model.geom_aabb[things, 3:])
    where = data.geom_xpos[things] + np.einsum("nij,nj->ni", turns, model.geom_aabb[things, :3])
    reach = (np.abs(where[:, :2] - centre) + half[:, :2]).max(1)
    return float((where[:, 2] + half[:, 2] + 1.03 * reach / np.tan(np.radians(model.vis.global_.fovy) / 2)).max())


if __name__ == "__main__":  # the child of `backend_problem`
    tiny = mujoco.MjModel.from_xml_string(_TINY)
    state = mujoco.MjData(tiny)
    mujoco.mj_forward(tiny, state)
    free = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(tiny, free)
    with Scene(tiny, 64, 48, sys.argv[1]) as scene:
        sys.exit(0 if scene.draw(state, free).std() > 0 else "the frame is empty")

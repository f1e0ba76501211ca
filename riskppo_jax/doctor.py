"""What this machine offers, what is known to be bad, and what to do about it."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from riskppo_jax.cores import cores
from riskppo_jax.errors import UserError

_PAIR = "pip install 'mujoco==3.17.*' 'mujoco-mjx==3.17.*'"
BAD_JAX = {"0.10.2": "computes wrong numbers on a CPU"}
_EXTRAS = {
    "imageio_ffmpeg": ("render", "MP4 files"),
    "onnx": ("onnx", "export to .onnx"),
    "tensorboardX": ("tensorboard", "log.tensorboard=true"),
    "wandb": ("wandb", "log.wandb=true"),
    "brax": ("brax", "Brax's environments"),
}


class Finding(NamedTuple):
    """One line: `ok`, `note` (something optional is missing) or `bad` (numbers or programs will be wrong)."""

    subject: str
    status: str
    found: str
    advice: str = ""


def examine(rendering: bool = True) -> Iterator[Finding]:
    """Findings, as they are made; drawing is tried in child processes, which takes seconds."""
    yield _python()
    yield from jax_versions(_version("jax"), _version("jaxlib"))
    yield mujoco_versions(_version("mujoco"), _version("mujoco-mjx"))
    found = list(_devices())
    yield from found
    if found[0].status != "bad":
        yield _arithmetic()
        yield from _engines()
    if rendering and importlib.util.find_spec("mujoco"):
        yield from _rendering()
    yield from _extras()
    yield _cache()


def jax_versions(jax: str | None, jaxlib: str | None) -> Iterator[Finding]:
    """Whether this jax is one that computes right."""
    found = f"jax {jax}, jaxlib {jaxlib}"
    if jax is None:
        yield Finding("jax", "bad", "not installed", "pip install riskppo-jax")
    elif jax in BAD_JAX or jaxlib in BAD_JAX:
        reason = BAD_JAX.get(jax) or BAD_JAX.get(jaxlib or "")
        yield Finding("jax", "bad", f"{found}: {reason}", "pip install 'jax>=0.10.0,!=0.10.2'")
    elif jax.split(".")[:2] != (jaxlib or "").split(".")[:2]:
        yield Finding("jax", "bad", f"{found}: they do not belong together", f"pip install jaxlib=={jax}")
    else:
        yield Finding("jax", "ok", found)


def mujoco_versions(mujoco: str | None, mjx: str | None) -> Finding:
    """Whether MuJoCo and MJX are a pair."""
    found = f"mujoco {mujoco}, mujoco-mjx {mjx}"
    if mujoco is None or mjx is None:
        return Finding("mujoco", "bad", found, _PAIR)
    if mujoco.split(".")[:2] != mjx.split(".")[:2]:
        return Finding("mujoco", "bad", f"{found}: not a pair", f"pip install mujoco=={mjx} mujoco-mjx=={mjx}")
    if mujoco.split(".")[:2] != ["3", "17"]:
        return Finding("mujoco", "note", f"{found}: tested with 3.17", _PAIR)
    return Finding("mujoco", "ok", found)


def _python() -> Finding:
    number = platform.python_version()
    enough = tuple(map(int, number.split(".")[:2])) >= (3, 11)
    return Finding("python", "ok" if enough else "bad", number, "" if enough else "use Python 3.11 or newer")


def _devices() -> Iterator[Finding]:
    import jax

    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:
        reason = (str(error) or f"none of JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}").splitlines()[0]
        yield Finding("devices", "bad", reason, "unset JAX_PLATFORMS, or set it to cpu")
        return
    kinds = ", ".join(dict.fromkeys(f"{d.platform} ({d.device_kind})" for d in devices))
    idle = shutil.which("nvidia-smi") is not None and jax.default_backend() == "cpu"
    advice = "an NVIDIA driver is here but JAX does not use it: pip install 'riskppo-jax[cuda]'" if idle else ""
    yield Finding("devices", "note" if idle else "ok", f"{len(devices)} x {kinds}", advice)
    threads = os.environ.get("RISKPPO_THREADS")
    yield Finding("cores", "ok", f"{cores()}" + (f", physics uses {threads} (RISKPPO_THREADS)" if threads else ""))


def _arithmetic() -> Finding:
    """The sum that jax 0.10.2 gets wrong, tried out: a version number may lie, numbers do not."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    matrix, vectors = (rng.normal(size=size).astype(np.float32) for size in ((3, 3), (32769, 3)))
    found = np.asarray(jax.jit(jax.vmap(lambda v: jnp.sum((matrix @ v) ** 2)))(vectors))
    right = np.allclose(found, np.sum((vectors @ matrix.T) ** 2, axis=1), rtol=1e-3, atol=1e-4)
    return Finding(
        "arithmetic", "ok" if right else "bad", "a compiled sum agrees with NumPy" if right else "WRONG numbers",
        "" if right else "pip install 'jax!=0.10.2'",
    )  # fmt: skip


def _engines() -> Iterator[Finding]:
    from riskppo_jax.engines.base import ENGINES, resolve

    for name in ENGINES:
        try:
            chosen = resolve(name) == resolve("auto")
            yield Finding(f"engine {name}", "ok", "available" + (", chosen by engine=auto" if chosen else ""))
        except UserError as error:
            reason = str(error).split(": ", 1)[-1].split(";")[0]
            advice = (
                "pip install 'mujoco==3.17.*'"
                if name == "native"
                else "only on NVIDIA GPUs; native and mjx do the same"
            )
            yield Finding(f"engine {name}", "note", f"not available: {reason}", advice)


def _rendering() -> Iterator[Finding]:
    from riskppo_jax.render.scene import BACKENDS, backend_problem

    problems = {name: backend_problem(name) for name in BACKENDS}
    works = [name for name, problem in problems.items() if problem is None]
    for name, problem in problems.items():
        advice = "" if works else {"egl": "apt-get install libegl1", "osmesa": "apt-get install libosmesa6"}[name]
        text = "draws" if problem is None else f"does not draw ({problem[:80]})"
        yield Finding(f"rendering {name}", "ok" if problem is None or works else "note", text, advice)


def _extras() -> Iterator[Finding]:
    for module, (extra, use) in _EXTRAS.items():
        here = importlib.util.find_spec(module) is not None
        advice = "" if here else f"for {use}: pip install 'riskppo-jax[{extra}]'"
        yield Finding(f"extra {extra}", "ok" if here else "note", "installed" if here else "not installed", advice)


def _cache() -> Finding:
    from riskppo_jax.engines.cache import cache_folder

    folder = cache_folder()
    writable = folder is not None and os.access(folder, os.W_OK)
    advice = "" if writable else "programs are compiled anew in each process; set RISKPPO_CACHE to a writable folder"
    return Finding("compilation cache", "ok" if writable else "note", str(folder or "none"), advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

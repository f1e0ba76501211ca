"""Loading MuJoCo models, and running MuJoCo without its log file and its stopwatch."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import mujoco

_hush = threading.Lock()
_hushed: list[tuple[Callable | None, int | None]] = []  # what was in force before, for everyone inside `quiet`


def load_packaged(xml: str) -> mujoco.MjModel:
    """The model `xml` of the `gymnasium` package, with contact margins as MuJoCo 2.3.3 understood them.

    MuJoCo now adds the margins of the two geoms in contact, where the release the tasks were made for took
    the larger. All geoms of these models share one margin, so half of it restores the old distance exactly.
    """
    import gymnasium

    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / xml
    with quiet():
        model = mujoco.MjModel.from_xml_path(str(path))
    model.geom_margin[:] *= 0.5
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Drops MuJoCo's warnings, which otherwise go to stderr and `MUJOCO_LOG.TXT`, and stops its stopwatch.

    MuJoCo's Python package times some twenty stages of every physics step; reading the clock takes 8 to 25% of a
    small robot's step. Threads may overlap in here; the last one out puts everything back.
    """
    clock = _clock()
    with _hush:
        _hushed.append((mujoco.get_mju_user_warning(), clock.value))
        mujoco.set_mju_user_warning(_ignore)
        clock.value = None
    try:
        yield
    finally:
        with _hush:
            warning, before = _hushed.pop()
            mujoco.set_mju_user_warning(_ignore if _hushed else warning)
            clock.value = None if _hushed else before


@cache
def _clock() -> ctypes.c_void_p:
    """MuJoCo's global `mjcb_time`, a pointer to the function that tells the time; a dummy where it is not to be had."""
    for library in Path(mujoco.__file__).parent.glob("*mujoco.*"):
        try:
            return ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), "mjcb_time")
        except (OSError, ValueError):
            continue
    return ctypes.c_void_p()


def _ignore(message: str) -> None:
    del message

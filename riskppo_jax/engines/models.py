"""Loading MuJoCo models, and running MuJoCo without its log file and its stopwatch."""

import ctypes
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path

import mujoco
import numpy as np

_FEW_PAIRS = 16  # with Humanoid's 126 a list is no faster than the search
_hush = threading.Lock()
_hushed: list[tuple[Callable | None, int | None]] = []  # what was in force before, for everyone inside `quiet`


def load_packaged(xml: str, pairs: bool = False) -> mujoco.MjModel:
    """The model `xml` of the `gymnasium` package, with contact margins as MuJoCo 2.3.3 understood them.

    MuJoCo now adds the margins of the two geoms in contact, where the release the tasks were made for took
    the larger. All geoms of these models share one margin, so half of it restores the old distance exactly.

    Args:
      xml: file name.
      pairs: list the geoms that can touch in the model, where they are few. MuJoCo then looks at these alone instead of
        searching for candidates in every step; the numbers are the same, a step is some 12% faster.
    """
    import gymnasium

    path = str(Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / xml)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the files use options that MuJoCo wants to do without one day
        model = mujoco.MjModel.from_xml_path(path)
        model.geom_margin[:] *= 0.5
        few = 0 < len(touching(model)) <= _FEW_PAIRS
        return _with_pairs(model, mujoco.MjSpec.from_file(path)) if pairs and few else model


def _with_pairs(model: mujoco.MjModel, spec: mujoco.MjSpec) -> mujoco.MjModel:
    """The model with every pair of geoms that may collide written down, in the order MuJoCo would find them."""
    for i, geom in enumerate(spec.geoms):
        geom.name = geom.name or f"geom{i}"
    names = [geom.name for geom in map(spec.compile().geom, range(model.ngeom))]
    for one, other in touching(model):
        friction = np.maximum(model.geom_friction[one], model.geom_friction[other])
        share = model.geom_solmix[one] / (model.geom_solmix[one] + model.geom_solmix[other])
        spec.add_pair(
            geomname1=names[one],
            geomname2=names[other],
            condim=int(max(model.geom_condim[one], model.geom_condim[other])),
            friction=friction[[0, 0, 1, 2, 2]],
            solref=share * model.geom_solref[one] + (1.0 - share) * model.geom_solref[other],
            solimp=share * model.geom_solimp[one] + (1.0 - share) * model.geom_solimp[other],
            margin=float(model.geom_margin[one] + model.geom_margin[other]),
            gap=float(model.geom_gap[one] + model.geom_gap[other]),
        )
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0
    return spec.compile()


def touching(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Pairs of geoms that MuJoCo's masks let collide: not of one body, nor of a body and its parent."""
    bodies = model.body_weldid[model.geom_bodyid]
    parents = model.body_weldid[model.body_parentid[bodies]]
    found = []
    for one, other in combinations(range(model.ngeom), 2):
        a, b = bodies[one], bodies[other]
        related = a == b or (a and b and (a == parents[other] or b == parents[one]))
        meet = (model.geom_contype[one] & model.geom_conaffinity[other]) or (
            model.geom_contype[other] & model.geom_conaffinity[one]
        )
        if meet and not related:
            found.append((one, other))
    return found


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

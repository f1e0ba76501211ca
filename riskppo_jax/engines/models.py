"""Loading MuJoCo models, and keeping MuJoCo from writing a log file into the working directory."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mujoco

_hush = threading.Lock()
_hushed: list[Callable | None] = []  # what was in force before, for everyone inside `quiet`


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
    """Drops MuJoCo's warnings, which otherwise go to stderr and `MUJOCO_LOG.TXT`; threads may overlap in here."""
    with _hush:
        _hushed.append(mujoco.get_mju_user_warning())
        mujoco.set_mju_user_warning(_ignore)
    try:
        yield
    finally:
        with _hush:
            last = _hushed.pop()
            mujoco.set_mju_user_warning(_ignore if _hushed else last)


def _ignore(message: str) -> None:
    del message

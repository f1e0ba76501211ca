"""Risk-averse constrained reinforcement learning in one compiled JAX program."""

import importlib
import os
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what the table below says, for tools that do not run it
    from riskppo_jax import gym, interop, stats
    from riskppo_jax.checkpoint import restore, save
    from riskppo_jax.envs.registry import list_envs, make_env
    from riskppo_jax.evaluation import evaluate
    from riskppo_jax.lanes import sweep
    from riskppo_jax.risk import oce
    from riskppo_jax.risk.lagrangian import Constraint, Problem, priced_reward
    from riskppo_jax.train import make_train

# XLA warns at length about every program it finds in its compilation cache on a CPU; no harm is meant
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# public name -> module it lives in; imported on first use, so that `import riskppo_jax` stays light
_LAZY = {
    "evaluate": "riskppo_jax.evaluation",
    "list_envs": "riskppo_jax.envs.registry",
    "make_env": "riskppo_jax.envs.registry",
    "make_train": "riskppo_jax.train",
    "restore": "riskppo_jax.checkpoint",
    "save": "riskppo_jax.checkpoint",
    "Constraint": "riskppo_jax.risk.lagrangian",
    "Problem": "riskppo_jax.risk.lagrangian",
    "oce": "riskppo_jax.risk",
    "priced_reward": "riskppo_jax.risk.lagrangian",
    "sweep": "riskppo_jax.lanes",
}

# modules that are public as a whole
_MODULES = {"gym", "interop", "stats"}

__all__ = [
    "Constraint", "Problem", "evaluate", "gym", "interop", "list_envs", "make_env", "make_train", "oce",
    "priced_reward", "restore", "save", "stats", "sweep",
]  # fmt: skip


def __getattr__(name: str):
    if name in _LAZY:
        module = importlib.import_module(_LAZY[name])
        return getattr(module, name, None) or importlib.import_module(f"{_LAZY[name]}.{name}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        return version("riskppo-jax")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})

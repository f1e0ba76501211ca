"""Physics behind a narrow door: engines know models and numbers, never a task."""

from riskppo_jax.engines.base import ENGINES, Engine, Sim, make_engine, resolve

__all__ = ["ENGINES", "Engine", "Sim", "make_engine", "resolve"]

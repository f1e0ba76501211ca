"""Finite problems whose optimum is known: the algorithm with exact expectations, and the trainer with samples."""

from riskppo_jax.truth.exact import TOLERANCE, VARIANTS, Trace, Variant, settled, solve
from riskppo_jax.truth.setup import Outcome, Score, Setup, score

__all__ = ["TOLERANCE", "VARIANTS", "Outcome", "Score", "Setup", "Trace", "Variant", "score", "settled", "solve"]

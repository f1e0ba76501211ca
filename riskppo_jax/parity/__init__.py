"""Replays recorded steps of the original Safety-Gymnasium and measures how far ours lie from them.

A record holds independent samples: a state, an action, and what the original made of them in one step. The native
engine is replayed in float64, as MuJoCo itself computes; the others in float32, as they are used.
"""

from pathlib import Path

from riskppo_jax.parity.record import VELOCITY, Result, find_records

__all__ = ["Result", "find_records", "replay"]


def replay(path: Path, engine: str) -> Result:
    """Steps every sample of a record once on `engine` and compares."""
    if path.match(f"{VELOCITY}.npz"):
        from riskppo_jax.parity.velocity import replay as run
    else:
        from riskppo_jax.parity.navigation import replay as run
    return run(path, engine)

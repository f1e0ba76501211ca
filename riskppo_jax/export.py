"""A trained policy as plain arrays, to be run without this package or JAX.

    x = clip((obs - obs_mean) / sqrt(obs_var), -obs_clip, obs_clip)
    x = activation(x @ w0 + b0) ...,   last layer without activation: the mean action, or logits
"""

from pathlib import Path

import jax
import numpy as np

from riskppo_jax.config import Layout
from riskppo_jax.errors import UserError
from riskppo_jax.nets import Params
from riskppo_jax.normalize import Moments, deviation
from riskppo_jax.types import ArrayLike


def policy_arrays(params: Params, moments: Moments, layout: Layout, obs_clip: ArrayLike) -> dict[str, np.ndarray]:
    """`obs_mean, obs_var, obs_clip, w0, b0, ..., activation`, and `log_std` where actions are continuous.

    `obs_var` is the square of what observations are divided by, its floor included.
    """
    weights = params.actor["params"]
    layers = _layers(weights["torso"])
    arrays = {
        "obs_mean": np.asarray(moments.mean),
        "obs_var": np.square(np.asarray(deviation(moments), np.float64)),
        "obs_clip": np.asarray(obs_clip, np.float32),
        "activation": np.asarray(layout.activation),
    }
    for i, layer in enumerate(layers):
        arrays |= {f"w{i}": np.asarray(layer["kernel"]), f"b{i}": np.asarray(layer["bias"])}
    if "log_std" in weights:
        arrays["log_std"] = np.asarray(weights["log_std"])
    return arrays


def export(run: str | Path, out: str | Path) -> Path:
    """Writes the policy of a run's newest checkpoint to `out`, an `.npz` file."""
    from riskppo_jax.run import restore_run

    out = Path(out)
    if out.suffix != ".npz":
        raise UserError(f"OUT={out}: accepts a file name that ends in .npz")
    if not out.absolute().parent.is_dir():
        raise UserError(f"OUT={out}: accepts a file in a folder that exists")
    job, state, _ = restore_run(Path(run))
    arrays = policy_arrays(state.learner.params, state.moments, job.layout, job.hypers.ppo.obs_clip)
    draft = out.with_name(f".{out.name}")
    np.savez(draft, **arrays)
    draft.replace(out)
    return out


def _layers(torso: dict) -> list[dict[str, jax.Array]]:
    """Hidden layers in their order, then the head."""
    hidden = sorted((name for name in torso if name.startswith("Dense_")), key=lambda name: int(name[6:]))
    return [torso[name] for name in (*hidden, "Head_0")]

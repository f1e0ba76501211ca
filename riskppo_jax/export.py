"""A trained policy for use elsewhere: plain arrays, an ONNX graph, or a StableHLO program.

    x = [obs, obs[lidar_columns]^p for p in lidar_powers],   where there are such: see `layout.lidar_powers`
    x = clip((x - obs_mean) / sqrt(obs_var), -obs_clip, obs_clip)
    x = activation(x @ w0 + b0) ...,   last layer without activation: the mean action, or logits

All three hold the normalisation of observations; none needs this package to run.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from riskppo_jax.config import Layout
from riskppo_jax.envs.wrappers import with_powers
from riskppo_jax.errors import UserError
from riskppo_jax.nets import Params
from riskppo_jax.normalize import Moments, deviation
from riskppo_jax.types import ArrayLike

Arrays = dict[str, np.ndarray]


def policy_arrays(
    params: Params, moments: Moments, layout: Layout, obs_clip: ArrayLike, lidar_columns: tuple[int, ...] = ()
) -> Arrays:
    """`obs_mean, obs_var, obs_clip, w0, b0, ..., activation`, and `log_std` where actions are continuous.

    `obs_var` is the square of what observations are divided by, its floor included. Where the networks see powers of
    lidars, `lidar_columns` and `lidar_powers` say of which entries, and which; mean and variance are theirs, too.
    """
    weights = params.actor["params"]
    layers = _layers(weights["torso"])
    arrays = {
        "obs_mean": np.asarray(moments.mean),
        "obs_var": np.square(np.asarray(deviation(moments), np.float64)),
        "obs_clip": np.asarray(obs_clip, np.float32),
        "activation": np.asarray(layout.activation),
    }
    if layout.lidar_powers:
        arrays |= {"lidar_columns": np.asarray(lidar_columns), "lidar_powers": np.asarray(layout.lidar_powers)}
    for i, layer in enumerate(layers):
        arrays |= {f"w{i}": np.asarray(layer["kernel"]), f"b{i}": np.asarray(layer["bias"])}
    if "log_std" in weights:
        arrays["log_std"] = np.asarray(weights["log_std"])
    return arrays


def export(run: str | Path, out: str | Path, lane: int = 0) -> Path:
    """Writes the policy of a run's newest checkpoint to `out`, in the form its suffix names.

    Args:
      run: a run directory.
      out: a file name that ends in `.npz`, `.onnx` or `.stablehlo`.
      lane: which of a sweep's runs.
    """
    from riskppo_jax.runs import restore_lane

    out = Path(out)
    if out.suffix not in FORMATS:
        raise UserError(f"OUT={out}: accepts a file name that ends in {', '.join(FORMATS)}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UserError(f"OUT={out}: accepts a file in a folder that exists")
    job, state = restore_lane(Path(run), lane)
    params, moments = state.deployed
    columns = getattr(job.env, "lidar_columns", ())
    arrays = policy_arrays(params, moments, job.layout, job.hypers.ppo.obs_clip, columns)
    draft = out.with_name(f".{out.name}")
    try:
        FORMATS[out.suffix](draft, arrays)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return out


def write_npz(path: Path, arrays: Arrays) -> None:
    """Plain arrays, for NumPy."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stub takes any name for its own option


def write_onnx(path: Path, arrays: Arrays) -> None:
    """A graph from `obs [batch, n]` to `action [batch, k]`, or to `logits` and the likeliest `action`."""
    try:
        import onnx
    except ImportError:
        raise UserError(f"OUT={path.name[1:]}: .onnx accepts an installed riskppo-jax[onnx]") from None
    from onnx import TensorProto, helper, numpy_helper

    continuous = "log_std" in arrays
    depth = _depth(arrays)
    tensors = {"mean": arrays["obs_mean"], "sd": np.sqrt(arrays["obs_var"]), "high": arrays["obs_clip"]}
    tensors |= {"low": -arrays["obs_clip"]}
    tensors |= {name: arrays[name] for i in range(depth) for name in (f"w{i}", f"b{i}")}
    nodes = []
    if "lidar_powers" in arrays:
        columns = numpy_helper.from_array(arrays["lidar_columns"].astype(np.int64))
        nodes = [
            helper.make_node("Constant", [], ["columns"], value=columns),
            helper.make_node("Gather", ["obs", "columns"], ["lidar"], axis=1),
        ]
        made = [f"lidar{power}" for power in arrays["lidar_powers"]]
        tensors |= {f"power{power}": np.asarray(power) for power in arrays["lidar_powers"]}
        nodes += [helper.make_node("Pow", ["lidar", name.replace("lidar", "power")], [name]) for name in made]
        nodes.append(helper.make_node("Concat", ["obs", *made], ["seen"], axis=1))
    nodes += [
        helper.make_node("Sub", ["seen" if nodes else "obs", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "sd"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "low", "high"], ["x0"]),
    ]
    last = "action" if continuous else "logits"
    for i in range(depth):
        linear = last if i == depth - 1 else f"y{i}"
        nodes.append(helper.make_node("Gemm", [f"x{i}", f"w{i}", f"b{i}"], [linear]))
        if i < depth - 1:
            nodes += _activation(helper, str(arrays["activation"]), linear, f"x{i + 1}")
    size = int(arrays[f"b{depth - 1}"].shape[0])
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["batch", size])]
    if not continuous:
        nodes.append(helper.make_node("ArgMax", ["logits"], ["action"], axis=1, keepdims=0))
        outputs.append(helper.make_tensor_value_info("action", TensorProto.INT64, ["batch"]))
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", _observation_size(arrays)])],
        outputs,
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in tensors.items()],
    )
    model = helper.make_model(graph, producer_name="riskppo-jax", opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8  # what opset 17 came with; newer numbers shut older runtimes out
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def write_stablehlo(path: Path, arrays: Arrays) -> None:
    """A serialised program `obs [batch, n] -> action or logits`; `jax.export.deserialize(bytes).call(obs)` runs it."""
    from jax import export as jax_export

    (batch,) = jax_export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, _observation_size(arrays)), np.float32)
    program = jax_export.export(jax.jit(policy_function(arrays)), platforms=["cpu", "cuda", "tpu"])(shape)
    path.write_bytes(program.serialize())


def policy_function(arrays: Arrays) -> Callable[[jax.Array], jax.Array]:
    """`obs -> mean action` (or logits) in JAX, from plain arrays."""
    import flax.linen as nn
    import jax.numpy as jnp

    depth, activate = _depth(arrays), getattr(nn, str(arrays["activation"]))
    sd, clip = np.sqrt(arrays["obs_var"]).astype(np.float32), float(arrays["obs_clip"])

    def policy(obs):
        if "lidar_powers" in arrays:
            obs = with_powers(obs, arrays["lidar_columns"], arrays["lidar_powers"].tolist())
        x = jnp.clip((obs - arrays["obs_mean"]) / sd, -clip, clip)
        for i in range(depth):
            x = x @ arrays[f"w{i}"] + arrays[f"b{i}"]
            x = activate(x) if i < depth - 1 else x
        return x

    return policy


FORMATS: dict[str, Callable[[Path, Arrays], None]] = {
    ".npz": write_npz,
    ".onnx": write_onnx,
    ".stablehlo": write_stablehlo,
}


def _activation(helper, name: str, given: str, made: str) -> list:
    if name == "swish":
        sigmoid = f"{made}_sigmoid"
        return [helper.make_node("Sigmoid", [given], [sigmoid]), helper.make_node("Mul", [given, sigmoid], [made])]
    return [helper.make_node({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[name], [given], [made])]


def _observation_size(arrays: Arrays) -> int:
    """Of what a task shows, without powers."""
    extra = len(arrays["lidar_columns"]) * len(arrays["lidar_powers"]) if "lidar_powers" in arrays else 0
    return int(arrays["obs_mean"].shape[0]) - extra


def _depth(arrays: Arrays) -> int:
    return sum(name[0] == "w" and name[1:].isdigit() for name in arrays)


def _layers(torso: dict) -> list[dict[str, jax.Array]]:
    """Hidden layers in their order, then the head."""
    hidden = sorted((name for name in torso if name.startswith("Dense_")), key=lambda name: int(name[6:]))
    return [torso[name] for name in (*hidden, "Head_0")]

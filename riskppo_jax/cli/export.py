"""`riskppo export RUN OUT`: the trained policy as plain arrays, an ONNX graph or a StableHLO program."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("out", metavar="OUT", type=Path, help="file to write, ending in .npz, .onnx or .stablehlo")
    parser.add_argument("--lane", type=int, default=0, metavar="I", help="which run of a sweep (default: the first)")


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from riskppo_jax.export import export

    path = export(args.run, args.out, args.lane)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            print(f"{path}: " + ", ".join(f"{name}{list(arrays[name].shape)}" for name in arrays.files))
    else:
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0

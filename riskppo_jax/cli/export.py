"""`riskppo export RUN OUT.npz`: the trained policy as plain arrays."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("out", metavar="OUT", type=Path, help="file to write, ending in .npz")


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from riskppo_jax.export import export

    path = export(args.run, args.out)
    with np.load(path) as arrays:
        print(f"{path}: " + ", ".join(f"{name}{list(arrays[name].shape)}" for name in arrays.files))
    return 0

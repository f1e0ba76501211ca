"""Other risk measures in CVaR's place, with limits that bind where CVaR's does.

    python experiments/utilities.py [--runs runs/paper]

The speeds of a Hopper trained under a CVaR constraint (`samples.npz` of the first lane of `run.py utilities`) give
every other measure its limit: its own risk of those very speeds. A policy as fast as that one is then just feasible for
all of them, and what differs is the shape of the distribution each measure asks for. Leaves `utilities/MEASURE.json`;
resumes.
"""

import argparse
from pathlib import Path

from run import HERE, PARTS, compare, train

from riskppo_jax.risk import oce
from riskppo_jax.runs import read_run

MEASURES: dict[str, dict[str, float]] = {  # parameters in units of a speed of 0.4
    "entropic": {"gamma": 5.0},
    "monotone_quadratic": {"c": 5.0},
    "soft_cvar": {"beta": 0.3, "tau": 0.02},
    "mean": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"), help="where to train (default: %(default)s)")
    runs = parser.parse_args().runs / "utilities"
    (words,) = PARTS["utilities"].values()
    train(runs / "cvar", HERE / "utilities" / "cvar", words)
    speed = read_run(runs / "cvar").lanes[0].samples["velocity_sampled"]
    for name, parameters in MEASURES.items():
        limit = -float(oce.from_config({"name": name, **parameters}).value(-speed))
        chosen = [f"risk.{key}={value}" for key, value in parameters.items()]
        chosen = [*words, f"risk={name}", *chosen, f"threshold={limit:.6f}"]
        train(runs / name, HERE / "utilities" / name, chosen)
    compare(runs, HERE / "utilities")


if __name__ == "__main__":
    main()

"""Other risk measures in CVaR's place, with limits that bind where CVaR's does.

    python experiments/utilities.py [--runs runs/paper]

The speeds of a Hopper trained under a CVaR constraint (`samples.npz` of the first lane of `run.py utilities`) give
every other measure its limit: its own risk of those very speeds. A policy as fast as that one is then just feasible for
all of them, and what differs is the shape of the distribution each measure asks for. All of them, CVaR as well, go on
from the policies of that run (`start_from`): from their beginning, the entropic measure charges the speeds of a robot
that has not learned yet so much that it may never get going. Leaves `utilities/MEASURE.json`; resumes.
"""

import argparse
from pathlib import Path

from compare import compare
from run import BEST, HERE, PARTS, train

from riskppo_jax.risk import oce
from riskppo_jax.runs import read_run

MEASURES: dict[str, dict[str, float]] = {  # parameters in units of a speed of 0.4
    "cvar": {"beta": 0.3},
    "entropic": {"gamma": 5.0},
    "monotone_quadratic": {"c": 5.0},
    "soft_cvar": {"beta": 0.3, "tau": 0.02},
    "mean": {},
}
PRICE = 0.7  # where prices end under CVaR: a policy that is feasible already need not find that out again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"), help="where to train (default: %(default)s)")
    runs = parser.parse_args().runs / "utilities"
    (words,) = PARTS["utilities"].values()
    train(runs / "start", HERE / "utilities" / "start", words)
    words = [word for word in words if not word.startswith("eval.points")]
    words += [*BEST, f"start_from={runs / 'start'}", f"dual.lam_init={PRICE}"]
    speed = read_run(runs / "start").lanes[0].samples["velocity_sampled"]
    for name, parameters in MEASURES.items():
        limit = -float(oce.from_config({"name": name, **parameters}).value(-speed))
        chosen = [f"risk.{key}={value}" for key, value in parameters.items()]
        # t begins where it is to end, about: at 0, every step would be charged in full until it gets there
        chosen = [*words, f"risk={name}", *chosen, f"threshold={limit:.6f}", f"dual.t_init={-limit:.6f}"]
        train(runs / name, HERE / "utilities" / name, chosen)
    compare(HERE / "utilities")


if __name__ == "__main__":
    main()

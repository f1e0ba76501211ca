"""The `riskppo` command with a finite problem among its tasks: physics-free, so that whole runs take seconds."""

import sys
from pathlib import Path

from riskppo_jax.cli import main
from riskppo_jax.envs import tabular
from riskppo_jax.envs.registry import register

ID = "SafeRiskyChain-v0"
FIXTURE = Path(__file__).parent / "fixtures" / "tabular" / "safe_risky_chain.json"
TINY = [
    f"env={ID}", "layout.num_envs=4", "layout.horizon=8", "layout.num_minibatches=2", "layout.num_epochs=1",
    "layout.hidden_sizes=[4]", "log.every=2", "eval.episodes=3", "eval.bootstrap=5", "report=false",
]  # fmt: skip


def make(engine: str = "auto") -> tabular.TabularEnv:
    """The chain as an environment; it has no physics, so any engine will do."""
    del engine
    instance = tabular.load(FIXTURE)
    return tabular.TabularEnv(instance.mdp, thresholds=tuple(-c for c in instance.thresholds))


register(ID, make)

if __name__ == "__main__":
    sys.exit(main())

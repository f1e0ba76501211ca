"""Which policy a run hands over: its last one, or the best that the evaluations during training have seen.

Training charges the actions that are sampled; what is deployed takes their mean, and any single update may have just
spoiled it. `deploy=best` keeps the policy that violates least at an evaluation point, and of those that keep their
limits the one with the highest return. It is chosen by other episodes than the final evaluation reports.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from riskppo_jax.evaluation import TOLERANCE
from riskppo_jax.iterates import is_better
from riskppo_jax.risk.lagrangian import Problem
from riskppo_jax.train import Chosen, RunState

CHOICES = ("last", "best")


def begin(state: RunState) -> RunState:
    """The state of a run, or of several side by side, that has not chosen yet."""
    lead = state.env_steps.shape
    return state.replace(
        chosen=Chosen(
            actor=state.averaged,
            moments=state.moments,
            env_steps=state.env_steps,
            reward=jnp.full(lead, -jnp.inf),
            excess=jnp.full(lead, jnp.inf),
        )
    )


def choose(state: RunState, points: Sequence[Mapping[str, float]], problems: Sequence[Problem]) -> RunState:
    """Takes in an evaluation of the newest policies; `points` and `problems` are of the lanes, or of a single run."""
    lead = state.env_steps.shape
    reward = jnp.asarray([_known(point["eval/reward"], -math.inf) for point in points]).reshape(lead)
    excess = jnp.asarray([excess_of(*each) for each in zip(points, problems, strict=True)]).reshape(lead)
    held, (params, moments) = state.chosen, state.newest
    better = is_better(reward, excess, held.reward, held.excess)
    found = Chosen(params.actor, moments, state.env_steps, reward, excess)

    def pick(new, old):
        return jnp.where(better.reshape(lead + (1,) * (new.ndim - len(lead))), new, old)

    return state.replace(chosen=jax.tree.map(pick, found, held))


def excess_of(point: Mapping[str, float], problem: Problem) -> float:
    """The largest violation of an evaluation, as a share of its limit; 0 where all are kept."""
    found = 0.0
    for i, constraint in enumerate(problem.constraints):
        limit = float(constraint.threshold)
        over = _known(point[f"eval/risk{i}"], math.inf) - limit
        unit = abs(limit) or 1.0
        if over > TOLERANCE * abs(limit):
            found = max(found, over / unit)
    return found


def _known(x: float, otherwise: float) -> float:
    return otherwise if math.isnan(x) else x

"""Which policy a run hands over: its last one, or the best that the evaluations during training have seen.

Training charges the actions that are sampled; what is deployed takes their mean, and any single update may have just
spoiled it. `deploy=best` keeps the policy that violates least at an evaluation point, and of those that keep their
limits the one with the highest return, or value of an objective that is not the mean. One that keeps a limit in a few
episodes and looks best may have been lucky, the more so the more points there are: it is taken if further episodes say
so, too (`eval.confirm_episodes`), and the next one is held against these. All of them are other episodes than the final
evaluation reports.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from riskppo_jax.evaluation import TOLERANCE
from riskppo_jax.iterates import is_better
from riskppo_jax.risk.lagrangian import Problem
from riskppo_jax.train import Chosen, RunState
from riskppo_jax.types import Array

CHOICES = ("last", "best")
LEAST = 1e-6  # in place of a limit of 0, as the unit of its violation

Point = Mapping[str, float]  # `eval/` entries of an evaluation


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


def leads(state: RunState, points: Sequence[Point], problems: Sequence[Problem]) -> Array:
    """Which lanes' newest policies, by this evaluation, keep a limit, if not all, and are the best so far."""
    reward, excess = _judge(state, points, problems)
    keeps = [min(_shares(*each), default=0.0) == 0 for each in zip(points, problems, strict=True)]
    better = is_better(reward, excess, state.chosen.reward, state.chosen.excess)
    return better & jnp.asarray(keeps).reshape(better.shape)


def choose(state: RunState, points: Sequence[Point], problems: Sequence[Problem]) -> RunState:
    """Takes in an evaluation of the newest policies; `points` and `problems` are of the lanes, or of a single run."""
    lead = state.env_steps.shape
    reward, excess = _judge(state, points, problems)
    held, (params, moments) = state.chosen, state.newest
    better = is_better(reward, excess, held.reward, held.excess)
    found = Chosen(params.actor, moments, state.env_steps, reward, excess)

    def pick(new, old):
        return jnp.where(better.reshape(lead + (1,) * (new.ndim - len(lead))), new, old)

    return state.replace(chosen=jax.tree.map(pick, found, held))


def excess_of(point: Point, problem: Problem) -> float:
    """The largest violation of an evaluation, as a share of its limit; 0 where all are kept.

    Where nothing at all is allowed there is no such share: any violation outweighs those of other limits.
    """
    return max(_shares(point, problem), default=0.0)


def _shares(point: Point, problem: Problem) -> list[float]:
    """How far each constraint is beyond its limit, as a share of it; 0 where it is kept."""
    limits = [float(constraint.threshold) for constraint in problem.constraints]
    over = [_known(point[f"eval/risk{i}"], math.inf) - limit for i, limit in enumerate(limits)]
    return [
        beyond / max(abs(limit), LEAST) if beyond > TOLERANCE * abs(limit) else 0.0
        for beyond, limit in zip(over, limits, strict=True)
    ]


def _judge(state: RunState, points: Sequence[Point], problems: Sequence[Problem]) -> tuple[Array, Array]:
    lead = state.env_steps.shape
    gains = [point.get("eval/objective_whole", point["eval/reward"]) for point in points]
    reward = jnp.asarray([_known(gain, -math.inf) for gain in gains])
    excess = jnp.asarray([excess_of(*each) for each in zip(points, problems, strict=True)])
    return reward.reshape(lead), excess.reshape(lead)


def _known(x: float, otherwise: float) -> float:
    return otherwise if math.isnan(x) else x

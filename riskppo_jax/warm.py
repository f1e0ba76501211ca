"""Starting from what another run has learned: its networks and the scales they see the world in.

Everything else begins anew: worlds, prices, t, and the counters that learning rates follow. A policy that can do the
task before it is charged for doing it is one way past local optima; the other task need only look the same.
"""

from pathlib import Path

import jax
import jax.numpy as jnp

from riskppo_jax import deploy, lanes
from riskppo_jax.build import Job
from riskppo_jax.checkpoint import misfit
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way
from riskppo_jax.rundir import restore_run
from riskppo_jax.train import RunState

_MEANING = ("activation", "lidar_powers", "normalize_observations", "keep_values")  # of what networks read and predict


def begin(job: Job, folder: Path) -> RunState:
    """The state of `job` before its first step, with the last weights of the run in `folder`.

    A single run, or the lane `start_lane` of a sweep, is where all lanes of a sweep start; of a sweep with as many
    lanes each goes on from its own, in their order.
    """
    try:
        earlier, held, _ = restore_run(folder, job.settings.start_lane)
    except UserError as error:
        raise UserError(f"start_from: {error}".replace(" lane=", " start_lane=")) from error
    own, others = len(job.lanes), len(earlier.lanes)
    if others == 1:
        held, others = lanes.lane_of(held, 0), 0
    if others and others != own:
        raise UserError(
            f"start_from={folder}: is a sweep of {others} lanes; accepts a single run, as many lanes, or start_lane=I"
        )
    if own and not others:
        held = jax.tree.map(lambda x: jnp.broadcast_to(x, (own, *x.shape)), held)
    alone = job._replace(mesh=None)
    fresh = jax.jit(lanes.programs(alone, Way())[0])(*lanes.inputs(alone))
    if (other := misfit(held.learner.params, fresh.learner.params)) is not None:
        raise UserError(
            f"start_from={folder}: its networks differ ({other}); accepts a run with as many observations and actions "
            "and the same layout.hidden_sizes and layout.lidar_powers"
        )
    for name in _MEANING:
        was, now = getattr(earlier.layout, name), getattr(job.layout, name)
        if was != now:
            raise UserError(f"layout.{name}={now}: start_from={folder} has {was}; accepts the same")
    return jax.jit(take)(fresh, held)  # compiled, so that nothing in it shares memory: steps give theirs away


def take(fresh: RunState, held: RunState) -> RunState:
    """`fresh` with the networks of `held`, their optimiser's moments, and the scales of what they read and predict."""
    counters = {"skipped": fresh.learner.skipped, "skip_streak": fresh.learner.skip_streak}
    # worlds under way, as far as the scale of rewards knows: returns that all rise from 0 at once would shrink every
    # reward, and a critic that has seen none of that loses its way
    under_way = jnp.broadcast_to(held.scale.moments.mean[..., None], fresh.scale.returns.shape)
    state = fresh.replace(
        learner=held.learner.replace(**counters),
        averaged=held.learner.params.actor,
        moments=held.moments,
        scale=held.scale.replace(returns=under_way),
    )
    return state if state.chosen is None else deploy.begin(state)

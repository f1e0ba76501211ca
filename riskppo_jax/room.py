"""What a sweep needs and what there is: bytes per lane before anything is compiled, and the way that fits."""

import math
import os
from pathlib import Path

import jax

from riskppo_jax import distributed, lanes
from riskppo_jax.build import Job
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way

_CGROUP = "/sys/fs/cgroup"
_SHARE = 0.8  # of the free memory that a sweep may plan with


def carried_bytes(job: Job, mode: str = "vmap") -> int:
    """What one lane keeps from step to step; `map` reads the old states while it writes the new ones."""
    return lanes.state_bytes(job) * (2 if mode == "map" else 1)


def working_bytes(job: Job) -> int:
    """What one lane takes beside its state while it computes, about.

    The rollout, the samples PPO makes of it and their shuffled copy, and a few copies of the weights. Measured
    against `compiled.memory_analysis()` in `tests/test_room.py`.
    """
    layout, env = job.layout, job.env
    action = env.action_size if not env.num_actions else 1
    constraints = len(env.constraint_names)
    transition = env.observation_size + action + 5 + constraints + 1  # flags are bytes, not words
    sample = env.observation_size + action + 5
    weights = _weights(job)
    rollouts = 1 + (job.settings.scheme.dual_rollout == "fresh")
    return 4 * (layout.batch_size * (rollouts * transition + 2 * sample + 10) + 5 * weights)


def free_bytes() -> int:
    """Memory that a program may still take: the accelerator's, or the machine's (a container's limit included)."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = 1024 * int(line.split()[1])
    limit, used = _read(f"{_CGROUP}/memory.max").strip(), _read(f"{_CGROUP}/memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):
        return free
    cached = dict(line.split() for line in _read(f"{_CGROUP}/memory.stat").splitlines()).get("inactive_file", 0)
    return min(free, int(limit) - int(used) + int(cached))  # files that were read are given up when memory is short


def _free_everywhere() -> int:
    """The least that any process has: all of them must come to the same program."""
    if distributed.count() == 1:
        return free_bytes()
    return -distributed.agree(-(free_bytes() >> 20))[0] << 20


def _apart(job: Job) -> int:
    """Devices with memory of their own that lanes are spread over; cores share the machine's."""
    return job.mesh.size if job.mesh and jax.default_backend() != "cpu" else 1


def choose_way(job: Job) -> Way:
    """The mode and batch asked for, or the ones that fit and are fastest."""
    asked, count = job.settings.sweep, len(job.lanes)
    if not count:
        return Way()
    kept, working, free = carried_bytes(job, "map"), working_bytes(job), _SHARE * _free_everywhere()
    apart = _apart(job)
    here = math.ceil(count / apart)
    most = int((free - here * kept) / max(working, 1))  # lanes that can work at a time, on a device
    if most < 1:
        raise UserError(
            f"sweep: {count} lanes of {_show(kept)} and {_show(working)} for one at work do not fit into "
            f"{_show(free)}; accepts at most {apart * max(int((free - working) / max(kept, 1)), 0)} lanes"
        )
    together = jax.default_backend() != "cpu" and here <= most
    if asked.mode == "vmap" or (asked.mode == "auto" and together and not asked.batch):
        return Way("vmap", count)
    # a core gains little from several lanes at a time, and one at a time rounds as the single run does
    batch = 1 if jax.default_backend() == "cpu" else _divisor(here, most)
    return Way("map", min(asked.batch or batch, count))


def announce(job: Job, way: Way) -> str:
    """One line before compiling: what there is to do, what it takes, what there is, and the choice."""
    count, grid = len(job.lanes), job.settings.sweep.grid
    kept, working, free = carried_bytes(job, way.mode), working_bytes(job), free_bytes()
    physics = f" and what {job.engine} needs inside a step" if job.engine in ("mjx", "warp") else ""
    if way.mode == "vmap":
        at_once = "all at once"
        each = f"{_show(kept + working)} per lane ({_show(kept)} carried, {_show(working)} at work)"
        fits = _apart(job) * int(_SHARE * free / (kept + working))
    else:
        working_lanes = way.batch * (job.mesh.size if job.mesh else 1)
        at_once = f"{working_lanes} at a time"
        each = f"{_show(kept)} per lane, {_show(working)} more for each at work"
        fits = _apart(job) * int((_SHARE * free - working_lanes / _apart(job) * working) / kept)
    return (
        f"{count} lanes ({' x '.join(f'{len(values)} {name}' for name, values in grid.items())}) of "
        f"{job.layout.num_envs} environments; {each}{physics}; {_show(free)} free: about {max(fits, 0):,} lanes fit; "
        f"mode {way.mode}, {at_once}"
    )


def _divisor(count: int, most: int) -> int:
    """The largest divisor of `count` that is not above `most`: every batch is whole, so one program serves."""
    return max(size for size in range(1, max(1, min(count, most)) + 1) if count % size == 0)


def _weights(job: Job) -> int:
    params = jax.eval_shape(job.trainer.networks.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _show(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

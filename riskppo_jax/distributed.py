"""Several processes, on one machine or many: `jax.distributed` finds them, process 0 speaks and writes for all."""

import os
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import jax
import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.settings import Settings

_WORD = "riskppo"  # what processes say to each other before JAX takes over
_lines: list[socket.socket] = []  # from process 0 to the others, held while the run lasts
_WHO = ("coordinator", "processes", "rank")
_HEARTBEAT = 30  # seconds of silence after which a process counts as lost
_DAY = 86400  # seconds; nobody waits longer for the others


def start(settings: Settings) -> None:
    """Joins the other processes of this run, if it has any; the wait for them is bounded.

    `distributed.coordinator`, `distributed.processes` and `distributed.rank` say who takes part; inside a SLURM
    step of several tasks nothing needs to be said. To be called before anything is computed.
    """
    if not asked_for(settings) or jax.distributed.is_initialized():
        return
    asked, options = settings.distributed, {}
    given = {name: getattr(asked, name) for name in _WHO}
    if None in given.values() and _slurm_tasks() > 1:
        given = _slurm_step() | {name: value for name, value in given.items() if value is not None}
        options = _slurm_devices()
    _check(given, asked.timeout)
    coordinator, processes, rank = (given[name] for name in _WHO)
    host, _, port = coordinator.rpartition(":")
    _meet(host, int(port), rank, processes, asked.timeout)
    if rank > 0:
        threading.Thread(target=_listen, args=(_lines[0], settings.output), daemon=True).start()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator, processes, rank,
            initialization_timeout=max(1, int(asked.timeout)), heartbeat_timeout_seconds=_HEARTBEAT, **options,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"distributed.coordinator={coordinator}: not all {processes} processes met within "
            f"{asked.timeout:g} s; accepts an address that every one of them reaches ({first_line(error)})"
        ) from error
    with _silence():
        agree(0)  # the first message between processes


def asked_for(settings: Settings) -> bool:
    """Whether this is to be one process of several."""
    return any(getattr(settings.distributed, name) is not None for name in _WHO) or _slurm_tasks() > 1


def count() -> int:
    """Processes of this run."""
    return jax.process_count()


def leads() -> bool:
    """Whether this process speaks and writes."""
    return jax.process_index() == 0


def agree(*numbers: int) -> tuple[int, ...]:
    """The largest of what the processes say, number by number; all of them must ask together."""
    if count() == 1:
        return numbers
    from jax.experimental import multihost_utils

    return tuple(int(x) for x in multihost_utils.process_allgather(np.array(numbers, np.int32)).max(axis=0))


def from_leader(tree: Any) -> Any:
    """What process 0 holds, in every process; the others give something of the same shapes."""
    if count() == 1:
        return tree
    from jax.experimental import multihost_utils

    keys = {i: str(jax.random.key_impl(x)) for i, x in enumerate(jax.tree.leaves(tree)) if _is_key(x)}
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)
    leaves, shape = jax.tree.flatten(multihost_utils.broadcast_one_to_all(plain))
    wrapped = [jax.random.wrap_key_data(x, impl=keys[i]) if i in keys else x for i, x in enumerate(leaves)]
    return jax.tree.unflatten(shape, wrapped)


def part() -> None:
    """Process 0 tells the others that it ends because it is done; without this word it counts as lost."""
    for line in _lines if leads() else ():
        with suppress(OSError):
            line.sendall(b"done")


def give_up(output: str | None, why: str) -> NoReturn:
    """Says what happened and ends this process at once: an orderly end would wait for those that are gone."""
    print(
        f"riskppo: a process of this run was lost ({why}); the newest checkpoint is kept, go on with: "
        f"riskppo train resume=true output={shlex.quote(str(output))}", file=sys.stderr, flush=True,
    )  # fmt: skip
    sys.stdout.flush()
    os._exit(1)


def first_line(error: Exception) -> str:
    """What an error says, briefly."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def _slurm_tasks() -> int:
    """Tasks of the SLURM step that this process belongs to; 1 outside of any."""
    return max(1, _slurm_number("SLURM_STEP_NUM_TASKS", 1))


def _slurm_step() -> dict[str, Any]:
    """Who takes part in a SLURM step; every task comes to the same address by itself.

    It is the step's first node with the port that JAX would choose, moved on for later steps of the same job.
    """
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    first = re.sub(r"\[(\w+)[^]]*\]", r"\1", nodes).partition(",")[0]  # `gpu[07-08,11],login1` begins with gpu07
    if not re.fullmatch(r"[\w.-]+", first):
        raise _slurm_refusal("SLURM_STEP_NODELIST", "the nodes of this step")
    job, step = _slurm_number("SLURM_JOB_ID"), _slurm_number("SLURM_STEP_ID", 0)
    port = os.environ.get("JAX_COORDINATOR_PORT") or 61440 + (job + 1021 * step) % 4096
    return {"coordinator": f"{first}:{port}", "processes": _slurm_tasks(), "rank": _slurm_number("SLURM_PROCID")}


def _slurm_devices() -> dict[str, Any]:
    """Which accelerators a task of a SLURM step takes: all that it sees, or its own where it sees its neighbours'.

    JAX by itself gives every task a single one, also where a task has a node of several to itself.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES")
    alone = _slurm_tasks() <= _slurm_number("SLURM_STEP_NUM_NODES", 1)
    bound = "SLURM_GPUS_PER_TASK" in os.environ or (visible is not None and "," not in visible)
    chosen = None if alone or bound or "JAX_LOCAL_DEVICE_IDS" in os.environ else [_slurm_number("SLURM_LOCALID")]
    return {"local_device_ids": chosen, "cluster_detection_method": "deactivate"}


def _slurm_number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise _slurm_refusal(name, "a whole number")
    return int(text)


def _slurm_refusal(name: str, accepts: str) -> UserError:
    text = os.environ.get(name)
    return UserError(
        f"{name}{f'={text}' if text else ': is missing'}; a SLURM step of several tasks accepts {accepts} there, "
        "as srun sets it, or distributed.coordinator, distributed.processes and distributed.rank"
    )


def _check(given: dict[str, Any], timeout: float) -> None:
    for name, value in given.items():
        if value is None:
            raise UserError(f"distributed.{name}: is missing; several processes need coordinator, processes and rank")
    host, _, port = given["coordinator"].rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"distributed.coordinator={given['coordinator']}: accepts HOST:PORT of process 0")
    if given["processes"] < 1:
        raise UserError(f"distributed.processes={given['processes']}: accepts a whole number, 1 or larger")
    if not 0 <= given["rank"] < given["processes"]:
        raise UserError(f"distributed.rank={given['rank']}: accepts 0 to {given['processes'] - 1}")
    if not 0 < timeout <= _DAY:
        raise UserError(f"distributed.timeout={timeout:g}: accepts seconds above 0 and up to {_DAY}, a day")


def _meet(host: str, port: int, rank: int, processes: int, timeout: float) -> None:
    """Waits until all processes are there; JAX's own wait ends the process with pages of log."""
    end = time.monotonic() + timeout
    (_welcome if rank == 0 else _knock)(host, port, rank, processes, end, timeout)


def _welcome(host: str, port: int, rank: int, processes: int, end: float, timeout: float) -> None:
    """Process 0: listens where the coordinator will, until everybody has knocked."""
    there: dict[int, socket.socket] = {}
    try:
        with socket.create_server(("", port)) as door:
            while len(there) < processes - 1:
                door.settimeout(max(0.01, end - time.monotonic()))
                guest, _ = door.accept()
                guest.settimeout(2.0)
                with suppress(OSError, ValueError):  # whoever else tries this port
                    word, number = guest.recv(64).decode(errors="replace").split()
                    if word == _WORD and 0 < int(number) < processes:
                        there[int(number)] = guest
        for guest in there.values():
            guest.sendall(b"go")
        _lines.extend(there.values())
    except TimeoutError as error:
        missing = ", ".join(str(i) for i in range(1, processes) if i not in there)
        raise UserError(
            f"distributed.coordinator={host}:{port}: not all {processes} processes met within {timeout:g} s "
            f"(missing: rank {missing}); accepts an address that every one of them reaches"
        ) from error
    except OSError as error:
        raise UserError(
            f"distributed.coordinator={host}:{port}: {error.strerror or error}; accepts a free port of this machine"
        ) from error


def _listen(line: socket.socket, output: str | None) -> None:
    """Ends this process when the line to process 0 breaks: JAX would abort with pages of log a moment later."""
    line.settimeout(None)
    with suppress(OSError):
        if line.recv(4):
            return
    give_up(output, "process 0 is gone")


def _knock(host: str, port: int, rank: int, processes: int, end: float, timeout: float) -> None:
    """The others: knock until process 0 opens."""
    while True:
        try:
            door = socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic()))
            door.sendall(f"{_WORD} {rank}".encode())
            if door.recv(2) == b"go":
                _lines.append(door)
                return
            raise ConnectionResetError("was refused")
        except UnicodeError as error:
            raise UserError(f"distributed.coordinator={host}:{port}: accepts HOST:PORT of process 0") from error
        except OSError as error:
            if time.monotonic() > end:
                why = error.strerror or str(error) or type(error).__name__
                raise UserError(
                    f"distributed.coordinator={host}:{port}: did not answer within {timeout:g} s ({why}); "
                    "accepts the address of process 0, started at the same time"
                ) from error
            time.sleep(min(0.3, max(0.0, end - time.monotonic())))


@contextmanager
def _silence() -> Iterator[None]:
    """Gloo greets on the process's standard output; nobody asked."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)

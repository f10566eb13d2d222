"""`stopping()`: a call for any training loop that returns whether to save and exit.

`boundary()` is for trainers with callbacks: it also returns whether to save and continue.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch.distributed as dist

from launcher.schedulers import topology
from launcher.worker import accelerator, process_group
from launcher.worker.process_group import Env
from launcher.worker.stop import Stop, Verdict

_stop: Stop | None = None
_stopped: Verdict | None = None
_steps = 0


def stopping(step: int | None = None) -> bool:
    """Returns whether to save now and exit with code 75, because the attempt is to end. Call it after each step.

    All ranks of the process group must make the same calls: it returns True on all of them after the same step. They
    agree through their agents or, without an agent and with short steps, in the background every half second or 64
    steps. A process without a process group decides alone. The stop reason (the time is nearly up, a signal, RUN/stop)
    is in the run's events.

    The first call replaces the handlers of SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, and declares to the agent that this
    rank exits after a stop request. The agent then does not end it, and counts it as hung if it does not call again
    within launch.hang_timeout.

    Args:
        step: steps of the run that are done, including earlier attempts, for `status`; None: the calls in this process
            are counted instead.
    """
    return boundary(step).stop is not None


def boundary(step: int | None = None) -> Verdict:
    """Like `stopping`, but also returns the stop reason, and whether to save and continue because RUN/save exists.

    Args:
        step: see `stopping`.

    Returns:
        What all ranks do after this step. Once this is a stop, each further call returns the same stop.
    """
    global _stopped, _steps
    if _stopped is not None:
        return _stopped
    stop = listen()
    _steps = _steps + 1 if step is None else step
    if step is not None:  # a count of calls is no step of the run
        process_group.report_step(step)
    verdict = stop.boundary(_steps)
    if verdict.stop is not None:
        _stopped = verdict
        stop.close()
    return verdict


def listen() -> Stop:
    """Returns this process's stop flag. The first call makes it and replaces signal handlers; see `stopping`.

    All ranks must make the first call at the same point of the program.
    """
    global _stop
    if _stop is None:
        _stop = Stop(here())
    return _stop


def here() -> Env:
    """Returns this rank's position in the process group, also if the program made the group without `init`."""
    if process_group._env is not None and dist.is_initialized():
        return process_group._env
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    alone = not dist.is_initialized()
    world = 1 if alone else dist.get_world_size()
    backend = "none" if alone else "mpi" if dist.get_backend() == "mpi" else dist.get_backend()
    # Empty if the environment describes more or fewer ranks than this group has.
    node_ranks = topology.nodes_in_order(place) if world == place.world_size else ()
    return Env(
        rank=place.rank if alone else dist.get_rank(),
        local_rank=place.local_rank,
        world_size=world,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        nnodes=place.nnodes,
        hosts=place.hosts if node_ranks else (),
        host=place.hosts[place.node_rank] if place.hosts else host,
        backend=backend,
        device=accelerator.current(),
        source=place.source,
        node_ranks=node_ranks,
    )

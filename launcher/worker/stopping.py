"""`stopping()`: one call in anybody's training loop that tells when to save and leave.

`boundary()` is the same call for callbacks of other people's trainers, which can also save and go on.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.schedulers import topology
from launcher.worker import process_group
from launcher.worker.process_group import Env
from launcher.worker.stop import Stop, Verdict

_stop: Stop | None = None
_stopped: Verdict | None = None
_steps = 0


def stopping(step: int | None = None) -> bool:
    """Whether to save now and leave with exit code 75, because the attempt is to end. Call it after each step.

    All ranks of the process group must call it equally often: they agree, so that all of them hear it after the same
    step. That is agreed on through their agents, or, where this process has none and steps are short, in the background
    each half second or 64 steps. Why it is to end (time that is nearly up, a signal, RUN/stop) is in the run's events.
    Without a process group it is this process's own flag.

    The first call takes SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 from whoever had them, and tells the agent that this rank
    leaves by itself: it is not ended, and a rank that does not get to its next call within launch.hang_timeout counts
    as hung.

    Args:
        step: steps of the run that are done, those of earlier attempts included, which `status` shows; None: calls of
            this process count.
    """
    return boundary(step).stop is not None


def boundary(step: int | None = None) -> Verdict:
    """As `stopping`, and whether to save and go on (RUN/save). All ranks get the same after the same step."""
    global _stopped, _steps
    if _stopped is not None:
        return _stopped
    stop = listen()
    _steps = _steps + 1 if step is None else step
    if step is not None:  # else it is not the run's
        process_group.passed(step)
    verdict = stop.boundary(_steps)
    if verdict.stop is not None:
        _stopped = verdict
        stop.close()
    return verdict


def listen() -> Stop:
    """What the first call of `stopping` does before it looks: from here on a signal waits for the next step boundary.

    All ranks call it at the same point. Its result is this process's own flag, for all calls the same.
    """
    global _stop
    if _stop is None:
        _stop = Stop(_here())
    return _stop


def _here() -> Env:
    """This rank, whoever made the process group."""
    if process_group._env is not None and dist.is_initialized():
        return process_group._env
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    alone = not dist.is_initialized()
    world = 1 if alone else dist.get_world_size()
    backend = "none" if alone else "mpi" if dist.get_backend() == "mpi" else dist.get_backend()
    # Else what was derived is of another world than this group, or nobody knows which ranks are on which node.
    node_ranks = topology.in_order(place) if world == place.world_size else ()
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
        device=torch.device("cpu"),
        source=place.source,
        node_ranks=node_ranks,
    )

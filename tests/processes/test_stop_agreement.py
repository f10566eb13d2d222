"""Processes that share their marks in memory stop and save at the same boundary."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from dataclasses import replace

import pytest

from launcher.worker import heartbeat
from launcher.worker.heartbeat import Pulse
from launcher.worker.stop import Settings, StopFlag, StopVerdict
from launcher.worker.stop_agreement import AgentSide, LeaderSide
from tests.unit.workloads.test_training import env_of


def rank_process(shared: Pulse, place: int, rank: int, world_size: int, pipe: int) -> None:
    """Takes steps of a random length until it is told to stop; writes what it was told."""
    heartbeat.take(shared.slot(place))
    env = replace(env_of(world_size, tuple(range(world_size))), rank=rank, host="here", hosts=())
    flag, verdicts, save = StopFlag(env, Settings()), [], True
    chooser = random.Random(rank)
    for step in range(1, 100_000):
        if rank == 2 and step == 30:
            os.kill(os.getpid(), signal.SIGTERM)
        verdict = flag.boundary(step, save_due=rank == 1 and step >= 5 and save)
        if verdict != StopVerdict():
            verdicts.append((step, verdict))
        save = save and not verdict.save
        if verdict.stop:
            break
        time.sleep(chooser.random() * 0.003)
    flag.close()
    os.write(pipe, pickle.dumps(verdicts))


@pytest.mark.usefixtures("handlers")
def test_processes_stop_and_save_at_the_same_boundary() -> None:
    sizes, world_size = [2, 2], 4
    pulses, agents, leader = [Pulse(size) for size in sizes], [AgentSide(0), AgentSide(2)], LeaderSide([0, 1])
    pipes = []
    for rank in range(world_size):
        index = rank // 2
        if rank % 2 == 0:
            pulses[index].clear(world_size)
        ours, theirs = os.pipe()
        pipes.append(ours)
        if os.fork() == 0:
            try:
                rank_process(pulses[index], rank % 2, rank, world_size, theirs)
            finally:
                os._exit(0)
        os.close(theirs)
    give_up, ended = time.monotonic() + 60, 0
    while ended < world_size and time.monotonic() < give_up:
        for index, agent in enumerate(agents):
            for message in agent.look(pulses[index].stops()):
                for reply in leader.receive(index, message):
                    for other in agents:
                        other.receive(reply)
            pulses[index].agent.show(agent.proposal, agent.committed)
        ended += os.waitpid(-1, os.WNOHANG)[0] != 0
        time.sleep(0.001)
    results = [pickle.loads(os.read(pipe, 1 << 16)) for pipe in pipes]
    assert results == [results[0]] * world_size
    (saved, first), (stopped, last) = results[0]
    assert first == StopVerdict(save=True) and saved > 5
    assert last == StopVerdict("asked to stop (rank 2 on here)") and stopped > 30

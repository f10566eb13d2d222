"""The cost of the rendezvous of many simulated agents, and of their heartbeats, on the leader.

    python -m benchmarks.rendezvous [--agents 1024]

All agents run on this machine: the leader in this process, the others as threads of two more processes, which take
most of the time until all have met. On a cluster they have nodes of their own, so the claim is the CPU time of the
leader.

The agents are also compared with clients of torch's TCPStore that connect and read one key, by the seconds per agent
and per client. There are fewer clients than agents, because clients stall if name servers do not respond.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.measure import Result, report
from launcher.agent.leader_connection import LeaderConnection, Signals
from launcher.rendezvous.rounds import Member
from launcher.rendezvous.signed_channel import Hub
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Place
from tests.unit.plans import bare_plan

AGENTS, CLIENTS, PROCESSES = 1024, 64, 2
HEARTBEAT = 30.0  # timeout of heartbeats, in seconds
CPU_SECONDS = 1.0  # of the leader, until all have met
AT_REST = 0.2  # target of the leader's CPU use after the rendezvous, as a share of a core
_context = multiprocessing.get_context("fork")


def agent(index: int, size: int, folder: Path) -> LeaderConnection:
    places = [Place(host=f"node{number}", node=number) for number in range(size)]
    plan = bare_plan(
        nodes=size, min_nodes=size, launch={"heartbeat": HEARTBEAT, "rendezvous_timeout": 120.0},
        cluster={"port_range": (20000, 32767)},
    )  # fmt: skip
    return LeaderConnection(
        Member(index, index, places[index].host, 1), plan=plan, attempt=Attempt(Run(folder), 0), places=places,
        hosts=["localhost"] * size, secret=b"benchmark", key=str(folder), signals=Signals(),
    )  # fmt: skip


def _others(indices: range, size: int, folder: Path, pipe: Connection) -> None:
    """Runs agents as threads of this process: they join the rendezvous, then send heartbeats until `pipe` has a
    message."""
    threading.stack_size(1 << 18)
    ended = threading.Event()

    def one(index: int) -> None:
        connection = agent(index, size, folder)
        connection.first()
        while not ended.is_set():
            connection.poll(HEARTBEAT / 10)

    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in indices]
    for thread in threads:
        thread.start()
    pipe.recv()


def _meet(size: int, rest: float) -> tuple[float, float, int, float]:
    """Runs `size` agents.

    Returns:
        Seconds until all have a rendezvous, the leader's CPU seconds and received messages until then, and its share of
        a core during the next `rest` seconds.
    """
    messages = 0
    real = Hub.poll

    def poll(self: Hub, timeout: float) -> list[tuple[int, dict[str, object] | None]]:
        nonlocal messages
        events = real(self, timeout)
        messages += len(events)
        return events

    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        Attempt(Run(folder), 0).path.mkdir(parents=True)
        began = time.monotonic()
        for place in range(PROCESSES):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_others, args=(range(1 + place, size, PROCESSES), size, folder, theirs))
            process.start()
            children.append((process, ours))
        try:
            Hub.poll = poll  # type: ignore[method-assign]
            leader, cpu = agent(0, size, folder), time.process_time()
            _, rendezvous = leader.first()
            seconds, cpu, met = time.monotonic() - began, time.process_time() - cpu, messages
            assert rendezvous.listener is not None
            rendezvous.listener.close()
            settled = time.monotonic() + 3.0  # replies are still in transit
            while time.monotonic() < settled:
                leader.poll(0.1)
            start, used = time.monotonic(), time.process_time()
            while time.monotonic() < start + rest:
                leader.poll(0.1)
            share = (time.process_time() - used) / (time.monotonic() - start)
        finally:
            Hub.poll = real  # type: ignore[method-assign]
            for process, _ in children:
                process.kill()
                process.join()
    return seconds, cpu, met, share


def _clients(count: int, limit: float) -> tuple[float, int]:
    """Runs `count` clients of a TCPStore that connect and read a key, for at most `limit` seconds.

    Returns:
        The seconds that it took, and the number of clients (at least 1) that have read the key.
    """
    from torch.distributed import TCPStore

    def serve(pipe: Connection) -> None:
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        store.set("key", "value")
        pipe.send(store.port)
        pipe.recv()

    ours, theirs = _context.Pipe()
    server = _context.Process(target=serve, args=(theirs,))
    server.start()
    port, done = ours.recv(), []

    def one() -> None:
        store = TCPStore("localhost", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
        store.get("key")
        done.append(store)

    began = time.monotonic()
    threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, began + limit - time.monotonic()))
    seconds, reached = time.monotonic() - began, len(done)
    server.kill()
    server.join()
    return seconds, max(1, reached)


def results(agents: int = AGENTS, clients: int = CLIENTS, rest: float = 10.0) -> list[Result]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1 << 16) if most > 0 else 1 << 16, most))
    seconds, cpu, messages, share = _meet(agents, rest)
    theirs, reached = _clients(clients, 30.0)
    return [
        Result(
            f"CPU time of the leader until {agents} agents have met", cpu, CPU_SECONDS,
            f"{messages} messages to it; {seconds:.2f} s, most of it for the simulated agents", unit="s",
        ),
        Result(f"share of a core of the leader of {agents} agents at rest", share, AT_REST, f"in {rest:g} s"),
        Result(
            "one of these agents / one client of a TCPStore that reads a key", seconds / agents / (theirs / reached),
            1.0, f"{reached} of {clients} clients in {theirs:.2f} s",
        ),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=AGENTS, help="agents, the leader included")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="clients of torch's store")
    options = parser.parse_args()
    return report(results(options.agents, options.clients))


if __name__ == "__main__":
    sys.exit(main())

"""Connects this machine to a rank's node: directly if it is this machine, by a job step, or over the network."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

from launcher.attach import requests
from launcher.attach.node_session import HELLO, SECRET, SERVED, data_message, data_of, exchange
from launcher.errors import RunError
from launcher.files.os_errors import NOT_ON_PATH
from launcher.own_module import own_module
from launcher.rendezvous.channel import Channel, ChannelError
from launcher.rendezvous.leader_search import find_leader
from launcher.runs.directory import Attempt
from launcher.schedulers import registry
from launcher.schedulers.base import StartsJobSteps
from launcher.spec.plan import JobPlan

REPLY_TIMEOUT = 15.0  # seconds for the agents' replies; the leading agent looks for requests every second
EXIT_TIMEOUT = 5.0  # seconds for srun to exit by itself, and once more after SIGTERM, which it only forwards
CONNECT_TIMEOUT = 10.0  # seconds for one address of a node


class Way(Enum):
    """How `attach` reaches a rank's node if not by a job step."""

    HERE = "here"
    NETWORK = "network"


@dataclass(frozen=True)
class JobStep:
    """Access to a rank's node by a step of the run's job."""

    scheduler: StartsJobSteps  # the scheduler of the run's job
    plan: JobPlan  # the run's plan
    host: str  # name of the rank's node
    job: str  # id of the run's job

    def command(self, *arguments: str, terminal: bool) -> list[str]:
        """Returns the command that runs `node_session` on the node with these arguments of its `main`.

        terminal: whether the step gets a terminal.
        """
        session = [self.plan.python, *own_module("launcher.attach.node_session"), *arguments]
        return self.scheduler.step(session, self.job, self.host, self.plan.run_dir, terminal=terminal)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns `environ` with the changes that the result of `command` needs to run."""
        return session_environment(self.plan, self.scheduler.step_environment(environ))


def way(plan: JobPlan, host: str, job: str | None, here: str) -> Way | JobStep:
    """Returns how to reach a rank's node.

    | the node | its job | way |
    |---|---|---|
    | is this machine | any | HERE |
    | is another one | of Slurm | JobStep: Slurm checks who may, and no port has to be open |
    | is another one | of PBS, or none | NETWORK: in PBS only the job itself can start processes on its nodes |

    job: the Slurm job's id; None: not a Slurm job.
    """
    if host.partition(".")[0] == here.partition(".")[0]:
        return Way.HERE
    scheduler = registry.starting_steps(plan.starter) if job else None
    return JobStep(scheduler, plan, host, job) if scheduler and job else Way.NETWORK


def session_environment(plan: JobPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` with a PYTHONPATH on which `node_session` finds the run's launcher."""
    if not plan.code_root:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [plan.code_root, environ.get("PYTHONPATH", "")]))}


@dataclass
class DebuggerConnection:
    """A connection to a rank's debugger. Each message is one line of JSON."""

    reading: IO[bytes]
    writing: IO[bytes]
    close: Callable[[], None]

    def send(self, **message: Any) -> None:
        """Sends one message. Raises OSError: the connection is closed."""
        self.writing.write(json.dumps(message).encode() + b"\n")
        self.writing.flush()

    def receive(self) -> dict[str, Any] | None:
        """Waits for the next message and returns it; None: the connection is closed, or the line is not JSON.

        Raises RunError: a connection over the network was lost, or somebody on its way has changed messages.
        """
        try:
            line = self.reading.readline()
        except ChannelError as error:
            raise connection_lost(error) from None
        except OSError:
            return None
        try:
            return dict(json.loads(line)) if line else None
        except ValueError:
            return None


def over_socket(connection: socket.socket) -> DebuggerConnection:
    """Returns a connection to a debugger over a socket. Its `close` closes the socket."""
    file = connection.makefile("rwb")

    def close() -> None:
        with contextlib.suppress(OSError):
            file.close()
        connection.close()

    return DebuggerConnection(file, file, close)  # type: ignore[arg-type]


def over_channel(channel: Channel) -> DebuggerConnection:
    """Returns a connection to a debugger over the network. Its `close` closes the channel."""
    file = _ChannelFile(channel)
    return DebuggerConnection(io.BufferedReader(file), file, channel.close)  # type: ignore[arg-type]


class _ChannelFile(io.RawIOBase):
    def __init__(self, channel: Channel) -> None:
        self._channel, self._read, self._ended = channel, b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._read and not self._ended:
            for message in exchange(self._channel, {})[0]:
                self._read += data_of(message)
                self._ended = self._ended or "end" in message
        part, self._read = self._read[: len(buffer)], self._read[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def write(self, data: Any) -> int:
        self._channel.send(data_message(bytes(data)))
        while self._channel.unsent:
            exchange(self._channel, {}, reads=False)
        return len(data)


def connection_lost(error: ChannelError) -> RunError:
    """Returns the error for a connection over the network that ended before what it was connected to."""
    return RunError(f"the connection to the rank's node was lost: {error}; the run goes on, attach again")


def over_process(command: Sequence[str], environment: Mapping[str, str]) -> DebuggerConnection:
    """Starts a command (srun) with this environment, and returns a connection to a debugger over its stdin and stdout.

    The stderr of the command goes to the terminal.

    Raises RunError: the command is not on this machine's PATH.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for the prompt
        )  # fmt: skip
    except NOT_ON_PATH:
        raise not_on_path(command) from None
    reading, writing = process.stdout, process.stdin
    assert reading is not None and writing is not None

    def close() -> None:
        with contextlib.suppress(OSError):
            writing.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0 sends no signal
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT)
                break
        reading.close()

    return DebuggerConnection(reading, writing, close)


def not_on_path(command: Sequence[str]) -> RunError:
    """Returns the error for a job step's command that is not on this machine's PATH."""
    return RunError(f"{command[0]} is not on this machine's PATH: attach from a login node of the cluster")


def over_network(plan: JobPlan, attempt: Attempt, host: str, rank: int, members: int, **details: Any) -> Channel:
    """Has the rank's agent start `node_session serve`, and returns an authenticated connection to it.

    members: number of agents of the attempt. Each gets a file for its reply, as any may be the agent of the rank.
    details: what `node_session serve` must do: `mode=shell` with `term` (the terminal's type), or `mode=debug` with
        `socket` (path of the debugger's socket).
    Raises RunError: the agent does not reply, or its node cannot be reached from here.
    """
    secret = secrets.token_hex(32)
    request = {**details, "ports": list(plan.cluster.port_range)}
    folder = requests.send(
        attempt, requests.SERVE, members, {SECRET: secret, SERVED: "", "question": json.dumps(request)}, rank=rank
    )
    served = wait_until(lambda: requests.read_reply(folder / SERVED))
    if served is None:
        raise RunError(f"the agent of rank {rank} on {host} does not answer within {REPLY_TIMEOUT:g} s")
    names, problems = list(dict.fromkeys([host + plan.cluster.host_suffix, host, served["host"]])), []
    for name in names:
        found = find_leader(name, [served["port"]], secret.encode(), time.monotonic() + CONNECT_TIMEOUT)
        if isinstance(found, Channel):
            found.send(HELLO)
            return found
        problems.append(f"{name}: {found or f'no answer within {CONNECT_TIMEOUT:g} s'}")
    raise RunError(
        f"port {served['port']} of {host} cannot be reached from here ({'; '.join(problems)}): where you may log in to "
        f"the node (ssh {host}), give the same command there"
    )


def wait_until(poll: Callable[[], Any], timeout: float = REPLY_TIMEOUT) -> Any:
    """Calls `poll` until it returns something other than None, and returns that; None after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (found := poll()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return found

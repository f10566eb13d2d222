"""Starts the tasks of a Grid Engine job: as processes on the first node, with `qrsh -inherit` on the others.

qrsh forwards output, exit status and standard input. Stop signals and secrets are sent through standard input to the
program `node`; the rest of the environment, of any size, is in a file of the tasks' folder. Each node gets one qrsh,
because a node with one slot accepts no second one.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher import bounds, errors, redaction
from launcher.environment import secrets
from launcher.failures import text
from launcher.failures.codes import FaultCode
from launcher.runs import event_file
from launcher.runs.event_writer import current_attempt
from launcher.runs.events import Fault
from launcher.schedulers import tasks as spawn
from launcher.schedulers.sge import node
from launcher.schedulers.sge.client import find, hosts_of

UNREACHABLE = 10.0  # seconds after SIGKILL was requested in which the program on the node ends its tasks and itself


def line_of(request: str, hidden: Mapping[str, str], tasks: Sequence[Mapping[str, str]], started: str) -> bytes:
    """Returns the first line for the program `node`; raises ConfigError if the secrets are too large."""
    line = node.encode({"request": request, "secrets": hidden, "tasks": tasks, "started": started})
    if len(line) > bounds.QRSH_LINE_BYTES:
        largest = sorted(hidden, key=lambda name: len(hidden[name]), reverse=True)[:3]
        raise errors.ConfigError(
            f"the secret variables of the job are too large for qrsh ({len(line)} bytes when compressed, and at most "
            f"{bounds.QRSH_LINE_BYTES}): unset those that are not needed, or exclude them from env.secrets; the "
            f"largest are {', '.join(largest)}"
        )
    return line


class NodeTasks:
    """The tasks of one node, started by one program `node`: a process here, or a qrsh to another node.

    command: argv that starts the program `node` there.
    line: the line of `line_of`.
    started: path of the file to which the program writes when it has read the request.
    """

    def __init__(self, host: str, command: Sequence[str], line: bytes, started: Path) -> None:
        self._host, self._started = host, started
        self._code: int | None = None
        self._killed: float | None = None
        started.touch()
        # In its own session: it does not get the job's signals, and `terminate` and `kill` forward them.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._write(line)

    def poll(self) -> int | None:
        if self._code is None and (code := self._process.poll()) is not None:
            self._code = code
            if code and self._has_started() is False:
                self._report(code)
        return self._code

    def terminate(self) -> None:
        self._write(b"TERM\n")

    def kill(self) -> None:
        if self._killed is None:
            self._killed = time.monotonic()
            self._write(b"KILL\n")
        # A program that has started reads KILL itself; qrsh may never notice that its node is gone.
        if not self._has_started() or time.monotonic() > self._killed + UNREACHABLE:
            self._process.kill()

    def _has_started(self) -> bool | None:
        try:
            return bool(self._started.read_bytes())
        except OSError:
            return None

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:  # it has ended
            pass

    def _report(self, code: int) -> None:
        error = f"qrsh -inherit ended with exit code {code}"
        fault = Fault(code=FaultCode.TASK_NOT_STARTED, host=self._host, error=error)
        print(f"launcher: {text.of_fault(fault)}", file=sys.stderr, flush=True)
        if attempt := current_attempt():
            event_file.append(attempt.events_file("qrsh"), fault)


def run(request: spawn.TaskRequest) -> int:
    """Starts the tasks on the first hosts of the job, and waits until all of them have ended.

    Returns the exit status of the first node with a failed task, else 0; NO_RETRY if qrsh is missing or the job has too
        few hosts.
    """
    signal.signal(signal.SIGUSR2, lambda *_: request.signals.append(signal.SIGTERM))  # sent before SIGKILL (-notify)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # sent before a suspension
    path = os.environ.get("PE_HOSTFILE")
    hosts = hosts_of(Path(path).read_text()) if path else [socket.gethostname()]
    if len(hosts) < request.nodes:
        print(
            f"launcher: the job is on {', '.join(hosts)}, and {request.nodes} different hosts are needed: has the "
            "parallel environment the allocation_rule that gives each node its slots?", file=sys.stderr,
        )  # fmt: skip
        return errors.NO_RETRY
    hosts, qrsh = hosts[: request.nodes], find("qrsh")
    if qrsh is None and len(hosts) > 1:
        print("launcher: qrsh is not on PATH: add the folder of Grid Engine's commands to it", file=sys.stderr)
        return errors.NO_RETRY
    os.umask(0o077)
    request.folder.mkdir()
    places = spawn.environments(hosts, request.tasks_per_node)
    shared = dict(places[0].items() & places[-1].items())
    patterns = os.environ.get(secrets.PATTERNS, ",".join(redaction.SECRETS)).split(",")
    common = request.folder / "request"
    common.write_bytes(node.encode({
        "environment": {**redaction.without_secrets(os.environ, patterns), **shared}, "cwd": os.getcwd(),
        "command": list(request.command), "grace": request.grace, "keep_going": request.keep_going,
    }))  # fmt: skip
    starts = [sys.executable, node.__file__]
    tasks: list[NodeTasks] = []
    for number, host in enumerate(hosts):
        mine = places[number * request.tasks_per_node : (number + 1) * request.tasks_per_node]
        command = starts if number == 0 else [str(qrsh), "-inherit", host, shlex.join(starts)]
        own = [{name: value for name, value in each.items() if name not in shared} for each in mine]
        started = request.folder / f"{number}.started"
        line = line_of(str(common), redaction.secrets_in(os.environ, patterns), own, str(started))
        tasks.append(NodeTasks(host, command, line, started))
    try:
        return spawn.watch(tasks, request.signals, request.grace, pause=0.1, keep_going=request.keep_going)
    finally:
        common.unlink(missing_ok=True)

"""Starts the tasks of a Grid Engine job: one program for each node, here and by `qrsh -inherit`; and is that program.

qrsh forwards output, exit status and standard input, which has stop signals and secrets; the rest of the environment,
of any size, is in a file. A node with one slot accepts no second qrsh. The program is run by its path and imports only
the standard library, because the launcher's location is known only from the environment in the request:

    python qrsh.py        reads a line of base64 of zlib of JSON (see `encode`), then lines TERM and KILL

| of the first line | |
|---|---|
| `request` | path of a file with a line of the same kind: `environment` of the job script without its secrets, `cwd`, |
| | `command` (argv of each task), `grace` in seconds, `keep_going` (whether others continue when a task fails) |
| `secrets` | the secret variables of the environment |
| `tasks` | additional variables of each task |
| `started` | path of a file to which this program writes when it has read the request |

It exits with the status of the first failed task, 128 + N after a signal N: Grid Engine deletes the whole job when a
process that qrsh started is killed by a signal.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.schedulers import tasks

# -- The program of a node. It starts the tasks there, and waits for them


POLL = 0.05  # seconds between two polls of the tasks
APPEARS = 60.0  # seconds in which the file of the request must become readable
# Variables of the node, which take precedence over those of the job's shell.
OF_NODE = re.compile(
    r"HOSTNAME|TMPDIR|TMP|CUDA_DEVICE_ORDER|ZE_AFFINITY_MASK|\w+_VISIBLE_DEVICES|JOB_ID|SGE_(TASK|HGR|JOB_SPOOL)\w*"
)
RESUME, NO_RETRY, NO_REQUEST = 75, 93, 1
NOTIFIED = 128 + signal.SIGUSR2  # Grid Engine's stop request has ended the shell that was to start the program


def encode(values: Mapping[str, Any]) -> bytes:
    return base64.b64encode(zlib.compress(json.dumps(values).encode(errors="surrogateescape"), 9)) + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    return dict(json.loads(zlib.decompress(base64.b64decode(line)).decode(errors="surrogateescape")))


def read(path: str) -> dict[str, Any]:
    """Reads the file of a request, which a file server may show late."""
    give_up = time.monotonic() + APPEARS
    while True:
        try:
            with open(path, "rb") as file:
                return decode(file.read())
        except OSError:
            if time.monotonic() > give_up:
                raise
        time.sleep(0.5)


def environment(shell: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Returns the tasks' environment: the job script's (`shell`), with this node's variables from `here`."""
    ours = {name: value for name, value in here.items() if OF_NODE.fullmatch(name)}
    return {**{name: value for name, value in shell.items() if not OF_NODE.fullmatch(name) or name not in ours}, **ours}


class Input:
    # Reads lines of standard input without a thread, which would block the exit of this process

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor, self._unread = descriptor, b""
        self.closed = False

    def line(self, wait: float | None) -> bytes:
        """Returns the next line; empty: none came in `wait` seconds (None: no limit), or the input has ended."""
        while b"\n" not in self._unread:
            if self.closed:
                time.sleep(wait or 0)
                return b""
            if not select.select([self._descriptor], [], [], wait)[0]:
                return b""
            data = os.read(self._descriptor, 1 << 16)
            self.closed = not data
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the process that started this one requests the end of the tasks
    requests = Input()
    if not (line := requests.line(None)):
        return NO_REQUEST
    given = decode(line)
    todo = read(given["request"])
    os.umask(0o077)
    with open(given["started"], "ab") as file:
        file.write(b"started\n")
    environ = environment({**todo["environment"], **given["secrets"]}, os.environ)
    try:
        os.chdir(todo["cwd"])
    except OSError:
        if "LAUNCHER_RUN_DIR" not in environ:  # with it, the agent reports the missing folder
            print(
                f"launcher: the folder of the run is not there on {socket.gethostname()}: start it in one that all "
                "nodes share", file=sys.stderr,
            )  # fmt: skip
            return NO_RETRY
        os.chdir("/")
    tasks = [
        subprocess.Popen(
            todo["command"], env={**environ, **place}, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=_default_signals,
        )
        for place in given["tasks"]
    ]  # fmt: skip
    return watch(tasks, requests, float(todo["grace"]), keep_going=bool(todo["keep_going"]))


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def watch(tasks: list[subprocess.Popen[bytes]], requests: Input, grace: float, *, keep_going: bool) -> int:
    """Waits until all tasks have ended; returns the exit status of the first failed one, else 0.

    | event | the tasks that still run get |
    |---|---|
    | a line of `requests`, or their end | SIGTERM, and SIGKILL after `grace` seconds |
    | a task exits with RESUME | the same |
    | a task fails in any other way | the same, unless `keep_going` |
    | a line KILL | SIGKILL at once |
    """
    first, kill_at, killed = 0, None, False
    while True:
        codes = [task.poll() for task in tasks]
        first = first or next((code for code in codes if code), 0)
        if None not in codes:
            return first if first >= 0 else 128 - first
        left = [task for task, code in zip(tasks, codes, strict=True) if code is None]
        word = requests.line(POLL)
        if kill_at is None and (word or requests.closed or (first and not keep_going) or RESUME in codes):
            kill_at = time.monotonic() + grace
            _send(left, signal.SIGTERM)
        if not killed and (word == b"KILL" or (kill_at is not None and time.monotonic() > kill_at)):
            killed = True
            _send(left, signal.SIGKILL)


def _send(tasks: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for task in tasks:
        task.send_signal(number)


# -- Starts that program on each node of the job


UNREACHABLE = 10.0  # seconds after SIGKILL was requested in which the program on the node ends its tasks and itself


def line_of(request: str, hidden: Mapping[str, str], tasks: Sequence[Mapping[str, str]], started: str) -> bytes:
    """Returns the first line for the program `node`; raises ConfigError if the secrets are too large."""
    from launcher import errors, io_bounds

    line = encode({"request": request, "secrets": hidden, "tasks": tasks, "started": started})
    if len(line) > io_bounds.QRSH_LINE_BYTES:
        largest = sorted(hidden, key=lambda name: len(hidden[name]), reverse=True)[:3]
        raise errors.ConfigError(
            f"the secret variables of the job are too large for qrsh ({len(line)} bytes when compressed, and at most "
            f"{io_bounds.QRSH_LINE_BYTES}): unset those that are not needed, or exclude them from env.secrets; the "
            f"largest are {', '.join(largest)}"
        )
    return line


class NodeTasks:
    """The tasks of one node, started by the program of this file: a process here, or a qrsh to another node."""

    def __init__(
        self, host: str, command: Sequence[str], line: bytes, started: Path, forked: Callable[[], None] | None = None
    ) -> None:
        # forked: is called in the new process before it becomes the command
        self._host, self._started = host, started
        self._code: int | None = None
        self._killed: float | None = None
        started.touch()
        # In its own session: it does not get the job's signals, and `terminate` and `kill` forward them.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, preexec_fn=forked)
        self._write(line)

    def poll(self) -> int | None:
        if self._code is None and (code := self._process.poll()) is not None:
            self._code = code
            if code and self._has_started() is False:
                if code == NOTIFIED:
                    self._code = RESUME
                else:
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
        from launcher.failures.codes import FaultCode
        from launcher.runs.events import Fault
        from launcher.schedulers import tasks

        error = f"qrsh -inherit ended with exit code {code}"
        tasks.report(Fault(code=FaultCode.TASK_NOT_STARTED, host=self._host, error=error), "qrsh")


def run(request: tasks.TaskRequest) -> int:
    """Starts the tasks on the first hosts; returns the first failed status, NO_RETRY without qrsh or hosts, else 0."""
    from launcher import processes, redaction
    from launcher.environment import secrets
    from launcher.schedulers import tasks
    from launcher.schedulers.sge.client import find, hosts_of

    signal.signal(signal.SIGUSR2, lambda *_: request.signals.append(signal.SIGTERM))  # sent before SIGKILL (-notify)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # sent before a suspension
    path = os.environ.get("PE_HOSTFILE")
    hosts = hosts_of(Path(path).read_text()) if path else [socket.gethostname()]
    if len(hosts) < request.nodes:
        print(
            f"launcher: the job is on {', '.join(hosts)}, and {request.nodes} different hosts are needed: has the "
            "parallel environment the allocation_rule that gives each node its slots?", file=sys.stderr,
        )  # fmt: skip
        return NO_RETRY
    hosts, qrsh = hosts[: request.nodes], find("qrsh")
    if qrsh is None and len(hosts) > 1:
        print("launcher: qrsh is not on PATH: add the folder of Grid Engine's commands to it", file=sys.stderr)
        return NO_RETRY
    processes.raise_limit()  # a pipe for each node
    os.umask(0o077)
    request.folder.mkdir()
    places = tasks.environments(hosts, request.tasks_per_node)
    shared = dict(places[0].items() & places[-1].items())
    patterns = os.environ.get(secrets.PATTERNS, ",".join(redaction.SECRETS)).split(",")
    common = request.folder / "request"
    common.write_bytes(encode({
        "environment": {**redaction.without_secrets(os.environ, patterns), **shared}, "cwd": os.getcwd(),
        "command": list(request.command), "grace": request.grace, "keep_going": request.keep_going,
    }))  # fmt: skip
    starts = [sys.executable, __file__]
    nodes: list[NodeTasks] = []
    for number, host in enumerate(hosts):
        mine = places[number * request.tasks_per_node : (number + 1) * request.tasks_per_node]
        command = starts if number == 0 else [str(qrsh), "-inherit", host, shlex.join(starts)]
        own = [{name: value for name, value in each.items() if name not in shared} for each in mine]
        started = request.folder / f"{number}.started"
        line = line_of(str(common), redaction.secrets_in(os.environ, patterns), own, str(started))
        nodes.append(NodeTasks(host, command, line, started, processes.restore_limit))
    try:
        return tasks.watch(
            nodes, request.signals, request.grace, pause=0.1, keep_going=request.keep_going,
            lost=lambda: _on_lost_nodes(hosts),
        )  # fmt: skip
    finally:
        common.unlink(missing_ok=True)


def _on_lost_nodes(hosts: Sequence[str]) -> list[int]:
    from launcher.schedulers.base import QueryError
    from launcher.schedulers.sge.client import SGE

    try:
        down = {each.host for each in SGE().instances() if "u" in each.state}
    except QueryError:  # this node need not be one that may ask
        return []
    return [number for number, host in enumerate(hosts) if host in down]


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, where a module could hide one of the standard library
    sys.exit(main())

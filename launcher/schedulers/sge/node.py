"""What qrsh starts on a node of the job: the tasks of that node, with the environment that comes by standard input.

    python node.py        reads one line: base64 of zlib of JSON (see `Order`), then TERM or KILL as often as need be

It ends when its tasks have, with the exit status of the one that failed first. Standard input that is closed is the
end of whoever started it: the tasks get SIGTERM, and SIGKILL after the order's grace. It never dies by a signal of a
task's: Grid Engine deletes the whole job when a task that qrsh started does.

Run by its path, it needs nothing but the standard library: where the launcher is, only the order tells.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

LOOK = 0.05  # seconds between two looks at the tasks
# What the node tells its tasks by itself, whatever the shell of the job has.
OF_NODE = re.compile(
    r"HOSTNAME|TMPDIR|TMP|CUDA_DEVICE_ORDER|ZE_AFFINITY_MASK|\w+_VISIBLE_DEVICES|JOB_ID|SGE_(TASK|HGR|JOB_SPOOL)\w*"
)
NO_RETRY, NO_ORDER = 93, 1


def order(values: Mapping[str, Any]) -> bytes:
    """The line that tells what to do: `environment`, `cwd`, `command`, `tasks` (variables of each), `grace` in seconds,
    `keep_going`, `started` (a file that is written to when it is read). Pure."""
    return base64.b64encode(zlib.compress(json.dumps(values).encode(errors="surrogateescape"), 9)) + b"\n"


def read(line: bytes) -> dict[str, Any]:
    """The inverse of `order`. Pure."""
    return dict(json.loads(zlib.decompress(base64.b64decode(line)).decode(errors="surrogateescape")))


def environment(told: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """The environment of tasks: that of the job's shell, and of this node what is its own. Pure."""
    ours = {name: value for name, value in here.items() if OF_NODE.fullmatch(name)}
    return {**{name: value for name, value in told.items() if not OF_NODE.fullmatch(name) or name not in ours}, **ours}


class Orders:
    """Lines of standard input, as they come. No thread reads them: one would block the end of this process."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor, self._unread = descriptor, b""
        self.closed = False

    def lines(self, wait: float | None) -> list[bytes]:
        """What has come, waiting for this long at most; None: until something comes."""
        if not self.closed and select.select([self._descriptor], [], [], wait)[0]:
            data = os.read(self._descriptor, 1 << 16)
            self.closed = not data
            self._unread += data
        elif self.closed and wait:
            time.sleep(wait)
        *lines, self._unread = self._unread.split(b"\n")
        return lines

    def first(self) -> bytes:
        """The first line, of which all is there; empty: it never comes."""
        while not self.closed:
            if lines := self.lines(None):
                self._unread = b"".join(line + b"\n" for line in lines[1:]) + self._unread
                return lines[0]
        return b""


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the tasks are ended by whoever started this
    orders = Orders()
    if not (line := orders.first()):
        return NO_ORDER
    todo = read(line)
    os.umask(0o077)
    with open(todo["started"], "ab") as file:
        file.write(b"started\n")
    environ = environment(todo["environment"], os.environ)
    try:
        os.chdir(todo["cwd"])
    except OSError:
        if "LAUNCHER_RUN_DIR" not in environ:  # an agent says itself that it is not there
            print(
                f"launcher: the folder of the run is not there on {socket.gethostname()}: start it in one that all "
                "nodes share", file=sys.stderr,
            )  # fmt: skip
            return NO_RETRY
        os.chdir("/")
    tasks = [
        subprocess.Popen(
            todo["command"], env={**environ, **place}, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=_as_usual,
        )
        for place in todo["tasks"]
    ]  # fmt: skip
    return watch(tasks, orders, float(todo["grace"]), keep_going=bool(todo["keep_going"]))


def _as_usual() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def watch(tasks: list[subprocess.Popen[bytes]], orders: Orders, grace: float, *, keep_going: bool) -> int:
    """Stays until all tasks have ended; the exit status of the first that failed, else 0."""
    first, kill_at, killed = 0, None, False
    while True:
        codes = [task.poll() for task in tasks]
        first = first or next((code for code in codes if code), 0)
        if None not in codes:
            return first if first >= 0 else 128 - first
        left = [task for task, code in zip(tasks, codes, strict=True) if code is None]
        words = orders.lines(LOOK)
        if kill_at is None and (words or orders.closed or (first and not keep_going)):
            kill_at = time.monotonic() + grace
            _send(left, signal.SIGTERM)
        if not killed and (b"KILL" in words or (kill_at is not None and time.monotonic() > kill_at)):
            killed = True
            _send(left, signal.SIGKILL)


def _send(tasks: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for task in tasks:
        task.send_signal(number)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are not those of the standard library
    sys.exit(main())

"""Starts daemons, finds processes, and ends them by pid and start time, never by name.

The kernel reuses pids, so a recorded pid may be another process by now. `Proc` also has the start time: a stale record
never gets another process killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Children of this process by pid. They must be reaped, or they stay zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Proc:
    """A process, identified by its pid and its start time in clock ticks since boot."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> Proc | None:
        """Returns the process that has this pid now; None: there is none, or it is a zombie."""
        stat = _stat(pid)
        return None if not stat or stat[0] in "ZX" else Proc(pid, int(stat[19]))

    def alive(self) -> bool:
        """Returns whether this process still runs; false if another process has its pid now."""
        if self.pid in _children and _children[self.pid].poll() is not None:
            del _children[self.pid]
        return Proc.of(self.pid) == self

    def send(self, signum: int) -> None:
        """Sends a signal to the process, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def environment(self) -> set[str]:
        """Returns the variables that the process was started with, as `NAME=value`.

        Empty: the process has ended, or it has overwritten them with its title.
        """
        try:
            return set(Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="replace").split("\0"))
        except OSError:
            return set()

    def open_files(self) -> set[str]:
        """Returns the paths of the files that the process has open."""
        paths = set()
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    paths.add(str(descriptor.readlink()))
        return paths


def running() -> Iterator[Proc]:
    """Yields all processes of this host, without zombies."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (proc := Proc.of(int(entry.name))):
            yield proc


def descendants(roots: Iterable[Proc]) -> list[Proc]:
    """Returns the given processes that still run, and all their descendants, parents first."""
    children: dict[int, list[Proc]] = {}
    for proc in running():
        if stat := _stat(proc.pid):
            children.setdefault(int(stat[1]), []).append(proc)
    family = [root for root in dict.fromkeys(roots) if root.alive()]
    for proc in family:  # grows while we walk it
        family += [child for child in children.get(proc.pid, []) if child not in family]
    return family


def end(procs: Iterable[Proc], *, timeout_s: float = 3.0) -> None:
    """Ends processes with SIGTERM, and those that still run after `timeout_s` seconds with SIGKILL.

    Waits until they have ended, for at most five seconds after SIGKILL. With timeout_s=0 it sends SIGKILL at once.
    """
    left = list(procs)
    steps = [(signal.SIGTERM, timeout_s)] if timeout_s else []
    for signum, wait_s in [*steps, (signal.SIGKILL, 5.0)]:
        for proc in left:
            proc.send(signum)
        wait_until(lambda: not any(proc.alive() for proc in left), timeout_s=wait_s, every_s=0.02)


def wait_until(ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Polls a condition every `every_s` seconds. Returns whether it became true within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


class DaemonSet:
    """The daemons of a test cluster, by name.

    In the cluster's folder, pids/NAME has the pid and start time of each daemon, and logs/ has their logs and outputs.
    """

    def __init__(self, folder: Path) -> None:
        self.pids = folder / "pids"
        self.logs = folder / "logs"

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Starts a daemon in its own session, so that it outlives this process and its terminal.

        Args:
            name: the daemon's name.
            argv: its command.
            env: its whole environment.
        """
        self.pids.mkdir(exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        with (self.logs / f"{name}.out").open("ab") as out:
            child = subprocess.Popen(
                argv, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        _children[child.pid] = child
        proc = Proc.of(child.pid) or Proc(child.pid, 0)  # start time 0: it has ended already, and never counts as alive
        (self.pids / name).write_text(f"{proc.pid} {proc.started}\n")

    def get(self, name: str) -> Proc | None:
        """Returns the daemon of this name; None: it was not started, or does not run any more."""
        try:
            pid, started = (self.pids / name).read_text().split()
        except (OSError, ValueError):
            return None
        proc = Proc(int(pid), int(started))
        return proc if proc.alive() else None

    def dead(self) -> list[str]:
        """Returns the names of daemons that have ended although they were not stopped."""
        return [path.name for path in sorted(self.pids.glob("*")) if self.get(path.name) is None]

    def stop(self, *names: str, timeout_s: float = 3.0) -> None:
        """Ends these daemons and all their descendants at the same time, and waits for their ends.

        Args:
            names: the daemons' names.
            timeout_s: seconds between SIGTERM and SIGKILL.
        """
        end(descendants(proc for name in names if (proc := self.get(name))), timeout_s=timeout_s)
        for name in names:
            (self.pids / name).unlink(missing_ok=True)

    def tails(self, lines: int = 25) -> str:
        """Returns the last lines of each daemon's log, for an error message; if it has no log, of its output."""
        parts = []
        for path in sorted(self.logs.glob("*")):
            if path.suffix == ".out" and path.with_suffix(".log").exists():
                continue
            if text := path.read_text(errors="replace").splitlines()[-lines:]:
                parts += [f"--- {path.name}", *text]
        return "\n".join(parts) or "(no daemon wrote a log)"


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; empty: the process has ended.

    Field 0 is the state, 1 the parent's pid, 19 the start time (proc(5)).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

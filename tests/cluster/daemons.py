"""Start, find and end processes by recorded identity, never by name.

A pid alone names nobody: the kernel hands it out again. `Proc` is a pid with its start time, so that a stale record can
never make us signal a stranger.
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

# Handles of this very process's children: they must be reaped, or they stay behind as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Proc:
    """A process: its pid and the clock tick at which it started."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> Proc | None:
        """The process that has this pid now; None when nobody has it, or only a zombie."""
        stat = _stat(pid)
        return None if not stat or stat[0] in "ZX" else Proc(pid, int(stat[19]))

    def alive(self) -> bool:
        """Whether this process, and not a later one with its pid, still runs."""
        if self.pid in _children and _children[self.pid].poll() is not None:
            del _children[self.pid]
        return Proc.of(self.pid) == self

    def send(self, signum: int) -> None:
        """Send a signal, if the process is still there."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def environment(self) -> set[str]:
        """The `NAME=value` settings it was started with; empty when it is gone or wrote its title over them."""
        try:
            return set(Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="replace").split("\0"))
        except OSError:
            return set()

    def open_files(self) -> set[str]:
        """The paths it holds open."""
        paths = set()
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    paths.add(str(descriptor.readlink()))
        return paths


def running() -> Iterator[Proc]:
    """Every process of this host."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (proc := Proc.of(int(entry.name))):
            yield proc


def descendants(roots: Iterable[Proc]) -> list[Proc]:
    """The given processes and all that descend from them, parents first."""
    children: dict[int, list[Proc]] = {}
    for proc in running():
        if stat := _stat(proc.pid):
            children.setdefault(int(stat[1]), []).append(proc)
    family = [root for root in dict.fromkeys(roots) if root.alive()]
    for proc in family:  # grows while we walk it
        family += [child for child in children.get(proc.pid, []) if child not in family]
    return family


def end(procs: Iterable[Proc], *, timeout_s: float = 3.0) -> None:
    """SIGTERM, wait, SIGKILL what is left, wait. With timeout_s=0 SIGKILL at once."""
    left = list(procs)
    steps = [(signal.SIGTERM, timeout_s)] if timeout_s else []
    for signum, wait_s in [*steps, (signal.SIGKILL, 5.0)]:
        for proc in left:
            proc.send(signum)
        wait_until(lambda: not any(proc.alive() for proc in left), timeout_s=wait_s, every_s=0.02)


def wait_until(ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Poll `ready`; whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


class DaemonSet:
    """The daemons of one folder: `pids/NAME` records each of them, `logs/` is what they said."""

    def __init__(self, folder: Path) -> None:
        self.pids = folder / "pids"
        self.logs = folder / "logs"

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a daemon in a session of its own, so that it outlives us and our terminal."""
        self.pids.mkdir(exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        with (self.logs / f"{name}.out").open("ab") as out:
            child = subprocess.Popen(
                argv, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        _children[child.pid] = child
        proc = Proc.of(child.pid) or Proc(child.pid, 0)  # 0: it is gone already, and never counts as alive
        (self.pids / name).write_text(f"{proc.pid} {proc.started}\n")

    def get(self, name: str) -> Proc | None:
        """The daemon of that name as recorded, if it still runs."""
        try:
            pid, started = (self.pids / name).read_text().split()
        except (OSError, ValueError):
            return None
        proc = Proc(int(pid), int(started))
        return proc if proc.alive() else None

    def dead(self) -> list[str]:
        """Names of the daemons that were started, not stopped, and run no more."""
        return [path.name for path in sorted(self.pids.glob("*")) if self.get(path.name) is None]

    def stop(self, *names: str, timeout_s: float = 3.0) -> None:
        """End these daemons and their children, together, and wait for them."""
        end(descendants(proc for name in names if (proc := self.get(name))), timeout_s=timeout_s)
        for name in names:
            (self.pids / name).unlink(missing_ok=True)

    def tails(self, lines: int = 25) -> str:
        """The last lines of every log, for an error message; of what a daemon printed only when it has no log."""
        parts = []
        for path in sorted(self.logs.glob("*")):
            if path.suffix == ".out" and path.with_suffix(".log").exists():
                continue
            if text := path.read_text(errors="replace").splitlines()[-lines:]:
                parts += [f"--- {path.name}", *text]
        return "\n".join(parts) or "(no daemon wrote a log)"


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on (state, ppid, ...; the start time is 19 fields later); empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

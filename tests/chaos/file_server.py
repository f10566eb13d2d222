"""Simulates a file server that fails or hangs for a while, for the processes of a run's jobs: agents and ranks.

A test calls `weaken`, which writes RUN/chaos/weakness. Each process that has called `install` reads this file before it
opens, lists, renames or stats anything in the run directory; then the call fails or waits. An audit hook of the
interpreter sees all these calls but `stat`, which is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER, NAME, MET = "chaos", "weakness", "weakness-met"
HANGS = 0  # instead of an errno: calls wait until the weakness is over
_LISTS = ("os.scandir", "os.listdir")
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "os.link")
_stat, _lstat = os.stat, os.lstat


@dataclass(frozen=True)
class Weakness:
    """A failure of the file server: which calls fail, how, and for how long.

    Attributes:
        number: the errno with which reads fail; HANGS: reads and writes wait.
        seconds: how long the weakness lasts after it has first affected a call of any process.
        parts: only paths that contain one of these texts, after the run directory, are affected; empty: all paths.
        rank: only this rank is affected; None: any process.
        agent: only the agent with this pid and its ranks are affected; None: any process.
        call: only this call is affected, a name of a Python audit event or `stat`; None: all calls.
    """

    number: int
    seconds: float
    parts: Sequence[str] = ()
    rank: int | None = None
    agent: int | None = None
    call: str | None = None

    def strikes(self, call: str, path: str, *, reads: bool) -> bool:
        """Returns whether a call of this process is affected.

        Args:
            call: the name of the audit event, or `stat`.
            path: the path after the run directory.
            reads: whether the call only reads.
        """
        return (
            (reads or self.number == HANGS)
            and self.call in (None, call)
            and (not self.parts or any(part in path for part in self.parts))
            and (self.rank is None or os.environ.get("RANK") == str(self.rank))
            and (self.agent is None or self.agent in (os.getpid(), os.getppid()))
        )


def weaken(run_dir: Path, number: int, seconds: float, **where: Any) -> None:
    """Starts a weakness of a run's file server; it lasts from the first affected call on.

    Args:
        run_dir: the run directory.
        number, seconds, where: the fields of `Weakness`.
    """
    weakness = Weakness(number, seconds, **where)
    temporary = run_dir / FOLDER / f".{NAME}"
    temporary.write_text(json.dumps(asdict(weakness)))
    (run_dir / FOLDER / MET).unlink(missing_ok=True)
    temporary.replace(run_dir / FOLDER / NAME)


def recover(run_dir: Path) -> None:
    """Ends the weakness of a run's file server."""
    (run_dir / FOLDER / NAME).unlink(missing_ok=True)


def met(run_dir: Path) -> bool:
    """Returns whether the last weakness has affected a call of any process."""
    return (run_dir / FOLDER / MET).exists()


def install() -> None:
    """Makes weaknesses affect this process and the processes that it forks."""
    sys.addaudithook(_heard)
    os.stat, os.lstat = _asking(_stat), _asking(_lstat)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        _meet(event, arguments[0], reads=not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    elif event in _LISTS or event in _CHANGES:
        _meet(event, arguments[0], reads=event in _LISTS)


def _asking(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def ask(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        _meet("stat", path, reads=True)
        return real(path, *arguments, **options)

    return ask


def _meet(call: str, path: Any, *, reads: bool) -> None:
    """Fails or delays a call, if a weakness affects it.

    Args:
        call: the name of the audit event, or `stat`.
        path: the path of the call; only paths in the run directory are affected.
        reads: whether the call only reads.

    Raises:
        OSError: the weakness makes the call fail.
    """
    run_dir = os.environ.get("LAUNCHER_RUN_DIR")
    if not run_dir or not isinstance(path, str | bytes | os.PathLike):
        return
    text = os.fsdecode(path)
    if not text.startswith(run_dir) or text.startswith(f"{run_dir}/{FOLDER}"):
        return
    inside = text[len(run_dir) :]
    while (weakness := _now(f"{run_dir}/{FOLDER}/{NAME}")) and weakness.strikes(call, inside, reads=reads):
        if time.time() - _met_since(f"{run_dir}/{FOLDER}/{MET}") >= weakness.seconds:
            return
        if weakness.number != HANGS:
            raise OSError(weakness.number, os.strerror(weakness.number), text)
        time.sleep(0.05)


def _met_since(path: str) -> float:
    """Returns when the weakness affected its first call, in seconds since the epoch. If never before, this is now."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return _stat(path).st_mtime


def _now(path: str) -> Weakness | None:
    try:
        _stat(path)  # nearly always there is no such file
        with open(path) as file:
            return Weakness(**json.load(file))
    except (OSError, ValueError):
        return None

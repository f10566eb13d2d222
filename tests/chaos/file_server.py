"""A file server with moments of weakness, for the processes of a job: agents, ranks, and what the job script starts.

Whoever disturbs a run calls `weaken`, which writes RUN/chaos/weakness. Each process of the run's jobs that has called
`install` looks into it before it opens, lists, renames or asks for anything in the run directory, and then gets an
error, or waits. An audit hook of the interpreter sees all of these calls but `stat`, whoever makes them.
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
HANGS = 0  # instead of the number of an error: calls wait until it is over
_LISTS = ("os.scandir", "os.listdir")
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "os.link")
_stat, _lstat = os.stat, os.lstat


@dataclass(frozen=True)
class Weakness:
    """What goes wrong, where, and for how long.

    Attributes:
        number: errno that reads fail with; HANGS: reads and writes wait.
        seconds: for which it lasts, once it has struck any process.
        parts: of the paths that it is about, each of them behind the run directory; none: all.
        rank: number of the rank that it is about; None: any process.
        agent: process id of the agent that, with its ranks, it is about; None: any process.
        call: the only one that it is about, by its name among Python's audit events, or `stat`; None: all.
    """

    number: int
    seconds: float
    parts: Sequence[str] = ()
    rank: int | None = None
    agent: int | None = None
    call: str | None = None

    def strikes(self, call: str, path: str, *, reads: bool) -> bool:
        """Whether a call of this process on a path, given from the run directory on, is affected."""
        return (
            (reads or self.number == HANGS)
            and self.call in (None, call)
            and (not self.parts or any(part in path for part in self.parts))
            and (self.rank is None or os.environ.get("RANK") == str(self.rank))
            and (self.agent is None or self.agent in (os.getpid(), os.getppid()))
        )


def weaken(run_dir: Path, number: int, seconds: float, **where: Any) -> None:
    """From the next call that is affected on, for so many seconds; see `Weakness`."""
    weakness = Weakness(number, seconds, **where)
    temporary = run_dir / FOLDER / f".{NAME}"
    temporary.write_text(json.dumps(asdict(weakness)))
    (run_dir / FOLDER / MET).unlink(missing_ok=True)
    temporary.replace(run_dir / FOLDER / NAME)


def recover(run_dir: Path) -> None:
    """Nothing goes wrong any more."""
    (run_dir / FOLDER / NAME).unlink(missing_ok=True)


def met(run_dir: Path) -> bool:
    """Whether the last weakness has struck any process."""
    return (run_dir / FOLDER / MET).exists()


def install() -> None:
    """In this process, and in those that it forks."""
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
    """Does to a call what is to be done.

    Raises:
        OSError: it fails.
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
    """When the weakness struck first: now, if it has not before."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return _stat(path).st_mtime


def _now(path: str) -> Weakness | None:
    try:
        _stat(path)  # nearly always there is none
        with open(path) as file:
            return Weakness(**json.load(file))
    except (OSError, ValueError):
        return None

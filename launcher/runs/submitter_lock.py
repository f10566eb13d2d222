"""The lock of a run's or sweep's directory, which its submitter holds: nobody else submits it meanwhile."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.files import locks

SUBMITTING = ".submitting"  # lock file of the submitter in a folder
_LOCKED: set[Path] = set()  # folders whose lock this process has


@contextlib.contextmanager
def only_submitter(folder: Path) -> Iterator[None]:
    """Holds the submitter's lock of a run or sweep, so that no other process submits it meanwhile.

    sbatch or qsub inherits the lock (`command.run_submission`). If a submitter is killed, the next waits until that
    command has ended too, and then knows whether there is a job. On a file system without locks the job is still found
    by its token. The lock is reentrant within a process.
    """
    if folder in _LOCKED:
        yield
        return

    def waiting() -> None:
        print(f"launcher: waiting for another command that submits in {folder}", file=sys.stderr, flush=True)

    with locks.acquire(folder / SUBMITTING, inheritable=True, waiting=waiting):
        _LOCKED.add(folder)
        try:
            yield
        finally:
            _LOCKED.discard(folder)


def is_being_submitted(folder: Path) -> bool:
    """Whether a process has the submitter's lock of this folder."""
    return locks.is_locked(folder / SUBMITTING)

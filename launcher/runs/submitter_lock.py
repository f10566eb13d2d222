"""The submitter's lock of a run or sweep: only the process that holds it submits the run or sweep."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.files import locks

SUBMITTING = ".submitting"  # name of the lock file in the directory of a run or sweep
_LOCKED: set[Path] = set()  # directories of which this process holds the lock


@contextlib.contextmanager
def only_submitter(folder: Path) -> Iterator[None]:
    """Holds the submitter's lock of a run or sweep while the block runs; waits for it first. Reentrant in a process.

    sbatch or qsub inherits the lock (`command.run_submission`). So if a submitter is killed, the next one waits until
    sbatch has ended too, and then can tell whether there is a job. On a file system without locks nothing is locked; a
    job that was submitted before is still found by its token.
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
    """Returns whether any process holds the submitter's lock of this run or sweep directory."""
    return locks.is_locked(folder / SUBMITTING)

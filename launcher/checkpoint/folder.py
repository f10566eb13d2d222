"""The checkpoint folder: lists, publishes, quarantines and removes checkpoints; which of them are kept.

A lineage is all that one training has saved in all of its attempts: a checkpoint has the lineage id of the one that its
training had loaded. Since a training may go back, the checkpoint with the highest step need not be the newest: each has
a sequence number, higher by one than the highest in its folder before.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import CannotRead, CheckpointError, Damaged, Manifest, retry, unless_removed
from launcher.errors import TRANSIENT, UnavailableError
from launcher.files import safe_io
from launcher.runs import lease_and_locks
from launcher.runs.directory import RunError, require_private


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=lambda manifest: manifest.age, reverse=True)


def best_of(known: Iterable[Manifest], best: str | None, best_is: str = "max") -> Manifest | None:
    """Returns the newest checkpoint with the best finite value of a metric; None: there is none."""
    sign = 1 if best_is == "max" else -1
    rated = [
        (sign * value, each.age, each)
        for each in known
        if isinstance(value := each.metrics.get(best or ""), int | float) and math.isfinite(value)
    ]
    return max(rated, key=lambda entry: entry[:2])[2] if best is not None and rated else None


@dataclass(frozen=True)
class Retention:
    keep: int = 2  # number of the newest checkpoints to keep
    # name of a metric; the checkpoint with its best value is kept as well. None: no metric counts
    best: str | None = None
    best_is: str = "max"  # which value of the metric is the best: `max` or `min`

    def surplus(self, known: Mapping[Path, Manifest], published: Manifest) -> set[Path]:
        """Returns the checkpoints to remove after one was published: of its lineage, all but newest and best."""
        own = {path: manifest for path, manifest in known.items() if manifest.lineage == published.lineage}
        champion = best_of(own.values(), self.best, self.best_is)
        stay = [*newest_first(own.values())[: self.keep], published, *([champion] if champion else [])]
        steps = {manifest.step for manifest in stay}
        return {path for path, manifest in own.items() if manifest.step not in steps}


class CheckpointFolder:
    """A folder of checkpoints, as rank 0 of one attempt (from 0) uses it; works without torch."""

    def __init__(self, path: Path, attempt: int, stays: Retention, read_timeout: float) -> None:
        self.path, self.attempt, self._stays, self._timeout = path, attempt, stays, read_timeout
        self._lineage: str | None = None  # unknown until something is loaded or published
        self._sequence: int | None = None
        self._parent: int | None = None
        self._remover: threading.Thread | None = None

    def prepare(self) -> None:
        """Makes the folder, makes this run its user, and removes what killed saves have left.

        Raises CheckpointError (it cannot, another run saves there, or others can write to it) or CannotRead.
        """

        def make() -> None:
            safe_io.make_folder(self.path)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError("it cannot be written to")

        try:
            retry(make, self.path, self._timeout, only=TRANSIENT)
            self.require_private(self.path)
            took_over = retry(lambda: lease_and_locks.use_folder(self.path), self.path, self._timeout, only=TRANSIENT)
        except lease_and_locks.LeaseTaken as error:
            raise CheckpointError(
                f"checkpoint.dir={error}, and two runs would remove each other's checkpoints: set another "
                "checkpoint.dir, or cancel that run and resume this one"
            ) from None
        except UnavailableError as error:
            raise CannotRead(str(error)) from None
        except OSError as error:
            raise CheckpointError(
                f"checkpoint.dir={self.path}: checkpoints cannot be saved there ({error.strerror or error}): "
                "set it to a folder that you can write to and that all nodes share"
            ) from None
        there = checkpoints.entries(self.path, self._timeout)
        for path, step in checkpoints.leftovers(self.path, None if took_over else self.attempt).items():
            # If a save was killed between two renames, the replaced checkpoint is the only one of its step: restore it.
            if step is None or checkpoints.name_of(step) in there:
                shutil.rmtree(path, ignore_errors=True)
                continue
            with contextlib.suppress(OSError):  # the next attempt tries again
                path.rename(self.path / checkpoints.name_of(step))

    def require_private(self, path: Path) -> None:
        """Raises CheckpointError if others could have put files into it, Damaged if it has been removed."""

        def check() -> None:
            unless_removed(lambda: require_private(path), path) if path.parent == self.path else require_private(path)

        try:
            retry(check, path, self._timeout)
        except CheckpointError:
            raise
        except RunError as error:
            raise CheckpointError(str(error)) from None

    # -- listing

    def known(self) -> tuple[list[tuple[Path, Manifest]], dict[Path, str]]:
        """Returns the valid checkpoints, newest first, and what is wrong with others; CheckpointError, Misfit."""
        known, wrong = [], {}
        for path in checkpoints.candidates(self.path, self._timeout, missing_ok=False):
            self.require_private(self.path)
            try:
                self.require_private(path)
                known.append((path, checkpoints.read(path, self._timeout)))
            except Damaged as error:
                wrong[path] = str(error)
        if wrong:  # leave out what a training has removed meanwhile
            there = checkpoints.entries(self.path, self._timeout)
            wrong = {path: why for path, why in wrong.items() if path.name in there}
        known.sort(key=lambda each: each[1].age, reverse=True)
        self._sequence = max((manifest.sequence for _, manifest in known), default=0)
        return known, wrong

    def continue_from(self, manifest: Manifest) -> None:
        """Makes the checkpoints that are published after this call successors of a given one, in its lineage."""
        self._lineage, self._parent = manifest.lineage, manifest.step

    def quarantine(self, path: Path, why: Iterable[str], judged: Manifest | None = None) -> str:
        """Renames a checkpoint that cannot be used, so that nothing loads or removes it, if its manifest is still
        `judged`; returns what was done. why: lines about what is wrong with it."""
        aside = self.path / checkpoints.temporary(checkpoints.step_of(path.name) or 0, self.attempt, "aside")
        try:
            # As text, since a metric that is NaN is not equal to itself
            if judged is not None and checkpoints.read(path, self._timeout).text() != judged.text():
                return "another one has replaced it"
            path.rename(aside)
        except (OSError, CheckpointError) as error:  # for example, the folder is read-only
            return f"it could not be quarantined ({error})"
        with contextlib.suppress(OSError):
            (aside / checkpoints.WHY).write_text("".join(f"{line}\n" for line in why))
        return f"quarantined as {aside.name}"

    # -- publishing

    def describe(self, manifest: Manifest) -> Manifest:
        if self._sequence is None:  # nothing was loaded; unreadable checkpoints must not prevent a training from saving
            self._sequence = max((each.sequence for each in checkpoints.sound(self.path).values()), default=0)
        if self._lineage is None:
            self._lineage = os.urandom(8).hex()
        return replace(manifest, lineage=self._lineage, sequence=self._sequence + 1, parent=self._parent)

    def publish(self, temporary: Path, manifest: Manifest, fence: Callable[[], None]) -> Path:
        """Renames a complete checkpoint to its final name, and starts to remove old checkpoints in a thread.

        An existing checkpoint of this step is removed if it has the same lineage, else kept under another name.
        fence: called before each removal; raises if another attempt owns the run now.
        Raises OSError: it could not be renamed; an existing checkpoint of this step is unchanged.
        """
        path = self.path / checkpoints.name_of(manifest.step)
        old, ours = None, False
        if path.name in checkpoints.entries(self.path):
            self.wait()  # else the thread could remove what gets the name of a checkpoint that it is about to remove
            with contextlib.suppress(CheckpointError):
                ours = checkpoints.read(path).lineage == manifest.lineage
            old = self.path / checkpoints.temporary(manifest.step, self.attempt, "old" if ours else "aside")
            path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            if old is not None:
                old.rename(path)
            raise
        self._sequence, self._parent = manifest.sequence, manifest.step  # published, even if fsync fails
        fsync_folder(self.path)
        self.wait()  # for what the save before has left: not before this one, as a stop may leave little time
        arguments = manifest, old if ours else None, fence
        remover = threading.Thread(target=self._remove_surplus, args=arguments, name="checkpoint-retention")
        try:
            remover.start()
            self._remover = remover
        except RuntimeError:  # Python 3.12.0 and 3.12.1 start no thread once the main thread has ended
            self._remove_surplus(*arguments)
        return path

    def _remove_surplus(self, published: Manifest, old: Path | None, fence: Callable[[], None]) -> None:
        # Runs in a thread, since freeing many blocks takes the file system a while.
        # Checkpoints that cannot be read are neither counted nor removed. The next save repeats failed removals.
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(Exception):  # for example, another attempt owns the run: the next save reports that
            for path in self._stays.surplus(checkpoints.sound(self.path), published):
                fence()
                hidden = self.path / checkpoints.temporary(0, self.attempt, "gone")  # nobody finds half a checkpoint
                path.rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def wait(self) -> None:
        if self._remover is not None:
            self._remover.join()
            self._remover = None


def fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

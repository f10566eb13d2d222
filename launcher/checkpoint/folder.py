"""The folder of a run's checkpoints as rank 0 sees it: what is there, what is published, what goes. Without torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import reading, retention
from launcher.checkpoint.format import CheckpointError, Damaged, Manifest, Unavailable
from launcher.files import run_files
from launcher.files.shared_files import TRANSIENT
from launcher.runs.directory import RunError, require_private


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a lineage stay; see retention.py."""

    keep: int = 2
    best: str | None = None
    best_is: str = "max"


class Folder:
    """The folder, used by one rank of one attempt."""

    def __init__(self, path: Path, attempt: int, stays: Retention, read_timeout: float) -> None:
        self.path, self.attempt, self._stays, self._timeout = path, attempt, stays, read_timeout
        self._lineage: str | None = None  # unknown until something is loaded or published
        self._sequence: int | None = None
        self._parent: int | None = None
        self._remover: threading.Thread | None = None

    def prepare(self, *, remove_leftovers: bool = True) -> None:
        """Makes the folder, and removes what killed saves of this attempt and of earlier ones have left there.

        Args:
            remove_leftovers: False: leave them, for a save of this process may be under way.

        Raises:
            CheckpointError: it cannot be made or written to, or others can write to it.
            Unavailable: the file system gives an error that may pass.
        """

        def make() -> None:
            run_files.make_folder(self.path)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError("it cannot be written to")

        try:
            reading.retried(make, self.path, self._timeout, only=TRANSIENT)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint.dir={self.path}: checkpoints cannot be saved there ({error.strerror or error}): "
                "set it to a folder that you can write to and that all nodes share"
            ) from None
        self.require_private(self.path)
        if remove_leftovers:
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        there = reading.entries(self.path, self._timeout)
        for path in checkpoints.leftovers(self.path, self.attempt):
            # Killed between two renames: then the old one of this step is the only one.
            step = checkpoints.replaced_step(path.name)
            if step is None or checkpoints.name_of(step) in there:
                shutil.rmtree(path, ignore_errors=True)
                continue
            with contextlib.suppress(OSError):  # it stays as it is until the next attempt
                path.rename(self.path / checkpoints.name_of(step))

    def require_private(self, path: Path) -> None:
        """Refuses a folder in which somebody else could have put what is to be read.

        Raises:
            CheckpointError: it is somebody else's, or others can write to it.
            Unavailable: nobody can tell.
        """
        try:
            reading.retried(lambda: require_private(path), path, self._timeout)
        except CheckpointError:
            raise
        except RunError as error:
            raise CheckpointError(str(error)) from None

    # -- what is there

    def known(self) -> tuple[list[tuple[Path, Manifest]], dict[Path, str]]:
        """The checkpoints whose manifest is whole, last published first; and what is wrong with the others.

        Raises:
            Unavailable: one cannot be read, so that nobody knows which is the newest.
            Misfit: a newer launcher wrote one.
        """
        known, wrong = [], {}
        for path in checkpoints.candidates(self.path, self._timeout, missing_ok=False):
            self.require_private(self.path)
            self.require_private(path)
            try:
                known.append((path, checkpoints.read(path, self._timeout)))
            except Damaged as error:
                wrong[path] = str(error)
        known.sort(key=lambda each: retention.age(each[1]), reverse=True)
        self._sequence = max((manifest.sequence for _, manifest in known), default=0)
        return known, wrong

    def went_on_from(self, manifest: Manifest) -> None:
        """What is published from now on belongs to the lineage of this one."""
        self._lineage, self._parent = manifest.lineage, manifest.step

    def set_aside(self, path: Path, why: Sequence[str], judged: Manifest | None = None) -> str:
        """Renames a checkpoint that is wrong, unless another one has taken its place since; what was done, in words."""
        try:
            if judged is not None and checkpoints.read(path, self._timeout) != judged:
                return "another one has taken its place"
            return f"kept as {checkpoints.set_aside(path, self.attempt, why).name}"
        except (OSError, CheckpointError) as error:  # a folder that is read-only, say
            return f"it stays where it is ({error})"

    def aside(self) -> list[str]:
        """Names of the checkpoints that were put aside."""
        return [path.name for path in reading.retried(lambda: checkpoints.put_aside(self.path), self.path)]

    # -- publishing

    def describe(self, manifest: Manifest) -> Manifest:
        """The manifest with its place in the lineage."""
        if self._sequence is None:  # nothing was loaded; what cannot be read does not keep a training from saving
            self._sequence = max((each.sequence for each in checkpoints.sound(self.path).values()), default=0)
        if self._lineage is None:
            self._lineage = os.urandom(8).hex()
        return replace(manifest, lineage=self._lineage, sequence=self._sequence + 1, parent=self._parent)

    def publish(self, temporary: Path, manifest: Manifest, fence: Callable[[], None] | None = None) -> Path:
        """Gives a complete checkpoint its name, and begins to remove what is not kept any more; its path.

        One of this step that is there already makes way. It is removed if it is of the same lineage, and kept
        otherwise.

        Args:
            temporary: its folder so far.
            manifest: of it.
            fence: called again before each removal; raises if this attempt has lost the run, and then nothing goes.

        Raises:
            OSError: it could not be renamed; then the earlier one is there as before.
        """
        path = self.path / checkpoints.name_of(manifest.step)
        old = None
        try:
            _rename(temporary, path)
        except OSError:
            if path.name not in reading.entries(self.path):
                raise
            what = "old" if self._is_ours(path, manifest) else "aside"
            old = self.path / checkpoints.temporary(manifest.step, self.attempt, what)
            path.rename(old)
            try:
                _rename(temporary, path)
            except OSError:
                old.rename(path)
                raise
        self._sequence, self._parent = manifest.sequence, manifest.step  # it has its name, even if fsync fails
        fsync_folder(self.path)
        removed = old if old is not None and checkpoints.replaced_step(old.name) is not None else None
        self._remover = threading.Thread(
            target=self._tidy, args=(manifest, removed, fence), name="checkpoint-retention"
        )
        self._remover.start()
        return path

    def _is_ours(self, path: Path, manifest: Manifest) -> bool:
        try:
            return checkpoints.read(path).lineage == manifest.lineage
        except CheckpointError:
            return False

    def _tidy(self, published: Manifest, old: Path | None, fence: Callable[[], None] | None) -> None:
        """Removes what is not kept, in a thread, since giving back many blocks takes the file system a while.

        What cannot be read is neither counted nor removed; what cannot be removed stays for the next time.
        """
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(OSError, Unavailable):
            known = checkpoints.sound(self.path)
            stays = self._stays
            for path in retention.surplus(known, published, stays.keep, stays.best, stays.best_is):
                if not _holds(fence):
                    return
                hidden = self.path / checkpoints.temporary(0, self.attempt, "gone")  # nobody finds half of it
                path.rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def wait(self) -> None:
        """Until what is not kept is gone."""
        if self._remover is not None:
            self._remover.join()
            self._remover = None


def _holds(fence: Callable[[], None] | None) -> bool:
    """Whether this attempt still has the run, for certain. If not, the next save finds out and says so."""
    try:
        if fence is not None:
            fence()
    except Exception:  # lost, or nobody can tell
        return False
    return True


def _rename(source: Path, target: Path) -> None:
    """Where nothing is yet: a rename onto an empty folder would replace it."""
    if target.name in reading.entries(target.parent):
        raise FileExistsError(target)
    source.rename(target)


def fsync_folder(path: Path) -> None:
    """Waits until the names in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Our checkpoints for code that calls torch.distributed.checkpoint; folders that it wrote become our own.

dcp.save(state, storage_writer=LauncherWriter(folder, step))
    dcp.load(state, storage_reader=LauncherReader(folder))         # the newest checkpoint; or one checkpoint's folder

As with `Checkpointer`, checkpoints are published atomically and with checksums, old checkpoints are removed, and each
rank compares its share of the checksums when loading. The caller's planner decides which values are pickled, and how
they are loaded.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from launcher import __version__
from launcher.checkpoint import files, reading
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.files import HashedFiles, Reader
from launcher.checkpoint.folder import CheckpointFolder, Retention, fsync_folder
from launcher.checkpoint.format import DCP, MANIFEST, METADATA_FILE, SINGLE, CheckpointError, File, Manifest
from launcher.checkpoint.state import facts, step_number
from launcher.runs import lease
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Saved

_LAST_NUMBER = re.compile(r"(\d+)\D*$")
# Folders in which this process has saved before: an incomplete checkpoint there may belong to a running async_save.
_prepared: set[Path] = set()
_CHECKSUMS = "launcher_files"  # attribute on a rank's first WriteResult: size and checksums of the rank's files


@dataclasses.dataclass(frozen=True)
class _Place:
    # The temporary folder that the coordinator has made, and torch's file name prefix

    temporary: str
    prefix: Any


class LauncherWriter(FileSystemWriter):
    """A StorageWriter that publishes a checkpoint in `folder`; make one for each save."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        step: int | None = None,
        *,
        keep: int = 2,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        fence: Callable[[], None] | None = lease.require,
    ) -> None:
        """
        Args:
            folder: directory for the checkpoints; nobody else may be able to write to it.
            step: steps of the run that are done; None: the last number in the checkpoint_id.
            keep: how many of the newest checkpoints of this lineage to keep.
            extra, metrics: facts for the manifest, and metrics at this step (JSON types).
            fence: function that is called before the checkpoint is published. It must raise if another attempt owns the
                run now. None: nothing is called.
        """
        super().__init__(Path(folder), sync_files=False, overwrite=False)  # hashed files sync when they are closed
        attempt = current_attempt()
        self._folder = CheckpointFolder(Path(folder), attempt.number if attempt else 0, Retention(keep), 0.0)
        self._events = Events(attempt, "checkpoint")
        self._step, self._fence = None if step is None else step_number(step), fence
        self._extra, self._metrics = facts(extra or {}, "extra"), facts(metrics or {}, "metrics")
        self._temporary = ""
        self._ranks = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        super().reset(None)
        if checkpoint_id is not None and (match := _LAST_NUMBER.search(Path(checkpoint_id).name)):
            self._step = int(match[1])

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._step is None:
            raise CheckpointError("LauncherWriter needs the step: LauncherWriter(folder, step)")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On torch's coordinator (default: rank 0): makes the temporary folder, and adds its name to all plans."""
        assert self._step is not None
        self._folder.prepare(remove_leftovers=self._folder.path not in _prepared)
        _prepared.add(self._folder.path)
        known, _ = self._folder.known()
        if known:
            self._folder.continue_from(known[0][1])
        self._temporary = checkpoints.temporary(self._step, self._folder.attempt)
        (self._folder.path / self._temporary).mkdir(mode=0o700)
        self._ranks = len(plans)
        return [
            dataclasses.replace(plan, storage_data=_Place(self._temporary, plan.storage_data))
            for plan in super().prepare_global_plan(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        place = plan.storage_data
        written: dict[str, File] = {}
        self.path, self.fs = self._folder.path / place.temporary, HashedFiles(written)
        results = super().write_data(dataclasses.replace(plan, storage_data=place.prefix), planner).wait()
        if results:
            setattr(results[0].storage_data, _CHECKSUMS, written)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On torch's coordinator (default: rank 0), after all ranks have written: publishes the checkpoint."""
        assert self._step is not None
        temporary = self._folder.path / self._temporary
        written: dict[str, File] = {}
        for each in results:
            for result in each:
                written |= result.storage_data.__dict__.pop(_CHECKSUMS, {})
        self.path, self.fs = temporary, HashedFiles(written)
        super().finish(metadata, results)
        manifest = self._folder.describe(
            Manifest(
                step=self._step, kind=DCP, world_size=self._ranks, attempt=self._folder.attempt, identity={},
                extra=self._extra, metrics=self._metrics, files=written, torch=torch.__version__, launcher=__version__,
            )
        )  # fmt: skip
        files.write_manifest(temporary, manifest)
        fsync_folder(temporary)
        if self._fence is not None:
            self._fence()
        path = self._folder.publish(temporary, manifest, self._fence)
        self._folder.wait()
        self._events(Saved(step=self._step, bytes=manifest.size, checkpoint=str(path)))


class LauncherReader(Reader):
    """A StorageReader for the newest checkpoint in a folder, or for one checkpoint."""

    def __init__(
        self, folder: str | os.PathLike[str], *, verify: bool = True, read_timeout: float = 300.0, threads: int = 2
    ) -> None:
        """
        Args:
            folder: directory of checkpoints, or folder of one checkpoint (`step-...`).
            verify: whether to compare checksums. If some are wrong, dcp.load raises on all ranks, and tensors may be
                filled in part.
            read_timeout: seconds for which a failing read is retried.
            threads: number of threads that compute checksums.
        """
        super().__init__(self._chosen(Path(folder), read_timeout), read_timeout)
        self._verify, self._threads = verify, threads
        self._blocks: list[checkpoints.Block] = []  # to compare; on the coordinator

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        super().reset(None if checkpoint_id is None else self._chosen(Path(checkpoint_id), self._timeout))

    @staticmethod
    def _chosen(folder: Path, timeout: float) -> Path:
        if checkpoints.step_of(folder.name) is not None:
            return folder
        known, wrong = CheckpointFolder(folder, 0, Retention(), timeout).known()
        if not known:
            raise CheckpointError(f"there is no checkpoint in {folder} that can be read" + "".join(
                f"\n  {line}" for line in wrong.values()
            ))  # fmt: skip
        return known[0][0]

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator:  # what one rank raises here, dcp.load raises on all
            path = Path(self.path)
            CheckpointFolder(path.parent, 0, Retention(), self._timeout).require_private(path)
            manifest = checkpoints.read(path, self._timeout)
            checkpoints.require_none(path, checkpoints.wrong_sizes(path, manifest, self._timeout))
            self._blocks = checkpoints.blocks(manifest) if self._verify else []
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On torch's coordinator (default: rank 0): gives each rank its share of the checksums to compare."""
        shares = checkpoints.shares(self._blocks, len(plans))
        return [dataclasses.replace(plan, storage_data=share) for plan, share in zip(plans, shares, strict=True)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Compares this rank's share of the checksums, then reads; what one rank raises, dcp.load raises on all."""
        path = Path(self.path)
        if plan.storage_data is None and self._verify:
            raise CheckpointError(
                f"{type(planner).__name__}.finish_plan drops storage_data of the plan, which says what to verify: use "
                "dataclasses.replace there, or LauncherReader(folder, verify=False)"
            )
        problems = checkpoints.wrong_checksums(path, plan.storage_data or (), self._threads, self._timeout)
        checkpoints.require_none(path, problems)
        return super().read_data(plan, planner)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path)
        if checkpoints.read(path, self._timeout).kind == SINGLE:
            raise CheckpointError(
                f"{path} is one file of small state, which torch.distributed.checkpoint does not read: load it with "
                "launcher.checkpoint.Checkpointer, or make a plain file of it with `launcher checkpoint extract`"
            )
        return super().read_metadata(*args, **kwargs)


# -- Makes a folder that torch.distributed.checkpoint has written one of our checkpoints; executes nothing in it


def adopt(path: Path, step: int) -> Path:
    """Adds checksums and a manifest to a folder of torch.distributed.checkpoint, and renames it to `step-...`.

    The result then counts as the newest checkpoint in its parent folder.
    step: steps of the run that were done when it was written.
    Raises CheckpointError: the folder is not a complete checkpoint of torch.distributed.checkpoint, is one of our
        checkpoints already, others can write to it, or the parent folder has a checkpoint of this step.
    """
    folder = CheckpointFolder(path.parent, 0, Retention(), 0.0)
    folder.require_private(path)
    names = reading.entries(path)
    if MANIFEST in names:
        raise CheckpointError(f"{path} has a {MANIFEST}: it is one of our checkpoints already")
    if METADATA_FILE not in names:
        raise CheckpointError(
            f"{path} has no {METADATA_FILE}: torch.distributed.checkpoint did not write it, or not all"
        )
    target = path.parent / checkpoints.name_of(step)
    if target != path and target.name in reading.entries(path.parent):
        raise CheckpointError(f"{target} is there already: give another STEP")
    needed = files.needed_bytes(files.read_metadata(path))
    for name, least in needed.items():
        if "/" in name or reading.size_of_file(path / name) < least:
            raise CheckpointError(f"{path / name} does not match {METADATA_FILE}: it is cut short, or elsewhere")
    written = {}
    for name in names:
        if not stat.S_ISREG((path / name).lstat().st_mode):
            raise CheckpointError(f"{path / name} is not a file: move it elsewhere")
        written[name] = checkpoints.file_of(path / name)
    ranks = [rank for name in needed if (rank := checkpoints.writer_of(name)) is not None]
    manifest = folder.describe(
        Manifest(
            step=step, kind=DCP, world_size=1 + max(ranks, default=0), attempt=0, identity={}, extra={}, metrics={},
            files=written, torch=torch.__version__, launcher=__version__,
        )
    )  # fmt: skip
    unfinished = path / f"{MANIFEST}.tmp"
    unfinished.unlink(missing_ok=True)
    with files.hashed_file(unfinished, {}) as stream:
        stream.write(manifest.text().encode())
    unfinished.rename(path / MANIFEST)
    fsync_folder(path)
    if target != path:
        path.rename(target)
        fsync_folder(target.parent)
    return target

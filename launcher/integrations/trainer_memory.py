"""Copies of a trainer's checkpoint in memory, as checkpoint.memory asks for them, for trainers that load files alone.

They are given to the trainer as files in memory, whose names are links in a folder.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch.distributed as dist

from launcher import processes
from launcher.checkpoint.format import CheckpointError
from launcher.checkpoint.loading import report_restored
from launcher.checkpoint.memory_copies import Kept, MemoryCheckpoints
from launcher.formatting import log_line
from launcher.worker import process_group
from launcher.worker.process_group import Env
from launcher.worker.stop import Settings, settings

Writers = Mapping[str, Callable[[BinaryIO], object]]  # what writes each file, by its name
FilesOf = Callable[[Kept], Writers]  # the files to be made of a copy

_current: TrainerMemory | None = None  # that of the training which this process does


class TrainerMemory:
    """The copies in memory of one training. All ranks make one, and call its methods in the same order."""

    def __init__(self, folder: Path, run: Settings, env: Env) -> None:
        """folder: directory of the trainer's checkpoints on disk, which tells this training from others."""
        self._env, keys, self.training = env, run.checkpoint, os.path.abspath(folder)
        lineage = hashlib.sha256(f"trainer {self.training}".encode()).hexdigest()
        self._memory = MemoryCheckpoints(
            env, lineage[:32], keys.memory, peers=keys.peers, timeout=keys.timeout, check=keys.check_replicas
        )
        self.given: Kept | None = None  # the copy in the files, without its state, until these are freed
        self._folder = Path()  # of the files
        self._files: list[int] = []  # their descriptors on this rank
        self._links: Path | None = None  # the folder, if this rank has made it
        atexit.register(self.release)

    def due(self, step: int) -> bool:
        return self._memory.due(step)

    def keep(self, step: int, state: Callable[[], Mapping[str, Any]], rank_state: Mapping[str, Any]) -> None:
        """Copies a state that is the same on all ranks, and what each rank has for itself; then they may change."""
        self.loaded()
        self._memory.keep(step, state, rank_state, {}, {})
        self._memory.staged()

    def files(self, on_disk: Callable[[], int | None], shared: FilesOf, own: FilesOf) -> Path | None:
        """Returns a folder with files of the newest copy (then `given`); None: there is no copy that fits.

        The folder is this rank's alone if ranks had different states, else that of all ranks of this node.
        on_disk: returns, on rank 0, the step of the newest checkpoint on disk, which the copy must be newer than.
        shared: the files that the first rank of a folder writes. own: those that each rank adds.
        """
        if self.given is not None:
            return self._folder
        self._memory.wait()  # whose thread uses the group
        began, group = time.perf_counter(), self._memory.group
        try:
            step = group.on_first(on_disk)
        except CheckpointError as error:
            self._memory.report([str(error)])
            return None
        kept = self._memory.newest(0 if step is None else step + 1)
        if kept is None:
            return None
        try:
            writes = self._memory.leads or not kept.shared
            folders = group.on_all(lambda: self._write(shared(kept)) if writes else Path())
            self._folder = folders[self._memory.first_rank if kept.shared else self._env.rank]
            group.on_all(lambda: self._add(self._folder, own(kept)))
            group.on_all(lambda: [path.stat() for path in self._folder.iterdir()])  # files of other processes, too
        except CheckpointError as error:
            self.release()
            self._memory.report([str(error)], kept.step)
            return None
        self.given = replace(kept, state={})
        if self._env.rank == 0:
            log_line(f"continues after step {kept.step} (copies in memory)", sys.stdout)
        report_restored(self._env.rank, kept.step, began, memory=True, received=kept.received)
        return self._folder

    def _write(self, writers: Writers) -> Path:
        self._links = Path(tempfile.mkdtemp(prefix="launcher-memory-"))
        self._add(self._links, writers)
        return self._links

    def _add(self, folder: Path, writers: Writers) -> None:
        for name, write in writers.items():
            self._files.append(processes.memory_file("launcher-trainer"))
            with os.fdopen(os.dup(self._files[-1]), "wb") as stream:
                write(stream)
            (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{self._files[-1]}")

    def loaded(self) -> None:
        """Frees the files, if there are any, once all ranks have loaded theirs. All ranks must call it."""
        if self.given is not None:
            self._memory.group.on_all(lambda: None)
            self._memory.share(self.given.step)
            self.release()

    def release(self) -> None:
        self.given = None
        while self._files:
            os.close(self._files.pop())
        if self._links is not None:
            shutil.rmtree(self._links, ignore_errors=True)
            self._links = None

    def close(self) -> None:
        """Waits for the last copy, and frees everything. All ranks must call it."""
        global _current
        _current = None
        self.release()
        atexit.unregister(self.release)
        self._memory.close()


def memory_of(folder: Path, find_obstacle: Callable[[], str] = str) -> TrainerMemory | None:
    """Returns this process's copies in memory; None: there are none (checkpoint.memory=0, or not in a run).

    All ranks must call it. If they have no process group, they have one afterwards, which the trainer uses.
    folder: that of the trainer's checkpoints. find_obstacle: returns why this training cannot have any, or nothing.
    """
    global _current
    run = settings()
    if run.run_dir is None or run.checkpoint.memory == 0:
        return None
    obstacle = find_obstacle()
    if not obstacle and dist.is_initialized() and dist.get_backend() == "mpi":
        obstacle = "workload.backend=mpi"
    if _current is not None and (obstacle or _current.training != os.path.abspath(folder)):
        _current.close()
    if obstacle:
        if os.environ.get("RANK", "0") == "0":
            log_line(f"no copies in memory (checkpoint.memory): {obstacle}", sys.stdout)
        return None
    if _current is None:
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            process_group.init()
        _current = TrainerMemory(folder, run, process_group.here())
    return _current


def copied(
    folder: Path, on_disk: Callable[[], int | None], shared: FilesOf, own: FilesOf = lambda _: {}
) -> Path | None:  # fmt: skip
    """Returns `TrainerMemory.files` if this attempt has started its ranks again, else None. All ranks must call it."""
    if os.environ.get("LAUNCHER_ROUND", "0") == "0":
        return None
    memory = memory_of(folder)
    return None if memory is None else memory.files(on_disk, shared, own)

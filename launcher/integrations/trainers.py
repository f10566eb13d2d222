"""What the callbacks of all trainers need: the newest checkpoint on disk, and copies of checkpoints in memory."""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch.distributed as dist

from launcher import processes
from launcher.checkpoint.collectives import Peers
from launcher.checkpoint.format import CheckpointError, Damaged, RetryingFile, entries, retry, unless_removed
from launcher.checkpoint.loading import report_restored
from launcher.checkpoint.memory_copies import Kept, MemoryCheckpoints
from launcher.files.safe_io import python_numbers
from launcher.formatting import log_line
from launcher.runs.directory import current_attempt
from launcher.worker import process_group
from launcher.worker.process_group import Env
from launcher.worker.stop import CHECKPOINT, Settings, settings


def checkpoint_dir(otherwise: str | os.PathLike[str] = "checkpoints") -> Path:
    """Returns the directory for this run's checkpoints, the same in every attempt; outside of a run `otherwise`."""
    return Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or otherwise)


def newest(folder: Path, names: str, last_files: Sequence[str], is_whole: Callable[[BinaryIO], bool]) -> Path | None:
    """Returns the checkpoint that was completed last, as rank 0 sees it; None: there is none. All ranks must call it.

    Raises CannotRead: not all that counts could be read for checkpoint.read_timeout seconds.
    names: pattern of their names. last_files: see `completed`. is_whole: whether the file that was written last is.
    """
    attempt = current_attempt()
    keys = CHECKPOINT if attempt is None else attempt.run.plan().checkpoint
    rank, ranks = 0, 1
    if attempt is not None:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def find() -> Path | None:
        found: dict[Path, tuple[int, Path]] = {}
        for name in entries(folder, keys.read_timeout, missing_ok=True):
            if re.fullmatch(names, name):
                path = folder / name
                look = partial(unless_removed, partial(completed, path, last_files), path)
                with suppress(Damaged):
                    found[path] = retry(look, path, keys.read_timeout)
        # The newest first: only of incomplete ones that are newer than all others it takes a while to be sure
        for path in sorted(found, key=lambda path: (found[path][0], len(path.name), path.name), reverse=True):
            with suppress(Damaged), RetryingFile(Path(os.path.realpath(found[path][1])), keys.read_timeout) as file:
                whole = is_whole(io.BufferedReader(file))
                if file.failure is not None:  # zipfile takes what it cannot read for the end of the file
                    raise file.failure
                if whole:
                    return path
        return None

    return Peers(rank, ranks, keys.timeout, own_group=False).on_first(find)


def completed(checkpoint: Path, last_files: Sequence[str]) -> tuple[int, Path]:
    """Returns when a checkpoint was completed (ns), or changed if it is incomplete; and its file that is written last.

    last_files: names of this file in a checkpoint that is a folder, of which one is there.
    """
    last = checkpoint
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(checkpoint).st_mode):
            inside = {each.name for each in checkpoint.iterdir()}
            last = checkpoint / next((name for name in last_files if name in inside), last_files[0])
        return os.stat(last).st_mtime_ns, last
    return os.lstat(checkpoint).st_mtime_ns, last


def missing(package: str, error: ImportError) -> ImportError:
    return ImportError(
        f"launcher.integrations.{package} needs the package {package}: pip install 'launcher[{package}]' ({error})"
    )


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers among `values` as floats, also those of numpy and tensors of one element."""
    return {name: float(each) for name, each in python_numbers(values).items() if isinstance(each, (int, float))}


def leaves(stop: str | None, step: int, total: int) -> bool:
    """Returns whether the rank must exit after this step, once it has saved: not after the last of all, since then only
    the trainer's cleanup is left, which another attempt would not do. total=0: unknown.
    """
    return stop is not None and not 0 < total <= step


# -- Copies of a trainer's checkpoint in memory, as checkpoint.memory asks for them, for trainers that load files alone:
# they are given to the trainer as files in memory, whose names are links in a folder


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

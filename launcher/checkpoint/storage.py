"""Files of checkpoints: written with checksums and published, read without executing anything; DCP's storage classes.

    dcp.save(state, storage_writer=LauncherWriter(folder, step))
    dcp.load(state, storage_reader=LauncherReader(folder))         # the newest checkpoint; or one checkpoint's folder

Such checkpoints, too, are published atomically and with checksums. The caller's planner decides which values are
pickled, and how they are loaded.

Functions that write add size and checksums of each new file, by its name, to their argument `files`. Functions that
read retry a failing read for `timeout` seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import gc
import io
import math
import os
import pickle
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, SavePlan, SavePlanner, TensorStorageMetadata
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, TensorWriteData
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from launcher import __version__, torch_compat
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.folder import CheckpointFolder, Retention, fsync_folder
from launcher.checkpoint.format import CannotRead, CheckpointError, Damaged, File, Manifest, RetryingFile
from launcher.checkpoint.state import facts, step_number
from launcher.runs import lease
from launcher.runs.directory import Events, current_attempt
from launcher.runs.events import Saved

# Checkpoints may be read without a process group. The filters stay, since saves run in threads, and catch_warnings()
# changes the filters of all threads.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
warnings.filterwarnings("ignore", message="TypedStorage is deprecated", module=r"torch\.distributed\.checkpoint")

_PIECE = 1 << 18  # most bytes that are hashed and written at once

# Module and name of all types that a .metadata of torch.distributed.checkpoint contains.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch._C": {"_VariableFunctions"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip


class HashedFile:
    """A new file of mode 0600, written sequentially, with its checksums. Small writes are collected: torch.save makes
    some forty for a tensor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.error: OSError | None = None
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._size = self._crc32 = 0
        self._done: list[int] = []
        self._collected = bytearray()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(self._collected) + len(view) < _PIECE:
            self._collected += view
            return len(view)
        self._drain()
        self._write(view)
        return len(view)

    def _drain(self) -> None:
        collected, self._collected = self._collected, bytearray()
        self._write(memoryview(collected))

    def _write(self, data: memoryview) -> None:
        while data:
            part = data[: min(_PIECE, checkpoints.BLOCK - self._size % checkpoints.BLOCK)]
            try:
                count = os.write(self.descriptor, part)
            except OSError as error:
                self.error = OSError(error.errno, error.strerror, str(self._path))
                raise self.error from None
            self._crc32 = zlib.crc32(part[:count], self._crc32)
            self._size += count
            if self._size % checkpoints.BLOCK == 0:
                self._done.append(self._crc32)
                self._crc32 = 0
            data = data[count:]

    def tell(self) -> int:
        return self._size + len(self._collected)

    def flush(self) -> None:
        """Does nothing: torch.save calls it, and torch.distributed.checkpoint calls torch.save for each tensor."""

    close = flush  # torch.distributed.checkpoint calls it; `hashed_file` closes the file

    def finish(self) -> File:
        """Waits until the file is on disk; returns its size and checksums."""
        self._drain()
        os.fsync(self.descriptor)
        return File(self._size, (*self._done, *([self._crc32] if self._size % checkpoints.BLOCK else [])))


@contextlib.contextmanager
def hashed_file(path: Path, files: dict[str, File]) -> Iterator[HashedFile]:
    """Context manager for a new file, at whose end it is on disk, and `files` gets its size and checksums."""
    stream = HashedFile(path)
    try:
        yield stream
        files[path.name] = stream.finish()
    except RuntimeError:  # by which torch's writer hides the file system's error
        if stream.error is not None:
            raise stream.error from None
        raise
    finally:
        os.close(stream.descriptor)


def save_file(path: Path, value: Any, files: dict[str, File]) -> None:
    """Writes a value like torch.save, as a `hashed_file`."""
    with hashed_file(path, files) as stream:
        torch.save(value, cast(IO[bytes], stream))


def publish(
    folder: CheckpointFolder, temporary: Path, manifest: Manifest, fence: Callable[[], None] | None
) -> tuple[Path, Manifest]:
    """Completes and publishes the checkpoint in `temporary`; returns its place, and the manifest as it was written."""
    manifest = folder.describe(dataclasses.replace(manifest, torch=torch.__version__, launcher=__version__))
    if problems := checkpoints.wrong_sizes(temporary, manifest):
        raise CheckpointError("; ".join(problems))
    with hashed_file(temporary / checkpoints.MANIFEST, {}) as stream:
        stream.write(manifest.text().encode())
    fsync_folder(temporary)
    if fence is not None:
        fence()
    return folder.publish(temporary, manifest, fence), manifest


def load_file(path: Path, timeout: float = 0.0) -> Any:
    """Returns what `save_file` has written, in CPU memory, executing nothing in it; raises Damaged or CannotRead."""
    with _opened(path, timeout, "is not what torch.save writes") as stream:
        return load_saved(cast(IO[bytes], stream))


def load_saved(stream: IO[bytes]) -> Any:
    """Returns on the CPU what torch.save has written, with weights_only=True; raises UnpicklingError.

    Everything else is refused before torch.load: until torch 2.6 it executes code in a TorchScript archive and in files
    of older formats in spite of weights_only=True (CVE-2025-32434).
    """
    start = stream.tell()
    head = stream.read(4)
    stream.seek(start)
    if head != b"PK\3\4":
        raise pickle.UnpicklingError("it is no zip archive, as torch.save writes")
    names = torch._C.PyTorchFileReader(stream).get_all_records()  # as torch.load sees the archive
    if "data.pkl" not in names or "constants.pkl" in names:  # by the latter torch.load knows TorchScript
        raise pickle.UnpicklingError("it is no archive that torch.save writes")
    stream.seek(start)
    return torch.load(stream, map_location="cpu", weights_only=True)


@contextlib.contextmanager
def _opened(path: Path, timeout: float, what: str) -> Iterator[io.BufferedReader]:
    # Arbitrary bytes can raise anything
    checkpoints.size_of_file(path, timeout)  # it is there, and a file
    with RetryingFile(path, timeout) as file:
        try:
            yield io.BufferedReader(file, _PIECE)
        except Exception as error:
            if file.failure is not None:  # torch may have replaced it by another error
                raise file.failure from None
            if isinstance(error, CheckpointError):
                raise
            if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or os.strerror(errno.ENOMEM) in str(error):
                raise CannotRead(f"{path} cannot be read now: there is no memory for it") from None
            if torch_compat.is_device_error(error):  # tensors on it are filled while the file is open
                raise CheckpointError(f"{path} cannot be loaded: {_first_line(error)}") from None
            raise Damaged(f"{path} {what}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# -- torch.distributed.checkpoint

# A part of a tensor, as written by one rank: where it is, and the type and shape of the part and of the whole.
Part: TypeAlias = tuple[WriteResult, TensorWriteData]


class CheckpointFiles(FileSystem):
    """A file system for torch.distributed.checkpoint: writes each file as a `HashedFile`, retries failing reads."""

    def __init__(self, files: dict[str, File] | None = None, timeout: float = 0.0) -> None:
        self._files, self._timeout = {} if files is None else files, timeout

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode == "wb":
            with hashed_file(Path(path), self._files) as stream:
                yield cast(io.IOBase, stream)
        else:
            with _opened(Path(path), self._timeout, "does not match its metadata") as file:
                yield file

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self._files[Path(new_path).name] = self._files.pop(Path(path).name)


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], rank: int, files: dict[str, File]) -> list[Part]:
    """Writes tensors, and parts of DTensors, into a file of torch.distributed.checkpoint; returns what it contains.

    dcp.save is not used: it sends the description of each part to rank 0 twice and back, as pickles without a MAC,
    sends all of them to all ranks, and in torch 2.4 compares each part of a tensor with each other one.
    """
    if not tensors:
        return []
    writer = _writer(folder, files)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=False)
    plan = planner.create_local_plan()
    kinds = {item.index: item.tensor_data for item in plan.items}
    plan = writer.prepare_global_plan([*[SavePlan([])] * rank, plan])[rank]  # the place in the list names the file
    return [(result, cast(TensorWriteData, kinds[result.index])) for result in writer.write_data(plan, planner).wait()]


def write_metadata(folder: Path, parts: Iterable[Part], files: dict[str, File]) -> None:
    """Writes torch.distributed.checkpoint's `.metadata` for all ranks' parts; CheckpointError: some are missing."""
    found: dict[str, TensorStorageMetadata] = {}
    results: dict[MetadataIndex, WriteResult] = {}
    for result, data in parts:
        if results.setdefault(result.index, result) is result:  # of two ranks with the same part the lower one counts
            known = found.setdefault(result.index.fqn, TensorStorageMetadata(data.properties, data.size, []))
            known.chunks.append(data.chunk)
    for name, entry in found.items():
        there = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if there != math.prod(entry.size):
            raise CheckpointError(
                f"{name}: the ranks have written {there} of its {math.prod(entry.size)} elements. All ranks of a "
                "DTensor's mesh must save it, and a name must have the same mesh and placements on all of them"
            )
    _writer(folder, files).finish(Metadata({**found}, {name: (name,) for name in found}), [list(results.values())])


def _writer(folder: Path, files: dict[str, File]) -> FileSystemWriter:
    writer = FileSystemWriter(folder, sync_files=False, overwrite=False)  # hashed files sync when they are closed
    writer.fs = CheckpointFiles(files)
    return writer


def _encoding(kind: object, name: object) -> _MEM_FORMAT_ENCODING:
    if kind is _MEM_FORMAT_ENCODING and type(name) is str and name in _MEM_FORMAT_ENCODING.__members__:
        return _MEM_FORMAT_ENCODING[name]
    raise pickle.UnpicklingError(
        "it asks for getattr of something other than a member of an enum, which metadata never needs"
    )


class _Unpickler(pickle.Unpickler):
    # Only the types of torch.distributed.checkpoint's metadata, whatever Python has pickled them

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _encoding
        module = module.removesuffix("._local")  # pathlib._local: Python 3.13
        if name in _ALLOWED.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no metadata needs")


def read_metadata(path: Path, timeout: float = 0.0) -> Metadata:
    """Returns the metadata in a checkpoint's `.metadata`, executing nothing in it; raises Damaged or CannotRead."""
    collects = gc.isenabled()
    gc.disable()  # it would look at millions of new objects, and find none to free
    try:
        with _opened(path / checkpoints.METADATA_FILE, timeout, "is not used") as stream:
            metadata = _Unpickler(stream).load()
    finally:
        if collects:
            gc.enable()
    if not isinstance(metadata, Metadata):
        raise Damaged(f"{path / checkpoints.METADATA_FILE} holds no metadata")
    return metadata


@functools.cache
def _torch_load_runs_pickles() -> bool:
    buffer = io.BytesIO()
    torch.save(PurePosixPath("."), buffer)
    buffer.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.load(buffer)  # safe: written above
    except pickle.UnpicklingError:
        return False
    return True


class Reader(FileSystemReader):
    """torch.distributed.checkpoint's reader: executes nothing in the files, and retries failing reads."""

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        super().__init__(path)
        self.fs = CheckpointFiles(timeout=timeout)
        self._timeout = timeout

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(Path(self.path), self._timeout)
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the parts of tensors that `plan` lists. Before torch 2.6, torch's own executes pickles in the files."""
        if not _torch_load_runs_pickles():
            return super().read_data(plan, planner)
        for item in plan.items:
            where = self.storage_data[item.storage_index]
            with self.fs.create_stream(self.fs.concat_path(self.path, where.relative_path), "rb") as stream:
                stream.seek(where.offset)
                content = io.BytesIO(stream.read(where.length))
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, content)
                continue
            part = narrow_tensor_by_index(load_saved(content), item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise ValueError(f"{item.storage_index.fqn}: {tuple(part.size())} where {tuple(target.size())} fits")
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class _Planner(dcp.DefaultLoadPlanner):
    # Refuses other values than tensors, since torch would unpickle them

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        raise Damaged(f"{read_item.dest_index.fqn} is not a tensor in this checkpoint")


def load_tensors(path: Path, metadata: Metadata, tensors: Mapping[str, Tensor], timeout: float = 0.0) -> None:
    """Fills tensors, and this rank's parts of DTensors, from a checkpoint of torch.distributed.checkpoint.

    Each rank reads what it needs: dcp.load would gather all names and plans on rank 0. Raises Damaged or CannotRead.
    """
    reader, planner = Reader(path, timeout), _Planner(flatten_state_dict=False)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=False)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()


# -- for dcp.save and dcp.load

# Folders in which this process has saved before: an incomplete checkpoint there may belong to a running async_save.
_prepared: set[Path] = set()
_CHECKSUMS = "launcher_files"  # attribute on a rank's first WriteResult: size and checksums of the rank's files


class LauncherWriter(FileSystemWriter):
    """A StorageWriter that publishes a checkpoint in `folder`; make one for each save."""

    def __init__(
        self, folder: str | os.PathLike[str], step: int, *, keep: int = 2, extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None, fence: Callable[[], None] | None = lease.require,
    ) -> None:  # fmt: skip
        """
        Args:
            folder: directory for the checkpoints; nobody else may be able to write to it.
            step: steps of the run that are done.
            keep: how many of the newest checkpoints of this lineage to keep.
            extra, metrics: facts for the manifest, and metrics at this step (JSON types).
            fence: function that is called before the checkpoint is published. It must raise if another attempt owns the
                run now. None: nothing is called.
        """
        super().__init__(Path(folder), sync_files=False, overwrite=False)  # hashed files sync when they are closed
        attempt = current_attempt()
        self._folder = CheckpointFolder(Path(folder), attempt.number if attempt else 0, Retention(keep), 0.0)
        self._events = Events(attempt, "checkpoint")
        self._step, self._fence = step_number(step), fence
        self._extra, self._metrics = facts(extra or {}, "extra"), facts(metrics or {}, "metrics")
        self._temporary = ""
        self._ranks = 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # the base class makes a folder, which the coordinator does here

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On torch's coordinator (default: rank 0): makes the temporary folder, and adds its name to all plans."""
        self._folder.prepare(remove_leftovers=self._folder.path not in _prepared)
        _prepared.add(self._folder.path)
        known, _ = self._folder.known()
        if known:
            self._folder.continue_from(known[0][1])
        self._temporary = checkpoints.temporary(self._step, self._folder.attempt)
        (self._folder.path / self._temporary).mkdir(mode=0o700)
        self._ranks = len(plans)
        return [
            dataclasses.replace(plan, storage_data=(self._temporary, plan.storage_data))
            for plan in super().prepare_global_plan(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        temporary, prefix = plan.storage_data
        written: dict[str, File] = {}
        self.path, self.fs = self._folder.path / temporary, CheckpointFiles(written)
        results = super().write_data(dataclasses.replace(plan, storage_data=prefix), planner).wait()
        if results:
            setattr(results[0].storage_data, _CHECKSUMS, written)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On torch's coordinator (default: rank 0), after all ranks have written: publishes the checkpoint."""
        temporary = self._folder.path / self._temporary
        written: dict[str, File] = {}
        for each in results:
            for result in each:
                written |= result.storage_data.__dict__.pop(_CHECKSUMS, {})
        self.path, self.fs = temporary, CheckpointFiles(written)
        super().finish(metadata, results)
        described = Manifest(
            self._step, checkpoints.DCP, self._ranks, self._folder.attempt, {}, self._extra, self._metrics, written
        )  # fmt: skip
        path, manifest = publish(self._folder, temporary, described, self._fence)
        self._folder.wait()
        self._events(Saved(step=self._step, bytes=manifest.size, checkpoint=str(path)))


class LauncherReader(Reader):
    """A StorageReader for the newest checkpoint in a folder, or for one checkpoint."""

    def __init__(self, folder: str | os.PathLike[str], *, verify: bool = True, read_timeout: float = 300.0) -> None:
        """
        Args:
            folder: directory of checkpoints, or folder of one checkpoint (`step-...`).
            verify: whether to compare checksums. If some are wrong, dcp.load raises on all ranks, and tensors may be
                filled in part.
            read_timeout: seconds for which a failing read is retried.
        """
        super().__init__(self._chosen(Path(folder), read_timeout), read_timeout)
        self._verify = verify
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
        problems = checkpoints.wrong_checksums(path, plan.storage_data or (), 2, self._timeout)
        checkpoints.require_none(path, problems)
        return super().read_data(plan, planner)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path)
        if checkpoints.read(path, self._timeout).kind == checkpoints.SINGLE:
            raise CheckpointError(
                f"{path} is one file of small state, which torch.distributed.checkpoint does not read: load it with "
                "launcher.checkpoint.Checkpointer, or make a plain file of it with `launcher checkpoint extract`"
            )
        return super().read_metadata(*args, **kwargs)

"""Writes the files of a checkpoint with checksums; reads them without executing anything; refuses what does not fit.

Functions that write add size and checksums of each new file, by its name, to their argument `files`. Functions that
read retry a failing read for `timeout` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import math
import os
import pickle
import threading
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData
from torch.distributed.checkpoint.storage import WriteResult

from launcher import torch_compat, torch_compat_dcp
from launcher.checkpoint.format import (
    BLOCK,
    DCP,
    MANIFEST,
    METADATA_FILE,
    RANKS_FILE,
    SINGLE,
    STATE_FILE,
    VALUES_FILE,
    CannotRead,
    CheckpointError,
    Damaged,
    File,
    Manifest,
    Misfit,
    file_of,
    rank_file,
    wrong_sizes,
)
from launcher.checkpoint.reading import RetryingFile, size_of_file
from launcher.checkpoint.state import Keys, Kind
from launcher.formatting import name_ranks

warnings.filterwarnings(
    "ignore", message="torch.distributed is disabled", category=UserWarning
)  # checkpoints may be read without a process group

NOT_IN_STATE = "in the checkpoint, not in the state"
PICKLED = "a pickle in the checkpoint, which is not executed"
ADVICE = (
    "a load restores all that was saved: give the same names, and for a model or an optimizer made anew "
    'give the object itself ({"optimizer": optimizer}) instead of its state_dict(), which may lack tensors to fill; or '
    "name what is to be loaded: load(only=[...])\n"
)
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


class NewFile:
    """A new file of mode 0600, written sequentially, on disk when it is closed. Small writes are collected: torch.save
    makes some forty for a tensor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._error: OSError | None = None
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._size = 0
        self._collected = bytearray()

    def write(self, data: Any) -> int:
        """Writes all of the data, perhaps only when the file is drained or closed; returns its size in bytes."""
        view = memoryview(data).cast("B")
        total = len(view)
        if len(self._collected) + total < _PIECE:
            self._collected += view
            return total
        self.drain()
        while view:
            view = view[self._write(view) :]
        return total

    def drain(self) -> None:
        """Writes what was collected."""
        collected, self._collected = memoryview(self._collected), bytearray()
        while collected:
            collected = collected[self._write(collected) :]

    def _write(self, part: memoryview) -> int:
        try:
            count = os.write(self._descriptor, part)
        except OSError as error:
            self._error = OSError(error.errno, error.strerror, str(self._path))
            raise self._error from None
        self._size += count
        return count

    @contextlib.contextmanager
    def plain_errors(self) -> Iterator[None]:
        """Context manager: raises the file system's error, which torch's writer hides behind an error of its own."""
        try:
            yield
        except RuntimeError:
            if self._error is not None:
                raise self._error from None
            raise

    def tell(self) -> int:
        return self._size + len(self._collected)

    def flush(self) -> None:
        """Does nothing: torch.save calls it, and torch.distributed.checkpoint calls torch.save for each tensor."""

    def close(self) -> None:
        """Waits until the file is on disk, and closes it."""
        try:
            if self._descriptor >= 0:
                self.drain()
                os.fsync(self._descriptor)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the file without waiting for the disk."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class HashedFile(NewFile):
    """A new file with checksums, computed while the data is in the processor's cache. `close` adds them to `files`."""

    def __init__(self, path: Path, files: dict[str, File]) -> None:
        super().__init__(path)
        self._files = files
        self._crc32 = 0
        self._done: list[int] = []

    def _write(self, part: memoryview) -> int:
        part = part[: min(_PIECE, BLOCK - self._size % BLOCK)]
        part = part[: super()._write(part)]
        self._crc32 = zlib.crc32(part, self._crc32)
        if self._size % BLOCK == 0:
            self._done.append(self._crc32)
            self._crc32 = 0
        return len(part)

    def close(self) -> None:
        if self._descriptor >= 0:
            super().close()
            self._files[self._path.name] = File(
                self._size, (*self._done, *([self._crc32] if self._size % BLOCK else []))
            )


@contextlib.contextmanager
def hashed_file(path: Path, files: dict[str, File]) -> Iterator[HashedFile]:
    """Context manager for a new file. At its end the file is on disk, and `files` gets its size and checksums."""
    stream = HashedFile(path, files)
    try:
        with stream.plain_errors():
            yield stream
        stream.close()
    finally:
        stream.abandon()


def save_file(path: Path, value: Any, files: dict[str, File]) -> None:
    """Writes a value like torch.save; returns when the file is on disk, and its size and checksums are in `files`."""
    with hashed_file(path, files) as stream:
        torch.save(value, cast(IO[bytes], stream))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest of a new checkpoint; raises CheckpointError if a file that it names has another size."""
    if problems := wrong_sizes(folder, manifest):
        raise CheckpointError("; ".join(problems))
    with hashed_file(folder / MANIFEST, {}) as stream:
        stream.write(manifest.text().encode())


class _Task(threading.Thread):
    # Executors of concurrent.futures would not do: they accept no work once the main thread has ended, and a save must
    # still complete then. The thread is not a daemon, since the process must not end before it. Where no thread can be
    # started (Python 3.12.0 and 3.12.1 start none then), the function is called at once.

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(name="checkpoint-file")
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        try:
            self.start()
        except RuntimeError:
            self.run()

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Waits for the function; returns its result, or raises its error."""
        if self.ident is not None:  # it was started
            self.join()
        if self._error is not None:
            raise self._error
        return self._value


class SmallFile:
    """A file that is written in a thread; its checksums are computed while another thread waits for the disk."""

    def __init__(self, path: Path, make: Callable[[], Any], *, alone: bool) -> None:
        # alone: whether nothing else in this process calls torch.save meanwhile. Then torch's own checksums, a setting
        # of the whole process, are switched off.
        self._path, self._make, self._alone = path, make, alone
        self._synced: _Task | None = None
        self._written = _Task(self._write)

    def _write(self) -> File:
        value = self._make()
        stream = NewFile(self._path)
        try:
            with stream.plain_errors(), torch_compat.without_crc32() if self._alone else contextlib.nullcontext():
                torch.save(value, cast(IO[bytes], stream))
                stream.drain()
        except BaseException:
            stream.abandon()
            raise
        self._synced = _Task(stream.close)
        return file_of(self._path)

    def file(self) -> File:
        """Waits until the file is written, perhaps not yet on disk; returns size and checksums, or raises its error."""
        return cast(File, self._written.result())

    def close(self) -> None:
        """Waits until the file is on disk; raises the error of writing it."""
        self._written.result()
        if self._synced is not None:
            self._synced.result()


def load_file(path: Path, timeout: float = 0.0) -> Any:
    """Returns what `save_file` has written, in CPU memory, executing nothing in it; raises Damaged or CannotRead."""
    with _opened(path, timeout, "is not what torch.save writes") as stream:
        return torch_compat_dcp.load_saved(cast(IO[bytes], stream))


@contextlib.contextmanager
def _opened(path: Path, timeout: float, what: str) -> Iterator[io.BufferedReader]:
    # Arbitrary bytes can raise anything
    size_of_file(path, timeout)  # it is there, and a file
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


class HashedFiles(FileSystem):
    """A file system for torch.distributed.checkpoint that writes each file as a `HashedFile`."""

    def __init__(self, files: dict[str, File]) -> None:
        self._files = files

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with hashed_file(Path(path), self._files) as stream:
            yield cast(io.IOBase, stream)

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
    writer.fs = HashedFiles(files)
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


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read_metadata(path: Path, timeout: float = 0.0) -> Metadata:
    """Returns the metadata in a checkpoint's `.metadata`, executing nothing in it; raises Damaged or CannotRead."""
    with _opened(path / METADATA_FILE, timeout, "is not used") as stream, _without_collection():
        metadata = _Unpickler(stream).load()
    if not isinstance(metadata, Metadata):
        raise Damaged(f"{path / METADATA_FILE} holds no metadata")
    return metadata


def needed_bytes(metadata: Metadata) -> dict[str, int]:
    """Returns the size that each file must have for the shards that the metadata places in it, by file name."""
    needed: dict[str, int] = {}
    for info in metadata.storage_data.values():
        needed[info.relative_path] = max(needed.get(info.relative_path, 0), info.offset + info.length)
    return needed


class _RetryingFiles(FileSystem):
    # Raises Damaged for a bad file, and else CannotRead

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with _opened(Path(path), self._timeout, "does not match its metadata") as stream:
            yield stream


class Reader(torch_compat_dcp.PlainReader):
    """torch.distributed.checkpoint's reader, which reads `.metadata` by `read_metadata`, and retries failing reads."""

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        super().__init__(path)
        self.fs = _RetryingFiles(timeout)
        self._timeout = timeout

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(Path(self.path), self._timeout)
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class _Planner(dcp.DefaultLoadPlanner):
    # Refuses other values than tensors, since torch would unpickle them

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        raise Damaged(f"{read_item.dest_index.fqn} is not a tensor in this checkpoint")


def load_tensors(path: Path, metadata: Metadata, tensors: Mapping[str, Tensor], timeout: float = 0.0) -> None:
    """Fills tensors, and this rank's parts of DTensors, from a checkpoint of torch.distributed.checkpoint.

    Each rank reads what it needs, whatever the others do: dcp.load would gather all names and plans on rank 0.
    Raises Damaged (the files do not match the metadata) or CannotRead.
    """
    reader, planner = Reader(path, timeout), _Planner(flatten_state_dict=False)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=False)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()


def combined_error(errors: Mapping[int, BaseException | str], world_size: int) -> CheckpointError:
    """Returns one error for the errors of several ranks. The text of the error names the ranks.

    | errors | result |
    |---|---|
    | all the same | that error |
    | some are Misfit | Misfit |
    | otherwise, some are Damaged | Damaged |
    | otherwise, some are CannotRead | CannotRead |
    | otherwise | CheckpointError |
    """
    kinds = (Misfit, Damaged, CannotRead)
    kind = next((kind for kind in kinds for error in errors.values() if isinstance(error, kind)), CheckpointError)
    chosen = {rank: error for rank, error in errors.items() if kind is CheckpointError or isinstance(error, kind)}
    ranks: dict[str, list[int]] = {}
    for rank, error in sorted(chosen.items()):
        ranks.setdefault(error if isinstance(error, str) else one_line(error), []).append(rank)
    on_all = len(chosen) == world_size and all(isinstance(error, CheckpointError) for error in chosen.values())
    if len(ranks) == 1 and (on_all or kind is not CheckpointError):  # no need to name the ranks
        return kind(next(iter(ranks)))
    return kind("; ".join(f"{name_ranks(who)}: {text}" for text, who in ranks.items()))


def one_line(error: BaseException) -> str:
    """Returns an error's text for the user, in one line."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


# -- what a checkpoint contains


@dataclass(frozen=True)
class Contents:
    """All of a checkpoint but what single ranks have, and the tensors in files of torch.distributed.checkpoint."""

    paths: Mapping[str, Keys]  # paths, values, lists: as in `state.Content`
    values: dict[Any, Any]
    lists: Mapping[Keys, str]
    kinds: Mapping[str, Kind]  # type and shape of each tensor, by name
    tensors: Mapping[str, Tensor] | None = None  # of a checkpoint in a single file; None: of another kind
    metadata: Metadata | None = None  # of the other kinds
    pickled: tuple[str, ...] = ()  # names of what torch.distributed.checkpoint has pickled, which is not executed


def read_contents(path: Path, manifest: Manifest, timeout: float = 0.0) -> Contents:
    """Reads a checkpoint, executing nothing in it; raises Damaged or CannotRead."""
    tensors, metadata, pickled = None, None, list[str]()
    try:
        if manifest.kind == SINGLE:
            rest = load_file(path / STATE_FILE, timeout)
            tensors = rest["tensors"]
            kinds = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        else:
            metadata = read_metadata(path, timeout)
            kinds = {
                name: (entry.properties.dtype, tuple(entry.size))
                for name, entry in metadata.state_dict_metadata.items()
                if isinstance(entry, TensorStorageMetadata)
            }
            if manifest.kind == DCP:
                known = metadata.planner_data or {}
                rest = {"values": {}, "paths": {name: known.get(name, (name,)) for name in kinds}}
                pickled = [name for name in metadata.state_dict_metadata if name not in kinds]
            else:
                rest = load_file(path / VALUES_FILE, timeout)
        paths = {name: rest["paths"][name] for name in kinds}
        return Contents(paths, rest["values"], rest.get("lists", {}), kinds, tensors, metadata, tuple(pickled))
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} holds no state: {error}") from None


def rank_state_of(path: Path, manifest: Manifest, rank: int, timeout: float = 0.0) -> dict[str, Any] | None:
    """Reads what a rank has saved for itself; None: nothing. Raises Damaged or CannotRead."""
    own = rank_file(rank)
    if own in manifest.files:
        return cast(dict[str, Any], load_file(path / own, timeout))
    states = load_file(path / RANKS_FILE, timeout) if RANKS_FILE in manifest.files else None
    return states[rank] if states else None


# -- does a checkpoint fit the state?


def misfits(
    saved: Mapping[str, Kind], wanted: Mapping[str, Tensor], roots: Mapping[str, str], everyone: Collection[str]
) -> list[str]:
    """Returns a line for each difference between a checkpoint and the state that it is to be loaded into.

    roots: top-level key of each of the checkpoint's tensors and top-level keys.
    everyone: names of the tensors that all ranks read, and their top-level keys.
    """
    lines = []
    for name, tensor in wanted.items():
        if name not in saved:
            lines.append(f"{name}: not in the checkpoint")
            continue
        dtype, shape = saved[name]
        if dtype != tensor.dtype:
            lines.append(f"{name}: {dtype} in the checkpoint, {tensor.dtype} now")
        if shape != tuple(tensor.shape):
            lines.append(f"{name}: shape {shape} in the checkpoint, {tuple(tensor.shape)} now")
    absent = [root for root in dict.fromkeys(roots.values()) if root not in everyone]
    absent += [name for name, root in roots.items() if root in everyone and name not in everyone]
    return [f"{name}: {NOT_IN_STATE}" for name in absent] + lines


def refuse(path: Path, lines: list[str]) -> None:
    """Raises Misfit if there are lines about differences from the checkpoint; its text contains the first 20."""
    if lines:
        more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
        shown = "".join(f"\n  {line}" for line in lines[:20])
        advice = ADVICE if any(line.endswith((NOT_IN_STATE, PICKLED)) for line in lines) else ""
        raise Misfit(
            f"{path} does not fit what is trained now:{shown}{more}\n{advice}"
            "continue with the settings it was made with, or start another run (or set another checkpoint.dir)"
        )

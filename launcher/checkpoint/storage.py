"""Files of checkpoints: written with checksums, read without executing anything.

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
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData
from torch.distributed.checkpoint.utils import _create_file_view

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import CannotRead, CheckpointError, Damaged, File, RetryingFile

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
        """Does nothing: torch.save calls it for each tensor."""

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
            if isinstance(error, MemoryError) or os.strerror(errno.ENOMEM) in str(error):
                raise CannotRead(f"{path} cannot be read now: there is no memory for it") from None
            if isinstance(error, ImportError):  # torch imports some modules when it needs them
                raise CannotRead(f"{path} cannot be read now: {error}") from None
            raise Damaged(f"{path} {what}: {(str(error).splitlines() or [type(error).__name__])[0]}") from None


# -- torch.distributed.checkpoint

# A part of a tensor, as written by one rank: which, where it is, and the type and shape of the part and of the whole.
Part: TypeAlias = tuple[MetadataIndex, _StorageInfo, TensorWriteData]


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], rank: int, files: dict[str, File]) -> list[Part]:
    """Writes tensors, and parts of DTensors, into a file of torch.distributed.checkpoint; returns what it contains.

    dcp.save is not used: it sends the description of each part to rank 0 twice and back, as pickles without a MAC,
    sends all of them to all ranks, and in torch 2.4 compares each part of a tensor with each other one.
    """
    if not tensors:
        return []
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=False)
    parts, name = list[Part](), f"__{rank}_0.distcp"
    with hashed_file(folder / name, files) as stream:
        for item in planner.create_local_plan().items:
            start = stream.tell()
            torch.save(planner.resolve_data(item), cast(IO[bytes], stream))
            place = _StorageInfo(name, start, stream.tell() - start)
            parts.append((item.index, place, cast(TensorWriteData, item.tensor_data)))
    return parts


def write_metadata(folder: Path, parts: Iterable[Part], files: dict[str, File]) -> None:
    """Writes torch.distributed.checkpoint's `.metadata` for all ranks' parts; CheckpointError: some are missing."""
    found: dict[str, TensorStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for index, place, data in parts:
        if places.setdefault(index, place) is place:  # of two ranks with the same part the lower one counts
            known = found.setdefault(index.fqn, TensorStorageMetadata(data.properties, data.size, []))
            known.chunks.append(data.chunk)
    for name, entry in found.items():
        there = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if there != math.prod(entry.size):
            raise CheckpointError(
                f"{name}: the ranks have written {there} of its {math.prod(entry.size)} elements. All ranks of a "
                "DTensor's mesh must save it, and a name must have the same mesh and placements on all of them"
            )
    metadata = Metadata({**found}, {name: (name,) for name in found}, places)
    with hashed_file(folder / checkpoints.METADATA_FILE, files) as stream:
        pickle.dump(metadata, stream)


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


def load_tensors(path: Path, metadata: Metadata, tensors: Mapping[str, Tensor], timeout: float = 0.0) -> None:
    """Fills tensors, and this rank's parts of DTensors, from a checkpoint of torch.distributed.checkpoint.

    Each rank reads what it needs: dcp.load would gather all names and plans on rank 0. Raises Damaged or CannotRead.
    """
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=False)
    items: dict[str, list[ReadItem]] = {}  # by file
    for item in planner.create_local_plan().items:
        items.setdefault(metadata.storage_data[item.storage_index].relative_path, []).append(item)
    for name, of_file in items.items():
        for item, part in _parts(path / name, of_file, metadata, timeout):
            planner.resolve_tensor(item).detach().copy_(part)  # if it fails, the file is not to blame


def _parts(
    path: Path, items: Iterable[ReadItem], metadata: Metadata, timeout: float
) -> Iterator[tuple[ReadItem, Tensor]]:
    with _opened(path, timeout, "does not match its metadata") as stream:
        for item in items:
            where = metadata.storage_data[item.storage_index]
            saved = load_saved(cast(IO[bytes], _create_file_view(stream, where.offset, where.length)))
            part = narrow_tensor_by_index(saved, item.storage_offsets, item.lengths)
            if part.size() != item.lengths:
                raise ValueError(f"{item.storage_index.fqn}: {tuple(part.size())} where {tuple(item.lengths)} fits")
            yield item, part

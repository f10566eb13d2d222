"""Lists tensors and shards, and extracts a state or a shard, also as safetensors, without a process group.

See https://github.com/huggingface/safetensors#format. Such a file contains only tensors, and nothing in it is executed
when it is read. Writing one takes a few lines, so the package safetensors is not needed.
"""

from __future__ import annotations

import ctypes
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from launcher.checkpoint import files
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import (
    METADATA_FILE,
    RANKS_FILE,
    SINGLE,
    CheckpointError,
    Damaged,
    Manifest,
)
from launcher.checkpoint.reading import RetryingFile
from launcher.checkpoint.state import fill_all, is_named, named_part, nested
from launcher.errors import near
from launcher.torch_compat_dcp import load_saved

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT = 8  # bytes; alignment of the first tensor, so that the file can be mapped into memory


def save_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes CPU tensors, and text for the header, into a new safetensors file; an incomplete file is removed.

    Raises CheckpointError: a tensor has a type that the format does not know, or the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        kind = _TYPES.get(str(tensor.dtype).removeprefix("torch."))
        if kind is None:
            raise CheckpointError(
                f"{name} is a {tensor.dtype}, which safetensors does not know: extract it as torch.save"
            )
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if sys.byteorder != "little":
        raise CheckpointError("safetensors has little-endian numbers, and this machine is big-endian: use torch.save")
    try:
        try:
            with files.hashed_file(path, {}) as stream:
                stream.write(len(text).to_bytes(8, "little") + text)
                for tensor in tensors.values():
                    if tensor.numel():
                        stream.write(_bytes_of(tensor.contiguous()))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from None


def _bytes_of(tensor: Tensor) -> memoryview:
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def flat_tensors(tree: Mapping[object, object], prefix: str = "") -> dict[str, Tensor]:
    """Returns the tensors in the nested dicts `tree`, by dotted name with `prefix`; other values are left out."""
    found: dict[str, Tensor] = {}
    for key, value in tree.items():
        if isinstance(value, Tensor):
            found[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            found |= flat_tensors(value, f"{prefix}{key}.")
    return found


# -- Reads a checkpoint without a process group: lists its tensors, returns the whole state, or one rank's shard of it
#
# `path` is the checkpoint's folder, and `manifest` its manifest. `keys` are dotted names (`model.layer.weight`) to
# read, or prefixes of them (`model`); empty: everything.


@dataclass(frozen=True)
class Shard:
    """A part of a tensor: the rank that wrote the part, its offset in the whole tensor, and its shape."""

    rank: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a checkpoint: dotted name, type (`float32`), shape, and the shards that it consists of."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


def entries(path: Path, manifest: Manifest) -> list[TensorEntry]:
    """Returns a checkpoint's tensors without their data, by name; executes nothing; raises Damaged or CannotRead."""
    if manifest.kind == SINGLE:
        kinds = files.read_contents(path, manifest).kinds
        return [
            TensorEntry(name, _dtype(dtype), shape, (Shard(0, (0,) * len(shape), shape),))
            for name, (dtype, shape) in sorted(kinds.items())
        ]
    metadata = files.read_metadata(path)
    writers = {
        (index.fqn, tuple(index.offset or ())): _rank_of(info.relative_path)
        for index, info in metadata.storage_data.items()
    }
    return [
        TensorEntry(
            name,
            _dtype(entry.properties.dtype),
            tuple(entry.size),
            tuple(
                Shard(writers[name, tuple(chunk.offsets)], tuple(chunk.offsets), tuple(chunk.sizes))
                for chunk in entry.chunks
            ),
        )
        for name, entry in sorted(metadata.state_dict_metadata.items())
        if isinstance(entry, TensorStorageMetadata)
    ]


def verify(path: Path) -> list[str]:
    """Like `format.verify`; also reads all but the shards of tensors, as a load does, and checks the shards' places."""
    if problems := checkpoints.verify(path):
        return problems
    manifest = checkpoints.read(path)
    try:
        contents = files.read_contents(path, manifest)
        sizes = {name: file.size for name, file in manifest.files.items()}
        needed = {} if contents.metadata is None else files.needed_bytes(contents.metadata)
        problems = [
            f"{METADATA_FILE} asks for {least} bytes of {name}, which has {sizes.get(name, 0)}"
            for name, least in needed.items()
            if sizes.get(name, 0) < least
        ]
        for name in manifest.files:
            if name == RANKS_FILE or name.startswith("rank-"):
                files.load_file(path / name)
    except Damaged as error:
        return [str(error)]
    return problems


def values(path: Path, manifest: Manifest) -> dict[Any, Any]:
    """Returns the values of the state that are not tensors; none for a checkpoint of torch.distributed.checkpoint."""
    return files.read_contents(path, manifest).values


def whole(path: Path, manifest: Manifest, keys: Sequence[str] = ()) -> dict[Any, Any]:
    """Returns the state as it was given to `save`, in CPU memory; lists of tensors become dicts by index.

    Raises Damaged (it has changed), CannotRead, or CheckpointError (there is nothing under one of the keys).
    """
    _require_sound(path, manifest, [name for name in manifest.files if not name.startswith("rank-")])
    contents = files.read_contents(path, manifest)
    wanted = {name: kind for name, kind in contents.kinds.items() if is_named(name, keys)}
    for key in keys:
        if not any(is_named(name, [key]) for name in wanted) and not named_part(contents.values, [key]):
            guess = near(key, sorted(contents.kinds))
            raise CheckpointError(f"{path.name} has no {key!r}.{guess} `checkpoint inspect` lists what it has")
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in wanted.items()}
    if contents.tensors is not None:
        fill_all(tensors, contents.tensors)
    elif contents.metadata is not None and tensors:
        files.load_tensors(path, contents.metadata, tensors)
    return nested(tensors, contents.paths, named_part(contents.values, keys))


def shard(path: Path, manifest: Manifest, rank: int, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Reads the part of a checkpoint that one rank has written.

    Returns a dict with `shard` (the rank), `world_size` and `step`; `parts`, a list of dicts with the `name` of a
    tensor, the `shape` of the whole tensor, the `offset` of this part in it, and the part as `tensor`; and the rank's
    `rank_state`, or None.
    Raises Damaged (it has changed), CannotRead, or CheckpointError (there is no such shard).
    """
    if not 0 <= rank < manifest.world_size:
        raise CheckpointError(f"{path.name} has shards 0 to {manifest.world_size - 1}, and no shard {rank}")
    if manifest.kind == SINGLE:
        _require_sound(path, manifest, list(manifest.files))
        tensors = files.read_contents(path, manifest).tensors or {}
        parts = [
            _part(name, tensor.shape, (0,) * tensor.ndim, tensor.clone())
            for name, tensor in tensors.items()
            if rank == 0 and is_named(name, keys)
        ]
    else:
        kept = (checkpoints.rank_file(rank), METADATA_FILE)
        names = [name for name in manifest.files if name in kept or checkpoints.writer_of(name) == rank]
        _require_sound(path, manifest, names)
        parts = list(_parts(path, files.read_metadata(path), rank, keys))
    return {
        "shard": rank,
        "world_size": manifest.world_size,
        "step": manifest.step,
        "parts": parts,
        "rank_state": files.rank_state_of(path, manifest, rank),
    }


def _parts(path: Path, metadata: Metadata, rank: int, keys: Sequence[str]) -> Any:
    for index, info in metadata.storage_data.items():
        entry = metadata.state_dict_metadata[index.fqn]
        if checkpoints.writer_of(info.relative_path) != rank or not is_named(index.fqn, keys):
            continue
        if isinstance(entry, TensorStorageMetadata):
            with RetryingFile(path / Path(info.relative_path).name) as file:
                file.seek(info.offset)
                tensor = load_saved(io.BytesIO(io.BufferedReader(file).read(info.length)))
            yield _part(index.fqn, entry.size, tuple(index.offset or ()), tensor)


def _part(name: str, shape: Sequence[int], offset: Sequence[int], tensor: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "offset": list(offset), "tensor": tensor}


def _require_sound(path: Path, manifest: Manifest, names: Sequence[str]) -> None:
    found = [block for block in checkpoints.blocks(manifest) if block.name in names]
    checkpoints.require_none(
        path, checkpoints.wrong_sizes(path, manifest) or checkpoints.wrong_checksums(path, found, threads=2)
    )


def _rank_of(name: str) -> int:
    rank = checkpoints.writer_of(name)
    if rank is None:
        raise Damaged(f"the metadata names a file that no rank writes: {name!r}")
    return rank


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def save_plain(path: Path, value: Any) -> None:
    """Writes a value into a new private file by torch.save; raises CheckpointError, and leaves no part of it."""
    try:
        try:
            files.save_file(path, value, {})
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from None

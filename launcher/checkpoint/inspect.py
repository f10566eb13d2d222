"""Lists tensors and shards, and extracts a state, also as safetensors, without a process group.

The format of safetensors (https://github.com/huggingface/safetensors#format) takes a few lines to write.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import storage
from launcher.checkpoint.format import METADATA_FILE, CheckpointError, Damaged, Manifest
from launcher.checkpoint.loading import Contents, read_contents
from launcher.checkpoint.state import Content, bytes_of, is_named, named_part, nested
from launcher.errors import near

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT = 8  # bytes; alignment of the first tensor, so that the file can be mapped into memory


def save_safetensors(path: Path, state: Mapping[Any, Any], metadata: Mapping[str, str]) -> int:
    """Writes a state's tensors, by dotted name, and text for the header into a new safetensors file; returns their
    number. Raises CheckpointError: the format does not know a tensor's type; or like `new_file`."""
    tensors = Content.of(state).tensors
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        kind = _TYPES.get(_dtype(tensor.dtype))
        if kind is None:
            raise CheckpointError(
                f"{name} is a {tensor.dtype}, which safetensors does not know: extract it as torch.save"
            )
        size = tensor.nbytes
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with new_file(path), storage.hashed_file(path, {}) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            stream.write(bytes_of(tensor))
    return len(tensors)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Context manager that writes a new private file; after an error no part of it is left. Raises CheckpointError."""
    try:
        yield
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError):
            raise CheckpointError(f"{path} cannot be written: {error}") from None
        raise


# -- Reads a checkpoint without a process group: lists its tensors, returns the whole state
#
# `path` is the checkpoint's folder, and `manifest` its manifest. `keys` are dotted names (`model.layer.weight`) to
# read, or prefixes of them (`model`); empty: everything.


def entries(contents: Contents) -> list[dict[str, Any]]:
    """Returns the tensors of a checkpoint by name, with `dtype` (`float32`), `shape`, and `shards`, of which each has
    the `rank` that wrote it, its `offset` in the whole tensor, and its `shape`. Raises Damaged."""
    metadata, found = contents.metadata, []
    writers: dict[tuple[str, tuple[int, ...]], int] = {}
    for index, info in () if metadata is None else metadata.storage_data.items():
        if (rank := checkpoints.writer_of(info.relative_path)) is None:
            raise Damaged(f"the metadata names a file that no rank writes: {info.relative_path!r}")
        writers[index.fqn, tuple(index.offset or ())] = rank
    for name, (dtype, shape) in sorted(contents.kinds.items()):
        shards = [{"rank": 0, "offset": (0,) * len(shape), "shape": shape}]
        if metadata is not None:
            chunks = cast(TensorStorageMetadata, metadata.state_dict_metadata[name]).chunks
            shards = [
                {"rank": writers[name, tuple(chunk.offsets)], "offset": (*chunk.offsets,), "shape": (*chunk.sizes,)}
                for chunk in chunks
            ]
        found.append({"name": name, "dtype": _dtype(dtype), "shape": shape, "shards": shards})
    return found


def verify(path: Path) -> list[str]:
    """Returns what is wrong with a checkpoint; empty: it is sound. Reads all of it but the shards of tensors as a load
    does, and compares all checksums. Raises Misfit or CannotRead."""
    try:
        manifest = checkpoints.read(path)
        found = checkpoints.blocks(manifest)
        if problems := checkpoints.wrong_sizes(path, manifest) or checkpoints.wrong_checksums(path, found, 2):
            return problems
        metadata = read_contents(path, manifest).metadata
        needed: dict[str, int] = {}
        for info in () if metadata is None else metadata.storage_data.values():
            needed[info.relative_path] = max(needed.get(info.relative_path, 0), info.offset + info.length)
        sizes = {name: file.size for name, file in manifest.files.items()}
        problems = [
            f"{METADATA_FILE} asks for {least} bytes of {name}, which has {sizes.get(name, 0)}"
            for name, least in needed.items()
            if sizes.get(name, 0) < least
        ]
        for name in manifest.files:
            if name == checkpoints.RANKS_FILE or name.startswith("rank-"):
                storage.load_file(path / name)
    except Damaged as error:
        return [str(error)]
    return problems


def whole(path: Path, manifest: Manifest, keys: Sequence[str] = ()) -> dict[Any, Any]:
    """Returns the state as it was given to `save`, in CPU memory; lists of tensors become dicts by index.

    Raises Damaged (it has changed), CannotRead, or CheckpointError (there is nothing under one of the keys).
    """
    found = [block for block in checkpoints.blocks(manifest) if not block.name.startswith("rank-")]
    if problems := checkpoints.wrong_sizes(path, manifest) or checkpoints.wrong_checksums(path, found, threads=2):
        raise Damaged(f"{path} is damaged: {'; '.join(problems)}")
    contents = read_contents(path, manifest)
    wanted = {name: kind for name, kind in contents.kinds.items() if is_named(name, keys)}
    for key in keys:
        if not any(is_named(name, [key]) for name in wanted) and not named_part(contents.values, [key]):
            guess = near(key, sorted(contents.kinds))
            raise CheckpointError(f"{path.name} has no {key!r}.{guess} `checkpoint inspect` lists what it has")
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in wanted.items()}
    contents.fill(path, tensors)
    return nested(tensors, contents.paths, named_part(contents.values, keys), {})


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def save_plain(path: Path, value: Any) -> None:
    """Writes a value by torch.save; raises like `new_file`."""
    with new_file(path):
        storage.save_file(path, value, {})

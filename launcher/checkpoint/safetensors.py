"""Writes safetensors files: 8 bytes with the length of a JSON header, the header, then the bytes of all tensors.

See https://github.com/huggingface/safetensors#format. Such a file contains only tensors, and nothing in it is executed
when it is read. Writing one takes a few lines, so the package safetensors is not needed.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from launcher.checkpoint import files
from launcher.checkpoint.format import CheckpointError

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT = 8  # bytes; alignment of the first tensor, so that the file can be mapped into memory


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes CPU tensors into a new safetensors file; an incomplete file is removed.

    tensors: the tensors by dotted name.
    metadata: text by name for the file's header.
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


def flat(tree: Mapping[object, object], prefix: str = "") -> dict[str, Tensor]:
    """Returns the tensors in the nested dicts `tree`, by dotted name with `prefix`; other values are left out."""
    found: dict[str, Tensor] = {}
    for key, value in tree.items():
        if isinstance(value, Tensor):
            found[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
    return found

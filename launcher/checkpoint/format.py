"""The format of checkpoints on disk: names, manifest, checksums, what is kept. Works without torch.

    FOLDER/                        0700, files 0600
      step-000001200/              complete: it was renamed to this name when everything was on disk
        manifest.json              written last: what belongs to it, with sizes and checksums
        state.pt                   small state that all ranks hold: tensors and the rest, by torch.save
        ranks.pt                   with that: each rank's own state
        .metadata, __R_K.distcp    large or sharded state: torch.distributed.checkpoint's files, K-th of rank R
        values.pt, rank-R.pt       with those: what is no tensor, and rank R's own state
      .saving-step-...             being written, or left by a save that was killed
      .old-..., .gone-...          about to be removed

Checksums are CRC-32 (zlib's) of blocks of 64 MiB, so that several threads and ranks can share the work on one file.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launcher.errors import RunError

FORMAT = 1
BLOCK = 1 << 26  # bytes that share a checksum
MANIFEST = "manifest.json"
SINGLE, SHARDED = "single", "sharded"
STATE_FILE, RANKS_FILE, VALUES_FILE, METADATA_FILE = "state.pt", "ranks.pt", "values.pt", ".metadata"
_NAME = re.compile(r"step-(\d{9,})")
_TEMPORARY = re.compile(r"\.(saving|old|gone)-step-(\d+)-attempt-(\d+)-[0-9a-f]+")
_BUFFER = 1 << 20  # bytes read at once: they stay in the processor's cache until their checksum is taken


class CheckpointError(RunError):
    """A checkpoint cannot be used or written."""


class Damaged(CheckpointError):
    """It is torn, truncated, changed, or not one of ours: the one before it can be used."""


class Misfit(CheckpointError):
    """It is sound, but of another model, configuration or version: its owner must decide."""


class SaveFailed(CheckpointError):
    """A checkpoint could not be written; the earlier ones are untouched."""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint: its bytes, and the CRC-32 of each block of them."""

    size: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says of itself.

    Attributes:
        step: steps of the run that were done.
        kind: `single` (one file) or `sharded` (torch.distributed.checkpoint).
        world_size, attempt: ranks that saved it, and the attempt in which they did.
        identity: facts that must be equal for the state to fit.
        extra: what the workload added (JSON types).
        metrics: metrics at this step.
        files: everything that belongs to it, by name, but the manifest itself.
        time: when it was written, in seconds since the epoch.
        torch, launcher: versions that wrote it.
        format: version of this format.
    """

    step: int
    kind: str
    world_size: int
    attempt: int
    identity: dict[str, Any]
    extra: dict[str, Any]
    metrics: dict[str, float]
    files: dict[str, File]
    time: float = field(default_factory=time.time)
    torch: str = ""
    launcher: str = ""
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files.values())

    def text(self) -> str:
        """As it is written, with a checksum of itself."""
        values = asdict(self)
        return json.dumps({**values, "crc32": _own_checksum(values)}, indent=1)


# -- names


def name_of(step: int) -> str:
    """`step-000001200`."""
    return f"step-{step:09}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name; None: it is not one."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def temporary(step: int, attempt: int, what: str = "saving") -> str:
    """A fresh name for a checkpoint that is not complete (`saving`), is replaced (`old`) or removed (`gone`)."""
    return f".{what}-{name_of(step)}-attempt-{attempt}-{os.urandom(4).hex()}"


def candidates(folder: Path) -> list[Path]:
    """Everything in `folder` that is named like a complete checkpoint, newest step first."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    steps = sorted(((step, name) for name in found if (step := step_of(name)) is not None), reverse=True)
    return [folder / name for _, name in steps]


def leftovers(folder: Path, attempt: int) -> list[Path]:
    """What saves of this attempt and of earlier ones have left when they were killed."""
    found = ((entry, _TEMPORARY.fullmatch(entry.name)) for entry in os.scandir(folder))
    return [Path(entry.path) for entry, match in found if match and int(match[3]) <= attempt]


def replaced_step(name: str) -> int | None:
    """The step of a checkpoint that was about to be replaced; None: it is not one."""
    match = _TEMPORARY.fullmatch(name)
    return int(match[2]) if match and match[1] == "old" else None


# -- the manifest


def read(path: Path) -> Manifest:
    """The manifest of the checkpoint in `path`.

    Raises:
        Damaged: there is none, or it is not whole.
        Misfit: a newer launcher wrote it.
    """
    try:
        values = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}: it is not a checkpoint, or not all of one") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path / MANIFEST} cannot be read: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise Damaged(f"{path / MANIFEST} is not the manifest of a checkpoint")
    if values["format"] > FORMAT:
        raise Misfit(
            f"{path} has format {values['format']}, and this launcher ({_version()}) knows formats up to {FORMAT}: "
            f"use the launcher that wrote it ({values.get('launcher', 'unknown')}) or a newer one"
        )
    checksum = values.pop("crc32", None)
    if checksum != _own_checksum(values):
        raise Damaged(f"{path / MANIFEST} has changed since it was written: its checksum is wrong")
    try:
        files = {str(name): File(int(file["size"]), tuple(file["crc32"])) for name, file in values["files"].items()}
        manifest = Manifest(**{**values, "files": files})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{path / MANIFEST} is not the manifest of a checkpoint: {error}") from None
    for name in files:
        if "/" in name or name in (".", ".."):
            raise Damaged(f"{path / MANIFEST} names a file outside of the checkpoint: {name!r}")
    if manifest.step != step_of(path.name) and step_of(path.name) is not None:
        raise Damaged(f"{path / MANIFEST} is of step {manifest.step}, not of {path.name}")
    return manifest


def _own_checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def _version() -> str:
    from launcher import __version__

    return __version__


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`model.width: 256 in the checkpoint, 512 now` for every key in which two identities differ. Pure."""
    lines = []
    for key in [*old, *(key for key in new if key not in old)]:
        name = f"{prefix}{key}"
        if key not in new:
            lines.append(f"{name}: {_short(old[key])} in the checkpoint, not there now")
        elif key not in old:
            lines.append(f"{name}: not in the checkpoint, {_short(new[key])} now")
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            lines += differences(old[key], new[key], f"{name}.")
        elif old[key] != new[key]:
            lines.append(f"{name}: {_short(old[key])} in the checkpoint, {_short(new[key])} now")
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# -- soundness


def wrong_sizes(path: Path, manifest: Manifest) -> list[str]:
    """Files of the checkpoint that are missing or have another size, in words. Cheap: nothing is read."""
    problems = []
    for name, file in manifest.files.items():
        try:
            size = os.stat(path / name, follow_symlinks=False).st_size
        except OSError as error:
            problems.append(f"{name} is missing" if isinstance(error, FileNotFoundError) else f"{name}: {error}")
            continue
        if size != file.size:
            problems.append(f"{name} has {size} bytes instead of {file.size}")
    return problems


@dataclass(frozen=True)
class Block:
    """A part of a file, which has a checksum of its own."""

    name: str
    offset: int
    size: int
    crc32: int


def blocks(manifest: Manifest) -> list[Block]:
    """All blocks of all files, in order.

    Raises:
        Damaged: a file has not as many checksums as blocks.
    """
    found = []
    for name, file in manifest.files.items():
        if len(file.crc32) != -(-file.size // BLOCK):
            raise Damaged(f"{name} has {len(file.crc32)} checksums for {file.size} bytes")
        for index, crc32 in enumerate(file.crc32):
            found.append(Block(name, index * BLOCK, min(BLOCK, file.size - index * BLOCK), crc32))
    return found


def share(found: Sequence[Block], rank: int, world_size: int) -> list[Block]:
    """The blocks that one of several ranks compares: nearly as many bytes as the others. Pure."""
    loads, mine = [0] * world_size, []
    for block in sorted(found, key=lambda block: (-block.size, block.name, block.offset)):
        least = loads.index(min(loads))
        loads[least] += block.size
        if least == rank:
            mine.append(block)
    return mine


def wrong_checksums(path: Path, found: Iterable[Block], threads: int = 1) -> list[str]:
    """The blocks whose bytes are not those that were written, in words."""
    from concurrent.futures import ThreadPoolExecutor

    def look(block: Block) -> str | None:
        try:
            right = _checksum(path / block.name, block.offset, block.size) == block.crc32
        except OSError as error:
            return f"{block.name} cannot be read: {error.strerror}"
        where = f" (bytes {block.offset} to {block.offset + block.size - 1})" if block.offset else ""
        return None if right else f"{block.name} has changed since it was written: its checksum is wrong{where}"

    found = list(found)
    if threads > 1 and len(found) > 1:
        with ThreadPoolExecutor(threads) as pool:
            told = list(pool.map(look, found))
    else:
        told = [look(block) for block in found]
    return [problem for problem in told if problem]


def _checksum(path: Path, offset: int, size: int) -> int:
    """CRC-32 of a part of a file; of less than `size` bytes if the file ends before."""
    buffer = memoryview(bytearray(min(_BUFFER, size)))
    crc32 = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while size:
            count = file.readinto(buffer[: min(size, len(buffer))])
            if not count:
                break
            crc32 = zlib.crc32(buffer[:count], crc32)
            size -= count
    return crc32


def file_of(path: Path) -> File:
    """Size and checksums of a file that has been written."""
    size = path.stat().st_size
    return File(size, tuple(_checksum(path, offset, min(BLOCK, size - offset)) for offset in range(0, size, BLOCK)))


def verify(path: Path, threads: int = 2) -> list[str]:
    """Everything that is wrong with the checkpoint in `path`, in words; empty if it is sound.

    Raises:
        Misfit: a newer launcher wrote it.
    """
    try:
        manifest = read(path)
        return wrong_sizes(path, manifest) or wrong_checksums(path, blocks(manifest), threads)
    except Damaged as error:
        return [str(error)]


# -- what is there, and what stays


def sound(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    """The checkpoints in `folder` whose manifest is whole and whose files have the right sizes, newest first."""
    for path in candidates(folder):
        try:
            manifest = read(path)
        except CheckpointError:
            continue
        if not wrong_sizes(path, manifest):
            yield path, manifest


def newest_step(folder: Path) -> int | None:
    """The newest step that a run can go on from, as far as sizes tell; None: there is none."""
    try:
        return next((manifest.step for _, manifest in sound(folder)), None)
    except OSError:
        return None


def best_of(manifests: Iterable[Manifest], best: str | None, best_is: str = "max") -> Manifest | None:
    """The one with the best value of the metric `best`, of equal ones the newest; None: none has a number for it."""
    if best is None:
        return None
    sign = 1 if best_is == "max" else -1
    rated = [
        (sign * value, each.step, each) for each in manifests if (value := _number(each.metrics.get(best))) is not None
    ]
    return max(rated, key=lambda entry: entry[:2])[2] if rated else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def kept(manifests: Iterable[Manifest], keep: int, best: str | None = None, best_is: str = "max") -> set[int]:
    """The steps that stay: the newest `keep` of these sound checkpoints, and the best. Pure."""
    known = sorted(manifests, key=lambda manifest: -manifest.step)
    champion = best_of(known, best, best_is)
    return {manifest.step for manifest in known[:keep]} | ({champion.step} if champion else set())

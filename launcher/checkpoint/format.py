"""The format of checkpoints on disk: names, manifest, checksums; reads with retries. Works without torch.

    FOLDER/                        0700, files 0600
      step-000001200/              complete: renamed to this name when everything was on disk
        manifest.json              written last: describes the checkpoint, with sizes and checksums of its files
        state.pt                   small state, the same on all ranks: tensors and other values, by torch.save
        ranks.pt                   beside state.pt: the rank_state of each rank, all of them small
        .metadata, __R_K.distcp    other state: torch.distributed.checkpoint's files, the K-th of rank R
        values.pt, rank-R.pt       beside those: values that are not tensors, and the rank_state of rank R
      .saving-step-...             being written, or left behind by a killed save
      .old-..., .gone-...          about to be removed
      .aside-step-...              quarantined: damaged, or replaced by one of another lineage; kept for the user
        why.txt                    what is wrong with it
      .run                         which run saves here; see runs/lease_and_locks.py

Checksums are CRC-32 (zlib's) of blocks of 64 MiB, so that several threads and ranks can share the work on one file.
`path` is the folder of one checkpoint, and `folder` the one that contains the checkpoints. A read is retried for
`timeout` seconds, and has three outcomes:

| outcome | what happened | what follows |
|---|---|---|
| right | the file was read, and is valid | the checkpoint is used |
| wrong (`Damaged`) | the file was read in full and is not valid, or it is missing | the checkpoint is passed over |
| unavailable (`CannotRead`) | the file system returned an error | the attempt ends with exit code 75 |

NFS clients may show an old listing for a while. So a file counts as missing only when its folder was listed in full,
and the listing has not contained the file for LAG seconds.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from launcher import __version__, io_bounds
from launcher.errors import RunError, UnavailableError
from launcher.files import safe_io
from launcher.files.json_types import LATEST, from_json, misfit
from launcher.files.retried_reads import backoff

FORMAT = 2  # version of the format; version 1 had no lineage
BLOCK = 1 << 26  # bytes that share a checksum
MANIFEST = "manifest.json"
SINGLE, SHARDED = "single", "sharded"
MEMORY = "memory"  # of copies in memory, which are no checkpoint on disk; see memory_copies
STATE_FILE, RANKS_FILE, VALUES_FILE, METADATA_FILE = "state.pt", "ranks.pt", "values.pt", ".metadata"
_NAME = re.compile(r"step-(\d{9,})")
_TEMPORARY = re.compile(r"\.(saving|old|gone)-step-(\d+)-attempt-(\d+)-[0-9a-f]+")
_ASIDE = re.compile(r"\.aside-step-(\d+)-attempt-\d+-[0-9a-f]+")
_SHARDS = re.compile(r"__(\d+)_\d+\.distcp")
WHY = "why.txt"
_BUFFER = 1 << 20  # bytes read at once, few enough to be in the processor's cache when their checksum is computed
LAG = 30.0  # seconds for which an NFS client may show an old listing by default (mount option acdirmin)

T = TypeVar("T")


class CheckpointError(RunError):
    """A checkpoint cannot be used or written."""


class Damaged(CheckpointError):
    """A checkpoint was read, and is torn, truncated, changed or not one of ours. An older one can be used instead."""


class CannotRead(CheckpointError, UnavailableError):
    """A checkpoint cannot be read now, and may be sound. The attempt ends, and a later attempt tries again."""


class Misfit(CheckpointError):
    """A sound checkpoint of another model, configuration or version: the user must decide what to do."""


class SaveFailed(CheckpointError):
    """A checkpoint could not be written; earlier checkpoints are untouched."""


class _NotListed(Exception):
    """It was listed in full, and the file is not in it."""


# -- reading


def retry(operation: Callable[[], T], path: Path, timeout: float = 0.0, *, only: Collection[int] | None = None) -> T:
    """Calls an operation, and repeats it while it raises an OSError (only: of these errno values).

    Raises CannotRead: the operation has failed for `timeout` seconds.
    Raises Damaged: the file has not been in its folder's listing for LAG seconds, or for `timeout` if that is less.
    """
    why = ""
    for elapsed in backoff(timeout):
        try:
            return operation()
        except _NotListed:
            last = "it is missing"
            if elapsed >= min(timeout, LAG):
                raise Damaged(f"{path} is missing") from None
        except OSError as error:
            last = error.strerror or str(error)
            if only is not None and error.errno not in only:
                raise
        if timeout > 0 and not why:
            print(f"launcher: {path}: {last}; trying again for up to {timeout:g} s", flush=True)
        why = last
    tried = f" for {timeout:g} s (checkpoint.read_timeout)" if timeout > 0 else ""
    raise CannotRead(f"{path} could not be read{tried}: {why}")


# The system calls, as functions that tests can replace.
def _open(path: Path) -> io.FileIO:
    return safe_io.open_regular(path).detach()  # type: ignore[attr-defined]


def _stat(path: Path) -> os.stat_result:
    return os.stat(path, follow_symlinks=False)


def _entries(folder: Path) -> dict[str, bool]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}


def entries(folder: Path, timeout: float = 0.0, *, missing_ok: bool = False) -> dict[str, bool]:
    """Returns for each name in a folder whether it is a folder (False for links); raises CannotRead."""

    def look() -> dict[str, bool]:
        try:
            return _entries(folder)
        except FileNotFoundError:
            if missing_ok:
                return {}
            raise

    return retry(look, folder, timeout)


def unless_removed(operation: Callable[[], T], path: Path) -> T:
    """Calls an operation for `retry`, which takes a missing file for Damaged if the listings lack it or its folder."""
    try:
        return operation()
    except FileNotFoundError:
        if _removed(path):
            raise _NotListed from None
        raise


def _removed(path: Path) -> bool:
    try:
        return path.name not in _entries(path.parent)
    except FileNotFoundError:
        return path.parent.name not in _entries(path.parent.parent)


def size_of_file(path: Path, timeout: float = 0.0) -> int:
    """Raises Damaged (missing, or not regular) or CannotRead."""
    status = retry(lambda: unless_removed(lambda: _stat(path), path), path, timeout)
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path} is not a file")
    return status.st_size


class RetryingFile(io.RawIOBase):
    """A file for reading. Failing reads are retried after opening it anew, since the old handle may be stale."""

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path, self._timeout = path, timeout
        self._file: io.FileIO | None = None
        self._position = 0
        self.failure: CheckpointError | None = None  # of the last read that failed for good: a library may replace it

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if start is None:
            start = self._retried(lambda file: os.fstat(file.fileno()).st_size)
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        def read(file: io.FileIO) -> int:
            file.seek(self._position)
            return file.readinto(buffer) or 0

        count = self._retried(read)
        self._position += count
        return count

    def _retried(self, use: Callable[[io.FileIO], int]) -> int:
        def attempt() -> int:
            fresh = self._file is None
            try:
                if self._file is None:
                    self._file = _open(self._path)
                return use(self._file)
            except OSError:
                self._forget()
                if fresh:
                    raise
            return attempt()

        try:
            return retry(lambda: unless_removed(attempt, self._path), self._path, self._timeout)
        except CheckpointError as error:
            self.failure = error
            raise

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a stale handle cannot even be closed
                file.close()

    def close(self) -> None:
        self._forget()
        super().close()


@dataclass(frozen=True)
class File:
    """Size of a checkpoint's file in bytes, and the CRC-32 of each block of it."""

    size: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    step: int  # steps of the run that were done
    kind: str  # `single` (small state in one file) or `sharded` (tensors in files of torch.distributed.checkpoint)
    world_size: int  # number of ranks that saved it. attempt: index of their attempt
    attempt: int
    identity: dict[str, Any]  # facts that must be equal for the checkpoint to fit
    extra: dict[str, Any]  # facts that the workload added (JSON types)
    metrics: dict[str, float]  # metrics at this step, by name
    files: dict[str, File]  # size and checksums of all files except the manifest, by file name
    # when it was written, in seconds since the epoch. torch, launcher: versions of torch and launcher that wrote it
    time: float = field(default_factory=time.time)
    torch: str = ""
    launcher: str = ""
    lineage: str = ""  # id of the training that saved it, the same in all of its attempts; see folder.py
    sequence: int = 0  # higher by one than the highest in the folder before; the newer checkpoint has the higher one
    parent: int | None = None  # step of the checkpoint before this one in its lineage; None: this is the first
    format: int = FORMAT  # version of the format

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def age(self) -> tuple[int, int]:
        """Sort key by publication, the newest last. Checkpoints without a sequence (format 1) come first."""
        return self.sequence, self.step

    def text(self) -> str:
        """Returns the manifest as JSON, with a checksum of itself; raises CheckpointError if it could not be read."""
        values = asdict(self)
        try:
            text = safe_io.json_text({**values, "crc32": _own_checksum(values)}, io_bounds.MANIFEST_BYTES)
        except ValueError as error:
            raise CheckpointError(f"the manifest of {len(self.files)} files could not be read again: {error}") from None
        if wrong := _misfit(json.loads(text)):
            raise CheckpointError(f"the manifest could not be read again: {wrong}")
        return text


# -- names


def name_of(step: int) -> str:
    """Returns the name of a complete checkpoint: `step-000001200`."""
    return f"step-{step:09}"


def step_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


def writer_of(name: str) -> int | None:
    """Returns the rank that has written a file `__R_K.distcp`; None for other names."""
    match = _SHARDS.fullmatch(name)
    return int(match[1]) if match else None


def temporary(step: int, attempt: int, what: str = "saving") -> str:
    """Returns a new name of a folder that is not to be loaded: `what` is saving, old, gone (being removed) or aside."""
    return f".{what}-{name_of(step)}-attempt-{attempt}-{os.urandom(4).hex()}"


def candidates(folder: Path, timeout: float = 0.0, *, missing_ok: bool = True) -> list[Path]:
    """Returns the folders named like complete checkpoints, highest step first; raises CannotRead."""
    found = entries(folder, timeout, missing_ok=missing_ok)
    steps = ((step, name) for name, is_dir in found.items() if is_dir and (step := step_of(name)) is not None)
    return [folder / name for _, name in sorted(steps, reverse=True)]


def quarantined(folder: Path) -> dict[Path, int]:
    found = ((entry, _ASIDE.fullmatch(entry)) for entry in sorted(entries(folder)))
    return {folder / entry: int(match[1]) for entry, match in found if match}


def was_removed(path: Path) -> bool:
    """Returns whether a checkpoint is certainly gone, as after its training has saved others, and not quarantined."""
    try:
        there = [step_of(each.name) for each in candidates(path.parent)] + [*quarantined(path.parent).values()]
    except CannotRead:
        return False
    return step_of(path.name) not in there


def quarantine_reasons(path: Path) -> list[str]:
    """Returns the lines about what is wrong with a quarantined checkpoint; empty if they cannot be read."""
    try:
        return safe_io.read_whole(path / WHY).decode(errors="replace").splitlines()
    except OSError:
        return []


def leftovers(folder: Path, attempt: int | None) -> dict[Path, int | None]:
    """Returns the temporary folders that saves of this attempt and earlier ones (None: of all) have left, each with the
    step of a checkpoint that a save has moved there to replace it, or None."""
    found = ((entry, _TEMPORARY.fullmatch(entry)) for entry in entries(folder))
    return {
        folder / entry: int(match[2]) if match[1] == "old" else None
        for entry, match in found
        if match and (attempt is None or int(match[3]) <= attempt)
    }


# -- the manifest


def read(path: Path, timeout: float = 0.0) -> Manifest:
    """Returns a checkpoint's manifest; raises Damaged, CannotRead, Misfit (a newer launcher or dcp wrote it)."""
    try:
        size = size_of_file(path / MANIFEST, timeout)
    except Damaged:
        if METADATA_FILE in entries(path, timeout, missing_ok=True):
            raise Misfit(
                f"{path} was written by torch.distributed.checkpoint alone, so it has no checksums: load it with "
                "dcp.load before the first step, and move it elsewhere"
            ) from None
        raise Damaged(f"{path} has no {MANIFEST}: it is not a checkpoint, or not all of one") from None
    if size > io_bounds.MANIFEST_BYTES:
        raise Damaged(
            f"{path / MANIFEST} has {size} bytes, more than the {io_bounds.MANIFEST_BYTES} that are read of it"
        )
    with RetryingFile(path / MANIFEST, timeout) as file:
        data = file.readall()
    try:
        values = safe_io.parse_json(data)
    except ValueError as error:
        raise Damaged(f"{path / MANIFEST} is not JSON: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise Damaged(f"{path / MANIFEST} is not the manifest of a checkpoint")
    if values["format"] > FORMAT:
        raise Misfit(
            f"{path} has format {values['format']}, and this launcher ({__version__}) knows formats up to {FORMAT}: "
            f"use the launcher that wrote it ({values.get('launcher', 'unknown')}) or a newer one"
        )
    checksum = values.pop("crc32", None)
    if checksum != _own_checksum(values):
        raise Damaged(f"{path / MANIFEST} has changed since it was written: its checksum is wrong")
    if wrong := _misfit(values):
        raise Damaged(f"{path / MANIFEST} is not the manifest of a checkpoint: {wrong}")
    manifest: Manifest = from_json(values, Manifest)
    for name in manifest.files:
        if "/" in name or name in (".", ".."):
            raise Damaged(f"{path / MANIFEST} names a file outside of the checkpoint: {name!r}")
    if manifest.step != step_of(path.name) and step_of(path.name) is not None:
        raise Damaged(f"{path / MANIFEST} is of step {manifest.step}, not of {path.name}")
    return manifest


def _misfit(values: dict[str, Any]) -> str | None:
    # A metric may be NaN
    if not are_metrics(values.get("metrics")):
        return "metrics are not numbers by name"
    if wrong := misfit({**{key: each for key, each in values.items() if key != "crc32"}, "metrics": {}}, Manifest, ""):
        return wrong
    return None if 0 <= values.get("time", 0) < LATEST else "time is not a time"


def are_metrics(metrics: object) -> bool:
    return isinstance(metrics, dict) and all(type(each) in (int, float) for each in metrics.values())


def _own_checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns a line for each difference of two identities: `model.width: 256 in the checkpoint, 512 now`."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        name = f"{prefix}{key}"
        if key not in new:
            lines.append(f"{name}: {_short(old[key])} in the checkpoint, not there now")
        elif key not in old:
            lines.append(f"{name}: not in the checkpoint, {_short(new[key])} now")
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            lines += differences(old[key], new[key], f"{name}.")
        elif old[key] != new[key] and _text(old[key]) != _text(new[key]):  # NaN is not equal to itself
            lines.append(f"{name}: {_short(old[key])} in the checkpoint, {_short(new[key])} now")
    return lines


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# -- soundness


def wrong_sizes(path: Path, manifest: Manifest, timeout: float = 0.0) -> list[str]:
    """Returns a line for each file that is missing, or has another size than in the manifest; reads no data."""
    problems = []
    for name, file in manifest.files.items():
        try:
            size = size_of_file(path / name, timeout)
        except Damaged as error:
            problems.append(str(error).replace(str(path / name), name))
            continue
        if size != file.size:
            with RetryingFile(path / name, timeout) as opened:  # NFS reports the true size of an open file only
                size = opened.seek(0, os.SEEK_END)
        if size != file.size:
            problems.append(f"{name} has {size} bytes instead of {file.size}")
    return problems


@dataclass(frozen=True)
class Block:
    name: str
    offset: int
    size: int
    crc32: int


def blocks(manifest: Manifest) -> list[Block]:
    """Returns all blocks of all files in a manifest; Damaged: a file has more or fewer checksums than blocks."""
    found = []
    for name, file in manifest.files.items():
        if len(file.crc32) != -(-file.size // BLOCK):
            raise Damaged(f"{name} has {len(file.crc32)} checksums for {file.size} bytes")
        for index, crc32 in enumerate(file.crc32):
            found.append(Block(name, index * BLOCK, min(BLOCK, file.size - index * BLOCK), crc32))
    return found


def spread(sizes: Iterable[int], count: int) -> Iterator[int]:
    """Yields for each size the index of one of `count` parts: the first with the lowest sum so far."""
    heap = [(0, part) for part in range(count)]
    for size in sizes:
        total, part = heap[0]
        heapq.heapreplace(heap, (total + size, part))
        yield part


def shares(found: Sequence[Block], count: int) -> list[list[Block]]:
    """Returns the blocks `found` in `count` parts, one for each rank, with about as many bytes."""
    parts: list[list[Block]] = [[] for _ in range(count)]
    ordered = sorted(found, key=lambda block: (-block.size, block.name, block.offset))
    for block, part in zip(ordered, spread((block.size for block in ordered), count), strict=True):
        parts[part].append(block)
    return parts


def wrong_checksums(path: Path, found: Iterable[Block], threads: int = 1, timeout: float = 0.0) -> list[str]:
    """Returns a line for each of these blocks that has changed since it was written; raises CannotRead."""
    from concurrent.futures import ThreadPoolExecutor

    def look(block: Block) -> str | None:
        crc32, left = 0, block.size
        buffer = memoryview(bytearray(min(_BUFFER, left)))
        with RetryingFile(path / block.name, timeout) as file:
            file.seek(block.offset)
            while left and (count := file.readinto(buffer[: min(left, len(buffer))])):
                crc32 = zlib.crc32(buffer[:count], crc32)
                left -= count
        where = f" (bytes {block.offset} to {block.offset + block.size - 1})" if block.offset else ""
        changed = f"{block.name} has changed since it was written: its checksum is wrong{where}"
        return None if crc32 == block.crc32 else changed

    with ThreadPoolExecutor(threads) as pool:
        return [problem for problem in pool.map(look, found) if problem]


# -- listing


def sound(folder: Path, *, all_readable: bool = False) -> dict[Path, Manifest]:
    """Returns the checkpoints with a valid manifest and files of the right sizes, newest first; raises CannotRead.

    Leaves out checkpoints of a newer version of launcher and, unless `all_readable`, those that cannot be read now.
    """
    found = {}
    for path in candidates(folder):
        try:
            manifest = read(path)
            if not wrong_sizes(path, manifest):
                found[path] = manifest
        except CheckpointError as error:
            if all_readable and isinstance(error, CannotRead):
                raise
    return dict(sorted(found.items(), key=lambda item: item[1].age, reverse=True))


def newest_step(folder: Path) -> int | None:
    """Returns the step from which a run would resume, by sizes, not checksums; None: none. Raises CannotRead."""
    return next((manifest.step for manifest in sound(folder, all_readable=True).values()), None)

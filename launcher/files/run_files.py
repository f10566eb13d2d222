"""Files and folders of runs: the one place that opens them for reading, replaces them, and makes folders for them.

A run directory may be somebody else's, and what is in it need not be what its name says. So whatever is read is

- opened as a regular file: no link is followed, and a FIFO, a socket or a device is refused instead of waited for;
- read to a limit, whatever size the file says that it has;
- JSON that is nested no deeper than DEEPEST, with numbers that fit into 64 bits.

What does not fit raises an OSError with a number of `shared_files.NO_FILE`, or a ValueError: readers of shared files
call it Wrong, with the file's name. Whose a folder is, `ownership` decides.

What is written gets a name that nobody can guess, with O_EXCL, and is renamed into its place: a link that somebody has
put there is replaced, and never followed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

AnyPath = str | os.PathLike[str]

RECORD_LIMIT = 1 << 24  # bytes of a file that is read as a whole: a record, a result, a manifest
EVENTS_LIMIT = 1 << 25  # bytes of a file of events, half of them at its beginning and half at its end
DEEPEST = 64  # levels of lists and objects in JSON
_NUMBERS = 1 << 63  # integers are smaller than that, above and below zero
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link",
}  # fmt: skip


# -- reading


def opened(path: AnyPath) -> IO[bytes]:
    """A regular file for reading.

    Raises:
        OSError: it is not there, cannot be opened, or is no regular file (EINVAL; its text says what it is).
    """
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket, or a device without a driver
            _require_regular(os.lstat(path), path)
        raise
    try:
        _require_regular(os.fstat(descriptor), path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content(path: AnyPath) -> bytes:
    """All of a file.

    Raises:
        OSError: as for `opened`; EFBIG: it has more than RECORD_LIMIT bytes.
    """
    with opened(path) as file:
        data = _read(file, RECORD_LIMIT + 1)
    if len(data) > RECORD_LIMIT:
        raise OSError(errno.EFBIG, f"it has more than the {RECORD_LIMIT >> 10} KiB that are read of such a file", path)
    return data


def ends(path: AnyPath, first: int, last: int) -> list[bytes]:
    """All of a file in one part; of one with more than `first + last` bytes the first ones and the last ones.

    Raises:
        OSError: as for `opened`.
    """
    with opened(path) as file:
        begin = _read(file, first)
        if len(begin) < first:
            return [begin]
        size = os.fstat(file.fileno()).st_size
        if size <= first + last:
            return [begin + _read(file, last)]
        file.seek(size - last)
        return [begin, _read(file, last)]


def part(path: AnyPath, begin: int, end: int | None, most: int) -> tuple[bytes, int]:
    """At most the last `most` bytes of a byte range of a file, and their offset.

    Args:
        path: the file.
        begin, end: the part, in bytes; without an end it is that of the file.
        most: bytes.

    Raises:
        OSError: as for `opened`.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if end is None else min(max(end, 0), size)
        start = max(min(max(begin, 0), end), end - most)
        file.seek(start)
        return _read(file, end - start), start


def parsed(data: bytes) -> Any:
    """What JSON says.

    Raises:
        ValueError: it is none, is nested too deeply, or has a number that is too large.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None
    require_bounds(value)
    return value


def require_bounds(value: Any) -> None:
    """
    Raises:
        ValueError: a value of JSON is nested too deeply, or has a number that is too large.
    """
    level: Iterable[Any] = [value]
    for _ in range(DEEPEST):
        inside: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is dict:
                inside += each.values()
            elif kind is list:
                inside += each
            elif kind is int and not -_NUMBERS < each < _NUMBERS:
                raise ValueError("it has a number of more than 64 bits")
        if not inside:
            return
        level = inside
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _read(file: IO[bytes], most: int) -> bytes:
    """So many bytes, or all there are; no more memory than that is taken."""
    parts, left = [], most
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        parts.append(block)
        left -= len(block)
    return b"".join(parts)


def _require_regular(status: os.stat_result, path: AnyPath) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(number, f"it is {_KINDS.get(kind, 'something else')}, and not a regular file", path)


# -- writing


def write(path: Path, text: str, *, sync: bool = True) -> Path:
    """Writes a text whole or not at all: a reader never sees half of it. Returns its path."""
    with naming(path):
        return replace(path, os.fsencode(text), sync=sync)  # what came from the environment need not be UTF-8


def replace(path: Path, data: bytes, *, sync: bool = True) -> Path:
    """Writes a file of the owner alone, whole or not at all: a reader never sees half of it. Returns its path.

    Args:
        path: the file. A link there is replaced, and not followed.
        data: all that it is to have.
        sync: wait until it is on disk.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISLNK((status := os.lstat(path)).st_mode):
            _require_regular(status, path)  # /dev/stdout is no file to be replaced
    with _beside(path, data, sync=sync) as temporary:
        temporary.replace(path)
    return path


def create(path: Path, data: bytes) -> Path:
    """Writes a new file of the owner alone, whole or not at all, once, whoever else does so now. Returns its path.

    Raises:
        FileExistsError: somebody else has.
        OSError: it cannot be written, or this file system has no hard links.
    """
    with _beside(path, data, sync=False) as temporary:
        try:
            os.link(temporary, path)  # fails where there is one, unlike a rename
        except FileExistsError:
            # Over NFS a request whose answer was lost is sent again, and finds the link that it has made.
            if temporary.stat().st_nlink == 1:
                raise
    return path


@contextlib.contextmanager
def _beside(path: Path, data: bytes, *, sync: bool) -> Iterator[Path]:
    """A file with this data beside `path`, of which nothing is left afterwards under its own name."""
    temporary = path.with_name(temporary_name(path.name))
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """OSErrors inside that tell of no file, as those of write and fsync, tell of this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def temporary_name(name: str) -> str:
    """An unguessable temporary name for `name`, within the length that file systems allow (NAME_MAX)."""
    return f".{name[:200]}.{secrets.token_hex(8)}"


def make_folder(path: Path) -> None:
    """A folder and all that are missing on the way to it, each for its owner alone whatever the umask is.

    Raises:
        OSError: one cannot be made, or something else is there.
    """
    missing = []
    for each in (path, *path.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # somebody else has made it meanwhile
            each.mkdir(mode=0o700)
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

"""Opens, reads and replaces files of runs, and makes their folders, safely against what other users may put there.

A run directory may belong to another user, and a file need not be what its name suggests. So every read

- opens regular files only: it follows no link, and refuses a FIFO, a socket or a device instead of blocking on it;
- stops at a limit of bytes, whatever size the file reports;
- accepts JSON within io_bounds.JSON_LEVELS and io_bounds.JSON_INTEGERS.

Anything else raises an OSError with an errno in `retried_reads.NO_FILE`, or a ValueError; `retried_reads` turns these
into Wrong. Every write goes to a temporary file with an unguessable name, opened with O_EXCL, which is then renamed: a
link at the path of the file is replaced, not followed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from launcher import io_bounds

AnyPath = str | os.PathLike[str]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Errors of link(2) on file systems without hard links.
WITHOUT_LINKS = frozenset({
    errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.EXDEV,
})  # fmt: skip
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link",
}  # fmt: skip


# -- reading


def open_regular(path: AnyPath) -> IO[bytes]:
    """Opens a regular file for reading; OSError: it is missing or not regular (EINVAL, or EISDIR for a folder)."""
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


def read_whole(path: AnyPath, most: int | None = None) -> bytes:
    """Returns all bytes of a file; OSError as `open_regular`, or EFBIG above `most` (None: RECORD_BYTES)."""
    most = io_bounds.RECORD_BYTES if most is None else most
    with open_regular(path) as file:
        data = _read(file, most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than the {most >> 10} KiB that are read of such a file", path)
    return data


def read_ends(path: AnyPath, first: int, last: int) -> list[bytes]:
    """Returns a file's bytes, or its `first` and `last` ones if it has more; OSError as `open_regular`."""
    with open_regular(path) as file:
        begin = _read(file, first)
        if len(begin) < first:
            return [begin]
        size = os.fstat(file.fileno()).st_size
        if size <= first + last:
            return [begin + _read(file, last)]
        file.seek(size - last)
        return [begin, _read(file, last)]


def read_range(path: AnyPath, begin: int, end: int | None, most: int) -> tuple[bytes, int]:
    """Returns the last `most` bytes of a range (end=None: the file's end), and their offset; OSError as above."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if end is None else min(max(end, 0), size)
        start = max(min(max(begin, 0), end), end - most)
        file.seek(start)
        return _read(file, end - start), start


def json_lines(path: AnyPath, most: int) -> Iterator[dict[str, Any]]:
    """Yields the objects in the last `most` bytes of a file with one a line; other lines, and no file, are left out."""
    with contextlib.suppress(OSError):
        for line in read_range(path, 0, None, most)[0].splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(entry := parse_json(line), dict):
                    yield entry


def parse_json(data: bytes) -> Any:
    """Returns the value of a JSON text; raises ValueError, also for what is nested too deeply or too large."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"it is nested more than {io_bounds.JSON_LEVELS} levels deep") from None
    require_json_bounds(value)
    return value


def python_number(value: Any) -> Any:
    """Returns a numpy scalar or a tensor of one element as Python's number; raises TypeError for anything else.

    A tensor on a GPU is waited for.
    """
    if _is_scalar(value):
        return value.item()
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is not plain data")


def python_numbers(value: Any) -> Any:
    """Returns a value, or nested mappings of values, with Python's numbers as far as `python_number` knows them."""
    if isinstance(value, Mapping):
        return {key: python_numbers(each) for key, each in value.items()}
    return value.item() if _is_scalar(value) else value


def _is_scalar(value: Any) -> bool:
    return hasattr(value, "item") and (getattr(value, "shape", None) == () or getattr(value, "numel", int)() == 1)


def _number_or_text(value: Any) -> Any:
    return value.item() if _is_scalar(value) else str(value)


def json_text(
    values: Mapping[str, Any], most: int, default: Callable[[Any], Any] = python_number, *, lines: bool = True
) -> str:
    """Returns an object as JSON that `parse_json` reads again (`lines`: one for each key); TypeError or ValueError."""
    try:
        parts = [f"{json.dumps(str(key))}: {json.dumps(value, default=default)}" for key, value in values.items()]
    except RecursionError:
        raise ValueError(f"it is nested more than {io_bounds.JSON_LEVELS} levels deep") from None
    text = "{\n " + ",\n ".join(parts) + "\n}" if lines and parts else "{" + ", ".join(parts) + "}"
    if len(text) > most:
        raise ValueError(f"it has {len(text):,} bytes as JSON, and {most:,} are read")
    parse_json(text.encode())
    return text


def json_that_fits(values: Mapping[str, Any], most: int) -> tuple[str, list[str]]:
    """Like `json_text`, but leaves out what could not be read again, largest first, and returns why, by name."""
    parts, left = {}, []
    for key, value in values.items():
        try:
            parts[key] = json_text({key: value}, most, _number_or_text, lines=False)[1:-1]
        except (TypeError, ValueError) as error:
            left.append(f"{key}: {error}")
    size = len("{\n \n}") - len(",\n ")
    for key in sorted(parts, key=lambda key: len(parts[key])):
        size += len(parts[key]) + len(",\n ")
        if size > most:
            left.append(f"{key}: with it there are {size:,} bytes as JSON, and {most:,} are read")
            size -= len(parts.pop(key)) + len(",\n ")
    return "{\n " + ",\n ".join(parts.values()) + "\n}" if parts else "{}", left


def require_json_bounds(value: Any) -> None:
    """Raises ValueError: more than io_bounds.JSON_LEVELS levels, or an integer of JSON_INTEGERS or more."""
    level: Iterable[Any] = [value]
    for _ in range(io_bounds.JSON_LEVELS):
        inside: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is dict:
                inside += each.values()
            elif kind is list:
                inside += each
            elif kind is int and not -io_bounds.JSON_INTEGERS < each < io_bounds.JSON_INTEGERS:
                raise ValueError("it has an integer of more than 300 digits")
        if not inside:
            return
        level = inside
    raise ValueError(f"it is nested more than {io_bounds.JSON_LEVELS} levels deep")


def _read(file: IO[bytes], most: int) -> bytes:
    # Reads up to `most` bytes, in blocks, so that no more memory is allocated than the file has bytes
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


def digest_of(path: AnyPath) -> str:
    """Returns the SHA-256 of a file, as hexadecimal digits (hashlib.file_digest is new in Python 3.11)."""
    import hashlib  # few commands need it

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


# -- writing


def write(path: Path, text: str, *, sync: bool = True) -> Path:
    """Writes a text file atomically, as `replace` does, and returns its path."""
    with naming(path):
        return replace(path, os.fsencode(text), sync=sync)  # texts from environment variables need not be UTF-8


def replace(path: Path, data: bytes, *, sync: bool = True) -> Path:
    """Writes a file with mode 0600 atomically (a link there is replaced); sync: and waits until it is on disk."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISLNK((status := os.lstat(path)).st_mode):
            _require_regular(status, path)  # /dev/stdout must not be replaced by a file
    with _temporary_file(path, data, sync=sync) as temporary:
        temporary.replace(path)
    return path


def create(path: Path, data: bytes) -> Path:
    """Makes a new file with mode 0600 atomically: of several processes one succeeds, others get FileExistsError.

    On a file system without hard links others may read it before it is complete.
    """
    with _temporary_file(path, data, sync=False) as temporary:
        try:
            if link(temporary, path):
                return path
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            return _create_in_place(path, data)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _create_in_place(path: Path, data: bytes) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def link(source: Path, path: Path) -> bool:
    """Makes `path` a hard link to `source`, but never replaces a file, as a rename would; returns whether it is one.

    Of several processes with files of their own, one succeeds. OSError: no answer, or no hard links (WITHOUT_LINKS).
    """
    try:
        os.link(source, path)
    except FileExistsError:
        # NFS repeats a request whose reply was lost; the second one fails because of the first one's link.
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(source, path)
        return False
    return True


def append(path: AnyPath, line: str, *, sync: bool = False) -> None:
    """Appends a line, or several, to a file, made if missing. On a full disk it removes its part, as `write_all` does.

    sync: whether to wait until it is on disk; it is then a line of its own, though the one before may be cut off.
    """
    with open_to_append(path) as descriptor, naming(path):
        size = os.fstat(descriptor).st_size if sync else 0
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = "\n" + line
        write_all(descriptor, line.encode(), sync=sync)


@contextlib.contextmanager
def open_to_append(path: AnyPath) -> Iterator[int]:
    """Yields a descriptor to append to and read a file, made with mode 0600 if missing; OSError as `open_regular`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        _require_regular(os.fstat(descriptor), path)
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes, *, sync: bool) -> None:
    """Writes at the end of a file; after an OSError removes its part, unless another process has appended since."""
    left = data
    try:
        while left:  # on a full disk the first write is short, and the second one fails
            left = left[os.write(descriptor, left) :]
        if sync:  # NFS says only now that its disk is full
            os.fsync(descriptor)
    except OSError:
        part = data[: len(data) - len(left)]
        begin = os.fstat(descriptor).st_size - len(part)
        if part and os.pread(descriptor, len(part) + 1, begin) == part:  # nobody has appended since
            os.ftruncate(descriptor, begin)
        raise


@contextlib.contextmanager
def _temporary_file(path: Path, data: bytes, *, sync: bool) -> Iterator[Path]:
    # Writes data to a temporary file next to `path`, and yields its path; removes it at the end unless renamed
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
def naming(path: AnyPath) -> Iterator[None]:
    """Adds the file's name to OSErrors raised in the block that name no file, such as those of write and fsync."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def temporary_name(name: str) -> str:
    """Returns an unguessable name for a temporary file that will be renamed to `name`; at most NAME_MAX long."""
    return f".{name[:200]}.{os.urandom(8).hex()}"


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents, each with mode 0700 whatever the umask is; raises OSError."""
    missing = []
    for each in (path, *path.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            each.mkdir(mode=0o700)
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

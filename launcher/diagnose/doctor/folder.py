"""Checks the folder of runs (runs_dir): its file system, free space, and the file operations that runs need."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.diagnose.doctor.machine import GIB, MIB
from launcher.files.shared_files import LOCAL, kind_of
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import long_size

LEAST, ENOUGH = 64 * MIB, 2 * GIB  # bytes free: below LEAST is an error, below ENOUGH a warning
FEW_INODES = 10_000  # free inodes below this are a warning
SKEW = 5.0  # seconds by which the file server's clock may differ from this machine's


@dataclass(frozen=True)
class Space:
    """The file system of a folder."""

    kind: str  # the type of the file system (`nfs4`); empty: not known
    free: int  # free bytes
    inodes: int | None  # free inodes; None: the file system does not count inodes


@dataclass(frozen=True)
class Trial:
    """The results of trying file operations in the folder of runs."""

    failed: tuple[tuple[str, str], ...]  # (name, error) of each operation that failed
    skew: float  # seconds by which the file server's clock is ahead of this machine's
    took: float  # seconds that all operations took together


def space(folder: str, found: Space, *, queued: bool) -> Iterator[Finding]:
    """Checks the free space of the folder of runs, and that its file system is of a type that machines share.

    folder: the folder as the report shows it: runs_dir, or the parent in which it will be made.
    queued: whether the profile's scheduler starts runs on other machines.
    """
    inodes = "" if found.inodes is None else f", {found.inodes} inodes"
    text = f"{folder} on {found.kind or 'an unknown file system'}, {long_size(found.free)}{inodes} free"
    if found.free < LEAST:
        yield problem("runs_dir", text, "make room there, or set runs_dir to another folder")
    elif found.free < ENOUGH:
        yield warning("runs_dir", text, "checkpoints need more: make room there, or set runs_dir")
    elif found.inodes is not None and found.inodes < FEW_INODES:
        yield warning("runs_dir", text, "each run has dozens of files: remove what is not needed, or set runs_dir")
    elif queued and found.kind in LOCAL:
        yield warning(
            "runs_dir", f"{text}: this type is usually local to a machine, and all nodes must see the folder",
            "fine if it is exported to the nodes; else set runs_dir (or LAUNCHER_RUNS_DIR) to a shared folder",
        )  # fmt: skip
    else:
        yield ok("runs_dir", text)


def trial(folder: str, tried: Trial) -> Iterator[Finding]:
    """Reports which file operations work that runs need: private folders, atomic renames, links, locks, appends.

    tried: the results of `try_out` there.
    """
    if tried.failed:
        text = "; ".join(f"{what} does not work ({why})" for what, why in tried.failed)
        only_locks = all(what.endswith("lock") for what, _ in tried.failed)
        if only_locks:
            yield warning(
                "files", f"{folder}: {text}", "only the scheduler can then detect two simultaneous submissions of one "
                "run id; mount it with locks (NFS: without nolock)",
            )  # fmt: skip
        else:
            yield problem("files", f"{folder}: {text}", "set runs_dir (or LAUNCHER_RUNS_DIR) to another folder")
    elif abs(tried.skew) > SKEW:
        yield warning(
            "files", f"{folder}: its clock differs from this machine's by {tried.skew:.0f} s",
            "times of events and heartbeats come from both: have the clocks set (NTP)",
        )  # fmt: skip
    else:
        yield ok("files", f"private folders, atomic renames, links and locks work ({tried.took * 1000:.0f} ms)")


def probe(folder: Path, *, queued: bool) -> Iterator[Finding]:
    """Checks the folder of runs or, if it does not exist, its nearest existing parent. Removes the files it makes.

    folder: runs_dir as an absolute path.
    queued: whether the profile's scheduler starts runs on other machines.
    """
    there = folder
    while not there.is_dir() and there != there.parent:
        there = there.parent
    shown = str(there) if there == folder else f"{there} (for {folder}, which the first run makes)"
    try:
        yield from space(shown, probe_space(there), queued=queued)
        if there == folder and (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o022:
            yield warning(
                "runs_dir", f"others can write to {folder} (mode {mode:04o}): they could put runs there",
                f"chmod go-w {folder}",
            )  # fmt: skip
        yield from trial(shown, try_out(there))
    except OSError as error:
        yield problem(
            "runs_dir", f"{shown}: {error.strerror or error}",
            "set runs_dir (or LAUNCHER_RUNS_DIR) to a folder that you can write to and that all nodes share",
        )  # fmt: skip


def probe_space(folder: Path) -> Space:
    """Returns the type and the free space of a folder's file system. Raises OSError: the folder cannot be read."""
    found = os.statvfs(folder)
    return Space(kind_of(folder), shutil.disk_usage(folder).free, found.f_favail if found.f_files else None)


def try_out(folder: Path) -> Trial:
    """Tries the file operations that runs need in a temporary folder inside `folder`, and removes it.

    Raises OSError: the temporary folder cannot be made.
    """
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix=".launcher-doctor-", dir=folder))
    failed: list[tuple[str, str]] = []
    skew = 0.0
    try:
        for what, attempt in _ATTEMPTS.items():
            try:
                attempt(place)
            except OSError as error:
                failed.append((what, error.strerror or str(error)))
        with contextlib.suppress(OSError):
            (place / "clock").touch()
            skew = (place / "clock").stat().st_mtime - time.time()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Trial(tuple(failed), skew, time.monotonic() - began)


def _private(place: Path) -> None:
    (place / "private").mkdir(mode=0o700)
    mode = stat.S_IMODE((place / "private").stat().st_mode)
    if mode & 0o077:
        raise OSError(0, f"a folder made 0700 is {mode:04o}")


def _rename(place: Path) -> None:
    (place / "old").write_text("old")
    (place / "new").write_text("new")
    (place / "new").replace(place / "old")
    if (place / "old").read_text() != "new":
        raise OSError(0, "a renamed file has its old content")


def _link(place: Path) -> None:
    (place / "target").write_text("x")
    (place / "link").symlink_to("target")
    os.link(place / "target", place / "hard")  # a run's lease is taken by making a hard link


def _once(place: Path) -> None:
    (place / "once").mkdir()
    try:
        (place / "once").mkdir()
    except FileExistsError:
        return
    raise OSError(0, "a folder can be made twice")


def _append(place: Path) -> None:
    for word in ("a\n", "b\n"):
        with open(os.open(place / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(word)
            file.flush()
            os.fsync(file.fileno())
    if (place / "lines").read_text() != "a\nb\n":
        raise OSError(0, "lines that were appended are missing")


def _locked(lock: Callable[[int, int], None], name: str) -> Callable[[Path], None]:
    def attempt(place: Path) -> None:
        with open(place / name, "w") as file:
            lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    return attempt


_ATTEMPTS: dict[str, Callable[[Path], None]] = {
    "a private folder": _private,
    "an atomic rename": _rename,
    "links": _link,
    "making a folder once": _once,
    "appending": _append,
    "flock": _locked(fcntl.flock, "flock"),
    "lockf lock": _locked(fcntl.lockf, "lockf"),
}

"""Runs a node's agent with an environment that is unpacked on the node's own disk.

    python -m launcher.environment.unpack_on_node RUN_DIR

The first process on a node unpacks it, and the others wait. The last one that ends removes it: each holds a shared lock
on a file (flock), and one that can make its own exclusive is the last. A venv can be moved (pyvenv.cfg, PEP 405), but
for its scripts (`bin/torchrun`), which start the original Python. An archive of conda-pack has `conda-unpack`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from launcher.errors import UnavailableError
from launcher.failures.codes import FaultCode
from launcher.files.shared_files import kind_at
from launcher.own_module import own_module
from launcher.runs import directory
from launcher.runs.directory import report_start_failure

LOCK = "LAUNCHER_ARCHIVE"  # variable of the agent: DESCRIPTOR:FOLDER, arguments of `leave`
TIMES = "LAUNCHER_ARCHIVE_TIMES"  # variable of the agent that has unpacked: arguments of `summary` as JSON
PLACES = ("SLURM_TMPDIR", "PBS_JOBFS", "JOBFS", "TMPDIR")  # variables with a temporary folder; default: /tmp
SHARED = re.compile(  # types of file systems that other nodes see too
    r"(fuse\.)?(nfs4?|lustre|gpfs|beegfs\w*|ceph|cifs|smb3|panfs|pvfs2|wekafs|glusterfs|dfuse|daos|afs|sshfs|quobyte)"
)
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
PIECE = 1 << 20


class ArchiveError(RuntimeError):
    """The archive cannot be unpacked on this node."""


def place(environ: Mapping[str, str], usable: Callable[[str], bool]) -> str:
    """Returns where on this node the environment is unpacked; usable: writable, and not shared with other nodes."""
    named = [environ[name] for name in PLACES if environ.get(name)]
    return next((folder for folder in named if usable(folder)), "/tmp")  # noqa: S108  the folder in it is private


def shared(folder: str, mounts: str) -> bool:
    """Returns whether other nodes see a folder (without links) too, by the text of /proc/mounts."""
    return SHARED.fullmatch(kind_at(folder, mounts)) is not None


def _usable(folder: str) -> bool:
    try:
        mounts = Path("/proc/mounts").read_text(errors="replace")
        return os.access(folder, os.W_OK | os.X_OK) and not shared(os.path.realpath(folder), mounts)
    except (OSError, ValueError):
        return False


def unpack(archive: Path, folder: Path, digest: str) -> None:
    """Unpacks an archive with this SHA-256 into a new folder; raises ArchiveError, OSError.

    The archive is copied first, and the copy is verified and unpacked, so that nobody can change it in between.
    """
    folder.mkdir(mode=0o700)
    with open(archive, "rb") as file, tempfile.TemporaryFile(dir=folder.parent) as copy:
        found = hashlib.sha256()
        while piece := file.read(PIECE):
            found.update(piece)
            copy.write(piece)
        if found.hexdigest() != digest:
            raise ArchiveError(f"{archive} (env.archive) has changed since the run was submitted: `resume` the run")
        copy.seek(0)
        members = Members()
        # `Members` refuses what the filters of this Python's tarfile miss (CVE-2025-4517).
        filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        try:
            with _plain(archive, copy) as (stream, mode), tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
                tar.extractall(folder, members=members.of(tar), **filters)  # noqa: S202  each member is checked
            for name, target in members.interpreters.items():
                (folder / name).symlink_to(target)
        except (tarfile.TarError, EOFError, subprocess.SubprocessError, ArchiveError) as error:
            raise ArchiveError(f"{archive} (env.archive) cannot be unpacked: {error}") from None


class Members:
    """Checks the members of an archive by their names, so that none is extracted outside of the folder.

    | member | result |
    |---|---|
    | a file or a folder | extracted |
    | a link to a path within the folder | extracted |
    | `bin/python*`, a link to a Python outside of the folder, as in a venv (PEP 405) | created after all others |
    | an absolute name, or one with `..` | refused |
    | a member whose path is that of a link or leads through one | refused |
    | any other link to the outside; a hard link to anything but an earlier file of the archive | refused |
    | a device, a FIFO | refused |
    """

    def __init__(self) -> None:
        self.interpreters: dict[str, str] = {}
        self._links: set[PurePosixPath] = set()
        self._files: set[PurePosixPath] = set()

    def of(self, tar: Iterable[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
        """Yields the members to extract; raises ArchiveError: one is refused."""
        for member in map(self.allowed, tar):
            if str(PurePosixPath(member.name)) not in self.interpreters:
                yield member

    def allowed(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Returns the next member of the archive; raises ArchiveError: it is refused."""
        if problem := self._problem(member):
            raise ArchiveError(f"{member.name} {problem}")
        return member

    def _problem(self, member: tarfile.TarInfo) -> str | None:
        name = PurePosixPath(member.name)
        if not _inside(name):
            return "would be outside of the folder"
        if not self._links.isdisjoint([name, *name.parents]):
            return "would be within a link, or in its place"
        if member.isfile():
            self._files.add(name)
        elif member.issym():
            self._links.add(name)
            if not _inside(name.parent / member.linkname):
                if not name.match("bin/python*"):
                    return f"is a link that leaves the folder, to {member.linkname}"
                self.interpreters[str(name)] = member.linkname
        elif member.islnk():
            if PurePosixPath(member.linkname) not in self._files:
                return f"is a hard link to {member.linkname}, which is not a file of the archive"
            self._files.add(name)
        elif not member.isdir():
            return "is neither a file nor a folder nor a link"
        return None


def _inside(path: PurePosixPath) -> bool:
    return not path.is_absolute() and os.path.normpath(path).split("/")[0] != ".."


@contextlib.contextmanager
def _plain(archive: Path, source: IO[bytes]) -> Iterator[tuple[object, str]]:
    if archive.suffix != ".zst":
        yield source, "r|gz" if archive.suffix in (".gz", ".tgz") else "r|"
        return
    if shutil.which("zstd") is None:
        raise ArchiveError("it needs the command zstd, which is not on PATH: pack it as .tar.gz")
    process = subprocess.Popen(["zstd", "-dcq"], stdin=source, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process.stdout, "r|"
    finally:
        process.wait()
    if process.returncode > 0:
        raise tarfile.ReadError(f"zstd ended with {process.returncode}")


def enter(archive: Path, digest: str, base: str) -> tuple[int, Path, float | None]:
    """Unpacks an environment on this node, unless another process has, and locks it against removal; ArchiveError.

    Returns the descriptor of the lock, the environment's folder, and the seconds that it took (None: another process).
    """
    folder = Path(base) / f"launcher-{os.getuid()}-{digest[:16]}"
    while True:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise ArchiveError(f"{folder} exists, and is not a private folder of yours: remove it") from None
        except OSError as error:
            raise ArchiveError(f"{folder} cannot be made: {error.strerror}") from None
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the last process has just removed the folder
            continue
        try:
            seconds = _ensure_unpacked(lock, archive, digest, folder)
        except FileNotFoundError:
            os.close(lock)
            continue
        except BaseException:
            leave(lock, folder)
            raise
        return lock, folder / "env", seconds


def _ensure_unpacked(lock: int, archive: Path, digest: str, folder: Path) -> float | None:
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits for a process that unpacks
        _require_same(lock, folder)
        if (folder / "done").exists():
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process tries to unpack too
            time.sleep(0.02)
            continue
        _require_same(lock, folder)  # the shared lock is released before the exclusive one is granted
        seconds = None if (folder / "done").exists() else _unpack_and_check(archive, digest, folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return seconds


def _require_same(lock: int, folder: Path) -> None:
    if os.fstat(lock).st_ino != (folder / "lock").stat().st_ino:
        raise FileNotFoundError(folder)


def _unpack_and_check(archive: Path, digest: str, folder: Path) -> float:
    began, env = time.monotonic(), folder / "env"
    for old in (env, *folder.parent.glob(f"{folder.name}.*")):  # left by a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    try:
        unpack(archive, env, digest)
        if (env / "bin/conda-unpack").exists():
            subprocess.run([str(env / "bin/python"), str(env / "bin/conda-unpack")], check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise ArchiveError(f"{archive} (env.archive) cannot be unpacked into {folder}: {error}") from None
    if not os.access(env / "bin/python", os.X_OK):
        raise ArchiveError(f"{archive} (env.archive) has no Python that starts here (bin/python): see `env pack`")
    (folder / "done").touch()
    return time.monotonic() - began


def leave(lock: int, folder: Path) -> None:
    """Releases the lock, and removes the environment unless other processes use it."""
    gone = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}")
    with contextlib.suppress(OSError):  # in use, or already replaced by a new one
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _require_same(lock, folder)
        folder.rename(gone)  # so that a new process never finds half of it
        shutil.rmtree(gone, ignore_errors=True)
    os.close(lock)


def leave_own() -> None:
    """Calls `leave` for the unpacked environment that this process runs in, if any. The agent calls it when it ends."""
    if held := os.environ.get(LOCK):
        descriptor, _, folder = held.partition(":")
        with contextlib.suppress(OSError):
            leave(int(descriptor), Path(folder))


def print_summary(seconds: float) -> None:
    """Prints (`summary`, stderr) what unpacking took and saved, if this process did it; seconds: torch's import."""
    if times := os.environ.pop(TIMES, None):
        print(f"launcher: {summary(imported=seconds, **json.loads(times))}", file=sys.stderr, flush=True)


def summary(where: str, unpacked: float, imported: float, of: str | None, shared: float) -> str:
    """Returns a text on the seconds that unpacking and torch's import took, and (shared) its import from `of` did."""
    words = f"{where} in {unpacked:.1f} s, torch imported from there in {imported:.1f} s"
    if of is None:
        return words
    gain = shared - unpacked - imported
    verdict = f"{gain:.1f} s saved" if gain > 0 else "nothing saved"
    return f"{words}; {shared:.1f} s from {of} when it was packed: {verdict}"


def variables(env: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that activating the environment `env` would set."""
    kind = "CONDA_PREFIX" if (env / "conda-meta").is_dir() else "VIRTUAL_ENV"
    return {kind: str(env), "PATH": f"{env}/bin:{environ.get('PATH', os.defpath)}"}


def main(run_dir: str) -> int:
    os.umask(0o077)
    try:
        plan = directory.Run(Path(run_dir)).own_plan()
    except UnavailableError as error:
        return report_start_failure(None, "archive", error)
    assert plan.env.archive is not None
    try:
        lock, env, seconds = enter(Path(plan.env.archive), plan.archive.digest, place(os.environ, _usable))
        os.set_inheritable(lock, True)
        environ = {**os.environ, **variables(env, os.environ), LOCK: f"{lock}:{env.parent}"}
        environ.pop("PYTHONHOME", None)
        if seconds is not None:
            where = f"{socket.gethostname()}: {Path(plan.env.archive).name} unpacked into {env.parent.parent}"
            about = {"where": where, "unpacked": seconds, "of": plan.archive.of, "shared": plan.archive.import_time}
            environ[TIMES] = json.dumps(about)
        words = [str(env / "bin/python"), "-u", *own_module("launcher.agent"), run_dir]
        os.execve(words[0], words, environ)  # noqa: S606  a list of words needs no shell
    except (ArchiveError, OSError) as error:
        return report_start_failure(plan, "archive", error, FaultCode.ARCHIVE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

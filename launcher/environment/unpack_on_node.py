"""Runs a node's agent with an environment unpacked on the node's own disk: `python -m
launcher.environment.unpack_on_node RUN_DIR`.

Thousands of small files that every node reads from a shared file system at once become one large file that each reads
in sequence. The first process of a node unpacks it and the others wait; the last that leaves removes it. Each holds a
shared lock on one file (flock), and whoever can turn it into an exclusive one is alone.

A venv finds what is installed by the place of its `bin/python` (pyvenv.cfg beside it, PEP 405), so it may be moved as
long as it is used by that: nothing in it is rewritten. Its scripts (`bin/torchrun`) begin with the path where it was
made, and still start that one. What conda-pack has packed brings `conda-unpack`, which is run.
Standard library only; .tar.zst needs the command zstd.
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
from launcher.files.shared_folder import kind_at
from launcher.own_module import own_module
from launcher.runs import directory
from launcher.runs.event_writer import not_begun

HELD = "LAUNCHER_ARCHIVE"  # in the agent: DESCRIPTOR:FOLDER
TOLD = "LAUNCHER_ARCHIVE_TOLD"  # in the first agent: what is said of importing torch
PLACES = ("SLURM_TMPDIR", "PBS_JOBFS", "JOBFS", "TMPDIR")  # folders of the job, those on the node's own disk; else /tmp
SHARED = re.compile(  # types of file systems that other nodes see too
    r"(fuse\.)?(nfs4?|lustre|gpfs|beegfs\w*|ceph|cifs|smb3|panfs|pvfs2|wekafs|glusterfs|dfuse|daos|afs|sshfs|quobyte)"
)
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
PIECE = 1 << 20


class ArchiveError(RuntimeError):
    """The archive cannot be unpacked on this node."""


def place(environ: Mapping[str, str], usable: Callable[[str], bool]) -> str:
    """The folder for it on this node. Pure."""
    named = [environ[name] for name in PLACES if environ.get(name)]
    return next((folder for folder in named if usable(folder)), "/tmp")  # noqa: S108  what is made in it is private


def shared(folder: str, mounts: str) -> bool:
    """Whether other nodes see a folder (its real path) as well, by the text of /proc/mounts. Pure."""
    return SHARED.fullmatch(kind_at(folder, mounts)) is not None


def _usable(folder: str) -> bool:
    try:
        return os.access(folder, os.W_OK | os.X_OK) and not shared(
            os.path.realpath(folder), Path("/proc/mounts").read_text(errors="replace")
        )
    except (OSError, ValueError):
        return False


def unpack(archive: Path, folder: Path, digest: str) -> None:
    """Unpacks into a new folder: a private copy of the archive, whose checksum has been compared.

    Raises:
        ArchiveError: it is another archive than `digest` (sha256) says, or damaged, or cannot be read, or one of its
            files would be outside of the folder.
        OSError: the disk is full, say.
    """
    folder.mkdir(mode=0o700)
    with open(archive, "rb") as file, tempfile.TemporaryFile(dir=folder.parent) as copy:
        found = hashlib.sha256()
        while piece := file.read(PIECE):
            found.update(piece)
            copy.write(piece)
        if found.hexdigest() != digest:
            raise ArchiveError(f"{archive} (env.archive) is another one than when the run was submitted: `resume` it")
        copy.seek(0)
        members = Members()
        # Whatever the filters of this Python's tarfile miss (CVE-2025-4517), `Members` has refused.
        filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        try:
            with _plain(archive, copy) as (stream, mode), tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
                tar.extractall(folder, members=members.of(tar), **filters)  # noqa: S202  each is looked at
            for name, target in members.interpreters.items():
                (folder / name).symlink_to(target)
        except (tarfile.TarError, EOFError, subprocess.SubprocessError, ArchiveError) as error:
            raise ArchiveError(f"{archive} (env.archive) cannot be unpacked: {error}") from None


class Members:
    """The members of an archive that may be extracted, by their names alone: none of them is outside of the folder.

    | member | |
    |---|---|
    | a file or a folder | extracted |
    | a link to what is inside | extracted |
    | `bin/python*`, a link to a Python that is elsewhere, as in a venv (PEP 405) | made when all else is there |
    | an absolute name, or one with `..` | refused |
    | a member within a link, or a second one of a link's name | refused |
    | any other link that leaves; a hard link to what is no file of the archive | refused |
    | a device, a FIFO | refused |

    Attributes:
        interpreters: targets of the links to a Python that is elsewhere, by name.
    """

    def __init__(self) -> None:
        self.interpreters: dict[str, str] = {}
        self._links: set[PurePosixPath] = set()
        self._files: set[PurePosixPath] = set()

    def of(self, tar: Iterable[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
        """
        Raises:
            ArchiveError: a member is refused.
        """
        for member in map(self.allowed, tar):
            if str(PurePosixPath(member.name)) not in self.interpreters:
                yield member

    def allowed(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """The next member.

        Raises:
            ArchiveError: it is refused.
        """
        if problem := self._problem(member):
            raise ArchiveError(f"{member.name} {problem}")
        return member

    def _problem(self, member: tarfile.TarInfo) -> str | None:
        """Why a member, the next one, is refused; None: it is not."""
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
                return f"is a hard link to {member.linkname}, which is no file of the archive"
            self._files.add(name)
        elif not member.isdir():
            return "is neither a file nor a folder nor a link"
        return None


def _inside(path: PurePosixPath) -> bool:
    """Whether a path from a folder stays in it. Pure."""
    return not path.is_absolute() and os.path.normpath(path).split("/")[0] != ".."


@contextlib.contextmanager
def _plain(archive: Path, source: IO[bytes]) -> Iterator[tuple[object, str]]:
    """What tarfile reads, and how."""
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
    """The environment on this node: a descriptor that holds it, its folder, and the seconds that unpacking took.

    Seconds are None when another process of this node has unpacked it.

    Raises:
        ArchiveError: it cannot be had.
    """
    folder = Path(base) / f"launcher-{os.getuid()}-{digest[:16]}"
    while True:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise ArchiveError(f"{folder} is there, and is not a private folder of yours: remove it") from None
        except OSError as error:
            raise ArchiveError(f"{folder} cannot be made: {error.strerror}") from None
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the last one has just left, and removed it
            continue
        try:
            seconds = _filled(lock, archive, digest, folder)
        except FileNotFoundError:
            os.close(lock)
            continue
        except BaseException:
            leave(lock, folder)
            raise
        return lock, folder / "env", seconds


def _filled(lock: int, archive: Path, digest: str, folder: Path) -> float | None:
    """Unpacks it, unless another process has; holds a shared lock afterwards. As for `enter`.

    Raises:
        FileNotFoundError: the last one has left meanwhile, and removed the folder.
        ArchiveError: it cannot be unpacked.
    """
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits for one that unpacks
        _require_same(lock, folder)
        if (folder / "done").exists():
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # others are here as early
            time.sleep(0.02)
            continue
        _require_same(lock, folder)  # one lock is given up before the other is had
        seconds = None if (folder / "done").exists() else _fill(archive, digest, folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return seconds


def _require_same(lock: int, folder: Path) -> None:
    if os.fstat(lock).st_ino != (folder / "lock").stat().st_ino:
        raise FileNotFoundError(folder)


def _fill(archive: Path, digest: str, folder: Path) -> float:
    began, env = time.monotonic(), folder / "env"
    for old in (env, *folder.parent.glob(f"{folder.name}.*")):  # of one that was killed
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
    """Removes it, unless others are still there."""
    gone = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}")
    with contextlib.suppress(OSError):  # or another one is in its place
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _require_same(lock, folder)
        folder.rename(gone)  # whoever comes now finds none, and never half of one
        shutil.rmtree(gone, ignore_errors=True)
    os.close(lock)


def left() -> None:
    """The agent has ended: leaves what this process was started in, if it was."""
    if held := os.environ.get(HELD):
        descriptor, _, folder = held.partition(":")
        with contextlib.suppress(OSError):
            leave(int(descriptor), Path(folder))


def tell(seconds: float) -> None:
    """Says how long torch took to import from the node's disk, in the process that has unpacked it."""
    if told := os.environ.pop(TOLD, None):
        print(f"launcher: {saved(imported=seconds, **json.loads(told))}", file=sys.stderr, flush=True)


def saved(where: str, unpacked: float, imported: float, of: str | None, shared: float) -> str:
    """What it cost and saved, in seconds; `shared`: importing from the environment that was packed. Pure."""
    words = f"{where} in {unpacked:.1f} s, torch imported from there in {imported:.1f} s"
    if of is None:
        return words
    gain = shared - unpacked - imported
    verdict = f"{gain:.1f} s saved" if gain > 0 else "nothing saved"
    return f"{words}; {shared:.1f} s from {of} when it was packed: {verdict}"


def variables(env: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What activation would set. Pure."""
    kind = "CONDA_PREFIX" if (env / "conda-meta").is_dir() else "VIRTUAL_ENV"
    return {kind: str(env), "PATH": f"{env}/bin:{environ.get('PATH', os.defpath)}"}


def main(run_dir: str) -> int:
    os.umask(0o077)
    try:
        plan = directory.Run(Path(run_dir)).own_plan()
    except UnavailableError as error:
        return not_begun(None, "archive", error)
    assert plan.archive is not None
    try:
        lock, env, seconds = enter(Path(plan.archive), plan.archive_digest, place(os.environ, _usable))
        os.set_inheritable(lock, True)
        environ = {**os.environ, **variables(env, os.environ), HELD: f"{lock}:{env.parent}"}
        environ.pop("PYTHONHOME", None)
        if seconds is not None:
            where = f"{socket.gethostname()}: {Path(plan.archive).name} unpacked into {env.parent.parent}"
            about = {"where": where, "unpacked": seconds, "of": plan.archive_of, "shared": plan.archive_import}
            environ[TOLD] = json.dumps(about)
        words = [str(env / "bin/python"), "-u", *own_module("launcher.agent"), run_dir]
        os.execve(words[0], words, environ)  # noqa: S606  a list of words needs no shell
    except (ArchiveError, OSError) as error:
        return not_begun(plan, "archive", error, FaultCode.ARCHIVE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

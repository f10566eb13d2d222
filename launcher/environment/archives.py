"""Environments as archives (env.archive): makes them (`env pack`), checks them at submission, unpacks them on a node.

`python -m launcher.environment.archives RUN_DIR` starts a node's agent with the environment on the node's own disk. The
first process on a node unpacks it, the last one that ends removes it: each holds a shared lock (flock), and one that
can make its own exclusive is the last. A venv can be moved (pyvenv.cfg, PEP 405), but for its scripts
(`bin/torchrun`), which start the original Python. An archive of conda-pack has `conda-unpack`.

Facts about an archive FILE, such as its checksum, are in FILE.json, or cached in the user's cache folder (archives/).
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from launcher.errors import ConfigError, RunError, UnavailableError, is_transient, program
from launcher.failures.codes import FaultCode
from launcher.files import safe_io
from launcher.files.folder_checks import kind_at
from launcher.files.safe_io import digest_of, write
from launcher.paths import absolute, own_module, user_cache_dir
from launcher.plan.plan import Archive, JobPlan
from launcher.runs import directory
from launcher.runs.directory import report_start_failure

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
EXCLUDED = ("/share/man/", "/pip-selfcheck")  # paths with one of these are not packed: a job does not need them


class ArchiveError(RuntimeError):
    """The archive cannot be unpacked on this node, or has members that it may not have."""


def checked(name: str) -> tuple[str, Archive]:
    """Returns env.archive's absolute path, and the plan's section `archive`; raises ConfigError."""
    key = f"env.archive={name}"
    path = absolute(name)
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(
            f"{key} is none of {', '.join(SUFFIXES)}: make one with `{program()} env pack FOLDER {path.name}.tar.gz`"
        )
    if not path.is_file():
        raise ConfigError(
            f"{key}: there is no file {path.name} in {path.parent}: make it with `{program()} env pack FOLDER {name}`"
        )
    cached = user_cache_dir() / "archives" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.json"
    facts = _read_facts(Path(f"{path}.json"), path) or _read_facts(cached, path) or _compute_facts(cached, path)
    return str(path), Archive(facts["sha256"], facts.get("of"))


def _read_facts(file: Path, path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text())
        return dict(facts) if facts["sha256"] and facts.items() >= _stamp(path).items() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _compute_facts(file: Path, path: Path) -> dict[str, Any]:
    facts = {**_stamp(path), "sha256": digest_of(path)}
    with contextlib.suppress(OSError):
        safe_io.make_folder(file.parent)
        write(file, json.dumps(facts), sync=False)
    return facts


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def pack(folder: Path, archive: Path) -> dict[str, Any]:
    """Packs a venv into an archive, and writes its facts to FILE.json.

    Raises ConfigError: ranks could not run in this venv, or the archive's name has a wrong suffix. RunError: no space.
    """
    from launcher.environment import programs  # nodes import this module, and check nothing

    if not archive.name.endswith(SUFFIXES):
        raise ConfigError(f"{archive} is none of {', '.join(SUFFIXES)}")
    programs.checked(str(folder), "", here=True)
    if (folder / "conda-meta").is_dir():
        raise ConfigError(
            f"{folder} is an environment of conda: `conda-pack -p {folder} -o {archive}` makes an archive of it"
        )
    if not archive.parent.is_dir():
        raise ConfigError(f"{archive} cannot be written: there is no folder {archive.parent}")
    if archive.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{archive} would be within {folder}: write it elsewhere")
    part, members = archive.with_name(safe_io.temporary_name(archive.name)), Members()
    try:
        with _compressed(part, archive.name) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            for path in sorted(folder.rglob("*")):
                if not any(each in f"/{path.relative_to(folder)}" for each in EXCLUDED):
                    tar.add(path, str(path.relative_to(folder)), recursive=False, filter=members.allowed)
        part.replace(archive)
    except (OSError, subprocess.SubprocessError, ArchiveError) as error:
        raise RunError(f"{archive} cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    facts = {**_stamp(archive), "sha256": digest_of(archive), "of": str(folder)}
    Path(f"{archive}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


@contextlib.contextmanager
def _compressed(path: Path, name: str) -> Iterator[IO[bytes]]:
    if name.endswith((".gz", ".tgz")):
        with gzip.open(path, "wb", compresslevel=1) as stream:
            yield stream  # type: ignore[misc]
        return
    if not name.endswith(".zst"):
        with path.open("wb") as stream:
            yield stream
        return
    if shutil.which("zstd") is None:
        raise ConfigError(f"{name} needs the command zstd, which is not on PATH: use .tar.gz, or .tar")
    with subprocess.Popen(["zstd", "-q", "-T0", "-3", "-o", str(path)], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        yield process.stdin
    if process.returncode:
        raise OSError(f"zstd ended with {process.returncode}")


def default_folder() -> Path:
    if not (Path(sys.prefix) / "pyvenv.cfg").is_file():
        raise ConfigError(f"{sys.executable} belongs to no venv: name the FOLDER of one")
    return Path(sys.prefix)


# -- Unpacks an archive on a node, and starts the agent with it


LOCK = "LAUNCHER_ARCHIVE"  # variable of the agent: DESCRIPTOR:FOLDER, arguments of `leave`
PLACES = ("SLURM_TMPDIR", "PBS_JOBFS", "JOBFS", "TMPDIR")  # variables with a temporary folder; default: /tmp
SHARED = re.compile(  # types of file systems that other nodes see too
    r"(fuse\.)?(nfs4?|lustre|gpfs|beegfs\w*|ceph|cifs|smb3|panfs|pvfs2|wekafs|glusterfs|dfuse|daos|afs|sshfs|quobyte)"
)
PIECE = 1 << 20


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
    """Unpacks a copy of an archive, which nobody can change, with this SHA-256; raises ArchiveError, OSError."""
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


def enter(archive: Path, digest: str, base: str) -> tuple[int, Path]:
    """Unpacks an environment, unless another process has; returns the lock's descriptor, the folder; ArchiveError."""
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
            _ensure_unpacked(lock, archive, digest, folder)
        except FileNotFoundError:
            os.close(lock)
            continue
        except BaseException:
            leave(lock, folder)
            raise
        return lock, folder / "env"


def _ensure_unpacked(lock: int, archive: Path, digest: str, folder: Path) -> None:
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits for a process that unpacks
        _require_same(lock, folder)
        if (folder / "done").exists():
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process tries to unpack too
            time.sleep(0.02)
            continue
        _require_same(lock, folder)  # the shared lock is released before the exclusive one is granted
        if not (folder / "done").exists():
            _unpack_and_check(archive, digest, folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return


def _require_same(lock: int, folder: Path) -> None:
    if os.fstat(lock).st_ino != (folder / "lock").stat().st_ino:
        raise FileNotFoundError(folder)


def _unpack_and_check(archive: Path, digest: str, folder: Path) -> None:
    env = folder / "env"
    for old in (env, *folder.parent.glob(f"{folder.name}.*")):  # left by a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    try:
        unpack(archive, env, digest)
        if (env / "bin/conda-unpack").exists():
            subprocess.run([str(env / "bin/python"), str(env / "bin/conda-unpack")], check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        kind = UnavailableError if is_transient(error) else ArchiveError
        raise kind(f"{archive} (env.archive) cannot be unpacked into {folder}: {error}") from None
    if not os.access(env / "bin/python", os.X_OK):
        raise ArchiveError(f"{archive} (env.archive) has no Python that starts here (bin/python): see `env pack`")
    (folder / "done").touch()


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


def variables(env: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that activating the environment `env` would set."""
    kind = "CONDA_PREFIX" if (env / "conda-meta").is_dir() else "VIRTUAL_ENV"
    return {kind: str(env), "PATH": f"{env}/bin:{environ.get('PATH', os.defpath)}"}


def main(run_dir: str) -> int:
    os.umask(0o077)
    plan: JobPlan | None = None
    try:
        plan = directory.Run(Path(run_dir)).plan()
        assert plan.env.archive is not None
        lock, env = enter(Path(plan.env.archive), plan.archive.digest, place(os.environ, _usable))
        os.set_inheritable(lock, True)
        environ = {**os.environ, **variables(env, os.environ), LOCK: f"{lock}:{env.parent}"}
        environ.pop("PYTHONHOME", None)
        words = [str(env / "bin/python"), "-u", *own_module("launcher.agent"), run_dir]
        os.execve(words[0], words, environ)  # noqa: S606  a list of words needs no shell
    except (ArchiveError, OSError) as error:
        return report_start_failure(plan, "archive", error, FaultCode.ARCHIVE if plan else FaultCode.UNREADABLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

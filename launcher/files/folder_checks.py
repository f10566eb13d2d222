"""Who owns a folder, who may write to it, which folders of others the user trusts, and which ones nodes can see.

A run directory holds programs that a job executes, ids of processes that `cancel` signals, and pages that a browser
opens. Another user who can write to the directory, or replace it by another one, controls all of these. So a folder
counts as the user's own only if it and each of its parents, from `/` down, are safe by this table:

| a folder | as a parent | as the last folder |
|---|---|---|
| owned by the user, writable by nobody else | safe | safe |
| owned by root, writable by nobody else | safe | not the user's own |
| owned by the user or root, writable by others, sticky (`/tmp`) | safe: nobody renames others' entries | not private |
| owned by the user or root, writable by a group or by all | replaceable | not private |
| owned by another user | replaceable by that user | another user's |
| in $LAUNCHER_TRUSTED_FOLDERS: the user trusts all who can replace what is in it | safe | as above |
| below a folder of the user that nobody else may enter | safe in any mode: nobody else reaches it | as above |
| a symbolic link of the user or root, in a safe folder | safe | not the user's own |

A group that contains only the user and has the user's name does not count as others (on systems with umask 002 every
home directory has such a group), unless an access control list names others.

Each folder of a path is opened relative to the one before, without following links, so that none can be exchanged
during the check. Afterwards nobody else can replace one that was found safe, so it may be used by its path.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import stat
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from launcher.errors import ConfigError, RunError
from launcher.fast_dataclasses import Struct
from launcher.files import permission_bits, safe_io
from launcher.files.retried_reads import retry_read, unwrap
from launcher.paths import user_config_dir

TRUSTED_FOLDERS = "LAUNCHER_TRUSTED_FOLDERS"  # variable; several folders have `:` in between
# O_PATH: a folder on the way may not be readable. Only Linux has it; elsewhere such a folder is unavailable
_OPEN = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # as many as the kernel follows: man 7 path_resolution
_ANYBODY = Path("/proc/sys/kernel/overflowuid")  # the uid shown for owners that a user namespace does not map


class Folder(Struct):
    path: str
    uid: int
    gid: int
    mode: int  # st_mode
    listed: bool = False  # whether it has an access control list


class User(Struct):
    uid: int
    private_group: int = -1


def problem(folders: Sequence[Folder], user: User, trusted: Sequence[str] = ()) -> str | None:
    """Returns why the last of a path's folders (from `/`) is not the user's own, by the module's table, or None."""
    *way, last = folders
    if last.uid != user.uid:
        return f"{last.path} belongs to {user_name(last.uid)}, not to you"
    if _writers(last, user):
        return f"{_writers(last, user)} can write to {last.path} (`chmod 700 {last.path}` after a look into it)"
    return replaceable(way, user, trusted)


def replaceable(way: Sequence[Folder], user: User, trusted: Sequence[str] = ()) -> str | None:
    """Returns who else could replace a folder below this path (from `/`); None: nobody."""
    for each in way:
        safe = each.path in trusted
        if not safe and each.uid not in (0, user.uid):
            return f"{each.path} belongs to {user_name(each.uid)}, who can replace what is in it"
        if not safe and _writers(each, user) and not each.mode & stat.S_ISVTX:
            return f"{_writers(each, user)} can replace what is in {each.path}"
        if each.uid == user.uid and not each.mode & (stat.S_IXGRP | stat.S_IXOTH):
            return None  # nobody else can enter the folders below
    return None


def _writers(folder: Folder, user: User) -> str:
    found = permission_bits.others(folder.mode, folder.gid, user.private_group, folder.listed)
    return f"group {_group(folder.gid)}" if found == permission_bits.GROUP else found or ""


def why_not_own(path: Path | str) -> str | None:
    """Returns why a folder (not a link) is not this user's own, or None; raises FileNotFoundError."""
    parent, name = os.path.split(os.path.abspath(path))
    return problem(_folders(os.path.join(os.path.realpath(parent), name)), _user(), trusted_folders())


def why_replaceable(path: Path | str) -> str | None:
    user, trusting = _user(), trusted_folders()
    for link in _links(os.path.abspath(path)):
        holder = os.path.dirname(link)
        owner = _owner(os.lstat(link))
        if holder not in trusting and owner not in (0, user.uid):
            return f"{link} is a link of {user_name(owner)}, who can make it lead elsewhere"
        if why := replaceable(_folders(holder), user, trusting):
            return why
    there = next(each for each in (Path(path).absolute(), *Path(path).absolute().parents) if each.is_dir())
    return replaceable(_folders(os.path.realpath(there)), user, trusting)


def is_own(path: Path | str) -> bool:
    """Returns whether a folder is this user's own; False also if it cannot be checked."""
    try:
        return why_not_own(path) is None
    except (OSError, RunError):
        return False


def require_own(path: Path, action: str) -> None:
    """Raises RunError before an action (`resume it`) on a run or sweep that is not this user's own."""
    if why := why_not_own(path):
        raise RunError(
            f"{why}: {path} is only shown (status, logs, why, post-mortem, report -o FILE), and nothing of it is "
            f"executed, opened or signalled; so you cannot {action}"
        )


def require_safe_way(folder: Path, setting: str) -> None:
    """Raises ConfigError if others could replace the folder, of this setting (`runs_dir=/runs`), for new runs."""
    if why := why_replaceable(folder):
        raise ConfigError(
            f"{setting}: {why}, and so decide what your jobs run. Choose a folder below one that only you can write to "
            f"(mkdir -m 700), or, if you trust all who can do that, name the folder in ${TRUSTED_FOLDERS}"
        )


def _folders(path: str) -> list[Folder]:
    found = unwrap(retry_read(lambda: _walked(path), path))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return found


def _walked(path: str) -> list[Folder]:
    here = os.open("/", _OPEN)
    try:
        found = [_folder("/", here)]
        for name in path.split("/"):
            if name:
                inside = os.open(name, _OPEN, dir_fd=here)
                os.close(here)
                here = inside
                found.append(_folder(f"{found[-1].path.rstrip('/')}/{name}", here))
        return found
    finally:
        os.close(here)


def _links(path: str) -> list[str]:
    found: list[str] = []
    here, rest = "/", [part for part in path.split("/") if part]
    while rest and len(found) < _MAX_LINKS:
        name, *rest = rest
        here = os.path.normpath(os.path.join(here, name))
        if os.path.islink(here):
            found.append(here)
            target = os.readlink(here)
            here = "/" if target.startswith("/") else os.path.dirname(here)
            rest = [*(part for part in target.split("/") if part), *rest]
    return found


def _folder(path: str, descriptor: int) -> Folder:
    status = os.fstat(descriptor)
    listed = permission_bits.has_list(f"/proc/self/fd/{descriptor}")
    return Folder(path, _owner(status), status.st_gid, status.st_mode, listed)


def _owner(status: os.stat_result) -> int:
    return 0 if status.st_uid == _unmapped() else status.st_uid


@cache
def _unmapped() -> int | None:
    # None: this process is in no such namespace, which none enters later
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return None
        return int(_ANYBODY.read_text())
    except (OSError, ValueError):
        return None


def trusted_folders() -> list[str]:
    """Returns the real paths of the folders in $LAUNCHER_TRUSTED_FOLDERS; relative ones are ignored."""
    return [os.path.realpath(each) for each in os.environ.get(TRUSTED_FOLDERS, "").split(":") if each.startswith("/")]


def _user() -> User:
    return User(os.getuid(), permission_bits.private_group(os.getuid()))


def user_name(uid: int) -> str:
    """Returns the login name of a user id; `user 1234` if this machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# -- Secrets (random bytes) by which processes of one user recognise each other, in files that only this user can read
#
# Each run has one in its directory (`Run.secret`); processes that form a group without a run use that of their user.


SECRET_BYTES = 32
SECRET_VARIABLE, MIN_LENGTH = "LAUNCHER_SECRET", 16


class SecretError(RunError):
    """The secret cannot be used: it is missing, damaged, too short, or readable by others."""


def secret_of_file(path: Path) -> bytes:
    """Returns the secret in a file, made if missing; raises OSError, or SecretError (damaged, others can read it)."""
    if not path.exists():
        make_secret(path)
    with open(path, "rb") as file:
        mode, secret = os.fstat(file.fileno()).st_mode, file.read(SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        raise SecretError(f"{path} is damaged: it has {len(secret)} bytes instead of {SECRET_BYTES}; remove it")
    if mode & 0o077:
        raise SecretError(f"others can read {path}: remove it, and a new one is made")
    return secret


def make_secret(path: Path) -> None:
    """Makes a file with a new secret, atomically, unless another process makes it first; raises OSError."""
    with contextlib.suppress(FileExistsError):
        safe_io.create(path, os.urandom(SECRET_BYTES))


def secret_of_user() -> bytes:
    """Returns this user's secret: $LAUNCHER_SECRET, or that in the user's config folder; raises SecretError."""
    if given := os.environ.get(SECRET_VARIABLE):
        if len(given) < MIN_LENGTH:
            raise SecretError(f"{SECRET_VARIABLE} has {len(given)} characters, too few: use {MIN_LENGTH} or more")
        return given.encode()
    path = user_config_dir() / "secret"
    try:
        safe_io.make_folder(path.parent)
        return secret_of_file(path)
    except OSError as error:
        raise SecretError(
            f"{path} can neither be read nor made ({error.strerror or error}): set {SECRET_VARIABLE} to the same "
            "random text in all processes of the job"
        ) from None


# -- Checks before a submission whether compute nodes can see the folder of runs, as far as this machine can tell


# Types of file systems that only one machine sees (statfs(2), /proc/mounts).
IN_MEMORY = ("tmpfs", "ramfs")
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "reiserfs", "vfat", *IN_MEMORY)
SEEN = ".nodes-see-this"  # file in the folder of runs; the first job script that starts there makes it


def kind_of(folder: Path) -> str:
    """Returns the type of the file system of an absolute path (`nfs4`); empty: unknown."""
    try:
        return kind_at(str(folder.resolve()), Path("/proc/mounts").read_text(errors="replace"))
    except OSError:
        return ""


def kind_at(folder: str, mounts: str) -> str:
    """Returns the type of the file system that holds a path without links: that of the longest mount point."""
    longest, kind = "", ""
    for line in mounts.splitlines():
        _, point, found, *_ = [*line.split(" "), "", ""]
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point).rstrip("/")  # man 5 fstab
        if len(point) >= len(longest) and (folder == point or folder.startswith(f"{point}/")):
            longest, kind = point, found  # of two mounts on one mount point, the later one hides the other
    return kind


def check_visible(folder: Path, kind: str, *, seen: bool, nodes: Collection[str], here: Collection[str]) -> str | None:
    """Checks whether nodes can see the folder of runs; returns a warning for the user, or None.

    | first row that applies | result |
    |---|---|
    | the folder has the file SEEN: a job has started there before | None |
    | all nodes are this machine | None |
    | the folder is in this machine's memory | ConfigError: no other machine can see it |
    | its file system is of a type that is usually local | a warning: this machine may export it, or not |
    | its file system is of another type, or an unknown one | None |

    Raises ConfigError: no node can see the folder.
    """
    if seen or kind not in LOCAL or set(nodes) <= set(here):
        return None
    if kind in IN_MEMORY:
        raise ConfigError(
            f"runs_dir={folder} is in this machine's memory ({kind}), and {', '.join(sorted(nodes)[:3])} cannot see "
            "it: set runs_dir (or LAUNCHER_RUNS_DIR) to a folder that all nodes share"
        )
    return (
        f"runs_dir={folder} is on {kind}, usually a local disk: unless this machine exports it to the compute nodes, "
        "the job will never start"
    )

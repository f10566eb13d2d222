"""Who owns a folder, and who else could replace it: decides whether its contents may be executed, signalled or written.

A run directory holds programs that a job executes, ids of processes that `cancel` signals, and pages that a browser
opens. One who can write to it, or put another folder in its place, decides what those are. So a folder is the user's
own only if that is true of it and of every folder on the way from `/`:

| a folder | on the way | the last one |
|---|---|---|
| of the user, writable by nobody else | fine | fine |
| of root, writable by nobody else | fine | not the user's own |
| of the user or root, writable by others, sticky (`/tmp`) | fine: others can rename only what is theirs | not private |
| of the user or root, writable by a group or by all | can be replaced | not private |
| of somebody else | can be replaced by that user | somebody else's |
| that the user trusts (launcher/files/trusted_folders.py) | fine | as above |
| below a folder of the user that nobody else may enter | fine, whatever its mode: nobody else reaches it | as above |
| a symbolic link of the user or root, in a folder that is fine | fine | not the user's own |

A group of the user alone, with the user's name, counts as nobody else (on systems with umask 002 every home has one),
unless an access control list names others.
The folders are opened one after the other, each relative to the one before and without following links, so what was
looked at is what is on the way. What is found fine cannot be replaced afterwards, so it may be used by its path: jobs
on other machines have nothing but that.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError, RunError
from launcher.files import trusted_folders, writers
from launcher.files.shared_files import known, tried

_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as many as the kernel follows: man 7 path_resolution
_ANYBODY = Path("/proc/sys/kernel/overflowuid")


@dataclass(frozen=True)
class Folder:
    """One folder: its path, owner, group, mode (st_mode), and whether an access control list names others."""

    path: str
    uid: int
    gid: int
    mode: int
    listed: bool = False


@dataclass(frozen=True)
class User:
    """Who asks: id, and the group that has nobody else in it (-1: there is none)."""

    uid: int
    private_group: int = -1


def problem(folders: Sequence[Folder], user: User, trusted: Sequence[str] = ()) -> str | None:
    """Why the last folder is not the user's own, by the table above; None: it is. Pure.

    Args:
        folders: from `/` on.
        user: who asks.
        trusted: paths of folders whose owners and groups are trusted not to replace what is in them.
    """
    *way, last = folders
    if last.uid != user.uid:
        return f"{last.path} belongs to {_name(last.uid)}, not to you"
    if _writers(last, user):
        return f"{_writers(last, user)} can write to {last.path} (`chmod 700 {last.path}` after a look into it)"
    return replaceable(way, user, trusted)


def replaceable(way: Sequence[Folder], user: User, trusted: Sequence[str] = ()) -> str | None:
    """Who could put another folder into the place of one on the way, in words; None: nobody can. Pure.

    Args:
        way: the folders from `/` on.
        user: who asks.
        trusted: as for `problem`.
    """
    for each in way:
        fine = each.path in trusted
        if not fine and each.uid not in (0, user.uid):
            return f"{each.path} belongs to {_name(each.uid)}, who can replace what is in it"
        if not fine and _writers(each, user) and not each.mode & stat.S_ISVTX:
            return f"{_writers(each, user)} can replace what is in {each.path}"
        if each.uid == user.uid and not each.mode & (stat.S_IXGRP | stat.S_IXOTH):
            return None  # nobody else gets any further
    return None


def _writers(folder: Folder, user: User) -> str:
    """Who besides its owner can write to a folder; empty: nobody."""
    found = writers.others(folder.mode, folder.gid, user.private_group, folder.listed)
    return f"group {_group(folder.gid)}" if found == writers.GROUP else found or ""


def why_not_own(path: Path | str) -> str | None:
    """Why a folder is not the user's own; None: it is. A link to one is none, but links on the way are followed.

    Raises:
        UnavailableError: nobody can tell now.
        FileNotFoundError: it is not there.
    """
    parent, name = os.path.split(os.path.abspath(path))
    folders = _folders(os.path.join(os.path.realpath(parent), name))
    return _unless_trusted(lambda trusting: problem(folders, _user(), trusting))


def why_replaceable(path: Path | str) -> str | None:
    """Why a folder that is, or is to be, at a path could be replaced by others for another one; None: it cannot be.

    Raises:
        UnavailableError: nobody can tell now.
    """
    return _unless_trusted(lambda trusting: _why_replaceable(path, trusting))


def _unless_trusted(why: Callable[[Sequence[str]], str | None]) -> str | None:
    """What is wrong although the user trusts some folders. Which ones is looked up only if something is wrong."""
    return why(()) and why(trusted_folders.paths())


def _why_replaceable(path: Path | str, trusting: Sequence[str]) -> str | None:
    user = _user()
    for link in _links(os.path.abspath(path)):
        holder = os.path.dirname(link)
        owner = _owner(os.lstat(link))
        if holder not in trusting and owner not in (0, user.uid):
            return f"{link} is a link of {_name(owner)}, who can make it lead elsewhere"
        if why := replaceable(_folders(holder), user, trusting):
            return why
    there = next(each for each in (Path(path).absolute(), *Path(path).absolute().parents) if each.is_dir())
    return replaceable(_folders(os.path.realpath(there)), user, trusting)


def is_own(path: Path | str) -> bool:
    """Whether a folder is the user's own; False also when that cannot be determined."""
    try:
        return why_not_own(path) is None
    except (OSError, RunError):
        return False


def require_own(path: Path, what: str) -> None:
    """
    Args:
        path: of a run or a sweep.
        what: is not done, unless it is the user's own: `resume it`.

    Raises:
        UnavailableError: nobody can tell now.
        RunError: it is not.
    """
    if why := why_not_own(path):
        raise RunError(
            f"{why}: {path} is only shown (status, logs, why, post-mortem, report -o FILE), and nothing of it is "
            f"executed, opened or signalled; so you cannot {what}"
        )


def require_safe_way(folder: Path, told: str) -> None:
    """
    Args:
        folder: in which a folder of the user's own is to be made.
        told: what the user has set to get there (`runs_dir=/runs`).

    Raises:
        ConfigError: others could put another folder into its place.
        UnavailableError: nobody can tell now.
    """
    if why := why_replaceable(folder):
        raise ConfigError(
            f"{told}: {why}, and so decide what your jobs run. Choose a folder below one that only you can write to "
            f"(mkdir -m 700), or, if you trust all who can do that, {trusted_folders.where()}"
        )


def _folders(path: str) -> list[Folder]:
    """The folders from `/` to a path without links, as they were opened one in the other."""
    found = known(tried(lambda: _walked(path), path))
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
    """The symbolic links on the way to a path, each as a path without other links."""
    found: list[str] = []
    here, rest = "/", [part for part in path.split("/") if part]
    while rest and len(found) < _MOST_LINKS:
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
    listed = writers.has_list(f"/proc/self/fd/{descriptor}")
    return Folder(path, _owner(status), status.st_gid, status.st_mode, listed)


def _owner(status: os.stat_result) -> int:
    return 0 if status.st_uid == _unmapped() else status.st_uid


def _unmapped() -> int | None:
    """The uid shown for owners that this user namespace (a container's) does not map, which is root mostly."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return None
        return int(_ANYBODY.read_text())
    except (OSError, ValueError):
        return None


def _user() -> User:
    return User(os.getuid(), writers.private_group(os.getuid()))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)

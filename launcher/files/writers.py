"""Who besides the owner can write to a folder.

Imports only what a starting Python has loaded already: `python -m launcher` calls this about the working folder, and
until then a module could be imported from there.
"""

import os
import sys

EVERYBODY = "everybody"
LISTED = "whoever its access control list names"
GROUP = "its group"


def others(mode: int, gid: int, private_group: int, listed: bool) -> str | None:
    """EVERYBODY, LISTED or GROUP if others can write to a folder; None if nobody else can. Pure.

    Args:
        mode: st_mode of the folder.
        gid: group id of the folder.
        private_group: id of the group that contains only the user; -1 if there is none.
        listed: whether the folder has an access control list. The group's mode bits are then its mask (man 5 acl).
    """
    if mode & 0o002:
        return EVERYBODY
    if mode & 0o020 and listed:
        return LISTED
    if mode & 0o020 and gid != private_group:
        return GROUP
    return None


def has_list(path: str) -> bool:
    """Whether a folder has an access control list beyond its mode."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:  # there is no list, or this file system has none
        return False


def private_group(uid: int) -> int:
    """The id of the group that has the user's name and no other member; -1 if there is none."""
    first, sys.path[:1] = sys.path[:1], []  # with `python -m` it is the working folder
    try:
        # Lazily: a module of the working folder must not be imported before the note on it
        import grp
        import pwd
    finally:
        sys.path[:0] = first
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return -1
    alone = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return user.pw_gid if alone else -1

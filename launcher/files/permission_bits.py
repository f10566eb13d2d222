"""Who besides the owner can write to a folder.

Imports only modules that Python loads at its start. `python -m launcher` calls this to check the working folder, and
until the check is done an import could execute a module from that folder.
"""

import os
import sys

EVERYBODY = "everybody"
LISTED = "whoever its access control list names"
GROUP = "its group"


def others(mode: int, gid: int, private_group: int, listed: bool) -> str | None:
    """Returns EVERYBODY, LISTED or GROUP if users besides the owner can write to a folder; else None.

    private_group: id of the group that contains only the user; -1: there is no such group.
    listed: whether the folder has an access control list; the group's mode bits are then its mask (man 5 acl).
    """
    if mode & 0o002:
        return EVERYBODY
    if mode & 0o020 and listed:
        return LISTED
    if mode & 0o020 and gid != private_group:
        return GROUP
    return None


def has_list(path: str) -> bool:
    """Returns whether a folder has a POSIX access control list beyond its mode; only Linux shows such lists."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:  # the folder has no list, or the file system does not support them
        return False


def private_group(uid: int) -> int:
    """Returns the id of the group that has the user's name and no other member; -1: there is no such group."""
    first, sys.path[:1] = sys.path[:1], []  # with `python -m` it is the working folder
    try:
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

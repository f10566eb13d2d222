"""Who besides its owner can write to a folder.

It imports nothing that a Python does not have when it starts: `python -m launcher` asks this of the folder in which it
was typed, and anything that is imported then may come from there.
"""

import os
import sys

EVERYBODY = "everybody"
LISTED = "whoever its access control list names"
GROUP = "its group"


def others(mode: int, gid: int, private_group: int, listed: bool) -> str | None:
    """EVERYBODY, LISTED or GROUP; None: nobody else can. Pure.

    Args:
        mode: of the folder (st_mode).
        gid: of the folder.
        private_group: the group that has the user alone in it; -1: there is none.
        listed: whether it has an access control list, whose mask the group's bits then are (man 5 acl).
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
    """The group of a user alone, with the user's name; -1: there is none."""
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

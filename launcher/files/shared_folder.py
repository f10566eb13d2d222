"""Checks before a submission whether compute nodes can see the folder of runs, as far as this machine can tell."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from launcher.errors import ConfigError

# Types of file systems that only one machine sees (statfs(2), /proc/mounts).
IN_MEMORY = ("tmpfs", "ramfs")
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "reiserfs", "vfat", *IN_MEMORY)
SEEN = ".nodes-see-this"  # file in the folder of runs; the first job script that starts there makes it


def kind_of(folder: Path, mounts: str | None = None) -> str:
    """Returns the type of the file system that holds a folder (`nfs4`); empty: unknown.

    folder: absolute path of the folder.
    mounts: text of /proc/mounts; None: it is read.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="replace")
        except OSError:
            return ""
    return kind_at(str(folder.resolve()), mounts)


def kind_at(folder: str, mounts: str) -> str:
    """Returns the type of the file system that holds a path without links: that of the longest mount point."""
    longest, kind = "", ""
    for line in mounts.splitlines():
        _, point, found, *_ = [*line.split(" "), "", ""]
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point).rstrip("/")  # man 5 fstab
        if len(point) >= len(longest) and (folder == point or folder.startswith(f"{point}/")):
            longest, kind = point, found  # of two mounts on one mount point, the later one hides the other
    return kind


def check(folder: Path, kind: str, *, seen: bool, nodes: Collection[str], here: Collection[str]) -> str | None:
    """Checks whether nodes can see the folder of runs; returns a warning for the user, or None.

    | first row that applies | result |
    |---|---|
    | the folder has the file SEEN: a job has started there before | None |
    | all nodes are this machine | None |
    | the folder is in this machine's memory | ConfigError: no other machine can see it |
    | its file system is of a type that is usually local | a warning: this machine may export it, or not |
    | its file system is of another type, or an unknown one | None |

    kind: type of the folder's file system (`kind_of`).
    seen: whether the folder has the file SEEN.
    nodes: names of the hosts on which jobs may run.
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

"""Whether nodes see the folder of runs, as far as this machine can tell before anything is submitted."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from launcher.errors import ConfigError

# Types of file systems that one machine has for itself, and others do not see (statfs(2), /proc/mounts).
IN_MEMORY = ("tmpfs", "ramfs")
OWN = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "reiserfs", "vfat", *IN_MEMORY)
SEEN = ".nodes-see-this"  # in the folder, made by the first job of a run that begins there


def kind_of(folder: Path, mounts: str | None = None) -> str:
    """Type of the file system that a folder is on, by the longest mount point above it; empty: unknown.

    Args:
        folder: absolute.
        mounts: the text of /proc/mounts; None: it is read.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="replace")
        except OSError:
            return ""
    return kind_at(str(folder.resolve()), mounts)


def kind_at(folder: str, mounts: str) -> str:
    """The same for a folder's real path. Pure."""
    longest, kind = "", ""
    for line in mounts.splitlines():
        _, point, found, *_ = [*line.split(" "), "", ""]
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point).rstrip("/")  # man 5 fstab
        if len(point) >= len(longest) and (folder == point or folder.startswith(f"{point}/")):
            longest, kind = point, found  # of two on one point the later one counts
    return kind


def check(folder: Path, kind: str, *, seen: bool, nodes: Collection[str], here: Collection[str]) -> str | None:
    """A note for whoever submits to these nodes, or None. Pure.

    | the folder | then |
    |---|---|
    | a job has begun there before | nothing: nodes see it |
    | all nodes are this machine | nothing |
    | is in this machine's memory | refused: nobody else can see it |
    | is on a disk of a type that is mostly one machine's own | a note: this machine may export it |
    | is on another type, or nobody knows | nothing |

    Args:
        folder: of the runs.
        kind: type of its file system.
        seen: whether it has the file SEEN.
        nodes: names of the hosts that jobs may run on.
        here: the names of this machine.

    Raises:
        ConfigError: no node can see it.
    """
    if seen or kind not in OWN or set(nodes) <= set(here):
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

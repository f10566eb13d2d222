"""Shares TCP ports and lines of /etc/hosts among the Slurm test clusters of this host, by a locked register file.

The first cluster adds the missing lines to /etc/hosts, the last one removes the added ones.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.daemons import Proc

REGISTER = Path("/run/lock/slurm-test-clusters.json")
HOSTS = Path("/etc/hosts")
MARK = "# added by tests/cluster, removed when its last cluster stops"
# Below Linux's ephemeral ports (32768 and up), and without Slurm's default ports 6817-6819.
PORTS = range(12000, 20000)


@contextmanager
def _register() -> Iterator[dict[str, Any]]:
    """Locks the register, yields its entries, and saves them at the end.

    The entries are by the cluster's folder: {"ports": [...], "owner": [pid, start time] or None}.
    """
    REGISTER.parent.mkdir(parents=True, exist_ok=True)
    with REGISTER.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        try:
            entries: dict[str, Any] = json.loads(file.read())
        except ValueError:  # a new file, or its writer was killed; ports are probed in any case
            entries = {}
        for folder in [folder for folder in entries if not Path(folder).is_dir()]:
            del entries[folder]
        yield entries
        file.seek(0)
        file.truncate()
        file.write(json.dumps(entries, indent=1))


def join(folder: Path, count: int, names: Sequence[str], *, owner: Proc | None) -> list[int]:
    """Registers a cluster, and returns the consecutive free ports that are now reserved for it.

    Args:
        folder: the cluster's folder.
        count: the number of ports.
        names: host names that must resolve; missing ones are added to /etc/hosts.
        owner: the process that must stop the cluster; None: the cluster belongs to no process.
    """
    with _register() as entries:
        taken = {port for entry in entries.values() for port in entry["ports"]}
        ports = _free_row(count, taken)
        entries[str(folder)] = {"ports": ports, "owner": owner and [owner.pid, owner.started]}
        _add_names(names)
        return ports


def leave(folder: Path) -> None:
    """Removes a cluster from the register; after the last one also the added lines of /etc/hosts."""
    with _register() as entries:
        entries.pop(str(folder), None)
        if not entries:
            _remove_names()


def owners() -> dict[Path, Proc | None]:
    """Returns the owner of each registered cluster, by the cluster's folder; None: it belongs to no process."""
    with _register() as entries:
        return {Path(folder): Proc(*entry["owner"]) if entry["owner"] else None for folder, entry in entries.items()}


def _free_row(count: int, taken: set[int]) -> list[int]:
    """Returns `count` consecutive ports that are not in `taken`, and that no process listens on."""
    for _ in range(200):
        first = random.randrange(PORTS.start, PORTS.stop - count)
        row = list(range(first, first + count))
        if taken.isdisjoint(row) and all(map(_is_free, row)):
            return row
    raise RuntimeError(f"found no {count} free TCP ports in a row between {PORTS.start} and {PORTS.stop - 1}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _add_names(names: Sequence[str]) -> None:
    text = HOSTS.read_text()
    known = {name for line in text.splitlines() for name in line.partition("#")[0].split()[1:]}
    missing = [name for name in names if name not in known]
    if missing:
        ending = "" if text.endswith("\n") or not text else "\n"
        _write_hosts(text + ending + "".join(f"127.0.0.1 {name} {MARK}\n" for name in missing))


def _remove_names() -> None:
    lines = HOSTS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if MARK not in line]
    if kept != lines:
        _write_hosts("".join(kept))


def _write_hosts(text: str) -> None:
    """Writes /etc/hosts in place, not by rename, because it is a bind mount in containers."""
    with HOSTS.open("r+") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())

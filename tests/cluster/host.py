"""What several test clusters on one host share: TCP ports and the /etc/hosts lines of their nodes.

One small register under one lock. The first cluster adds the missing lines, the last one takes away what was added.
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
# Below Linux's ephemeral ports (32768 and up) and away from Slurm's own 6817-6819.
PORTS = range(12000, 20000)


@contextmanager
def _register() -> Iterator[dict[str, Any]]:
    """The register, locked: folder -> {"ports": [...], "owner": [pid, started] or None}. Saved on the way out."""
    REGISTER.parent.mkdir(parents=True, exist_ok=True)
    with REGISTER.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        try:
            entries: dict[str, Any] = json.loads(file.read())
        except ValueError:  # new, or its writer was killed; ports are probed in any case
            entries = {}
        for folder in [folder for folder in entries if not Path(folder).is_dir()]:
            del entries[folder]
        yield entries
        file.seek(0)
        file.truncate()
        file.write(json.dumps(entries, indent=1))


def join(folder: Path, count: int, names: Sequence[str], *, owner: Proc | None) -> list[int]:
    """Register a cluster: claim `count` ports in a row for it, and make the names resolve. Returns the ports.

    The owner is the process that must stop it; None says that it stays until told.
    """
    with _register() as entries:
        taken = {port for entry in entries.values() for port in entry["ports"]}
        ports = _free_row(count, taken)
        entries[str(folder)] = {"ports": ports, "owner": owner and [owner.pid, owner.started]}
        _add_names(names)
        return ports


def leave(folder: Path) -> None:
    """Take a cluster off the register; the last one also cleans /etc/hosts."""
    with _register() as entries:
        entries.pop(str(folder), None)
        if not entries:
            _remove_names()


def owners() -> dict[Path, Proc | None]:
    """Every registered cluster with its owner."""
    with _register() as entries:
        return {Path(folder): Proc(*entry["owner"]) if entry["owner"] else None for folder, entry in entries.items()}


def _free_row(count: int, taken: set[int]) -> list[int]:
    """`count` consecutive ports that nobody claimed and nobody listens on."""
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
    """In place, not by rename: /etc/hosts is a bind mount in containers."""
    with HOSTS.open("r+") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())

"""A slot manager in miniature, for tests that kill it: `python -m tests.processes.claim_points SWEEP PILOT COUNT LOG`.

Claims points, "runs" each in a fork that appends lines to LOG, and ends when all are over.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from launcher import processes
from launcher.pilots.manager import FreePoints
from launcher.processes import Process, namespace
from launcher.runs.events import ManagerBegan
from launcher.runs.point_claims import Claims, EntryKind, Manager


def main(sweep: str, pilot: int, count: int, log: str) -> None:
    """Runs points until all are over."""
    folder, mine, me = Claims(Path(sweep), 0), Manager(pilot, 0, 0, 0), Process.of(os.getpid())
    folder.note(mine, ManagerBegan(
        host=socket.gethostname(), job="", slots=1, pid=me.pid, start=me.start, namespace=namespace()
    ))  # fmt: skip
    free_points = FreePoints(folder, count, mine, socket.gethostname(), 90.0)
    while True:
        claimed = free_points.claim()
        if claimed is None:
            free_points.look(now=True)
            if free_points.over:
                return
            time.sleep(0.05)
            continue
        point, before = claimed
        if (pid := os.fork()) == 0:
            processes.die_with_parent(me.pid)
            tell(log, f"begin {point} {os.getpid()}")
            time.sleep(0.01)
            tell(log, f"end {point} {os.getpid()}")
            os._exit(0)
        os.waitpid(pid, 0)
        folder.add(point, before.next + 1, EntryKind.DONE, mine)


def tell(log: str, line: str) -> None:
    """Appends a line in one write."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

"""How often the user's runs fail on a cluster: one line for each attempt, in RUNS_DIR/.failures.jsonl.

The leader of an attempt appends a line at its end; a training reads the last ones, for the time between two saves.
Lines that two nodes write at the same time may destroy each other on NFS: such a line is ignored.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import bounds
from launcher.files import run_files
from launcher.runs import sweep_directory

NAME = ".failures.jsonl"
PRIOR = 3600.0  # seconds between two failures of a run that are assumed without experience; it counts as one failure


@dataclass(frozen=True)
class Experience:
    """What the user's runs on a cluster have seen so far."""

    failures: int = 0  # restarts of ranks, and attempts that failed; stop requests and preemption do not count
    node_seconds: float = 0.0  # time of nodes with ranks

    def between(self, nodes: int) -> float:
        """Returns the mean time between failures to expect of a run on so many nodes, in seconds."""
        return (self.node_seconds / nodes + PRIOR) / (self.failures + 1)


def path_for(run_dir: Path) -> Path:
    """Returns the file for a run: beside all runs, also for a point of a sweep."""
    parent = run_dir.parent
    return (parent.parent if (parent / sweep_directory.RECORD).exists() else parent) / NAME


def add(run_dir: Path, cluster: str, failures: int, node_seconds: float) -> None:
    """Appends what an attempt has seen, if that is possible."""
    line = json.dumps({"cluster": cluster, "failures": failures, "node_seconds": round(node_seconds)}) + "\n"
    with contextlib.suppress(OSError):
        run_files.append(path_for(run_dir), line)


def experience(run_dir: Path, cluster: str) -> Experience:
    """Returns what the last attempts on this cluster have seen (the end of the file, bounds.FAILURE_LOG_BYTES)."""
    failures, node_seconds = 0, 0.0
    with contextlib.suppress(OSError):
        for line in run_files.read_range(path_for(run_dir), 0, None, bounds.FAILURE_LOG_BYTES)[0].splitlines():
            seen = _parsed(line)
            if seen is not None and seen["cluster"] == cluster:
                failures, node_seconds = failures + seen["failures"], node_seconds + seen["node_seconds"]
    return Experience(failures, node_seconds)


def _parsed(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        seen = json.loads(line)
        numbers = [seen.get(name) for name in ("failures", "node_seconds")] if isinstance(seen, dict) else []
        if len(numbers) == 2 and all(type(each) is int and each >= 0 for each in numbers) and "cluster" in seen:
            return seen
    return None

"""What commands print with --json about the runs in runs/, while schedulers answer as in answers/."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runs import event_file
from tests.golden.formats.conftest import Site
from tests.golden.formats.golden import check

OVER = [
    "exception", "out-of-gpu-memory", "gpu-error", "shared-memory", "disk-full", "limit", "import-error",
    "file-missing", "config-error", "out-of-memory", "killed", "exited", "wall-time", "time-limit", "cancelled",
    "cancelled-early", "stopped", "node-lost", "bad-node", "connection-lost", "collective-timeout",
    "rendezvous-timeout", "hang", "setup-failed", "no-progress", "never-started", "no-words", "lost", "done",
]  # fmt: skip


def events_are_whole(run: Path) -> None:
    """What runs/ says is what a writer may write: nothing of it is skipped."""
    for path in run.rglob("*.jsonl"):
        assert event_file.problems(path) == []


@pytest.mark.parametrize("name", OVER)
def test_a_run_that_is_over(site: Site, name: str) -> None:
    site.answer("slurm", "never-started" if name == "never-started" else "forgotten")
    run = site.unpack(name)
    events_are_whole(run)
    check(f"told/post-mortem/{name}.json", site.told("post-mortem", name, "--json"))
    check(f"told/status/{name}.json", site.told("status", name, "--json"))
    check(f"told/why/{name}.json", site.told("why", name, "--json"))

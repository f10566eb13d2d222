"""The function that submitit pickles into every job. The login node imports this module without importing torch."""

from __future__ import annotations

from typing import Any


def run(run_dir: str) -> dict[str, Any]:
    """Runs this node's part of an attempt, and returns metrics; see `launcher.agent.attempt.run`."""
    from launcher.agent import attempt

    return attempt.run(run_dir)

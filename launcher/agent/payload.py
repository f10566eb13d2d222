"""The function that every job carries. Apart from the agent, so that the login node can name it without torch."""

from __future__ import annotations

from typing import Any


def run(run_dir: str) -> dict[str, Any]:
    """This node's part of the run in `run_dir`; see `launcher.agent.attempt.run`."""
    # Lazily: torch takes a second, and whoever submits needs the name of `run` alone
    from launcher.agent import attempt

    return attempt.run(run_dir)

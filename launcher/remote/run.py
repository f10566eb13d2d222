"""A run on a cluster behind ssh, for scripts in Python: what `launcher.submit` and `launcher.find` return for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import BAD_INPUT, ConfigError, RunError, SubmissionError
from launcher.monitoring.state import RunState, wait_until_over
from launcher.remote import command
from launcher.remote.clusters import RemoteCluster, Unreachable

FIRST, SLOWEST = 1.0, 30.0  # seconds between polls: at first, at most


@dataclass(frozen=True)
class RemoteRun:
    """A run on a cluster behind ssh. Every method asks the launcher there; Unreachable: it did not answer."""

    cluster: RemoteCluster
    id: str

    def state(self) -> RunState:
        """Returns the run's current state; raises RunError: there is no such run."""
        state = self._row()["state"]
        return RunState(state) if state in {each.value for each in RunState} else RunState.UNKNOWN

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics that rank 0 has returned; empty: none yet."""
        return self._row().get("metrics") or {}

    def wait(self, timeout: float | None = None) -> RunState:
        """Waits until the run is over, and returns its state; after `timeout` seconds (None: no limit) that it has.

        A cluster that does not answer is asked again.
        """
        return wait_until_over(self.state, timeout, first=FIRST, slowest=SLOWEST, unavailable=Unreachable)

    def cancel(self) -> None:
        """Cancels the run; raises RunError."""
        self._call(["cancel", self.id], RunError)

    def resume(self, overrides: Sequence[str] = ()) -> RemoteRun:
        """Submits another attempt, and returns this run; raises ConfigError or SubmissionError."""
        self._call(["resume", self.id, *overrides, "wait=false"], SubmissionError, submits=True)
        return self

    def logs(self) -> Iterator[str]:
        """Yields the lines that the run has printed so far; those of rank 3 start with `[3] `."""
        yield from self._call(["logs", self.id], RunError).splitlines()

    def _row(self) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(self._call(["status", self.id, "--json"], RunError))[0]
        return row

    def _call(self, words: Sequence[str], error: Callable[[str], Exception], *, submits: bool = False) -> str:
        said, printed = list[str](), list[bytes]()
        code = command.call(self.cluster, words, prompts=submits, show=printed.append, errors=said.append)
        if code:
            raise (ConfigError if code == BAD_INPUT else error)("".join(said).strip().removeprefix("launcher: "))
        return b"".join(printed).decode(errors="replace")


def submitted(words: Sequence[str]) -> RemoteRun | None:
    """Submits a run to the cluster behind ssh that the overrides choose; None: they choose another.

    Raises ConfigError, SubmissionError, or Unreachable: nobody knows whether it was submitted.
    """
    said: list[str] = []
    made = command.submit(words, show=lambda _: None, errors=said.append)
    if made is None:
        return None
    if made.exit_code:
        error = ConfigError if made.exit_code == BAD_INPUT else SubmissionError
        raise error("".join(said).strip().removeprefix("launcher: "))
    return RemoteRun(made.cluster, made.run_id)

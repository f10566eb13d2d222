"""Runs checks at the same time, each with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from launcher.findings import Finding, problem


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        about: its subject.
        look: runs the check and returns its findings.
        limit: seconds that it may take.
    """

    about: str
    look: Callable[[], Iterable[Finding]]
    limit: float = 10.0


def start(check: Check) -> Callable[[], list[Finding]]:
    """Starts a check, and returns a function that waits for its end, within its limit, and returns its findings."""
    running, until = _Running(check), time.monotonic() + check.limit
    running.thread.start()

    def wait() -> list[Finding]:
        running.thread.join(max(until - time.monotonic(), 0.0))
        return running.found()

    return wait


def run_all(checks: Sequence[Check], clock: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Runs all checks at the same time, and yields their findings in the order of the checks, each as soon as possible.

    A check that fails, or takes longer than its limit, is reported as a problem. The process does not wait for it, not
    even at its end.
    """
    began, running = clock(), [_Running(check) for check in checks]
    for each in running:
        each.thread.start()
    for each in running:
        each.thread.join(max(began + each.check.limit - clock(), 0.0))
        yield from each.found()


class _Running:
    def __init__(self, check: Check) -> None:
        self.check = check
        self._findings: list[Finding] = []
        # A thread that hangs in a file system cannot be ended; the process can exit without a daemon thread.
        self.thread = threading.Thread(target=self._look, name=f"doctor {check.about}", daemon=True)

    def _look(self) -> None:
        try:
            for each in self.check.look():
                self._findings.append(each)
        except Exception as error:  # a check that fails must not hide the findings of others
            text = f"the check failed: {type(error).__name__}: {error}"
            self._findings.append(problem(self.check.about, text, "report this"))

    def found(self) -> list[Finding]:
        late = self.thread.is_alive()
        findings = list(self._findings)
        if late:
            findings.append(problem(self.check.about, f"no answer within {self.check.limit:g} s", _STUCK))
        return findings


_STUCK = "a file system or a service that the check uses hangs: try it by hand"

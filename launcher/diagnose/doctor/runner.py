"""Runs checks concurrently, each in a thread and with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from launcher.findings import Finding, problem


@dataclass(frozen=True)
class Check:
    """A check that `doctor` runs."""

    about: str  # the check's subject, as the report shows it
    look: Callable[[], Iterable[Finding]]  # the function that runs the check and returns its findings
    limit: float = 10.0  # seconds that the check may take


def start(check: Check) -> Callable[[], list[Finding]]:
    """Starts a check in a thread.

    Returns a function that waits until the check ends or its limit is over, and returns its findings.
    """
    running, until = _Running(check), time.monotonic() + check.limit
    running.thread.start()

    def wait() -> list[Finding]:
        running.thread.join(max(until - time.monotonic(), 0.0))
        return running.found()

    return wait


def run_all(checks: Sequence[Check], clock: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Runs all checks concurrently, and yields their findings in the order of the checks, each as soon as possible.

    A check that raises, or takes longer than its limit, yields a problem. It runs in a daemon thread, so it does not
    delay the exit of the process.

    Args:
        checks: the checks.
        clock: returns monotonic time in seconds.
    """
    began, running = clock(), [_Running(check) for check in checks]
    for each in running:
        each.thread.start()
    for each in running:
        each.thread.join(max(began + each.check.limit - clock(), 0.0))
        yield from each.found()


class _Running:
    """A check in its thread."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self._findings: list[Finding] = []
        # A thread that hangs in a file system cannot be ended. A daemon thread does not keep the process from exiting.
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

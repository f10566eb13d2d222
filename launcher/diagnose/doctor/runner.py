"""Runs checks at the same time, each bounded in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from launcher.findings import Finding, problem


@dataclass(frozen=True)
class Check:
    """A check: what it is about, what looks, and the seconds that it may take."""

    about: str
    look: Callable[[], Iterable[Finding]]
    limit: float = 10.0


def start(check: Check) -> Callable[[], list[Finding]]:
    """Begins a check that takes long; what is returned waits for it, within its limit, and tells what it has found."""
    running, until = _Running(check), time.monotonic() + check.limit
    running.thread.start()

    def wait() -> list[Finding]:
        running.thread.join(max(until - time.monotonic(), 0.0))
        return running.found()

    return wait


def run_all(checks: Sequence[Check], clock: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """What all checks find, in their order, as soon as it is there. All of them look at the same time.

    A check that takes longer than its limit is a problem of its own, and so is one that fails; nobody waits for either,
    not even at the end of the process.
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
        # A thread that hangs in a file system cannot be ended; a daemon is left behind.
        self.thread = threading.Thread(target=self._look, name=f"doctor {check.about}", daemon=True)

    def _look(self) -> None:
        try:
            for each in self.check.look():
                self._findings.append(each)
        except Exception as error:  # one check that breaks must not hide what the others see
            said = f"the check failed: {type(error).__name__}: {error}"
            self._findings.append(problem(self.check.about, said, "report this"))

    def found(self) -> list[Finding]:
        late = self.thread.is_alive()
        findings = list(self._findings)
        if late:
            findings.append(problem(self.check.about, f"no answer within {self.check.limit:g} s", _STUCK))
        return findings


_STUCK = "look at it by hand: what it asks hangs (a file system or a service)"

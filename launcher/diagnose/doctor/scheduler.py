"""Checks which schedulers are on this machine, and the one of the profile in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.config.schema import Cluster
from launcher.findings import Finding, ok, problem
from launcher.schedulers import registry
from launcher.schedulers.base import ChecksItself, Scheduler


def probe(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    """Reports which schedulers are on this machine, and runs the checks of the profile's scheduler.

    Args:
        cluster: the profile.
        timeout: seconds for one query to the scheduler.
    """
    wanted = registry.scheduler(cluster.scheduler)
    yield from which(wanted, [each for each in registry.schedulers() if isinstance(each, ChecksItself)])
    if isinstance(wanted, ChecksItself) and not wanted.problem():
        yield from wanted.check(cluster, timeout)


def which(wanted: Scheduler, known: Sequence[ChecksItself]) -> Iterator[Finding]:
    """Reports which schedulers have their commands on PATH, and checks that the profile's scheduler is one of them.

    Args:
        wanted: the profile's scheduler.
        known: all schedulers with commands.
    """
    none = f"none found: no {' and no '.join(dict.fromkeys(each.command for each in known))} is on PATH"
    present = "; ".join(filter(None, (each.found() for each in known))) or none
    if not isinstance(wanted, ChecksItself):
        yield ok("scheduler", present)
        if name := next((each.name for each in known if not each.problem()), None):
            looks = f"`doctor --cluster {name}` checks the scheduler"
            yield ok("scheduler", f"the profile runs on {wanted.title}; {looks}")
    elif why := wanted.problem():
        yield problem("scheduler", f"{present}; the profile needs {wanted.title}", why)
    else:
        yield ok("scheduler", present)

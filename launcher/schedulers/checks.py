"""`doctor` checks that all schedulers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.config.schema import Cluster
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import format_size, format_time
from launcher.schedulers.queries import QueryError
from launcher.units import parse_memory, parse_time

SHOWN = 30  # maximum number of partitions or queues to list
SLOW = 5.0  # a query that takes more seconds than this is reported as slow


@dataclass(frozen=True)
class TimedOutput:
    """The output of a query and its duration in seconds (`took`), or its error message."""

    text: str = ""
    took: float = 0.0
    error: str = ""


def timed(ask: Callable[[], str]) -> TimedOutput:
    """Runs a query and measures its duration. A QueryError becomes the `error` of the result."""
    began = time.monotonic()
    try:
        text = ask()
    except QueryError as error:
        return TimedOutput(error=str(error))
    return TimedOutput(text, time.monotonic() - began)


def reachable(title: str, version: str, answer: TimedOutput, variable: str) -> Iterator[Finding]:
    """Yields a finding on whether the scheduler answered a query, and how fast.

    Args:
        title: name of the scheduler in messages.
        version: version of the scheduler; empty if unknown.
        answer: timed result of the query.
        variable: environment variable that selects the scheduler's server.
    """
    name = f"{title} {version}".strip()
    if answer.error:
        yield problem(
            "reachable", f"{name} does not answer: {answer.error}",
            "try again later; if it stays so, ask who runs the scheduler (its server may be down, or "
            f"{variable} wrong)",
        )  # fmt: skip
    elif answer.took > SLOW:
        yield warning("reachable", f"{name} answered after {answer.took:.1f} s", "it is busy: raise "
                      "cluster.submit_timeout if submissions fail")  # fmt: skip
    else:
        yield ok("reachable", f"{name} answered in {answer.took * 1000:.0f} ms")


def listed(rows: Sequence[tuple[str, Sequence[str], str]], command: str) -> list[str]:
    """Returns a line for each partition or queue: `gpu (default): up to 02:00:00`.

    Args:
        rows: (name, marks, limits) of each partition or queue; only the first SHOWN are listed.
        command: command that lists all of them, named in the last line if some were left out.
    """
    lines = [f"{name}{_in_brackets(marks)}: {limits}" for name, marks, limits in rows[:SHOWN]]
    return lines + ([f"... and {len(rows) - SHOWN} more ({command})"] if len(rows) > SHOWN else [])


def _in_brackets(marks: Sequence[str]) -> str:
    return f" ({', '.join(marks)})" if marks else ""


def stated_limits(cluster: Cluster, live: Mapping[str, int | None], where: str) -> Iterator[Finding]:
    """Yields a warning if a limit in the profile is higher than the live limit, else an ok.

    Args:
        cluster: the profile.
        live: live limits by key of cluster.limits (seconds, bytes); None: no limit; missing keys are not compared.
        where: name of the partition or queue in messages.
    """
    limits, wrong = cluster.limits, []
    try:
        stated = {
            "nodes": limits.nodes, "gpus_per_node": limits.gpus_per_node, "cpus_per_node": limits.cpus_per_node,
            "mem_per_node": None if limits.mem_per_node is None else parse_memory(limits.mem_per_node),
            "time": None if limits.time is None else parse_time(limits.time),
        }  # fmt: skip
    except ValueError as error:
        yield problem("profile", f"cluster.limits: {error}", "correct it in the profile")
        return
    for key, value in stated.items():
        most = live.get(key)
        if value is not None and key in live and most is not None and value > most:
            mine, theirs = _shown(key, value), _shown(key, most)
            wrong.append(f"cluster.limits.{key}={mine} is more than {where} gives ({theirs})")
    if wrong:
        yield warning("profile", "; ".join(wrong), "lower them in the profile, or leave them out")
    else:
        known = [key for key, value in stated.items() if value is not None]
        text = f"its limits ({', '.join(known)}) agree with" if known else "it states no limits of its own; those of"
        yield ok("profile", f"cluster={cluster.name}: {text} {where}" + ("" if known else " count"))


def _shown(key: str, value: int) -> str:
    if key == "mem_per_node":
        return format_size(value)
    return format_time(value) if key == "time" else str(value)

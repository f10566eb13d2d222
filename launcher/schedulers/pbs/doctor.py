"""The checks of `doctor` for PBS, and for a profile against its queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcher.config.scheduler_table import own_settings
from launcher.config.schema import Cluster
from launcher.errors import near
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import format_hours, format_size
from launcher.schedulers.checks import listed, reachable, stated_limits, timed
from launcher.schedulers.pbs.commands import PBS, section
from launcher.schedulers.pbs.limits import Queue
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.queries import QueryError


def check(cluster: Cluster, pbs: PBS, version: str) -> Iterator[Finding]:
    """Yields findings about PBS (reachable, queues, job history), and about the profile's queue and limits."""
    answer = timed(lambda: pbs.run("qstat", "-B", "-f", "-F", "json"))
    yield from reachable("PBS", version, answer, "PBS_SERVER")
    if answer.error:
        return
    try:
        server: dict[str, Any] = next(iter(section(answer.text, "Server").values()), {})
        found = pbs.queues()
    except QueryError as error:
        yield problem("queue", str(error), "try `qstat -Qf`")
        return
    for line in lines(found, wanted(cluster, found)):
        yield ok("queue", line)
    yield from compared(cluster, found)
    yield history(str(server.get("job_history_enable", "False")))


def wanted(cluster: Cluster, found: Sequence[Queue]) -> str | None:
    """Returns the name of the queue that a profile uses, or None if the server's rules choose one."""
    queue = own_settings(cluster, PBSSettings).queue
    return (queue or "").partition("@")[0] or next((each.name for each in found if each.default), None)


def lines(found: Sequence[Queue], own: str | None = None) -> list[str]:
    """Returns a line for each queue with its limits. Marks the default, and the profile's own (`own`)."""
    rows = []
    for each in found:
        marks = (
            ("default", each.default), ("this profile's", each.name == own), ("takes no jobs", not each.accepts),
            ("routes to others", each.routes), ("stopped: its jobs wait", not each.started),
            (f"for some {' and '.join(each.only)} only", bool(each.only)),
        )  # fmt: skip
        rows.append((each.name, [word for word, is_so in marks if is_so], _limits(each)))
    return listed(rows, "qstat -Q")


def compared(cluster: Cluster, found: Sequence[Queue]) -> Iterator[Finding]:
    """Yields findings on whether a profile's queue exists and takes jobs, and the profile's limits fit it."""
    names, own = {each.name: each for each in found}, wanted(cluster, found)
    if own is None:
        yield ok("profile", "cluster.queue is not set and the server has no default: its own rules choose")
    elif own not in names:
        yield problem(
            "profile", f"cluster.queue={own}: there is no such queue.{near(own, names)}",
            f"set cluster.queue to one of {', '.join(names)}",
        )  # fmt: skip
    elif not names[own].accepts:
        yield problem("profile", f"queue {own} takes no jobs now", "set cluster.queue to another one, or wait")
    elif not names[own].started:
        yield warning("profile", f"queue {own} is stopped: its jobs wait", "set cluster.queue to another one, or wait")
    else:
        yield from stated_limits(cluster, {"nodes": names[own].nodes, "time": names[own].time}, f"queue {own}")


def _limits(each: Queue) -> str:
    limits = [
        f"{value} {what}" for what, value in (
            ("nodes", each.nodes), ("CPUs", each.cpus), ("GPUs", each.gpus),
            ("memory", None if each.mem is None else format_size(each.mem)),
        ) if value is not None
    ]  # fmt: skip
    most = f"a job gets at most {', '.join(limits)}" if limits else "no limits of a job"
    return f"{most}; up to {'any time' if each.time is None else format_hours(each.time)}"


def history(value: str) -> Finding:
    """Returns a finding on whether PBS keeps a history of ended jobs.

    Args:
        value: the server's attribute job_history_enable.
    """
    if value == "True":
        return ok("history", "PBS remembers jobs that are over (job_history_enable)")
    return ok("history", "PBS forgets jobs when they are over (job_history_enable), which the launcher does without")

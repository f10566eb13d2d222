"""Checks a plan against PBS's live queues and nodes before a submission."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from launcher.files import shared_folder
from launcher.files.shared_files import exists, unwrap
from launcher.schedulers.pbs import limits, resource_queries
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.queries import QueryError
from launcher.spec.plan import JobPlan, settings_of


def compare(plan: JobPlan) -> tuple[str, ...]:
    """Checks a plan against the live queues and nodes, and returns notes for the user.

    Raises:
        ConfigError: PBS would refuse the job or could never start it, or the nodes cannot see its run directory.
    """
    try:
        queues = PBS(plan.cluster.submit_timeout).queues()
        queue = limits.check_queue(plan, queues)
    except QueryError as error:
        return (f"not compared with the live queues: {error}",)
    try:
        nodes = resource_queries.ResourceQueries(PBS(plan.cluster.submit_timeout)).nodes()
    except QueryError as error:
        return (f"not compared with the live nodes: {error}",)
    limits.check_nodes(plan, resource_queries.hosts_of(nodes, plan, queue))
    return _seen_by(nodes, Path(plan.run_dir).parent) + _of_totals(plan)


def _of_totals(plan: JobPlan) -> tuple[str, ...]:
    if not settings_of(plan, PBSSettings).totals or plan.nodes == 1:
        return ()
    return (
        f"cluster.totals=true does not say on how many nodes: where PBS gives fewer than nodes={plan.nodes}, the "
        "attempt ends with 93",
    )


def _seen_by(nodes: Sequence[resource_queries.Node], folder: Path) -> tuple[str, ...]:
    # PBS tries twenty times to start a job that cannot open its output, and then holds it
    here = {"localhost", socket.gethostname(), socket.gethostname().partition(".")[0]}
    note = shared_folder.check(
        folder, shared_folder.kind_of(folder), seen=unwrap(exists(folder / shared_folder.SEEN)),
        nodes=[node.others.get("host", node.name) for node in nodes], here=here,
    )  # fmt: skip
    return (note,) if note else ()

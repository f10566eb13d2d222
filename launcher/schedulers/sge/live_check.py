"""Checks a plan against Grid Engine's live queues, parallel environments, resources and hosts before a submission."""

from __future__ import annotations

import socket
from pathlib import Path

from launcher.files import shared_folder
from launcher.files.shared_files import exists, unwrap
from launcher.schedulers.queries import QueryError
from launcher.schedulers.sge import limits
from launcher.schedulers.sge.commands import SGE
from launcher.schedulers.sge.directives import asked_for
from launcher.schedulers.sge.resource_queries import ResourceQueries
from launcher.schedulers.sge.settings import SGESettings
from launcher.spec.plan import JobPlan, settings_of


def compare(plan: JobPlan) -> tuple[str, ...]:
    """Checks a plan against the live Grid Engine, and returns notes for the user.

    Raises:
        ConfigError: the job could never start, or the nodes cannot see its run directory.
    """
    resources = ResourceQueries(SGE(plan.cluster.submit_timeout))
    try:
        if name := settings_of(plan, SGESettings).parallel_environment:
            own = resources.environment(name)
            unusable = own is None or limits.problem(plan, own) is not None
            limits.check_environment(plan, own, resources.environments() if unusable else [])
        limits.check_queue(plan, resources.queues())
        limits.check_resources(plan, asked_for(plan), resources.complexes())
        hosts = sorted({each.host for each in resources.instances()})
    except QueryError as error:
        return (f"not compared with the live queues: {error}",)
    folder = Path(plan.run_dir).parent
    here = {"localhost", socket.gethostname(), socket.gethostname().partition(".")[0]}
    note = shared_folder.check(
        folder, shared_folder.kind_of(folder), seen=unwrap(exists(folder / shared_folder.SEEN)), nodes=hosts, here=here
    )
    return (note,) if note else ()

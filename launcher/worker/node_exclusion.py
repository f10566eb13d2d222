"""Makes text on how the next run can exclude bad nodes, for workloads that find some, by the run's scheduler."""

from __future__ import annotations

from launcher.config.scheduler_table import settings_class
from launcher.errors import LauncherError
from launcher.runs.event_writer import current_attempt
from launcher.schedulers import registry


def how_to_exclude(hosts: str) -> str:
    """Returns how `resume` can exclude nodes from this process's run.

    | the run's scheduler | text |
    |---|---|
    | can exclude nodes | the shell-quoted config override, with the nodes that the run excludes already |
    | cannot | what to use in its place (`SchedulerSettings.INSTEAD`) |
    | cannot, and has nothing in its place; or this process is in no run, or its record cannot be read | empty |
    """
    attempt = current_attempt()
    if attempt is None:
        return ""
    try:
        plan = attempt.run.plan()
        if override := registry.scheduler(plan.cluster.scheduler).without(hosts, plan.cluster.settings):
            return override
        settings = settings_class(plan.cluster.scheduler)
    except LauncherError:  # a measurement must not fail for want of this text
        return ""
    return "" if settings is None else settings.INSTEAD.get("exclude", "")

"""Tells submitit of all our executors. It takes a single one from a distribution (entry point `executor`)."""

from __future__ import annotations

from submitit.core import plugins

from launcher.schedulers import registry


def add_ours() -> None:
    """Appends our executors to submitit's list. Does nothing before submitit has loaded its plug-ins, or twice.

    `submitit.core.plugins.get_executors` loops over that list and calls `name()` of each executor. `name()` of ours
    calls this function, so the same loop also reaches the executors appended here.
    """
    if plugins._get_plugins.cache_info().currsize:
        executors, _ = plugins._get_plugins()
        executors += [each for each in map(registry.function_executor, registry.FUNCTIONS) if each not in executors]

"""Registers all executors of `registry.FUNCTIONS` with submitit, which loads only one per entry point `executor`."""

from __future__ import annotations

from submitit.core import plugins

from launcher.schedulers import registry


def add_ours() -> None:
    """Appends the executors of registry.FUNCTIONS to submitit's list, unless they are in it.

    Does nothing before submitit has loaded its plug-ins. `submitit.core.plugins.get_executors` loops over the list and
    calls `name()` of each executor. `FunctionExecutor.name` calls this function, so the same loop also reaches the
    executors appended here.
    """
    if plugins._get_plugins.cache_info().currsize:
        executors, _ = plugins._get_plugins()
        executors += [each for each in map(registry.function_executor, registry.FUNCTIONS) if each not in executors]

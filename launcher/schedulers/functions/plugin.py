"""Tells submitit of all our executors. It takes a single one from a distribution (entry point `executor`)."""

from __future__ import annotations

from submitit.core import plugins

from launcher.schedulers import registry


def add_ours() -> None:
    """Adds our executors to submitit's list. Does nothing before submitit has loaded its plug-ins, or a second time.

    submitit reads the names of the executors in its list only when the list is complete (`get_executors`), and a name
    of ours calls this: what is added then is read next.
    """
    if plugins._get_plugins.cache_info().currsize:
        executors, _ = plugins._get_plugins()
        executors += [each for each in map(registry.function_executor, registry.FUNCTIONS) if each not in executors]

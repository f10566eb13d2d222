"""Renders the job script of a run, for submission and for dry runs. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.schedulers import registry
from launcher.script import render, start_command

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


def script(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> str:
    """Returns the job script of a run, or of a job array of runs; see `render.script`.

    Args:
        plan: the run's plan.
        token: unique text that is stored with the job, by which the submission finds it again.
        array: indices and throttle of a job array in Slurm's syntax (`0-14%4`); None: a plain job.
        elements: for a job array: path of a file with the folder name of each element's run.

    Raises:
        ConfigError: cluster.directives has an option that another config key sets, or an invalid value.
    """
    return render.script(plan, _parts(plan, token, array, elements), array=array, elements=elements)


def context(plan: JobPlan, *, token: str) -> dict[str, Any]:
    """Returns the variables with which the plan's template is rendered; see `render.context`."""
    return render.context(plan, _parts(plan, token, None, None))


def _parts(plan: JobPlan, token: str, array: str | None, elements: Path | None) -> render.Parts:
    scheduler = registry.scheduler(plan.cluster.scheduler)
    folder = None if elements is None else str(elements.parent)
    steps = registry.starting_steps(plan.starter)
    start = start_command.start(plan) if steps is None else steps.start_tasks(plan)
    return render.Parts(
        scheduler.template, scheduler.shell, start, scheduler.directives(plan, token, array, folder),
        here=scheduler.on_this_machine, from_files=scheduler.secrets_in_files,
    )  # fmt: skip

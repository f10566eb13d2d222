"""Renders the job script of a run, for submission and for dry runs. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.schedulers import registry
from launcher.script import render

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


def script(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> str:
    """Returns the script of a run, or of an array of runs; see `render.script`.

    Args:
        plan: the run.
        token: by which submission finds the job.
        array: indices and throttle in Slurm's syntax (`0-14%4`).
        elements: for an array: a file with the names of its elements' folders.

    Raises:
        ConfigError: an extra option of the profile collides with a key of the launcher, or a value cannot be one.
    """
    return render.script(plan, _parts(plan, token, array, elements), array=array, elements=elements)


def context(plan: JobPlan, *, token: str) -> dict[str, Any]:
    """Returns the variables of templates."""
    return render.context(plan, _parts(plan, token, None, None))


def _parts(plan: JobPlan, token: str, array: str | None, elements: Path | None) -> render.Parts:
    scheduler = registry.scheduler(plan.cluster.scheduler)
    folder = None if elements is None else str(elements.parent)
    return render.Parts(
        scheduler.template, scheduler.shell, scheduler.directives(plan, token, array, folder),
        here=scheduler.on_this_machine, from_files=scheduler.secrets_in_files,
    )  # fmt: skip

"""Renders and writes the job script of a run, with the file that its driver reads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.files import run_files
from launcher.files.json_types import as_json
from launcher.runs.job_file import AFTER, NAME
from launcher.schedulers import registry
from launcher.script import render, start_command
from launcher.script.quoting import quote

if TYPE_CHECKING:
    from launcher.runs.directory import Run
    from launcher.spec.plan import JobPlan


@dataclasses.dataclass(frozen=True)
class Rendered:
    """The texts of a job script and of the files beside it."""

    script: str  # the job script
    job: str  # the driver's file (`launcher.runs.job_file`), as JSON
    after: str | None  # the script of a custom template's `after` block; None: there is none


def script(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> str:
    """Returns the job script of a run; see `rendered`. Pure."""
    return rendered(plan, token=token, array=array, elements=elements).script


def rendered(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> Rendered:
    """Renders the job script of a run, and the files beside it. Pure.

    Args:
        plan: the run's plan.
        token: unique text that is stored with the job, by which the submission finds it again.
        array: indices and throttle of a job array in Slurm's syntax (`0-14%4`); None: a plain job.
        elements: for a job array: path of a file with the folder name of each element's run.

    Raises:
        ConfigError: cluster.directives has an option that another config key sets, or an invalid value; or the user's
            template cannot be rendered.
        ValueError: a value has a control character.
    """
    parts = _parts(plan, token, array, elements)
    text = render.script(plan, parts, array=array, elements=elements)
    after = render.after_script(plan, parts)
    job = as_json(render.job_file(plan, parts, elements, after))
    _require_no_control_characters(job)
    return Rendered(text, json.dumps(job, indent=1) + "\n", after)


def _require_no_control_characters(value: Any) -> None:
    if isinstance(value, str):
        quote(value)
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            _require_no_control_characters(each)


def notes(plan: JobPlan, *, token: str) -> tuple[str, ...]:
    """Returns a note for the user about each of the job's options that a custom template leaves out. Pure."""
    if plan.cluster.template is None:
        return ()
    lines = script(plan, token=token).splitlines()
    lost = [
        each for each in _parts(plan, token, None, None).directives if not any(line.endswith(each) for line in lines)
    ]
    return tuple(f"cluster.template={plan.cluster.template}: the job does not ask for {each}" for each in lost)


def write(run: Run, plan: JobPlan, *, token: str) -> Path:
    """Writes the job script of a run and the files beside it into its directory. Returns the script's path."""
    text = rendered(plan, token=token)
    _write_beside(text, plan, None)
    return run.write_script(text.script)


def write_array(plan: JobPlan, path: Path, *, token: str, array: str, elements: Path) -> Path:
    """Writes the job script of an array to `path`, and the files beside it. Returns the path."""
    text = rendered(plan, token=token, array=array, elements=elements)
    _write_beside(text, plan, elements)
    return run_files.write(path, text.script)


def _write_beside(text: Rendered, plan: JobPlan, elements: Path | None) -> None:
    run_files.write(render.path_of(NAME, plan, elements), text.job)
    if text.after is not None:
        run_files.write(render.path_of(AFTER, plan, elements), text.after)


def _parts(plan: JobPlan, token: str, array: str | None, elements: Path | None) -> render.Parts:
    scheduler = registry.scheduler(plan.cluster.scheduler)
    folder = None if elements is None else str(elements.parent)
    steps = registry.starting_steps(plan.starter)
    start: list[Any] = start_command.start(plan) if steps is None else steps.start_tasks(plan)
    return render.Parts(
        scheduler.template, scheduler.shell, start, scheduler.directives(plan, token, array, folder),
        here=scheduler.on_this_machine, from_files=scheduler.secrets_in_files,
    )  # fmt: skip

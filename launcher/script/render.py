"""From a plan to the script that the scheduler gets. Pure: the same plan and token give the same text."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.environment import containers, interpreter, secrets
from launcher.environment.setup_line import SetupLine
from launcher.failures.codes import SetupPart
from launcher.files import shared_files
from launcher.files.shared_folder import SEEN
from launcher.own_module import own_module
from launcher.script import custom_template, starters, templates
from launcher.script.job_shell import JobShell
from launcher.script.quoting import Raw, command, quote
from launcher.spec.plan import JobPlan

LEASE_BEAT = 15  # seconds between two signs of life of whoever holds a run's lease
LEASE_LOOK = 2  # seconds between two looks of whoever waits for it
READ_PATIENCE = int(shared_files.IN_A_JOB)  # seconds for which what cannot be read now is tried again
READ_PAUSE = 1  # seconds between two tries
LEASE_PATIENCE = 90  # seconds without one, after which it is dead; network file systems show times up to 60 s late


@dataclass(frozen=True)
class Parts:
    """What a scheduler puts into a script.

    Attributes:
        template: the file that the script is made from, in templates/, or with its whole path.
        shell: what a script knows of its job.
        directives: the options of the job, as they stand in their lines (behind #SBATCH, say).
        here: the job is a process of the machine where it is submitted.
        from_files: the job gets its environment, and its secrets, from files.
    """

    template: str
    shell: JobShell
    directives: Sequence[str] = ()
    here: bool = False
    from_files: bool = False


def script(plan: JobPlan, parts: Parts, *, array: str | None = None, elements: Path | None = None) -> str:
    """The whole script of one run, or of an array of runs whose directories are folders in the plan's.

    Args:
        plan: the run.
        parts: what its scheduler puts in; see `launcher.schedulers.job_script`.
        array: indices and throttle in Slurm's words (`0-14%4`).
        elements: for an array: a file with the names of those folders, one a line; elements print to beside it.
    """
    assert (array is None) == (elements is None)
    values = context(plan, parts, array=array, elements=elements)
    if plan.template is None:
        return str(templates.template(parts.template).render(values))
    return custom_template.rendered(plan.template, values)


def context(plan: JobPlan, parts: Parts, *, array: str | None = None, elements: Path | None = None) -> dict[str, Any]:
    """What templates can print; see `script`."""
    return {
        "plan": plan,
        "version": __version__,
        "directives": [Raw(line) for line in parts.directives],
        "shell": {
            **{name: Raw(getattr(parts.shell, name)) for name in ("job_id", "element_id", "index", "output")},
            "ends": parts.shell.ends,
            "limited": parts.shell.limited,
            "here": parts.here,
            "from_files": parts.from_files,
        },
        "array": array,
        "elements": elements,
        "arrays": elements and elements.parent,
        "checkpoints": _checkpoints(plan),
        "seen": Path(plan.run_dir).parent / SEEN,
        "no_workdir": Raw(quote(json.dumps(plan.no_workdir))),
        "setup": [_setup(each) for each in setup_lines(plan)],
        "environment": [(Raw(name), value) for name, value in plan.environment.items()],
        "secrets": [Raw(name) for name in plan.secrets],
        "secrets_file": _secrets_file(plan, array),
        "start": starters.start(plan),
        "node": command(containers.node_command(plan)),
        "again": command([plan.python, *own_module("launcher.job.requeue")]),
        "after": command([plan.python, *own_module("launcher.job.wait_for_others")]),
        "seconds": plan.time,
        "lease_patience": LEASE_PATIENCE,
        "lease_beat": LEASE_BEAT,
        "lease_look": LEASE_LOOK,
        "passing": Raw(" | \\\n    ".join(sorted(f'*"{os.strerror(number)}"' for number in shared_files.TRANSIENT))),
        "read_patience": READ_PATIENCE,
        "read_pause": READ_PAUSE,
        "umask": Raw(f"{plan.umask:03o}"),
    }


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    """The shell lines that run before the agents start, in their order. Pure."""
    lines = [SetupLine(line, SetupPart.CLUSTER, number) for number, line in enumerate(plan.setup, start=1)]
    if plan.modules:
        lines.append(SetupLine(interpreter.MODULE, SetupPart.MODULE))
    lines += [SetupLine(f"module load {quote(name)}", SetupPart.MODULES, name=name) for name in plan.modules]
    if plan.activate is not None:
        activate = f"launcher_env={quote(plan.activate)}\n{interpreter.ACTIVATE}"
        lines.append(SetupLine(activate, SetupPart.ACTIVATE, name=plan.activate))
    lines += [SetupLine(line, SetupPart.ENV, number) for number, line in enumerate(plan.env_setup, start=1)]
    return lines + containers.setup_lines(plan)


def _setup(each: SetupLine) -> tuple[Raw, str, Raw]:
    """A line, what it is for people, and what its event says of it."""
    said = {"of": each.of.value, "number": each.number, "name": each.name}
    return (
        Raw(each.line),
        each.words,
        Raw(quote(json.dumps({key: value for key, value in said.items() if value})[1:-1])),
    )


def _checkpoints(plan: JobPlan) -> Raw:
    """The folder of checkpoints; of an element of an array it is in its own directory."""
    own = f"{plan.run_dir}/checkpoints"
    return Raw('"$LAUNCHER_RUN_DIR"/checkpoints') if plan.checkpoint_dir == own else Raw(quote(plan.checkpoint_dir))


def _secrets_file(plan: JobPlan, array: str | None) -> Raw | None:
    """On PBS: the file with the run's secrets; an element of an array has its own."""
    if plan.secrets_dir is None:
        return None
    if array is not None:
        return Raw(quote(secrets.folder_of(plan.run_dir, plan.secrets_dir)) + '/"$launcher_element".sh')
    return Raw(quote(secrets.file_of(plan.run_dir, plan.secrets_dir)))

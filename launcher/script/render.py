"""Renders the job script of a plan, for all schedulers. Pure."""

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
from launcher.runs import lease
from launcher.script import custom_template, templates
from launcher.script.job_variables import JobVariables
from launcher.script.quoting import Raw, command, quote
from launcher.spec.plan import JobPlan

READ_TIMEOUT = int(shared_files.IN_A_JOB)  # seconds for which reading a file is retried after a transient error
_SHELL_TEXT = ("job_id", "element_id", "index", "output", "signals")  # fields of JobVariables that are shell code
READ_PAUSE = 1  # seconds between two retries


@dataclass(frozen=True)
class Parts:
    """The parts of a script that depend on the scheduler.

    Attributes:
        template: name of a template in templates/, or an absolute path.
        shell: shell expressions with which the script finds its job's id, output and end.
        start: first words of the command that runs another one on all nodes of the job.
        directives: options of the job, without the scheduler's prefix (such as #SBATCH).
        here: whether the job is a process on the machine where it is submitted.
        from_files: whether the job reads its environment and its secrets from files.
    """

    template: str
    shell: JobVariables
    start: Raw
    directives: Sequence[str] = ()
    here: bool = False
    from_files: bool = False


def script(plan: JobPlan, parts: Parts, *, array: str | None = None, elements: Path | None = None) -> str:
    """Renders the script of a run, or of an array of runs.

    Args:
        plan: plan of the run; for an array, a plan whose run_dir contains the directories of the runs.
        parts: parts that depend on the scheduler; see `launcher.schedulers.job_script`.
        array: indices and throttle in Slurm's notation (`0-14%4`); None: no array.
        elements: for an array, the file with the names of the runs' directories, one per line. The elements' output
            files are in the same folder.

    Raises:
        ConfigError: the user's own template cannot be rendered.
    """
    assert (array is None) == (elements is None)
    values = context(plan, parts, array=array, elements=elements)
    if plan.cluster.template is None:
        return str(templates.template(parts.template).render(values))
    return custom_template.rendered(plan.cluster.template, values)


def context(plan: JobPlan, parts: Parts, *, array: str | None = None, elements: Path | None = None) -> dict[str, Any]:
    """Returns the variables of the templates by name; the arguments are those of `script`."""
    return {
        "plan": plan,
        "version": __version__,
        "directives": [Raw(line) for line in parts.directives],
        "shell": {
            **{name: Raw(getattr(parts.shell, name)) for name in _SHELL_TEXT},
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
        "environment": [(Raw(name), value) for name, value in plan.cluster.environment.items()],
        "secrets": [Raw(name) for name in plan.secret_variables],
        "secrets_file": _secrets_file(plan, array),
        "start": parts.start,
        "node": command(containers.node_command(plan)),
        "requeue": command([plan.python, *own_module("launcher.job.requeue")]),
        "after": command([plan.python, *own_module("launcher.job.wait_for_others")]),
        "seconds": plan.time,
        "lease_timeout": lease.TIMEOUT,
        "lease_heartbeat": lease.HEARTBEAT,
        "lease_poll": lease.POLL,
        "passing": Raw(" | \\\n    ".join(sorted(f'*"{os.strerror(number)}"' for number in shared_files.TRANSIENT))),
        "read_timeout": READ_TIMEOUT,
        "read_pause": READ_PAUSE,
        "umask": Raw(f"{plan.umask:03o}"),
    }


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    """Returns the shell lines that run before the agents start, in order. Pure."""
    lines = [SetupLine(line, SetupPart.CLUSTER, number) for number, line in enumerate(plan.cluster.setup, start=1)]
    if plan.env.modules:
        lines.append(SetupLine(interpreter.MODULE, SetupPart.MODULE))
    lines += [SetupLine(f"module load {quote(name)}", SetupPart.MODULES, name=name) for name in plan.env.modules]
    if plan.env.activate is not None:
        activate = f"launcher_env={quote(plan.env.activate)}\n{interpreter.ACTIVATE}"
        lines.append(SetupLine(activate, SetupPart.ACTIVATE, name=plan.env.activate))
    lines += [SetupLine(line, SetupPart.ENV, number) for number, line in enumerate(plan.env.setup, start=1)]
    return lines + containers.setup_lines(plan)


def _setup(each: SetupLine) -> tuple[Raw, str, Raw]:
    """Returns the shell code of a set-up line, its description for errors, and the fields of its event as JSON."""
    said = {"of": each.of.value, "number": each.number, "name": each.name}
    return (
        Raw(each.line),
        each.words,
        Raw(quote(json.dumps({key: value for key, value in said.items() if value})[1:-1])),
    )


def _checkpoints(plan: JobPlan) -> Raw:
    """Returns the folder of checkpoints as shell code; by default it is in the run directory of the array's element."""
    own = f"{plan.run_dir}/checkpoints"
    return Raw('"$LAUNCHER_RUN_DIR"/checkpoints') if plan.checkpoint.dir == own else Raw(quote(plan.checkpoint.dir))


def _secrets_file(plan: JobPlan, array: str | None) -> Raw | None:
    """Returns the path of the file with the secrets of the run (or array element) as shell code; None: no such file."""
    if plan.secrets_dir is None:
        return None
    if array is not None:
        return Raw(quote(secrets.folder_of(plan.run_dir, plan.secrets_dir)) + '/"$launcher_element".sh')
    return Raw(quote(secrets.file_of(plan.run_dir, plan.secrets_dir)))

"""From a plan to the script that the scheduler gets. Pure: the same plan and token give the same text.

Every value that a template prints is quoted for the shell, unless it is wrapped in `Raw`; no filter or alias turns
that off. Control characters never get through, quoted or not.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__
from launcher.config.schema import Scheduler
from launcher.environment import containers, interpreter, secrets
from launcher.errors import ConfigError
from launcher.files import shared_files
from launcher.files.shared_folder import SEEN
from launcher.own_module import own_module
from launcher.paths import resource
from launcher.schedulers.pbs import directives as qsub
from launcher.schedulers.slurm import directives as sbatch
from launcher.spec.plan import CONTROL, JobPlan

if TYPE_CHECKING:
    import jinja2

TEMPLATES = {
    Scheduler.slurm.value: "sbatch.sh.j2",
    Scheduler.pbs.value: "qsub.sh.j2",
    Scheduler.allocation.value: "allocation.sh.j2",
    Scheduler.local.value: "local.sh.j2",
}

LEASE_BEAT = 15  # seconds between two signs of life of whoever holds a run's lease
LEASE_LOOK = 2  # seconds between two looks of whoever waits for it
READ_PATIENCE = int(shared_files.IN_A_JOB)  # seconds for which what cannot be read now is tried again
READ_PAUSE = 1  # seconds between two tries
LEASE_PATIENCE = 90  # seconds without one, after which it is dead; network file systems show times up to 60 s late


class Raw:
    """Text that is shell code on purpose: a set-up line of the cluster's profile."""

    def __init__(self, text: str) -> None:
        self.text = text


def quote(value: Any) -> str:
    """The value as one shell word (jinja2's `finalize`).

    Raises:
        ValueError: it contains a line break or another control character.
    """
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Rendered):
        return value
    text = str(value)
    if match := CONTROL.search(text):
        raise ValueError(f"refusing to write the control character {match[0]!r} of {text!r} into a script")
    return shlex.quote(text)


def sbatch_option(name: str, value: Any) -> str:
    """An option as sbatch reads it in a #SBATCH line: like a shell, but a backslash counts within quotes too."""
    return f"--{name}" if value is True else f"--{name}=" + quote(value).replace("\\", "\\\\")


def qsub_option(letter: str, value: Any) -> str:
    """An option as qsub reads it in a #PBS line: like a shell (make_argv in OpenPBS's qsub.c)."""
    return f"-{letter} {quote(value)}" if value != "" else f"-{letter}"


def directives(plan: JobPlan, token: str, array: str | None = None, elements: Path | None = None) -> list[str]:
    """The options of a plan's script, as they stand in it behind #SBATCH or #PBS.

    Raises:
        ConfigError: an extra option of the profile collides with a key of the launcher, or a value cannot be one.
    """
    folder = None if elements is None else str(elements.parent)
    if plan.scheduler == Scheduler.slurm.value:
        return [sbatch_option(name, value) for name, value in sbatch.directives(plan, token, array, folder).items()]
    if plan.scheduler == Scheduler.pbs.value:
        return [qsub_option(letter, value) for letter, value in qsub.options(qsub.of_plan(plan, token, array, folder))]
    return []


def script(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> str:
    """The whole script of one run, or of an array of runs whose directories are folders in the plan's.

    Args:
        plan: the run.
        token: the job's comment, by which submission finds it again.
        array: indices and throttle in Slurm's words (`0-14%4`).
        elements: for an array: a file with the names of those folders, one a line; elements print to beside it.
    """
    assert (array is None) == (elements is None)
    values = context(plan, token=token, array=array, elements=elements)
    if plan.template is None:
        return str(template(TEMPLATES[plan.scheduler]).render(values))
    from launcher.script import custom_template

    return custom_template.rendered(plan.template, values)


def context(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> dict[str, Any]:
    """What templates can print; see `script`."""
    return {
        "plan": plan,
        "version": __version__,
        "directives": [Raw(line) for line in directives(plan, token, array, elements)],
        "array": array,
        "elements": elements,
        "arrays": elements and elements.parent,
        "checkpoints": _checkpoints(plan),
        "seen": Path(plan.run_dir).parent / SEEN,
        "no_workdir": Raw(quote(json.dumps(plan.no_workdir))),
        "setup": [(Raw(line), what, Raw(quote(json.dumps(what)))) for line, what in setup_lines(plan)],
        "environment": [(Raw(name), value) for name, value in plan.environment.items()],
        "secrets": [Raw(name) for name in plan.secrets],
        "secrets_file": _secrets_file(plan, array),
        "start": _start(plan),
        "node": command(containers.node_command(plan)),
        "again": command([plan.python, *own_module("launcher.job.requeue")]),
        "after": command([plan.python, *own_module("launcher.job.dependencies")]),
        "seconds": plan.time,
        "lease_patience": LEASE_PATIENCE,
        "lease_beat": LEASE_BEAT,
        "lease_look": LEASE_LOOK,
        "passing": Raw(" | \\\n    ".join(sorted(f'*"{os.strerror(number)}"' for number in shared_files.PASSING))),
        "read_patience": READ_PATIENCE,
        "read_pause": READ_PAUSE,
        "umask": Raw(f"{plan.umask:03o}"),
    }


def setup_lines(plan: JobPlan) -> list[tuple[str, str]]:
    """The shell lines that run before the agents start, in their order, each with what it is. Pure."""
    lines = [(line, f"set-up line {n} of the cluster's profile") for n, line in enumerate(plan.setup, start=1)]
    if plan.modules:
        lines.append((interpreter.MODULE, "finding the command `module` (env.modules)"))
    lines += [(f"module load {quote(name)}", f"module load {name} (env.modules)") for name in plan.modules]
    if plan.activate is not None:
        activate = f"launcher_env={quote(plan.activate)}\n{interpreter.ACTIVATE}"
        lines.append((activate, f"activating {plan.activate} (env.activate)"))
    lines += [(line, f"line {n} of env.setup") for n, line in enumerate(plan.env_setup, start=1)]
    return lines + containers.setup_lines(plan)


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


def _start(plan: JobPlan) -> Raw:
    """What starts a command on all nodes."""
    if plan.starter == "srun":
        srun = ["srun", *sbatch.srun_arguments(plan), *containers.srun_options(plan)]
        return command([*containers.before_srun(plan), *srun])
    return spawn(
        plan.python, plan.nodes, plan.tasks_per_node, plan.grace + 5, starter=plan.starter, mpiexec=plan.mpiexec,
        go_on=plan.min_nodes < plan.nodes, cpus_per_task=plan.cpus_per_node // plan.tasks_per_node,
    )  # fmt: skip


def spawn(
    python: str | Raw, nodes: int, tasks_per_node: int, grace: int,
    *, starter: str | None, mpiexec: Sequence[str] = (), go_on: bool = False, cpus_per_task: int | None = None,
) -> Raw:  # fmt: skip
    """What starts a command where there is no srun; see `launcher.schedulers.tasks`.

    Raises:
        ConfigError: mpiexec has a placeholder that is none.
    """
    options: list[Any] = ["--go-on"] if go_on else []
    if starter == "pbsdsh":
        options.append("--pbsdsh")
    if starter == "mpiexec":
        counts = {"nodes": nodes, "tasks": nodes * tasks_per_node, "tasks_per_node": tasks_per_node}
        counts |= {} if cpus_per_task is None else {"cpus_per_task": cpus_per_task}
        try:
            options.append("--mpiexec=" + shlex.join(word.format(**counts) for word in mpiexec))
        except (KeyError, IndexError, ValueError) as error:
            *names, last = (f"{{{name}}}" for name in counts)
            raise ConfigError(
                f"mpiexec: {error} cannot be filled in; there are {', '.join(names)} and {last}"
            ) from None
    return command([python, *own_module("launcher.schedulers.tasks"), *options, nodes, tasks_per_node, grace])


def command(words: Sequence[Any]) -> Raw:
    return Raw(" ".join(map(quote, words)))


def template(name: str) -> jinja2.Template:
    """A template of the folder templates/, in which every printed value is quoted.

    A name that is a path (of `cluster.template`) is that file, which may extend and include those of the folder.
    """
    return _environment(resource("templates")).get_template(name)


def environment() -> jinja2.Environment:
    """What templates are made with."""
    return _environment(resource("templates"))


class Rendered(str):
    """What a block or a macro has come to: its values are quoted already (`{{ super() }}`)."""

    __slots__ = ()


def raw(value: Any) -> Raw:
    """The filter `raw`, for what is shell code already (`directives`, `setup`, `start`, ...).

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, Raw):
        return value
    raise ValueError(f"{str(value)!r} is a value and no shell code: leave the filter raw out, and it is quoted")


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    import jinja2  # 15 ms, and only a submission needs it

    class Environment(jinja2.Environment):
        # What a block comes to passes `finalize` again where another template prints it.
        concat = staticmethod(lambda parts: Rendered("".join(parts)))

    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        own = Path(name)
        path = own if own.is_absolute() else folder / name
        try:
            return path.read_text(), str(path), lambda: not own.is_absolute()
        except OSError:
            return None

    environment = Environment(
        loader=jinja2.FunctionLoader(load),
        finalize=quote,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["raw"] = raw
    return environment

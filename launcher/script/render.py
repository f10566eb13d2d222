"""Renders the job script of a plan, for all schedulers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import __version__, paths
from launcher.config.schema import ResumeHow
from launcher.environment import containers, interpreter, secrets
from launcher.environment.setup_line import SetupLine
from launcher.failures.codes import SetupPart
from launcher.files.shared_folder import SEEN
from launcher.own_module import own_module
from launcher.runs import lease
from launcher.runs.job_file import AFTER, NAME, JobFile, LeaseTimes, SetupLineFields
from launcher.script import custom_template, templates
from launcher.script.job_variables import JobVariables
from launcher.script.quoting import Raw, command, quote
from launcher.spec.plan import JobPlan

_SHELL_TEXT = ("job_id", "element_id", "index", "output", "signals")  # fields of JobVariables that are shell code


@dataclass(frozen=True)
class Parts:
    """The parts of a script that depend on the scheduler.

    Attributes:
        template: name of a template in templates/, or an absolute path.
        shell: shell expressions with which the script finds its job's id, output and end.
        start: first arguments of the command that runs another one on all nodes of the job.
        directives: options of the job, without the scheduler's prefix (such as #SBATCH).
        here: whether the job is a process of the machine where it is submitted.
        from_files: whether the job reads its environment and its secrets from files.
    """

    template: str
    shell: JobVariables
    start: Sequence[Any]
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
    values = _values(plan, parts, array, elements)
    if plan.cluster.template is None:
        return str(templates.template(parts.template).render(values))
    return custom_template.rendered(plan.cluster.template, values)


def after_script(plan: JobPlan, parts: Parts) -> str | None:
    """Returns the block `after` of the user's own template as a shell script; None: it has none."""
    if plan.cluster.template is None:
        return None
    return custom_template.after(plan.cluster.template, _values(plan, parts, None, None))


def path_of(name: str, plan: JobPlan, elements: Path | None) -> Path:
    """Returns the path of a file that belongs to a script (`job_file.NAME`, `job_file.AFTER`)."""
    return Path(plan.run_dir, name) if elements is None else elements.with_name(f"{elements.name}.{name}")


def job_file(plan: JobPlan, parts: Parts, elements: Path | None, after: str | None) -> JobFile:
    """Returns what the driver of this script needs; the arguments are those of `script` and `after_script`."""
    return JobFile(
        run_dir=plan.run_dir,
        start=tuple(map(str, parts.start)),
        node=tuple(containers.node_command(plan)),
        requeue=(plan.python, *own_module("launcher.job.requeue")),
        wait=(plan.python, *own_module("launcher.job.wait_for_others")) if plan.after else (),
        signals=tuple(parts.shell.signals.split()),
        no_workdir=plan.no_workdir,
        setup=tuple(SetupLineFields(each.words, each.of.value, each.number, each.name) for each in setup_lines(plan)),
        # SLURM_EXPORT_ENV is set by sbatch --export=NONE: srun has to pass the job's variables all the same.
        environment={**({"SLURM_EXPORT_ENV": None} if plan.starter == "srun" else {}), **plan.cluster.environment},
        secrets=plan.env.secrets,
        secret_variables=plan.secret_variables,
        checkpoints=plan.checkpoint.dir,
        all_nodes=plan.min_nodes == plan.nodes,
        program_resumes=plan.program_resumes,
        chain=plan.resume.how == ResumeHow.chain.value,
        here=parts.here,
        lease=LeaseTimes(lease.HEARTBEAT, lease.POLL, lease.TIMEOUT),
        elements=None if elements is None else str(elements),
        after=None if after is None else str(path_of(AFTER, plan, elements)),
        seconds=plan.time if parts.shell.limited else None,
        time_left=parts.shell.time_left,
        again=parts.shell.again,
        threads=None if parts.here else plan.cpus_per_proc,
        environment_file=_environment_file(plan, parts),
        secrets_file=_secrets_file(plan, elements),
        seen=str(Path(plan.run_dir).parent / SEEN) if parts.from_files else None,
        snapshot=plan.code.snapshot,
        repository=plan.code.repository,
        path=plan.code.path,
        code_root=plan.code_root,
    )


def _values(plan: JobPlan, parts: Parts, array: str | None, elements: Path | None) -> dict[str, Any]:
    """Returns the variables of the templates by name. Only `plan` and `directives` may be used by custom templates."""
    job = paths.PACKAGE / "job"
    driver = [plan.python, "-I", job / "__main__.py", path_of(NAME, plan, elements)]
    return {
        "plan": plan,
        "directives": [Raw(line) for line in parts.directives],
        "heading": Raw(heading(plan)),
        "run_dir": plan.run_dir,
        "name": plan.name,
        "nodes": plan.nodes,
        "procs_per_node": plan.procs_per_node,
        "gpus_per_node": plan.gpus_per_node,
        "shell": {name: Raw(getattr(parts.shell, name)) for name in _SHELL_TEXT},
        "array": array,
        "driver": command(driver),
        "workdir": plan.workdir,
        "umask": Raw(f"{plan.umask:03o}"),
        "environment_file": _environment_file(plan, parts) or "",
        "begin": job / "begin.sh",
        # Batch shells do not always have `module`; where no line needs it, nothing is sourced.
        "modules": Raw("yes" if setup_lines(plan) or plan.cluster.template else ""),
        "setup": [Raw(each.line) for each in setup_lines(plan)],
    }


def heading(plan: JobPlan) -> str:
    """Returns the comment line with which the part after the directives begins."""
    run = quote(plan.run_id)
    return (
        f"# Run {run}, made by launcher {__version__}: `launcher status {run}`. What this file does: docs/job-script.md"
    )


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


def _environment_file(plan: JobPlan, parts: Parts) -> str | None:
    return f"{plan.run_dir}/environment.sh" if parts.from_files else None


def _secrets_file(plan: JobPlan, elements: Path | None) -> str | None:
    """Returns the path of the file with the run's secrets, for an array the folder of them; None: no such file."""
    if plan.secrets_dir is None:
        return None
    folder_or_file = secrets.file_of if elements is None else secrets.folder_of
    return str(folder_or_file(plan.run_dir, plan.secrets_dir))

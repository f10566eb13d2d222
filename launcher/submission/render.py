"""The job script of a run, for all schedulers, and the file that its driver reads. Pure, but for `write`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__, paths
from launcher.config.schema import ResumeHow
from launcher.environment import containers, programs, secrets
from launcher.environment.programs import SetupLine
from launcher.failures.codes import SetupPart
from launcher.files import run_files
from launcher.files.json_types import as_json
from launcher.files.shared_files import SEEN
from launcher.own_module import own_module
from launcher.runs import lease
from launcher.runs.job_file import AFTER, NAME, JobFile, LeaseTimes, SetupLineFields
from launcher.schedulers import registry, tasks, templates
from launcher.schedulers.templates import Raw, command, quote, shell_text
from launcher.submission import custom_template

if TYPE_CHECKING:
    from launcher.runs.directory import Run
    from launcher.schedulers.base import Scheduler
    from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class Rendered:
    """The texts of a job script and of the files beside it."""

    script: str
    job: str  # the driver's file (`launcher.runs.job_file`), as JSON
    after: str | None  # the script of a custom template's block `after`; None: there is none


def script(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> str:
    """Returns the job script of a run; see `rendered`."""
    return rendered(plan, token=token, array=array, elements=elements).script


def rendered(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> Rendered:
    """Renders the job script of a run, and the files beside it.

    plan: the run's plan; for an array, a plan whose run_dir contains the directories of the runs.
    token: unique text that is stored with the job, by which the submission finds it again.
    array: indices and throttle of a job array in Slurm's syntax (`0-14%4`); None: a plain job.
    elements: for an array, the file with the names of the runs' directories, one per line. The elements' output files
        are in the same folder.
    Raises ConfigError: cluster.directives has an option that another config key sets, or an invalid value; or the
        user's template cannot be rendered.
    Raises ValueError: a value has a control character.
    """
    assert (array is None) == (elements is None)
    scheduler, template = registry.scheduler(plan.cluster.scheduler), plan.cluster.template
    values = _values(plan, scheduler, token, array, elements)
    if template is None:
        text, after = str(templates.template(scheduler.template).render(values)), None
    else:
        text, after = custom_template.rendered(template, values), custom_template.after(template, values)
    job = as_json(_job_file(plan, scheduler, elements, after=after is not None))
    _require_no_control_characters(job)
    return Rendered(text, json.dumps(job, indent=1) + "\n", after)


def notes(plan: JobPlan, *, token: str) -> tuple[str, ...]:
    """Returns a note for the user about each of the job's options that a custom template leaves out."""
    if plan.cluster.template is None:
        return ()
    lines = script(plan, token=token).splitlines()
    asked = registry.scheduler(plan.cluster.scheduler).directives(plan, token, None, None)
    lost = [each for each in asked if not any(line.endswith(each) for line in lines)]
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


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    """Returns the shell lines that run before the agents start, in order."""
    lines = [SetupLine(line, SetupPart.CLUSTER, number) for number, line in enumerate(plan.cluster.setup, start=1)]
    if plan.env.modules:
        lines.append(SetupLine(programs.MODULE, SetupPart.MODULE))
    lines += [SetupLine(f"module load {quote(name)}", SetupPart.MODULES, name=name) for name in plan.env.modules]
    if plan.env.activate is not None:
        activate = f"launcher_env={quote(plan.env.activate)}\n{programs.ACTIVATE}"
        lines.append(SetupLine(activate, SetupPart.ACTIVATE, name=plan.env.activate))
    lines += [SetupLine(line, SetupPart.ENV, number) for number, line in enumerate(plan.env.setup, start=1)]
    return lines + containers.setup_lines(plan)


def _values(
    plan: JobPlan, scheduler: Scheduler, token: str, array: str | None, elements: Path | None
) -> dict[str, Any]:
    # The variables of the templates. Only `plan` and `directives` may be used by custom templates.
    job, run = paths.PACKAGE / "job", quote(plan.run_id)
    directives = scheduler.directives(plan, token, array, None if elements is None else str(elements.parent))
    return {
        "plan": plan,
        "directives": [Raw(line) for line in directives],
        "heading": Raw(
            f"# Run {run}, made by launcher {__version__}: `launcher status {run}`. "
            "What this file does: docs/job-script.md"
        ),
        "shell": shell_text(scheduler.shell),
        "array": array,
        "driver": command([plan.python, "-I", job / "__main__.py", _path_of(NAME, plan, elements)]),
        "workdir": plan.workdir,
        "umask": Raw(f"{plan.umask:03o}"),
        "environment_file": _environment_file(plan, scheduler) or "",
        "begin": job / "begin.sh",
        # Batch shells do not always have `module`; where no line needs it, nothing is sourced.
        "modules": Raw("yes" if setup_lines(plan) or plan.cluster.template else ""),
        "setup": [Raw(each.line) for each in setup_lines(plan)],
    }


def _job_file(plan: JobPlan, scheduler: Scheduler, elements: Path | None, *, after: bool) -> JobFile:
    here, shell = scheduler.on_this_machine, scheduler.shell
    return JobFile(
        run_dir=plan.run_dir,
        start=tuple(map(str, _start(plan))),
        node=tuple(containers.node_command(plan)),
        requeue=(plan.python, *own_module("launcher.job.requeue")),
        wait=(plan.python, *own_module("launcher.job.wait_for_others")) if plan.after else (),
        signals=tuple(shell.signals.split()),
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
        here=here,
        lease=LeaseTimes(lease.HEARTBEAT, lease.POLL, lease.TIMEOUT),
        elements=None if elements is None else str(elements),
        after=str(_path_of(AFTER, plan, elements)) if after else None,
        seconds=plan.time if shell.limited else None,
        time_left=shell.time_left,
        again=shell.again,
        threads=None if here else plan.cpus_per_proc,
        environment_file=_environment_file(plan, scheduler),
        secrets_file=_secrets_file(plan, elements),
        seen=str(Path(plan.run_dir).parent / SEEN) if scheduler.secrets_in_files else None,
        snapshot=plan.code.snapshot,
        repository=plan.code.repository,
        path=plan.code.path,
        code_root=plan.code_root,
    )


def _start(plan: JobPlan) -> list[str]:
    # The command that starts a program on all nodes of the job; the program's words follow it.
    if steps := registry.starting_steps(plan.starter):
        return steps.start_tasks(plan)
    return tasks.command(
        plan.python, plan.nodes, plan.tasks_per_node, plan.launch.grace + 5, starter=plan.starter,
        mpiexec=plan.cluster.settings.get("mpiexec", ()), keep_going=plan.min_nodes < plan.nodes,
        cpus_per_task=plan.cpus_per_task,
    )  # fmt: skip


def _path_of(name: str, plan: JobPlan, elements: Path | None) -> Path:
    return Path(plan.run_dir, name) if elements is None else elements.with_name(f"{elements.name}.{name}")


def _write_beside(text: Rendered, plan: JobPlan, elements: Path | None) -> None:
    run_files.write(_path_of(NAME, plan, elements), text.job)
    if text.after is not None:
        run_files.write(_path_of(AFTER, plan, elements), text.after)


def _require_no_control_characters(value: Any) -> None:
    if isinstance(value, str):
        quote(value)
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            _require_no_control_characters(each)


def _environment_file(plan: JobPlan, scheduler: Scheduler) -> str | None:
    return f"{plan.run_dir}/environment.sh" if scheduler.secrets_in_files else None


def _secrets_file(plan: JobPlan, elements: Path | None) -> str | None:
    # The file with the run's secrets, for an array the folder of them; None: the scheduler passes the environment.
    if plan.secrets_dir is None:
        return None
    folder_or_file = secrets.file_of if elements is None else secrets.folder_of
    return str(folder_or_file(plan.run_dir, plan.secrets_dir))

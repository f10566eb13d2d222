"""The job script of a run, from our template or the user's own, and the file that its driver reads.

A custom template extends one of ours, and fills the blocks `directives`, `setup`, `run` and `after`. Values of the plan
are allowed in `directives` only, whose lines are comments, so that no value can become shell code. Other blocks use the
exported variables (LAUNCHER_NAME, ...; docs/job-script.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from launcher import __version__, paths
from launcher.config.schema import ResumeHow
from launcher.environment import container_command, programs, secrets
from launcher.environment.programs import SetupLine
from launcher.errors import ConfigError, near
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.files.folder_checks import SEEN
from launcher.files.json_types import as_json
from launcher.paths import own_module, resource, user_config_dir
from launcher.plan.plan import JobPlan, texts_in
from launcher.runs import lease_and_locks
from launcher.runs.job_file import AFTER, NAME, JobFile, LeaseTimes, SetupLineFields
from launcher.schedulers import registry, tasks, templates
from launcher.schedulers.templates import Raw, command, quote, shell_text

if TYPE_CHECKING:
    import jinja2

    from launcher.runs.directory import Run
    from launcher.schedulers.base import Scheduler


T = TypeVar("T")

BLOCKS = ("directives", "setup", "run", "after")
# Of sbatch --export=NONE, or in an allocation of its user: srun has to pass all variables of the job. And an error of
# srun itself is an exit code that no agent has.
OF_SRUN = {"SLURM_EXPORT_ENV": None, "SRUN_EXPORT_ENV": None, "SLURM_EXIT_ERROR": "254"}
VALUES = ("plan", "directives")  # names that the block `directives` may use


def checked_template(name: str) -> str:
    """Returns the path of cluster.template, in the user's config folder or here; ConfigError: it is wrong in itself."""
    places = [folder / Path(name).expanduser() for folder in (user_config_dir(), Path.cwd())]
    path = next(filter(Path.is_file, places), None)
    if path is None:
        tried = " or ".join(dict.fromkeys(map(str, places)))
        raise ConfigError(
            f"cluster.template={name}: there is no file {tried}: `template show` prints one", key="cluster.template"
        )
    if wrong := list(template_problems(path)):
        raise ConfigError("cluster.template: " + "\n  ".join(wrong))
    return str(path)


def template_problems(path: Path) -> Iterator[str]:
    """Yields the errors of a template, and of those of the user's that it extends, that do not depend on a plan."""
    import jinja2
    from jinja2 import nodes

    names, seen = [str(path)], set[str]()
    while names:
        file = names.pop()
        seen.add(file)
        try:
            tree = templates.environment().parse(Path(file).read_text(), filename=file)
        except jinja2.TemplateSyntaxError as error:
            yield f"{file}:{error.lineno}: {error.message}"
            continue
        except (OSError, UnicodeDecodeError) as error:
            yield f"{file}:1: it cannot be read as text: {error}"
            continue
        extends = tree.find(nodes.Extends)
        parent = extends.template.as_const() if extends and isinstance(extends.template, nodes.Const) else None
        ours = sorted(each.name for each in resource("templates").glob("*.sh.j2"))
        if parent is None or extends is None:
            yield f'{file}:1: it lacks {{% extends "sbatch.sh.j2" %}} (there are {", ".join(ours)})'
        elif Path(parent).is_absolute():
            names += [parent] if parent not in seen else []
        elif parent not in ours:
            hint = near(parent, ours) or " Name your own by its absolute path"
            yield f"{file}:{extends.lineno}: there is no template {parent}.{hint}"
        for line, what in sorted(_of_tree(tree), key=lambda each: each[0]):
            yield f"{file}:{line}: {what}"


def _of_tree(tree: jinja2.nodes.Template) -> Iterator[tuple[int, str]]:
    from jinja2 import nodes

    directives = set[int]()
    for block in tree.find_all(nodes.Block):
        if block.name not in BLOCKS:
            there = f"There are {', '.join(BLOCKS)}.{near(block.name, BLOCKS)}"
            yield block.lineno, f"there is no block {block.name}. {there}"
        if block.name == "directives":
            directives.update(map(id, block.find_all(nodes.Name)))
        if block.name in ("setup", "run") and not any(
            isinstance(call.node, nodes.Name) and call.node.name == "super" for call in block.find_all(nodes.Call)
        ):
            lost = "cluster.setup and env have" if block.name == "setup" else "the run's driver has"
            yield block.lineno, f"the block {block.name} lacks {{{{ super() }}}}: {lost} no place in it"
    for other in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport)):
        yield other.lineno, "a template cannot include or import another one: write it into this one"
    own = {each.name for each in tree.find_all(nodes.Name) if each.ctx in ("store", "param")}
    known = {"super", "loop", *own, *templates.environment().globals}
    for name in tree.find_all(nodes.Name):
        if name.ctx != "load" or name.name in known:
            continue
        if name.name not in VALUES:
            yield name.lineno, f"there is no {name.name}.{near(name.name, VALUES)} Known: plan, directives"
        elif id(name) not in directives:
            instead = 'use an exported variable, such as "$LAUNCHER_NAME" (docs/job-script.md)'
            yield name.lineno, f"{name.name} is used outside of the block directives: {instead}"


def rendered_custom(template: str, values: Mapping[str, Any]) -> str:
    """Renders a custom template without its block `after`; ConfigError, with the line: it fails, or is no comment."""
    text = _custom(template, lambda loaded: str(loaded.render(values)))
    head, _, _ = text.partition(f"\n{values['heading']}\n")
    for line in head.splitlines():
        if line.strip() and not line.startswith("#"):
            raise ConfigError(
                f"cluster.template: {template}: the block directives has the line {line!r}, which is no comment: put "
                "commands into the block setup"
            )
    return text


def block_after(template: str, values: Mapping[str, Any]) -> str | None:
    """Returns a custom template's block `after`, or None; raises ConfigError with the line."""

    def block(loaded: jinja2.Template) -> str | None:
        context = loaded.new_context(dict(values))
        for _ in loaded.root_render_func(context):  # adds the blocks of the templates that it extends to the context
            pass
        return "".join(context.blocks["after"][0](context)) if "after" in context.blocks else None

    return _custom(template, block)


def _custom(template: str, render: Callable[[jinja2.Template], T]) -> T:
    import jinja2

    try:
        return render(templates.template(template))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"cluster.template: {error.filename}:{error.lineno}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise ConfigError(f"cluster.template: {template}: there is no template {error.name}") from None
    except RecursionError as error:
        path, line = _place(error.__traceback__, template)
        raise ConfigError(f"cluster.template: {path}:{line}: it extends or calls itself") from None
    except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        path, line = _place(error.__traceback__, template)
        raise ConfigError(f"cluster.template: {path}:{line}: {error}") from None


def _place(trace: TracebackType | None, template: str) -> tuple[str, int]:
    # jinja2 writes them into the traceback; without, they are `template` and line 0
    place = (template, 0)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == template or name.endswith(".j2"):
            place = (name, trace.tb_lineno)
        trace = trace.tb_next
    return place


# -- The job script of a run, for all schedulers, and the file that its driver reads. Pure, but for `write`


class RenderedScript(Struct):
    script: str
    job: str  # the driver's file (`launcher.runs.job_file`), as JSON
    after: str | None  # the script of a custom template's block `after`; None: there is none


def script(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> str:
    return rendered(plan, token=token, array=array, elements=elements).script


def rendered(plan: JobPlan, *, token: str, array: str | None = None, elements: Path | None = None) -> RenderedScript:
    """Renders the job script of a run, and the files beside it; raises ConfigError, or ValueError: control characters.

    For an array, plan.run_dir has the directories of the runs, which are the lines of the file `elements`.
    """
    assert (array is None) == (elements is None)
    scheduler, template = registry.scheduler(plan.cluster.scheduler), plan.cluster.template
    values = _values(plan, scheduler, token, array, elements)
    if template is None:
        text, after = str(templates.template(scheduler.template).render(values)), None
    else:
        text, after = rendered_custom(template, values), block_after(template, values)
    job = as_json(_job_file(plan, scheduler, elements, after=after is not None))
    if plan.race:
        environment = {**job["environment"], "LAUNCHER_MEMBER": str(plan.member)}
        words = (plan.python, *own_module("launcher.submission.race"), plan.run_dir, token)
        job |= {"race": token.removesuffix(f"-m{plan.member}"), "won": words, "environment": environment}
    for _, each in texts_in(job):
        quote(each)  # refuses control characters
    return RenderedScript(text, json.dumps(job, indent=1) + "\n", after)


def notes(plan: JobPlan, *, token: str) -> tuple[str, ...]:
    """Returns a note for the user about each of the job's options that a custom template leaves out."""
    if plan.cluster.template is None:
        return ()
    lines = script(plan, token=token).splitlines()
    asked = registry.scheduler(plan.cluster.scheduler).directives(plan, token, None, None)
    lost = [each for each in asked if not any(line.endswith(each) for line in lines)]
    return tuple(f"cluster.template={plan.cluster.template}: the job does not ask for {each}" for each in lost)


def write(run: Run, plan: JobPlan, *, token: str) -> Path:
    text = rendered(plan, token=token)
    _write_beside(text, plan, None)
    return run.write_script(text.script, plan.member)


def write_array(plan: JobPlan, path: Path, *, token: str, array: str, elements: Path) -> Path:
    text = rendered(plan, token=token, array=array, elements=elements)
    _write_beside(text, plan, elements)
    return safe_io.write(path, text.script)


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    cluster = f"cluster={plan.cluster.name}"
    lines = [SetupLine(line, f"set-up line {place} of {cluster}") for place, line in enumerate(plan.cluster.setup, 1)]
    if plan.env.modules:
        lines.append(SetupLine(programs.MODULE, "finding the command `module` (env.modules)"))
    lines += [SetupLine(f"module load {quote(name)}", f"module load {name} (env.modules)") for name in plan.env.modules]
    if plan.env.activate is not None:
        activate = f"launcher_env={quote(plan.env.activate)}\n{programs.ACTIVATE}"
        lines.append(SetupLine(activate, f"activating {plan.env.activate} (env.activate)"))
    lines += [SetupLine(line, f"line {place} of env.setup") for place, line in enumerate(plan.env.setup, 1)]
    return lines + container_command.setup_lines(plan)


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
        "environment_file": _environment_file(plan, scheduler, elements) or "",
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
        node=tuple(container_command.node_command(plan)),
        requeue=(plan.python, *own_module("launcher.job.requeue")),
        wait=(plan.python, *own_module("launcher.job.wait_for_others")) if plan.after else (),
        signals=tuple(shell.signals.split()),
        no_workdir=plan.no_workdir,
        setup=tuple(SetupLineFields(each.words) for each in setup_lines(plan)),
        environment={**(OF_SRUN if plan.starter == "srun" else {}), **plan.cluster.environment},
        secrets=plan.env.secrets,
        secret_variables=plan.secret_variables,
        checkpoints=plan.checkpoint.dir,
        all_nodes=plan.min_nodes == plan.nodes,
        program_resumes=plan.program_resumes,
        chain=plan.resume.how == ResumeHow.chain.value,
        here=here,
        lease=LeaseTimes(lease_and_locks.HEARTBEAT, lease_and_locks.POLL, lease_and_locks.TIMEOUT),
        elements=None if elements is None else str(elements),
        after=str(_path_of(AFTER, plan, elements)) if after else None,
        seconds=plan.time if shell.limited else None,
        time_left=shell.time_left,
        away=shell.away,
        kill_wait=shell.kill_wait,
        for_good=shell.for_good,
        again=shell.again,
        threads=None if here else plan.cpus_per_proc,
        environment_file=_environment_file(plan, scheduler, elements),
        secrets_file=_secrets_file(plan, elements),
        seen=str(Path(plan.run_dir).parent / SEEN) if scheduler.secrets_in_files else None,
        snapshot=plan.code.snapshot,
        repository=plan.code.repository,
        path=plan.code.path,
        code_root=plan.code_root,
    )


def _start(plan: JobPlan) -> list[str]:
    if steps := registry.starting_steps(plan.starter):
        return steps.start_tasks(plan)
    return tasks.command(
        plan.python, plan.nodes, plan.tasks_per_node, plan.launch.grace + 5, starter=plan.starter,
        mpiexec=plan.cluster.settings.get("mpiexec", ()), keep_going=plan.min_nodes < plan.nodes,
        cpus_per_task=plan.cpus_per_task,
    )  # fmt: skip


def _path_of(name: str, plan: JobPlan, elements: Path | None) -> Path:
    if plan.member:
        name = f"{plan.member}-{name}"
    return Path(plan.run_dir, name) if elements is None else elements.with_name(f"{elements.name}.{name}")


def _write_beside(text: RenderedScript, plan: JobPlan, elements: Path | None) -> None:
    safe_io.write(_path_of(NAME, plan, elements), text.job)
    if text.after is not None:
        safe_io.write(_path_of(AFTER, plan, elements), text.after)


def _environment_file(plan: JobPlan, scheduler: Scheduler, elements: Path | None) -> str | None:
    if not scheduler.secrets_in_files:
        return None
    return f"{plan.run_dir}/environment.sh" if elements is None else f"{elements}.environment.sh"


def _secrets_file(plan: JobPlan, elements: Path | None) -> str | None:
    # For an array the folder of them; None: the scheduler passes the environment
    of = secrets.file_of if elements is None else secrets.folder_of
    return None if plan.secrets_dir is None else str(of(plan.run_dir, plan.secrets_dir))

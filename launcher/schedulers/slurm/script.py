"""What a job script of Slurm looks like: its #SBATCH lines, and its srun commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.config.schema import ResumeHow
from launcher.errors import ConfigError
from launcher.formatting import format_time
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers.slurm.settings import GpuDirective, SlurmSettings
from launcher.schedulers.templates import quote, require_plain

# Families of equivalent options: an option in cluster.directives replaces all of the plan's options in its family.
FAMILIES = (
    {"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"},
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"requeue", "no-requeue"},
)
GPU_TYPE = re.compile(r"[\w.+-]+", re.ASCII)  # a colon or a comma would separate parts of a gres
WARNED = 600  # minimum wall time in seconds for which Slurm's warning signal (--signal) is requested
OWN_KEYS = ("partition", "account", "qos", "constraint", "reservation", "exclude")  # options that are keys of `cluster`
# Options that cluster.directives cannot set, and what to use instead.
TAKEN = {
    "job-name": "use the key name", "nodes": "use the key nodes", "cpus-per-task": "use the key cpus_per_proc",
    **dict.fromkeys(("ntasks-per-node", "ntasks"), "use the key procs_per_node"), "time": "use the key time",
    "comment": "the launcher finds its jobs by it", "open-mode": "attempts share the output file",
    **dict.fromkeys(("output", "error"), "`launcher logs RUN` shows it, wherever it is"),
    "array": "one command submits one run", **{key: f"use the key cluster.{key}" for key in OWN_KEYS},
    "clusters": "set SLURM_CLUSTERS in the environment, which all of Slurm's commands follow",
    "wait": "use the key wait", "test-only": "use dry_run=true, or `launcher why RUN`",
    "parsable": "the launcher finds its jobs by what sbatch prints",
}  # fmt: skip


# Keys of `cluster` that sbatch takes from the environment as well, and the variable of each (man sbatch, INPUT
# ENVIRONMENT VARIABLES). The variable overrides the line of the script, so a job gets it only if the key has no value.
VARIABLES = {each: f"SBATCH_{each.upper()}" for each in ("account", "partition", "qos", "reservation", "constraint")}


def inherited(plan: JobPlan) -> list[str]:
    return [VARIABLES[key] for key, value in effective(plan, {}).items() if value is None]


def effective(plan: JobPlan, environ: Mapping[str, str]) -> dict[str, str | None]:
    values = {**vars(settings_of(plan, SlurmSettings)), "account": plan.cluster.account}
    return {key: environ.get(name) if values[key] is None else values[key] for key, name in VARIABLES.items()}


def directives(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> dict[str, Any]:
    """Returns sbatch's options in the order of the script; True: no value; raises ConfigError."""
    pattern = (folder or plan.run_dir).replace("%", "%%")  # man sbatch, filename pattern
    settings = settings_of(plan, SlurmSettings)
    own = {**vars(settings), "account": plan.cluster.account}
    ours: dict[str, Any] = {
        "job-name": plan.name,
        "comment": token,
        **{key: own[key] for key in OWN_KEYS},
        # Not MIN-MAX: with --ntasks-per-node, Slurm 22.05 then allocates the minimum, however many nodes are idle.
        "nodes": plan.nodes,
        "ntasks-per-node": plan.tasks_per_node,
        "cpus-per-task": plan.cpus_per_task,
        **_gpus(plan.gpus_per_node, settings),
        "mem": None if plan.mem is None else f"{-(-plan.mem // 1024)}K",
        "time": format_time(plan.time),
        "array": array,
        "output": f"{pattern}/output-%A_%a.log" if array else f"{pattern}/output-%j.log",
        "open-mode": "append",
        # Overrides the site's default, so that a run continues after a preemption or the loss of a node.
        "requeue": True if plan.resume.how != ResumeHow.never.value else None,
        "no-requeue": True if plan.resume.how == ResumeHow.never.value else None,
        # Slurm checks every 30 s and may send the signal early, so a short run relies on the job's own timer.
        "signal": f"USR2@{plan.resume.lead}" if plan.time >= WARNED else None,
        # A lost node ends the job, unless the run can continue with fewer nodes.
        "no-kill": True if plan.min_nodes < plan.nodes else None,
    }
    for option in plan.cluster.directives:
        # sbatch accepts abbreviated options (man 3 getopt_long).
        if taken := next((name for name in TAKEN if name.startswith(option)), None):
            key = f"cluster.directives.{option}"
            raise ConfigError(f"{key} cannot be set: {TAKEN[taken]}", key=key)
        for family in FAMILIES:
            if option in family:
                ours = {name: value for name, value in ours.items() if name not in family}
    merged = {**ours, **plan.cluster.directives}
    return {option: value for option, value in merged.items() if value is not None and value is not False}


def _gpus(gpus: int, settings: SlurmSettings) -> dict[str, str]:
    if not gpus or settings.gpu_directive is GpuDirective.none:
        return {}
    kind = settings.gpu_type
    if kind and not GPU_TYPE.fullmatch(kind):
        raise ConfigError(f"cluster.gpu_type={kind}: a type of GPU has letters, digits and _ . + - only")
    count = f"{kind}:{gpus}" if kind else str(gpus)
    return {"gres": f"gpu:{count}"} if settings.gpu_directive is GpuDirective.gres else {"gpus-per-node": count}


def lines(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> list[str]:
    return [line(name, value) for name, value in directives(plan, token, array, folder).items()]


def line(name: str, value: Any) -> str:
    """Returns an option quoted for a #SBATCH line: like a shell's, but backslashes are escapes within any quotes."""
    return f"--{name}" if value is True else f"--{name}=" + quote(value).replace("\\", "\\\\")


def extra_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns cluster.directives by long option names (`gpus-per-node` for `gpus_per_node`); raises ConfigError."""
    result = {}
    for option, value in values.items():
        long_name = option.replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z-]+", long_name):
            raise ConfigError(f"cluster.directives: {option!r} is no long name (write `nodelist`, not `--nodelist`)")
        require_plain(option, value)
        result[long_name] = value
    return result


# -- The srun commands of a job: the step that starts its tasks, and further steps beside it in a running job


def tasks(plan: JobPlan) -> list[str]:
    from launcher.environment import container_command

    return [*container_command.before_srun(plan), "srun", *arguments(plan), *container_command.srun_options(plan)]


def arguments(plan: JobPlan) -> list[str]:
    """Returns the arguments of the srun that starts the agents, each bound to the CPUs of all its ranks (or the ranks).

    Slurm >= 22.05 does not pass --cpus-per-task from sbatch to srun.
    """
    fixed = plan.min_nodes == plan.nodes
    arguments = [
        # Without --nodes srun uses all nodes that the job got.
        *([f"--nodes={plan.nodes}", f"--ntasks={plan.nodes * plan.tasks_per_node}"] if fixed else []),
        f"--ntasks-per-node={plan.tasks_per_node}",
        f"--cpus-per-task={plan.cpus_per_task}",
        "--unbuffered",
        "--wait=0",  # else a site's WaitTime after the first agent has ended srun kills the others
        *(["--kill-on-bad-exit=1"] if fixed else ["--kill-on-bad-exit=0", "--no-kill"]),
        *([] if plan.queued else ["--overlap"]),  # other steps may run in the user's allocation
    ]
    return [*arguments, *plan.cluster.settings.get("srun_args", ())]


def command(argv: Sequence[str], job_id: str, host: str, folder: str, *, terminal: bool) -> list[str]:
    """Returns `Scheduler.step`'s srun; --overlap shares the CPUs of other steps (Slurm 20.11 and newer)."""
    return [
        "srun", f"--jobid={job_id}", "--overlap", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--mpi=none",
        f"--chdir={folder}", "--pty" if terminal else "--unbuffered", *argv,
    ]  # fmt: skip


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
        or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }

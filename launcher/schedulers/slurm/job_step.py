"""The srun commands of a job: the step that starts its tasks, and further steps beside it in a running job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.spec.plan import JobPlan


def tasks(plan: JobPlan) -> list[str]:
    """Returns the srun command for `StartsJobSteps.start_tasks`."""
    # Lazily: 60 ms, and only scripts need it
    from launcher.environment import containers

    return [*containers.before_srun(plan), "srun", *arguments(plan), *containers.srun_options(plan)]


def arguments(plan: JobPlan) -> list[str]:
    """Returns the arguments of the srun that starts the agents (or the ranks).

    Slurm >= 22.05 does not pass --cpus-per-task from sbatch to srun, so it is given here as well. An agent is bound to
    the CPUs of all its ranks.
    """
    fixed = plan.min_nodes == plan.nodes
    arguments = [
        # Without --nodes srun uses all nodes that the job got.
        *([f"--nodes={plan.nodes}", f"--ntasks={plan.nodes * plan.tasks_per_node}"] if fixed else []),
        f"--ntasks-per-node={plan.tasks_per_node}",
        f"--cpus-per-task={plan.cpus_per_task}",
        "--unbuffered",
        *(["--kill-on-bad-exit=1"] if fixed else ["--kill-on-bad-exit=0", "--no-kill"]),
        *([] if plan.queued else ["--overlap"]),  # other steps may run in the user's allocation
    ]
    return [*arguments, *plan.cluster.settings.get("srun_args", ())]


def command(argv: Sequence[str], job_id: str, host: str, folder: str, *, terminal: bool) -> list[str]:
    """Returns the srun command that runs `argv` on one node of a running job; for arguments see `StartsJobSteps.step`.

    --overlap shares the CPUs that the job's other steps occupy (Slurm 20.11 and newer).
    """
    return [
        "srun", f"--jobid={job_id}", "--overlap", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--mpi=none",
        f"--chdir={folder}", "--pty" if terminal else "--unbuffered", *argv,
    ]  # fmt: skip


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` without the variables that srun takes as options."""
    return {
        name: value
        for name, value in environ.items()
        if name in ("SLURM_CONF", "SLURM_CLUSTERS") or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }

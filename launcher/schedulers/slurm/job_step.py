"""The srun command that starts a process in a running Slurm job, as a step beside the job's other steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def command(argv: Sequence[str], job_id: str, host: str, folder: str, *, terminal: bool) -> list[str]:
    """Returns the srun command for `StartsJobSteps.step`.

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
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }

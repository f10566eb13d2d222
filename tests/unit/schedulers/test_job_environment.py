"""A job inherits the user's environment, and nothing that tells of a place in another job."""

from __future__ import annotations

import pytest

from launcher.schedulers import registry
from launcher.schedulers.pbs.scheduler import PBSScheduler
from launcher.schedulers.registry import job_environment
from tests.unit.plans import plan_of

USERS = {
    "PATH": "/bin", "HOME": "/home/me", "CUDA_HOME": "/cuda", "PYTHONPATH": "/mine", "MY_RANK": "3", "RANKS": "3",
    "HYDRA_FULL_ERROR": "1", "LAUNCHER_RUNS_DIR": "/runs", "LAUNCHER_CONFIG_DIR": "/conf", "SLURM_CONF": "/slurm.conf",
    "SLURM_CONF_SERVER": "head:6817",
    "LAUNCHER_CACHE_DIR": "/cache", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "WORLD_SIZES": "1",
    "MASTER_ADDRESS": "x",
}  # fmt: skip
SCHEDULERS = [
    "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURMD_NODENAME", "SBATCH_TIMELIMIT", "SRUN_EXPORT_ENV",
    "PBS_NODEFILE", "PBS_JOBID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_NAMESPACE", "PALS_RANKID", "MPI_LOCALRANKID",
    "HYDRA_PROXY_ID",
]  # fmt: skip
LAUNCHERS = [
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "LAUNCHER_JOB_ID",
    "LAUNCHER_ATTEMPT", "LAUNCHER_RUN_DIR", "LAUNCHER_TASK", "SUBMITIT_LOCAL_JOB_ID",
]  # fmt: skip
DIRTY = {**USERS, **dict.fromkeys([*SCHEDULERS, *LAUNCHERS], "1")}


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_only_the_users_own_variables_are_left(scheduler: str) -> None:
    scrubbed = job_environment(DIRTY, plan_of(cluster={"scheduler": scheduler}))
    assert scrubbed.environment == USERS
    assert scrubbed.dropped == tuple(sorted([*SCHEDULERS, *LAUNCHERS]))


def test_in_a_held_allocation_the_schedulers_variables_stay() -> None:
    scrubbed = job_environment(DIRTY, plan_of(cluster={"scheduler": "allocation"}))
    assert scrubbed.environment == {**USERS, **dict.fromkeys(SCHEDULERS, "1")}
    assert scrubbed.dropped == tuple(sorted(LAUNCHERS))


@pytest.mark.parametrize("scheduler", registry.OURS)
def test_functions_that_bash_exports_are_handed_on_to_nobody(scheduler: str) -> None:
    """One named `cd`, or as a variable of the script, would run in its place."""
    functions = dict.fromkeys(["BASH_FUNC_cd%%", "BASH_FUNC_module%%", "BASH_FUNC_code()"], "() { :; }")
    scrubbed = job_environment({**USERS, **functions}, plan_of(cluster={"scheduler": scheduler}))
    assert not functions.keys() & scrubbed.environment.keys()
    assert scrubbed.dropped == (), "everybody has some, and nobody need hear of it"


def test_a_clean_environment_is_handed_on_as_it_is() -> None:
    scrubbed = job_environment(USERS, plan_of())
    assert (scrubbed.environment, scrubbed.dropped) == (USERS, ())


OF_PBS = {
    "PBS_CONF_FILE": "/etc/pbs.conf", "PBS_EXEC": "/opt/pbs", "PBS_SERVER": "srv", "PBS_DEFAULT": "srv", "PBSD": "1",
    "TMPDIR_OF_MINE": "/x", "TMP": "/tmp",
}  # fmt: skip
# Of a job that one submits from: its TMPDIR is removed with it, and its number of CPUs is its own.
OF_A_PBS_JOB = [
    "TMPDIR", "NCPUS", "ENVIRONMENT", "OMP_NUM_THREADS", "PBS_O_WORKDIR", "PBS_JOBCOOKIE", "PBS_ARRAY_INDEX",
    "PBS_DPREFIX", "SBATCH_ACCOUNT",
]  # fmt: skip


def test_a_pbs_job_gets_no_place_in_another_and_finds_the_same_server() -> None:
    dirty = {**DIRTY, **OF_PBS, **dict.fromkeys(OF_A_PBS_JOB, "1")}
    scrubbed = PBSScheduler().inherited(dirty)
    assert scrubbed.environment == {name: value for name, value in (USERS | OF_PBS).items() if name not in OF_A_PBS_JOB}
    assert scrubbed.dropped == tuple(sorted({*SCHEDULERS, *LAUNCHERS, *OF_A_PBS_JOB}))
    assert job_environment(dirty, plan_of(cluster={"scheduler": "pbs"})) == scrubbed


@pytest.mark.parametrize("inside", [False, True])
def test_threads_are_the_users_wish_unless_a_pbs_job_set_them(inside: bool) -> None:
    wish = {"OMP_NUM_THREADS": "4", "OMP_PROC_BIND": "true"}
    environ = {**wish, "NCPUS": "4", "ENVIRONMENT": "BATCH", "TMPDIR": "/x", **({"PBS_JOBID": "7.s"} if inside else {})}
    scrubbed = PBSScheduler().inherited(environ)
    assert scrubbed.environment == ({"OMP_PROC_BIND": "true"} if inside else wish)
    assert scrubbed.dropped == tuple(sorted(environ.keys() - scrubbed.environment.keys()))


@pytest.mark.parametrize("scheduler", ["slurm", "local", "allocation"])
def test_elsewhere_what_pbs_would_set_anew_is_kept(scheduler: str) -> None:
    users = {"TMPDIR": "/x", "NCPUS": "4", "ENVIRONMENT": "test", "OMP_NUM_THREADS": "4"}
    assert job_environment(users, plan_of(cluster={"scheduler": scheduler})).environment == users


@pytest.mark.parametrize("key", ["account", "partition", "qos", "reservation", "constraint"])
def test_a_sites_default_counts_where_the_plan_says_nothing(key: str) -> None:
    variable = f"SBATCH_{key.upper()}"
    assert job_environment({variable: "theirs"}, plan_of()).environment == {variable: "theirs"}
    assert job_environment({variable: "theirs"}, plan_of(cluster={key: "mine"})).dropped == (variable,)


def test_the_environment_that_was_given_is_left_alone() -> None:
    before = dict(DIRTY)
    job_environment(DIRTY, plan_of())
    assert before == DIRTY

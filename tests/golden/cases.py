"""The runs with golden job scripts: a name, the command line, and the schedulers.

`cluster=SCHEDULER`, `run_id=NAME` and what every case has (`ALWAYS`) are added. A new key that changes a script gets a
line here, for one scheduler only if it has an effect on only one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

SLURM, PBS, LOCAL, ALLOCATION, PBS_ALLOCATION = "slurm", "pbs", "local", "allocation", "pbs-allocation"
SGE = "sge"
CLUSTERS = (SLURM, PBS)
NODES_ELSEWHERE = (SLURM, PBS, ALLOCATION)
EVERY = (SLURM, PBS, LOCAL, ALLOCATION)
ALWAYS = ("dry_run=true", "cluster.check=false")
# What the shell has that is in an allocation; of `cluster` those that are not the scheduler's own name.
CLUSTER = {PBS_ALLOCATION: "allocation"}
ENVIRONMENT = {
    ALLOCATION: {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_CPUS_PER_NODE": "64(x4)"},
    PBS_ALLOCATION: {"PBS_JOBID": "7.srv", "PBS_NODEFILE": "../nodes"},
}


# A run of each workload with nothing but what it must have, on Slurm. Their plans are kept whole; of the others the
# rows that differ from them.
PLAIN = {
    "collective": "",
    "p2p": "nodes=2",
    "ddp_mnist": "",
    "fsdp_lm": "",
    "program": "workload.script=train.py",
    "function": "workload.target=pkg.train:main workload.kwargs.lr=0.1",
}


@dataclass(frozen=True)
class Case:
    """One script.

    Attributes:
        name: the id of the run.
        scheduler: one of the names above, or a profile.
        words: the arguments.
        installed: whether the launcher is installed, not used from a checkout.
    """

    name: str
    scheduler: str
    words: tuple[str, ...]
    installed: bool = False

    @property
    def id(self) -> str:
        return f"{self.name}.{self.scheduler}"

    @property
    def waits(self) -> bool:
        """Whether the run waits for other runs, which must exist."""
        return self.name == "after"

    @property
    def workload(self) -> str:
        return next(word.partition("=")[2] for word in self.words if word.startswith("workload="))

    @property
    def is_sweep(self) -> bool:
        return self.words[0] == "-m"

    @property
    def command(self) -> list[str]:
        """The whole command line."""
        name = f"sweep.id={self.name}" if self.is_sweep else f"run_id={self.name}"
        return [*self.words, f"cluster={CLUSTER.get(self.scheduler, self.scheduler)}", name, *ALWAYS]


def _cases(name: str, words: str, on: tuple[str, ...], installed: bool = False) -> list[Case]:
    return [Case(name, scheduler, tuple(shlex.split(words)), installed) for scheduler in on]


CASES = [
    case
    for line in (
        # -- sizes, and how ranks are started
        ("one-rank", "workload=collective nodes=1", (*EVERY, PBS_ALLOCATION)),
        ("agents", "workload=p2p nodes=2 procs_per_node=4 cpus_per_proc=2", (*EVERY, PBS_ALLOCATION)),
        ("tasks", "workload=p2p launch=tasks nodes=2 procs_per_node=4 cpus_per_proc=2", EVERY),
        ("fewer-nodes", "workload=ddp_mnist nodes=4 min_nodes=2", EVERY),
        ("gpus", "workload=fsdp_lm nodes=2 gpus_per_node=4 cpus_per_proc=8", EVERY),
        ("memory", "workload=p2p nodes=2 mem=16G time=1-12:00:00", CLUSTERS),
        ("short", "workload=collective time=5m launch.grace=5", (SLURM, LOCAL)),
        ("preflight", "workload=ddp_mnist nodes=2 preflight=true debug.rank=0", CLUSTERS),
        # -- how a run goes on
        ("never", "workload=ddp_mnist resume.how=never", CLUSTERS),
        ("requeue", "workload=ddp_mnist resume.how=requeue", (SLURM,)),
        ("resubmit", "workload=ddp_mnist resume.how=resubmit resume.max_attempts=3", CLUSTERS),
        ("chain", "workload=ddp_mnist resume.how=chain resume.max_attempts=3", CLUSTERS),
        ("lead", "workload=ddp_mnist time=2h resume.lead=3m checkpoint.dir=/scratch/me/checkpoints", NODES_ELSEWHERE),
        ("after", "workload=collective after=[ok:{world}/earlier/one,any:{world}/earlier/two]", (SLURM, LOCAL)),
        ("after", "workload=collective after={world}/earlier/three", (PBS,)),
        # -- the user's own code
        ("program", "workload=program workload.script=train.py 'workload.args=[--lr,\"0.1\",\"two words\"]'", EVERY),
        ("not-resumable", "workload=program workload.module=pkg.train workload.resumable=false", CLUSTERS),
        ("function", "workload=function workload.target=pkg.train:main workload.kwargs.lr=0.1", CLUSTERS),
        # -- what the ranks find
        ("modules", "workload=p2p nodes=2 env.modules=[gcc/13,cuda/12.4] 'env.setup=[ulimit -c 0]'", EVERY),
        ("setup", "workload=p2p nodes=2 'cluster.setup=[module purge,\"export A=1\"]' env.modules=[gcc]", CLUSTERS),
        ("activate", "workload=p2p nodes=2 env.activate=/envs/torch", NODES_ELSEWHERE),
        ("archive", "workload=p2p nodes=2 env.archive=../torch.tar", EVERY),
        ("apptainer", "workload=p2p nodes=2 env.container=/images/torch.sif env.binds=[/data:/data:ro] "
         "env.container_args=[--nv] env.python=/opt/conda/bin/python", NODES_ELSEWHERE),
        ("singularity", "workload=p2p nodes=2 env.container=/images/torch.sif env.container_runtime=singularity",
         (SLURM,)),
        ("enroot", "workload=p2p nodes=2 env.container=/images/torch.sqsh env.container_runtime=enroot", CLUSTERS),
        ("registry", "workload=p2p nodes=2 env.container='docker://pytorch/pytorch:2.5'", (SLURM, LOCAL)),
        ("pyxis", "workload=p2p nodes=2 'env.container=\"nvcr.io#nvidia/pytorch:25.01\"' env.container_runtime=pyxis "
         "env.binds=[/data] env.container_args=[--no-container-mount-home]", (SLURM, ALLOCATION)),
        ("snapshot", "workload=program workload.script=train.py env.snapshot=true", EVERY),
        ("snapshot-paths", "workload=program workload.script={world}/project/train.py env.snapshot=true "
         "+cluster.environment.PYTHONPATH={world}/project/pkg:/opt/lib", (SLURM,)),
        ("pyxis-folders", "workload=program workload.script=train.py nodes=2 env.snapshot=true "
         "env.container=/images/torch.sqsh env.container_runtime=pyxis checkpoint.dir=/data/me/checkpoints "
         "tracking.dir=/data/me/tensorboard +cluster.environment.PYTHONPATH=/opt/lib", (SLURM,)),
        ("environment", "workload=p2p nodes=2 '+cluster.environment={A: two words, EMPTY: \"\", GONE: null}'", EVERY),
        ("secrets", "workload=p2p nodes=2 +cluster.environment.WANDB_API_KEY=0123456789abcdef env.secrets=[MY_PIN]",
         EVERY),
        # -- what a site wants: Slurm
        ("site-keys", "workload=p2p nodes=2 cluster.partition=gpu cluster.account=me cluster.qos=high "
         "'cluster.constraint=\"a100&ib\"' cluster.reservation=course 'cluster.exclude=\"node[3,7]\"'", (SLURM,)),
        ("gpu-type", "workload=p2p gpus_per_node=4 cluster.gpu_type=a100", (SLURM,)),
        ("gpus-per-node", "workload=p2p gpus_per_node=4 cluster.gpu_directive=gpus_per_node cluster.gpu_type=a100",
         (SLURM,)),
        ("gpus-unasked", "workload=p2p gpus_per_node=4 cluster.gpu_directive=none", CLUSTERS),
        ("directives", "workload=p2p nodes=2 mem=8G '+cluster.directives={exclusive: true, mem_per_cpu: 2G, "
         "licenses: \"matlab:1\", no_requeue: true, signal: null}' 'cluster.srun_args=[\"--mpi=pmix\",--label]'",
         (SLURM,)),
        ("quoting", "workload=p2p nodes=2 'cluster.partition=\"a b\"' 'cluster.account=\"it\\\\'\"'\"'s\"' "
         "'cluster.srun_args=[\"--x=$HOME;`date`\"]'", (SLURM,)),
        # -- PBS
        ("site-keys", "workload=p2p nodes=2 cluster.queue=gpu cluster.account=me cluster.project=ours "
         "cluster.place=scatter:excl '+cluster.chunk={gpu_type: a100, ompthreads: null}' "
         "'+cluster.resources={filesystems: \"home:eagle\"}'", (PBS,)),
        ("mpiexec", "workload=p2p nodes=2 procs_per_node=2 cpus_per_proc=3 launch=tasks 'cluster.mpiexec=[mpiexec,-n,"
         "\"{tasks}\",--ppn,\"{tasks_per_node}\",\"--depth={cpus_per_task}\"]'", (PBS,)),
        ("directives", "workload=p2p nodes=2 '+cluster.directives={m: abe, M: me@here, W: [\"group_list=ours\"], "
         "h: true}'", (PBS,)),
        # -- Grid Engine
        ("one-rank", "workload=collective nodes=1", (SGE,)),
        ("agents", "workload=p2p nodes=2 procs_per_node=4 cluster.parallel_environment=mpi", (SGE,)),
        ("fewer-nodes", "workload=ddp_mnist nodes=4 min_nodes=2 cluster.parallel_environment=mpi", (SGE,)),
        ("gpus", "workload=fsdp_lm nodes=2 gpus_per_node=4 cluster.gpu_resource=ngpus "
         "cluster.parallel_environment=mpi-4 cluster.slots=4 mem=64G cluster.mem_resource=h_vmem", (SGE,)),
        ("never", "workload=ddp_mnist resume.how=never", (SGE,)),
        ("chain", "workload=ddp_mnist resume.how=chain resume.max_attempts=3", (SGE,)),
        ("site-keys", "workload=p2p cluster.queue=gpu.q cluster.account=me cluster.project=ours "
         "'+cluster.resources={hostname: node1, exclusive: true}'", (SGE,)),
        ("directives", "workload=p2p '+cluster.directives={m: abe, l: [\"fast=1\"], notify: null}'", (SGE,)),
        ("secrets", "workload=p2p +cluster.environment.WANDB_API_KEY=0123456789abcdef env.secrets=[MY_PIN]", (SGE,)),
        ("throttle", "-m workload=ddp_mnist workload.lr=0.1,0.01 sweep.parallelism=1", (SGE,)),
        # -- the profiles that come with the launcher, as their comments recommend
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cluster.group=ours", ("tsubame4",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=16 cluster.account=me",
         ("derecho", "polaris")),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 mem=40G cluster.account=me", ("casper",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=8 cpus_per_proc=7 cluster.account=me", ("frontier", "lumi-g")),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=32 cluster.account=me", ("perlmutter",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=72 cluster.account=me", ("roihu",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=12 cluster.account=me", ("juwels-booster",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=72 cluster.account=me", ("jupiter", "alps")),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=8 mem=494000M cluster.account=me",
         ("leonardo",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=16", ("snellius",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=20 cluster.account=me cluster.qos=acc_ehpc",
         ("marenostrum5",)),
        ("profile", "workload=program workload.script=train.py nodes=2 gpus_per_node=12 cpus_per_proc=8 "
         "cluster.account=me", ("aurora",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=8 cpus_per_proc=12 cluster.project=me", ("abci",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=8 cluster.project=11003281", ("aspire2a", "aspire2a-plus")),
        ("profile", "workload=p2p nodes=2 gpus_per_node=4 cpus_per_proc=12 mem=380G cluster.project=me "
         "+cluster.resources.storage=scratch/me", ("gadi",)),
        ("profile", "workload=p2p nodes=2 gpus_per_node=1 cpus_per_proc=72 '+cluster.directives.W=[\"group_list=me\"]'",
         ("miyabi-g",)),
        # -- a profile and a template of the user's own
        ("profile", "workload=p2p nodes=2", ("mine",)),
        ("template", "workload=p2p nodes=2 cluster.template=../mine.sh.j2", (SLURM,)),
        # -- sweeps: arrays, and what is none
        ("array", "-m workload=p2p nodes=2 seed=1,2,3", (SLURM, PBS, LOCAL)),
        ("throttle", "-m workload=ddp_mnist workload.lr=0.1,0.01 'seed=range(3)' sweep.parallelism=2 "
         "checkpoint.every=5m", CLUSTERS),
        ("two-arrays", "-m workload=p2p nodes=2,3 seed=1,2 sweep.parallelism=3 "
         "+cluster.environment.MY_TOKEN=0123456789abcdef", CLUSTERS),
    )
    for case in _cases(*line)
]  # fmt: skip
# As it is with `pip install launcher`, where the job needs no folder on PYTHONPATH but in another Python.
CASES += [
    case
    for line in (
        ("installed", "workload=p2p nodes=2", EVERY, True),
        ("installed-activate", "workload=p2p nodes=2 env.activate=/envs/torch", (SLURM,), True),
    )
    for case in _cases(*line)
]

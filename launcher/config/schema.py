"""The typed schema of everything in conf/.

Each dataclass is a section of the config (or the root), and each field a key. The comment after a field says what the
key means, and its unit; `python -m launcher help` and docs/config.md show this comment.
It needs nothing but the standard library, so that the login node and the compute nodes can both use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar

from launcher.config.search_space import Goal, Method

MISSING: Any = "???"  # omegaconf's own marker: the key has no default and must be given


class Form(Enum):
    """The form of a key's value. `launcher.plan.build` checks and converts the value accordingly."""

    time = "time"  # a wall time, in seconds
    memory = "memory"  # a size with a unit, in bytes
    natural = "natural"  # 1 or more
    positive = "positive"  # a number above 0
    ports = "ports"  # LOW-HIGH, as two numbers
    steps = "steps"  # a number of steps from 0, or auto
    flat = "flat"  # a mapping from names to texts and numbers


Time = Annotated[str, Form.time]
Memory = Annotated[str, Form.memory]
Nat = Annotated[int, Form.natural]  # a natural number
Positive = Annotated[float, Form.positive]
Steps = Annotated[str, Form.steps]
Ports = Annotated[str, Form.ports]
Flat = Annotated[dict[str, Any], Form.flat]


class LaunchMode(Enum):
    """What the scheduler starts on each node."""

    agent = "agent"  # one agent per node, which forks the ranks
    tasks = "tasks"  # one task per rank


class VisibleDevices(Enum):
    """Which GPUs of its node a rank sees."""

    auto = "auto"  # one for workloads of the launcher, all for programs and functions of the user
    one = "one"  # its own GPU, as device 0
    all = "all"  # all GPUs of the node; it uses the one whose number is its local rank


class Backend(Enum):
    """Communication backend of torch.distributed."""

    auto = "auto"  # nccl on GPUs (xccl on Intel's), gloo on CPUs
    gloo = "gloo"
    nccl = "nccl"
    xccl = "xccl"
    mpi = "mpi"


class Device(Enum):
    """The device of the tensors."""

    auto = "auto"  # a GPU when gpus_per_node is more than 0; otherwise what the rank sees: a GPU, else the CPU
    cpu = "cpu"
    cuda = "cuda"  # NVIDIA's and AMD's
    xpu = "xpu"  # Intel's


class Sync(Enum):
    """What averages the gradients."""

    ddp = "ddp"  # DistributedDataParallel
    manual = "manual"  # one all_reduce per bucket, written out


class MatrixOf(Enum):
    """The pairs of which a matrix has the bandwidth and latency."""

    nodes = "nodes"  # all pairs of nodes, by the first rank of each
    ranks = "ranks"  # all pairs of ranks


class Precision(Enum):
    """Arithmetic of the forward and backward pass."""

    auto = "auto"  # bfloat16 where the GPU has it, else float32
    float32 = "float32"
    bfloat16 = "bfloat16"


class ResumeHow(Enum):
    """How a run continues after an attempt that stopped early."""

    auto = "auto"  # requeue if the scheduler allows that to users, else resubmit
    requeue = "requeue"  # the same job is requeued (scontrol requeue)
    resubmit = "resubmit"  # the ending job submits a new one
    chain = "chain"  # dependent jobs, all submitted at once: for sites where compute nodes cannot submit
    never = "never"  # it does not, until `launcher resume`


class Runtime(Enum):
    """The container runtime."""

    auto = "auto"  # apptainer, else singularity, whichever a node has; enroot for a .sqsh image
    apptainer = "apptainer"
    singularity = "singularity"
    enroot = "enroot"
    pyxis = "pyxis"  # srun's own options, of NVIDIA's plug-in


class TrackingMode(Enum):
    """Where W&B writes during the run."""

    offline = "offline"  # to files in the run directory, which `wandb sync` sends later
    online = "online"  # also to its server, with WANDB_API_KEY of the environment


class BestIs(Enum):
    """Which value of a metric is the best."""

    max = "max"
    min = "min"


@dataclass
class Limits:
    """Limits of a site for a job. None or empty: no limit."""

    nodes: Nat | None = None  # most nodes
    gpus_per_node: int | None = None  # most GPUs on one node
    cpus_per_node: Nat | None = None  # most CPUs on one node
    mem_per_node: Memory | None = None  # most memory on one node, with a unit (`250G`)
    time: Time | None = None  # longest wall time, in any form that `time` takes
    time_by_nodes: dict[int, str] = field(default_factory=dict)  # longest wall time from a number of nodes on ({1: 2h})
    node_hours: float | None = None  # most nodes times hours of wall time
    gpus: int | None = None  # most GPUs on all nodes together
    min_nodes: int | None = None  # fewest nodes
    min_gpus_per_node: int | None = None  # fewest GPUs on one node
    min_time: Time | None = None  # shortest wall time
    cpus_per_gpu: int | None = None  # fewest CPUs with each GPU
    jobs: int | None = None  # most jobs of one user, waiting or running


@dataclass
class Pool:
    """Settings of a profile for one partition, queue or QOS, in addition to those of the cluster."""

    limits: Limits = field(default_factory=Limits)  # limits for a job there
    environment: dict[str, Any] = field(default_factory=dict)  # variables; those of cluster.environment take precedence
    interface: str | None = None  # network interface; cluster.interface takes precedence


@dataclass
class SchedulerSettings:
    """Keys of `cluster` that only one scheduler has (its settings.py); a plan has them in `cluster.settings`."""

    # names of the keys that name a job's partition, queue or QOS. `cluster.pools` has settings for each
    POOLS: ClassVar[tuple[str, ...]] = ()
    # what to use instead of a key that only other schedulers have, as text, by the name of the key
    INSTEAD: ClassVar[Mapping[str, str]] = {}
    # whether keys of other schedulers are ignored rather than refused, as nothing is submitted
    IGNORES_OTHERS: ClassVar[bool] = False


@dataclass
class Cluster:
    """The profile of a site: a file in conf/cluster/ or in your config folder. Its scheduler has more keys."""

    name: str = MISSING  # the profile's name, shown in tables
    required: list[str] = field(default_factory=list)  # keys of cluster that must be set (`account`, `chunk.mem=2G`)
    scheduler: str = MISSING  # local, slurm, pbs, sge, allocation, or one of another package
    account: str | None = None  # account that is charged
    directives: dict[str, Any] = field(default_factory=dict)  # extra options of the job; null drops one of ours
    setup: list[str] = field(default_factory=list)  # shell commands to run before the agents start (module load ...)
    template: str | None = None  # your own template of the job script; see docs/job-script.md
    environment: dict[str, Any] = field(default_factory=dict)  # environment variables of all ranks; null unsets one
    limits: Limits = field(default_factory=Limits)  # limits for a job
    pools: dict[str, Pool] = field(default_factory=dict)  # limits and variables of partitions, queues and QOS
    check: bool = True  # check a plan against the actual partition or queue (here: GPUs) before submission
    nics: list[str] = field(default_factory=list)  # network device of each GPU (without GPUs: of each rank), by number
    rank_environment: dict[str, Any] = field(default_factory=dict)  # variables of each rank; {nic} is its own of nics
    expects: dict[str, Any] = field(default_factory=dict)  # what NCCL should use, for preflights: net, plugin, provider
    interface: str | None = None  # network interface of the ranks; empty: the one that reaches the master
    host_suffix: str = ""  # appended to host names to reach the fabric's address (`-ib`)
    port_range: Ports = "20000-32767"  # ports for the rendezvous; below Linux's ephemeral ports
    submit_timeout: Nat = 60  # timeout of a command of the scheduler, in seconds
    race: list[str] = field(default_factory=list)  # jobs of which the first to start runs it: [partition=a,partition=b]
    query_interval: Nat | None = None  # shortest time between two queries about jobs, in seconds; empty: 2


@dataclass
class Launch:
    """How ranks are started and watched."""

    mode: LaunchMode = LaunchMode.agent  # agent (one per node, forks ranks) or tasks (one task per rank)
    rendezvous_timeout: Nat = 300  # seconds within which all nodes must connect and all ranks must join
    timeout: Nat = 1800  # seconds after which a collective counts as failed
    grace: Nat = 30  # seconds between SIGTERM and SIGKILL when ranks are stopped; must suffice for a save
    max_restarts: int = 3  # restarts in a row without progress within an attempt; 0: no restarts
    hang_timeout: Nat = 600  # seconds without a step after which ranks count as hung, after their first step
    start_timeout: Nat = 1800  # seconds until the first step, after which ranks that can resume count as hung
    idle_timeout: Nat = 1800  # seconds without CPU time, output or a step of any rank after which all count as hung
    heartbeat: Nat = 30  # seconds without a heartbeat after which a node counts as lost
    visible_devices: VisibleDevices = VisibleDevices.auto  # GPUs that a rank sees: one, all, or auto (own code: all)
    bind: str = "auto"  # CPUs of a rank: auto (near its GPU), none, socket, numa, core, or map:0-7:8-15 by local rank


@dataclass
class Checkpoint:
    """When a training saves its state, and which checkpoints are kept."""

    every: Time | None = None  # time between saves (`10m`); empty: from the measured time of a save and a restart
    every_steps: Nat | None = None  # steps between saves, instead of a time
    keep: Nat = 2  # number of the newest checkpoints to keep
    best: str | None = None  # metric whose best checkpoint is kept too (`accuracy`)
    best_is: BestIs = BestIs.max  # which value of that metric is the best: max or min
    dir: str | None = None  # folder of the checkpoints; empty: the folder checkpoints in the run directory
    background: bool = True  # write in the background; false: training waits until all is on disk
    verify: bool = True  # check checksums when a checkpoint is loaded
    read_timeout: int = 300  # seconds for which a failing read is retried, before the attempt ends with 75
    timeout: Nat = 3600  # seconds to wait for the slowest rank in a save or a load
    max_failures: int = 5  # saves in a row that may fail before the attempt ends with 75; 0: any number
    check_replicas: bool = True  # at the first save, check that replicated tensors are equal on all ranks
    start_over: bool = False  # start from the beginning if all checkpoints are damaged; false: that is an error
    memory: Steps = "auto"  # steps between copies in host memory, for restarts in place; 0: none; auto: by their cost
    peers: bool = True  # with memory: also copy to the next node what only one rank has


@dataclass
class Resume:
    """How a run continues after an attempt that stopped early."""

    how: ResumeHow = ResumeHow.auto  # auto, requeue, resubmit, chain or never
    max_attempts: Nat = 100  # most attempts of a run
    lead: Time | None = None  # time before its limit at which an attempt stops; empty: a twentieth of it, 10 s to 2 min
    strict: bool = False  # refuse a checkpoint if the result could differ from that of an uninterrupted run


@dataclass
class Train:
    """Settings of all trainings."""

    invariant: bool = False  # bitwise the same weights at any world size, by logical micro-batches
    micro_batches: Nat = 8  # with invariant: logical micro-batches of a global batch; at least the number of ranks


@dataclass
class Env:
    """The software environment of the ranks: code, Python, packages, container."""

    modules: list[str] = field(default_factory=list)  # environment modules to load, after cluster.setup
    activate: str | None = None  # folder of the venv, uv or conda environment of the ranks
    setup: list[str] = field(default_factory=list)  # shell commands to run after that, before the agents start
    archive: str | None = None  # environment packed by `env pack` (.tar, .tar.gz, .tar.zst), unpacked on each node
    container: str | None = None  # container image of the ranks: image.sif, docker://..., or a name of pyxis
    container_runtime: Runtime = Runtime.auto  # auto, apptainer, singularity, enroot or pyxis
    container_args: list[str] = field(default_factory=list)  # more arguments of the container runtime
    binds: list[str] = field(default_factory=list)  # more folders to mount: SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro
    python: str = "python3"  # interpreter in the container, with torch, numpy and submitit
    snapshot: bool = False  # run a copy of the code, which later edits do not change
    snapshot_limit: Memory = "100M"  # largest size of this copy
    secrets: list[str] = field(default_factory=list)  # more names of secrets, which are in no file; !NAME excludes one


@dataclass
class Debug:
    """Debugging in the job."""

    rank: Any = None  # rank that stops at breakpoint(), a list ([0,3]), or all; empty: breakpoints are ignored
    post_mortem: bool = False  # these ranks also stop at exceptions that are not caught


@dataclass
class Tracking:
    """Experiment trackers (track=...)."""

    experiment: str | None = None  # name of the experiment; empty: the sweep's id, else the run's name
    uri: str | None = None  # MLflow: tracking URI; empty: MLFLOW_TRACKING_URI, else the folder mlflow in runs_dir
    dir: str | None = None  # TensorBoard: folder with one for each run; empty: the folder tensorboard of the run
    project: str | None = None  # W&B: project; empty: WANDB_PROJECT, else the experiment
    entity: str | None = None  # W&B: team or user; empty: WANDB_ENTITY, else the owner of the key
    mode: TrackingMode | None = None  # W&B: offline or online; empty: WANDB_MODE, else offline


@dataclass
class SearchBudget:
    """When a search (sweep.search) chooses no more points."""

    points: Nat | None = None  # most points
    gpu_hours: float | None = None  # most GPU-hours (without GPUs: node-hours) of all points


@dataclass
class Asha:
    """How points are pruned with sweep.search=asha: at rungs of min_steps, reduction_factor * min_steps, ... steps."""

    min_steps: Nat | None = None  # steps before which no point is pruned; empty: such that the third rung is the last
    reduction_factor: int = 3  # one in this many points continues at each rung; 2 or more


@dataclass
class Sweep:
    """A multirun (-m): many runs, called points, that differ in some keys."""

    id: str | None = None  # id of the sweep; empty: made from the command, so that repeating it continues the sweep
    after: Any = None  # dependencies of all points; see the key after
    parallelism: Nat | None = None  # points that may run at once; empty: no limit, on this machine one
    objective: Any = None  # metric (or a list) by which points are compared and searches are guided
    best_is: BestIs = BestIs.max  # which value of the (first) metric is the best: max or min
    search: Method | None = None  # choose points while the pilots run: grid, random, tpe, or asha, which prunes
    goal: Goal | None = None  # minimize or maximize the objective; empty: as best_is
    budget: SearchBudget = field(default_factory=SearchBudget)  # when a search ends
    asha: Asha = field(default_factory=Asha)  # when a search prunes
    seed: int = 0  # seed of the points that a search chooses
    slots: Nat | None = None  # points that run at once on each node of a pilot, a job that runs points in turn
    pack: Nat | None = None  # number of pilots that share the points, instead of a job for each point
    nodes: Nat | None = None  # nodes of each pilot; empty: 1
    gpus: int | None = None  # GPUs on each node of a pilot; empty: those of its slots. Of fewer, points share each
    retries: int = 2  # how often a point that fails in a pilot is retried, if possible on another node


@dataclass
class Workload:
    """What ranks run. All workloads have these keys."""

    name: str = MISSING  # the workload's name
    entry: str = MISSING  # `module:function`, called in every rank as function(config, env)
    min_ranks: int = 1  # fewest ranks that it works with
    backend: Backend = Backend.auto  # auto, gloo, nccl, xccl or mpi
    device: Device = Device.auto  # auto (a GPU with gpus_per_node > 0, else what there is), cpu, cuda or xpu
    seed: int = "${seed}"  # type: ignore[assignment]  # the run's seed
    hook: str | None = None  # `module:Class` with checks and data sets of the workload; see docs/your-code.md


@dataclass
class P2P(Workload):
    """Point-to-point transfers between ranks, every received value verified."""

    pattern: Any = "all"  # `all`, one, or a list: workload.pattern=[pingpong,bandwidth,matrix]
    sizes: Any = "1K:1M:32"  # bytes of one message: a size (`1M`), a sweep MIN:MAX:STEP, or a list of them
    dtype: str = "float32"  # float32, float16, bfloat16, float64, int32, int64 or int8
    pair: list[int] | None = None  # two ranks for pingpong and bandwidth; empty: the first of the first and last node
    window: int = 64  # messages in flight at once (bandwidth, bidirectional, matrix)
    iterations: int = 5  # timed runs per size; pairs do ten times as many up to 8 KiB
    warmup: int = 1  # runs per size before the clock starts
    budget: str | None = None  # time per size (`500ms`, `2s`) instead of iterations
    matrix: MatrixOf = MatrixOf.nodes  # pairs of the matrix: nodes (one rank of each) or ranks
    slow: float = 0.7  # a pair of the matrix is slow below this part of the median bandwidth
    slow_latency: float = 3.0  # it is also slow above this many times the median latency
    fail_on_slow: bool = False  # whether a slow pair fails the run
    baseline: str | None = None  # results to compare with; default: the run's `baseline`
    tolerance: float = 0.2  # the part of their speed that may be lost; default: the run's `tolerance`


@dataclass
class Collective(Workload):
    """Collective operations, every result verified against its definition."""

    op: Any = "all"  # `all`, one operation, or a list: workload.op=[all_reduce,broadcast]
    sizes: Any = "1M"  # bytes: a size, a sweep MIN:MAX:STEP (`8:1G:2`, `4M:64M:4M`), or a list of them
    dtype: str = "float32"  # float32, float16, bfloat16, float64, int32, int64 or int8
    redop: str = "sum"  # how reductions combine: sum, prod, min, max or avg
    root: int = 0  # the root of broadcast, reduce, gather and scatter: a rank within its group
    place: str = "both"  # both, out (separate buffers) or in (the result replaces the data)
    async_op: bool = False  # start operations with async_op=True, and wait for them
    groups: Any = field(default_factory=lambda: ["world"])  # world, node, stride (one rank per node), ranks (`0-1/2-3`)
    iterations: int = 5  # timed runs per size; the first and the last are verified
    warmup: int = 1  # runs per size before the clock starts
    budget: str | None = None  # time per size (`500ms`, `2s`) instead of iterations
    baseline: str | None = None  # results to compare with; default: the run's `baseline`
    tolerance: float = 0.2  # the part of their speed that may be lost; default: the run's `tolerance`


@dataclass
class DDPMnist(Workload):
    """A small CNN trained on handwritten digits (or clothes) with DistributedDataParallel."""

    dataset: str = "auto"  # auto, mnist, fashion-mnist or digits
    data_dir: str | None = None  # folder of the IDX files; empty: the user's data folder
    epochs: Nat | None = None  # passes over the training set; empty: 30 for digits, 5 for others
    batch_size: Nat = 128  # samples per step over all ranks together
    micro_batch_size: Nat | None = None  # most samples in one forward pass of a rank; empty: its whole share
    lr: Positive = 0.1  # peak learning rate
    momentum: float = 0.9  # of SGD
    weight_decay: float = 1e-4  # of SGD
    precision: Precision = Precision.auto  # auto, float32 or bfloat16
    sync: Sync = Sync.ddp  # ddp or manual
    bucket_mb: Positive = 1.0  # MiB per gradient bucket
    log_every: Nat = 50  # steps between two log lines
    threads: Nat | None = None  # CPU threads per rank; empty: OMP_NUM_THREADS, else as many as its cores


@dataclass
class FSDPLm(Workload):
    """A small language model, trained on the bytes of a text, with weights sharded over the ranks (FSDP2)."""

    text: str = "shakespeare"  # shakespeare (part of the launcher), a text file, or a folder of *.txt
    layers: Nat = 4  # blocks of attention and MLP
    heads: Nat = 4  # attention heads of a block; they divide width
    width: Nat = 128  # features of a token
    context: Nat = 64  # tokens (bytes of the text) in a window; a window is a sample
    dropout: float = 0.0  # part of the features that are dropped
    steps: Nat = 300  # optimizer steps
    batch_size: Nat = 32  # windows per step over all ranks together
    micro_batch_size: Nat | None = None  # most windows in one forward pass of a rank; empty: its whole share
    lr: Positive = 3e-3  # peak learning rate of AdamW
    warm_up: float = 0.1  # part of all steps in which the learning rate rises
    weight_decay: float = 0.1  # of AdamW, for matrices
    clip: float = 1.0  # largest norm of the whole gradient; 0: not limited
    precision: Precision = Precision.auto  # auto, float32 or bfloat16; sums over ranks are always float32
    recompute: bool = False  # activation checkpointing: recompute the activations of a block in the backward pass
    eval_every: Nat = 100  # steps between two evaluations
    eval_windows: Nat = 256  # most windows of the validation part that an evaluation uses
    log_every: Nat = 20  # steps between two log lines
    sample: int = 160  # bytes of text that the trained model writes at the end; 0: none
    threads: Nat | None = None  # CPU threads per rank; empty: OMP_NUM_THREADS, else as many as its cores


class StopSignal(Enum):
    """The signal that asks a program to stop."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    SIGUSR1 = "SIGUSR1"
    SIGUSR2 = "SIGUSR2"


@dataclass
class Program(Workload):
    """A script written for torchrun, or any other program, which is started once for each rank."""

    script: str | None = None  # a Python file or an executable, relative to the folder in which you submit
    module: str | None = None  # instead of a script: the module that `python -m` runs
    args: Any = field(default_factory=list)  # its arguments: a list, or a text that is split like in a shell
    flags: dict[str, Any] = field(default_factory=dict)  # more arguments by name, for sweeps: flags.lr=0.1 is --lr 0.1
    overrides: dict[str, Any] = field(default_factory=dict)  # the same for Hydra apps: overrides.lr=0.1 is lr=0.1
    python: str | None = None  # interpreter; empty: that of the launcher
    fork: bool = False  # fork ranks from the agent, which has loaded torch, instead of starting a Python for each
    stop_signal: StopSignal = StopSignal.SIGTERM  # asks it to stop: SIGTERM, SIGINT, SIGUSR1 or SIGUSR2
    resumable: bool = True  # it continues when it is restarted; false: it is never stopped early, and never restarted
    checkpoint: str | None = None  # file, folder or pattern that it saves to; a change counts as progress


@dataclass
class Function(Workload):
    """A function that Python can import, called in every rank."""

    target: str | None = None  # `package.module:function`
    kwargs: dict[str, Any] = field(default_factory=dict)  # its arguments, by name
    init: bool = True  # make the process group before the call
    checkpoint: str | None = None  # file, folder or pattern that it saves to; a change counts as progress


@dataclass
class Config:
    """The root of the config of a run."""

    workload: Workload = MISSING  # group; what ranks run: p2p, collective, ddp_mnist, fsdp_lm, program, function
    cluster: Cluster = MISSING  # group; where it runs: local (default), slurm, pbs, sge, allocation, or a profile
    launch: Launch = MISSING  # group; how ranks are started: agent (default), tasks
    env: Env = field(default_factory=Env)  # group; software environment of the ranks: default, or your own file in env/
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # when a training saves, and which checkpoints are kept
    resume: Resume = field(default_factory=Resume)  # how a run continues after an attempt that stopped early
    train: Train = field(default_factory=Train)  # settings of all trainings
    debug: Debug = field(default_factory=Debug)  # breakpoints in the job
    track: Any = None  # tensorboard, mlflow, wandb, or a list of them: trackers that get metrics during the run
    tracking: Tracking = field(default_factory=Tracking)  # settings of these trackers
    sweep: Sweep = field(default_factory=Sweep)  # multiruns
    name: str = "${workload.name}"  # the run's name: letters, digits and _ - + .
    run_id: str | None = None  # id of the run; empty: made from name and time. An id is submitted only once
    nodes: Nat = 1  # number of nodes
    min_nodes: Nat | None = None  # fewest nodes to start or continue with if others are missing; empty: all
    spares: int = 0  # more nodes, which wait to replace lost ones, so that the number of ranks stays the same
    gpus_per_node: int = 0  # GPUs on each node
    procs_per_node: Nat | None = None  # ranks on each node; empty: one per GPU, else as few as the workload needs
    cpus_per_proc: Nat = 1  # CPUs for each rank
    mem: Memory | None = None  # memory per node, with a unit (`16G`); empty: the site's default
    time: Time = "1h"  # wall time: 90 (minutes), 90m, 1h30m, 01:30:00, 1-12:00:00
    seed: int = 0  # seed of all random numbers
    after: Any = None  # wait for a run or sweep: RUN or ok:RUN (until it is done), any:RUN, failed:RUN; or a list
    baseline: str | None = None  # run to compare p2p and collective with: its id, directory, or results.json
    tolerance: float = 0.2  # part of the baseline's speed that may be lost before the run fails
    confirm_above: float | None = None  # GPU-hours (without GPUs: node-hours) that need confirmation if exceeded
    runs_dir: str = MISSING  # shared folder of all runs; default: LAUNCHER_RUNS_DIR, else ~/.local/share/launcher/runs
    preflight: bool = False  # check devices, clocks, folders and an all_reduce on all nodes before the ranks start
    dry_run: bool = False  # show the plan and the script, and submit nothing
    submit: bool = True  # false: make the run's directory, and print the command with which you submit it yourself
    wait: bool | None = None  # wait until the run ends; empty: yes for local and allocation, else no

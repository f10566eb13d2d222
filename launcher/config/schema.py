"""The typed schema of everything in conf/.

Each dataclass is one config group (or the root), each field one key that a user may override. The comment behind a
field says what it means and in which unit; `python -m launcher help` and the docs are built on the same words.
It needs nothing but the standard library, so that the login node and the compute nodes can both use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar

MISSING: Any = "???"  # omegaconf's own marker: the key has no default and must be given


class Form(Enum):
    """What a key's value must be, and what a plan has of it; `launcher.spec.sections` reads it."""

    time = "time"  # a wall time, in seconds
    memory = "memory"  # a size with a unit, in bytes
    natural = "natural"  # 1 or more
    above_one = "above one"  # more than 1
    ports = "ports"  # LOW-HIGH, as two numbers
    flat = "flat"  # by name, texts and numbers alone


Time = Annotated[str, Form.time]
Memory = Annotated[str, Form.memory]
Nat = Annotated[int, Form.natural]  # a natural number
AboveOne = Annotated[float, Form.above_one]
Ports = Annotated[str, Form.ports]
Flat = Annotated[dict[str, Any], Form.flat]


class LaunchMode(Enum):
    """What the scheduler starts on each node."""

    agent = "agent"  # one agent per node, which forks the ranks
    tasks = "tasks"  # one task per rank


class VisibleDevices(Enum):
    """Which of its node's GPUs a rank sees."""

    auto = "auto"  # one with the launcher's own workloads, all with programs and functions of the user's own
    one = "one"  # its own, as device 0
    all = "all"  # all of them; its own is the one with the number of its local rank


class Backend(Enum):
    """Communication backend of torch.distributed."""

    auto = "auto"  # nccl on GPUs (xccl on Intel's), gloo on CPUs
    gloo = "gloo"
    nccl = "nccl"
    xccl = "xccl"
    mpi = "mpi"


class Device(Enum):
    """Where tensors live."""

    auto = "auto"  # a GPU when gpus_per_node is more than 0; otherwise what the rank sees: a GPU, else the CPU
    cpu = "cpu"
    cuda = "cuda"  # NVIDIA's and AMD's
    xpu = "xpu"  # Intel's


class Sync(Enum):
    """Who averages the gradients."""

    ddp = "ddp"  # DistributedDataParallel
    manual = "manual"  # one all_reduce per bucket, written out


class MatrixOf(Enum):
    """Between whom a matrix of links is measured."""

    nodes = "nodes"  # all pairs of nodes, by the first rank of each
    ranks = "ranks"  # all pairs of ranks


class Precision(Enum):
    """Arithmetic of the forward and backward pass."""

    auto = "auto"  # bfloat16 where the GPU has it, else float32
    float32 = "float32"
    bfloat16 = "bfloat16"


class ResumeHow(Enum):
    """How a run that stopped early goes on."""

    auto = "auto"  # requeue where the scheduler lets its owner do so, else resubmit
    requeue = "requeue"  # the same job again (scontrol requeue)
    resubmit = "resubmit"  # a new job, submitted by the one that ends
    chain = "chain"  # jobs that depend on each other, all submitted at first: for sites whose nodes cannot submit
    never = "never"  # it stays stopped until `launcher resume`


class Runtime(Enum):
    """What starts containers."""

    auto = "auto"  # apptainer, else singularity, whichever a node has; enroot for a .sqsh image
    apptainer = "apptainer"
    singularity = "singularity"
    enroot = "enroot"
    pyxis = "pyxis"  # srun's own options, of NVIDIA's plug-in


class TrackingMode(Enum):
    """Where W&B writes while the run goes on."""

    offline = "offline"  # to files in the run directory, which `wandb sync` sends later
    online = "online"  # to its server too, with WANDB_API_KEY of the environment


class BestIs(Enum):
    """Which value of a metric is the best."""

    max = "max"
    min = "min"


@dataclass
class Limits:
    """What the site allows one job to ask for. Empty means: not checked from the profile."""

    nodes: int | None = None  # most nodes
    gpus_per_node: int | None = None  # most GPUs on one node
    cpus_per_node: int | None = None  # most CPUs on one node
    mem_per_node: str | None = None  # most memory on one node, with a unit (`250G`)
    time: str | None = None  # longest wall time, in any form that `time` takes
    time_by_nodes: dict[int, str] = field(default_factory=dict)  # the same, from each number of nodes on ({1: 2h})
    node_hours: float | None = None  # most nodes times hours
    gpus: int | None = None  # most GPUs on all nodes together
    min_nodes: int | None = None  # fewest nodes
    min_gpus_per_node: int | None = None  # fewest GPUs on one node
    min_time: str | None = None  # shortest wall time
    cpus_per_gpu: int | None = None  # fewest CPUs with each GPU
    jobs: int | None = None  # most jobs of one user, waiting or running


@dataclass
class Pool:
    """What a profile says for one partition, queue or QOS, on top of what it says for all."""

    limits: Limits = field(default_factory=Limits)  # what one job may ask for there
    environment: dict[str, Any] = field(default_factory=dict)  # variables, unless cluster.environment has them
    interface: str | None = None  # network interface, unless cluster.interface is set


@dataclass
class SchedulerSettings:
    """Keys of `cluster` that only one scheduler has: the base of a class in each scheduler's folder.

    A plan has them in `cluster.settings`, with the values of the config.

    Attributes:
        POOLS: those that name the partition, queue or QOS of a job, for which `cluster.pools` may have more.
        INSTEAD: for keys that only other schedulers have, what to use here.
        IGNORES_OTHERS: keys of other schedulers are ignored rather than refused: nothing is submitted.
    """

    POOLS: ClassVar[tuple[str, ...]] = ()
    INSTEAD: ClassVar[Mapping[str, str]] = {}
    IGNORES_OTHERS: ClassVar[bool] = False


@dataclass
class Cluster:
    """A site's profile: one file in conf/cluster/ or in your own config folder. Its scheduler adds keys of its own."""

    name: str = MISSING  # the profile's name, shown in tables
    required: list[str] = field(default_factory=list)  # keys of cluster that must be set (`account`, `chunk.mem=2G`)
    scheduler: str = MISSING  # local, slurm, pbs, sge or allocation, or one that another package adds
    account: str | None = None  # account that is charged
    directives: dict[str, Any] = field(default_factory=dict)  # extra options of the job; null drops one of ours
    setup: list[str] = field(default_factory=list)  # shell commands run before the agents start (module load ...)
    template: str | None = None  # a file of yours that the script is made from; see docs/templates.md
    environment: dict[str, Any] = field(default_factory=dict)  # variables exported to every rank; null unsets one
    trusted_folders: list[str] = field(default_factory=list)  # on the way to runs_dir, whose groups you trust; in files
    limits: Limits = field(default_factory=Limits)  # what one job may ask for
    pools: dict[str, Pool] = field(default_factory=dict)  # more limits and variables by partition, queue or QOS
    check: bool = True  # compare a plan with the live partition or queue before it is submitted
    node_type: str | None = None  # type of its nodes (`topology --node-type`), for the bindings that a dry run shows
    nics: list[str] = field(default_factory=list)  # network device of each GPU (without GPUs: of each rank), by number
    rank_environment: dict[str, Any] = field(default_factory=dict)  # variables of each rank; {nic} is its own of nics
    expects: dict[str, Any] = field(default_factory=dict)  # what a preflight finds NCCL to use: net, plugin, provider
    interface: str | None = None  # network interface of the ranks; empty: the one that reaches the master
    host_suffix: str = ""  # appended to host names to reach the fabric's address (`-ib`)
    port_range: Ports = "20000-32767"  # ports for the rendezvous, below Linux's ephemeral ports
    submit_timeout: Nat = 60  # seconds that one command of the scheduler may take
    query_interval: Nat | None = None  # fewest seconds between two queries about jobs; empty: 2


@dataclass
class Launch:
    """How ranks are started."""

    mode: LaunchMode = LaunchMode.agent  # agent (one per node, forks ranks) or tasks (one task per rank)
    rendezvous_timeout: Nat = 300  # seconds until every node must have arrived and every rank must have joined
    timeout: Nat = 1800  # seconds a collective may take before it counts as failed
    grace: Nat = 30  # seconds between SIGTERM and SIGKILL when ranks are stopped; a save must fit into them
    max_restarts: int = 3  # restarts in an attempt, not counting those after which the run got further; 0: none
    hang_timeout: Nat = 600  # seconds without a step after which ranks count as hung, once they have done one
    start_timeout: Nat = 1800  # seconds from joining to the first step, for ranks that can resume
    idle_timeout: Nat = 1800  # seconds in which no rank used CPU time, printed or did a step, after which all are hung
    heartbeat: Nat = 30  # seconds of silence after which a node counts as lost
    visible_devices: VisibleDevices = VisibleDevices.auto  # GPUs that a rank sees: one, all, or auto (own code: all)
    bind: str = "auto"  # CPUs of a rank: auto (near its GPU), none, socket, numa, core, or map:0-7:8-15 by local rank


@dataclass
class Checkpoint:
    """When a training saves its state, and what is kept."""

    every: Time | None = None  # time between two saves (`10m`); empty: from the measured cost of saving and restarting
    every_steps: Nat | None = None  # steps between two saves, instead of a time
    keep: Nat = 2  # newest complete checkpoints that are kept
    best: str | None = None  # metric by which one more is kept, the best (`accuracy`)
    best_is: BestIs = BestIs.max  # which value of that metric is the best: max or min
    dir: str | None = None  # where checkpoints are; empty: the folder checkpoints of the run directory
    background: bool = True  # write while training goes on; false: training waits until all is on disk
    verify: bool = True  # compare checksums when a checkpoint is loaded
    read_timeout: int = 300  # seconds for which a read that fails is tried again, before the attempt ends with 75
    timeout: Nat = 3600  # seconds for which the slowest rank is awaited in a save or a load
    max_failures: int = 5  # saves in a row that may fail before the attempt ends with exit code 75; 0: any number
    check_replicas: bool = True  # at the first save compare what ranks hold under one name, and refuse what differs
    start_over: bool = False  # begin anew where there are checkpoints and none of them is sound; otherwise an error


@dataclass
class Resume:
    """How a run goes on after an attempt that ended early."""

    how: ResumeHow = ResumeHow.auto  # auto, requeue, resubmit, chain or never
    max_attempts: Nat = 100  # attempts in all
    lead: Time | None = None  # time before its limit at which an attempt stops; empty: a twentieth, 10 s to 2 min
    strict: bool = False  # refuse a checkpoint with which the result could differ from that of an undisturbed run


@dataclass
class Train:
    """What all trainings have in common."""

    invariant: bool = False  # bitwise the same weights at any world size, from logical micro-batches
    micro_batches: Nat = 8  # logical micro-batches of a global batch, with invariant: the most ranks that share it
    straggler_factor: AboveOne = 1.5  # a rank that needs this many times the others' time for a step is named
    straggler_time: Time = "1m"  # when it has done so for this time


@dataclass
class Env:
    """What the ranks find: the code, Python and what is installed for it."""

    modules: list[str] = field(default_factory=list)  # what `module load` loads, after cluster.setup
    activate: str | None = None  # folder of a venv, uv or conda environment that the ranks run in
    setup: list[str] = field(default_factory=list)  # shell commands after that, before the agents start
    archive: str | None = None  # environment packed by `env pack` (.tar, .tar.gz, .tar.zst), unpacked on each node
    container: str | None = None  # image that the ranks run in: image.sif, docker://..., or as pyxis names it
    container_runtime: Runtime = Runtime.auto  # auto, apptainer, singularity, enroot or pyxis
    container_args: list[str] = field(default_factory=list)  # more arguments of it
    binds: list[str] = field(default_factory=list)  # more folders seen inside: SOURCE, SOURCE:TARGET or :ro behind
    python: str = "python3"  # interpreter inside, with torch, numpy and submitit
    snapshot: bool = False  # run the code as it is now, from a copy in the run directory, whatever is edited later
    snapshot_limit: Memory = "100M"  # most that such a copy may take
    secrets: list[str] = field(default_factory=list)  # more names of secrets, which are written nowhere; !NAME excepts


@dataclass
class Debug:
    """Debugging in the job."""

    rank: Any = None  # rank that stops at breakpoint(), a list of them ([0,3]), or all; empty: breakpoints are passed
    post_mortem: bool = False  # it also stops where an exception is raised that nobody catches


@dataclass
class Tracking:
    """Trackers that show a run while it trains (track=...)."""

    experiment: str | None = None  # name that runs which belong together share; empty: the sweep's id, else the name
    uri: str | None = None  # MLflow's; empty: MLFLOW_TRACKING_URI, else the folder mlflow in runs_dir
    dir: str | None = None  # TensorBoard's, with a folder for each run; empty: the folder tensorboard of the run
    project: str | None = None  # W&B's; empty: WANDB_PROJECT, else the experiment
    entity: str | None = None  # W&B's team or user; empty: WANDB_ENTITY, else whom the key belongs to
    mode: TrackingMode | None = None  # W&B's: where it writes; empty: WANDB_MODE, else offline


@dataclass
class Sweep:
    """A multirun (-m): many runs, its points, that differ in some keys."""

    id: str | None = None  # name of the sweep; empty: made from the command, so that the same one continues it
    after: Any = None  # as the key after, for every point
    parallelism: int | None = None  # points that may run at once; empty: as many as the site lets, one on this machine
    objective: Any = None  # metric (or a list) by which points are compared, and that a search such as Optuna's gets
    best_is: BestIs = BestIs.max  # which value of the (first) metric is the best: max or min
    slots: Nat | None = None  # points that share a node of a pilot, a job that runs one point after the other
    pack: Nat | None = None  # number of pilots that share the points, instead of a job for each point
    nodes: Nat = 1  # nodes of each pilot
    gpus: int | None = None  # GPUs on each node of a pilot; empty: as many as its slots ask for. Fewer are shared
    retries: int = 2  # how often a point that fails in a pilot is tried again, on another node where there is one


@dataclass
class Workload:
    """What ranks run. Every workload has these keys."""

    name: str = MISSING  # the workload's name
    entry: str = MISSING  # `module:function`, called in every rank as function(config, env)
    min_ranks: int = 1  # fewest ranks it makes sense with
    backend: Backend = Backend.auto  # auto, gloo, nccl, xccl or mpi
    device: Device = Device.auto  # auto (a GPU with gpus_per_node > 0, else what there is), cpu, cuda or xpu
    seed: int = "${seed}"  # type: ignore[assignment]  # the run's seed
    hook: str | None = None  # `module:Class` with checks and data sets of the workload; see docs/your-own.md


@dataclass
class P2P(Workload):
    """Point-to-point transfers between ranks, every received value verified."""

    pattern: Any = "all"  # `all`, one, or a list: workload.pattern=[pingpong,bandwidth,matrix]
    sizes: Any = "1K:1M:32"  # bytes of one message: a size (`1M`), a sweep MIN:MAX:STEP, or a list of them
    dtype: str = "float32"  # float32, float16, bfloat16, float64, int32, int64 or int8
    pair: list[int] | None = None  # two ranks for pingpong and bandwidth; empty: the first of the first and last node
    window: int = 64  # messages on their way at once (bandwidth, bidirectional, matrix)
    iterations: int = 5  # timed runs per size; pairs do ten times as many up to 8 KiB
    warmup: int = 1  # runs per size before the clock starts
    budget: str | None = None  # time per size (`500ms`, `2s`) instead of iterations
    matrix: MatrixOf = MatrixOf.nodes  # nodes (one rank of each) or ranks: whose pairs the matrix has
    slow: float = 0.7  # a pair of the matrix is slow with less than this part of the median bandwidth
    slow_latency: float = 3.0  # or with more than this many times the median latency
    fail_on_slow: bool = False  # whether a slow pair fails the run
    baseline: str | None = None  # results to compare with; the run's `baseline`
    tolerance: float = 0.2  # the part of their speed that may be lost; the run's `tolerance`


@dataclass
class Collective(Workload):
    """Collective operations, every result verified against its definition."""

    op: Any = "all"  # `all`, one operation, or a list: workload.op=[all_reduce,broadcast]
    sizes: Any = "1M"  # bytes: a size, a sweep MIN:MAX:STEP (`8:1G:2`, `4M:64M:4M`), or a list of them
    dtype: str = "float32"  # as for p2p
    redop: str = "sum"  # how reductions combine: sum, prod, min, max or avg
    root: int = 0  # the rank, counted within its group, that broadcasts, reduces, gathers and scatters
    place: str = "both"  # both, out (separate buffers) or in (the result where the data was)
    async_op: bool = False  # start operations with async_op=True, and wait for them
    groups: Any = field(default_factory=lambda: ["world"])  # world, node, stride (one rank per node), ranks (`0-1/2-3`)
    iterations: int = 5  # timed runs per size; the first and the last are verified
    warmup: int = 1  # runs per size before the clock starts
    budget: str | None = None  # time per size (`500ms`, `2s`) instead of iterations
    baseline: str | None = None  # results to compare with; the run's `baseline`
    tolerance: float = 0.2  # the part of their speed that may be lost; the run's `tolerance`


@dataclass
class DDPMnist(Workload):
    """A small CNN trained on handwritten digits (or clothes) with DistributedDataParallel."""

    dataset: str = "auto"  # auto, mnist, fashion-mnist or digits
    data_dir: str | None = None  # where the IDX files are; empty: the per-user data folder
    epochs: int | None = None  # passes over the training set; empty: what the data set needs (digits 30, others 5)
    batch_size: int = 128  # samples per step over all ranks together
    micro_batch_size: int | None = None  # most samples of one forward pass of a rank; empty: all of its share
    lr: float = 0.1  # peak learning rate
    momentum: float = 0.9  # of SGD
    weight_decay: float = 1e-4  # of SGD
    precision: Precision = Precision.auto  # auto, float32 or bfloat16
    sync: Sync = Sync.ddp  # ddp or manual
    bucket_mb: float = 1.0  # MiB per gradient bucket
    log_every: int = 50  # steps between two log lines
    threads: int | None = None  # CPU threads per rank; empty: OMP_NUM_THREADS, else as many as its cores


@dataclass
class FSDPLm(Workload):
    """A small language model, trained on the bytes of a text, whose weights are divided over the ranks (FSDP2)."""

    text: str = "shakespeare"  # shakespeare (part of the launcher), a text file, or a folder of *.txt
    layers: int = 4  # blocks of attention and MLP
    heads: int = 4  # attention heads of a block; they divide width
    width: int = 128  # features of a token
    context: int = 64  # tokens (bytes of the text) of one window, which is one sample
    dropout: float = 0.0  # part of the features that is dropped
    steps: int = 300  # optimizer steps
    batch_size: int = 32  # windows per step over all ranks together
    micro_batch_size: int | None = None  # most windows of one forward pass of a rank; empty: all of its share
    lr: float = 3e-3  # peak learning rate of AdamW
    warm_up: float = 0.1  # part of all steps in which the learning rate rises
    weight_decay: float = 0.1  # of AdamW, for matrices
    clip: float = 1.0  # largest norm of the whole gradient; 0: not limited
    precision: Precision = Precision.auto  # auto, float32 or bfloat16; sums over ranks are always float32
    recompute: bool = False  # compute a block's activations again in the backward pass instead of keeping them
    eval_every: int = 100  # steps between two evaluations
    eval_windows: int = 256  # most windows of the validation part that an evaluation uses
    log_every: int = 20  # steps between two log lines
    sample: int = 160  # bytes of text that the trained model writes at the end; 0: none
    threads: int | None = None  # CPU threads per rank; empty: OMP_NUM_THREADS, else as many as its cores


class StopSignal(Enum):
    """Which signal tells a program to stop."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    SIGUSR1 = "SIGUSR1"
    SIGUSR2 = "SIGUSR2"


@dataclass
class Program(Workload):
    """A script written for torchrun, or any other program, started once for each rank."""

    script: str | None = None  # a Python file or an executable one, seen from the folder that you submit in
    module: str | None = None  # instead of a script: what `python -m` runs
    args: Any = field(default_factory=list)  # its arguments: a list, or a text that is split as a shell would
    flags: dict[str, Any] = field(default_factory=dict)  # more of them by name, to sweep: flags.lr=0.1 is --lr 0.1
    overrides: dict[str, Any] = field(default_factory=dict)  # the same for a Hydra app: overrides.lr=0.1 is lr=0.1
    python: str | None = None  # interpreter; empty: the one that the launcher runs with
    fork: bool = False  # fork ranks from the agent, which has torch loaded, instead of starting a Python for each
    stop_signal: StopSignal = StopSignal.SIGTERM  # tells it to stop: SIGTERM, SIGINT, SIGUSR1 or SIGUSR2
    resumable: bool = True  # started again it goes on; false: it is not stopped before its time, and not started again
    checkpoint: str | None = None  # file, folder or pattern that it saves to; a change of it counts as progress


@dataclass
class Function(Workload):
    """Any function that Python can import, called in every rank."""

    target: str | None = None  # `package.module:function`
    kwargs: dict[str, Any] = field(default_factory=dict)  # its arguments, by name
    init: bool = True  # make the process group before it is called
    checkpoint: str | None = None  # file, folder or pattern that it saves to; a change of it counts as progress


@dataclass
class Config:
    """The root: what one run asks for."""

    workload: Workload = MISSING  # group; what ranks run: p2p, collective, ddp_mnist, fsdp_lm, program, function
    cluster: Cluster = MISSING  # group; where: local (default), slurm, pbs, allocation, or a profile of yours
    launch: Launch = MISSING  # group; how ranks are started: agent (default), tasks
    env: Env = field(default_factory=Env)  # group; what the ranks find: default, or a file of yours in env/
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # when a training saves, and what is kept
    resume: Resume = field(default_factory=Resume)  # how a run goes on after an attempt that ended early
    train: Train = field(default_factory=Train)  # what all trainings have in common
    debug: Debug = field(default_factory=Debug)  # breakpoints in the job
    track: Any = None  # tensorboard, mlflow, wandb, or a list of them: show metrics there while the run goes on
    tracking: Tracking = field(default_factory=Tracking)  # where they are
    sweep: Sweep = field(default_factory=Sweep)  # multiruns
    name: str = "${workload.name}"  # the run's name: letters, digits and _ - + .
    run_id: str | None = None  # id of the run; empty: made from name and time. The same id never submits twice
    nodes: Nat = 1  # number of nodes
    min_nodes: Nat | None = None  # fewest nodes to begin or to go on with when others are missing; empty: all
    gpus_per_node: int = 0  # GPUs on each node
    procs_per_node: Nat | None = None  # ranks on each node; empty: one per GPU, else as few as the workload needs
    cpus_per_proc: Nat = 1  # CPUs for each rank
    mem: Memory | None = None  # memory per node, with a unit (`16G`); empty: the site's default
    time: Time = "1h"  # wall time: 90 (minutes), 90m, 1h30m, 01:30:00, 1-12:00:00
    seed: int = 0  # seed of everything random
    after: Any = None  # wait for another run or sweep: RUN or ok:RUN (until it is done), any:RUN, failed:RUN; or a list
    baseline: str | None = None  # a run to compare p2p and collective with: its id, directory, or results.json
    tolerance: float = 0.2  # the part of the baseline's speed that may be lost before the run fails
    confirm_above: float | None = None  # GPU-hours (without GPUs: node-hours) above which a submission asks first
    runs_dir: str = MISSING  # where run directories are kept; must be seen by all nodes
    preflight: bool = False  # check devices, clocks, folders and an all_reduce on every node before the ranks start
    dry_run: bool = False  # show the plan and the script, do nothing
    wait: bool | None = None  # stay until the run ends; empty: yes for local and allocation, else no

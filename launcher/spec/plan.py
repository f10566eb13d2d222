"""From a config to a plan: one frozen object that a dry run shows and that submission uses. Pure."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from launcher import redaction
from launcher.binding import wanted as binding
from launcher.config.schema import (
    Backend,
    BestIs,
    Cluster,
    Config,
    Debug,
    GpuDirective,
    LaunchMode,
    ResumeHow,
    Runtime,
)
from launcher.errors import ConfigError, near
from launcher.files.json_types import misfit
from launcher.spec import containers, tracking
from launcher.units import parse_memory, parse_time

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")  # everything but a tab; all kinds of line breaks
LONGEST_NAME = 64
LONGEST_CHAIN = 50  # jobs that one command submits


class Rules(Protocol):
    """What the scheduler of a run says to its config; each but the first raises ConfigError."""

    @property
    def queued(self) -> bool:
        """Whether it takes jobs, which wait, rather than starting them at once."""

    def starter(self, cluster: Cluster) -> str | None:
        """What starts tasks on the nodes of a job; None: they are processes of this machine."""

    def directives(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Extra options of a job, as a plan keeps them."""

    def check_resume(self, how: ResumeHow) -> None:
        """Refuses a way to go on that it has not."""

    def check_keys(self, cluster: Cluster, gpus: int) -> None:
        """Refuses keys of other schedulers, which would be ignored without a word."""


@dataclass(frozen=True)
class Site:
    """What the submitting machine adds to a config.

    Attributes:
        run_id: id of the run.
        run_dir: its directory, absolute.
        python: interpreter that the job uses.
        code_root: folder to put on PYTHONPATH, or None when the launcher is installed.
        workdir: folder that the job starts in.
        umask: umask for what the user's own code writes.
        starter: what starts tasks in the allocation that the user's shell is in: srun or pbsdsh.
        after: what it waits for (`ok:/runs/prepare`); see launcher/submission/dependencies.py.
        code, repository, code_path: the folder of a snapshot, what it is a copy of, and those of its folders that
            Python searches; see launcher/environment/snapshot.py.
        archive_digest, archive_of, archive_import: about env.archive; see launcher/environment/archives.py.
        secrets_dir: on PBS, where the file with its secrets is; see launcher/environment/secrets.py.
    """

    run_id: str
    run_dir: str
    python: str
    code_root: str | None
    workdir: str
    umask: int = 0o022
    starter: str | None = None
    after: tuple[str, ...] = ()
    code: str | None = None
    repository: str | None = None
    code_path: tuple[str, ...] = ()
    secrets_dir: str | None = None
    archive_digest: str = ""
    archive_of: str | None = None
    archive_import: float = 0.0


@dataclass(frozen=True)
class JobPlan:
    """Everything about one run that is decided before it starts. JSON-able; the run directory keeps it."""

    run_id: str
    name: str
    run_dir: str
    cluster: str  # the profile's name
    scheduler: str
    launch: str  # agent or tasks
    nodes: int
    min_nodes: int
    gpus_per_node: int
    procs_per_node: int
    cpus_per_proc: int
    mem: int | None  # bytes per node
    time: int  # seconds
    workload: str
    kind: str  # class of its schema in launcher.config.schema
    entry: str  # module:function
    backend: str
    device: str
    params: Mapping[str, Any]  # the workload's keys, resolved
    seed: int
    python: str
    code_root: str | None
    workdir: str
    umask: int
    partition: str | None = None
    queue: str | None = None
    account: str | None = None
    project: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclude: str | None = None
    place: str | None = None
    chunk: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    gpu_directive: str = GpuDirective.none.value
    gpu_type: str | None = None
    directives: Mapping[str, Any] = field(default_factory=dict)
    srun_args: tuple[str, ...] = ()
    mpiexec: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    template: str | None = None  # file that the script is made from, instead of ours
    modules: tuple[str, ...] = ()
    activate: str | None = None  # folder of an environment
    env_setup: tuple[str, ...] = ()
    archive: str | None = None  # file that is unpacked on each node
    archive_digest: str = ""  # sha256
    archive_of: str | None = None  # the environment that it was made of
    archive_import: float = 0.0  # seconds that importing torch from there took
    container: str | None = None  # image
    container_runtime: str = Runtime.auto.value
    container_args: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    container_python: str = "python3"
    environment: Mapping[str, str | None] = field(default_factory=dict)
    interface: str | None = None
    host_suffix: str = ""
    port_range: tuple[int, int] = (20000, 32767)
    submit_timeout: int = 60
    rendezvous_timeout: int = 300
    timeout: int = 1800
    grace: int = 30
    max_restarts: int = 3
    hang_timeout: int = 600
    start_timeout: int = 1800
    idle_timeout: int = 1800
    heartbeat: int = 30
    visible_devices: str = "auto"  # auto, one or all: GPUs of its node that a rank sees
    bind: str = "auto"  # the CPUs that a rank may use; see launcher/binding/wanted.py
    lead: int = 120  # seconds before its limit at which an attempt stops
    resume_how: str = ResumeHow.auto.value
    max_attempts: int = 100
    strict: bool = False
    invariant: bool = False
    micro_batches: int = 8
    checkpoint_dir: str = ""
    checkpoint_every: int | None = None  # seconds
    checkpoint_every_steps: int | None = None
    keep: int = 2
    best: str | None = None
    best_is: str = BestIs.max.value
    background: bool = True
    verify: bool = True
    read_timeout: int = 300
    checkpoint_timeout: int = 3600
    max_failures: int = 5
    check_replicas: bool = True
    start_over: bool = False
    preflight: bool = False
    straggler_factor: float = 1.5
    straggler_time: int = 60  # seconds
    starter: str | None = None  # srun, pbsdsh, mpiexec, or none: processes of this machine
    after: tuple[str, ...] = ()  # what it waits for: condition and directory (`ok:/runs/prepare`)
    track: tuple[str, ...] = ()  # trackers: tensorboard, mlflow, wandb
    tracking_experiment: str = ""
    tracking_uri: str | None = None
    tracking_dir: str | None = None
    tracking_project: str | None = None
    tracking_entity: str | None = None
    tracking_mode: str | None = None
    code: str | None = None  # a copy of the code, of which workdir and code_path are folders
    repository: str | None = None  # what it is a copy of
    code_path: tuple[str, ...] = ()  # folders of it that Python searches
    snapshot_limit: int = 0  # bytes that it may have
    secrets: tuple[str, ...] = ()  # variables of cluster.environment that come with the job's environment
    secret_names: tuple[str, ...] = ()  # patterns of names of secrets
    secrets_dir: str | None = None
    debug_ranks: tuple[int, ...] = ()  # those that stop at breakpoint()
    debug_post_mortem: bool = False
    queued: bool = True  # it is handed to a scheduler, rather than started here and now

    @property
    def no_workdir(self) -> str:
        """What is told of a node where the job cannot start in its folder."""
        return f"its working folder {self.workdir} cannot be entered there: submit in a folder that all nodes share"

    @property
    def debugs(self) -> bool:
        """Whether ranks may stop for a debugger, so that nobody is impatient with one that does nothing."""
        return bool(self.debug_ranks)

    @property
    def node_python(self) -> str:
        """The interpreter of the agents; the rest of the script uses `python`, the launcher's own."""
        return self.python if self.activate is None else python_of(self.activate)

    @property
    def submitted_in(self) -> str:
        """The folder that its user was in, in which relative paths of overrides begin."""
        if self.code is None or self.repository is None:
            return self.workdir
        return os.path.normpath(os.path.join(self.repository, os.path.relpath(self.workdir, self.code)))

    @property
    def world_size(self) -> int:
        """Ranks of the whole run, when it gets all its nodes."""
        return self.nodes * self.procs_per_node

    @property
    def tasks_per_node(self) -> int:
        """What the scheduler starts on a node: one agent, or every rank."""
        return self.procs_per_node if self.launch == LaunchMode.tasks.value else 1

    @property
    def cpus_per_node(self) -> int:
        return self.procs_per_node * self.cpus_per_proc

    @property
    def cpus_per_task(self) -> int:
        """An agent gets the CPUs of all its ranks."""
        return self.cpus_per_node // self.tasks_per_node

    @property
    def own_code(self) -> bool:
        """Whether the ranks run a program or a function of the user's own, which may save in its own way."""
        return self.kind in ("Program", "Function")

    @property
    def goes_on(self) -> bool:
        """Whether the ranks are a program that is told to stop in time and goes on when it is started again."""
        return self.kind == "Program" and bool(self.params["resumable"])


def as_dict(plan: JobPlan) -> dict[str, Any]:
    """The plan as plain JSON types, which it shares with the plan."""
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}


_TUPLES = (
    "srun_args", "mpiexec", "setup", "port_range", "after", "debug_ranks", "track", "code_path", "secrets",
    "secret_names", "modules", "env_setup", "container_args", "binds",
)  # fmt: skip


def wrong_in(values: Any) -> str | None:
    """What keeps values that were read from being those of a plan, in words; None: they are. Pure."""
    if wrong := misfit(values, JobPlan, "plan"):
        return wrong
    for key, value in values.items():
        if isinstance(value, str) and (wrong := _no_text(value)):
            return f"plan.{key} {wrong}"
    return None


def _no_text(text: str) -> str | None:
    """Why a text can be neither a file's name nor a word of a command."""
    try:
        return "has a NUL byte" if b"\0" in os.fsencode(text) else None
    except UnicodeEncodeError:
        return "is no text"


def from_dict(values: Mapping[str, Any]) -> JobPlan:
    """The inverse of `as_dict`, after a round trip through JSON; `wrong_in` has nothing to say of the values."""
    tuples = {name: tuple(values[name]) for name in _TUPLES if isinstance(values.get(name), list)}
    return JobPlan(**{**values, **tuples})


def python_of(folder: str) -> str:
    """The interpreter of an environment."""
    return f"{folder}/bin/python"


def build(config: Config, site: Site, rules: Rules) -> JobPlan:
    """The plan of a config; see `launcher.schedulers.planning.make_plan`.

    Raises:
        ConfigError: a value cannot be used whatever the cluster; it names the key, the value and the fix.
    """
    cluster, launch, workload = config.cluster, config.launch, config.workload
    nodes = _at_least("nodes", config.nodes, 1)
    min_nodes = nodes if config.min_nodes is None else _at_least("min_nodes", config.min_nodes, 1)
    if min_nodes > nodes:
        raise ConfigError(f"min_nodes={min_nodes} is more than nodes={nodes}: lower min_nodes or raise nodes")
    gpus = _at_least("gpus_per_node", config.gpus_per_node, 0)
    enough = gpus or -(-workload.min_ranks // nodes)  # without GPUs as few as the workload makes sense with
    procs = enough if config.procs_per_node is None else _at_least("procs_per_node", config.procs_per_node, 1)
    params = {f.name: _plain(getattr(workload, f.name)) for f in dataclasses.fields(workload)}
    environment = _environment(cluster.environment)
    secret_names = redaction.all_patterns(config.env.secrets)
    secrets = redaction.secrets_in(environment, secret_names)
    starter = site.starter or rules.starter(cluster)
    plan = JobPlan(
        run_id=site.run_id,
        name=check_name("name", config.name),
        run_dir=site.run_dir,
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        launch=launch.mode.value,
        nodes=nodes,
        min_nodes=min_nodes,
        gpus_per_node=gpus,
        procs_per_node=procs,
        cpus_per_proc=_at_least("cpus_per_proc", config.cpus_per_proc, 1),
        mem=None if config.mem is None else _parsed("mem", config.mem, parse_memory),
        time=_parsed("time", config.time, parse_time),
        workload=workload.name,
        kind=type(workload).__name__,
        entry=_entry(workload.entry),
        backend=workload.backend.value,
        device=workload.device.value,
        params=params,
        seed=_at_least("seed", config.seed, 0),
        python=site.python,
        code_root=site.code_root,
        workdir=site.workdir,
        umask=site.umask,
        partition=cluster.partition,
        queue=cluster.queue,
        account=cluster.account,
        project=cluster.project,
        qos=cluster.qos,
        constraint=cluster.constraint,
        reservation=cluster.reservation,
        exclude=cluster.exclude,
        place=cluster.place,
        chunk=plain_values("chunk", cluster.chunk),
        resources=plain_values("resources", cluster.resources),
        gpu_directive=cluster.gpu_directive.value,
        gpu_type=cluster.gpu_type,
        directives=rules.directives(cluster.directives),
        srun_args=tuple(cluster.srun_args),
        mpiexec=tuple(cluster.mpiexec),
        setup=tuple(cluster.setup),
        template=cluster.template,
        modules=tuple(config.env.modules),
        activate=config.env.activate,
        env_setup=tuple(config.env.setup),
        archive=config.env.archive,
        archive_digest=site.archive_digest,
        archive_of=site.archive_of,
        archive_import=site.archive_import,
        **containers.fields_of(config, starter),
        environment={name: value for name, value in environment.items() if name not in secrets},
        secrets=tuple(secrets),
        secret_names=secret_names,
        secrets_dir=site.secrets_dir,
        interface=cluster.interface,
        host_suffix=cluster.host_suffix,
        port_range=_ports(cluster.port_range),
        submit_timeout=_at_least("cluster.submit_timeout", cluster.submit_timeout, 1),
        rendezvous_timeout=_at_least("launch.rendezvous_timeout", launch.rendezvous_timeout, 1),
        timeout=_at_least("launch.timeout", launch.timeout, 1),
        grace=_at_least("launch.grace", launch.grace, 1),
        max_restarts=_at_least("launch.max_restarts", launch.max_restarts, 0),
        hang_timeout=_at_least("launch.hang_timeout", launch.hang_timeout, 1),
        start_timeout=_at_least("launch.start_timeout", launch.start_timeout, 1),
        idle_timeout=_at_least("launch.idle_timeout", launch.idle_timeout, 1),
        heartbeat=_at_least("launch.heartbeat", launch.heartbeat, 1),
        visible_devices=launch.visible_devices.value,
        bind=_bind(launch.bind, procs),
        **_resume(config, site.run_dir, rules),
        **tracking.fields_of(config, site.run_id),
        preflight=config.preflight,
        straggler_factor=_more_than("train.straggler_factor", config.train.straggler_factor, 1),
        straggler_time=_parsed("train.straggler_time", config.train.straggler_time, parse_time),
        starter=starter,
        after=site.after,
        code=site.code,
        repository=site.repository,
        code_path=site.code_path,
        snapshot_limit=_parsed("env.snapshot_limit", config.env.snapshot_limit, parse_memory),
        debug_post_mortem=config.debug.post_mortem,
        debug_ranks=_debug_ranks(config.debug, nodes * procs),
        queued=rules.queued,
    )
    if workload.backend is Backend.mpi and launch.mode is LaunchMode.agent:
        raise ConfigError("workload.backend=mpi: MPI wants every rank started by the scheduler: add launch=tasks")
    _require(cluster)
    _refuse_negative("", config)
    _refuse_control_characters("", as_dict(plan))
    rules.check_keys(cluster, gpus)
    if plan.world_size < workload.min_ranks:
        raise ConfigError(
            f"workload={plan.workload} needs {workload.min_ranks} ranks and would get {plan.world_size}: "
            f"add procs_per_node={workload.min_ranks} or nodes={workload.min_ranks}"
        )
    return plan


def _resume(config: Config, run_dir: str, rules: Rules) -> dict[str, Any]:
    """The fields about checkpoints, resuming and training."""
    checkpoint, resume, train = config.checkpoint, config.resume, config.train
    seconds = _parsed("time", config.time, parse_time)
    lead = min(max(seconds // 20, 10), 120) if resume.lead is None else _parsed("resume.lead", resume.lead, parse_time)
    if lead >= seconds:
        told = f"resume.lead={resume.lead} is" if resume.lead else "attempts stop 10 s before their limit, which is"
        raise ConfigError(
            f"{told} not less than time={config.time}: no time would be left to work in; raise it, or set resume.lead"
        )
    if checkpoint.every is not None and checkpoint.every_steps is not None:
        raise ConfigError("checkpoint.every and checkpoint.every_steps exclude each other: leave one of them out")
    rules.check_resume(resume.how)
    if resume.how is ResumeHow.chain and resume.max_attempts > LONGEST_CHAIN:
        raise ConfigError(
            f"resume.how=chain submits resume.max_attempts={resume.max_attempts} jobs at once: set resume.max_attempts "
            f"to what the run may need (at most {LONGEST_CHAIN})"
        )
    every, steps = checkpoint.every, checkpoint.every_steps
    return {
        "lead": lead,
        "resume_how": resume.how.value,
        "max_attempts": _at_least("resume.max_attempts", resume.max_attempts, 1),
        "strict": resume.strict,
        "invariant": train.invariant,
        "micro_batches": _at_least("train.micro_batches", train.micro_batches, 1),
        "checkpoint_dir": checkpoint.dir or f"{run_dir}/checkpoints",
        "checkpoint_every": None if every is None else _parsed("checkpoint.every", every, parse_time),
        "checkpoint_every_steps": None if steps is None else _at_least("checkpoint.every_steps", steps, 1),
        "keep": _at_least("checkpoint.keep", checkpoint.keep, 1),
        "best": checkpoint.best,
        "best_is": checkpoint.best_is.value,
        "background": checkpoint.background,
        "verify": checkpoint.verify,
        "read_timeout": _at_least("checkpoint.read_timeout", checkpoint.read_timeout, 0),
        "checkpoint_timeout": _at_least("checkpoint.timeout", checkpoint.timeout, 1),
        "max_failures": _at_least("checkpoint.max_failures", checkpoint.max_failures, 0),
        "check_replicas": checkpoint.check_replicas,
        "start_over": checkpoint.start_over,
    }


def _bind(text: str, procs: int) -> str:
    wanted = binding.parse(text)
    if wanted.lists and len(wanted.lists) < procs:
        raise ConfigError(f"launch.bind={text!r} has lists for {len(wanted.lists)} of procs_per_node={procs} ranks")
    return text


def _debug_ranks(debug: Debug, world_size: int) -> tuple[int, ...]:
    """The ranks that stop for a debugger: those named; with post_mortem alone, all.

    Raises:
        ConfigError: they are no ranks of this run.
    """
    wanted = debug.rank
    if (wanted is None and debug.post_mortem) or wanted == "all":
        return tuple(range(world_size))
    ranks = [] if wanted is None else wanted if isinstance(wanted, list) else [wanted]
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ConfigError(
                f"debug.rank={rank}: it must be a rank from 0 to {world_size - 1}, a list of them ([0,1]), or all"
            )
    return tuple(sorted(set(ranks)))


def _at_least(key: str, value: int, least: int) -> int:
    if value < least:
        raise ConfigError(f"{key}={value}: it must be {least} or more")
    return value


def _refuse_negative(prefix: str, section: Any) -> None:
    """Numbers of the schema are amounts, times and parts, none of which is less than 0."""
    for each in dataclasses.fields(section):
        key, value = f"{prefix}{each.name}", getattr(section, each.name)
        if dataclasses.is_dataclass(value):
            _refuse_negative(f"{key}.", value)
        elif isinstance(value, (int, float)) and not value >= 0:  # which nan is not, either
            raise ConfigError(f"{key}={value:g}: it must be 0 or more")


def _more_than(key: str, value: float, bound: float) -> float:
    if not bound < value < float("inf"):
        raise ConfigError(f"{key}={value:g}: it must be more than {bound:g}")
    return value


def _parsed(key: str, value: str, parser: Any) -> int:
    try:
        return int(parser(value))
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def check_name(key: str, value: str) -> str:
    """The value, if it can name a job, a directory and a file on every system.

    Raises:
        ConfigError: it cannot.
    """
    if key == "run_id" and value == "latest":
        raise ConfigError("run_id=latest is the launcher's name for the newest run: choose another")
    if key in ("run_id", "sweep.id") and value.isdecimal():
        raise ConfigError(f"{key}={value}: numbers are the names of points of a sweep: begin it with a letter")
    if not NAME.fullmatch(value) or len(value) > LONGEST_NAME:
        raise ConfigError(
            f"{key}={value!r} cannot be a job's name: use up to {LONGEST_NAME} letters, digits and _ - + . "
            "(it may not begin with - + .)"
        )
    return value


def _entry(value: str) -> str:
    module, colon, function = value.partition(":")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"workload.entry={value!r} is not module:function")
    return value


def _ports(value: str) -> tuple[int, int]:
    low, _, high = value.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1024 <= int(low) < int(high) <= 65535):
        raise ConfigError(f"cluster.port_range={value!r} is not LOW-HIGH with 1024 <= LOW < HIGH <= 65535")
    return int(low), int(high)


def plain_values(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a key of the cluster.

    Raises:
        ConfigError: one is neither text nor a number.
    """
    for name, value in values.items():
        if not (value is None or isinstance(value, (str, int, float, bool))):
            raise ConfigError(f"cluster.{key}.{name}: {value!r} is neither text nor a number")
    return dict(values)


def _require(cluster: Cluster) -> None:
    """Keys that a site wants from everybody, and that its profile cannot know."""
    known = {field.name for field in dataclasses.fields(cluster)}
    for key in cluster.required:
        if key not in known:
            raise ConfigError(f"cluster.required: there is no key cluster.{key}.{near(key, known)}")
        if not getattr(cluster, key):
            raise ConfigError(
                f"cluster.{key} is not set, and cluster={cluster.name} wants it: add cluster.{key}=..., or set it for "
                "good in ~/.config/launcher/user.yaml"
            )


def _environment(values: Mapping[str, Any]) -> dict[str, str | None]:
    for variable in values:
        if not VARIABLE.fullmatch(variable):
            raise ConfigError(f"cluster.environment: {variable!r} cannot be a variable's name")
    return {variable: None if value is None else str(value) for variable, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _refuse_control_characters(path: str, value: Any) -> None:
    """A line break in a value would end a directive or a command early. Set-up lines alone may have several lines."""
    if isinstance(value, str):
        text = value.replace("\n", "") if path in ("setup", "env_setup") else value
        if match := CONTROL.search(text):
            raise ConfigError(f"{path}={value!r} contains the control character {match[0]!r}: remove it")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_control_characters(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_control_characters(path, item)

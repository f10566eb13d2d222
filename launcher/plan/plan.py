"""The plan of a run: a frozen object with everything that is decided before the run starts; its JSON form.

A dry run prints it, submission uses it, and the job reads it from the run directory. build.py makes it from a config.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from launcher.config.scheduler_table import settings_class
from launcher.config.schema import LaunchMode, SchedulerSettings
from launcher.errors import ConfigError
from launcher.fast_dataclasses import Open, Struct
from launcher.files.json_types import as_json, from_json, misfit

S = TypeVar("S", bound=SchedulerSettings)
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")  # control characters but the tab; line breaks
NIC = "{nic}"  # in cluster.rank_environment it stands for the rank's network device of cluster.nics
PILOT_ENTRY = "launcher.pilots.manager:main"  # workload.entry of pilots


# -- The sections of a plan. Their names, fields and order are the config's, the values converted (build.py)


class Cluster(Open):
    name: str
    scheduler: str
    account: str | None
    settings: Mapping[str, Any]  # keys that only this scheduler has, as plain values; see `plan.settings_of`
    directives: Mapping[str, Any]
    setup: tuple[str, ...]
    template: str | None
    environment: Mapping[str, str | None]  # without secrets
    nics: tuple[str, ...]  # one for each GPU or, without GPUs, for each local rank
    rank_environment: Mapping[str, str]  # {nic} in a value stands for the rank's network device
    expects: Mapping[str, list[str]]  # compared with what NCCL reports; see launcher/worker/devices.py
    interface: str | None
    host_suffix: str
    port_range: tuple[int, int]
    submit_timeout: int  # seconds
    query_interval: int | None  # seconds


class Launch(Struct):
    mode: str
    rendezvous_timeout: int
    timeout: int
    grace: int
    max_restarts: int
    hang_timeout: int
    start_timeout: int
    idle_timeout: int
    heartbeat: int
    visible_devices: str
    bind: str  # the CPUs that a rank may use; see launcher/binding/masks.py


class Env(Struct):
    modules: tuple[str, ...]
    activate: str | None
    setup: tuple[str, ...]
    archive: str | None
    container: str | None
    container_runtime: str
    container_args: tuple[str, ...]
    binds: tuple[str, ...]
    python: str
    snapshot_limit: int  # bytes
    secrets: tuple[str, ...]  # patterns of names of secret variables: the user's and the built-in ones


class Checkpoint(Struct):
    every: int | None
    every_steps: int | None
    keep: int
    best: str | None
    best_is: str
    dir: str
    background: bool
    verify: bool
    read_timeout: int
    timeout: int
    max_failures: int
    check_replicas: bool
    start_over: bool
    memory: int | None = 0  # steps; None: from the cost of a copy
    peers: bool = True


class Resume(Struct):
    how: str
    max_attempts: int
    lead: int  # seconds
    strict: bool


class Train(Struct):
    invariant: bool
    micro_batches: int


class Debug(Struct):
    ranks: tuple[int, ...]  # those that stop at breakpoint()
    post_mortem: bool


class Tracking(Struct):
    experiment: str
    uri: str | None
    dir: str | None
    project: str | None
    entity: str | None
    mode: str | None


class Workload(Struct):
    """The section `workload` of a plan: the keys that all workloads have, and in `params` all keys of this one."""

    name: str
    entry: str  # module:function
    backend: str
    device: str
    kind: str  # name of its class in launcher.config.schema
    params: Mapping[str, Any]  # all keys, as plain values


class SnapshotCode(Struct):
    """The snapshot of the user's code. Without one, ranks use the code in place."""

    # folder of the copy, which contains the plan's workdir and `path`; None: there is no snapshot
    snapshot: str | None = None
    repository: str | None = None  # folder that was copied
    path: tuple[str, ...] = ()  # folders of the copy that are put on PYTHONPATH


class Archive(Open):
    """Facts about the file of env.archive."""

    digest: str = ""  # SHA-256 of the file, in hexadecimal
    of: str | None = None  # folder of the environment that was packed; None: not known


class JobPlan(Struct):
    """Everything that is decided about a run before it starts. It is saved as JSON in the run directory.

    Names and sections are those of the config. These attributes are not in the config:
    """

    run_id: str
    name: str
    run_dir: str  # run_dir, python, code_root, workdir, umask, secrets_dir, code, archive: see `build.PlanFacts`
    nodes: int  # that the job gets, `spares` included
    min_nodes: int
    gpus_per_node: int
    procs_per_node: int
    cpus_per_proc: int
    mem: int | None  # bytes per node
    time: int  # seconds
    seed: int
    preflight: bool
    after: tuple[str, ...]  # dependencies: condition and run directory (`ok:/runs/prepare`)
    track: tuple[str, ...]  # trackers: tensorboard, mlflow, wandb
    workload: Workload
    cluster: Cluster
    launch: Launch
    env: Env
    checkpoint: Checkpoint
    resume: Resume
    train: Train
    debug: Debug
    tracking: Tracking
    code: SnapshotCode
    archive: Archive
    python: str
    code_root: str | None
    workdir: str
    umask: int
    # the command that starts tasks: srun, pbsdsh, mpiexec; None: tasks are processes of this machine
    starter: str | None
    queued: bool  # whether the run is a job that waits in a queue; otherwise it starts at once on this machine
    # names of variables of cluster.environment whose values are secret: the job inherits them from the submitter, and
    # its script does not contain them
    secret_variables: tuple[str, ...]
    secrets_dir: str | None
    spares: int = 0
    race: tuple[Mapping[str, Any], ...] = ()  # of each job of cluster.race: the keys and sections in which they differ
    member: int = 0  # number of the job of the race

    @property
    def no_workdir(self) -> str:
        """The error text for a node on which the job's working folder does not exist."""
        return f"its working folder {self.workdir} cannot be entered there: submit in a folder that all nodes share"

    @property
    def debugs(self) -> bool:
        """Whether ranks may stop at a breakpoint; then no rank is considered as hung."""
        return bool(self.debug.ranks)

    @property
    def node_python(self) -> str:
        """The interpreter of agents and ranks. Other commands in the script use the launcher's own, `python`."""
        return self.python if self.env.activate is None else f"{self.env.activate}/bin/python"

    @property
    def submitted_in(self) -> str:
        """The folder of the user's command, to which overrides are relative (`workdir`: perhaps its copy)."""
        if self.code.snapshot is None or self.code.repository is None:
            return self.workdir
        return os.path.normpath(os.path.join(self.code.repository, os.path.relpath(self.workdir, self.code.snapshot)))

    @property
    def world_size(self) -> int:
        return (self.nodes - self.spares) * self.procs_per_node

    @property
    def nodes_key(self) -> str:
        """What messages call the number of the job's nodes: the keys that it comes from."""
        return "nodes + spares" if self.spares else "nodes"

    @property
    def tasks_per_node(self) -> int:
        """The number of processes that the scheduler starts on a node: one agent, or all ranks."""
        return self.procs_per_node if self.launch.mode == LaunchMode.tasks.value else 1

    @property
    def least_agents(self) -> int:
        """The number of agents without which a round does not start."""
        return self.min_nodes * self.tasks_per_node

    @property
    def cpus_per_node(self) -> int:
        return self.procs_per_node * self.cpus_per_proc

    @property
    def cpus_per_task(self) -> int:
        """The number of CPUs of a task. A task that is an agent gets the CPUs of all its ranks."""
        return self.cpus_per_node // self.tasks_per_node

    @property
    def independent(self) -> bool:
        """Whether the nodes work independently, as in a pilot: when one is lost, the ranks on the others continue."""
        return self.workload.entry == PILOT_ENTRY

    @property
    def own_code(self) -> bool:
        """Whether the ranks run a program or a function of the user. It may save checkpoints without `Checkpointer`."""
        return self.workload.kind in ("Program", "Function")

    @property
    def program_resumes(self) -> bool:
        """Whether the ranks run a program that saves after a stop signal and continues when it is restarted."""
        return self.workload.kind == "Program" and bool(self.workload.params["resumable"])


def as_dict(plan: JobPlan) -> dict[str, Any]:
    return as_json(plan)


def member_plan(plan: JobPlan, member: int) -> JobPlan:
    return from_dict({**as_dict(plan), **plan.race[member], "member": member})


def race_token(token: str, member: int) -> str:
    """Returns the token of one job of a race; that of the first is the race's."""
    return f"{token}-m{member}" if member else token


def keys_of(plan: JobPlan) -> dict[str, Any]:
    """Returns the plan's values by config key (`workload.lr`), those in no config by their own name (`run_dir`)."""
    found: dict[str, Any] = {}
    for name, value in as_dict(plan).items():
        found.update({f"{name}.{key}": each for key, each in value.items()} if name in _SECTIONS else {name: value})
    for name, inner in (("workload", "params"), ("cluster", "settings")):
        found |= {f"{name}.{key}": each for key, each in found.pop(f"{name}.{inner}").items()}
    return found


_SECTIONS = (
    "workload", "cluster", "launch", "env", "checkpoint", "resume", "train", "debug", "tracking", "code", "archive",
)  # fmt: skip


def texts_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields each text in nested values, and each name, with the key that it is in (`cluster.setup`)."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_in(item, key)
    elif value is not None and not isinstance(value, (int, float)) and isinstance(value, Mapping):
        for name, item in value.items():
            yield key, str(name)
            yield from texts_in(item, f"{key}.{name}" if key else str(name))


def plan_misfit(values: Any) -> str | None:
    """Returns what is wrong with a plan that was read from a file, as text; None: `from_dict` can convert it."""
    if wrong := misfit(values, JobPlan, "plan") or _wrong_settings(values["cluster"]):
        return wrong
    for prefix, section in (("plan", values), *((f"plan.{name}", values[name]) for name in _SECTIONS)):
        for key, value in section.items():
            if isinstance(value, str) and (wrong := _no_text(value)):
                return f"{prefix}.{key} {wrong}"
    return None


def _wrong_settings(cluster: Mapping[str, Any]) -> str | None:
    with contextlib.suppress(ConfigError):  # its scheduler's package cannot be loaded; `status` shows the run
        if kind := settings_class(cluster["scheduler"]):
            return misfit(cluster["settings"], kind, "plan.cluster.settings")
    return None


def _no_text(text: str) -> str | None:
    try:
        return "has a NUL byte" if b"\0" in os.fsencode(text) else None
    except UnicodeEncodeError:
        return "is not text"


def from_dict(values: Mapping[str, Any]) -> JobPlan:
    """Returns the plan that `as_dict` has converted and `plan_misfit` has accepted."""
    return from_json(values, JobPlan)


def settings_of(plan: JobPlan, kind: type[S]) -> S:
    """Returns the keys of `cluster` that only the plan's scheduler has, as an object of its settings class `kind`."""
    return from_json(plan.cluster.settings, kind)

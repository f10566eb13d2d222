"""From a config to a plan: one frozen object that a dry run shows and that submission uses. Pure."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from launcher import redaction
from launcher.binding import wanted as binding
from launcher.config import schema
from launcher.config.schema import Backend, Config, LaunchMode, ResumeHow
from launcher.errors import ConfigError, near
from launcher.files.json_types import as_json, from_json, misfit
from launcher.spec import containers, tracking
from launcher.spec.sections import (
    Archive,
    Checkpoint,
    Cluster,
    Code,
    Debug,
    Env,
    Launch,
    Resume,
    Tracking,
    Train,
    Workload,
    resolved,
    resolved_value,
)

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")  # everything but a tab; all kinds of line breaks
LONGEST_NAME = 64
NIC = "{nic}"  # in cluster.rank_environment: the rank's own of cluster.nics
EXPECTED = ("net", "plugin", "provider")  # of NCCL's report
LONGEST_CHAIN = 50  # jobs that one command submits


class Rules(Protocol):
    """What the scheduler of a run says to its config; each but the first raises ConfigError."""

    @property
    def queued(self) -> bool:
        """Whether it takes jobs, which wait, rather than starting them at once."""

    def starter(self, cluster: schema.Cluster) -> str | None:
        """What starts tasks on the nodes of a job; None: they are processes of this machine."""

    def directives(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Extra options of a job, as a plan keeps them."""

    def check_resume(self, how: ResumeHow) -> None:
        """Refuses a way to go on that it has not."""

    def check_keys(self, cluster: schema.Cluster, gpus: int) -> None:
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
        code: its snapshot; see launcher/environment/snapshot.py.
        archive: about env.archive; see launcher/environment/archives.py.
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
    code: Code = field(default_factory=Code)
    archive: Archive = field(default_factory=Archive)
    secrets_dir: str | None = None


@dataclass(frozen=True)
class JobPlan:
    """Everything about one run that is decided before it starts. JSON-able; the run directory keeps it.

    It has the names and sections of the config. What is no key of it:

    Attributes:
        run_dir, python, code_root, workdir, umask, secrets_dir, code, archive: see `Site`.
        starter: what starts tasks: srun, pbsdsh, mpiexec, or None (they are processes of this machine).
        queued: it is handed to a scheduler, rather than started here and now.
        secret_variables: variables of cluster.environment that come with the job's environment, and not in its script.
    """

    run_id: str
    name: str
    run_dir: str
    nodes: int
    min_nodes: int
    gpus_per_node: int
    procs_per_node: int
    cpus_per_proc: int
    mem: int | None  # bytes per node
    time: int  # seconds
    seed: int
    preflight: bool
    after: tuple[str, ...]  # what it waits for: condition and directory (`ok:/runs/prepare`)
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
    code: Code
    archive: Archive
    python: str
    code_root: str | None
    workdir: str
    umask: int
    starter: str | None
    queued: bool
    secret_variables: tuple[str, ...]
    secrets_dir: str | None

    @property
    def no_workdir(self) -> str:
        """What is told of a node where the job cannot start in its folder."""
        return f"its working folder {self.workdir} cannot be entered there: submit in a folder that all nodes share"

    @property
    def debugs(self) -> bool:
        """Whether ranks may stop for a debugger, so that nobody is impatient with one that does nothing."""
        return bool(self.debug.ranks)

    @property
    def node_python(self) -> str:
        """The interpreter of the agents; the rest of the script uses `python`, the launcher's own."""
        return self.python if self.env.activate is None else python_of(self.env.activate)

    @property
    def submitted_in(self) -> str:
        """The folder that its user was in, in which relative paths of overrides begin."""
        if self.code.snapshot is None or self.code.repository is None:
            return self.workdir
        return os.path.normpath(os.path.join(self.code.repository, os.path.relpath(self.workdir, self.code.snapshot)))

    @property
    def world_size(self) -> int:
        """Ranks of the whole run, when it gets all its nodes."""
        return self.nodes * self.procs_per_node

    @property
    def tasks_per_node(self) -> int:
        """What the scheduler starts on a node: one agent, or every rank."""
        return self.procs_per_node if self.launch.mode == LaunchMode.tasks.value else 1

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
        return self.workload.kind in ("Program", "Function")

    @property
    def goes_on(self) -> bool:
        """Whether the ranks are a program that is told to stop in time and goes on when it is started again."""
        return self.workload.kind == "Program" and bool(self.workload.params["resumable"])


def as_dict(plan: JobPlan) -> dict[str, Any]:
    """The plan as plain JSON types, which it shares with the plan."""
    return as_json(plan)


def keys_of(plan: JobPlan) -> dict[str, Any]:
    """The plan's values by the names of their keys (`checkpoint.keep`, `workload.lr`); what no key says has its own."""
    found: dict[str, Any] = {}
    for name, value in as_dict(plan).items():
        found.update({f"{name}.{key}": each for key, each in value.items()} if name in _SECTIONS else {name: value})
    return found | {f"workload.{key}": each for key, each in found.pop("workload.params").items()}


_SECTIONS = (
    "workload", "cluster", "launch", "env", "checkpoint", "resume", "train", "debug", "tracking", "code", "archive",
)  # fmt: skip


def wrong_in(values: Any) -> str | None:
    """What keeps values that were read from being those of a plan, in words; None: they are. Pure."""
    if wrong := misfit(values, JobPlan, "plan"):
        return wrong
    for prefix, section in (("plan", values), *((f"plan.{name}", values[name]) for name in _SECTIONS)):
        for key, value in section.items():
            if isinstance(value, str) and (wrong := _no_text(value)):
                return f"{prefix}.{key} {wrong}"
    return None


def _no_text(text: str) -> str | None:
    """Why a text can be neither a file's name nor a word of a command."""
    try:
        return "has a NUL byte" if b"\0" in os.fsencode(text) else None
    except UnicodeEncodeError:
        return "is no text"


def from_dict(values: Mapping[str, Any]) -> JobPlan:
    """The inverse of `as_dict`, after a round trip through JSON; `wrong_in` has nothing to say of the values."""
    plan: JobPlan = from_json(values, JobPlan)
    return plan


def python_of(folder: str) -> str:
    """The interpreter of an environment."""
    return f"{folder}/bin/python"


def build(config: Config, site: Site, rules: Rules) -> JobPlan:
    """The plan of a config; see `launcher.schedulers.planning.make_plan`.

    Raises:
        ConfigError: a value cannot be used whatever the cluster; it names the key, the value and the fix.
    """
    cluster, launch, workload = config.cluster, config.launch, config.workload
    nodes = resolved_value(config, "nodes")
    min_nodes = resolved_value(config, "min_nodes") or nodes
    if min_nodes > nodes:
        raise ConfigError(f"min_nodes={min_nodes} is more than nodes={nodes}: lower min_nodes or raise nodes")
    enough = config.gpus_per_node or -(-workload.min_ranks // nodes)  # without GPUs as few as the workload works with
    procs = resolved_value(config, "procs_per_node") or enough
    environment = _environment(cluster.environment)
    secret_names = redaction.all_patterns(config.env.secrets)
    secrets = redaction.secrets_in(environment, secret_names)
    starter = site.starter or rules.starter(cluster)
    containers.check(config.env, starter)
    plan = resolved(
        JobPlan,
        config,
        **{each.name: getattr(site, each.name) for each in dataclasses.fields(site)} | {"starter": starter},
        name=check_name("name", config.name),
        min_nodes=min_nodes,
        procs_per_node=procs,
        track=tracking.trackers(config.track),
        workload=resolved(
            Workload,
            workload,
            "workload.",
            entry=_entry(workload.entry),
            kind=type(workload).__name__,
            params={each.name: _plain(getattr(workload, each.name)) for each in dataclasses.fields(workload)},
        ),
        cluster=resolved(
            Cluster,
            cluster,
            "cluster.",
            directives=rules.directives(cluster.directives),
            environment={name: value for name, value in environment.items() if name not in secrets},
            rank_environment=_rank_environment(cluster),
            expects=_expects(cluster.expects),
        ),
        launch=resolved(Launch, launch, "launch.", bind=_bind(launch.bind, procs)),
        env=resolved(Env, config.env, "env.", secrets=secret_names),
        checkpoint=_checkpoint(config, site.run_dir),
        resume=_resume(config, rules),
        train=resolved(Train, config.train, "train."),
        debug=resolved(Debug, config.debug, "debug.", ranks=_debug_ranks(config.debug, nodes * procs)),
        tracking=resolved(Tracking, config.tracking, "tracking.", experiment=tracking.experiment(config, site.run_id)),
        queued=rules.queued,
        secret_variables=tuple(secrets),
    )
    if workload.backend is Backend.mpi and launch.mode is LaunchMode.agent:
        raise ConfigError("workload.backend=mpi: MPI wants every rank started by the scheduler: add launch=tasks")
    _require(cluster)
    _refuse_negative("", config)
    _refuse_control_characters("", keys_of(plan))
    rules.check_keys(cluster, plan.gpus_per_node)
    if plan.world_size < workload.min_ranks:
        raise ConfigError(
            f"workload={plan.workload.name} needs {workload.min_ranks} ranks and would get {plan.world_size}: "
            f"add procs_per_node={workload.min_ranks} or nodes={workload.min_ranks}"
        )
    return plan


def _rank_environment(cluster: schema.Cluster) -> dict[str, str]:
    values = _environment(cluster.rank_environment, "rank_environment")
    for name, value in values.items():
        if value is None:
            raise ConfigError(f"cluster.rank_environment.{name} is empty: give a value, or null it in environment")
        if NIC in value and not cluster.nics:
            raise ConfigError(f"cluster.rank_environment.{name}={value}: {NIC} is one of cluster.nics, which is empty")
    return {name: str(value) for name, value in values.items()}


def _expects(values: Mapping[str, Any]) -> dict[str, list[str]]:
    found = {}
    for name, value in values.items():
        if name not in EXPECTED:
            raise ConfigError(f"cluster.expects.{name}: known are {', '.join(EXPECTED)}.{near(name, EXPECTED)}")
        each = value if isinstance(value, list) else [value]
        if not each or not all(isinstance(text, str) and text for text in each):
            raise ConfigError(f"cluster.expects.{name}={value!r} is neither a text nor a list of texts")
        found[name] = each
    return found


def _bind(text: str, procs: int) -> str:
    wanted = binding.parse(text)
    if wanted.lists and len(wanted.lists) < procs:
        raise ConfigError(f"launch.bind={text!r} has lists for {len(wanted.lists)} of procs_per_node={procs} ranks")
    return text


def _checkpoint(config: Config, run_dir: str) -> Checkpoint:
    checkpoint = config.checkpoint
    if checkpoint.every is not None and checkpoint.every_steps is not None:
        raise ConfigError("checkpoint.every and checkpoint.every_steps exclude each other: leave one of them out")
    return resolved(Checkpoint, checkpoint, "checkpoint.", dir=checkpoint.dir or f"{run_dir}/checkpoints")


def _resume(config: Config, rules: Rules) -> Resume:
    resume, seconds = config.resume, resolved_value(config, "time")
    lead = resolved_value(resume, "lead", "resume.") or min(max(seconds // 20, 10), 120)
    if lead >= seconds:
        told = f"resume.lead={resume.lead} is" if resume.lead else "attempts stop 10 s before their limit, which is"
        raise ConfigError(
            f"{told} not less than time={config.time}: no time would be left to work in; raise it, or set resume.lead"
        )
    rules.check_resume(resume.how)
    if resume.how is ResumeHow.chain and resume.max_attempts > LONGEST_CHAIN:
        raise ConfigError(
            f"resume.how=chain submits resume.max_attempts={resume.max_attempts} jobs at once: set resume.max_attempts "
            f"to what the run may need (at most {LONGEST_CHAIN})"
        )
    return resolved(Resume, resume, "resume.", lead=lead)


def _debug_ranks(debug: schema.Debug, world_size: int) -> tuple[int, ...]:
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


def _refuse_negative(prefix: str, section: Any) -> None:
    """Numbers of the schema are amounts, times and parts, none of which is less than 0."""
    for each in dataclasses.fields(section):
        key, value = f"{prefix}{each.name}", getattr(section, each.name)
        if dataclasses.is_dataclass(value):
            _refuse_negative(f"{key}.", value)
        elif isinstance(value, (int, float)) and not value >= 0:  # which nan is not, either
            raise ConfigError(f"{key}={value:g}: it must be 0 or more")


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


def _require(cluster: schema.Cluster) -> None:
    """Keys that a site wants from everybody, and that its profile cannot know (`account`, `resources.storage`)."""
    known = {field.name for field in dataclasses.fields(cluster)}
    for wanted in cluster.required:
        key, _, example = wanted.partition("=")
        name, *parts = key.split(".")
        if name not in known:
            raise ConfigError(f"cluster.required: there is no key cluster.{name}.{near(name, known)}")
        value, new = getattr(cluster, name), ""
        for part in parts:
            new = "" if isinstance(value, Mapping) and part in value else "+"
            value = value.get(part) if isinstance(value, Mapping) else None
        if not value:
            word = f"{new}cluster.{key}={example or '...'}"
            raise ConfigError(
                f"cluster.{key} is not set, and cluster={cluster.name} wants it: add "
                f"{shlex.quote(word)}, or set it for good in "
                "~/.config/launcher/user.yaml"
            )


def _environment(values: Mapping[str, Any], key: str = "environment") -> dict[str, str | None]:
    for variable in values:
        if not VARIABLE.fullmatch(variable):
            raise ConfigError(f"cluster.{key}: {variable!r} cannot be a variable's name")
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
        text = value.replace("\n", "") if path in ("cluster.setup", "env.setup") else value
        if match := CONTROL.search(text):
            raise ConfigError(f"{path}={value!r} contains the control character {match[0]!r}: remove it")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_control_characters(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_control_characters(path, item)

"""Builds a plan from a config."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

from launcher import io_bounds, redaction
from launcher.binding import masks as binding
from launcher.config import schema
from launcher.config.overrides import as_typed, key_of, quoted, texts
from launcher.config.schema import Backend, Config, Form, LaunchMode, ResumeHow, Runtime
from launcher.errors import ConfigError, near
from launcher.fast_dataclasses import Struct
from launcher.files.json_types import as_json
from launcher.formatting import plural
from launcher.paths import LONGEST_NAME, user_config_dir
from launcher.plan import plan as plans
from launcher.plan.plan import CONTROL, NIC, JobPlan, keys_of, texts_in
from launcher.redaction import without_password
from launcher.units import parse_memory, parse_time

S = TypeVar("S", bound=Struct)


def name_of(script: str, *, module: bool = False) -> str:
    """Returns the name that a run of this script or module gets: `train` for dir/train.py and for pkg.train."""
    base = script.rpartition("." if module else "/")[2]
    stem = base if module else base.rpartition(".")[0] or base
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", stem).lstrip("-+.")[:LONGEST_NAME] or "program"


def command(program: str, overrides: Sequence[str]) -> str:
    """Returns the shell command that submits a run with these overrides: `run SCRIPT ... -- ARGUMENT` if possible."""
    typed = [as_typed(each) for each in overrides]
    given = {key_of(each): each.partition("=")[2] for each in typed}
    kind = "module" if "workload.module" in given else "script"
    script, behind = texts(given.get(f"workload.{kind}", "")), texts(given.get("workload.args", "[]"))
    if given.get("workload") != "program" or not script or behind is None or script[0].startswith("-"):
        return shlex.join([*program.split(), *typed])
    name = f"name={quoted(name_of(script[0], module=kind == 'module'))}"
    told = ("workload", f"workload.{kind}", "workload.args")
    kept = [each for each in typed if key_of(each) not in told and each != name]
    option = ["--module"] if kind == "module" else []
    return shlex.join([*program.split(), "run", *option, script[0], *kept, *(["--", *behind] if behind else [])])


# -- Makes the plan of a run from its config


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OUR_CODE = "workloads."  # with which entries that are not the user's begin
EXPECTED = ("net", "plugin", "provider")  # keys of cluster.expects, compared with what NCCL reports
LONGEST_CHAIN = 50  # most jobs that one command submits with resume.how=chain


class SchedulerRules(Protocol):
    """What `build` needs of a `schedulers.base.Scheduler`. All methods may raise ConfigError."""

    @property
    def queued(self) -> bool: ...
    def starter(self, cluster: schema.Cluster) -> str | None: ...
    def options(self, values: Mapping[str, Any]) -> dict[str, Any]: ...


class PlanFacts(Struct):
    """What a plan contains besides the config: facts about the run and the submitting machine."""

    run_id: str  # id of the run
    run_dir: str  # run directory, an absolute path
    python: str  # interpreter of the launcher in the job, an absolute path
    code_root: str | None  # folder with the launcher's packages, to put on PYTHONPATH; None: the launcher is installed
    workdir: str  # folder in which the job starts
    umask: int = 0o022  # umask for files that the user's own code writes
    # command that starts tasks in the held allocation (srun, pbsdsh); None: the run uses no allocation
    starter: str | None = None
    after: tuple[str, ...] = ()  # dependencies of the run (`ok:/runs/prepare`); see launcher/submission/dependencies.py
    code: plans.SnapshotCode = plans.SnapshotCode()  # see launcher/environment/snapshot.py
    archive: plans.Archive = plans.Archive()  # facts about env.archive; see launcher/environment/archives.py
    # folder with the files of secrets, for schedulers that need one (PBS); see launcher/environment/secrets.py
    secrets_dir: str | None = None


# -- Converts values of the config by their types in the schema: times to seconds, sizes to bytes


def resolved(part: type[S], config: Any, prefix: str = "", /, **own: Any) -> S:
    """Makes a section of a plan from the config's keys, or `own`; raises ConfigError; prefix: of keys (`launch.`)."""
    return part(**{name: resolved_value(config, name, prefix) for name in part.FIELDS if name not in own}, **own)


def resolved_value(config: Any, name: str, prefix: str = "") -> Any:
    """Returns the value of a key, converted for the plan; ConfigError names the key, the value and the fix."""
    section: Any = type(config)
    value = getattr(config, name)
    return None if value is None else converted(_forms(section).get(name), f"{prefix}{name}", value)


@cache
def _forms(kind: Any) -> dict[str, Form]:
    found: dict[str, Form] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for each in (hint, *get_args(hint)):  # also for `Time | None`
            for form in getattr(each, "__metadata__", ()):
                found[name] = form
    return found


def converted(form: Form | None, key: str, value: Any) -> Any:
    """Returns a value of this form, converted for the plan; ConfigError names the key, the value and the fix."""
    if isinstance(value, Enum):
        return value.value
    if form is None:
        return tuple(value) if isinstance(value, list) else value
    if form in (Form.time, Form.memory):
        try:
            return parse_time(value) if form is Form.time else parse_memory(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}", key=key) from None
    if form is Form.steps:
        if value != "auto" and not value.isdecimal():
            raise ConfigError(f"{key}={value}: it must be a number of steps (0: off) or auto", key=key)
        return None if value == "auto" else int(value)
    if form is Form.ports:
        low, _, high = value.partition("-")
        if not (low.isdecimal() and high.isdecimal() and 1024 <= int(low) < int(high) <= 65535):
            raise ConfigError(f"{key}={value!r} is not LOW-HIGH with 1024 <= LOW < HIGH <= 65535", key=key)
        return int(low), int(high)
    if form is Form.flat:
        for name, each in value.items():
            if not (each is None or isinstance(each, (str, int, float, bool))):
                raise ConfigError(f"{key}.{name}: {each!r} is neither text nor a number", key=f"{key}.{name}")
        return dict(value)
    return value


def build(config: Config, site: PlanFacts, rules: SchedulerRules) -> JobPlan:
    """Makes the plan of a config, but for its limits; ConfigError names the key, the value and the fix."""
    refuse_unusable("", config)
    cluster, launch, workload = config.cluster, config.launch, config.workload
    nodes = resolved_value(config, "nodes")
    min_nodes = resolved_value(config, "min_nodes") or nodes
    if min_nodes > nodes:
        fix = "lower min_nodes or raise nodes"
        raise ConfigError(f"min_nodes={min_nodes} is more than nodes={nodes}: {fix}", key="min_nodes")
    if config.spares and launch.mode is LaunchMode.tasks:
        problem = "with launch=tasks the scheduler starts all ranks: none can wait"
        raise ConfigError(f"spares={config.spares}: {problem}", key="spares")
    if config.spares and nodes == 1:
        problem = "with nodes=1 no node is left to lead a spare one when that is lost"
        raise ConfigError(f"spares={config.spares}: {problem}: set nodes=2 or more, or spares=0", key="spares")
    fewest = -(-workload.min_ranks // nodes)  # ranks per node that the workload needs
    procs = resolved_value(config, "procs_per_node") or config.gpus_per_node or fewest
    environment = _environment(cluster.environment)
    secret_names = redaction.all_patterns(config.env.secrets)
    secrets = redaction.secrets_in(environment, secret_names)
    starter = site.starter or rules.starter(cluster)
    check_environments(config.env, starter)
    plan = resolved(
        JobPlan,
        config,
        **{name: getattr(site, name) for name in PlanFacts.FIELDS} | {"starter": starter},
        name=check_name("name", config.name),
        nodes=nodes + config.spares,
        min_nodes=min_nodes,
        procs_per_node=procs,
        track=trackers(config.track),
        race=(),
        member=0,
        workload=resolved(
            plans.Workload,
            workload,
            "workload.",
            entry=_entry(workload.entry),
            kind=type(workload).__name__,
            params={each.name: as_json(getattr(workload, each.name)) for each in dataclasses.fields(workload)},
        ),
        cluster=resolved(
            plans.Cluster,
            cluster,
            "cluster.",
            settings=_settings(cluster),
            directives=rules.options(cluster.directives),
            environment={name: value for name, value in environment.items() if name not in secrets},
            rank_environment=_rank_environment(cluster),
            expects=_expects(cluster.expects),
        ),
        launch=resolved(plans.Launch, launch, "launch.", bind=_bind(launch.bind, procs)),
        env=resolved(plans.Env, config.env, "env.", secrets=secret_names),
        checkpoint=_checkpoint(config, site.run_dir),
        resume=_resume(config),
        train=resolved(plans.Train, config.train, "train."),
        debug=resolved(plans.Debug, config.debug, "debug.", ranks=_debug_ranks(config.debug, nodes * procs)),
        tracking=resolved(
            plans.Tracking,
            config.tracking,
            "tracking.",
            uri=tracking_uri(config),
            experiment=experiment(config, site.run_id),
        ),
        queued=rules.queued,
        secret_variables=tuple(secrets),
    )
    if workload.backend is Backend.mpi and launch.mode is LaunchMode.agent:
        raise ConfigError("workload.backend=mpi: with MPI the scheduler must start every rank: add launch=tasks")
    _require(cluster)
    for key, text in texts_in(keys_of(plan)):
        # Only set-up lines may have line breaks
        if match := CONTROL.search(text.replace("\n", "") if key in ("cluster.setup", "env.setup") else text):
            raise ConfigError(f"{key}={text!r} contains the control character {match[0]!r}: remove it")
    if plan.world_size < workload.min_ranks:
        raise ConfigError(
            f"workload={plan.workload.name} needs {workload.min_ranks} ranks and would get {plan.world_size}: "
            f"add procs_per_node={workload.min_ranks} or nodes={workload.min_ranks}"
        )
    return plan


def _settings(cluster: schema.Cluster) -> dict[str, Any]:
    common = {each.name for each in dataclasses.fields(schema.Cluster)}
    own = [each.name for each in dataclasses.fields(cluster) if each.name not in common]
    for name in own:
        resolved_value(cluster, name, "cluster.")  # refuses a value of the wrong form
    return {name: as_json(getattr(cluster, name)) for name in own}


def _rank_environment(cluster: schema.Cluster) -> dict[str, str]:
    values = _environment(cluster.rank_environment, "rank_environment")
    for name, value in values.items():
        if value is None:
            raise ConfigError(f"cluster.rank_environment.{name} is empty: give it a value")
        if NIC in value and not cluster.nics:
            raise ConfigError(f"cluster.rank_environment.{name}={value}: {NIC} needs cluster.nics, which is empty")
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
        lists = plural(len(wanted.lists), "rank")
        raise ConfigError(f"launch.bind={text!r} has lists for {lists}, and procs_per_node={procs}")
    return text


def _checkpoint(config: Config, run_dir: str) -> plans.Checkpoint:
    checkpoint = config.checkpoint
    if checkpoint.every is not None and checkpoint.every_steps is not None:
        raise ConfigError("checkpoint.every and checkpoint.every_steps exclude each other: leave one of them out")
    memory = resolved_value(checkpoint, "memory", "checkpoint.")
    if memory is None and not config.launch.max_restarts:  # auto: copies serve restarts in place alone
        memory = 0
    folder = checkpoint.dir or f"{run_dir}/checkpoints"
    return resolved(plans.Checkpoint, checkpoint, "checkpoint.", dir=folder, memory=memory)


def _resume(config: Config) -> plans.Resume:
    resume, seconds = config.resume, resolved_value(config, "time")
    lead = resolved_value(resume, "lead", "resume.") or min(max(seconds // 20, 10), 120)
    if lead >= seconds:
        given = f"resume.lead={resume.lead} is" if resume.lead else "attempts stop 10 s before their limit, which is"
        fix = "raise time, or lower resume.lead" if resume.lead else "raise time, or set resume.lead"
        raise ConfigError(f"{given} not less than time={config.time}: ranks would have no time to run; {fix}")
    if resume.how is ResumeHow.chain and resume.max_attempts > LONGEST_CHAIN:
        raise ConfigError(
            f"resume.how=chain submits resume.max_attempts={resume.max_attempts} jobs at once: {LONGEST_CHAIN} at most"
        )
    return resolved(plans.Resume, resume, "resume.", lead=lead)


def _debug_ranks(debug: schema.Debug, world_size: int) -> tuple[int, ...]:
    wanted = debug.rank
    if (wanted is None and debug.post_mortem) or wanted == "all":
        return tuple(range(world_size))
    ranks = [] if wanted is None else wanted if isinstance(wanted, list) else [wanted]
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ConfigError(f"debug.rank={rank}: it must be a rank below {world_size}, a list ([0,1]), or all")
    return tuple(sorted(set(ranks)))


def refuse_unusable(prefix: str, section: Any) -> None:
    """Raises ConfigError for an empty text and for a number out of range in a section (`prefix`: `sweep.`)."""
    # Code of the user's own may give the keys of a training another meaning.
    forms = {} if not getattr(section, "entry", OUR_CODE).startswith(OUR_CODE) else _forms(section.__class__)
    sections = {}  # they come last: a key of theirs may have the value of one that the user has set (workload.seed)
    for each in dataclasses.fields(section):
        key, value = f"{prefix}{each.name}", getattr(section, each.name)
        if isinstance(value, (int, float)):
            form = forms.get(each.name)
            least = 1 if form is Form.natural else 0
            if not (0 < value < math.inf if form is Form.positive else value >= least):  # nan is refused too
                most = "a finite number above 0" if form is Form.positive else f"{least} or more"
                raise ConfigError(f"{key}={value:g}: it must be {most}", key=key)
            if isinstance(value, int) and value >= io_bounds.FIELD_INTEGERS:
                raise ConfigError(f"{key}={value}: it is too large", key=key)
        elif value == "" != each.default and str(each.type).startswith("str"):
            raise ConfigError(f"{key} is empty: give it a value, or leave it out", key=key)
        elif dataclasses.is_dataclass(value):
            sections[key] = value
    for key, value in sections.items():
        refuse_unusable(f"{key}.", value)


def check_name(key: str, value: str) -> str:
    """Returns a value of this key if it can name a job, a folder and a file everywhere; else raises ConfigError."""
    if key in ("run_id", "sweep.id") and value == "latest":
        raise ConfigError(f"{key}=latest: `latest` means the newest one: choose another id")
    if key in ("run_id", "sweep.id") and value.isdecimal():
        raise ConfigError(f"{key}={value}: numbers are the ids of points of a sweep: begin it with a letter")
    if not NAME.fullmatch(value) or len(value) > LONGEST_NAME:
        allowed = f"up to {LONGEST_NAME} letters, digits and _ - + . (not - + . at the beginning)"
        raise ConfigError(f"{key}={value!r} cannot be a job's name: use {allowed}", key=key)
    return value


def _entry(value: str) -> str:
    module, colon, function = value.partition(":")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"workload.entry={value!r} is not module:function")
    return value


def _require(cluster: schema.Cluster) -> None:
    known = {field.name for field in dataclasses.fields(cluster)}
    for required in cluster.required:
        key, _, example = required.partition("=")
        name, *parts = key.split(".")
        if name not in known:
            words = f"cluster.required: there is no key cluster.{name}.{near(name, known)}"
            raise ConfigError(words, key="cluster.required")
        value = getattr(cluster, name)
        for part in parts:
            value = value.get(part) if isinstance(value, Mapping) else None
        if not value:
            override = f"cluster.{key}={example or '...'}"
            raise ConfigError(
                f"cluster.{key} is not set, and cluster={cluster.name} wants it: add {shlex.quote(override)}, or "
                f"set it for good in {user_config_dir()}/user.yaml"
            )


def _environment(values: Mapping[str, Any], key: str = "environment") -> dict[str, str | None]:
    for variable, value in values.items():
        if not VARIABLE.fullmatch(variable):
            raise ConfigError(f"cluster.{key}: {variable!r} cannot be a variable's name")
        if isinstance(value, bool) or not (value is None or isinstance(value, (str, int, float))):
            wrong = f"cluster.{key}.{variable}"
            raise ConfigError(f"{wrong}: {value!r} is neither text nor a number: put it in quotes", key=wrong)
    return {variable: None if value is None else str(value) for variable, value in values.items()}


def check_environments(env: schema.Env, starter: str | None) -> None:
    """Raises ConfigError if keys of `env` exclude each other, with what starts tasks (None: this machine)."""
    given = [f"env.{name}" for name in ("activate", "archive", "container") if getattr(env, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: ranks run in only one of them: leave the others out")
    if env.container is None:
        for key in ("container_args", "binds", "container_runtime", "python"):
            if getattr(env, key) != getattr(schema.Env(), key):
                raise ConfigError(f"env.{key} is for a container: set env.container too, or leave it out")
        return
    if env.container_runtime is Runtime.pyxis and starter != "srun":
        raise ConfigError("env.container_runtime=pyxis is part of srun, which does not start this run: use apptainer")
    for bind in env.binds:
        if not bind.startswith("/") or "," in bind or bind.count(":") > 2:
            raise ConfigError(f"env.binds: {bind!r} is not /SOURCE, /SOURCE:/TARGET or /SOURCE:/TARGET:ro")


TRACKERS = ("tensorboard", "mlflow", "wandb")  # also the names of the packages, and of our extras


def trackers(track: Any) -> tuple[str, ...]:
    """Returns the names in a value of the key `track`, each once; ConfigError: one is not in TRACKERS."""
    names = track if isinstance(track, list) else [] if track is None else [track]
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f"track={name}: there is no such tracker.{near(str(name), TRACKERS)} Use one of {', '.join(TRACKERS)}",
                key="track",
            )
    return tuple(dict.fromkeys(names))


def tracking_uri(config: Config) -> str | None:
    """Returns tracking.uri; ConfigError: it has a user or a password, which record, report and dry run would show."""
    given = config.tracking.uri
    if given is not None and without_password(given) != given:
        do = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        raise ConfigError(f"tracking.uri has a user name or a password, which the run's record would show: {do}")
    return given


def experiment(config: Config, run_id: str) -> str:
    """Returns a run's experiment in trackers: tracking.experiment, else a point's sweep id or a run's name."""
    sweep, point, _ = run_id.partition("/")
    return config.tracking.experiment or (sweep if point else config.name)

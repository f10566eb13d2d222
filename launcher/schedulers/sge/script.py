"""What a job script of Grid Engine looks like: its #$ lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config.schema import ResumeHow
from launcher.errors import ConfigError
from launcher.formatting import format_hours
from launcher.schedulers.qsub import TOKEN
from launcher.schedulers.sge.settings import GpuDirective, SGESettings
from launcher.schedulers.templates import require_plain
from launcher.spec.plan import JobPlan, settings_of

# sge_types(1), object_name: no blanks, no @ / : \ * ?, and no digit first.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")
RESOURCE = re.compile(r"[A-Za-z_][\w.-]*")
VALUE = re.compile(r"""[^\s,'"\\$]+""")
# A word in a #$ line: qsub parses it like a shell, but a quote or a backslash within quotes cannot be escaped.
WORD = re.compile(r"""[^\s'"\\]+""")
OPTION = re.compile(r"[A-Za-z][A-Za-z_]*")
LIMIT = re.compile(r"(^|,)\s*[hs]_rt\s*=")
PARALLEL = re.compile(r"[A-Za-z_][\w.*-]*")

# Options that cluster.directives cannot set, and what to use instead.
TAKEN = {
    "N": "use name",
    "t": "the array is the launcher's",
    "tc": "use sweep.parallelism",
    "q": "use cluster.queue",
    "P": "use cluster.project",
    "A": "use cluster.account",
    "pe": "use nodes and cluster.parallel_environment",
    "g": "use cluster.group",
    **dict.fromkeys(("o", "e", "j", "k"), "the output's place is the launcher's"),
    "v": "set the variable in the environment",
    "V": "the environment is handed on anyway",
    "C": "the script's lines would not count",
    "hold_jid": "use after",
    "hold_jid_ad": "use after",
    "terse": "the launcher finds its jobs by what qsub prints",
    "sync": "use wait",
    "verify": "use dry_run=true",
    "clear": "the site's defaults are the site's",
    "S": "the script is bash's",
    "b": "the job has a script",
}


# qsub's options as `run SCRIPT` takes them (qsub(1)): those that are keys, with a value, and without one. What has no
# key is one of cluster.directives. -m and -h are options of `run` itself.
KEYS = {
    "N": "name", "q": "cluster.queue", "P": "cluster.project", "A": "cluster.account", "g": "cluster.group",
}  # fmt: skip
WITH_VALUE = (
    "a ac ar b binding C c ckpt dc display dl e hold_jid hold_jid_ad i j js jsv l M masterq now o p pe R r S sc shell "
    "sync t tc u v w wd"
)
WITHOUT_VALUE = "V clear cwd hard nostdin notify soft terse verify"


@dataclass(frozen=True)
class Amounts:
    """The resources that a job requests."""

    settings: SGESettings  # parallel environment, slots on each node, and further resources
    nodes: int  # number of nodes
    gpus: int  # GPUs of each node
    mem: int | None  # memory of each node in bytes; None: not requested
    prefix: str = "cluster."  # prefix of the settings' names in error messages, as the user writes them

    @property
    def slots(self) -> int:
        """Number of slots on each node."""
        return self.settings.slots or 1

    def environment(self) -> tuple[str, str] | None:
        """Returns the parallel environment and the job's slots on all nodes, or None if the job needs none.

        Raises ConfigError: the job needs a parallel environment and has none, or its settings contradict each other.
        """
        settings, prefix, name = self.settings, self.prefix, self.settings.parallel_environment
        if settings.node_resource is not None:
            if name is not None or settings.slots is not None:
                raise ConfigError(
                    f"{prefix}node_resource={settings.node_resource}: the site's resource of whole nodes takes the "
                    f"place of {prefix}parallel_environment and {prefix}slots: leave those out"
                )
            return None
        if name is None:
            if self.nodes * self.slots == 1:
                return None
            several = f"nodes={self.nodes}" if self.nodes > 1 else f"{prefix}slots={self.slots}"
            raise ConfigError(
                f"{several}: Grid Engine gives a job more than one slot by a parallel environment: set "
                f"{prefix}parallel_environment (`launcher site init` finds the usable ones, `qconf -spl` lists all)"
            )
        if not PARALLEL.fullmatch(name):
            raise ConfigError(f"{prefix}parallel_environment={name!r} cannot be the name of a parallel environment")
        return name, str(self.nodes * self.slots)

    def sharers(self, resource: str) -> int:
        """Returns the number of slots among which the amount of a node is divided in a request."""
        return 1 if resource in self.settings.per_node else self.slots

    def resources(self) -> dict[str, Any]:
        """Returns the job's resources for -l by name, per slot but for those of `per_node`.

        Raises ConfigError: an amount cannot be divided among the slots of a node, or the site's name of the resource is
            not configured.
        """
        settings, prefix = self.settings, self.prefix
        found: dict[str, Any] = {}
        if settings.node_resource is not None:
            found[settings.node_resource] = self.nodes
        if self.gpus and settings.gpu_directive is GpuDirective.resource:
            if settings.gpu_resource is None:
                raise ConfigError(
                    f"gpus_per_node={self.gpus}: name the site's resource for GPUs ({prefix}gpu_resource=gpu; `qconf "
                    f"-sc` lists resources), or say that there is none ({prefix}gpu_directive=none)"
                )
            if self.gpus % self.sharers(settings.gpu_resource):
                raise ConfigError(
                    f"gpus_per_node={self.gpus}: {settings.gpu_resource} counts for each slot, and "
                    f"{prefix}slots={self.slots} does not divide it"
                )
            found[settings.gpu_resource] = self.gpus // self.sharers(settings.gpu_resource)
        if self.mem is not None:
            if settings.mem_resource is None:
                raise ConfigError(
                    f"mem: name the site's resource for memory ({prefix}mem_resource=h_vmem, or mem_free; `qconf -sc` "
                    "lists resources), or leave mem out"
                )
            found[settings.mem_resource] = f"{-(-self.mem // self.sharers(settings.mem_resource) // 1024)}K"
        return {**found, **{name: value for name, value in settings.resources.items() if value is not None}}


@dataclass(frozen=True)
class Request:
    """The request of a job, from which `options` makes qsub's options."""

    name: str  # job name
    folder: str  # directory of the job's output file
    output: str  # name of the output file
    token: str  # unique text by which a later query finds the job; the value of TOKEN in the job's context
    walltime: int  # wall time in seconds
    amounts: Amounts  # resources that the job requests
    queue: str | None = None  # qsub -q
    project: str | None = None  # qsub -P
    account: str | None = None  # qsub -A
    array: str | None = None  # indices and throttle of an array (`0-14%4`); None: a plain job
    rerunnable: bool = True  # whether Grid Engine may start the job again
    # further options by name. A list adds the option once per value; True adds it without a value
    directives: Mapping[str, Any] = field(default_factory=dict)


def of_plan(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> Request:
    """Returns the request of a run's job; arguments as for `Scheduler.directives`; raises ConfigError."""
    settings = settings_of(plan, SGESettings)
    if settings.group is not None and not NAME.fullmatch(settings.group):
        raise ConfigError(f"cluster.group={settings.group!r} cannot be the name of a group")
    return Request(
        name=plan.name,
        folder=folder or plan.run_dir,
        output="output-$JOB_ID" + ("_$TASK_ID.log" if array else ".log"),
        token=token,
        walltime=plan.time,
        amounts=amounts(plan),
        queue=settings.queue,
        project=settings.project,
        account=plan.cluster.account,
        array=array,
        rerunnable=plan.resume.how != ResumeHow.never.value,
        directives=plan.cluster.directives,
    )


def amounts(plan: JobPlan) -> Amounts:
    """Returns the resources that a run's job requests."""
    return Amounts(settings_of(plan, SGESettings), plan.nodes, plan.gpus_per_node, plan.mem)


def lines(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> list[str]:
    """Returns the #$ lines of a run without this prefix; for arguments and errors see `of_plan` and `lines_of`."""
    return lines_of(of_plan(plan, token, array, folder))


def lines_of(request: Request) -> list[str]:
    """Returns the #$ lines of a job without this prefix.

    Raises ConfigError: a value cannot be written in a #$ line, or `directives` has an option of TAKEN.
    """
    return [_line(name, *values) for name, values in options(request)]


def options(request: Request) -> list[tuple[str, tuple[str, ...]]]:
    """Returns qsub's options in the order of the script, each as its name and its values; for errors see `lines_of`."""
    if not NAME.fullmatch(request.name):
        raise ConfigError(
            f"name={request.name!r} cannot be a Grid Engine job's name: begin it with a letter or _, and use letters, "
            "digits and _ - + ."
        )
    if not WORD.fullmatch(request.folder) or "$" in request.folder or not request.folder.isascii():
        raise ConfigError(
            f"{request.folder}: Grid Engine takes no blanks, quotes, backslashes, $ or characters beyond ASCII in this "
            "path; use another folder (runs_dir)"
        )
    found: list[tuple[str, tuple[str, ...]]] = [("N", (request.name,))]
    for name, value in (("q", request.queue), ("P", request.project), ("A", request.account)):
        if value:
            found.append((name, (value,)))
    if environment := request.amounts.environment():
        found.append(("pe", environment))
    found.append(("l", (f"h_rt={format_hours(request.walltime)}",)))
    found += [("l", (_resource(name, value),)) for name, value in request.amounts.resources().items()]
    if request.array:
        indices, _, most = request.array.partition("%")
        first, _, last = indices.partition("-")
        found.append(("t", (f"{int(first) + 1}-{int(last or first) + 1}",)))
        if most:
            found.append(("tc", (most,)))
    found += [
        ("r", ("y" if request.rerunnable else "n",)),
        ("notify", ()),  # Grid Engine sends SIGUSR2 before SIGKILL
        ("o", (f"{request.folder}/{request.output}",)),
        ("j", ("y",)),
        ("ac", (f"{TOKEN}={request.token}",)),
        ("S", ("/bin/bash",)),
    ]
    return _with_extra(found, request.directives)


def slots_per_node(plan: JobPlan) -> int:
    """Returns the number of slots that a run requests on each node."""
    return amounts(plan).slots


def asked_for(plan: JobPlan) -> list[str]:
    """Returns the names of all resources that a run requests with -l."""
    return ["h_rt", *amounts(plan).resources()]


def _resource(name: str, value: Any) -> str:
    text = str(value).upper() if isinstance(value, bool) else str(value)
    if name in ("h_rt", "s_rt"):
        raise ConfigError(f"{name}={text} cannot be among the resources of the job: use time")
    if not RESOURCE.fullmatch(name) or not VALUE.fullmatch(text):
        raise ConfigError(
            f"{name}={text!r} cannot be a resource of a job: names are letters, digits, _ - and .; values have no "
            "blanks, quotes, commas, $ or backslashes"
        )
    return f"{name}={text}"


def _with_extra(
    ours: Sequence[tuple[str, tuple[str, ...]]], directives: Mapping[str, Any]
) -> list[tuple[str, tuple[str, ...]]]:
    extra: list[tuple[str, tuple[str, ...]]] = []
    for name, value in directives.items():
        if name in TAKEN:
            raise ConfigError(f"the qsub option -{name} cannot be among the directives: {TAKEN[name]}")
        if not OPTION.fullmatch(name):
            raise ConfigError(f"directives: {name!r} is not the name of a qsub option")
        if value is True:
            extra.append((name, ()))
        elif value is not None and value is not False:
            values = [str(each) for each in (value if isinstance(value, (list, tuple)) else [value])]
            if name == "l" and (limit := next(filter(LIMIT.search, values), None)):
                raise ConfigError(f"directives: -l {limit}: the wall time cannot be set there: use time")
            extra += [(name, (each,)) for each in values]
    replaced = set(directives) - {"l"}
    return [*(each for each in ours if each[0] not in replaced), *extra]


def _line(name: str, *values: str) -> str:
    for value in values:
        if not WORD.fullmatch(value):
            raise ConfigError(f"-{name} {value}: Grid Engine's lines have no blanks, quotes or backslashes in a value")
    return " ".join([f"-{name}", *values])


def names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns cluster.directives by option name (`m`, `ar`); a list repeats the option.

    Raises ConfigError: a name is not that of an option, or its value is neither text nor a number.
    """
    for option, value in values.items():
        if not OPTION.fullmatch(str(option)):
            raise ConfigError(
                f"cluster.directives: {option!r} is not the name of a qsub option (write `m`, not `-m`; for a resource "
                "use cluster.resources)"
            )
        for each in value if isinstance(value, list) else [value]:
            require_plain(option, each)
    return dict(values)


def command_options() -> dict[str, bool | None]:
    """Returns qsub's options for `run SCRIPT`; see `Scheduler.command_options`."""
    return {
        **{f"-{name}": True for name in (*KEYS, *WITH_VALUE.split())},
        **{f"-{name}": False for name in WITHOUT_VALUE.split()},
    }


def keys_of(option: str, value: str | None) -> dict[str, Any]:
    """Returns the keys of a qsub option (`Scheduler.keys_of`): -l h_rt is `time`, other -l are cluster.resources."""
    name = option[1:]
    if name in KEYS and value is not None:
        return {KEYS[name]: value}
    if name in TAKEN:
        raise ConfigError(f"{option} is the launcher's: {TAKEN[name]}")
    if name != "l" or value is None:
        return {f"cluster.directives.{name}": True if value is None else value}
    found = {}
    for part in value.split(","):
        resource, equals, amount = part.partition("=")
        if resource == "h_rt":
            found["time"] = f"{amount}s" if amount.isdecimal() else amount
        else:
            found[f"cluster.resources.{resource}"] = amount if equals else "TRUE"
    return found

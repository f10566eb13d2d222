"""What a job script of Grid Engine looks like: its #$ lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from launcher.errors import ConfigError
from launcher.fast_dataclasses import Struct
from launcher.formatting import format_hours
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import qsub
from launcher.schedulers.qsub import TOKEN, OptionNames
from launcher.schedulers.sge.settings import GpuDirective, SGESettings

# sge_types(1), object_name: no blanks, no @ / : \ * ?, and no digit first.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")
RESOURCE = re.compile(r"[A-Za-z_][\w.-]*")
VALUE = re.compile(r"""[^\s,'"\\$]+""")
# A word in a #$ line: qsub parses it like a shell, but a quote or a backslash within quotes cannot be escaped.
WORD = re.compile(r"""[^\s'"\\]+""")
LIMIT = re.compile(r"(^|,)\s*[hs]_rt\s*=")
PARALLEL = re.compile(r"[A-Za-z_][\w.*-]*")

# Options that cluster.directives cannot set, and what to use instead.
TAKEN = {
    "N": "use name", "t": "the array is the launcher's", "tc": "use sweep.parallelism", "q": "use cluster.queue",
    "P": "use cluster.project", "A": "use cluster.account", "pe": "use nodes and cluster.parallel_environment",
    "g": "use cluster.group", **dict.fromkeys("oejk", "the output's place is the launcher's"),
    "v": "set the variable in the environment", "V": "the environment is handed on anyway",
    "C": "the script's lines would not count", "hold_jid": "use after", "hold_jid_ad": "use after",
    **dict.fromkeys(("ac", "dc", "sc"), "the launcher finds its jobs by their context"),
    "terse": "the launcher finds its jobs by what qsub prints", "sync": "use wait", "verify": "use dry_run=true",
    "clear": "the site's defaults are the site's", "S": "the script is bash's", "b": "the job has a script",
}  # fmt: skip
OPTIONS = OptionNames(re.compile(r"[A-Za-z][A-Za-z_]*"), "name", "cluster.resources", TAKEN, frozenset("l"))
extra_options = OPTIONS.checked


class Amounts(Struct):
    settings: SGESettings  # parallel environment, slots on each node, and further resources
    nodes: int  # number of nodes
    gpus: int  # GPUs of each node
    mem: int | None  # memory of each node in bytes; None: not requested
    prefix: str = "cluster."  # prefix of the settings' names in error messages, as the user writes them

    @property
    def slots(self) -> int:
        return self.settings.slots or 1

    def environment(self) -> tuple[str, str] | None:
        """Returns the parallel environment and the job's slots in all; None: it needs none; raises ConfigError."""
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
        return 1 if resource in self.settings.per_node else self.slots

    def resources(self) -> dict[str, Any]:
        """Returns the job's resources for -l, per slot but for those of `per_node`; raises ConfigError."""
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
                slots = f"{prefix}slots={self.slots} does not divide it"
                raise ConfigError(f"gpus_per_node={self.gpus}: {settings.gpu_resource} counts for each slot: {slots}")
            found[settings.gpu_resource] = self.gpus // self.sharers(settings.gpu_resource)
        if self.mem is not None:
            if settings.mem_resource is None:
                raise ConfigError(
                    f"mem: name the site's resource for memory ({prefix}mem_resource=h_vmem, or mem_free; `qconf -sc` "
                    "lists resources), or leave mem out"
                )
            found[settings.mem_resource] = f"{-(-self.mem // self.sharers(settings.mem_resource) // 1024)}K"
        return {**found, **{name: value for name, value in settings.resources.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class Request(qsub.Request):
    folder: str  # directory of the job's output file
    output: str  # name of the output file
    amounts: Amounts


def of_plan(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> Request:
    settings = settings_of(plan, SGESettings)
    if settings.group is not None and not NAME.fullmatch(settings.group):
        raise ConfigError(f"cluster.group={settings.group!r} cannot be the name of a group")
    return Request(
        **qsub.fields_of(plan, settings, token, array),
        folder=folder or plan.run_dir,
        output="output-$JOB_ID" + ("_$TASK_ID.log" if array else ".log"),
        amounts=amounts(plan),
    )


def amounts(plan: JobPlan) -> Amounts:
    return Amounts(settings_of(plan, SGESettings), plan.nodes, plan.gpus_per_node, plan.mem)


def lines(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> list[str]:
    return lines_of(of_plan(plan, token, array, folder))


def lines_of(request: Request) -> list[str]:
    return [_line(name, value) for name, value in options(request)]


def options(request: Request) -> list[tuple[str, str | None]]:
    if not NAME.fullmatch(request.name):
        allowed = "letters, digits and _ - + ., with a letter or _ first"
        raise ConfigError(f"name={request.name!r} cannot be a Grid Engine job's name: use {allowed}")
    if not WORD.fullmatch(request.folder) or "$" in request.folder or not request.folder.isascii():
        raise ConfigError(
            f"{request.folder}: Grid Engine takes no blanks, quotes, backslashes, $ or characters beyond ASCII in this "
            "path; use another folder (runs_dir)"
        )
    environment = request.amounts.environment()
    indices, _, most = (request.array or "").partition("%")
    first, _, last = indices.partition("-")
    ours: list[tuple[str, str | None]] = [
        ("N", request.name),
        ("q", request.queue or None),
        ("P", request.project or None),
        ("A", request.account or None),
        ("pe", None if environment is None else " ".join(environment)),
        ("l", None if request.walltime is None else f"h_rt={format_hours(request.walltime)}"),
        *(("l", _resource(name, value)) for name, value in request.amounts.resources().items()),
        ("t", f"{int(first) + 1}-{int(last or first) + 1}" if request.array else None),
        ("tc", most or None),
        ("r", "y" if request.rerunnable else "n"),
        ("notify", ""),  # Grid Engine sends SIGUSR2 before SIGKILL
        ("o", f"{request.folder}/{request.output}"),
        ("j", "y"),
        ("ac", f"{TOKEN}={request.token}"),
        ("S", "/bin/bash"),
    ]
    if limit := next(filter(LIMIT.search, map(str, qsub.listed(request.directives.get("l", [])))), None):
        raise ConfigError(f"directives: -l {limit}: the wall time cannot be set there: use time")
    return OPTIONS.merged(ours, request.directives)


def slots_per_node(plan: JobPlan) -> int:
    return amounts(plan).slots


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


def _line(name: str, value: str | None) -> str:
    if value and name != "pe" and not WORD.fullmatch(value):
        raise ConfigError(f"-{name} {value}: the value of a `#$` line cannot have blanks, quotes or backslashes")
    return f"-{name} {value}" if value else f"-{name}"

"""What a job script of PBS looks like: its #PBS lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import ConfigError
from launcher.formatting import format_hours
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import qsub
from launcher.schedulers.pbs.settings import GpuDirective, PBSSettings
from launcher.schedulers.qsub import TOKEN, OptionNames
from launcher.schedulers.templates import quote

LONGEST_NAME = 230
NAME = re.compile(r"[A-Za-z0-9_.+-]+")
# Names and values of a chunk's resources: without quotes and the separators of a select statement.
RESOURCE = re.compile(r"[A-Za-z][\w-]*")
VALUE = re.compile(r"""[^\s:+='",\\]+""")
# qsub(1B): -l place=[arrangement][:sharing][:grouping], in any order.
PLACE = re.compile(r"(^|:)(free|pack|scatter|vscatter|excl|shared|exclhost|group=[A-Za-z][\w-]*)(?=:|$)", re.ASCII)
SELECT = re.compile(r"""[^\s'",\\]+""")  # a comma would start another resource of the job

VARIABLE = re.compile(r"""[A-Za-z_]\w*=[^\s,'"\\]*""", re.ASCII)

# Options that cluster.directives cannot set, and what to use instead.
TAKEN = {
    "N": "use name", "J": "the array is the launcher's", "q": "use queue", "P": "use project", "A": "use account",
    **dict.fromkeys("oejk", "the output's place is the launcher's"),
    "V": "the environment is handed on anyway", "C": "the script's lines would not count",
    "I": "the job has a script", "z": "the launcher finds its jobs by what qsub prints",
}  # fmt: skip
# Parts of the values of repeatable options that cluster.directives cannot set either.
TAKEN_WITHIN = {
    "l": {"select": "use nodes and cluster.chunk", "place": "use cluster.place", "walltime": "use time"},
    "W": {"umask": "what the job prints is for nobody else", "tolerate_node_failures": "use min_nodes",
          "block": "use wait"},
}  # fmt: skip

OPTIONS = OptionNames(re.compile(r"[A-Za-z]"), "letter", "cluster.resources or cluster.chunk", TAKEN, frozenset("lWv"))
extra_options = OPTIONS.checked


@dataclass(frozen=True, kw_only=True)
class Request(qsub.Request):
    select: str | None  # select statement; None: `resources` has the amounts of all nodes together
    output: str  # folder of the job's output file `JOBID.OU`; may contain `^array_index^`
    place: str | None = None  # place statement; None: none
    # further resources of the whole job (`-l`) by name, such as filesystems
    resources: Mapping[str, Any] = field(default_factory=dict)
    shrinks: bool = False  # whether the job continues when it loses a node other than the first


def options(request: Request) -> list[tuple[str, str | None]]:
    """Returns qsub's options in the order of the script, each as its letter and its value; raises ConfigError."""
    if not NAME.fullmatch(request.name) or len(request.name) > LONGEST_NAME:
        allowed = f"up to {LONGEST_NAME} letters, digits and _ - + ."
        raise ConfigError(f"name={request.name!r} cannot be a PBS job's name: use {allowed}")
    if not request.output.isascii():
        raise ConfigError(f"{request.output}: qsub takes only ASCII characters in this path; use another folder")
    if request.select is not None and not SELECT.fullmatch(request.select):
        raise ConfigError(f"select={request.select!r}: a select statement has no blanks, quotes, commas or backslashes")
    if request.place and PLACE.sub("", request.place):
        forms = "pack, scatter, vscatter or free, then :excl, :exclhost or :shared, then :group=RESOURCE"
        raise ConfigError(f"place={request.place!r} is no place statement: write {forms}")
    ours: list[tuple[str, str | None]] = [
        ("N", request.name),
        ("q", request.queue or None),
        ("P", request.project or None),
        ("A", request.account or None),
        ("l", f"select={request.select}" if request.select else None),
        ("l", f"place={request.place}" if request.place else None),
        ("l", None if request.walltime is None else f"walltime={format_hours(request.walltime)}"),
        *(("l", f"{name}={value}") for name, value in request.resources.items() if value is not None),
        ("J", request.array or None),
        ("r", "y" if request.rerunnable or request.array else "n"),  # PBS requires it for arrays
        # One output file for stdout and stderr, in the run directory, with mode 0600.
        ("o", request.output),
        ("j", "oe"),
        ("k", "oed"),
        ("W", "umask=077"),
        ("W", "tolerate_node_failures=all" if request.shrinks else None),
        ("v", ",".join([f"{TOKEN}={request.token}", *_variables(request.directives)])),
        ("S", "/bin/bash"),
    ]
    for option, within in TAKEN_WITHIN.items():
        for value in qsub.listed(request.directives.get(option, [])):
            for name in {part.partition("=")[0].strip() for part in str(value).split(",")}:
                if instead := within.get(name):
                    raise ConfigError(f"directives: -{option} {value}: {name} cannot be set: {instead}")
    for name, value in request.resources.items():
        if value is not None and (instead := TAKEN_WITHIN["l"].get(name)):
            raise ConfigError(f"{name}={value} cannot be among the resources of the job: {instead}")
        if value is not None and not (RESOURCE.fullmatch(name) and re.fullmatch(r"""[^\s,'"\\]+""", str(value))):
            raise ConfigError(
                f"{name}={value!r} cannot be a resource of a job: names are letters, digits, _ and -; values have no "
                "blanks, quotes, commas or backslashes"
            )
    return OPTIONS.merged(ours, {option: value for option, value in request.directives.items() if option != "v"})


def _variables(directives: Mapping[str, Any]) -> list[str]:
    given = [str(each) for each in qsub.listed(directives.get("v")) if each is not None]
    for each in given:
        if each.startswith(f"{TOKEN}="):
            raise ConfigError(f"directives: -v {each}: the launcher finds its jobs by it")
        if not VARIABLE.fullmatch(each):
            raise ConfigError(f"directives: -v {each}: write NAME=VALUE, without blanks, quotes, commas or backslashes")
    return given


def chunk_of(plan: JobPlan) -> dict[str, Any]:
    """Returns the resources of a node that a plan itself asks for, without those of cluster.chunk."""
    counted = settings_of(plan, PBSSettings).gpu_directive is GpuDirective.ngpus
    return chunk(
        ncpus=plan.cpus_per_node, mpiprocs=plan.tasks_per_node, ompthreads=plan.cpus_per_proc,
        ngpus=plan.gpus_per_node if counted else 0, mem=plan.mem,
    )  # fmt: skip


def of_plan(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> Request:
    settings, ours = settings_of(plan, PBSSettings), chunk_of(plan)
    if settings.totals and settings.chunk:
        raise ConfigError("cluster.totals=true asks for no chunks: use cluster.resources instead of cluster.chunk")
    return Request(
        **qsub.fields_of(plan, settings, token, array),
        select=None if settings.totals else select(plan.nodes, {**ours, **settings.chunk}),
        output=f"{folder or plan.run_dir}/",
        place=settings.place or (None if settings.totals else place(plan.nodes)),
        resources={**(totals(plan.nodes, ours) if settings.totals else {}), **settings.resources},
        shrinks=plan.min_nodes < plan.nodes,
    )


def lines(plan: JobPlan, token: str, array: str | None = None, folder: str | None = None) -> list[str]:
    return [line(letter, value) for letter, value in options(of_plan(plan, token, array, folder))]


def line(letter: str, value: Any) -> str:
    """Returns an option quoted for a #PBS line, which qsub parses like a shell (make_argv in OpenPBS's qsub.c)."""
    return f"-{letter} {quote(value)}" if value != "" else f"-{letter}"


def chunk(*, ncpus: int, mpiprocs: int, ompthreads: int, ngpus: int, mem: int | None) -> dict[str, Any]:
    """Returns the resources of one node's chunk by name; 0 GPUs and no memory (in bytes) are left out."""
    kib = None if mem is None else f"{-(-mem // 1024)}kb"
    return {"ncpus": ncpus, "mpiprocs": mpiprocs, "ompthreads": ompthreads, "ngpus": ngpus or None, "mem": kib}


def totals(nodes: int, chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the CPUs, GPUs and memory of all nodes together by resource name, from one node's `chunk`."""
    numbers = {name: nodes * chunk[name] for name in ("ncpus", "ngpus") if chunk[name]}
    mem = chunk["mem"]
    return numbers if mem is None else {**numbers, "mem": f"{nodes * int(mem.removesuffix('kb'))}kb"}


def place(nodes: int) -> str | None:
    return "scatter" if nodes > 1 else None  # by default PBS may place chunks on one node


def select(nodes: int, chunk: Mapping[str, Any]) -> str:
    """Returns the select statement for equal chunks, one a node, without values None; raises ConfigError."""
    words = [str(nodes)]
    for name, value in chunk.items():
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not RESOURCE.fullmatch(name) or not VALUE.fullmatch(text):
            raise ConfigError(
                f"{name}={text!r} cannot be a resource of a chunk: names are letters, digits, _ and -; "
                "values have no blanks, quotes, commas, colons, plus or equals signs"
            )
        words.append(f"{name}={text}")
    return ":".join(words)


def chunks(statement: str) -> int:
    """Returns the number of chunks of a select statement (`2:ncpus=4+ncpus=1` -> 3); raises ConfigError."""
    counts = [re.match(r"(\d+)(?::|$)|[A-Za-z]", part) for part in statement.split("+")]
    if not all(counts):
        raise ConfigError(f"select={statement!r} is not a select statement such as 2:ncpus=4:ngpus=1")
    return sum(int(match[1] or 1) for match in counts if match)

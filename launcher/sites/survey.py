"""What a scheduler tells an ordinary user of its site: a few commands, each bounded in time.

What is not answered is left out, and why is told: sites close one or the other to users.
"""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.config.schema import Scheduler
from launcher.errors import RunError
from launcher.schedulers.base import QueryError
from launcher.schedulers.detect import Kind, detect
from launcher.schedulers.pbs.client import PBS, section
from launcher.schedulers.pbs.facts import Facts as PBSFacts
from launcher.schedulers.pbs.facts import Node
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.facts import (
    NODES,
    Nodes,
    PartitionFacts,
    parse_nodes,
    parse_partitions,
    slurm_version,
)
from launcher.spec.limits import Partition, Queue

TIMEOUT = 20.0  # seconds that one command may take
SACCTMGR = ("sacctmgr", "--noheader", "--parsable2")
T = TypeVar("T")


@dataclass(frozen=True)
class Account:
    """An account that the user may charge, and whether it is the default one."""

    name: str
    default: bool = False


@dataclass(frozen=True)
class SlurmSite:
    """A Slurm.

    Attributes:
        cluster: its name.
        version: its version.
        partitions: all that the user sees.
        facts: what scontrol adds to them, by name.
        features: of the nodes of each partition.
        accounts: of this user.
        settings: of `scontrol show config`.
        problems: what could not be found out.
    """

    cluster: str
    version: str
    partitions: tuple[Partition, ...]
    facts: Mapping[str, PartitionFacts] = field(default_factory=dict)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accounts: tuple[Account, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class PBSSite:
    """A PBS: its server, queues, nodes, attributes of the server (`settings`), and what could not be found out."""

    server: str
    version: str
    queues: tuple[Queue, ...]
    nodes: tuple[Node, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class _Asker:
    """Asks, and notes what is not answered."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, ask: Callable[[], T], otherwise: T, what: str) -> T:
        try:
            return ask()
        except (QueryError, ValueError) as error:
            self.problems.append(f"{what}: {' '.join(str(error).split())[:200]}")
            return otherwise


def survey(wanted: Scheduler | None, timeout: float = TIMEOUT) -> SlurmSite | PBSSite:
    """What the scheduler of this machine tells.

    Args:
        wanted: which one; None: the one that is here, Slurm if both are.
        timeout: seconds for one command.

    Raises:
        RunError: there is none here, or it does not answer at all.
    """
    qsub, silent = detect(), ""
    if wanted is Scheduler.slurm or (wanted is None and shutil.which("sinfo")):
        try:
            return of_slurm(Slurm(timeout))
        except QueryError as error:
            silent = f"Slurm does not answer: {error}"
    problem = qsub.problem()
    if silent and (wanted is Scheduler.slurm or problem):
        raise RunError(silent)
    if problem:
        none = "there is neither sinfo nor qsub on PATH: run this on a login node of the cluster"
        raise RunError(none if qsub.kind is Kind.NONE and wanted is None else problem)
    try:
        return of_pbs(PBS(timeout), qsub.version)
    except QueryError as error:
        raise RunError("; ".join(filter(None, (silent, f"PBS does not answer: {error}")))) from None


def of_slurm(slurm: Slurm) -> SlurmSite:
    """Six commands.

    Raises:
        QueryError: sinfo does not answer; without the others there is less to tell.
    """
    ask = _Asker()
    partitions = tuple(slurm.partitions())
    settings: dict[str, str] = {}
    told: list[PartitionFacts] = []
    nodes: list[Nodes] = []
    accounts: tuple[Account, ...] = ()
    features: dict[str, dict[str, None]] = {}
    settings = ask(lambda: parse_settings(slurm.run("scontrol", "show", "config")), settings, "scontrol show config")
    show = ("scontrol", "--all", "--oneliner", "show", "partition")
    told = ask(lambda: parse_partitions(slurm.run(*show)), told, "scontrol show partition")
    nodes = ask(lambda: parse_nodes(slurm.run(*NODES)), nodes, "features of nodes")
    for each in nodes:
        features.setdefault(each.partition, {}).update(dict.fromkeys(each.features))
    if settings.get("AccountingStorageType", "").endswith(("/none", "(null)")):
        ask.problems.append("accounts: the site keeps no accounting")
    else:
        # `show associations` leaves the default account empty (22.05 and 26.05).
        command = (*SACCTMGR, "show", "user", getpass.getuser(), "withassoc", "format=Account,User,DefaultAccount")
        accounts = ask(lambda: parse_accounts(slurm.run(*command)), accounts, "accounts")
    return SlurmSite(
        settings.get("ClusterName", ""), ask(lambda: slurm_version(slurm), "", "version"), partitions,
        {each.name: each for each in told}, {name: tuple(found) for name, found in features.items()}, accounts,
        settings, tuple(ask.problems),
    )  # fmt: skip


def of_pbs(pbs: PBS, version: str) -> PBSSite:
    """Four commands.

    Raises:
        QueryError: qstat does not answer; without the others there is less to tell.
    """
    ask = _Asker()
    queues = tuple(pbs.queues())
    found: dict[str, Any] = {}
    nodes: list[Node] = []
    found = ask(lambda: section(pbs.run("qstat", "-B", "-f", "-F", "json"), "Server"), found, "the server")
    name = next(iter(found), "")
    settings: dict[str, Any] = found.get(name, {})
    nodes = ask(lambda: PBSFacts(pbs).nodes(), nodes, "nodes")
    return PBSSite(name, str(settings.get("pbs_version", version)), queues, tuple(nodes), settings, tuple(ask.problems))


def parse_settings(text: str) -> dict[str, str]:
    """`KEY = VALUE` lines of `scontrol show config`."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))


def parse_accounts(text: str) -> tuple[Account, ...]:
    """Lines `Account|User|DefaultAccount` of sacctmgr; each account once, the default one first."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 2]
    default = next((row[2] for row in rows if row[2]), "")
    names = dict.fromkeys(row[0] for row in rows if row[0] and row[1])
    return tuple(sorted((Account(name, name == default) for name in names), key=lambda each: not each.default))

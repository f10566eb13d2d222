"""Grid Engine's queues, parallel environments, hosts and resources, queried with one command each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.schedulers.sge.client import SGE, parsed, seconds, size

ACCESS = ("user_lists", "xuser_lists", "projects", "xprojects")
BY_HOST = re.compile(r"\[[^=\]]+=([^\]]*)\]")
LIMITS = ("h_vmem", "s_vmem", "h_data", "s_data")  # limits of a job's processes, which Grid Engine multiplies by slots
NO_LIMIT = ("INFINITY", "NONE", "")
# Explanations of the state letters of a queue instance that takes no jobs now (qstat(1)).
QUEUE_STATES = {
    "u": "its host does not answer", "d": "it is disabled", "D": "its calendar disables it", "E": "it is in error",
    "a": "its load is too high", "A": "its load is too high", "s": "it is suspended", "S": "it is suspended by another",
    "C": "its calendar suspends it", "c": "its configuration is ambiguous", "o": "it is orphaned",
}  # fmt: skip


@dataclass(frozen=True)
class ParallelEnvironment:
    """A parallel environment, which gives jobs more than one slot (sge_pe(5))."""

    name: str  # name for qsub -pe
    slots: int  # maximum number of slots of all jobs in the parallel environment together
    rule: str  # allocation_rule: number of slots on each host, or $pe_slots (all on one host), $fill_up, $round_robin
    starts_tasks: bool  # whether `qrsh -inherit` may start tasks on the hosts (control_slaves)
    restricted: bool = False  # whether only some users can use the parallel environment

    @property
    def per_host(self) -> int | None:
        """Number of slots on each host; None if the rule does not fix it."""
        return int(self.rule) if self.rule.isdecimal() else None


@dataclass(frozen=True)
class ClusterQueue:
    """A cluster queue."""

    name: str  # name of the queue
    # longest wall-time limit of its hosts in seconds: the lower one of h_rt and s_rt, because Grid Engine ends a
    # parallel job at s_rt, too; None: no limit
    time: int | None
    environments: tuple[str, ...]  # names of the parallel environments that the queue offers
    restricted: bool = False  # whether only some users or projects can use the queue


@dataclass(frozen=True)
class QueueInstance:
    """A queue on one host."""

    queue: str  # name of the queue
    host: str  # name of the host
    used: int  # number of used slots
    total: int  # number of slots
    state: str = ""  # state letters as qstat prints them; QUEUE_STATES explains those of an instance that takes no jobs

    @property
    def broken(self) -> bool:
        return any(letter in QUEUE_STATES for letter in self.state)


@dataclass(frozen=True)
class Host:
    """An execution host."""

    name: str  # name of the host
    cpus: int | None  # number of CPUs; None: the host does not answer
    mem: int | None  # memory in bytes; None: the host does not answer
    consumables: Mapping[str, float] = field(default_factory=dict)  # free amount of each consumable resource by name


@dataclass(frozen=True)
class Complex:
    """A resource of the site (complex(5))."""

    name: str  # long name of the resource
    shortcut: str  # short name, which jobs can use as well
    type: str  # type of the resource's values, such as INT, MEMORY or RSMAP
    requestable: bool  # whether jobs can request the resource
    consumed: str  # whether jobs consume the resource: NO, YES (the amount counts per slot), JOB (per job) or HOST

    @property
    def per_slot(self) -> bool:
        """Whether the amount of a request counts for each slot of a job; else once for a node (JOB: for its first)."""
        return self.consumed == "YES" or (self.consumed == "NO" and self.name in LIMITS)


@dataclass(frozen=True)
class ResourceQueries:
    """Queries of Grid Engine's resources. Every method raises QueryError when Grid Engine does not answer."""

    sge: SGE

    def environments(self) -> list[ParallelEnvironment]:
        """Returns all parallel environments, with one command for the list and one for each of them."""
        names = self.sge.run("qconf", "-spl", good=(0, 1)).split("\n")
        return [each for name in names if name.strip() and (each := self.environment(name.strip()))]

    def environment(self, name: str) -> ParallelEnvironment | None:
        """Returns the parallel environment with this name, or None if it does not exist."""
        text = self.sge.run("qconf", "-sp", name, good=(0, 1))
        return environment_of(attributes(text)) if "allocation_rule" in text else None

    def queues(self) -> list[ClusterQueue]:
        """Returns all queues, with two commands."""
        names = self.sge.run("qconf", "-sql", good=(0, 1)).split()
        if not names:
            return []
        text = self.sge.run("qconf", "-sq", ",".join(names))
        return [queue_of(attributes(block)) for block in re.split(r"(?m)^(?=qname\s)", text) if block.strip()]

    def instances(self) -> list[QueueInstance]:
        """Returns the instances of all queues on all hosts."""
        return parse_instances(self.sge.run("qstat", "-f", "-xml"))

    def hosts(self) -> list[Host]:
        return parse_hosts(self.sge.run("qhost", "-F", "-xml"))

    def complexes(self) -> list[Complex]:
        return parse_complexes(self.sge.run("qconf", "-sc"))

    def verified(self, job: str) -> tuple[str, bool]:
        """Returns what `qalter -w v` says of a job as if it were alone, and whether it could never start."""
        said = self.sge.run("qalter", "-w", "v", job, good=(0, 1))
        return said, "no suitable queues" in said


def attributes(text: str) -> dict[str, str]:
    """Parses qconf's lines `NAME VALUE`; a line that ends with a backslash continues on the next line."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def environment_of(values: Mapping[str, str]) -> ParallelEnvironment:
    """Converts the attributes in `qconf -sp` to a parallel environment."""
    return ParallelEnvironment(
        values.get("pe_name", ""), int(values.get("slots", "0")), values.get("allocation_rule", ""),
        values.get("control_slaves", "").upper() == "TRUE",
        any(values.get(key, "NONE").upper() != "NONE" for key in ("user_lists", "xuser_lists")),
    )  # fmt: skip


def queue_of(values: Mapping[str, str]) -> ClusterQueue:
    """Converts `qconf -sq`, whose values may differ by host group (`01:00:00,[@long=INFINITY]`), to what one has."""
    found = {key: [value.partition(",[")[0].strip(), *BY_HOST.findall(value)] for key, value in values.items()}
    limits = [[seconds(each) for each in found.get(name, [])] for name in ("h_rt", "s_rt")]
    longest = [max(each for each in limit if each is not None) for limit in limits if limit and None not in limit]
    names = re.split(r"[\s,]+", " ".join(found.get("pe_list", [])))
    return ClusterQueue(
        found.get("qname", [""])[0],
        min(longest, default=None),
        tuple(dict.fromkeys(each for each in names if each.upper() not in NO_LIMIT)),
        any(all(each.upper() != "NONE" for each in found[key]) for key in ACCESS if key in found),
    )


def parse_instances(text: str) -> list[QueueInstance]:
    """Parses the output of `qstat -f -xml`."""
    found = []
    for each in parsed(text).iter("Queue-List"):
        queue, _, host = each.findtext("name", "").partition("@")
        used, total = (int(each.findtext(name, "0")) for name in ("slots_used", "slots_total"))
        found.append(QueueInstance(queue, host, used, total, each.findtext("state", "")))
    return found


def parse_hosts(text: str) -> list[Host]:
    """Parses the output of `qhost -F -xml`, which shows the free amount of each consumable. Skips the host `global`."""
    found = []
    for each in parsed(text).iter("host"):
        if (name := each.get("name", "")) == "global":
            continue
        values = {value.get("name"): value.text or "" for value in each.iter("hostvalue")}
        cpus, mem = values.get("num_proc", "-"), size(values.get("mem_total", "-"))
        consumables = {
            one.get("name", ""): _number(one.text or "")
            for one in each.iter("resourcevalue")
            if one.get("dominance", "").endswith("c")
        }
        found.append(Host(name, int(cpus) if cpus.isdecimal() else None, mem, consumables))
    return found


def parse_complexes(text: str) -> list[Complex]:
    """Parses the output of `qconf -sc`."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [
        Complex(row[0], row[1], row[2], row[4].upper() in ("YES", "FORCED"), row[5].upper())
        for row in rows if len(row) >= 8
    ]  # fmt: skip


def _number(text: str) -> float:
    match = re.match(r"\d+(?:\.\d+)?", text)
    return float(match[0]) if match else 0.0

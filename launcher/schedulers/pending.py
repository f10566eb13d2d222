"""Why a job is pending, and what a scheduler wrote when it killed one: the data that `why` and `post-mortem` print."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from launcher.failures.codes import Code
from launcher.fast_dataclasses import Struct
from launcher.plan.plan import JobPlan
from launcher.runs.events import Awaited
from launcher.schedulers.base import QueryError, QueryTimeout
from launcher.units import parse_local_time, parse_size

CLEARLY = 60.0  # minimum seconds that a change must save to be shown
PART = 0.1  # minimum fraction of the wait that a change must save to be shown


class Waiting(Struct):
    run: str  # id of the run
    job: str  # id of the pending job
    plan: JobPlan  # the run's plan
    program: str  # how the launcher was called (`python -m launcher`), for commands that users can copy
    fixed_nodes: bool = False  # whether the user has set min_nodes
    trials: int = 1  # most changes whose start is asked for, since each trial is work for the scheduler


class Option(Struct):
    """One change of a pending run's request, and the estimated start with this change."""

    overrides: tuple[str, ...]  # config overrides for `resume` (`nodes=2`); empty for the unchanged run
    starts: float | None  # estimated start in seconds since the epoch; None if unknown
    note: str = ""  # disadvantage of the change, or why the run would not start at all


class Why(Code):
    """Why a run is in its state. The kind of a pending reason decides what is queried, and what could help."""

    # its job is pending
    ROOM = "room"  # too little is free, or other jobs come first
    LIMIT = "limit"  # a limit of a queue, a QOS, an account or the site
    PARTITION = "partition"  # a limit or the state of the partition
    NODES = "nodes"  # nodes are down, drained or reserved
    RESERVATION = "reservation"  # the state of a reservation
    WAITS = "waits"  # it waits for something other than resources: other jobs, or a start time
    THROTTLED = "throttled"  # its array runs as many elements as it may
    HELD = "held"  # until somebody releases it
    ALLOCATED = "allocated"  # no longer: the scheduler has just given it nodes
    # a point of a sweep that has not started
    NOT_SUBMITTED = "not_submitted"  # the scheduler accepted no more jobs, or the command was interrupted
    TURN = "turn"  # as many points of its sweep run as may
    NO_PILOT = "no_pilot"  # no pilot of its sweep runs now
    SLOT = "slot"  # no slot of a pilot is free
    NEVER_STARTED = "never_started"  # it was cancelled before it started
    # the other states
    UNCONFIRMED = "unconfirmed"  # its submission was interrupted
    BY_HAND = "by_hand"  # the user has not submitted it yet (submit=false)
    RUNNING = "running"
    SUSPENDED = "suspended"  # the scheduler has stopped its processes
    DONE = "done"
    CANCELLED = "cancelled"  # it has been cancelled, and no other cause is known
    LOST = "lost"  # its job is gone, and nothing recorded a cause
    ENDED = "ended"  # any other end, or an end with a known cause
    NO_STATE = "no_state"  # the scheduler does not answer, or reports a state that the launcher does not know
    UNKNOWN = "unknown"  # the scheduler's reason is not known, or not explained


class PendingFacts(Struct):
    """The facts behind a `Why`, from which `launcher.cli.why` makes its text. Each code has some of them."""

    meaning: str = ""  # what the scheduler's reason means. The text is from the table in the scheduler's own folder
    scheduler: str = ""  # name of the scheduler; empty for a run without a job in a queue
    job_state: str = ""  # state of the job, as the scheduler prints it
    reason: str = ""  # reason of that state, as the scheduler prints it
    error: str = ""  # why the scheduler does not answer
    seconds: int | None = None  # seconds since the run's first event; None if it has not reported yet
    step: float | None = None  # last step that the run reported; None if it reported none
    total: float | None = None  # number of steps of the whole run; None if not known
    cause: str = ""  # cause of the run's end as one line, as `post-mortem` shows it


class Explanation(Struct):
    """Why a run is in its current state, usually why it is pending."""

    run: str  # id of the run
    state: str  # of launcher/monitoring/run_status.py, or of launcher/monitoring/sweep_status.py for a sweep's points
    why: Why  # code of the reason
    job: str | None = None  # id of the run's job; None if it has none
    facts: PendingFacts = PendingFacts()  # the facts behind `why`
    code: str = ""  # the pending reason as the scheduler prints it
    do: str = ""  # what the user can do about the state
    starts: float | None = None  # the scheduler's estimate, in seconds since the epoch; None if it has none
    limits: tuple[str, ...] = ()  # one line per limit that blocks the run, with its value and where it is set
    nodes: tuple[str, ...] = ()  # lines with the number of suitable nodes, and with the problems of unavailable nodes
    options: tuple[Option, ...] = ()  # changes with which the run would start sooner, the smallest change first
    tried: tuple[Option, ...] = ()  # all options; the first is the unchanged run
    commands: tuple[str, ...] = ()  # shell commands that apply the first option
    awaited: tuple[Awaited, ...] = ()  # the runs and sweeps that it waits for (config key `after`), as they are now
    notes: tuple[str, ...] = ()  # further remarks, such as failed queries


def sooner(tried: tuple[Option, ...], now: float) -> tuple[Option, ...]:
    """Returns the changes with a known start, clearly before that of the unchanged run (the first) if that is known."""
    before = tried[0].starts if tried else None
    least = 0.0 if before is None else max(CLEARLY, PART * (before - now))
    known = ((each, each.starts) for each in tried[1:] if each.starts is not None)
    return tuple(each for each, starts in known if before is None or before - starts >= least)


def may_offer_fewer_nodes(plan: JobPlan, nodes: int, *, fixed: bool) -> bool:
    """Returns whether `why` may suggest fewer nodes: not below min_nodes (if `fixed`, or fewer) or min_ranks."""
    if plan.spares:  # the user wants this number, whatever happens
        return False
    least = plan.min_nodes if fixed or plan.min_nodes < plan.nodes else 1
    return least <= nodes < plan.nodes and nodes * plan.procs_per_node >= int(
        plan.workload.params.get("min_ranks") or 1
    )


def commands(waiting: Waiting, options: Sequence[Option]) -> tuple[str, ...]:
    """Returns the commands (cancel, then resume) that apply the first option; () without options."""
    program, run = waiting.program, waiting.run
    return (f"{program} cancel {run}", f"{program} resume {run} {' '.join(options[0].overrides)}") if options else ()


# -- Explains a scheduler's reason with its table, and asks what else belongs to it


T = TypeVar("T")
SHOWN = 10  # maximum number of broken nodes to name


class Reason(Struct):
    """A pending reason: a row of a scheduler's table, or what the row says of one job."""

    kind: Why  # kind of the reason
    words: str  # meaning of the reason, as text; in a table, `{name}` stands for a group of the row's pattern
    do: str = ""  # what the user can do; `{job}` stands for the job's id
    until: str = ""  # event after which the job starts (`others end`); empty: none
    never: bool = False  # whether the unchanged job can never start
    # of Slurm
    column: str = ""  # for an accounting limit, the column of sacctmgr with its value; else empty
    scope: str = ""  # for an accounting limit, `qos` or `association`; else empty
    of_nodes: bool = False  # whether to show the states of the nodes for a reason of kind WAITS


def find_reason(
    table: Sequence[tuple[str, Reason]], text: str, named: Callable[[dict[str, str]], dict[str, str]] = dict
) -> Reason | None:
    """Returns the first row's reason that matches the whole text; its groups, changed by `named`, are in its words."""
    for pattern, reason in table:
        if match := re.fullmatch(pattern, text, re.IGNORECASE):
            groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
            return replace(reason, words=reason.words.format_map(defaultdict(str, named(groups))))
    return None


def explained(waiting: Waiting, reason: Reason, job_id: str) -> Explanation:
    """Returns the explanation of a pending job by this reason alone; job_id: as the scheduler's commands take it."""
    return Explanation(
        run=waiting.run, state="queued", why=reason.kind, job=waiting.job, facts=PendingFacts(meaning=reason.words),
        do=reason.do.replace("{job}", job_id),
    )  # fmt: skip


class Answers:
    """Asks queries; the errors of those that fail become notes, and after a timeout none is asked any more."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.timed_out = False

    def get(self, ask: Callable[[], T], otherwise: T) -> T:
        if self.timed_out:
            return otherwise
        try:
            return ask()
        except QueryError as error:
            self.notes.append(f"not answered: {error}")
            self.timed_out = isinstance(error, QueryTimeout)
            return otherwise


def first_lines(lines: Sequence[str], command: str) -> tuple[str, ...]:
    """Returns the first SHOWN lines, and the command that lists the others."""
    more = len(lines) - SHOWN
    return (*lines[:SHOWN], *([f"... and {more} more; `{command}` lists them"] if more > 0 else []))


# -- Finds the notices that a scheduler (NOTICES in its client.py) or the kernel writes into the output of a job that it
# kills, even where a site has no accounting or job history


# A Slurm job state, and the pattern of the lines that indicate it; its optional group `at` is the time.
Form = tuple[str, re.Pattern[str]]
KERNEL: Form = ("OUT_OF_MEMORY", re.compile(r"[Mm]emory cgroup out of memory|Out of memory: Killed process"))
_AMOUNTS = re.compile(r"(\d+)\s*([kmg]?)b?\)?\s*(?:>|exceeded limit|over)\s*(\d+)\s*([kmg]?)b?", re.IGNORECASE)


class Notice(Struct):
    state: str  # job state that the notice indicates, one of Slurm's for all schedulers
    line: str  # text of the notice
    used: int | None = None  # used memory in bytes; None if not in the text
    limit: int | None = None  # memory limit in bytes; None if not in the text
    time: float | None = None  # time in the notice, in seconds since the epoch; None if not in the text


def find(lines: Iterable[str], forms: Iterable[Form] = ()) -> tuple[Notice, ...]:
    """Returns the notices in a job's output, in order; the first of the patterns that matches a line applies."""
    known = [*forms, KERNEL]
    first = (next(((word, match) for word, form in known if (match := form.search(line))), None) for line in lines)
    return tuple(_notice(*each) for each in first if each is not None)


def _notice(word: str, match: re.Match[str]) -> Notice:
    line = match.string
    amounts = _AMOUNTS.search(line) if word == "OUT_OF_MEMORY" else None
    when = parse_local_time(match.groupdict().get("at") or "")
    if not (amounts and int(amounts[1]) and int(amounts[3])):
        return Notice(word, line.strip(), time=when)
    used, limit = parse_size(amounts[1] + amounts[2]), parse_size(amounts[3] + amounts[4])
    return Notice(word, line.strip(), used, limit, when)


def main_state(notices: Iterable[Notice]) -> str:
    words = [notice.state for notice in notices]
    order = ("OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "REQUEUED", "CANCELLED")
    return next((word for word in order if word in words), "")

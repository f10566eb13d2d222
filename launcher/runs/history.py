"""What happened to a run: its journal on the login node, and the attempts in its directory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import errors, io_bounds
from launcher.failures.codes import Unbound
from launcher.failures.messages import first_of, of_preflight, of_unused_gpus
from launcher.fast_dataclasses import Struct, replace
from launcher.files import safe_io
from launcher.files.retried_reads import retry_read, unwrap
from launcher.formatting import ranges
from launcher.processes import Process
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run
from launcher.runs.sweep_directory import RECORD, Sweep, element_id, sweep_of

if TYPE_CHECKING:
    from launcher.binding.hardware import Node
    from launcher.binding.masks import RankBinding


def journal_events(run: Run, sweep: Sweep | None = None) -> list[dict[str, Any]]:
    """Returns the events of a run's journal as dicts, oldest first; for a point, with the submissions of its arrays.

    sweep: of which the caller knows the run to be a point, which is not looked at then.
    """
    own = list(event_files.read(f"{run.path}/journal.jsonl"))
    sweep = sweep or sweep_of(run)
    if sweep is None:
        return own
    return sorted([*_submitted_with(run, sweep), *own], key=lambda event: float(event["time"]))


def process_of(run: Run) -> Process | None:
    """Returns the process group leader, maybe of another machine, of a run without a scheduler; else None."""
    process = kinds.last(journal_events(run), kinds.ProcessStarted)
    return None if process is None else Process(process.pid, process.start, process.host)


def _submitted_with(run: Run, sweep: Sweep) -> Iterator[dict[str, Any]]:
    journal = sweep.path / "journal.jsonl"
    if (status := unwrap(retry_read(journal.stat, journal))) is not None:
        yield from _entries(sweep, status.st_ino, status.st_size).get(int(run.path.name), ())


@lru_cache(maxsize=4)
def _entries(sweep: Sweep, _inode: int, _size: int) -> dict[int, list[dict[str, Any]]]:
    # Cached until the journal's inode or size changes, so that reading all points of a sweep parses it once
    entries: dict[int, list[dict[str, Any]]] = {}
    for each in sweep.submissions():
        began = event_files.entry(
            kinds.Submitting(time=each.time, token=each.token, points=ranges(each.points), by_hand=each.by_hand)
        )
        for number, index in enumerate(each.points):
            found = entries.setdefault(index, [])
            found.append(began)
            if each.job is not None:
                found.append(event_files.entry(kinds.Submitted(time=each.time, job=element_id(each.job, number))))
    return entries


# -- Derives a run's current job and last attempt from its journal and events, without a query to the scheduler


class RunHistory(Struct):
    """What a run's own files say about it."""

    job_id: str | None  # id of the job that runs the run, or will run it next; None: no job is known
    cancelled: bool  # whether the user has cancelled the run since its last submission
    attempt: int | None  # number of the last attempt; None: there was no attempt
    events: tuple[Mapping[str, Any], ...]  # events of the last attempt as dicts, sorted by time
    waiting: tuple[str, ...] = ()  # ids of the jobs of a chain that follow `job_id`
    submitted: float = 0.0  # time of the last submission, in seconds since the epoch
    exit_code: int | None = None  # written by the last attempt's agents, if its script wrote no event `ended`
    pruned: kinds.Pruned | None = None  # by the search of its sweep; None: it was not, or was started again
    may_have_job: bool = True  # whether a job was submitted, or its submission was interrupted
    by_hand: kinds.Submitting | None = None  # the job that the user is to submit (submit=false), until its id is known
    tokens: frozenset[str] = frozenset()  # of all submissions; that of one of several jobs begins with such a token
    jobs: tuple[str, ...] = ()  # all that were submitted at once the last time; Slurm may have requeued an earlier one
    open: frozenset[str] = frozenset()  # those since the last recorded job: nobody knows whether there is one

    def last(self, kind: type[kinds.E_]) -> kinds.E_ | None:
        return kinds.last(self.events, kind)

    def events_of(self, attempt: Attempt) -> Sequence[Mapping[str, Any]]:
        """Returns the latest events of an attempt of the run; those of the last one are not read again."""
        return self.events if attempt.number == self.attempt else attempt.latest_events()

    @property
    def moved(self) -> float:
        """Time of the last submission or the last attempt's latest event, in seconds since the epoch."""
        return max(self.submitted, float(self.events[-1].get("time", 0.0)) if self.events else 0.0)

    @property
    def ended(self) -> int | None:
        """Exit code of the last attempt, recorded by its script; None: the script has not recorded its end."""
        event = self.last(kinds.Ended)
        return None if event is None else event.code

    @property
    def code(self) -> int | None:
        """Exit code of the last attempt, recorded by its script or else by its agents; None: neither has."""
        return self.exit_code if self.ended is None else self.ended

    @property
    def fault(self) -> kinds.Fault | kinds.SetupFailed | None:
        return first_fault(self.events)


def read_history(run: Run) -> RunHistory:
    attempts = run.attempts()
    if not attempts:
        return history_of(journal_events(run), None, ())
    last = attempts[-1]
    events = last.latest_events()
    recorded = bool(kinds.every(events, kinds.Ended))
    return history_of(journal_events(run), last.number, events, None if recorded else last.exit_code())


def history_of(
    journal: Sequence[Mapping[str, Any]],
    attempt: int | None,
    events: Sequence[Mapping[str, Any]],
    exit_code: int | None = None,
) -> RunHistory:
    """Returns the history that the journal (oldest first) and the last attempt's events (by time) record.

    attempt: number of the last attempt; None: there was no attempt.
    exit_code: exit code written by the last attempt's agents; None: none, or its script recorded the end.
    """
    submitted, wanted, times = None, False, [0.0]
    by_hand: kinds.Submitting | None = None
    others: set[str] = set()  # tokens of jobs that were submitted instead, unless the scheduler refused them
    pruned: kinds.Pruned | None = None
    for event in kinds.known(journal):
        if isinstance(event, (kinds.Pruned, kinds.Submitted)):
            pruned = event if isinstance(event, kinds.Pruned) else None
        submitted = event if isinstance(event, kinds.Submitted) else submitted
        if isinstance(event, kinds.Submitted) or (isinstance(event, kinds.Submitting) and event.by_hand):
            by_hand, others = event if isinstance(event, kinds.Submitting) else None, set()
        elif isinstance(event, kinds.Submitting):
            others.add(event.token)
        elif isinstance(event, kinds.Refused) and event.token in others:
            others.discard(event.token)
        elif isinstance(event, kinds.Refused) and by_hand is not None and by_hand.token == event.token:
            by_hand = None
        if isinstance(event, (kinds.Cancelled, kinds.CancelFailed, kinds.Submitted)):
            wanted = isinstance(event, kinds.Cancelled)  # else the run was resumed since, or the cancellation failed
        if isinstance(event, (kinds.Submitting, kinds.Submitted, kinds.ProcessStarted)):
            times.append(event.time)
    by_hand = None if others else by_hand
    started = kinds.last(events, kinds.Started)
    if by_hand is None:
        jobs = _jobs(submitted, events)
    else:  # its job is known once it has started
        jobs = [started.job] if started is not None and started.time > by_hand.time else []
    if pruned is not None and started is not None and started.time > pruned.time:  # it was started again
        pruned = None
    return RunHistory(
        jobs[0] if jobs else None, wanted, attempt, tuple(events), tuple(jobs[1:]), max(times), exit_code, pruned,
        may_have_job(journal), by_hand, frozenset(each.token for each in kinds.every(journal, kinds.Submitting)),
        () if submitted is None else (submitted.job, *submitted.chain), frozenset(others),
    )  # fmt: skip


def may_have_job(journal: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a run was started, or its last submission was not refused, by its journal."""
    open_tokens: set[str] = set()
    for event in kinds.known(journal):
        if isinstance(event, (kinds.ProcessStarted, kinds.Submitted)):
            return True
        if isinstance(event, kinds.Submitting):
            open_tokens.add(event.token)
        elif isinstance(event, kinds.Refused):
            open_tokens.discard(event.token)
    return bool(open_tokens)


def _jobs(submitted: kinds.Submitted | None, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the current job of a run, which runs it or will run it next, and the jobs of its chain that follow.

    | the job of the last attempt | the current job |
    |---|---|
    | is the job submitted last, or one of its chain | is that job; if its attempt stopped, the next of the chain |
    | is one of the race that was submitted last | is that job alone |
    | is another job, and started after the last submission | is that job, which its killed submitter did not record |
    | is another job, and started before the last submission | is the job submitted last |
    """
    started, ended = kinds.last(events, kinds.Started), kinds.last(events, kinds.Ended)
    if submitted is None:
        return [started.job] if started else []
    jobs = [submitted.job, *submitted.chain]
    if started is None:
        return jobs
    if started.job not in jobs:
        return [started.job] if started.time > submitted.time else jobs
    if submitted.race:
        return [started.job]
    here = jobs.index(started.job)
    stopped = ended is not None and ended.code == errors.RESUME and here + 1 < len(jobs)
    return jobs[here + stopped :]


def first_fault(entries: Iterable[Mapping[str, Any]]) -> kinds.Fault | kinds.SetupFailed | None:
    """Returns the first event `fault` or `setup_failed`; None: neither is there."""
    for entry in entries:
        if entry["event"] in (kinds.Fault.event, kinds.SetupFailed.event):
            return kinds.as_kind(entry, kinds.Fault) or kinds.as_kind(entry, kinds.SetupFailed)
    return None


def elapsed(events: Sequence[Mapping[str, Any]], now: float, *, over: bool) -> int | None:
    """Returns for how many seconds an attempt has run; None: unknown. The clock of its node may be ahead of ours."""
    return max(0, int((events[-1]["time"] if over else now) - events[0]["time"])) if events else None


def at_breakpoints(events: Iterable[Mapping[str, Any]]) -> dict[int, kinds.Breakpoint]:
    """Returns, by rank, the `breakpoint` events of an attempt's ranks that wait at a breakpoint now."""
    found: dict[int, kinds.Breakpoint] = {}
    for event in kinds.known(events):
        if isinstance(event, kinds.Breakpoint):
            found[event.rank] = event
        elif isinstance(event, kinds.Continued):
            found.pop(event.rank, None)
        elif isinstance(event, kinds.Restart):  # the processes of the round before are gone
            found.clear()
    return found


# -- Where the ranks of an attempt ran, and what its events tell besides: preflights, GPUs that are not used


def bindings_event(
    host: str, node: Node, allowed: Collection[int], found: Sequence[RankBinding], *, first_rank: int = 0,
    round_number: int = 0, unbound: Unbound | None = None,
) -> kinds.Bound:  # fmt: skip
    numas: dict[str, list[int]] = {}
    for core in node.cores:
        numas.setdefault(str(core.numa), []).extend(core.cpus)
    return kinds.Bound(
        host=host, round=round_number, node=node.kind, allowed=ranges(sorted(allowed)), unbound=unbound,
        numas={numa: ranges(sorted(cpus)) for numa, cpus in sorted(numas.items(), key=lambda each: int(each[0]))},
        ranks=tuple(_rank(first_rank + place, bound) for place, bound in enumerate(found)),
    )  # fmt: skip


def _rank(rank: int, bound: RankBinding) -> kinds.BoundRank:
    gpu, nic = bound.devices.gpu, bound.devices.nic
    return kinds.BoundRank(
        rank, ranges(bound.cpus), bound.cores, ranges(bound.numa), gpu.name if gpu else None,
        gpu.numa if gpu else None, nic.name if nic else None,
    )  # fmt: skip


def latest_bindings(entries: Iterable[Mapping[str, Any]]) -> list[kinds.Bound]:
    """Returns the `Bound` events of an attempt's last round, one per agent, in the order of their ranks."""
    found = kinds.every(entries, kinds.Bound)
    last = max((each.round for each in found), default=0)
    return sorted((each for each in found if each.round == last and each.ranks), key=lambda each: each.ranks[0].rank)


def differing_bindings(bindings: Sequence[kinds.Bound]) -> str:
    """Returns text such as `the nodes differ: TYPE on a, b; TYPE on c`; empty if all nodes are of the same type."""
    hosts: dict[str, list[str]] = {}
    for each in bindings:
        hosts.setdefault(each.node, []).append(each.host)
    if len(hosts) < 2:
        return ""
    most = sorted(hosts.items(), key=lambda each: -len(each[1]))
    parts = [f"{node or 'unknown'} on {', '.join(names[:4])}{' and more' if names[4:] else ''}" for node, names in most]
    return f"the nodes differ: {'; '.join(parts)}"


def remarks(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns lines about the events of an attempt: its preflights, and GPUs that are not used."""
    lines = [line for event in kinds.every(events, kinds.Preflighted) for line in of_preflight(event)]
    return lines + unused_gpu_lines(events)


def unused_gpu_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the line that some ranks have opened no GPU, with the ranks of all nodes; none if all have."""
    if not (found := unused_gpus(events)):
        return []
    hosts, ranks = first_of([each.host for each in found]), tuple(rank for each in found for rank in each.ranks)
    return [of_unused_gpus(replace(found[0], host=hosts, ranks=ranks, seconds=min(each.seconds for each in found)))]


def unused_gpus(events: Iterable[Mapping[str, Any]]) -> list[kinds.GpusUnused]:
    """Returns the last event of each host and its ranks that says that they have opened no GPU."""
    newest = {(each.host, each.ranks): each for each in kinds.every(events, kinds.GpusUnused)}
    return [each for each in newest.values() if not each.opened]


# -- How often the user's runs fail on a cluster: one line for each round, in RUNS_DIR/.failures.jsonl
#
# The leader appends it at the round's end; a training reads the last ones, for the time between two saves. A job that
# died as a whole has a line by the run's next attempt.
# Lines that two nodes write at the same time may destroy each other on NFS: such a line is ignored.


FAILURES = ".failures.jsonl"
PRIOR = 3600.0  # seconds between two failures of a run that are assumed without experience; it counts as one failure


class Experience(Struct):
    """What the user's runs on a cluster have seen so far."""

    failures: int = 0  # restarts of ranks, and attempts that failed; stop requests and preemption do not count
    node_seconds: float = 0.0  # time of nodes with ranks

    def between(self, nodes: int) -> float:
        """Returns the mean time between failures to expect of a run on so many nodes, in seconds."""
        return (self.node_seconds / nodes + PRIOR) / (self.failures + 1)


def failures_file(run_dir: Path) -> Path:
    """Returns the file for a run: beside all runs, also for a point of a sweep."""
    parent = run_dir.parent
    return (parent.parent if (parent / RECORD).exists() else parent) / FAILURES


def add_failures(run_dir: Path, cluster: str, failures: int, node_seconds: float, absorbed: int = 0) -> None:
    """Appends what a round has seen, if that is possible; absorbed: failures that copies in memory have made good."""
    seen = {"cluster": cluster, "failures": failures, "absorbed": absorbed, "node_seconds": round(node_seconds)}
    with contextlib.suppress(OSError):
        safe_io.append(failures_file(run_dir), json.dumps(seen) + "\n")


def experience(run_dir: Path, cluster: str, *, memory: bool = False) -> Experience:
    """Returns what the last rounds on this cluster have seen (the end of the file, io_bounds.FAILURE_LOG_BYTES).

    memory: whether failures that copies in memory have made good are left out.
    """
    failures, node_seconds = 0, 0.0
    for seen in safe_io.json_lines(failures_file(run_dir), io_bounds.FAILURE_LOG_BYTES):
        numbers: list[Any] = [seen.get(name, 0) for name in ("failures", "node_seconds", "absorbed")]
        if seen.get("cluster") == cluster and all(type(each) is int and each >= 0 for each in numbers):
            failures, node_seconds = failures + numbers[0] - memory * numbers[2], node_seconds + numbers[1]
    return Experience(max(0, failures), node_seconds)

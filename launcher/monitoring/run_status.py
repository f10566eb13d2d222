"""The current state of runs: from their own files, and from one query to each scheduler for all of them.

| the run's files | the scheduler | the run is |
|---|---|---|
| last attempt ended with 0 | (not queried) | done |
| last attempt ended with another code, after its search pruned it | (not queried) | pruned |
| last attempt ended with another code | has a live job | queued, running or suspended, like the job |
| | has the job in an unknown state | unknown: another attempt may have started |
| last attempt ended with 75 | no job | stopped (cancelled, if the user cancelled the run) |
| last attempt ended with another code | no job | failed (cancelled, if the user cancelled the run) |
| last attempt ended with a signal's code | job cancelled | cancelled |
| an attempt has started and not ended | job running, suspended or pending | running, suspended or queued |
| | no reply, or an unknown state | unknown |
| the same, and its agents wrote an exit code | job over, or no such job | as if the attempt had ended with that code |
| the same, without an exit code | job failed or cancelled | cancelled if the run or the job was, else failed |
| | job done or gone, or no such job | cancelled if the user did so, stopped after a stop request, else lost |
| | no such job, and the run's lease has a heartbeat | unknown: the job may be on another cluster |
| no attempt yet | job pending | queued |
| | job failed or cancelled | cancelled if the run or the job was, else failed |
| | job done or gone, or no such job | cancelled if the user cancelled the run, else lost |
| | no reply, or an unknown state | unknown |
| the same, of a chain (resume.how=chain) | job over, and the next one of the chain is there | as that one |
| any of these | has another run's job of this number | as if there were no reply |
| the user is to submit it (submit=false) | has no such job | unsubmitted |
| a submission was started, and no job id is recorded | (not queried) | unconfirmed |
| a submission has led to no job, and the user cancelled the run | (not queried) | cancelled |

A scheduler is queried only for what the files leave open, in this order:

1. all jobs of the user (`squeue` or `qstat`). Commands share these replies
   (launcher/schedulers/job_cache.py);
2. how those jobs ended that it no longer lists, if the run's files do not say it (`sacct`, or the job history of PBS).

If the scheduler does not respond, or has no record of a job, the run's files alone decide.

A point of a packed sweep has no job: the claims of slot managers say whether it runs.

| state of the point's log (point_claims.State) | its slot manager | state of the point |
|---|---|---|
| HELD | alive | running |
| HELD | dead | waiting: another manager takes it over |
| FREE | any | waiting |
| DONE, FAILED, STOPPED, PRUNED, CANCELLED | any | the state of that name |
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

from launcher import errors
from launcher.environment import secrets
from launcher.errors import LauncherError, RunError, UnavailableError, is_transient
from launcher.fast_dataclasses import Struct
from launcher.files import folder_checks
from launcher.files.retried_reads import exists, unwrap
from launcher.formatting import log_line
from launcher.plan.plan import JobPlan
from launcher.runs import point_claims
from launcher.runs.directory import TOKEN, Run, chain_tokens
from launcher.runs.events import CancelFailed, Cancelled, Progress, Refused, StopRequested, Submitted, Submitting
from launcher.runs.history import RunHistory, process_of, read_history
from launcher.runs.lease_and_locks import SILENCE, only_submitter
from launcher.runs.point_claims import Claims, ClaimsReader, EntryKind, State
from launcher.runs.sweep_directory import PILOT, Sweep, sweep_of
from launcher.schedulers import registry
from launcher.schedulers.base import AnswerLost, JobState, Queries, QueryError, SchedulerJob, state_text
from launcher.schedulers.job_cache import QUICKEST, JobSnapshot, SharedSnapshot, interval, take_snapshot

SCHEDULER_INTERVAL = QUICKEST  # shortest time for which a scheduler's reply is fresh, in seconds
QUERY_TIMEOUT = 10.0  # seconds for a query about states; submissions wait longer (cluster.submit_timeout)
ANNOUNCE_AFTER = 3.0  # seconds of waiting for a scheduler after which a line is printed
ENDING = 60.0  # seconds after an attempt's end in which its job normally ends, or another attempt starts
APART = 5.0  # seconds by which the clocks of two machines may differ
ENDS = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)  # final states of jobs
# Errors that a damaged or truncated file of a run may cause; launcher/runs/directory.py finds the file.
DAMAGE = (
    LauncherError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError,
    RecursionError,
)  # fmt: skip
T = TypeVar("T")


class RunState(Enum):  # in the order of a run's life
    UNCONFIRMED = "unconfirmed"  # the submission was interrupted, so it is not known whether there is a job
    UNSUBMITTED = "unsubmitted"  # the user is to submit it by hand (submit=false), and the scheduler has no such job
    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"  # the scheduler has stopped its processes, and will continue them
    UNKNOWN = "unknown"  # the scheduler does not respond or reports a new state, or the files cannot be read now
    DONE = "done"
    PRUNED = "pruned"  # the search of its sweep ended it early, because other points have a better objective
    STOPPED = "stopped"  # it ended early and can be resumed
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # its job is gone, and nothing records why

    @property
    def over(self) -> bool:
        return self not in _NOT_OVER


class JobStatus(Struct):
    state: JobState | None = None  # None: there is no job, or its state is not known
    raw_state: str = ""  # as the scheduler prints it (`PENDING`); empty: not known
    reason: str = ""  # as the scheduler prints it (`Resources`); empty: not known
    problem: str = ""  # why the state is not known; empty: it is known, or there is no job
    signal: int | None = None  # that ended the job; None: none did, or the scheduler does not report it

    @property
    def text(self) -> str:
        """State and reason for display (`PENDING (Resources)`), or why the state is not known; empty: no job."""
        return self.problem or state_text(self.raw_state, self.reason)

    @property
    def elsewhere(self) -> bool:
        """Whether it is on another machine or cluster, so that nothing can be done with it here."""
        return self.state is JobState.UNKNOWN and bool(self.problem)


class RunStatus(Struct):
    run: Run
    plan: JobPlan
    history: RunHistory  # its current job and last attempt, according to its own files
    state: RunState
    progress: Progress | None  # the last event `progress` of the last attempt; None: there is none
    job: JobStatus = JobStatus()  # empty if it is not needed, because the run is done
    left: int | None = None  # seconds of wall time left, according to the scheduler; None: unknown
    unanswered: str = ""  # name of the scheduler, if it did not respond; else empty
    before: str = ""  # if `unanswered`, state and reason of the job in the scheduler's last reply; else empty
    age: float | None = None  # seconds since the query whose reply was used; None: no reply was used
    reply: JobSnapshot = JobSnapshot()  # the scheduler's, which was used; empty: none was

    @property
    def exit_code(self) -> int:
        if self.state is RunState.FAILED and self.history.code == errors.NO_RETRY:
            return errors.NO_RETRY
        codes = {RunState.DONE: errors.DONE, RunState.PRUNED: errors.DONE, RunState.STOPPED: errors.RESUME}
        return codes.get(self.state, errors.FAILED)


class DamagedRun(Struct):
    run: Run
    message: str  # what is wrong and what to do
    is_transient: bool = False  # whether a file cannot be read now, so that nothing is known; False: it is damaged

    def error(self) -> RunError:
        return (UnavailableError if self.is_transient else RunError)(self.message)


def queries(plan: JobPlan, timeout: float | None = None) -> Queries:
    """Returns the plan's scheduler's queries; timeout: seconds a command, at most (None) cluster.submit_timeout."""
    timeout = plan.cluster.submit_timeout if timeout is None else min(timeout, plan.cluster.submit_timeout)
    return registry.queue(plan.cluster.scheduler).queries(timeout)


def forget(plan: JobPlan) -> None:
    SharedSnapshot(plan.cluster.scheduler).forget()


_NOT_OVER = (
    RunState.UNCONFIRMED, RunState.UNSUBMITTED, RunState.QUEUED, RunState.RUNNING, RunState.SUSPENDED, RunState.UNKNOWN,
)  # fmt: skip
_LIVE = {JobState.PENDING: RunState.QUEUED, JobState.RUNNING: RunState.RUNNING, JobState.SUSPENDED: RunState.SUSPENDED}


def run_state(history: RunHistory, job: JobState | None, *, answered: bool = True) -> RunState:
    """Returns the state of a run with this job (None: unknown to the scheduler), by the module's table."""
    if history.ended == errors.DONE:
        return RunState.DONE
    if history.pruned is not None and history.ended is not None:
        return RunState.PRUNED
    if history.job_id is None and history.by_hand:
        return RunState.UNSUBMITTED
    if history.job_id is None and history.attempt is None:
        return RunState.CANCELLED if history.cancelled and not history.may_have_job else RunState.UNCONFIRMED
    if answered and job is not None and job.live:
        return _LIVE[job]
    if answered and job is JobState.UNKNOWN:
        return RunState.UNKNOWN
    code = history.ended
    if code is None:
        if not answered:
            return RunState.UNKNOWN
        code = history.exit_code
        if code == errors.DONE:
            return RunState.DONE
    if history.cancelled or (job is JobState.CANCELLED and (code is None or code > 128)):
        return RunState.CANCELLED
    if code is not None:
        return RunState.STOPPED if code == errors.RESUME else RunState.FAILED
    if job is JobState.FAILED:
        return RunState.FAILED
    return RunState.LOST if history.last(StopRequested) is None else RunState.STOPPED


class JobMonitor:
    """Queries schedulers about the user's jobs, at most every 2 s at first, and every 60 s while nothing changes.

    share: whether to read and write the cache of replies that commands share. Commands that change jobs must not.
    """

    def __init__(self, *, share: bool = False) -> None:
        self._share = share
        self._snapshots: dict[str, JobSnapshot] = {}
        self._unchanged: dict[str, int] = {}
        self._signs: dict[Run, tuple[object, ...]] = {}
        # By scheduler and key of a job: when the job's end was queried (monotonic seconds), and the result.
        self._ended: dict[tuple[str, str], tuple[float, SchedulerJob | QueryError | None]] = {}
        self._least: dict[str, float] = {}  # by scheduler: the site's minimum seconds between two queries
        # By token of a job that the user submits: when it was looked for (monotonic seconds), and how often.
        self._sought: dict[str, tuple[float, int]] = {}
        self._found: set[str] = set()  # tokens of those that were found and recorded
        self._announced = False
        self._pinned: set[str] | None = None  # schedulers that have replied inside a `pinned` block
        self._pinned_at = math.inf  # when that block began (monotonic seconds)
        self.done: set[Path] = set()  # points of sweeps that are done, and not read again
        self.claims = ClaimsReader()

    @property
    def queried(self) -> Collection[str]:
        return self._snapshots.keys()

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Keeps each scheduler's first reply in the outermost block, unless a job may be newer: runs take a while."""
        before = self._pinned, self._pinned_at
        if self._pinned is None:
            self._pinned, self._pinned_at = set(), time.monotonic()
        try:
            yield
        finally:
            self._pinned, self._pinned_at = before

    def job(self, run: Run, plan: JobPlan, history: RunHistory) -> JobStatus:
        """Returns the state of a run's job: from its scheduler, its claims (packed sweep) or its local process."""
        if is_packed(run):
            return JobStatus(of_point(run, self.claims))
        if not plan.queued:
            process = process_of(run)
            if process is None:
                return JobStatus()
            if not process.here():
                return JobStatus(JobState.UNKNOWN, problem=f"it runs on {process.host}")
            return JobStatus(JobState.RUNNING) if process.alive() else JobStatus()
        if history.job_id is None:
            return JobStatus()
        snapshot = self._query(plan, quick=self._has_moved(run, history))
        if plan.race and history.waiting:  # no job of the race has started the run yet
            history = self.nearest(plan, history)
        key = queries(plan).key(str(history.job_id))
        job = snapshot.jobs.get(key)
        if not snapshot.problem and (job is None or not job.state.live) and _predates(snapshot, history):
            snapshot = self._query(plan, newer=time.time())
            job = snapshot.jobs.get(key)
            older = plan.cluster.query_interval is not None and _predates(snapshot, history)
            if older and not snapshot.problem and (job is None or not job.state.live):
                wanted = f"its site wants {plan.cluster.query_interval} s between two queries (cluster.query_interval)"
                return JobStatus(problem=wanted)
        if snapshot.problem:
            return JobStatus(problem=snapshot.problem)
        if _is_of_another(job, history):
            problem = f"job {history.job_id} of {plan.cluster.scheduler} is another run's"
            return JobStatus(JobState.UNKNOWN, problem=f"{problem}: was this run's submitted to another cluster?")
        if _end_unknown(history) and (job is None or job.state is JobState.GONE):
            try:
                job = self.ended(plan, str(history.job_id)) or job
            except QueryError as error:
                return JobStatus(problem=str(error))
        if job is None and history.code is None and (age := run.lease_age()) is not None and age < SILENCE:
            unknown = f"{plan.cluster.scheduler} does not know job {history.job_id}, whose heartbeat goes on"
            return JobStatus(JobState.UNKNOWN, problem=f"{unknown}: was it submitted to another cluster?")
        return JobStatus() if job is None else JobStatus(job.state, job.raw_state, job.reason, signal=job.signal)

    def nearest(self, plan: JobPlan, history: RunHistory) -> RunHistory:
        """Returns the history with the job of a race or a chain that is nearest to its start as the current one."""
        known, key = self._query(plan).jobs, queries(plan).key

        def place(job_id: str) -> int:
            job = known.get(key(job_id))
            return 2 if job is None or not job.state.live else int(job.state is JobState.PENDING)

        jobs = (str(history.job_id), *history.waiting)
        first = min(jobs, key=place)
        return dataclasses.replace(history, job_id=first, waiting=jobs[jobs.index(first) + 1 :])

    def found_by_hand(self, run: Run, plan: JobPlan, history: RunHistory) -> RunHistory:
        """Looks for the job that the user submits by hand, and records it once it is there; returns the history."""
        wanted = history.by_hand
        if wanted is None:
            return history
        if wanted.token in self._found:  # as another point of its array
            return read_history(run)
        tokens = chain_tokens(plan, wanted.token)
        if history.job_id is not None and (len(tokens) == 1 or history.ended is not None):  # it has started
            if wanted.points is None and not folder_checks.why_not_own(run.path):
                self._record(run, wanted, [history.job_id])
            return history
        when, count = self._sought.get(wanted.token, (-math.inf, 0))
        pause = max(interval(count, 0.0, SCHEDULER_INTERVAL), plan.cluster.query_interval or 0.0)
        if time.monotonic() - when < pause or folder_checks.why_not_own(run.path):
            return history
        self._sought[wanted.token] = time.monotonic(), count + 1
        try:
            found = [queries(plan, QUERY_TIMEOUT).find(token, plan.name) for token in tokens]
        except QueryError:
            return history
        jobs = [each for each in found if each is not None]
        if len(jobs) == len(found) and self._record(run, wanted, jobs):  # else a chain may be half submitted
            return read_history(run)
        return history if wanted.points else dataclasses.replace(history, job_id=history.job_id or found[0])

    def _record(self, run: Run, wanted: Submitting, jobs: list[str]) -> bool:
        # Writes into the journal which jobs the user has submitted; returns False if it cannot be written now
        sweep = sweep_of(run) if wanted.points else None
        with contextlib.suppress(OSError):  # for instance a full disk
            if sweep is not None:
                sweep.submitted(wanted.token, jobs[0])
            else:
                run.journal(Submitted(job=jobs[0], chain=tuple(jobs[1:])))
            self._found.add(wanted.token)
            return True
        return False

    def details(self, plan: JobPlan, history: RunHistory) -> tuple[int | None, str, float | None, JobSnapshot]:
        """Returns the fields `left`, `before`, `age` and `reply` of RunStatus from the scheduler's last reply."""
        snapshot = self._snapshots.get(plan.cluster.scheduler)
        if snapshot is None or history.job_id is None or not plan.queued:
            return None, "", None, JobSnapshot()
        job = snapshot.jobs.get(queries(plan).key(history.job_id))
        age = None if snapshot.began is None else max(0.0, time.time() - snapshot.began)
        if _is_of_another(job, history):
            job = None
        left = None if job is None or job.time_left is None or age is None else max(0, int(job.time_left - age))
        return left, state_text(job.raw_state, job.reason) if job else "", age, snapshot

    def fetch_ends(self, wanted: Iterable[tuple[JobPlan, RunHistory]]) -> None:
        """Asks each scheduler, with one query, how several jobs ended that it lists no more, for `ended`."""
        gone: dict[str, tuple[JobPlan, list[str]]] = {}
        for plan, history in wanted:
            if plan.queued and history.job_id is not None and _end_unknown(history):
                snapshot, key = self._query(plan), queries(plan).key(history.job_id)
                job = snapshot.jobs.get(key)
                known = self._has_end(plan.cluster.scheduler, key)
                older = plan.cluster.query_interval is not None and _predates(snapshot, history)  # `job` asks nothing
                if not (snapshot.problem or known or older) and (job is None or job.state is JobState.GONE):
                    gone.setdefault(plan.cluster.scheduler, (plan, []))[1].append(history.job_id)
        for plan, job_ids in gone.values():
            self._ask_ends(plan, job_ids)

    def _ask_ends(self, plan: JobPlan, job_ids: Sequence[str]) -> None:
        commands, scheduler = queries(plan, QUERY_TIMEOUT), plan.cluster.scheduler
        ends: Mapping[str, SchedulerJob] | QueryError
        try:
            with self._announced_wait(scheduler):
                ends = commands.ended_all(job_ids)
        except QueryError as error:
            ends = error
        now = time.monotonic()
        for key in map(commands.key, job_ids):
            self._ended[scheduler, key] = now, ends if isinstance(ends, QueryError) else ends.get(key)

    def ended(self, plan: JobPlan, job_id: str) -> SchedulerJob | None:
        """Returns the scheduler's record of a job that is over, or None; raises QueryError."""
        place = plan.cluster.scheduler, queries(plan).key(job_id)
        if not self._has_end(*place):
            self._ask_ends(plan, [job_id])
        if isinstance(found := self._ended[place][1], QueryError):
            raise found
        return found

    def _has_end(self, scheduler: str, key: str) -> bool:
        # Returns whether a job's end need not be queried: it is known, or the last reply about it is fresh
        when, known = self._ended.get((scheduler, key), (float("-inf"), None))
        final = isinstance(known, SchedulerJob) and known.state in ENDS
        return final or when >= self._pinned_at or time.monotonic() - when <= self._fresh_for(scheduler)

    def _has_moved(self, run: Run, history: RunHistory) -> bool:
        # Returns whether the run's files suggest that its job has changed state since the last call
        signs = (history.job_id, history.attempt, history.ended, history.cancelled)
        before, self._signs[run] = self._signs.get(run, signs), signs
        ends = history.ended is not None and time.time() - history.moved < ENDING  # later, no change is expected
        return before != signs or ends

    def _query(self, plan: JobPlan, *, quick: bool = False, newer: float = 0.0) -> JobSnapshot:
        name, timeout = plan.cluster.scheduler, min(QUERY_TIMEOUT, plan.cluster.submit_timeout)
        self._least[name] = max(self._least.get(name, 0.0), plan.cluster.query_interval or 0.0)
        return self.snapshot(name, queries(plan, QUERY_TIMEOUT), timeout, quick=quick, newer=newer)

    def snapshot(
        self, name: str, commands: Queries, timeout: float, *, quick: bool = False, newer: float = 0.0
    ) -> JobSnapshot:
        """Returns the jobs of the user that a scheduler lists, or why it does not respond; cached while that is fresh.

        quick: whether a run's record has changed, after which cached replies are fresh for 2 s only.
        newer: earliest acceptable start of the query, in seconds since the epoch.
        """
        before = self._snapshots.get(name)
        if quick:
            self._unchanged[name] = 0
        unchanged = self._unchanged.get(name, 0)
        fresh_for, least, now = self._fresh_for(name), self._least.get(name, 0.0), time.time()
        if self._pinned is not None and name in self._pinned:
            fresh_for = math.inf
        failed_just_now = before is not None and bool(before.problem) and before.is_fresh(fresh_for, now)
        if before and (failed_just_now or before.suffices(fresh_for, newer, least, now)):
            return before
        with self._announced_wait(name):
            if self._share:
                snapshot = SharedSnapshot(name).get(fresh_for, commands.jobs, timeout + 1, newer=newer, least=least)
            else:
                snapshot = take_snapshot(commands.jobs, before)
        same = before is not None and (before.jobs, before.problem) == (snapshot.jobs, snapshot.problem)
        self._unchanged[name] = unchanged + 1 if same else 0
        self._snapshots[name] = snapshot
        if self._pinned is not None:
            self._pinned.add(name)
        return snapshot

    def _fresh_for(self, scheduler: str) -> float:
        before = self._snapshots.get(scheduler)
        growing = interval(self._unchanged.get(scheduler, 0), before.took if before else 0.0, SCHEDULER_INTERVAL)
        return max(growing, self._least.get(scheduler, 0.0))

    @contextlib.contextmanager
    def _announced_wait(self, scheduler: str) -> Iterator[None]:
        def announce() -> None:
            self._announced = True
            log_line(f"waiting for {scheduler} to answer, up to {QUERY_TIMEOUT:g} s")

        if self._announced:
            yield
            return
        timer = threading.Timer(ANNOUNCE_AFTER, announce)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def cancel(self, run: Run, *, kill: bool = False) -> None:
        """Marks a run's directory as cancelled, and ends its job; kill: a run without a scheduler is killed at once.

        Raises RunError (it is on another machine, or not the user's own), QueryError, or OSError: the directory cannot
        be marked, for example on a full disk. The job is ended nonetheless.
        """
        folder_checks.require_own(run.path, "cancel it")
        plan = run.plan()
        history = self.found_by_hand(run, plan, read_history(run))
        if is_packed(run):  # its job, the pilot's, runs other points too
            try:
                run.journal(cancelled())
            finally:
                cancel_point(run)
            return
        try:
            run.journal(cancelled())
            run.mark("cancelled")  # otherwise another attempt would be submitted
            if (later := read_history(run)).tokens != history.tokens:  # as one was in the meantime
                history = later
        finally:
            try:
                self._end(run, plan, history, kill)
            except AnswerLost:  # the job may end nonetheless, so the mark stays and no other attempt starts
                raise
            except LauncherError as error:
                run.unmark("cancelled")
                with contextlib.suppress(OSError):
                    run.journal(CancelFailed(error=str(error)))
                raise

    def _end(self, run: Run, plan: JobPlan, history: RunHistory, kill: bool) -> None:
        if not plan.queued:
            process = process_of(run)
            if process is not None and not process.here():
                raise RunError(f"{run.id} runs on {process.host}: cancel it there")
            if process is not None:
                process.signal(signal.SIGKILL if kill else signal.SIGTERM)
            return
        scheduler = queries(plan)
        known = _submitted(run, plan, scheduler) if history.job_id is None else history
        if known is None or known.job_id is None:
            return
        if (job := self.job(run, plan, known)).elsewhere:
            raise QueryError(job.problem)
        try:
            for each in dict.fromkeys((known.job_id, *known.waiting, *known.jobs)):
                scheduler.cancel(each)
        finally:
            forget(plan)
        secrets.forget(plan.run_dir, plan.secrets_dir)


def _submitted(run: Run, plan: JobPlan, scheduler: Queries) -> RunHistory | None:
    with only_submitter(run.path):  # another command may be submitting it
        history, token = read_history(run), run.record()["token"]
        job_id = history.job_id or scheduler.find(token, plan.name)
        if job_id is None:  # its submission was interrupted before there was a job
            run.journal(Refused(token=token))
            return None
        if history.job_id is not None:  # the journal must not end with the submission
            run.journal(cancelled())
        return dataclasses.replace(history, job_id=job_id)


def _is_of_another(job: SchedulerJob | None, history: RunHistory) -> bool:
    # Job numbers repeat, for example on another cluster. Users may change comments: one without a token says nothing
    token = "" if job is None else job.comment or ""
    own = any(f"{token}-".startswith(f"{each}-") for each in history.tokens)
    return token.startswith(TOKEN) and bool(history.tokens) and not own


def _end_unknown(history: RunHistory) -> bool:
    return history.ended is None or history.ended > 128


def _predates(snapshot: JobSnapshot, history: RunHistory) -> bool:
    return (snapshot.began or 0.0) < (history.submitted if snapshot.own else history.moved + APART)


def status_of(run: Run, live: JobMonitor, known: tuple[JobPlan, RunHistory] | None = None) -> RunStatus:
    """Returns the current state of a run, of which plan and history may be known; raises RunError."""
    plan, history = known or (run.plan(), read_history(run))
    history = live.found_by_hand(run, plan, history)
    while True:
        seen = _look(run, live, plan, history)
        if not seen.state.over or seen.state is RunState.DONE:
            return seen
        # During the query, the attempt may have ended or another one started: read the files again.
        before, history = history, read_history(run)
        if (before.job_id, before.attempt, before.ended) == (history.job_id, history.attempt, history.ended):
            return seen


def _look(run: Run, live: JobMonitor, plan: JobPlan, history: RunHistory) -> RunStatus:
    if history.ended == 0:
        return RunStatus(run, plan, history, RunState.DONE, history.last(Progress))
    if history.waiting and history.ended is None and not plan.race:  # a job of a chain may be killed without a word
        history = live.nearest(plan, history)
    job = live.job(run, plan, history)
    state = run_state(history, job.state, answered=not job.problem)
    left, before, age, reply = live.details(plan, history)
    silent = plan.cluster.scheduler if plan.queued and job.problem and not job.elsewhere else ""
    return RunStatus(
        run, plan, history, state, history.last(Progress), job, left, silent, before if silent else "", age, reply
    )


def or_damaged(run: Run, function: Callable[[], T]) -> T | DamagedRun:
    try:
        return function()
    except RunError as error:
        return DamagedRun(run, str(error), is_transient(error))
    except DAMAGE as error:
        if is_transient(error):
            return DamagedRun(run, f"{run.path} cannot be read now: {error}", is_transient=True)
        return DamagedRun(run, f"{run.path} is damaged: {type(error).__name__}: {error}")


def each_status(runs: Iterable[Run], live: JobMonitor) -> list[RunStatus | DamagedRun]:
    """Returns the states of many runs, with one query to each scheduler for jobs and one for ended jobs."""
    known = [(run, or_damaged(run, lambda run=run: (run.plan(), read_history(run)))) for run in runs]  # type: ignore[misc]
    whole = [each for _, each in known if not isinstance(each, DamagedRun) and each[1].ended != 0]
    with live.pinned():
        with contextlib.suppress(*DAMAGE):  # an invalid job id, which `status_of` reports below
            live.fetch_ends(whole)
        return [
            each if isinstance(each, DamagedRun) else or_damaged(run, partial(status_of, run, live, each))
            for run, each in known
        ]


def all_statuses(runs: Iterable[Run], live: JobMonitor | None = None) -> list[RunStatus]:
    """Returns the states of many runs as `each_status`, but raises RunError if one of them cannot be read."""
    seen = each_status(runs, live or JobMonitor(share=True))
    for each in seen:
        if isinstance(each, DamagedRun):
            raise each.error()
    return [each for each in seen if isinstance(each, RunStatus)]


def cancelled() -> Cancelled:
    return Cancelled(by=folder_checks.user_name(os.getuid()), host=socket.gethostname())


def wait_until_over(
    look: Callable[[], RunState], timeout: float | None, *, first: float, slowest: float,
    unavailable: type[Exception] | tuple[type[Exception], ...],
) -> RunState:  # fmt: skip
    """Polls a run's state until it is over, for at most `timeout` seconds (None: no limit); returns the last state.

    first, slowest: seconds between polls, at first and at most. unavailable: raised by `look` if nothing is known now.
    """
    until = time.monotonic() + (math.inf if timeout is None else timeout)
    pause = first
    while True:
        try:
            state = look()
        except unavailable:  # a later poll may know
            state = RunState.UNKNOWN
        left = until - time.monotonic()
        if state.over or left <= 0:
            return state
        time.sleep(min(pause, left))
        pause = min(pause * 1.2, slowest)


# -- Points of packed sweeps


def of_point(run: Run, reader: ClaimsReader) -> JobState | None:
    """Returns a packed sweep's point as if it were a job; None: it is over, or has its own job. Raises RunError."""
    sweep = Sweep(run.path.parent)
    packing = sweep.packing()
    if packing is None:
        return None
    runs = reader.runs(sweep, packing, int(run.path.name))
    return None if runs is None else JobState.RUNNING if runs else JobState.PENDING


def is_packed(run: Run) -> bool:
    return run.path.name.isdecimal() and unwrap(exists(run.path.parent / point_claims.CLAIMS))


def rerun(run: Run) -> str:
    """Returns the sub-command that restarts a packed sweep's point (`sweep rerun ID 7`) or pilot; empty: neither."""
    sweep, pilot, number = run.id.rpartition(PILOT)
    if pilot and number.isdecimal() and Sweep(run.path.with_name(sweep)).recorded():
        return f"sweep rerun {sweep}"
    return f"sweep rerun {run.path.parent.name} {run.path.name}" if is_packed(run) else ""


def cancel_point(run: Run) -> None:
    """Cancels a point of a packed sweep: if it runs, its slot manager sees the mark `cancelled`; raises OSError."""
    reads, point = Claims(run.path.parent, 0), int(run.path.name)
    log = reads.log(point)
    if log.state is not State.FREE or not reads.add(point, log.next, EntryKind.CANCELLED, None):
        run.mark("cancelled")

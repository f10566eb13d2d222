"""Submits a sweep: one job array where points ask for the same job, jobs of their own, pilots, or a search.

If the same command is run a second time, it finds the existing sweep, and submits only points that have no job yet: new
points, and points that an interrupted submission left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from launcher.agent import payload
from launcher.environment import secrets as secret
from launcher.environment import snapshot
from launcher.errors import ConfigError, RunError, SubmissionError, program
from launcher.files.retried_reads import Wrong, exists, read_json, unwrap
from launcher.formatting import plural
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunState, or_damaged, queries, status_of
from launcher.monitoring.sweep_status import LiveArray, live_jobs, live_pilots, point_statuses, throttle_each
from launcher.paths import default_runs_dir, own_module
from launcher.plan.plan import Cluster, JobPlan
from launcher.runs import event_files, events, live_runs_index
from launcher.runs.directory import Run, token_of
from launcher.runs.events import ManagerEnded, ManagerIdle, Submitted, every
from launcher.runs.history import journal_events, read_history
from launcher.runs.lease_and_locks import only_submitter
from launcher.runs.point_claims import Claims, EntryKind, PointLog, State
from launcher.runs.sweep_directory import SearchRecord, Sweep
from launcher.schedulers import registry
from launcher.schedulers.base import BY_HAND, parts
from launcher.schedulers.executor import begun
from launcher.schedulers.run_command import SubmissionRefused
from launcher.search.progress import chooses_more
from launcher.submission import dependencies, render
from launcher.submission import submit as submission
from launcher.submission.submit import Interrupted, SubmittedRun, facts_of_here, require_commands
from launcher.sweeps import prepare
from launcher.sweeps.prepare import PreparedSweep

ENDS = 20.0  # seconds to wait for the end of a pilot's job after its slot managers have ended
LEAVING = (ManagerIdle.event, ManagerEnded.event)  # a slot manager whose last event is one of these claims no more


@dataclass(frozen=True)
class SubmittedPilots:
    jobs: Mapping[int, SubmittedRun]  # the pilots that were submitted, by their numbers
    left: int = 0  # number of pilots that the scheduler does not accept
    words: str = ""  # the message with which the scheduler refused the pilots counted in `left`
    enough: int | None = None  # how many the points that are left can use; None: as many as asked for


@dataclass(frozen=True)
class SubmittedSweep:
    """The result of a submission. Points are given by their numbers."""

    sweep: Sweep  # the sweep
    jobs: tuple[tuple[str, tuple[int, ...]], ...]  # id and points of each job or array that was submitted
    already_submitted: tuple[int, ...]  # points that were submitted by an earlier command
    local: tuple[int, ...]  # points that run on this machine without a scheduler, a few at a time
    not_accepted: tuple[int, ...] = ()  # points that the scheduler does not accept now, because of a limit of jobs
    limit: str = ""  # the message with which the scheduler refused the points in `not_accepted`
    pilots: SubmittedPilots | None = None  # result of the submission of pilots; None: the sweep has no pilots
    commands: tuple[str, ...] = ()  # with submit=false: the commands with which the user submits jobs and arrays
    left_out: tuple[int, ...] = ()  # points to rerun that have no record, or a damaged one

    @property
    def is_partial(self) -> bool:
        """Whether some of the points or pilots were not submitted."""
        return bool(self.not_accepted or self.left_out or (self.pilots and self.pilots.left))


def submit_sweep(prepared: PreparedSweep, *, by_hand: bool = False) -> SubmittedSweep:
    """Makes the sweep's directory, submits points without a job; SubmissionError: a second call submits the rest."""
    with secret.exported(prepared.secrets):
        for plan, _ in prepared.groups:
            require_commands(plan)
        new = not unwrap(exists(prepared.path))
        sweep = Sweep.create(prepared.path)
        with only_submitter(sweep.path):
            submit = _submit_points if prepared.settings is None else _submit_search
            cancelled, record = sweep.cancelled(), SearchRecord(sweep.path)
            searched = prepared.existing is not None and prepared.existing.search
            before = (record.settings(), record.template()) if searched else None
            try:
                submitted = submit(sweep, prepared, by_hand)
            except SubmissionRefused:  # there is no job of this command
                if new:
                    submission.remove(Run(sweep.path))
                elif (existing := prepared.existing) is not None:
                    for index in range(len(existing.points), len(prepared.manifest.points)):
                        shutil.rmtree(sweep.run(index).path, ignore_errors=True)
                    sweep.write(existing)
                    if before is not None:
                        record.create(*before)
                    sweep.mark_cancelled(cancelled)
                raise
        Run(sweep.path).link(default_runs_dir())
        return submitted


def _submit_points(sweep: Sweep, prepared: PreparedSweep, by_hand: bool) -> SubmittedSweep:
    now = sweep.manifest() if sweep.recorded() else None
    if now is not None and now.search:
        raise ConfigError(f"{sweep.id} is a search (sweep.search): choose another sweep.id for a list of points")
    if now != prepared.existing:
        raise _changed(sweep)
    made = {index for index in prepared.plans if not sweep.run(index).recorded()}
    damaged = {i for i in prepared.plans.keys() - made if _is_damaged(sweep.run(i), prepared.plans[i])}
    if now != prepared.manifest:
        sweep.write(prepared.manifest)
    Run(sweep.path).link(default_runs_dir(), latest=False)  # before any job: commands must find it if this is cut short
    _make_points(sweep, prepared, made | damaged)
    sweep.mark_cancelled(False)
    recover(sweep, prepared.plans)
    done = {index for each in sweep.submissions() for index in each.points} & set(prepared.plans)
    done |= {i for i in prepared.plans if i not in made | done and read_history(sweep.run(i)).job_id is not None}
    clear_marks = clear_marks_of_point if prepared.pilots else Run.clear_marks
    for index in set(prepared.plans) - done - made:
        clear_marks(sweep.run(index))  # it may have been cancelled before it was submitted
    if prepared.pilots:
        done = set(prepared.plans) - made
        submitted = submit_pilots(sweep, prepared.order, by_hand=by_hand)
    else:
        submitter = _ArraySubmitter(sweep, prepared.groups, prepared.plans, by_hand=by_hand)
        submitted = submitter.submit(set(prepared.plans) - done)
    return dataclasses.replace(submitted, already_submitted=tuple(sorted(done)))


def _is_damaged(run: Run, plan: JobPlan) -> bool:
    # Returns whether a point has lost its record when its submitter's machine crashed; if not, it must have this plan
    try:
        submission.require_same(run, plan)
    except RunError:
        if not isinstance(read_json(run.path / "record.json"), Wrong):
            raise
        return True
    return False


def _submit_search(sweep: Sweep, prepared: PreparedSweep, by_hand: bool) -> SubmittedSweep:
    # Makes the first point, too
    from launcher.search.search import SearchPoints

    if sweep.recorded() != (prepared.existing is not None):
        raise _changed(sweep)
    assert prepared.settings is not None, "it is a search"
    snapshot.take(prepared.plans[prepared.order[0]])
    SearchRecord(sweep.path).create(prepared.settings, prepared.template)
    sweep.write(prepared.manifest)  # last: who finds it reads the settings
    Run(sweep.path).link(default_runs_dir(), latest=False)
    sweep.mark_cancelled(False)
    points = SearchPoints(sweep)
    if not points.count():
        points.more()
    points.made(0)
    return submit_pilots(sweep, (0,), by_hand=by_hand)


def _changed(sweep: Sweep) -> SubmissionError:
    return SubmissionError(f"{sweep.id} was changed by another command meanwhile: repeat this one")


def resubmit(
    sweep: Sweep, points: Sequence[int], secrets: Callable[[Run], Mapping[str, str]] = lambda _: {}
) -> SubmittedSweep:
    """Submits points again; secrets: returns those that the config of a point sets, not the environment."""
    plans = {index: sweep.run(index).plan() for index in points}
    groups = prepare.groups(plans, sweep.id, sweep.path)
    found = _secrets_of([sweep.run(members[0]) for _, members in groups], secrets)
    with secret.exported(found), only_submitter(sweep.path):
        packed = sweep.packing() is not None
        if packed:
            start_again(sweep, points)
        sweep.mark_cancelled(False)
        if packed:
            return submit_pilots(sweep, points)
        for index in points:
            sweep.run(index).clear_marks()
        return _ArraySubmitter(sweep, groups, plans, restart=True).submit(set(points))


def _secrets_of(points: Iterable[Run], secrets: Callable[[Run], Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for run in points:
        plan = run.plan()
        require_commands(plan)
        if plan.secret_variables:
            found |= secrets(run)
            secret.require(plan.secret_variables, {**os.environ, **found})
    return found


def _make_points(sweep: Sweep, prepared: PreparedSweep, points: Iterable[int]) -> None:
    # Does not wait until the files are on disk, because a lost directory can be made again from the manifest
    facts: dict[str, Any] | None = None
    for plan in prepared.plans.values():
        snapshot.take(plan)  # all points share one snapshot
    for index in sorted(points):
        run, plan = sweep.run(index), prepared.plans[index]
        facts = facts or facts_of_here(plan.submitted_in)
        if run.recorded():
            shutil.copyfile(run.path / "record.json", run.path / ".record.json.damaged")
        else:
            Run.create(run.path)
        overrides = prepared.manifest.points[index]
        record = {**facts, "token": token_of(plan.run_dir), "overrides": list(overrides)}
        run.write_record(plan, prepared.points[index].resolved, record, sync=False)


def recover(sweep: Sweep, plans: Mapping[int, JobPlan]) -> None:
    """Records the job of each array that a killed command may have submitted, or that there is none.

    The caller holds the submitter's lock. plans: those that have been read already, by point.
    """
    for each in sweep.submissions():
        if each.job is None:
            plan = plans[each.points[0]] if each.points[0] in plans else _readable(sweep, each.points).plan()
            job = begun([sweep.run(index) for index in each.points]) or queries(plan).find(each.token, plan.name)
            if job is None:
                sweep.refused(each.token)
            else:
                sweep.submitted(each.token, job)


def _readable(sweep: Sweep, points: Sequence[int]) -> Run:
    # Returns the first of these points whose record is not damaged; raises RunError, UnavailableError
    for index in points:
        found = or_damaged(sweep.run(index), sweep.run(index).plan)
        if not isinstance(found, DamagedRun):
            return sweep.run(index)
        if found.is_transient or index == points[-1]:
            raise found.error()
    raise RunError(f"{sweep.id} has no points")


class _ArraySubmitter:
    # `preceding`, where it is passed: a job or array of the sweep that must end before, because of sweep.parallelism

    def __init__(
        self, sweep: Sweep, groups: Sequence[tuple[JobPlan, tuple[int, ...]]], plans: Mapping[int, JobPlan], *,
        restart: bool = False, by_hand: bool = False,
    ) -> None:  # fmt: skip
        self._sweep, self._groups, self._plans, self._restart = sweep, groups, plans, restart
        self._parallelism, self._by_hand = sweep.manifest().parallelism, by_hand
        self._monitor, self._asked = JobMonitor(), set[str]()  # for `_blocking_jobs`: jobs that were looked at
        self._commands: list[str] = []
        self._serial = len(sweep.tokens())
        self._jobs: list[tuple[str, tuple[int, ...]]] = []
        self._limit = ""  # the scheduler's last message about too many jobs

    def submit(self, points: set[int]) -> SubmittedSweep:
        """Submits these points; starts a background process for points that run without a scheduler."""
        queued = [(plan, tuple(i for i in members if i in points)) for plan, members in self._groups if plan.queued]
        arrays = [
            (plan, members[part.start : part.stop])
            for plan, members in queued
            if members
            for part in parts(len(members), queries(plan).max_array_size(plan) if len(members) > 1 else None)
        ]
        if self._by_hand and self._parallelism is not None and self._parallelism < len(arrays):
            raise ConfigError(
                f"submit=false: with sweep.parallelism={self._parallelism} some of {len(arrays)} jobs and arrays wait "
                "for others, whose ids are not known yet: leave one of the two out"
            )
        live = self._live(points)
        throttles = prepare.shares(
            self._parallelism, [*(len(each.points) for each in live), *(len(members) for _, members in arrays)]
        )
        throttle_each(live, throttles[: len(live)])
        not_accepted: list[int] = []
        full: list[Cluster] = []  # accounts, partitions, ... of which the scheduler accepts no more jobs
        # by array, live ones first: its last job; None: none of its points was submitted
        last: list[LiveArray | None] = [*live]
        for number, (plan, members) in enumerate(arrays, len(live)):
            throttle = throttles[number]
            before = number - (self._parallelism or len(throttles))  # so that at most `parallelism` arrays run at once
            preceding = None if before < 0 else last[before]
            submitted = len(self._jobs)
            rest = list(members) if plan.cluster in full else self._submit_in_parts(plan, members, throttle, preceding)
            last.append(self._last_job(plan) if len(self._jobs) > submitted else None)
            full += [plan.cluster] if rest else []
            not_accepted += rest
        local = tuple(
            index for plan, members in self._groups if not plan.queued for index in members if index in points
        )
        if local:
            self._sweep.request_local(local, restart=self._restart)
            start_local_runner(self._sweep)
        return SubmittedSweep(
            self._sweep, tuple(self._jobs), (), local, tuple(not_accepted), self._limit, commands=tuple(self._commands)
        )

    def _live(self, points: set[int]) -> list[LiveArray]:
        # The jobs of other points, which share sweep.parallelism with those of these
        if self._parallelism is None:
            return []
        others = set(range(len(self._sweep.manifest().points))) - points
        return live_jobs(point_statuses(self._sweep, JobMonitor(), others), self._sweep.submissions())

    def _last_job(self, plan: JobPlan) -> LiveArray:
        job, points = self._jobs[-1]
        return LiveArray(job, plan, points, len(points))

    def _blocking_jobs(self, plan: JobPlan, preceding: LiveArray | None) -> list[str]:
        jobs = dependencies.blocking_jobs(plan)
        if preceding is None or preceding.plan.cluster.scheduler != plan.cluster.scheduler:
            return jobs
        if preceding.job in self._asked:  # it has just ended, perhaps: a fresh answer is needed
            self._monitor = JobMonitor()
        self._asked.add(preceding.job)
        over = all(each.over for each in point_statuses(self._sweep, self._monitor, preceding.points))
        return jobs if over else [*jobs, preceding.job]

    def _submit_in_parts(
        self, plan: JobPlan, members: tuple[int, ...], throttle: int | None, preceding: LiveArray | None
    ) -> list[int]:
        try:
            with self._interrupted():
                if len(members) == 1:
                    self._submit_single(members[0], preceding)
                else:
                    self._submit_array(plan, members, throttle, preceding)
            return []
        except SubmissionRefused as refused:
            if not refused.job_limit:
                raise self._partial_refusal(refused) from None
            self._limit = str(refused)
            if len(members) == 1 or refused.slow:
                return list(members)
            first, rest = members[: len(members) // 2], members[len(members) // 2 :]
            throttles = prepare.shares(throttle, [len(first), len(rest)])
            if refused_points := self._submit_in_parts(plan, first, throttles[0], preceding):
                return [*refused_points, *rest]
            if throttle == 1:
                preceding = self._last_job(plan)
            return self._submit_in_parts(plan, rest, throttles[1], preceding)

    @contextlib.contextmanager
    def _interrupted(self) -> Iterator[None]:
        # Delays Ctrl-C until the end of the block, in which an array is submitted, so that the job is recorded
        then = f"{self._rest()}, or end it with `launcher cancel {self._sweep.id}`"
        try:
            with submission.delayed_interrupt() as interrupted:
                yield
        except KeyboardInterrupt:
            raise Interrupted(f"it is not known which points of {self._sweep.id} were submitted: {then}") from None
        if interrupted:
            count, jobs = self._made()
            raise Interrupted(f"{plural(count, 'point')} of {self._sweep.id} submitted, as {jobs}: {then}")

    def _rest(self) -> str:
        again = f"call `{program()} sweep rerun {self._sweep.id}`"
        return f"{again if self._restart else f'repeat the command with sweep.id={self._sweep.id}'} to submit the rest"

    def _made(self) -> tuple[int, str]:
        return sum(len(points) for _, points in self._jobs), ", ".join(job for job, _ in self._jobs)

    def _partial_refusal(self, refused: SubmissionRefused) -> SubmissionError:
        if not self._jobs:
            return refused
        count, jobs = self._made()
        return SubmissionError(f"{refused}\n{plural(count, 'other point')} submitted before, as {jobs}; {self._rest()}")

    def _submit_single(self, index: int, preceding: LiveArray | None) -> None:
        run, plan = self._sweep.run(index), self._plans[index]
        token = _next_token(run, plan)
        try:
            submitted = submission.start(
                run, plan, token, submission.tried(run, token), lambda: self._blocking_jobs(plan, preceding),
                by_hand=self._by_hand,
            )  # fmt: skip
        except SubmissionRefused as refusal:
            run.journal(events.Refused(token=token, error=str(refusal)))
            raise
        self._submitted(submitted.job_id, submitted.command, (index,))

    def _submit_array(
        self, plan: JobPlan, members: tuple[int, ...], throttle: int | None, preceding: LiveArray | None
    ) -> None:
        token = f"{token_of(str(self._sweep.path))}-{self._serial}"
        self._serial += 1
        runs = [self._sweep.run(index) for index in members]
        executor = registry.scheduler(plan.cluster.scheduler).executor()(
            Run(self._sweep.path), plan, token, throttle, scripts=render, elements=runs, by_hand=self._by_hand,
            submitting=lambda: self._sweep.submitting(token, members, by_hand=self._by_hand),
            blocking_jobs=lambda: self._blocking_jobs(plan, preceding),
        )  # fmt: skip
        try:
            jobs = executor.map_array(payload.run, [str(run.path) for run in runs])
        except SubmissionRefused as refusal:
            self._sweep.refused(token, str(refusal))
            raise
        job_id = jobs[0].job_id.rpartition("_")[0]
        if job_id != BY_HAND:
            self._sweep.submitted(token, job_id)
        self._submitted(job_id, executor.command, members)

    def _submitted(self, job_id: str, command: str, members: tuple[int, ...]) -> None:
        if job_id == BY_HAND:
            self._commands.append(command)
        else:
            self._jobs.append((job_id, members))


def _next_token(run: Run, plan: JobPlan) -> str:
    before = len(every(journal_events(run), Submitted))
    return token_of(plan.run_dir) + (f"-r{before}" if before else "")


def start_local_runner(sweep: Sweep) -> None:
    """Starts a process that runs the sweep's requested points on this machine, in the allocation if there is one."""
    output = os.open(sweep.path / "points.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(output, "wb") as log:
        subprocess.Popen(
            [sys.executable, *own_module("launcher.sweeps.local_runner"), str(sweep.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


# -- Pilots of a packed sweep and of a search


def submit_pilots(sweep: Sweep, points: Sequence[int], *, by_hand: bool = False) -> SubmittedSweep:
    """Submits pilots until as many are live as the manifest says, or as the remaining points can use; needs the lock.

    One that failed or was stopped is submitted again; one that is done keeps its number, and a new one gets the next.
    points: numbers of points that were made, if any.
    """
    live_runs_index.add(sweep.path)
    packing = sweep.packing()
    assert packing is not None, "the sweep is packed"
    Claims.create(sweep.path)
    first = _readable(sweep, points or range(max(len(sweep.manifest().points), 1)))  # pilots are made from any point
    point, config = first.plan(), first.record()["config"]
    jobs: dict[int, SubmittedRun] = {}
    living, wanted, limit, live = 0, packing.pilots, "", JobMonitor()
    if not chooses_more(sweep):
        left = sum(not each.over for each in point_statuses(sweep))
        wanted = min(wanted, math.ceil(left / dataclasses.replace(packing, pilots=1).at_once))
    for number in count():
        if living == wanted:
            break
        run = sweep.pilot(number)
        if run.recorded() and read_history(run).job_id is not None:
            state = _pilot_state(sweep, number, live)
            living += not state.over and not is_leaving(run)
            if state is RunState.DONE or not state.over:
                continue
        try:
            plan = prepare.plan_of(point, sweep, packing, number)
            jobs[number] = _submit_pilot(sweep, plan, number, config, by_hand=by_hand)
        except SubmissionRefused as error:
            if not (jobs or living):
                raise
            limit = str(error)
            break
        living += 1
    submitted = SubmittedPilots(jobs, wanted - living, limit, wanted if wanted < packing.pilots else None)
    commands = tuple(each.command for each in jobs.values() if each.command)
    return SubmittedSweep(sweep, (), (), () if point.queued else tuple(points), pilots=submitted, commands=commands)


def _submit_pilot(
    sweep: Sweep, plan: JobPlan, number: int, config: Mapping[str, Any], *, by_hand: bool
) -> SubmittedRun:
    # Submits a pilot, unless an interrupted submission has left a job of it
    run = sweep.pilot(number)
    token = _next_token(run, plan)
    resumed, new, changed = submission.tried(run, token), not run.recorded(), False
    if new:
        Run.create(run.path)
    elif submission.different_keys(plan, run.plan()):
        changed = not (resumed and plan.queued and queries(plan).find(token, plan.name))  # the record is that job's
    if changed:
        run.clear_for_resume()
    if new or changed:
        facts = facts_of_here(plan.submitted_in)
        run.write_record(plan, config, {**facts, "token": token_of(plan.run_dir), "overrides": []})
    run.clear_marks()
    run.link(default_runs_dir(), latest=False)
    with only_submitter(run.path):
        try:
            submitted = submission.start(run, plan, token, resumed=resumed, by_hand=by_hand)
        except SubmissionRefused:
            if new:
                submission.remove(run)
            raise
    run.link(default_runs_dir())
    return submitted


def _pilot_state(sweep: Sweep, number: int, live: JobMonitor) -> RunState:
    # If all slot managers of a running pilot have stopped claiming points, it waits up to ENDS seconds for the job's
    # end, because such a pilot would not run points that are freed now.
    folder, run, give_up = Claims(sweep.path, 0), sweep.pilot(number), time.monotonic() + ENDS
    while True:
        seen = status_of(run, live)
        if seen.state is not RunState.RUNNING or time.monotonic() >= give_up:
            return seen.state
        mine = [each for each in folder.managers() if (each.pilot, each.attempt) == (number, seen.history.attempt)]
        found = [events for each in mine if (events := event_files.first_and_last(folder.journal(each)))]
        if not found or any(events[-1]["event"] not in LEAVING for events in found):
            return seen.state
        time.sleep(0.2)


def is_leaving(run: Run) -> bool:
    """Returns whether a pilot was asked to stop or cancelled, so that it claims no more points."""
    return run.has("stop") or run.has("cancelled")


def start_again(sweep: Sweep, points: Sequence[int]) -> None:
    """Frees points that are over, so that pilots run them again; in a cancelled sweep, other points stay cancelled.

    Those that a slot manager holds are not freed: another one takes them over if it is dead.
    """
    folder = Claims(sweep.path, 0)
    logs = folder.logs()
    if sweep.cancelled():  # the caller removes this mark, so points that it alone cancelled need an entry now
        for point in set(range(len(sweep.manifest().points))) - set(points) - logs.keys():
            folder.add(point, 0, EntryKind.CANCELLED, None)
    for point in points:
        clear_marks_of_point(sweep.run(point))
        log = logs.get(point, PointLog())
        if log.begun and log.state is not State.HELD:
            folder.add(point, log.next, EntryKind.AGAIN, None)


def clear_marks_of_point(run: Run) -> None:
    """Removes a point's marks `stop` and `cancelled`; keeps its lease, because the point may be running."""
    run.unmark("stop", "cancelled")


def throttle_pilots(
    sweep: Sweep, most: int, secrets: Callable[[Run], Mapping[str, str]] = lambda _: {}
) -> tuple[SubmittedPilots, list[str]]:
    """Sets the number of pilots to `most`; returns those submitted, and ids of those that stop, or are cancelled.

    If a surplus pilot runs, its points continue in other pilots. Raises SubmissionError, QueryError.
    """
    with only_submitter(sweep.path):
        manifest, monitor = sweep.manifest(), JobMonitor()
        assert manifest.packing is not None, "the sweep is packed"
        living = [each for each in live_pilots(sweep, monitor) if not is_leaving(each.run)]
        surplus = sorted(living, key=lambda seen: seen.state is RunState.QUEUED)[most:]  # those that run are kept
        sweep.write(dataclasses.replace(manifest, packing=dataclasses.replace(manifest.packing, pilots=most)))
        for seen in surplus:
            if seen.state is RunState.QUEUED:
                monitor.cancel(seen.run)
            else:
                seen.run.mark("stop")
        if surplus:
            return SubmittedPilots({}), [seen.run.id for seen in surplus]
        points = range(max(len(manifest.points), 1))
        with secret.exported(_secrets_of([_readable(sweep, points)], secrets)):
            submitted = submit_pilots(sweep, ())
        assert submitted.pilots is not None
        return submitted.pilots, []

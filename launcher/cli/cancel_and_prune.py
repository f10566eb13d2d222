"""`cancel`: cancels runs, sweeps, and jobs whose run directory is gone. `prune`: lists and removes old runs and sweeps.

| the run or sweep | is removed |
|---|---|
| is live or waiting (of a sweep: one of its points) | no |
| has an unknown state: the scheduler or the file server does not respond | no |
| cannot be read, or has a point that cannot be read | no |
| is needed by an unfinished run, which waits for it (`after`) or names a file in it (`baseline`, ...) | no |
| may be needed by another run, since that cannot be read now | no |
| is being submitted now, or belongs to another user | no |
| was active after the given time, or at an unknown time | no |
| otherwise, if its state is one of the given ones | yes; a sweep only with all its points and pilots |

Files of a run outside of its directory (`checkpoint.dir`, the code of a repository, data) are not removed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher.cli.help import PRUNABLE
from launcher.errors import FAILED, ConfigError, LauncherError, RunError, UnavailableError, explain
from launcher.failures.messages import first_of
from launcher.files.folder_checks import is_own, require_own
from launcher.files.retried_reads import exists, list_names, unwrap
from launcher.formatting import plural, rough_size
from launcher.monitoring import run_status
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunStatus, each_status, or_damaged, status_of
from launcher.monitoring.sweep_status import DAMAGED, LIVE, WAITING, counts, point_statuses
from launcher.paths import SENDING, default_runs_dir
from launcher.plan.plan import JobPlan
from launcher.runs import live_runs_index, lookup
from launcher.runs.directory import TOKEN, Run, runs_dir_of, token_of
from launcher.runs.history import RunHistory, read_history
from launcher.runs.lease_and_locks import SUBMITTING, only_submitter, try_acquire
from launcher.runs.lookup import RECORDS, find_either
from launcher.runs.sweep_directory import Sweep, sweep_of
from launcher.schedulers import registry
from launcher.schedulers.base import JobOrigin, Queries, QueryError, SchedulerJob
from launcher.schedulers.job_cache import SharedSnapshot
from launcher.submission.dependencies import followers_of

PRUNE_LINE = "{:>5}  {:12}  {}"  # lines are printed while runs are removed, so the last column may have any width
BATCH = 256  # runs that are read at a time
User = tuple[str, tuple[str, ...]]  # an unfinished run's id, and the paths that it names
LEFT = 86_400.0  # seconds after which nobody sends a file any more: whoever did was killed
REMOVED = ".removed-"  # prefix that a directory gets before its files are deleted


@dataclass(frozen=True)
class PruneCandidate:
    path: Path
    states: frozenset[str]  # the run's state, or the states of the sweep's points; `damaged` and `unknown` are possible
    last_active: float | None  # time of the newest event, in seconds since the epoch; None: not known
    needed_by: tuple[str, ...] = ()  # ids of unfinished runs that wait for it, or use its files
    unread: tuple[str, ...] = ()  # ids of runs that cannot be read now, each of which may need any other
    error: str = ""  # why it cannot be read; empty: it can
    pilots: tuple[Path, ...] = ()  # directories of the pilots of a packed sweep, which are removed with it

    @property
    def id(self) -> str:
        return self.path.name


def reason_to_keep(old: PruneCandidate, before: float, states: Collection[str]) -> str | None:
    """Returns why a run or sweep is kept, by this module's table, or None; before: seconds since the epoch."""
    if old.error or DAMAGED in old.states or not old.states:
        return old.error or "it cannot be read"
    if found := sorted(old.states & {*LIVE, WAITING}):
        return f"it is {found[0]}"
    if old.needed_by:
        return f"{first_of(old.needed_by)} {'needs' if len(old.needed_by) == 1 else 'need'} it"
    if old.unread:
        return f"{first_of(old.unread)} cannot be read now, and may need it"
    if not old.states <= {*states}:
        return f"it is {sorted(old.states - {*states})[0]}"
    if old.last_active is None:
        return "its age is not known"
    return None if old.last_active < before else "it is younger"


def survey(runs_dir: Path, live: JobMonitor) -> list[PruneCandidate]:
    """Returns all runs and sweeps in a folder, links included, the longest inactive first.

    live: queries the schedulers; not one that shares replies of other commands, since a deletion depends on it.
    """
    runs, sweeps = lookup.all_runs(runs_dir), lookup.all_sweeps(runs_dir)
    found: list[PruneCandidate] = []
    damaged: list[DamagedRun] = []
    users: list[User] = []
    pilots: dict[Path, list[Path]] = {}  # by sweep; without one of them the sweep would begin again at its number
    for each in in_batches(runs, live):
        if isinstance(each, DamagedRun):
            damaged.append(each)
            continue
        users += [] if each.state.over else [(each.run.id, named_by(each.plan))]
        if each.plan.independent and (sweep := Sweep(Path(each.plan.workload.params["kwargs"]["sweep"]))).recorded():
            pilots.setdefault(sweep.path, []).append(each.run.path)
            continue
        old = or_damaged(each.run, partial(_of_run, each))
        (found if isinstance(old, PruneCandidate) else damaged).append(old)  # type: ignore[arg-type]
    for sweep in sweeps:
        made = or_damaged(Run(sweep.path), partial(_of_sweep, sweep, live))
        if isinstance(made, DamagedRun):
            damaged.append(made)
            continue
        found.append(replace(made[0], pilots=tuple(pilots.get(sweep.path, ()))))
        users += made[1]
    found += [PruneCandidate(each.run.path, frozenset(), None, error=each.message) for each in damaged]
    unread = tuple(each.run.id for each in damaged if each.is_transient)
    paths = {each.path for each in found}
    needed = needs(users, paths)
    waiting = [[] if old.error else _waiting_for(old.path, live, paths) for old in found]
    found = [
        replace(old, needed_by=(*needed.get(old.path, ()), *more), unread=unread)
        for old, more in zip(found, waiting, strict=True)
    ]
    return sorted(found, key=lambda each: each.last_active or 0.0)


def in_batches(runs: Sequence[Run], live: JobMonitor) -> Iterator[RunStatus | DamagedRun]:
    """Yields the state of each run; not all plans and histories fit into memory at once."""
    with live.pinned():
        for first in range(0, len(runs), BATCH):
            yield from each_status(runs[first : first + BATCH], live)


def _waiting_for(folder: Path, live: JobMonitor, skip: Set[Path] = frozenset()) -> list[str]:
    # A run in an unknown state counts as unfinished
    found: list[str] = []
    sweep = Sweep(folder)
    homes = [folder, *(point.run.path for point in sweep.points())] if sweep.recorded() else [folder]
    for _, path in [each for home in homes for each in followers_of(home)]:
        if skip.isdisjoint({path, path.parent}):
            users = or_damaged(Run(path), lambda path=path: _not_over(path, live))  # type: ignore[misc]
            if isinstance(users, DamagedRun):
                found += [path.name] if users.is_transient else []
            else:
                found += needs(users, [folder]).get(folder, [])
    return found


def _not_over(path: Path, live: JobMonitor) -> list[User]:
    if Sweep(path).recorded():
        return _of_sweep(Sweep(path), live)[1]
    if not Run(path).recorded():
        return []
    seen = status_of(Run(path), live)
    return [] if seen.state.over else [(seen.run.id, named_by(seen.plan))]


def named_by(plan: JobPlan) -> tuple[str, ...]:
    """Returns the paths in a plan: in `after`, in the workload, of its checkpoints and of its code."""
    named = [each.partition(":")[2] for each in plan.after]
    named += [value for value in plan.workload.params.values() if isinstance(value, str) and value.startswith("/")]
    return (*named, plan.checkpoint.dir, plan.workdir, *filter(None, [plan.code.snapshot]))


def needs(users: Iterable[User], folders: Collection[Path]) -> dict[Path, list[str]]:
    """Returns the folders that these runs name, each with the ids of those runs."""
    known_paths = {os.path.realpath(path): path for path in folders}
    found: dict[Path, dict[str, None]] = {}
    for name, named in users:
        for text in named:
            path = Path(os.path.realpath(text))
            for folder in (path, *path.parents):
                owner = known_paths.get(str(folder))
                if owner is not None and owner.name != name.partition("/")[0]:
                    found.setdefault(owner, {})[name] = None
    return {folder: list(names) for folder, names in found.items()}


def _of_run(seen: RunStatus) -> PruneCandidate:
    return PruneCandidate(seen.run.path, frozenset({seen.state.value}), _last_active(seen.run, seen.history) or None)


def _last_active(run: Run, history: RunHistory) -> float:
    # A heartbeat counts: the scheduler that is asked here may not be the one of the job
    age = run.lease_age()
    return history.moved if age is None else max(history.moved, time.time() - age)


def _of_sweep(sweep: Sweep, live: JobMonitor) -> tuple[PruneCandidate, list[User]]:
    seen = point_statuses(sweep, live)
    active = [_last_active(each.point.run, read_history(each.point.run)) for each in seen if each.point.run.recorded()]
    unfinished = [each.point.run for each in seen if not each.over and each.point.run.recorded()]
    old = PruneCandidate(sweep.path, frozenset(counts(seen)), max(active, default=0.0) or None)
    return old, [(run.id, named_by(run.plan())) for run in unfinished]


def size_of(*folders: Path) -> int:
    total = 0
    for root, _, files in itertools.chain.from_iterable(map(os.walk, folders)):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


def remove(old: PruneCandidate, runs_dir: Path, before: float, states: Collection[str], live: JobMonitor) -> str | None:
    """Checks what `survey` found once more, with its submission lock, and removes it and a link to it in runs_dir.

    Returns why it was kept; None: it was removed. Raises OSError: it is gone, but not all of its files; `finish` tries
    again. before, states: see `reason_to_keep`.
    """
    path = old.path
    try:
        require_own(path, "remove it")
    except RunError as error:
        return str(error)
    with contextlib.ExitStack() as stack:
        # With an exhausted quota no file can be made; a sweep that nobody runs here needs none
        for name in (SUBMITTING, ".points") if unwrap(exists(path / ".points")) else (SUBMITTING,):
            if not stack.enter_context(try_acquire(path / name)):
                return "it is being submitted"
        if why := reason_to_keep(_refreshed(old, live), before, states):
            return why
        aside = [(each, each.with_name(f"{REMOVED}{each.name}")) for each in (path, *old.pilots)]
        for each, hidden in aside:
            each.rename(hidden)
    for each, _ in aside:
        for folder in {runs_dir, each.parent}:
            live_runs_index.remove(folder, each.name, done=True)
            for link in (folder / each.name, folder / "latest"):
                if link.is_symlink() and not link.exists():
                    link.unlink(missing_ok=True)
    for _, hidden in aside:
        _delete(hidden)
    return None


def finish(runs_dir: Path) -> tuple[int, dict[str, OSError]]:
    """Completes interrupted removals in a folder of runs, and removes files whose sender was killed.

    Returns the bytes freed, and why some are left, by id.
    """
    freed, failed = 0, {}
    for name in unwrap(list_names(runs_dir)) or ():
        hidden = runs_dir / name
        if (name.startswith(REMOVED) or (name.startswith(SENDING) and _is_left(hidden))) and is_own(hidden):
            size = size_of(hidden)
            try:
                _delete(hidden)
            except OSError as error:
                failed[name.removeprefix(REMOVED)] = error
            freed += size - size_of(hidden)
    return freed, failed


def _is_left(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - folder.lstat().st_mtime > LEFT
    return False


def _delete(folder: Path) -> None:
    # Raises OSError, when all that can be is deleted: NFS keeps a file that a process has open
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _refreshed(old: PruneCandidate, live: JobMonitor) -> PruneCandidate:
    # `needed_by` keeps its ids, and gains those of runs that wait for it now
    path = old.path
    try:
        now = _of_sweep(Sweep(path), live)[0] if Sweep(path).recorded() else _of_run(status_of(Run(path), live))
        needed_by = tuple(dict.fromkeys([*old.needed_by, *_waiting_for(path, live)]))
        return replace(now, pilots=old.pilots, needed_by=needed_by, unread=old.unread)
    except run_status.DAMAGE as error:
        return PruneCandidate(path, frozenset(), None, error=str(error))


def prune(arguments: Namespace) -> int:
    if arguments.older_than is None:
        raise ConfigError("say how old: `prune --older-than 30d` lists what would be removed")
    if arguments.cluster is not None and arguments.runs_dir is not None:
        raise ConfigError("--cluster and --runs-dir cannot be combined: --cluster is about the runs on that cluster")
    if arguments.cluster is not None:  # it is unknown: for one that is known, `ssh_forward` has run this command there
        from launcher.remote.clusters import named

        named(arguments.cluster)
    folder: Path = arguments.runs_dir or default_runs_dir()
    before, states = arguments.older_than, tuple(arguments.state or PRUNABLE)
    freed, failed = finish(folder) if arguments.delete else (0, {})
    count, live = 0, JobMonitor()
    found = survey(folder, live)
    for old in found:
        why = reason_to_keep(old, before, states)
        size = size_of(old.path, *old.pilots) if why is None else 0
        if tried := why is None and arguments.delete:
            try:
                why = remove(old, folder, before, states, live)
            except OSError as error:
                failed[old.id] = error
                continue
        if why is None:
            if not count:
                print(PRUNE_LINE.format("SIZE", "STATE", "RUN"))
            freed, count = freed + size, count + 1
            print(PRUNE_LINE.format(rough_size(size), ", ".join(sorted(old.states)), old.id), flush=True)
        elif tried or old.error or old.needed_by:
            print(f"{old.id} is kept: {why}", flush=True)
    if unread := next((old.unread for old in found), ()):
        print(f"no run is removed: {first_of(unread)} cannot be read now, and may need any other")
    for name, problem in failed.items():
        print(f"{name} is not removed whole: {problem}")
    total = f"{plural(count, 'run')}, {rough_size(freed)}"
    if arguments.delete:
        print(f"removed: {total}")
    else:
        print(f"{total}; --delete removes them, checkpoints included" if count else "nothing to remove")
    return FAILED if failed else 0


# -- Orphaned jobs: queued or running although somebody has deleted their run directory. The token and the script of a
# job that belongs to no known run tell it from one whose run is in another folder


MOST_ORIGINS = 20  # jobs of one scheduler whose origin is queried at a time
_JOB = re.compile(r"(\d+)(?:_\d+|\[\d*\])?(?:\.\S*)?")  # 17, 17_3, 17.server, 17[].server, 17[3].server


@dataclass(frozen=True)
class Orphan:
    """A job, or an array, whose run directory is gone."""

    scheduler: str  # the scheduler's name
    job: str  # the job's id
    raw_state: str  # the job's state, as the scheduler prints it; empty: not known
    folder: Path  # path that the run or sweep directory had


def schedulers(others: Iterable[str] = ()) -> dict[str, Queries]:
    """Returns the schedulers whose commands are here, by name: ours, and these of other packages."""
    return {name: each.queries(run_status.QUERY_TIMEOUT) for name, each in registry.queues_here(others).items()}


def family(job_id: str) -> str:
    """Returns a job's number without array index and server: `17` for 17_3 and 17[3].server."""
    match = _JOB.fullmatch(job_id)
    return match[1] if match else job_id


def unaccounted(jobs: Mapping[str, SchedulerJob], accounted: Collection[str]) -> dict[str, SchedulerJob]:
    """Returns the queue's live jobs outside of `accounted`, by job number; one of each array.

    Jobs whose comment is not a token of the launcher are left out, so that the user's other jobs cost no query.
    """
    ours = {family(each) for each in accounted}
    found: dict[str, SchedulerJob] = {}
    for job_id, job in jobs.items():
        may_be_ours = job.comment is None or job.comment.startswith(TOKEN)
        if job.state.live and may_be_ours and family(job_id) not in ours:
            found.setdefault(family(job_id), job)
    return found


def folder_of(origin: JobOrigin) -> Path | None:
    """Returns the directory of the run or sweep of a job (script: RUN/script.sh or SWEEP/arrays/TOKEN.sh), if any."""
    folder = Path(origin.file).parent
    folder = folder.parent if folder.name == "arrays" else folder
    # The job of a single point may have its sweep's token.
    ours = (token_of(str(each)) for each in (folder, folder.parent))
    return folder if any(f"{origin.token}-".startswith(f"{each}-") for each in ours) else None


def _is_gone(folder: Path) -> bool:
    # Without its runs_dir: the file system may be one of another cluster
    return unwrap(exists(runs_dir_of(folder))) and not any(unwrap(exists(folder / name)) for name in RECORDS.values())


class Orphans:
    """Finds orphaned jobs, call after call. The origin of a job that is not an orphan is queried only once."""

    def __init__(self, live: JobMonitor) -> None:
        self._live = live
        self._others: set[tuple[str, str]] = set()  # (scheduler, job number) of jobs that are no orphans

    def look(self, accounted: Collection[str]) -> list[Orphan]:
        found: list[Orphan] = []
        for name, queries in schedulers(self._live.queried).items():
            snapshot = self._live.snapshot(name, queries, run_status.QUERY_TIMEOUT)
            jobs = {} if snapshot.problem else unaccounted(snapshot.jobs, accounted)
            jobs = {each: job for each, job in jobs.items() if (name, each) not in self._others}
            if not jobs:
                continue
            newest = sorted(jobs, key=lambda number: (len(number), number))[-MOST_ORIGINS:]
            try:
                origins = queries.origins(newest)
            except QueryError:  # the next call may succeed
                continue
            for each in newest:
                origin = origins.get(each)
                folder = None if origin is None else folder_of(origin)
                with contextlib.suppress(UnavailableError):  # the next call may know
                    if origin is not None and folder is not None and _is_gone(folder):
                        found.append(Orphan(name, origin.id, jobs[each].raw_state, folder))
                    else:
                        self._others.add((name, each))
        return found


def short_job(job_id: str) -> str:
    """Shortens a job id to 10 characters. PBS's server name and the prefix of local jobs are removed first."""
    return re.sub(r"\.[^_]*", "", job_id).removeprefix("local-launcher-")[:10]


def run_of_job(job_id: str, runs_dir: Path) -> Run | None:
    """Returns the run whose newest job this is, in full or as `status` shows it; only of runs that may be live."""
    live = live_runs_index.possibly_live(runs_dir)
    runs = (Run((runs_dir / name).resolve()) for name in (lookup.names(runs_dir) if live is None else sorted(live)))
    jobs = ((run, read_history(run).job_id or "") for run in runs if run.recorded())
    return next((run for run, job in jobs if job_id in (job, short_job(job)) and job), None)


def look_for(job_id: str) -> Orphan | Path | None:
    """Returns a job if it is an orphan, else the directory of its run or sweep, or None; raises QueryError."""
    number = family(job_id)
    if not number.isdecimal():
        return None
    problem: QueryError | None = None
    for name, queries in schedulers(registry.names()).items():
        try:
            origin = queries.origins([number]).get(number)
        except QueryError as error:
            problem = error
            continue
        if origin is not None and (folder := folder_of(origin)) is not None:
            return Orphan(name, origin.id, "", folder) if _is_gone(folder) else folder
    if problem is not None:
        raise problem
    return None


def cancel_orphan(orphan: Orphan) -> None:
    schedulers([orphan.scheduler])[orphan.scheduler].cancel(orphan.job)
    SharedSnapshot(orphan.scheduler).forget()


# -- `cancel`


def cancel(arguments: Namespace) -> int:
    names, live, code = dict.fromkeys(arguments.names), JobMonitor(), 0
    for name in names:
        try:
            _cancel(name, arguments.runs_dir, live)
        except (LauncherError, OSError) as error:
            if len(names) == 1:
                raise
            if isinstance(error, LauncherError):
                why = f"is not cancelled: {error}"
            else:  # its jobs are cancelled
                why = f"is not marked as cancelled: {explain(error) or error}"
            print(f"launcher: {name} {why}", file=sys.stderr, flush=True)
            code = FAILED
    return code


def _cancel(name: str, runs_dir: Path | None, live: JobMonitor) -> None:
    found = _find(name, runs_dir)
    if isinstance(found, Orphan):
        cancel_orphan(found)
        print(f"job {found.job}, whose run was in {found.folder}, is being cancelled", flush=True)
        return
    require_own(found.path, "cancel it")
    sweep = found if isinstance(found, Sweep) else sweep_of(found)
    if isinstance(found, Run) and (history := read_history(found)).job_id is not None and history.open:
        from launcher.submission.resume import recover

        with only_submitter((sweep or found).path):  # its last submission may have made a job, and recorded none
            recover(found, found.plan())
    if sweep is not None:
        from launcher.cli.sweep import cancel as cancel_points

        cancel_points(sweep, None if sweep is found else [int(found.path.name)])
        return
    assert not isinstance(found, Sweep)
    seen = status_of(found, live)
    if seen.state.over:
        print(f"{found.id} is over already: {seen.state.value}")
        return
    live.cancel(found)
    print(f"{found.id} is being cancelled", flush=True)
    from launcher.sweeps.control import release_followers

    release_followers([found.path], [seen])


def _find(name: str, runs_dir: Path | None) -> Run | Sweep | Orphan:
    try:
        return find_either(name, runs_dir)
    except RunError as error:
        if (run := run_of_job(name, runs_dir or default_runs_dir())) is not None:
            return run
        try:
            found = look_for(name)
        except QueryError as problem:
            raise RunError(f"{error}. Whether there is a job {name} is not known: {problem}") from None
        if found is None:
            raise
    if isinstance(found, Orphan):
        return found
    if Sweep(found).recorded():
        raise RunError(f"job {name} belongs to sweep {found.name}: name the sweep, or a point ({found.name}/0)")
    return Run(found)

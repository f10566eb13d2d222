"""The rows of `status`, of this machine and of clusters behind ssh, and the table that they make."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from launcher.cli.cleanup import Orphan, Orphans, short_job
from launcher.cli.progress import progress_of, saved_before
from launcher.cli.text import WIDTH, ending, program, table
from launcher.errors import ConfigError
from launcher.files.shared_files import is_transient
from launcher.formatting import brief, one_line
from launcher.monitoring.run_status import DAMAGE, DamagedRun, JobMonitor, RunState, RunStatus, each_status, or_damaged
from launcher.monitoring.sweep import DAMAGED, LIVE, WAITING, counts, done, not_begun, point_statuses
from launcher.remote import clusters
from launcher.remote.clusters import RemoteCluster, Unreachable
from launcher.remote.command import call
from launcher.runs import live_index, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.events import Resized, Restored, Saved
from launcher.runs.lookup import find_either, may_have, newest
from launcher.runs.sweep_directory import Sweep

Row = Mapping[str, Any]


def runs_table(rows: Sequence[Row], width: int = WIDTH) -> list[str]:
    """Returns the lines of `status --json`'s rows as a table, without columns that are empty or do not fit `width`."""
    columns = {head: [one_line(cell(row)) for row in rows] for head, cell in COLUMNS.items()}
    if not any(row.get("remote") for row in rows):
        del columns["CLUSTER"]
    shown = {head: cells for head, cells in columns.items() if head in ALWAYS or any(each != "-" for each in cells)}
    widths = {head: max(map(len, [head, *cells])) for head, cells in shown.items()}
    room = width + 2 - sum(widths[head] + 2 for head in ALWAYS)
    for head in [each for each in OTHERS if each in widths]:
        if widths[head] + 2 <= room:
            room -= widths[head] + 2
        else:
            del widths[head]
    lines = [list(widths), *([shown[head][number] for head in widths] for number in range(len(rows)))]
    return [line for (line,) in table(lines)]


def state(row: Row) -> str:
    """Formats the state, with brackets for its last known one (`unknown (running)`), or at a breakpoint."""
    before = row.get("before")
    more = before.partition(" ")[0].lower() if before else "breakpoint" if row.get("breakpoints") else ""
    return f"{row['state']} ({more})" if more else str(row["state"])


def _why(row: Row) -> str:
    if not row.get("kind"):
        return "-"
    return f"after {row['kind']}" if row["state"] == "queued" else str(row["kind"])


def _step(row: Row) -> str:
    if row["step"] is None:
        return "-"
    return f"{row['step']}" + ("" if row["percent"] is None else f" {row['percent']}%")


def _saved(row: Row) -> str:
    return "-" if row["checkpoint"] is None else f"{row['checkpoint']} {brief(row['checkpoint_age'])}"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "RUN": lambda row: str(row["run"]),
    "STATE": state,
    "CLUSTER": lambda row: str(row["cluster"] or "-"),
    "WHY": _why,
    "JOB": lambda row: short_job(row["job"] or "-"),
    "NODES": lambda row: f"{row['nodes'] or '-'}" + (f"+{row['spares']}" if row["spares"] else ""),
    "ATTEMPT": lambda row: str(row["attempt"] or "-"),
    "STEP": _step,
    "TIME": lambda row: brief(row["elapsed"]),
    "TIME LEFT": lambda row: brief(row["left"]),
    "ETA": lambda row: brief(row["needs"]),
    "CHECKPOINT": _saved,
}
ALWAYS = ("RUN", "STATE")
OTHERS = (  # the most useful first
    "CLUSTER", "STEP", "TIME LEFT", "TIME", "WHY", "CHECKPOINT", "ATTEMPT", "NODES", "ETA", "JOB",
)  # fmt: skip


# -- Selects the runs and sweeps that `status` shows, and computes a row of plain values for each


RECENT = 20  # runs that are over and are shown without --all
KEYS = (
    "run", "state", "job", "cluster", "nodes", "spares", "ranks", "attempt", "step", "steps", "percent", "rate",
    "needs", "elapsed", "left", "breakpoints", "checkpoint", "checkpoint_age", "restored", "reason", "cause", "kind",
    "code", "stop", "stays", "unanswered", "answer_age", "before", "updated", "directory",
)  # fmt: skip
CODES = ("kind", "code", "stop", "stays")  # columns with the codes of the cause, for programs
WITHOUT_CAUSE = ("done", "unconfirmed", "unsubmitted", "queued", "running", "suspended")  # states
UNREADABLE = "unreadable"
ORPHANED = "orphaned"  # a job without a run
FAILED = frozenset({RunState.FAILED.value, RunState.LOST.value, DAMAGED, UNREADABLE})
INTERNAL = ("over", "settled", "unread", "remote")  # keys of a row that --json leaves out


@dataclass(frozen=True)
class View:
    rows: list[dict[str, Any]]  # the row of each run, sweep and orphaned job
    seen: list[RunStatus]  # the statuses of the runs that could be read, in the order of their rows
    older: int  # number of older runs that are not shown
    silent: Mapping[str, str] = field(default_factory=dict)  # by cluster behind ssh that did not answer: a line

    @property
    def over(self) -> bool:
        return not self.silent and all(row["over"] for row in self.rows)

    @property
    def unanswered(self) -> dict[str, RunStatus]:
        """The schedulers that did not respond. Each has the status of one of its runs, which contains the error."""
        return {each.unanswered: each for each in self.seen if each.unanswered}


@dataclass(frozen=True)
class StatusFilter:
    failed: bool = False  # only runs that failed, are lost or cannot be read, and sweeps with such a point
    since: float | None = None  # only runs that were active after this time, in seconds since the epoch; None: all

    @property
    def filters(self) -> bool:
        return self.failed or self.since is not None

    def fits(self, row: Mapping[str, Any]) -> bool:
        states = {row["state"], *(row.get("points") or ())}
        if self.failed and not states & FAILED:
            return False
        return self.since is None or row["updated"] is None or row["updated"] >= self.since


class Rows:
    """Reads the states of runs and sweeps repeatedly.

    names: of the runs and sweeps to show; empty: those of `folder`: everything, or the live ones and the newest others.
    apart: whether the runs of all clusters behind ssh are shown, too.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, everything: bool, wanted: StatusFilter | None = None,
        apart: bool = False,
    ) -> None:  # fmt: skip
        self.filter = wanted or StatusFilter()
        everything = everything or self.filter.filters
        self._folder, self._everything, self._named = folder, everything, bool(names)
        self.wanted = [find_either(name, folder) for name in names]
        self._live = JobMonitor(share=True)
        self._orphans = Orphans(self._live)
        self._done: set[str] = set()
        self._remote = RemoteRows(self._options()) if apart else None

    def look(self) -> View:
        """Reads the runs and sweeps again, with one query to each scheduler, and returns them."""
        if self._remote is not None:
            self._remote.ask()
        wanted, all_of_them = (list(self.wanted), len(self.wanted)) if self._named else self._listed()
        runs = [each for each in wanted if not isinstance(each, Sweep)]
        looked = {each.run.path: each for each in each_status(runs, self._live)}
        rows = {each.path: self._sweep_row(each) for each in wanted if isinstance(each, Sweep)}
        for path, seen_run in looked.items():
            row = seen_run if isinstance(seen_run, DamagedRun) else or_damaged(seen_run.run, partial(_row_of, seen_run))
            rows[path] = _unreadable(row) if isinstance(row, DamagedRun) else row
        self._settle(rows)
        if not self._named:
            over = [each for each in wanted if rows[each.path]["over"]]
            shown = over if self._everything else over[:RECENT]
            wanted = [each for each in wanted if not rows[each.path]["over"]] + shown
            left_out = [each for each in wanted if not self.filter.fits(rows[each.path])]
            wanted, all_of_them = [each for each in wanted if each not in left_out], all_of_them - len(left_out)
        found = [looked.get(each.path) for each in wanted]
        seen = [each for each in found if isinstance(each, RunStatus)]
        orphans = [] if self._named else self._orphans.look(_jobs(looked.values(), wanted))
        shown_rows = [*map(_orphaned, orphans), *(rows[each.path] for each in wanted)]
        answers = [] if self._remote is None else self._remote.answers()
        shown_rows += [{**dict.fromkeys(KEYS), **row} for each in answers for row in each.rows if self.filter.fits(row)]
        silent = {each.cluster.name: each.text for each in answers if each.problem}
        return View(shown_rows, seen, all_of_them - len(wanted), silent)

    def _options(self) -> list[str]:
        # The options of `status` on another cluster, whose clock and time zone may differ
        since = self.filter.since
        age = [] if since is None else [f"--since={max(1, math.ceil((time.time() - since) / 60))}m"]
        everything = ["--all"] if self._everything and not self.filter.filters else []
        return [*everything, *(["--failed"] if self.filter.failed else []), *age]

    def _listed(self) -> tuple[list[Run | Sweep], int]:
        # With an index of live runs: those in it, and the newest others; without: those that are not done by their own
        # records, and the newest others. Returns the number of all, too
        paths = newest(self._folder)
        noted = live_index.possibly_live(self._folder)
        wanted: list[Run | Sweep] = []
        recent = others = 0
        self._done = {_name(path) for path in paths if noted is None and _done(path)}
        for path in paths:
            may_live = _name(path) not in self._done if noted is None else _name(path) in noted
            if may_live or recent < RECENT or self._everything:
                found = _at(path)
                wanted += [] if found is None else [found]
                recent += found is not None and not may_live
                others += found is None  # another folder, such as MLflow's
        known = set(map(_name, paths))
        for name in noted - known if noted else ():
            live_index.remove(self._folder, name)
        return wanted, len(paths) - others

    def _settle(self, rows: Mapping[Path, Mapping[str, Any]]) -> None:
        noted = live_index.possibly_live(self._folder)
        base = self._folder.resolve()
        ours = {path.name: row for path, row in rows.items() if path.parent == base or (base / path.name).is_symlink()}
        if noted is None and not self._named:
            live_index.rebuild(self._folder, [name for name, row in ours.items() if not row["over"]], self._done)
            return
        for name, row in ours.items():
            if not row["over"] and noted is not None and name not in noted:
                live_index.add_to(self._folder, name)
            elif row["over"] and noted and name in noted and row["settled"]:
                live_index.remove(self._folder, name, done=row["state"] == RunState.DONE.value)

    def _sweep_row(self, sweep: Sweep) -> dict[str, Any]:
        noted = live_index.possibly_live(self._folder)
        here = (self._folder / sweep.id).resolve() == sweep.path
        settled = here and noted is not None and sweep.id not in noted
        try:
            number = live_index.read_counts(self._folder, sweep.id) if settled else None
            if number is None:
                number = counts(point_statuses(sweep, self._live))
                if settled and not _unfinished(number):
                    live_index.write_counts(self._folder, sweep.id, number)
        except DAMAGE as error:
            return _unreadable(DamagedRun(Run(sweep.path), str(error), is_transient(error)))
        # The time is read only if it is needed, since that takes a look at every point.
        return _row_of_sweep(sweep, number) | {
            "updated": _last_active(sweep) if self.filter.since is not None else None
        }


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _done(path: str) -> bool:
    # No scheduler is queried
    return or_damaged(Run(Path(path)), lambda: done(Run(Path(path)))) is True


def _at(path: str) -> Run | Sweep | None:
    if may_have(path, "record.json"):
        return Run(Path(path))
    return Sweep(Path(path)) if may_have(path, sweep_directory.RECORD) else None


def _row_of(seen: RunStatus) -> dict[str, Any]:
    now = time.time()
    before = None
    if seen.history.attempt is not None and seen.state is not RunState.DONE and seen.history.last(Saved) is None:
        before = saved_before(seen.plan.checkpoint.dir)
    progress = progress_of(seen, now, before)
    again = seen.state is RunState.QUEUED and seen.history.attempt is not None
    without = seen.state.value in WITHOUT_CAUSE and not again
    why, codes = (None, dict.fromkeys(CODES)) if without else ending(seen)
    nodes, spares, ranks = _size(seen)
    restored = seen.history.last(Restored)
    waits = [
        {"rank": each.rank, "host": each.host, "where": each.where, "seconds": max(0, int(now - each.time))}
        for each in progress.breakpoints
    ]
    return {
        **dict.fromkeys(KEYS), **vars(progress), **codes,
        "run": seen.run.id, "state": _state(seen), "job": seen.history.job_id, "cluster": seen.plan.cluster.name,
        "nodes": nodes, "spares": spares, "ranks": ranks, "attempt": seen.history.attempt, "breakpoints": waits,
        "restored": restored and {"step": restored.step, "memory": restored.memory, "redone": restored.redone},
        "reason": seen.job.text or None,
        "cause": why,
        "unanswered": seen.unanswered or None,
        "answer_age": round(seen.age, 1) if seen.unanswered and seen.age is not None else None,
        "before": seen.before or None,
        "updated": seen.history.moved or None,
        "directory": str(seen.run.path),
        "over": seen.state.over,
        "settled": seen.state is RunState.DONE or now - seen.history.moved > live_index.SETTLED,
    }  # fmt: skip


def _size(seen: RunStatus) -> tuple[int, int, int]:
    # Nodes that work, spare nodes, ranks. For a queued run they are the numbers that were requested
    resized, plan = seen.history.last(Resized), seen.plan
    if resized is None or seen.state is RunState.QUEUED:
        return plan.nodes - plan.spares, plan.spares, plan.world_size
    return -(-resized.members // plan.tasks_per_node), resized.spares, resized.world_size


def _row_of_sweep(sweep: Sweep, number: Mapping[str, int]) -> dict[str, Any]:
    also = [state for state in ("failed", "pruned") if state in number]
    others = "".join(f", {number[state]} {state}" for state in also)
    return {
        **dict.fromkeys(KEYS), "run": sweep.id, "points": dict(number), "directory": str(sweep.path),
        "state": f"{number.get('done', 0)}/{sum(number.values())} done{others}", "over": not _unfinished(number),
        "settled": True,
    }  # fmt: skip


def _last_active(sweep: Sweep) -> float | None:
    # When a file of a sweep's points last changed, in seconds since the epoch; None: there are no files
    newest: float | None = None
    for pattern in ("journal.jsonl", "*/journal.jsonl", "*/attempts/*/events/*.jsonl"):
        for path in sweep.path.glob(pattern):
            with contextlib.suppress(OSError):
                newest = max(newest or 0.0, path.stat().st_mtime)
    return newest


def _unfinished(number: Mapping[str, int]) -> bool:
    return any(state == WAITING or state in LIVE for state in number)


def _unreadable(each: DamagedRun) -> dict[str, Any]:
    # A damaged run is `unreadable`, and counts as over. A run that may be readable later is `unknown`, and does not.
    return {
        **dict.fromkeys(KEYS), "run": each.run.id,
        "state": RunState.UNKNOWN.value if each.is_transient else UNREADABLE,
        "cause": each.message, "directory": str(each.run.path), "over": not each.is_transient, "settled": False,
        "unread": True,
    }  # fmt: skip


def _orphaned(orphan: Orphan) -> dict[str, Any]:
    job = f"job {orphan.job} is still {orphan.raw_state} on {orphan.scheduler}"
    return {
        **dict.fromkeys(KEYS), "run": orphan.folder.name, "state": ORPHANED, "job": orphan.job,
        "cluster": orphan.scheduler, "reason": orphan.raw_state, "directory": str(orphan.folder),
        "cause": f"{orphan.folder} is gone, and {job}: `{program()} cancel {orphan.job}` ends it",
        "over": False, "settled": False,
    }  # fmt: skip


def _jobs(looked: Iterable[RunStatus | DamagedRun], wanted: Iterable[Run | Sweep]) -> set[str]:
    found: set[str] = set()
    for each in looked:
        if isinstance(each, RunStatus):
            found.update(filter(None, (each.history.job_id, *each.history.waiting)))
    for sweep in wanted:
        if isinstance(sweep, Sweep):
            with contextlib.suppress(*DAMAGE):
                found.update(each.job for each in sweep.submissions() if each.job)
    return found


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in INTERNAL}


def _state(seen: RunStatus) -> str:
    if seen.state.value == "unconfirmed" and seen.run.is_point and (state := not_begun(seen.run)):
        return state
    if seen.history.cancelled and not seen.state.over:
        return "cancelling"
    return seen.state.value


# -- Clusters behind ssh: all are asked at once; one that does not answer is shown as it was seen last


BETWEEN = 15.0  # seconds between two questions to a cluster of `status --watch`

# Fields of a row that are computed with.
NUMBERS = (
    "nodes", "spares", "attempt", "step", "steps", "percent", "needs", "elapsed", "left", "checkpoint",
    "checkpoint_age", "updated",
)  # fmt: skip
TEXTS = ("job", "kind", "before", "cause")
WAIT = {"rank", "host", "where", "seconds"}  # of an entry of `breakpoints`


@dataclass(frozen=True)
class Answer:
    cluster: RemoteCluster
    rows: tuple[dict[str, Any], ...]
    problem: str = ""  # why it has not answered; then the rows are what was seen last
    seen: float | None = None  # when that was, in seconds since the epoch; None: never

    @property
    def text(self) -> str:
        when = "nothing is known of its runs"
        if self.seen is not None:
            when = f"its runs are as of {brief(time.time() - self.seen)} ago"
        return f"This is incomplete: {self.problem}; {when}."


class RemoteRows:
    """The rows of all clusters behind ssh, asked at the same time, each at most every BETWEEN seconds."""

    def __init__(self, options: Sequence[str]) -> None:
        # Several profiles may lead to one launcher, which has the same runs for all.
        self._clusters = list({each.place: each for each in clusters.remote_clusters().values()}.values())
        self._words = ["status", "--json", *options]
        self._asked: list[concurrent.futures.Future[Answer]] = []
        self._when = float("-inf")

    def ask(self) -> None:
        if self._clusters and time.monotonic() - self._when > BETWEEN:
            self._when = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(len(self._clusters)) as pool:
                self._asked = [pool.submit(self._answer, each) for each in self._clusters]
                pool.shutdown(wait=False)

    def answers(self) -> list[Answer]:
        return [each.result() for each in self._asked]

    def _answer(self, cluster: RemoteCluster) -> Answer:
        errors, text = list[str](), list[bytes]()
        try:
            if call(cluster, self._words, timeout=cluster.timeout, show=text.append, errors=errors.append):
                raise Unreachable(f"{cluster.name}: {' '.join(''.join(errors).split())}")
            rows = list(filter(_sound, json.loads(b"".join(text))))
        except (Unreachable, ConfigError, OSError, ValueError, TypeError, KeyError) as error:
            seen = clusters.last_seen(cluster)
            old = tuple(_as_seen_last(row, cluster) for row in seen.rows)
            return Answer(cluster, old, str(error), seen.time or None)
        clusters.save_seen(cluster, rows)
        return Answer(cluster, tuple(_of_cluster(row, cluster) for row in rows))


def _sound(row: Any) -> bool:
    # What is computed with a row must not fail because of what another machine has sent
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("run", "state")):
        return False
    points, waits = row.get("points") or {}, row.get("breakpoints") or []
    return (
        all(isinstance(row.get(key), int | float | None) for key in NUMBERS)
        and all(isinstance(row.get(key), str | None) for key in TEXTS)
        and isinstance(points, dict) and all(isinstance(each, int) for each in points.values())
        and isinstance(waits, list) and all(isinstance(each, dict) and each.keys() >= WAIT for each in waits)
    )  # fmt: skip


def _of_cluster(row: Mapping[str, Any], cluster: RemoteCluster) -> dict[str, Any]:
    points = row.get("points")
    over = row.get("state") not in LIVE if points is None else not {*LIVE, WAITING} & set(points)
    return {**row, "cluster": cluster.name, "remote": True, "over": over, "settled": True}


def _as_seen_last(row: Mapping[str, Any], cluster: RemoteCluster) -> dict[str, Any]:
    # A run that was not over is in an unknown state
    shown = _of_cluster(row, cluster)
    if not shown["over"] and shown.get("points") is None and shown["state"] != "unknown":
        shown |= {"before": shown["state"], "state": "unknown"}
    return shown

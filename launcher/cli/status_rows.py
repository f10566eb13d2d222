"""What `status` shows: which runs are looked at, and a row of plain values for each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cli.options import find_either
from launcher.cli.text import ending, program
from launcher.files.shared_files import is_transient
from launcher.maintenance.orphaned_jobs import Orphan, Orphans
from launcher.monitoring.live import DAMAGE, Damaged, Seen, look_at_each, readable
from launcher.monitoring.progress import saved_before, standing
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import (
    DAMAGED,
    LIVE,
    WAITING,
    SweepLive,
    counts,
    done,
    look_at,
    not_begun,
)
from launcher.runs import live_index, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.lookup import may_have, newest
from launcher.runs.sweep_directory import Sweep

RECENT = 20  # runs that are over and shown without --all
COLUMNS = (
    "run", "state", "job", "cluster", "nodes", "ranks", "attempt", "step", "steps", "percent", "rate", "needs",
    "elapsed", "left", "checkpoint", "checkpoint_age", "reason", "cause", "kind", "code", "stop",
    "stays", "unanswered", "answer_age", "before",
    "updated", "directory",
)  # fmt: skip
CODES = ("kind", "code", "stop", "stays")  # of COLUMNS: what the cause says, for programs
GOES_WELL = ("done", "queued", "running", "suspended")  # states without a cause
UNREADABLE = "unreadable"
ORPHANED = "orphaned"  # a job without a run
FAILED = frozenset({RunState.FAILED.value, RunState.LOST.value, DAMAGED, UNREADABLE})
OURS = ("over", "settled", "unread")  # keys of a row that programs do not get


@dataclass(frozen=True)
class View:
    """Runs and sweeps as they are now.

    Attributes:
        rows: one for each.
        seen: the runs that could be read, in the order of their rows.
        older: folders that were not looked at.
    """

    rows: list[dict[str, Any]]
    seen: list[Seen]
    older: int

    @property
    def over(self) -> bool:
        """Whether nothing of it goes on by itself."""
        return all(row["over"] for row in self.rows)

    @property
    def unanswered(self) -> dict[str, Seen]:
        """The schedulers that did not answer, each with a run that says why."""
        return {each.unanswered: each for each in self.seen if each.unanswered}


@dataclass(frozen=True)
class Wanted:
    """Which of all runs and sweeps are shown.

    Attributes:
        failed: only those that failed, are lost or cannot be read; of sweeps those with such a point.
        since: only those with news since then, in seconds since the epoch.
    """

    failed: bool = False
    since: float | None = None

    @property
    def filters(self) -> bool:
        return self.failed or self.since is not None

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is shown. Pure."""
        states = {row["state"], *(row.get("points") or ())}
        if self.failed and not states & FAILED:
            return False
        return self.since is None or row["updated"] is None or row["updated"] >= self.since


class Rows:
    """Looks at runs again and again.

    Args:
        names: the runs and sweeps meant; none: all that are live and the newest others.
        folder: where run directories are.
        everything: all of them.
        wanted: which of these; if it leaves some out, all are looked at.
    """

    def __init__(self, names: Sequence[str], folder: Path, everything: bool, wanted: Wanted | None = None) -> None:
        self.filter = wanted or Wanted()
        everything = everything or self.filter.filters
        self._folder, self._everything, self._named = folder, everything, bool(names)
        self.wanted = [find_either(name, folder) for name in names]
        self._live = SweepLive(share=True)
        self._orphans = Orphans(self._live)
        self._done: set[str] = set()

    def look(self) -> View:
        """All of them as they are now, with one question to each scheduler."""
        wanted, all_of_them = (list(self.wanted), len(self.wanted)) if self._named else self._listed()
        runs = [each for each in wanted if not isinstance(each, Sweep)]
        looked = {each.run.path: each for each in look_at_each(runs, self._live)}
        rows = {path: self._row(each) for path, each in looked.items()}
        rows |= {each.path: self._sweep_row(each) for each in wanted if isinstance(each, Sweep)}
        self._settle(rows)
        if not self._named:
            over = [each for each in wanted if rows[each.path]["over"]]
            shown = over if self._everything else over[:RECENT]
            wanted = [each for each in wanted if not rows[each.path]["over"]] + shown
            left_out = [each for each in wanted if not self.filter.fits(rows[each.path])]
            wanted, all_of_them = [each for each in wanted if each not in left_out], all_of_them - len(left_out)
        found = [looked.get(each.path) for each in wanted]
        seen = [each for each in found if isinstance(each, Seen)]
        orphans = [] if self._named else self._orphans.look(_jobs(looked.values(), wanted))
        return View([*map(_orphaned, orphans), *(rows[each.path] for each in wanted)], seen, all_of_them - len(wanted))

    def _listed(self) -> tuple[list[Run | Sweep], int]:
        """What is looked at of all that is in the folder, newest first, and how much is in it.

        | the folder has | looked at are |
        |---|---|
        | an index | what the index has, and the newest others |
        | none | all but those whose last word is that they are done, and the newest of them |
        """
        paths = newest(self._folder)
        noted = live_index.noted(self._folder)
        wanted: list[Run | Sweep] = []
        recent = others = 0
        self._done = {_name(path) for path in paths if noted is None and _done(path)}
        for path in paths:
            may_live = _name(path) not in self._done if noted is None else _name(path) in noted
            if may_live or recent < RECENT or self._everything:
                found = _at(path)
                wanted += [] if found is None else [found]
                recent += found is not None and not may_live
                others += found is None  # a folder of something else, as MLflow's
        known = set(map(_name, paths))
        for name in noted - known if noted else ():
            live_index.remove(self._folder, name)
        return wanted, len(paths) - others

    def _settle(self, rows: Mapping[Path, Mapping[str, Any]]) -> None:
        """Notes which of them are over for good, and which live ones the index has not."""
        noted = live_index.noted(self._folder)
        base = self._folder.resolve()
        ours = {path.name: row for path, row in rows.items() if path.parent == base or (base / path.name).is_symlink()}
        if noted is None and not self._named:
            live_index.rebuild(self._folder, [name for name, row in ours.items() if not row["over"]], self._done)
            return
        for name, row in ours.items():
            if not row["over"] and noted is not None and name not in noted:
                live_index.add_to(self._folder, name)
            elif row["over"] and noted and name in noted and row["settled"]:
                live_index.remove(self._folder, name, surely=row["state"] == RunState.DONE.value)

    def _row(self, each: Seen | Damaged) -> dict[str, Any]:
        made = each if isinstance(each, Damaged) else readable(each.run, lambda: _row_of(each))
        if isinstance(made, Damaged):
            return _unreadable(made)
        return made

    def _sweep_row(self, sweep: Sweep) -> dict[str, Any]:
        noted = live_index.noted(self._folder)
        settled = noted is not None and sweep.id not in noted
        try:
            number = live_index.counted(sweep.path) if settled else None
            if number is None:
                number = counts(look_at(sweep, self._live))
                if settled and not _goes_on(number):
                    live_index.count(sweep.path, number)
        except DAMAGE as error:
            return _unreadable(Damaged(Run(sweep.path), str(error), is_transient(error)))
        news = None if self.filter.since is None else _news(sweep)  # it takes a look at every point
        return _row_of_sweep(sweep, number) | {"updated": news}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _done(path: str) -> bool:
    """Whether the run in a directory is known to be done."""
    found = readable(Run(Path(path)), lambda: done(Run(Path(path))))
    return found is True


def _at(path: str) -> Run | Sweep | None:
    """The run or sweep in a directory; None: there is neither."""
    if may_have(path, "record.json"):
        return Run(Path(path))
    return Sweep(Path(path)) if may_have(path, sweep_directory.RECORD) else None


def _row_of(seen: Seen) -> dict[str, Any]:
    now = time.time()
    before = None
    if seen.story.attempt is not None and seen.state is not RunState.DONE and seen.story.last("saved") is None:
        before = saved_before(seen.plan.checkpoint_dir)
    far = standing(seen, now, before)
    why, codes = (None, dict.fromkeys(CODES)) if seen.state.value in GOES_WELL else ending(seen)
    nodes, ranks = _size(seen)
    return {
        "run": seen.run.id,
        "state": _state(seen),
        "job": seen.story.job_id,
        "cluster": seen.plan.cluster,
        "nodes": nodes,
        "ranks": ranks,
        "attempt": seen.story.attempt,
        "step": far.step,
        "steps": far.steps,
        "percent": far.percent,
        "rate": far.rate,
        "needs": far.needs,
        "elapsed": far.elapsed,
        "left": far.left,
        "checkpoint": far.saved,
        "checkpoint_age": far.saved_ago,
        "reason": seen.word or None,
        "cause": why,
        **codes,
        "unanswered": seen.unanswered or None,
        "answer_age": round(seen.age, 1) if seen.unanswered and seen.age is not None else None,
        "before": seen.before or None,
        "updated": seen.story.moved or None,
        "directory": str(seen.run.path),
        "over": seen.state.over,
        "settled": seen.state is RunState.DONE or now - seen.story.moved > live_index.SETTLED,
    }


def _size(seen: Seen) -> tuple[int, int]:
    """How many nodes and ranks the run has: in its last attempt, if that went on without some of them.

    One that waits asks for all of them again.
    """
    resized = seen.story.last("resized")
    if resized is None or seen.state is RunState.QUEUED:
        return seen.plan.nodes, seen.plan.world_size
    return -(-int(resized["members"]) // seen.plan.tasks_per_node), int(resized["world_size"])


def _row_of_sweep(sweep: Sweep, number: Mapping[str, int]) -> dict[str, Any]:
    """A sweep like a run: `3/15 done` is its state."""
    failed = f", {number['failed']} failed" if "failed" in number else ""
    return {
        **dict.fromkeys(COLUMNS), "run": sweep.id, "points": dict(number), "directory": str(sweep.path),
        "state": f"{number.get('done', 0)}/{sum(number.values())} done{failed}", "over": not _goes_on(number),
        "settled": True,
    }  # fmt: skip


def _news(sweep: Sweep) -> float | None:
    """When a point of a sweep last told of something, in seconds since the epoch, by the times of files alone."""
    newest: float | None = None
    for pattern in ("journal.jsonl", "*/journal.jsonl", "*/attempts/*/events/*.jsonl"):
        for path in sweep.path.glob(pattern):
            with contextlib.suppress(OSError):
                newest = max(newest or 0.0, path.stat().st_mtime)
    return newest


def _goes_on(number: Mapping[str, int]) -> bool:
    """Whether a sweep with so many points in each state is not over."""
    return any(state == WAITING or state in LIVE for state in number)


def _unreadable(each: Damaged) -> dict[str, Any]:
    """The row of what is damaged, which is over; or of what cannot be read now, of which nothing is known."""
    return {
        **dict.fromkeys(COLUMNS), "run": each.run.id,
        "state": RunState.UNKNOWN.value if each.is_transient else UNREADABLE,
        "cause": each.words, "directory": str(each.run.path), "over": not each.is_transient, "settled": False,
        "unread": True,
    }  # fmt: skip


def _orphaned(orphan: Orphan) -> dict[str, Any]:
    """The row of a job whose run is gone."""
    lives = f"job {orphan.job} is still {orphan.word} on {orphan.scheduler}"
    return {
        **dict.fromkeys(COLUMNS), "run": orphan.folder.name, "state": ORPHANED, "job": orphan.job,
        "cluster": orphan.scheduler, "reason": orphan.word, "directory": str(orphan.folder),
        "cause": f"{orphan.folder} is gone, and {lives}: `{program()} cancel {orphan.job}` ends it",
        "over": False, "settled": False,
    }  # fmt: skip


def _jobs(looked: Iterable[Seen | Damaged], wanted: Iterable[Run | Sweep]) -> set[str]:
    """The ids of jobs of these runs and sweeps, as far as they can be read."""
    found: set[str] = set()
    for each in looked:
        if isinstance(each, Seen):
            found.update(filter(None, (each.story.job_id, *each.story.waiting)))
    for sweep in wanted:
        if isinstance(sweep, Sweep):
            with contextlib.suppress(*DAMAGE):
                found.update(each.job for each in sweep.submissions() if each.job)
    return found


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for programs: without what is only ours."""
    return {key: value for key, value in row.items() if key not in OURS}


def _state(seen: Seen) -> str:
    if seen.story.cancelled and not seen.state.over:
        return "cancelling"
    if seen.state.value != "unconfirmed" or not seen.run.is_point:
        return seen.state.value
    return not_begun(seen.run) or seen.state.value

"""`status`: the rows of runs and sweeps, here and on clusters behind ssh; their table; details of runs that were named.

`status --watch` updates the table; without a terminal, it prints a line whenever a run has changed.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from launcher.cli.cancel_and_prune import Orphan, Orphans, in_batches, short_job
from launcher.cli.commands import remote_profiles
from launcher.cli.output import cause, ending, fitting, json_text, print_columns, print_unreadable, program, table
from launcher.cli.progress_bars import on_terminal, rate_of, timed, wait_until_readable
from launcher.cli.ssh_forward import RemoteRows
from launcher.errors import ConfigError, RunError, UnavailableError
from launcher.failures.messages import of_restored
from launcher.formatting import brief, cut, format_time, one_line, raw
from launcher.monitoring import sweep_status
from launcher.monitoring.run_status import DAMAGE, DamagedRun, JobMonitor, RunState, RunStatus, or_damaged
from launcher.monitoring.sweep_status import CANCELLING, DAMAGED, LIVE, ORPHANED, WAITING, counts, not_begun, summary
from launcher.paths import default_runs_dir
from launcher.runs import live_runs_index, lookup, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.events import Ended, Met, Progress, Resized, Restored, Saved, Started, every, last
from launcher.runs.history import at_breakpoints, elapsed, remarks
from launcher.runs.lease_and_locks import SILENCE
from launcher.runs.lookup import find_either, may_have, newest
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.job_cache import interval
from launcher.schedulers.registry import queues_here
from launcher.search.progress import chooses_more

Row = dict[str, Any]  # the keys KEYS and INTERNAL; of a sweep, `points` too
MOST_BREAKPOINTS = 4  # ranks at breakpoints that are named
LONGEST = 160  # characters of the last line of output
MIN_POLL_INTERVAL = 1.0  # seconds between two reads of the records; the scheduler is queried less often
UNCHANGED = 10  # reads without a change after which the interval grows
MILESTONE = 10  # percent of the steps after which a line is printed, without a terminal


def run(arguments: Namespace) -> int:
    names, folder = arguments.names, arguments.runs_dir or default_runs_dir()
    if arguments.watch and arguments.as_json:
        raise ConfigError("--json does not go with --watch: call `status --json` repeatedly")
    apart = not names and arguments.runs_dir is None and bool(remote_profiles())  # those of clusters behind ssh, too
    if not names and not apart and not lookup.names(folder) and not queues_here():
        print("[]" if arguments.as_json else _none_in(folder))
        return 0
    if names and (arguments.failed or arguments.since is not None):
        raise ConfigError("--failed and --since choose among all runs: leave the names out")
    rows = Rows(names, folder, arguments.everything, failed=arguments.failed, since=arguments.since, apart=apart)
    if arguments.watch:
        return watch(rows)
    if len(rows.wanted) == 1 and isinstance(rows.wanted[0], Sweep):
        from launcher.cli.sweep import show_status

        return show_status(rows.wanted[0], everything=arguments.everything, as_json=arguments.as_json)
    view = rows.look()
    damaged = [row for row in view.rows if "unread" in row]
    if names and len(damaged) == len(view.rows):
        later = all(row["state"] == RunState.UNKNOWN.value for row in damaged)
        raise (UnavailableError if later else RunError)("\n".join(row["cause"] for row in damaged))
    if arguments.as_json:
        for line in view.silent.values():
            print(line, file=sys.stderr)
        results = {str(each.run.path): each.run.result() for each in view.seen} if names else {}
        print(json_text([{**plain(row), "metrics": results.get(row["directory"])} for row in view.rows]))
        return 0
    if not view.rows:
        print(f"no runs in {folder} that match" if rows.filtered and folder.is_dir() else _none_in(folder))
        for line in view.silent.values():
            print(line)
        return 0
    print(*runs_table(view.rows), sep="\n")
    for row in view.rows:
        if waits := breakpoints(row):
            print(f"\n{one_line(row['run'])}: {waits}")
    for each in view.seen if names else ():
        _print_details(each, heading=len(view.rows) > 1)
    for row in [*damaged, *(row for row in view.rows if row["state"] == ORPHANED)]:
        print(f"\n{one_line(row['run'])}: {row['cause']}")
    for number, line in enumerate([*unanswered(view), *view.silent.values()]):
        print(line if number else f"\n{line}")
    if view.older:
        print(f"... and {view.older} older; --all shows them")
    return 0


def _none_in(folder: Path) -> str:
    return f"no runs in {folder}" + ("" if folder.is_dir() else ": there is no such folder yet")


# -- The table


def runs_table(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of `status --json`'s rows as a table, without columns that are empty or do not fit."""
    columns = {head: [head, *map(cell, rows)] for head, cell in COLUMNS.items()}
    if not any(row.get("remote") for row in rows):
        del columns["CLUSTER"]
    shown = [head for head, cells in columns.items() if head not in OTHERS or any(each != "-" for each in cells[1:])]
    lines = list(zip(*(columns[head] for head in shown), strict=True))
    fit = fitting(lines, [shown.index(head) for head in OTHERS if head in shown])
    return table([[line[column] for column in fit] for line in lines])


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
OTHERS = (  # than RUN and STATE, which are always shown; the most useful first
    "CLUSTER", "STEP", "TIME LEFT", "TIME", "WHY", "CHECKPOINT", "ATTEMPT", "NODES", "ETA", "JOB",
)  # fmt: skip


# -- Selects the runs and sweeps that `status` shows, and computes a row of plain values for each


RECENT = 20  # runs that are over and are shown without --all
KEYS = (  # a value is None if it is unknown or does not apply
    "run", "state", "job", "cluster", "nodes", "spares", "ranks", "attempt",
    "step", "steps",  # steps done, as the program reports them, and their total
    "percent",  # of steps done, rounded down; 100 only when all are done
    "rate",  # steps per second of the later half of the attempt's steps, with saves and evaluations
    "needs",  # seconds that the remaining steps will take at this rate
    "elapsed",  # seconds since the last attempt started or, if that has ended, its duration
    "left",  # seconds left of the attempt's wall time
    "breakpoints",  # the ranks that wait at a breakpoint; `needs` is then unknown
    "checkpoint", "checkpoint_age",  # steps done in the last checkpoint; seconds since it was written
    "restored", "reason", "cause", "kind", "code", "stop", "stays", "unanswered", "answer_age", "before", "updated",
    "directory",
)  # fmt: skip
CODES = ("kind", "code", "stop", "stays")  # columns with the codes of the cause, for programs
UNREADABLE = "unreadable"
FAILED = frozenset({RunState.FAILED.value, RunState.LOST.value, DAMAGED, UNREADABLE})
INTERNAL = ("over", "settled", "unread", "remote")  # keys of a row that --json leaves out


@dataclass(frozen=True)
class View:
    rows: list[Row]  # the row of each run, sweep and orphaned job
    seen: list[RunStatus]  # of the runs that were named, or whose scheduler did not respond, in the order of their rows
    older: int  # number of older runs that are not shown
    silent: Mapping[str, str] = field(default_factory=dict)  # by cluster behind ssh that did not answer: a line

    @property
    def over(self) -> bool:
        return not self.silent and all(row["over"] for row in self.rows)

    @property
    def unanswered(self) -> dict[str, tuple[str, str]]:
        """By scheduler that did not respond: words that say why; how old the states in brackets are (empty: none)."""
        known = {each.unanswered for each in self.seen if each.before}
        found = {}
        for name, each in {each.unanswered: each for each in self.seen if each.unanswered}.items():
            age = f"; the state of {brief(each.age)} ago is in brackets" if name in known else ""
            found[name] = f"{name} does not answer ({each.job.problem})", age
        return found


class Rows:
    """Reads the states of runs and sweeps repeatedly.

    names: of the runs and sweeps to show; empty: those of `folder`: everything, or the live ones and the newest others.
    failed: only runs that failed, are lost or cannot be read, and sweeps with such a point. since: only what was active
    after this time, in seconds since the epoch. apart: whether the runs of all clusters behind ssh are shown, too.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, everything: bool, *, failed: bool = False, since: float | None = None,
        apart: bool = False,
    ) -> None:  # fmt: skip
        self._folder, self._failed, self._since, self._named = folder, failed, since, bool(names)
        self.filtered = failed or since is not None
        self._everything = everything or self.filtered
        self.wanted = [find_either(name, folder) for name in names]
        self._live = JobMonitor(share=True)
        self._orphans = Orphans(self._live)
        self._done: set[str] = set()
        options = [*(["--failed"] if failed else []), *(["--all"] if everything and not self.filtered else [])]
        if since is not None:  # another cluster's clock and time zone may differ
            options.append(f"--since={max(1, math.ceil((time.time() - since) / 60))}m")
        self._remote = RemoteRows(options) if apart else None

    def look(self) -> View:
        """Reads the runs and sweeps again, with one query to each scheduler, and returns them."""
        if self._remote is not None:
            self._remote.ask()
        found, number = (self.wanted, len(self.wanted)) if self._named else self._listed()
        rows = {each.path: self._row(each) for each in found if isinstance(each, Sweep)}
        looked: dict[Path, RunStatus] = {}
        jobs: set[str] = set()
        for status in in_batches([each for each in found if isinstance(each, Run)], self._live):
            rows[status.run.path] = self._row(status)
            if isinstance(status, RunStatus):
                jobs.update(filter(None, (status.history.job_id, *status.history.waiting)))
                if self._named or status.unanswered:
                    looked[status.run.path] = status
        self._settle(rows)
        if not self._named:
            over = [each for each in found if rows[each.path]["over"]]
            live = [each for each in found if not rows[each.path]["over"]]
            shown = live + (over if self._everything else over[:RECENT])
            found = [each for each in shown if self._fits(rows[each.path])]
            number -= len(shown) - len(found)
        seen = [looked[each.path] for each in found if each.path in looked]
        orphans = [] if self._named else self._orphans.look(jobs | _jobs(found))
        shown_rows = [*map(_orphaned, orphans), *(rows[each.path] for each in found)]
        answers = [] if self._remote is None else self._remote.answers()
        shown_rows += [{**dict.fromkeys(KEYS), **row} for each in answers for row in each.rows if self._fits(row)]
        silent = {each.cluster.name: each.text for each in answers if each.problem}
        return View(shown_rows, seen, number - len(found), silent)

    def _fits(self, row: Row) -> bool:
        if self._failed and not {row["state"], *(row.get("points") or ())} & FAILED:
            return False
        return self._since is None or row["updated"] is None or row["updated"] >= self._since

    def _row(self, seen: Sweep | RunStatus | DamagedRun) -> Row:
        if isinstance(seen, Sweep):
            row = or_damaged(Run(seen.path), partial(self._sweep_row, seen))
        else:
            row = or_damaged(seen.run, partial(_row_of, seen)) if isinstance(seen, RunStatus) else seen
        return _unreadable(row) if isinstance(row, DamagedRun) else row

    def _listed(self) -> tuple[list[Run | Sweep], int]:
        # With an index of live runs: those in it, and the newest others; without: those that are not done by their own
        # records, and the newest others. Returns the number of all, too
        paths = newest(self._folder)
        noted = live_runs_index.possibly_live(self._folder)
        wanted: list[Run | Sweep] = []
        recent = others = 0
        runs = map(Run, map(Path, paths if noted is None else ()))
        self._done = {run.path.name for run in runs if or_damaged(run, partial(sweep_status.done, run)) is True}
        for path in paths:
            name = os.path.basename(path)
            may_live = name not in self._done if noted is None else name in noted
            if may_live or recent < RECENT or self._everything:
                found = _at(path)
                wanted += [] if found is None else [found]
                recent += found is not None and not may_live
                others += found is None  # another folder, such as MLflow's
        known = set(map(os.path.basename, paths))
        for name in noted - known if noted else ():
            live_runs_index.remove(self._folder, name)
        return wanted, len(paths) - others

    def _settle(self, rows: Mapping[Path, Row]) -> None:
        noted = live_runs_index.possibly_live(self._folder)
        base = self._folder.resolve()
        ours = {path.name: row for path, row in rows.items() if path.parent == base or (base / path.name).is_symlink()}
        if noted is None and not self._named:
            live_runs_index.rebuild(self._folder, [name for name, row in ours.items() if not row["over"]], self._done)
            return
        for name, row in ours.items():
            if not row["over"] and noted is not None and name not in noted:
                live_runs_index.add_to(self._folder, name)
            elif row["over"] and noted and name in noted and row["settled"]:
                live_runs_index.remove(self._folder, name, done=row["state"] == RunState.DONE.value)

    def _sweep_row(self, sweep: Sweep) -> Row:
        noted = live_runs_index.possibly_live(self._folder)
        here = (self._folder / sweep.id).resolve() == sweep.path
        settled = here and noted is not None and sweep.id not in noted
        number = live_runs_index.read_counts(self._folder, sweep.id) if settled else None
        over = number is not None  # they are written of a sweep that is over
        if number is None:
            number = counts(sweep_status.point_statuses(sweep, self._live))
            over = number.keys().isdisjoint({*LIVE, WAITING}) and not chooses_more(sweep)
            if settled and over:
                live_runs_index.write_counts(self._folder, sweep.id, number)
        # The time is read only if it is needed, since that takes a look at every point.
        return {**_row_of_sweep(sweep, number, over), "updated": None if self._since is None else _last_active(sweep)}


def _at(path: str) -> Run | Sweep | None:
    if may_have(path, "record.json"):
        return Run(Path(path))
    return Sweep(Path(path)) if may_have(path, sweep_directory.RECORD) else None


def _row_of(seen: RunStatus) -> Row:
    now = time.time()
    again = seen.state is RunState.QUEUED and seen.history.attempt is not None
    ended = again or (seen.state.over and seen.state is not RunState.DONE)
    why, codes = ending(seen) if ended else (None, dict.fromkeys(CODES))
    nodes, spares, ranks = _size(seen)
    restored = seen.history.last(Restored)
    return {
        **progress_of(seen, now), **codes,
        "run": seen.run.id, "state": _state(seen), "job": seen.history.job_id, "cluster": seen.plan.cluster.name,
        "nodes": nodes, "spares": spares, "ranks": ranks, "attempt": seen.history.attempt,
        "restored": restored and {"step": restored.step, "memory": restored.memory, "redone": restored.redone},
        "reason": seen.job.text or None,
        "cause": why,
        "unanswered": seen.unanswered or None,
        "answer_age": round(seen.age, 1) if seen.unanswered and seen.age is not None else None,
        "before": seen.before or None,
        "updated": seen.history.moved or None,
        "directory": str(seen.run.path),
        "over": seen.state.over,
        "settled": seen.state is RunState.DONE or now - seen.history.moved > live_runs_index.SETTLED,
    }  # fmt: skip


def _size(seen: RunStatus) -> tuple[int, int, int]:
    # Nodes that work, spare nodes, ranks. For a queued run they are the numbers that were requested
    resized, plan = seen.history.last(Resized), seen.plan
    if resized is None or seen.state is RunState.QUEUED:
        return plan.nodes - plan.spares, plan.spares, plan.world_size
    return -(-resized.members // plan.tasks_per_node), resized.spares, resized.world_size


def _row_of_sweep(sweep: Sweep, number: Mapping[str, int], over: bool) -> Row:
    also = [state for state in sweep_status.STATES if state in number and state not in (*LIVE, WAITING, "done")]
    others = "".join(f", {number[state]} {state}" for state in also)
    return {
        **dict.fromkeys(KEYS), "run": sweep.id, "points": dict(number), "directory": str(sweep.path),
        "state": f"{number.get('done', 0)}/{sum(number.values())} done{others}", "over": over, "settled": True,
    }  # fmt: skip


def _last_active(sweep: Sweep) -> float | None:
    # When a file of a sweep's points last changed, in seconds since the epoch; None: there are no files
    newest: float | None = None
    for pattern in ("journal.jsonl", "*/journal.jsonl", "*/attempts/*/events/*.jsonl"):
        for path in sweep.path.glob(pattern):
            with contextlib.suppress(OSError):
                newest = max(newest or 0.0, path.stat().st_mtime)
    return newest


def _unreadable(each: DamagedRun) -> Row:
    # A damaged run is `unreadable`, and counts as over. A run that may be readable later is `unknown`, and does not.
    return {
        **dict.fromkeys(KEYS), "run": each.run.id,
        "state": RunState.UNKNOWN.value if each.is_transient else UNREADABLE,
        "cause": each.message, "directory": str(each.run.path), "over": not each.is_transient, "settled": False,
        "unread": True,
    }  # fmt: skip


def _orphaned(orphan: Orphan) -> Row:
    job = f"job {orphan.job} is still {orphan.raw_state} on {orphan.scheduler}"
    return {
        **dict.fromkeys(KEYS), "run": orphan.folder.name, "state": ORPHANED, "job": orphan.job,
        "cluster": orphan.scheduler, "reason": orphan.raw_state, "directory": str(orphan.folder),
        "cause": f"{orphan.folder} is gone, and {job}: `{program()} cancel {orphan.job}` ends it",
        "over": False, "settled": False,
    }  # fmt: skip


def _jobs(wanted: Iterable[Run | Sweep]) -> set[str]:
    found: set[str] = set()
    for sweep in wanted:
        if isinstance(sweep, Sweep):
            with contextlib.suppress(*DAMAGE):
                found.update(each.job for each in sweep.submissions() if each.job)
    return found


def plain(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in INTERNAL}


def _state(seen: RunStatus) -> str:
    if seen.state is RunState.UNCONFIRMED and seen.run.is_point and (state := not_begun(seen.run)):
        return state
    if seen.history.cancelled and not seen.state.over:
        return CANCELLING
    return seen.state.value


# -- How far a run is: steps, rate, time left and checkpoints, from its events


def progress_of(seen: RunStatus, now: float) -> Row:
    """Returns a row with all that is known of how far a run is."""
    events, running = seen.history.events, seen.state is RunState.RUNNING
    found: Row = dict.fromkeys(KEYS)
    if rate := rate_of([(event.time, event.step) for event in every(events, Progress)]):
        found["rate"] = round(rate, 4)
    at = at_breakpoints(events) if seen.plan.debugs and running else {}
    found["breakpoints"] = [
        {"rank": rank, "host": each.host, "where": each.where, "seconds": max(0, int(now - each.time))}
        for rank, each in sorted(at.items())
    ]
    if (progress := seen.progress) is not None:
        found["step"] = step = int(progress.step)
        if (steps := int(progress.total)) > 0:
            found |= {"steps": steps, "percent": min(100, 100 * step // steps)}
            if running and rate and not at:
                found["needs"] = max(0, round((steps - step) / rate - (now - progress.time)))
    found["elapsed"] = elapsed(events, now, over=seen.state.over or seen.state is RunState.QUEUED)
    saved = (event.step, event.time) if (event := seen.history.last(Saved)) else None
    if saved is None and seen.history.attempt is not None and seen.state is not RunState.DONE:
        saved = saved_before(seen.plan.checkpoint.dir)
    if saved is not None:
        found |= {"checkpoint": saved[0], "checkpoint_age": max(0, int(now - saved[1]))}
    return {**found, "left": _time_left(seen, now, saved is not None)}


def _time_left(seen: RunStatus, now: float, saves: bool) -> int | None:
    # Returns the seconds left of the attempt's wall time; None: nothing ends the run when that is over
    if seen.state is not RunState.RUNNING:
        return None
    if seen.left is not None:  # the limit may have changed since the submission
        return seen.left
    started = seen.history.last(Started)
    if started is None or not (seen.plan.queued or saves or seen.plan.program_resumes):
        return None
    return max(0, int(started.time + seen.plan.time - now))


def saved_before(folder: str) -> tuple[int, float] | None:
    """Returns step and mtime (since the epoch) of a folder's newest checkpoint, by names alone; None: none is seen."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        steps = {int(each.name[5:]): each for each in entries if each.name[:5] == "step-" and each.name[5:].isdecimal()}
        if steps:
            return max(steps), steps[max(steps)].stat().st_mtime
    return None


# -- Details of runs, and what is said below the table


def breakpoints(row: Row) -> str:
    found = row.get("breakpoints") or []
    if not found:
        return ""
    shown = [
        f"rank {each['rank']} on {each['host']} waits in {each['where']} for {brief(each['seconds'])}"
        for each in found[:MOST_BREAKPOINTS]
    ]
    shown += [f"{len(found) - MOST_BREAKPOINTS} more"] if len(found) > MOST_BREAKPOINTS else []
    attach = f"{program()} attach {row['run']} --debug" + (f" --rank {found[0]['rank']}" if len(found) > 1 else "")
    return f"at a breakpoint: {'; '.join(shown)}: `{attach}`"


def unanswered(view: View) -> Iterator[str]:
    for scheduler, (words, age) in view.unanswered.items():
        yield f"This is incomplete: {words}."
        if unknown := sum(each.unanswered == scheduler and each.state is RunState.UNKNOWN for each in view.seen):
            yield f"{'1 state is' if unknown == 1 else f'{unknown} states are'} unknown{age}."


def _print_details(seen: RunStatus, *, heading: bool) -> None:
    if seen.history.attempt:
        print(f"\n{one_line(seen.run.id)}:" if heading else "")
        print_columns(_attempts(seen), wraps=5)
    if not seen.unanswered and (why := _remark(seen)):
        print(f"\n{one_line(f'{seen.run.id}: {why}')}")
    if last := _last_output(seen):
        print(f"\n{one_line(seen.run.id)}: {last}")
    if seen.plan.race:
        from launcher.cli.why import of_race

        for line in of_race(seen, JobMonitor(share=True)):
            print(one_line(f"{seen.run.id}: {line}"))
    restored = seen.history.last(Restored) if seen.state is RunState.RUNNING else None
    for line in [*remarks(seen.history.events), *([of_restored(restored)] if restored else [])]:
        print(one_line(f"{seen.run.id}: {line}"))
    print_unreadable(seen.run)


def _remark(seen: RunStatus) -> str | None:
    # None: no remark
    if seen.state is RunState.RUNNING:
        silent = seen.run.lease_age()
        if silent is None or silent < SILENCE:
            return None
        return (
            f"no heartbeat of its job for {format_time(int(silent))}, although the scheduler says that it runs: "
            "has it lost its first node? Cancel it, then resume it"
        )
    if seen.state is RunState.DONE:
        return None
    if seen.state.over:
        return cause(seen)
    before = cause(seen) if seen.state is RunState.QUEUED and seen.history.attempt is not None else None
    return "; ".join(filter(None, (seen.job.text, f"before: {before}" if before else ""))) or None


def _last_output(seen: RunStatus) -> str:
    if seen.state is not RunState.RUNNING or not (outputs := seen.run.outputs()):
        return ""
    from launcher.runs.output_files import tail

    line = next((each for each in reversed(tail(outputs[-1])) if each.strip()), "")
    if not line:
        return ""
    return f"its last output, {brief(time.time() - outputs[-1].stat().st_mtime)} ago: {cut(one_line(line), LONGEST)}"


def _attempts(seen: RunStatus) -> list[tuple[str, ...]]:
    from launcher.diagnose.verdict import verdicts

    now, ends = time.time(), {each.attempt.number: each for each in verdicts(seen)}
    lines: list[tuple[str, ...]] = [("ATTEMPT", "JOB", "RANKS", "STEP", "ELAPSED", "ENDED")]
    for attempt in seen.run.attempts():
        end = ends.get(attempt.number)
        events = seen.history.events_of(attempt) if end is None else end.events
        progress, ended = last(events, Progress), last(events, Ended)
        words = f"{ended.code}" if ended else "-"
        if end is not None and end.verdict.cause is not None:
            words += f" {end.verdict.kind.value}: {end.verdict.cause}"
        met, started = last(events, Met), last(events, Started)
        lines.append((
            str(attempt.number), short_job(started.job if started else "-"), str(met.ranks if met else "-"),
            str(progress.step if progress else "-"), format_time(elapsed(events, now, over=end is not None) or 0),
            words,
        ))  # fmt: skip
    return lines


# -- `status --watch`


def watch(rows: Rows) -> int:
    """Shows runs until all are over, or until Ctrl-C; returns 0. If no run was named, new runs are added."""
    with contextlib.suppress(KeyboardInterrupt):
        if on_terminal(sys.stdout):
            _live(rows)
        else:
            _plain(rows)
    return 0


def _views(rows: Rows) -> Iterator[View]:
    unchanged, before = 0, None
    while True:
        view, took = wait_until_readable(lambda: timed(rows.look))
        yield view
        if view.over:
            return
        now = [(row["run"], row["state"], row["attempt"], row["step"], row.get("points")) for row in view.rows]
        unchanged, before = (unchanged + 1 if now == before else 0), now
        time.sleep(interval(max(0, unchanged - UNCHANGED), took, MIN_POLL_INTERVAL))


def _plain(rows: Rows) -> None:
    before: dict[tuple[Any, Any], tuple[Any, ...]] = {}  # runs in several folders may have one id
    problems: set[str] = set()
    for view in _views(rows):
        for row in view.rows:
            which, now = (row["run"], row["directory"]), milestone(row)
            if before.get(which) != now:
                before[which] = now
                print(line(row), flush=True)
        now_silent = {name: words for name, (words, _) in view.unanswered.items()} | {**view.silent}
        for name, text in now_silent.items():
            if name not in problems:
                print(text, flush=True)
        if problems - set(now_silent):
            print(f"{', '.join(sorted(problems - set(now_silent)))} answers again", flush=True)
        problems = set(now_silent)


def milestone(row: Row) -> tuple[Any, ...]:
    # When one of these values changes, a line is printed
    tenth = None if row["percent"] is None else row["percent"] // MILESTONE
    return state(row), row["attempt"], tenth, tuple((row.get("points") or {}).items())


def line(row: Row) -> str:
    """Formats the line for a row: `12:03:07  run-1  running, attempt 1, step 1200/4000 (30%), 12m left, needs 40m`."""
    words = [summary(row["points"]) if row.get("points") else state(row)]
    if row["attempt"]:
        words.append(f"attempt {row['attempt']}")
    if row["step"] is not None:
        total = f"/{row['steps']}" if row["steps"] else ""
        words.append(f"step {row['step']}{total}" + (f" ({row['percent']}%)" if row["percent"] is not None else ""))
    if row["left"] is not None:
        words.append(f"{brief(row['left'])} left")
    if row["needs"] is not None:
        words.append(f"needs {brief(row['needs'])}")
    why = None if row["state"] == "running" else row["cause"] or row["reason"]
    return one_line(f"{time.strftime('%H:%M:%S')}  {row['run']}  {', '.join(words)}" + (f": {why}" if why else ""))


def _live(rows: Rows) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=raw(sys.stdout), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for view in _views(rows):
            lines = picture(view, console.height)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


def picture(view: View, height: int) -> list[str]:
    """Returns the lines of the table of the runs, cut to the height of the terminal."""
    room = max(1, height - 4)
    lines = runs_table(view.rows[:room])
    lines += [f"... and {len(view.rows) - room} more, which do not fit"] if len(view.rows) > room else []
    return [*lines, *map(one_line, (*unanswered(view), *view.silent.values()))]

"""What a slot manager does for a search: chooses points, makes their runs, prunes them, and records their ends.

    points = SearchPoints(sweep)
    points.more()              # a slot is free: chooses another point; False: there will be no more
    points.count()             # number of points so far, also of those that other managers have chosen
    points.made(number)        # makes the run of a point, with its record
    points.to_prune(number)    # reads new reports of a running point; True: stop it
    points.ended(number, ...)  # records its end

If a manager is killed in between, no point is lost: a chosen point is in the journal, and the manager that claims it
next makes its record and runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from launcher import bounds
from launcher.files import run_files
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Pruned
from launcher.runs.search_record import SearchRecord
from launcher.runs.sweep_directory import Sweep
from launcher.search.reports import PointReports, missing, seconds_of, value_of
from launcher.search.search import Outcome, Search
from launcher.search.template import record_of


class SearchPoints:
    """The points of a sweep's search, for one slot manager.

    All methods may raise UnavailableError or OSError, and can be called again then.
    """

    def __init__(self, sweep: Sweep, waiting: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            sweep: the sweep.
            waiting: called again and again while another process holds the journal's lock.
        """
        self._sweep = sweep
        self._search = Search(sweep.path, lambda number: seconds_of(sweep.run(number), time.time()), waiting)
        self._template: Any = SearchRecord(sweep.path).template()
        self._reports: dict[int, PointReports] = {}
        self._over = False

    @property
    def over(self) -> bool:
        """Whether the search has ended, so that no more points will be chosen."""
        return self._over

    def count(self) -> int:
        """Returns how many points have been chosen so far, by all slot managers."""
        return len(self._search.points())

    def more(self) -> bool:
        """Chooses another point, which increases `count`; returns False if the search has ended."""
        self._over = self._over or self._search.ask() is None
        return not self._over

    def made(self, number: int) -> Run:
        """Makes the run directory and the record of a chosen point, unless they exist, and returns the run."""
        run = self._sweep.run(number)
        if not run.recorded():
            overrides = self._search.points()[number].overrides
            Run.create(run.path)
            record = record_of(self._template, f"{self._sweep.id}/{number}", overrides)
            record["token"] = token_of(record["plan"]["run_dir"])
            text = run_files.json_text(record, bounds.RECORD_BYTES, lines=False)
            run_files.write(run.path / "record.json", text, sync=False)
        return run

    def to_prune(self, number: int) -> bool:
        """Reads a running point's reports since the last call; returns whether to stop the point because it is pruned.

        If so, also writes the event `pruned` to the point's journal.
        """
        reports = self._of(number)
        if not any(self._search.report(number, *report) for report in reports.new()):
            return False
        self._sweep.run(number).journal(Pruned(step=reports.steps), sync=False)
        return True

    def ended(self, number: int, outcome: Outcome, cause: str | None = None) -> None:
        """Records the end of a point in the search's journal.

        A point that is done without a value of the objective ends the whole search: no other point would have one.

        Args:
            number: number of the point.
            outcome: how the point ended. Do not call this for a point that will be resumed.
            cause: why the point failed, as text for the user.
        """
        run, reports = self._sweep.run(number), self._of(number)
        value = value_of(run, reports) if outcome is Outcome.DONE else None
        if outcome is Outcome.DONE and value is None:
            cause = missing(reports.objective, run.result() or {})
            self._search.stop(cause)
        reports.new()
        self._search.finish(number, outcome, value, seconds_of(run, time.time()), reports.steps, cause)
        self._reports.pop(number, None)

    def _of(self, number: int) -> PointReports:
        return self._reports.setdefault(number, PointReports(self._sweep.run(number), self._search.settings.objective))

"""The points of a search, for a slot manager: chosen when a slot is free, made, watched while they run, and ended.

    points = SearchPoints(sweep)
    points.more()              a slot is free: chooses another point; False: there will be no more
    points.count()             points so far, also those that other managers have chosen
    points.made(number)        the run of a point, with its record
    points.to_prune(number)    looks at the reports of a point that runs here; True: stop it
    points.ended(number, ...)  its end

A manager that is killed in between loses nothing: a point that was chosen is in the journal, and whoever claims it
makes its record and runs it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from launcher.files import run_files
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Pruned
from launcher.runs.search_record import SearchRecord
from launcher.runs.sweep_directory import Sweep
from launcher.search.reports import PointReports, missing, seconds_of, value_of
from launcher.search.search import Outcome, Search
from launcher.search.template import record_of


class SearchPoints:
    """The points of a sweep's search. All methods raise UnavailableError and OSError, and may then be repeated."""

    def __init__(self, sweep: Sweep, waiting: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            sweep: the sweep.
            waiting: is called again and again while another process has the journal's lock.
        """
        self._sweep = sweep
        self._search = Search(sweep.path, lambda number: seconds_of(sweep.run(number), time.time()), waiting)
        self._template: Any = SearchRecord(sweep.path).template()
        self._reports: dict[int, PointReports] = {}
        self._over = False

    @property
    def over(self) -> bool:
        """Whether no more points will be chosen."""
        return self._over

    def count(self) -> int:
        """Returns how many points have been chosen so far, by all slot managers."""
        return len(self._search.points())

    def more(self) -> bool:
        """Chooses another point; returns whether there is one. Its number is at least the former `count`."""
        self._over = self._over or self._search.ask() is None
        return not self._over

    def made(self, number: int) -> Run:
        """Returns the run of a point that has been chosen, with its directory and its record."""
        run = self._sweep.run(number)
        if not run.recorded():
            overrides = self._search.points()[number].overrides
            Run.create(run.path)
            record = record_of(self._template, f"{self._sweep.id}/{number}", overrides)
            record["token"] = token_of(record["plan"]["run_dir"])
            run_files.write(run.path / "record.json", json.dumps(record), sync=False)
        return run

    def to_prune(self, number: int) -> bool:
        """Returns whether a point that runs is to be stopped, by what it has reported since the last call.

        The decision is written into the point's journal.
        """
        reports = self._of(number)
        if not any(self._search.report(number, *report) for report in reports.new()):
            return False
        self._sweep.run(number).journal(Pruned(step=reports.steps), sync=False)
        return True

    def ended(self, number: int, outcome: Outcome, cause: str | None = None) -> None:
        """Records the end of a point. One that is done without the objective ends the search: others would be as well.

        Args:
            number: the point.
            outcome: how it ended; a point that continues later has not ended.
            cause: why it failed, for people.
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

"""The points of a search, and the template from which each one's run is made."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launcher import bounds
from launcher.config.search_space import Space
from launcher.errors import ConfigError
from launcher.files import run_files
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Pruned
from launcher.runs.sweep_directory import SearchRecord, Sweep
from launcher.search.progress import PointReports, missing_reports, seconds_of, value_of
from launcher.search.search import PointOutcome, Search

# -- Makes the records of points on compute nodes, without Hydra, from a template that the submitter has made
# The submitter composes a few points with Hydra: it changes one key at a time, to each of its choices, or to the
# smallest and the largest number (`Dimension.ends`). The fields of the record that differ depend on this key; all other
# fields are the same for all points.


Path = tuple[str | int, ...]  # keys that lead to a field of a record


def template_of(
    first: Mapping[str, Any], moved: Mapping[str, Any], others: Mapping[str, Mapping[str, Mapping[str, Any]]],
    space: Space, names: tuple[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Returns the template for the records of a search's points, as JSON types; `record_of` uses it.

    first, moved: records of points 0 and 1 (`names`: SWEEP/0, SWEEP/1), both with the first value of each key.
    others: for each key and each of its composed values, the record of point 0 with this value.
    Raises ConfigError: a field differs between points 0 and 1 in more than the id; a number is only a part of a field;
        or a field depends on two keys.
    """
    old, new = dict(_leaves(first)), dict(_leaves(moved))
    own = [path for path in old if old[path] != new.get(path)]
    for path in own:
        if not isinstance(old[path], str) or old[path].replace(*names) != new.get(path):
            raise ConfigError(f"{_dotted(path)} is another one for each point, and does not follow from the point's id")
    of_key: dict[Path, str] = {}
    choices: dict[str, dict[str, list[tuple[Path, Any]]]] = {}
    numbers: dict[str, list[Path]] = {}
    for key, dimension in space.items():
        records = {text: dict(_leaves(record)) for text, record in others[key].items()}
        paths = {path: None for leaves in records.values() for path in _differing(old, leaves)}
        for path in paths:
            if of_key.setdefault(path, key) != key:
                raise ConfigError(
                    f"{_dotted(path)} depends on {of_key[path]} and on {key}: a search can change one of them"
                )
        if dimension.choices:
            choices[key] = {
                text: [(path, _at(others[key][text], path)) for path in paths] for text in dimension.choices
            }
            continue
        for text, record in others[key].items():
            for path in paths:
                if (found := _at(record, path)) != float(text) or isinstance(found, bool):
                    raise ConfigError(
                        f"{_dotted(path)} is made of {key}, and is not its value alone ({found!r} of {text}): give it "
                        "a list of values instead of an interval or a range"
                    )
        numbers[key] = list(paths)
    return {"record": first, "name": names[0], "own": own, "choices": choices, "numbers": numbers}


def record_of(template: Mapping[str, Any], name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the record of a point (`SWEEP/7`) from `template_of`'s result, as read from JSON."""
    record = copy.deepcopy(template["record"])
    for path in template["own"]:
        _set(record, path, _at(record, path).replace(template["name"], name))
    for each in overrides:
        key, _, text = each.partition("=")
        for path, value in template["choices"].get(key, {}).get(text, ()):
            _set(record, path, value)
        for path in template["numbers"].get(key, ()):
            whole = isinstance(_at(record, path), int)
            _set(record, path, int(text) if whole else float(text))
    record["overrides"] = list(overrides)
    return record


_NOTHING: Any = object()


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, (*path, key))
    else:
        yield path, value


def _differing(one: Mapping[Path, Any], other: Mapping[Path, Any]) -> list[Path]:
    found = [path for path in one if path in other and one[path] != other[path]]
    for path in {**one, **other}:
        if (path in one) != (path in other):
            found.append(path[:-1])
    return list(dict.fromkeys(found))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _set(value: Any, path: Path, new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def _dotted(path: Path) -> str:
    return ".".join(map(str, path[1:] or path))


# -- What a slot manager does for a search: chooses points, makes their runs, prunes them, and records their ends
# points = SearchPoints(sweep)
#     points.more()              # a slot is free: chooses another point; False: there will be no more
#     points.count()             # number of points so far, also of those that other managers have chosen
#     points.made(number)        # makes the run of a point, with its record
#     points.to_prune(number)    # reads new reports of a running point; True: stop it
#     points.ended(number, ...)  # records its end
#
# If a manager is killed in between, no point is lost: a chosen point is in the journal, and the manager that claims it
# next makes its record and runs it.


class SearchPoints:
    """The points of a sweep's search, for one slot manager; UnavailableError or OSError: call again."""

    def __init__(self, sweep: Sweep, waiting: Callable[[], None] = lambda: None) -> None:
        # waiting: called again and again while another process holds the journal's lock
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
        """Returns whether to stop a point, by its reports since the last call; if so, records that it is pruned."""
        reports = self._of(number)
        if not any(self._search.report(number, *report) for report in reports.new()):
            return False
        self._sweep.run(number).journal(Pruned(step=reports.steps), sync=False)
        return True

    def ended(self, number: int, outcome: PointOutcome, cause: str | None = None) -> None:
        """Records the end of a point that will not be resumed in the search's journal.

        A point that is done without a value of the objective ends the whole search: no other point would have one.
        """
        run, reports = self._sweep.run(number), self._of(number)
        value = value_of(run, reports) if outcome is PointOutcome.DONE else None
        if outcome is PointOutcome.DONE and value is None:
            cause = missing_reports(reports.objective, run.result() or {})
            self._search.stop(cause)
        reports.new()
        self._search.finish(number, outcome, value, seconds_of(run, time.time()), reports.steps, cause)
        self._reports.pop(number, None)

    def _of(self, number: int) -> PointReports:
        return self._reports.setdefault(number, PointReports(self._sweep.run(number), self._search.settings.objective))

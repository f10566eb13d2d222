"""Parses and compares the results of benchmarks of the interconnect (RUN/results.json).

workloads/results.py documents the format: rows of measurements, and for `p2p` a matrix of pairs of hosts. Rows of two
runs that agree in all columns except those in MEASURED are the same measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.files.json_types import misfit
from launcher.formatting import long_size

FORMAT = 1
MEASURED = {"seconds", "algbw", "busbw", "bandwidth", "latency", "wrong", "checked", "missing", "iterations",
            "messages", "count"}  # fmt: skip
COLUMNS = ("group", "ranks", "dtype", "redop", "root", "place", "async", "window")  # distinguish curves of an operation

_NUMBERS = ("size", "algbw", "busbw", "bandwidth", "latency")
_ROW = {
    **dict.fromkeys(_NUMBERS, float | None),
    "seconds": Mapping[str, Any] | None,
}  # types of the columns that are used in calculations
_CONDITIONS = {"hosts": list[str], "environment": Mapping[str, str]}

Row = Mapping[str, Any]


class Unreadable(ValueError):
    """A results.json cannot be read; the text says why."""


@dataclass(frozen=True)
class FabricResults:
    """The results of a benchmark."""

    workload: str  # `p2p` or `collective`
    conditions: Mapping[str, Any]  # what the numbers depend on: hosts, backend, device, iterations
    roof: Mapping[str, Any]  # measured upper limits of the speed, in bytes/s, and how they were measured
    rows: tuple[Row, ...]  # the measurements, a mapping from column to value each
    matrix: Mapping[str, Any] | None  # bandwidth and latency of all pairs of hosts; None: not measured
    complete: bool  # whether the benchmark measured everything
    reason: str = ""  # why the benchmark did not measure everything

    def roofs(self) -> dict[str, float]:
        """Returns the measured upper limits in bytes/s, by their name (`socket`, `memory`)."""
        return {name: speed for name in ("socket", "memory") if (speed := positive(self.roof.get(name)))}


@dataclass(frozen=True)
class Line:
    """A curve of a measured quantity over message size."""

    op: str  # the operation or pattern (`all_reduce`)
    kind: str  # what distinguishes the curve from others of the same operation (`float16 in place`); may be empty
    sizes: tuple[int, ...]  # message sizes in bytes, increasing
    values: tuple[float, ...]  # the measured value at each size


@dataclass(frozen=True)
class Difference:
    """The same measurement in a run and in its baseline."""

    what: str  # the operation, or the pair of hosts (`node1 → node2`)
    size: int | None  # the message size in bytes; None: not known
    measure: str  # the measured quantity: `busbw` or `bandwidth` in bytes/s, `time` or `latency` in seconds
    now: float  # the value in the run
    then: float  # the value in the baseline

    @property
    def speed(self) -> float:
        """The run's speed divided by the baseline's (for times, the inverse ratio): less than 1 is slower."""
        return self.then / self.now if self.measure in ("time", "latency") else self.now / self.then


def parse(values: Any) -> FabricResults:
    """Converts the parsed JSON of a results.json into Fabric; raises Unreadable."""
    if not isinstance(values, Mapping) or not isinstance(values.get("rows"), list):
        raise Unreadable("results.json is damaged: it has no rows")
    if values.get("format") != FORMAT:
        raise Unreadable(f"results.json has format {values.get('format')}, and this launcher reads format {FORMAT}")
    conditions, roof, matrix = values.get("conditions"), values.get("roof"), values.get("matrix")
    if matrix is not None and not _is_matrix(matrix):
        raise Unreadable("results.json is damaged: its matrix has not a number or null for each pair of hosts")
    for place, row in enumerate(values["rows"]):
        wrong = misfit(row, dict, f"rows[{place}]") or _misfits(row, _ROW, f"rows[{place}].")
        if wrong:
            raise Unreadable(f"results.json is damaged: {wrong}")
    if isinstance(conditions, Mapping) and (wrong := _misfits(conditions, _CONDITIONS, "conditions.")):
        raise Unreadable(f"results.json is damaged: {wrong}")
    return FabricResults(
        str(values.get("workload", "")),
        conditions if isinstance(conditions, Mapping) else {},
        roof if isinstance(roof, Mapping) else {},
        tuple(values["rows"]),
        matrix,
        bool(values.get("complete")),
        str(values.get("reason") or ""),
    )


def _misfits(values: Mapping[str, Any], kinds: Mapping[str, Any], name: str) -> str | None:
    found = (misfit(values[key], kind, f"{name}{key}") for key, kind in kinds.items() if key in values)
    return next((words for words in found if words), None)


def finite(value: Any) -> float | None:
    """Returns the value as a float if it is a finite number (and no bool), else None."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def positive(value: Any) -> float | None:
    """Returns the value as a float if it is a number above zero, as a logarithmic axis needs, else None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def median(row: Row) -> float | None:
    """Returns the median time of an iteration in seconds; None: it was not measured."""
    seconds = row.get("seconds")
    return positive(seconds.get("median")) if isinstance(seconds, Mapping) else None


def measured(row: Row, measure: str) -> float | None:
    """Returns a measured quantity of a row (a key of `fabric_page.MEASURES`); None: it was not measured."""
    return median(row) if measure == "time" else positive(row.get(measure))


def operation(row: Row) -> str:
    return str(row.get("op") or row.get("pattern") or "?")


def lines(rows: Iterable[Row], measure: str) -> list[Line]:
    """Returns curves of a key of MEASURES over message size, one a combination of operation and COLUMNS."""
    rows = list(rows)
    kind = kinds(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        value, size = measured(row, measure), positive(row.get("size"))
        if value is not None and size is not None:
            found.setdefault((operation(row), kind(row)), {})[int(size)] = value
    return [
        Line(op, kind, tuple(sorted(points)), tuple(points[size] for size in sorted(points)))
        for (op, kind), points in found.items()
    ]


def kinds(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Returns what tells a row from others of its operation: the COLUMNS that vary (`float16 in place`)."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for column in COLUMNS:
            values.setdefault((column, operation(row)), set()).add(_word(column, row))
    several = {column for (column, _), each in values.items() if len(each) > 1}
    differing = [column for column in COLUMNS if column in several]
    if "group" in differing and "ranks" in differing:
        differing.remove("ranks")  # the group determines the ranks
    return lambda row: " ".join(word for column in differing if (word := _word(column, row)))


def differences(now: FabricResults, then: FabricResults) -> list[Difference]:
    """Returns the measurements that both the run (`now`) and the baseline (`then`) have, the most slowed down first."""
    before = {_identity(row): row for row in then.rows}
    found = []
    for row in now.rows:
        old = before.get(_identity(row))
        for measure in ("busbw", "bandwidth", "latency") if old is not None else ():
            found += _difference(_label(row), row.get("size"), measure, row.get(measure), old and old.get(measure))
        if old is not None and not any(positive(row.get(speed)) for speed in ("busbw", "bandwidth", "latency")):
            found += _difference(_label(row), row.get("size"), "time", median(row), median(old))
    if now.matrix is not None and then.matrix is not None and block_of(now.matrix) == block_of(then.matrix) == 1:
        ours, theirs = pairs(now.matrix), pairs(then.matrix)
        for pair in ours:
            for place, measure in enumerate(("bandwidth", "latency")):
                if pair in theirs:
                    name = f"{pair[0]} → {pair[1]}"
                    found += _difference(
                        name, now.matrix.get("size"), measure, ours[pair][place], theirs[pair][place]
                    )  # fmt: skip
    return sorted(found, key=lambda each: each.speed)


def pairs(matrix: Mapping[str, Any]) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Returns (bandwidth, latency) of each ordered pair of hosts, in bytes/s and seconds; None: not measured."""
    hosts = [str(host) for host in matrix["hosts"]]
    return {
        (a, b): (matrix["bandwidth"][i][j], matrix["latency"][i][j])
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j
    }


def block_of(matrix: Mapping[str, Any]) -> int:
    """Returns the number of rows of a matrix that a row of its values stands for; 1: each has its own."""
    return int(matrix.get("block", 1))


def coarse(values: Sequence[Sequence[float | None]], most: int, worst: Any) -> list[list[float | None]]:
    """Returns a matrix, None not measured, shrunk to `most` rows: each cell the worst of a block of cells."""
    size = max(1, math.ceil(len(values) / most))
    if size == 1:
        return [list(row) for row in values]
    places = range(0, len(values), size)

    def cell(i: int, j: int) -> float | None:
        known = [each for row in values[i : i + size] for each in row[j : j + size] if each is not None]
        return worst(known) if known else None

    return [[cell(i, j) for j in places] for i in places]


def _difference(what: str, size: Any, measure: str, now: Any, then: Any) -> list[Difference]:
    ours, theirs = positive(now), positive(then)
    if ours is None or theirs is None:
        return []
    return [Difference(what, int(size) if positive(size) else None, measure, ours, theirs)]


def _identity(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in row.items() if key not in MEASURED))


def _label(row: Row) -> str:
    named = (_word(column, row) for column in COLUMNS if column not in ("ranks", "window"))
    return " ".join([operation(row), *(word for word in named if word)])


def _word(column: str, row: Row) -> str:
    value = row.get(column)
    if value is None or value == "" or value is False:
        return ""
    if column == "async":
        return "async"
    if column == "place":
        return {"out": "out of place", "in": "in place"}.get(str(value), str(value))
    return f"{column} {value}" if column in ("root", "window") else str(value)


def _is_matrix(matrix: Any) -> bool:
    if not isinstance(matrix, Mapping) or not isinstance(matrix.get("hosts"), list) or not matrix["hosts"]:
        return False
    if misfit(matrix.get("block", 1), int, "block") or block_of(matrix) < 1:
        return False
    count = math.ceil(len(matrix["hosts"]) / block_of(matrix))
    return all(
        isinstance(table := matrix.get(name), list)
        and len(table) == count
        and all(isinstance(row, list) and len(row) == count for row in table)
        and all(cell is None or positive(cell) is not None for row in table for cell in row)
        for name in ("bandwidth", "latency")
    )


def size_word(row: Row) -> str:
    size = positive(row.get("size"))
    return long_size(size) if size else "-"

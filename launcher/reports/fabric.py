"""Results of the benchmarks, from RUN/results.json: curves over size, the matrix of pairs, differences. Pure.

The format is that of workloads/results.py. What was measured is told apart from what was done: rows that agree in the
latter are one row, measured twice.
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
COLUMNS = ("group", "ranks", "dtype", "redop", "root", "place", "async", "window")  # that tell curves apart

_NUMBERS = ("size", "algbw", "busbw", "bandwidth", "latency")
_ROW = {**dict.fromkeys(_NUMBERS, float | None), "seconds": Mapping[str, Any] | None}  # types of what is reckoned with
_CONDITIONS = {"hosts": list[str], "environment": Mapping[str, str]}

Row = Mapping[str, Any]


class Unreadable(ValueError):
    """A results.json that cannot be shown; its text says why."""


@dataclass(frozen=True)
class Fabric:
    """What a benchmark has measured."""

    workload: str
    conditions: Mapping[str, Any]
    roof: Mapping[str, Any]
    rows: tuple[Row, ...]
    matrix: Mapping[str, Any] | None
    complete: bool
    reason: str = ""

    def roofs(self) -> dict[str, float]:
        """Measured roofs in bytes/s, by what they are of."""
        return {name: speed for name in ("socket", "memory") if (speed := positive(self.roof.get(name)))}


@dataclass(frozen=True)
class Line:
    """A curve over size: `op` is its operation or pattern, `kind` what tells it from others of that operation."""

    op: str
    kind: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """One thing measured in two runs: speeds in bytes/s or times in seconds, as `measure` says."""

    what: str
    size: int | None
    measure: str
    now: float
    then: float

    @property
    def speed(self) -> float:
        """The speed now as a part of the speed then."""
        return self.then / self.now if self.measure in ("time", "latency") else self.now / self.then


def parse(values: Any) -> Fabric:
    """
    Raises:
        Unreadable: it is of another format, or damaged.
    """
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
    return Fabric(
        str(values.get("workload", "")),
        conditions if isinstance(conditions, Mapping) else {},
        roof if isinstance(roof, Mapping) else {},
        tuple(values["rows"]),
        matrix,
        bool(values.get("complete")),
        str(values.get("reason") or ""),
    )


def _misfits(values: Mapping[str, Any], kinds: Mapping[str, Any], name: str) -> str | None:
    """What of the values does not fit, in words."""
    found = (misfit(values[key], kind, f"{name}{key}") for key, kind in kinds.items() if key in values)
    return next((words for words in found if words), None)


def finite(value: Any) -> float | None:
    """The number, if it is one."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def positive(value: Any) -> float | None:
    """The number, if it is one above zero; else nothing can be drawn on a log axis."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def median(row: Row) -> float | None:
    """Seconds of the row's median iteration."""
    seconds = row.get("seconds")
    return positive(seconds.get("median")) if isinstance(seconds, Mapping) else None


def measured(row: Row, measure: str) -> float | None:
    return median(row) if measure == "time" else positive(row.get(measure))


def operation(row: Row) -> str:
    return str(row.get("op") or row.get("pattern") or "?")


def lines(rows: Iterable[Row], measure: str) -> list[Line]:
    """A line for each thing that was done at several sizes."""
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
    """What tells a row from others of its operation, in words: the columns that have several values in one of them."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for column in COLUMNS:
            values.setdefault((column, operation(row)), set()).add(_word(column, row))
    several = {column for (column, _), each in values.items() if len(each) > 1}
    differing = [column for column in COLUMNS if column in several]
    if "group" in differing and "ranks" in differing:
        differing.remove("ranks")  # which follow from the group
    return lambda row: " ".join(word for column in differing if (word := _word(column, row)))


def differences(now: Fabric, then: Fabric) -> list[Difference]:
    """All that both have measured, what became slowest first."""
    before = {_identity(row): row for row in then.rows}
    found = []
    for row in now.rows:
        old = before.get(_identity(row))
        for measure in ("busbw", "bandwidth", "latency") if old is not None else ():
            found += _difference(_label(row), row.get("size"), measure, row.get(measure), old and old.get(measure))
        if old is not None and not any(positive(row.get(speed)) for speed in ("busbw", "bandwidth", "latency")):
            found += _difference(_label(row), row.get("size"), "time", median(row), median(old))
    if now.matrix is not None and then.matrix is not None:
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
    """(bandwidth, latency) of each ordered pair of hosts."""
    hosts = [str(host) for host in matrix["hosts"]]
    return {
        (a, b): (matrix["bandwidth"][i][j], matrix["latency"][i][j])
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j
    }


def coarse(values: Sequence[Sequence[float | None]], most: int, worst: Any) -> list[list[float | None]]:
    """A matrix of at most `most` rows: of each block of cells the `worst` (min or max) is left."""
    block = max(1, math.ceil(len(values) / most))
    if block == 1:
        return [list(row) for row in values]
    places = range(0, len(values), block)

    def cell(i: int, j: int) -> float | None:
        known = [each for row in values[i : i + block] for each in row[j : j + block] if each is not None]
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
    count = len(matrix["hosts"])
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

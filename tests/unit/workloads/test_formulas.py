"""Published factors of collective operations, statistics of iterations, and how they are printed."""

from __future__ import annotations

import pytest

from workloads import collective
from workloads.benchmark_keys import OPERATIONS
from workloads.measurement import bandwidths, bus_factor, spread


@pytest.mark.parametrize(
    ("operation", "factors"),  # on 2, 4 and 8 ranks, as in the table of nccl-tests
    [
        ("all_reduce", (1.0, 1.5, 1.75)),
        ("reduce", (1.0, 1.0, 1.0)),
        ("broadcast", (1.0, 1.0, 1.0)),
        ("send_recv", (1.0, 1.0, 1.0)),
        ("all_gather", (0.5, 0.75, 0.875)),
        ("reduce_scatter", (0.5, 0.75, 0.875)),
        ("all_to_all", (0.5, 0.75, 0.875)),
        ("all_to_all_v", (0.5, 0.75, 0.875)),
        ("gather", (0.5, 0.75, 0.875)),
        ("scatter", (0.5, 0.75, 0.875)),
        ("barrier", (None, None, None)),
    ],
)
def test_bus_factors_are_the_published_ones(operation: str, factors: tuple[float | None, ...]) -> None:
    assert tuple(bus_factor(operation, n) for n in (2, 4, 8)) == factors
    assert bus_factor(operation, 1) is None


def test_every_operation_has_a_factor_or_none() -> None:
    for operation in OPERATIONS:
        bus_factor(operation, 2)
    with pytest.raises(KeyError):
        bus_factor("allreduce", 2)


def test_bandwidths() -> None:
    assert bandwidths("all_reduce", 4, 10**9, 2.0) == (0.5e9, 0.75e9)
    assert bandwidths("all_reduce", 1, 10**9, 2.0) == (0.5e9, None)
    assert bandwidths("barrier", 4, 0, 1.0) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([3.0], (3.0, 3.0, 3.0, 3.0)),
        ([4.0, 1.0, 2.0, 3.0], (1.0, 2.5, 4.0, 2.5)),
        ([float(each) for each in range(1, 201)], (1.0, 100.5, 198.0, 100.5)),
    ],
)
def test_statistics_of_iterations(seconds: list[float], expected: tuple[float, ...]) -> None:
    found = spread(seconds)
    assert tuple(found[name] for name in ("min", "median", "p99", "mean")) == expected


def row(seconds: float, busbw: float | None, wrong: int | None = 0, size: int = 2**20) -> dict[str, object]:
    return {"size": size, "count": size // 4, "seconds": {"median": seconds}, "algbw": busbw, "busbw": busbw,
            "wrong": wrong}  # fmt: skip


def test_the_table_fits_into_80_columns_with_the_rank_before_it() -> None:
    lines = [
        *collective.table_head(),
        collective.table_line(row(99.999999, 1234e9, size=2**31), row(0.5, 0.00049e9, 12, size=2**31)),
        collective.table_line(None, row(1e-6, 9.9996e9)),
        collective.table_line(row(0.1, None, None, size=0), None),
    ]
    assert all(len("[0] " + line) <= 80 for line in lines)
    assert lines[2:] == [
        "2147483648 536870912 99999999  1234  1234      0 500000.0 0.000 0.000     12",
        "   1048576    262144        -     -     -      -      1.0 10.00 10.00      0",
        "         -         - 100000.0     -     -      -        -     -     -      -",
    ]


@pytest.mark.parametrize(
    ("speeds", "roof", "text"),
    [
        ([1e9, 3e9], 6e9, "average busbw 2 GB/s; the best is 50 % of the socket's 6 GB/s"),
        ([1e9], 2.4e9, "busbw is 42 % of the socket's 2.4 GB/s"),
        ([1e9, 2e9], None, "average busbw 1.5 GB/s"),
        ([None], 1e9, ""),
        ([], 1e9, ""),
    ],
)
def test_the_last_line_tells_the_average_and_the_roof(speeds: list[float | None], roof: float, text: str) -> None:
    assert collective.table_summary([row(1.0, speed) for speed in speeds], roof, "socket") == text


def test_a_title_tells_what_all_rows_have_in_common() -> None:
    assert collective.table_title("reduce", "node", "2 x 2", "int8", "max", 1, True) == (
        "reduce: node (2 x 2 ranks), int8, max, root 1, async"
    )
    assert collective.table_title("barrier", "world", "1", "int8", "max", None, False) == "barrier: world (1 rank)"

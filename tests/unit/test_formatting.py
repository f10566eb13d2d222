"""Sizes, times, numbers and lists of numbers as text."""

from __future__ import annotations

import pytest

from launcher.formatting import (  # fmt: skip
    brief,
    exact_time,
    format_hours,
    format_size,
    format_time,
    long_size,
    name_ranks,
    number,
    plural,
    ranges,
    rough_size,
)


@pytest.mark.parametrize(("seconds", "text"), [(59, "00:00:59"), (5400, "01:30:00"), (129600, "1-12:00:00")])
def test_times_are_written_as_slurm_reads_them(seconds: int, text: str) -> None:
    assert format_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "00:00:59"), (5400, "01:30:00"), (129600, "36:00:00"), (3600000, "1000:00:00")]
)
def test_times_are_written_as_pbs_reads_them(seconds: int, text: str) -> None:
    assert format_hours(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(17179869184, "16G"), (1536, "1536"), (1024, "1K"), (1000, "1000")])
def test_sizes_are_written_in_the_largest_exact_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (110, "110"),
        (1023, "1023"),
        (1024, "1K"),
        (5294, "5.2K"),
        (16965120819, "15.8G"),
        (325058670, "310M"),
        (5 << 40, "5T"),
        (1 << 60, "1024P"),
    ],
)
def test_a_size_to_read(size: int, text: str) -> None:
    assert rough_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536 << 20, "1.5 GiB"),
        (200 << 30, "200 GiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_a_size_to_read_with_its_unit(size: int, text: str) -> None:
    assert long_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h00m"), (86399, "23h59m"),
     (86400, "1d00h"), (9 * 86400 + 3600, "9d01h")],
)  # fmt: skip
def test_times_in_few_characters(seconds: float | None, words: str) -> None:
    assert brief(seconds) == words


@pytest.mark.parametrize(("seconds", "text"), [(43200, "12h"), (5400, "1h30m"), (45, "45s"), (90061, "25h1m1s")])
def test_times_as_the_key_takes_them(seconds: int, text: str) -> None:
    assert exact_time(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.91944, "0.9194"),
        (3.0, "3"),
        (1234.5, "1,234"),
        (12345.6, "12,346"),
        (1.2e-7, "1.2e-07"),
        (3.4e38, "3.4e+38"),  # a loss that diverges
        (float("nan"), "nan"),
    ],
)
def test_a_number_has_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((5,), "5"), ((0, 1, 2, 7), "0-2,7"), ((3, 2, 1), "3,2,1"), ((4, 5, 5, 6), "4-5,5-6"), ((8, 9), "8-9")],
)
def test_ranges_as_one_writes_them(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_one_is_named_otherwise_than_several() -> None:
    assert (plural(1, "node"), plural(0, "node")) == ("1 node", "0 nodes")
    assert (name_ranks([3]), name_ranks({5, 0, 1, 2})) == ("rank 3", "ranks 0-2,5")

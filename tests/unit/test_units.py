"""Wall times and sizes as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.formatting import format_hours, format_size, format_time, ranges
from launcher.units import parse_ranges, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),  # Slurm's: a bare number is minutes
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("100:00:00", 360000),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        ("2d", 172800),
        ("1h30m", 5400),
        ("1H30M", 5400),
        ("90m", 5400),
        ("90min", 5400),
        ("45s", 45),
        ("1d2h3m4s", 93784),
        (" 1h ", 3600),
    ],
)
def test_wall_times_are_read(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("25:99", "99 seconds"),
        ("1:60:00", "60 minutes"),
        ("1-24", "24 hours"),
        ("1-12:60", "60 minutes"),
        ("1-12:00:60", "60 seconds"),
        ("0", "is zero"),
        ("00:00:00", "is zero"),
        ("0h", "is zero"),
        ("", "is not a time"),
        ("-5", "is not a time"),
        ("1.5h", "is not a time"),
        ("1:2:3:4", "is not a time"),
        ("30m1h", "is not a time"),
        ("an hour", "is not a time"),
        ("1h\n", None),  # blanks around it do no harm
    ],
)
def test_what_is_no_wall_time_is_refused(text: str, why: str | None) -> None:
    if why is None:
        assert parse_time(text) == 3600
    else:
        with pytest.raises(ValueError, match=why):
            parse_time(text)


@given(st.integers(1, 400 * 24 * 3600))
def test_a_written_time_reads_as_itself(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@given(st.integers(1, 400 * 24 * 3600))
def test_a_time_in_hours_reads_as_itself(seconds: int) -> None:
    assert parse_time(format_hours(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("64K", 65536),
        ("64k", 65536),
        ("1.5M", 1572864),
        ("16G", 17179869184),
        ("16GB", 17179869184),
        ("16 GiB", 17179869184),
        ("1T", 1024**4),
        ("1P", 1024**5),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1GG", "1e3", "0", "0G", "0.0001K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@given(st.integers(1, 1024**6))
def test_a_written_size_reads_as_itself(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not a number, or a range of them: write 3 or 0-3,7"),
        ("1,,2", "'' is not a number"),
        ("-1", "'-1' is not a number"),
        ("two", "'two' is not a number"),
        ("4, 3-1", "3-1 is an empty range: write 1-3"),
        ("0-9999999", "'0-9999999' names more than 1000000 numbers"),
        ("0-500000,0-500000", "names more than"),
    ],
)
def test_what_is_no_range_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_ranges(text)


@pytest.mark.parametrize(("text", "numbers"), [("3", (3,)), (" 0-2, 7 ", (0, 1, 2, 7)), ("3,2,2", (3, 2, 2))])
def test_ranges_are_read_in_their_order(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_ranges(text) == numbers


@given(st.lists(st.integers(0, 300), min_size=1))
def test_written_ranges_read_as_themselves(numbers: list[int]) -> None:
    assert parse_ranges(ranges(numbers)) == tuple(numbers)

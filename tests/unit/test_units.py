"""Wall times and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.units import format_hours, format_size, format_time, long_size, parse_size, parse_time, rough_size


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
        ("0", "no time at all"),
        ("00:00:00", "no time at all"),
        ("0h", "no time at all"),
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


@pytest.mark.parametrize(("seconds", "text"), [(59, "00:00:59"), (5400, "01:30:00"), (129600, "1-12:00:00")])
def test_times_are_written_as_slurm_reads_them(seconds: int, text: str) -> None:
    assert format_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "00:00:59"), (5400, "01:30:00"), (129600, "36:00:00"), (3600000, "1000:00:00")]
)
def test_times_are_written_as_pbs_reads_them(seconds: int, text: str) -> None:
    assert format_hours(seconds) == text


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

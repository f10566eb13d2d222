"""Sizes, sweeps of sizes and times per size: what is written means the same on the login node and in the ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.benchmark_keys import MOST, parse_seconds, parse_sizes


@pytest.mark.parametrize(
    ("value", "sizes"),
    [
        ("1M", [2**20]),
        (4096, [4096]),
        ("8:64:2", [8, 16, 32, 64]),
        ("8:100:2", [8, 16, 32, 64]),
        ("8:64", [8, 16, 32, 64]),
        ("1K:1G:1024", [2**10, 2**20, 2**30]),
        ("4M:16M:4M", [4 * 2**20, 8 * 2**20, 12 * 2**20, 16 * 2**20]),
        ("8:24:8B", [8, 16, 24]),
        ("7:7:3", [7]),
        ("1:6:1.5", [1, 2, 3, 5]),
        (["1K", "8:16:2", 1024, "1M"], [1024, 8, 16, 2**20]),
        (" 8 : 16 : 2 ", [8, 16]),
    ],
)
def test_sizes_of_a_sweep(value: object, sizes: list[int]) -> None:
    assert list(parse_sizes(value)) == sizes


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0", "is zero"),
        ("0:1M:2", "is zero"),
        ("many", "'many' is not a size: write it as 512K, 64M or 16G"),
        ("1G:8:2", "'1G:8:2': the first size is over the last: write 8:1G:2"),
        ("1G:8", "write 8:1G$"),
        ("8:1G:1", r"a factor of 1 leads nowhere: use 2, or an increment with a unit \(1B, 4M\)"),
        ("8:1G:0.5", "a factor of 0.5 leads nowhere"),
        ("8:1G:0K", "is zero"),
        ("8:1G:2:3", "is not MIN:MAX:STEP"),
        ("8:1G:two", "'two' is not a size"),
        ("8:1G:8B", rf"is 134217728 sizes, and {MOST} is the most"),
        ("1:1G:1.000001", f"is more than {MOST} sizes"),
        ([], "there is no size"),
        ("", "is not a size"),
    ],
)
def test_sizes_that_make_no_sweep_are_refused(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_sizes(value)


@given(least=st.integers(1, 10**6), span=st.integers(0, 10**6), factor=st.integers(2, 100))
def test_a_factor_multiplies_up_to_the_last_size(least: int, span: int, factor: int) -> None:
    sizes = parse_sizes(f"{least}:{least + span}:{factor}")
    assert sizes[0] == least
    assert all(after == before * factor for before, after in pairwise(sizes))
    assert sizes[-1] <= least + span < sizes[-1] * factor


@given(least=st.integers(1, 10**6), steps=st.integers(0, MOST - 1), step=st.integers(1, 10**4), rest=st.floats(0, 0.99))
def test_an_increment_adds_up_to_the_last_size(least: int, steps: int, step: int, rest: float) -> None:
    sizes = parse_sizes(f"{least}:{least + steps * step + int(rest * step)}:{step}B")
    assert list(sizes) == [least + number * step for number in range(steps + 1)]


@pytest.mark.parametrize(("text", "seconds"), [("200ms", 0.2), ("2s", 2), ("1.5 s", 1.5), ("1m", 60), ("2min", 120)])
def test_times_per_size(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["2", "", "0s", "two", "-1s", "1h30m"])
def test_what_is_no_time_per_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 200ms, 2s or 1m"):
        parse_seconds(text)

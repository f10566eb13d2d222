"""How an array that is too large for the scheduler is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.schedulers.base import parts


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [
        (1, None, [range(0, 1)]),
        (10, None, [range(0, 10)]),
        (10, 10, [range(0, 10)]),
        (10, 11, [range(0, 10)]),
        (10, 4, [range(0, 4), range(4, 8), range(8, 10)]),
        (10, 9, [range(0, 9), range(9, 10)]),
        (3, 1, [range(0, 1), range(1, 2), range(2, 3)]),
        (10, 0, [range(0, 10)]),  # 0 is no limit that anything could meet
    ],
)
def test_the_table(count: int, most: int | None, expected: list[range]) -> None:
    assert parts(count, most) == expected


@given(st.integers(1, 10_000), st.one_of(st.none(), st.integers(1, 12_000)))
def test_every_element_is_in_one_part_and_none_of_them_is_too_large(count: int, most: int | None) -> None:
    split = parts(count, most)
    assert [index for part in split for index in part] == list(range(count))
    assert all(0 < len(part) <= (most or count) for part in split)

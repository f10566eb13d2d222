"""Known answers of reductions: exact in every type, at any number of ranks, in any order of the additions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads import benchmark_keys, collective_operations, measurement

KEY = ("all_reduce", "world")


def values_of(dtype: str, seed: int = 0) -> measurement.Values:
    return measurement.Values(measurement.torch_dtype(dtype), torch.device("cpu"), seed)


@given(
    dtype=st.sampled_from(benchmark_keys.DTYPES),
    redop=st.sampled_from(benchmark_keys.REDOPS),
    n=st.one_of(st.integers(1, 9), st.sampled_from([127, 128, 300])),
    start=st.integers(0, 10**6),
    count=st.integers(1, 40),
    seed=st.integers(0, 5),
    order=st.randoms(use_true_random=False),
)
def test_answers_are_exact(dtype: str, redop: str, n: int, start: int, count: int, seed: int, order: object) -> None:
    values = values_of(dtype, seed)
    parts = [collective_operations.put_operands(values, redop, KEY, rank, n, start, count) for rank in range(n)]
    expected = collective_operations.exact_result(values, redop, KEY, n, start, count)
    order.shuffle(parts)  # type: ignore[attr-defined]
    result, whole = parts[0].clone(), parts[0].to(torch.int64)
    for part in parts[1:]:
        if redop in ("sum", "avg"):
            result, whole = result + part, whole + part.to(torch.int64)
        elif redop == "prod":
            result, whole = result * part, whole * part.to(torch.int64)
        else:
            combine = torch.minimum if redop == "min" else torch.maximum
            result, whole = combine(result, part), combine(whole, part.to(torch.int64))
        assert torch.equal(result.to(torch.int64), whole)  # no rounding and no overflow on the way
    if redop == "avg":
        assert not (whole % n).any()
        whole, result = whole // n, (result / n).to(result.dtype)
    assert torch.equal(expected.to(torch.int64), whole)
    assert collective_operations.wrong_elements(redop, result, expected) == 0
    assert not (values.poison(count) == expected).any()


@pytest.mark.parametrize("redop", benchmark_keys.REDOPS)
@pytest.mark.parametrize("dtype", benchmark_keys.DTYPES)
def test_a_rank_that_is_left_out_or_counted_twice_is_noticed(dtype: str, redop: str) -> None:
    n, count = 4, 2000
    values = values_of(dtype)
    parts = [collective_operations.put_operands(values, redop, KEY, rank, n, 0, count) for rank in range(n)]
    expected = collective_operations.exact_result(values, redop, KEY, n, 0, count)
    for ranks in ([0, 1, 2], [0, 1, 2, 2]):
        stack = torch.stack([parts[rank] for rank in ranks]).to(torch.float64)
        got = {
            "sum": stack.sum(0), "prod": stack.prod(0), "min": stack.amin(0), "max": stack.amax(0),
            "avg": (stack.sum(0) / n).round(),
        }[redop]  # fmt: skip
        assert collective_operations.wrong_elements(redop, got.to(values.dtype), expected) > count // 20


def test_averages_of_floats_may_round_and_not_more() -> None:
    expected = torch.tensor([3.0, 3.0, 3.0, 3.0])
    got = torch.tensor([3.0000002, 3.5, float("nan"), 2.0])
    assert collective_operations.wrong_elements("avg", got, expected) == 3
    assert collective_operations.wrong_elements("sum", got, expected) == 4


@given(start=st.integers(0, 2**31), count=st.integers(0, 50), shift=st.integers(0, 20))
def test_values_of_a_key_are_one_stream(start: int, count: int, shift: int) -> None:
    values = values_of("float32")
    whole = values.make(count + shift, *KEY, start=start)
    assert torch.equal(values.make(count, *KEY, start=start + shift), whole[shift:])


def test_a_result_over_all_ranks_of_a_large_run_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def add(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        calls.append(len(one))
        return torch.add(one, other)

    monkeypatch.setitem(collective_operations._COMBINE, "sum", add)
    values, n = values_of("float32"), 32_767
    found = collective_operations.exact_result(values, "sum", KEY, n, 5, 3)
    stream = collective_operations.put_operands(values, "sum", KEY, 0, n, 5, n + 2).to(torch.float64)
    assert found.tolist() == [stream[first : first + n].sum().item() for first in range(3)]
    assert len(calls) < 40


def case_of(n: int, me: int, count: int) -> collective_operations.Case:
    group: Any = None
    values = values_of("int8")
    return collective_operations.Case(group, tuple(range(n)), me, 0, count, values, "sum", KEY)


@given(n=st.integers(1, 12), count=st.integers(1, 500), data=st.data())
def test_uneven_parts_are_taken_from_where_the_sender_has_them(n: int, count: int, data: st.DataObject) -> None:
    parts, me = case_of(n, 0, count).parts(), data.draw(st.integers(0, n - 1))
    found = collective_operations.BY_NAME["all_to_all_v"].gives(case_of(n, me, count))
    sent = [[parts[(source + rank) % n] for rank in range(n)] for source in range(n)]
    assert sum(parts) == count and parts == sorted(parts)
    assert found == [
        collective_operations.Piece(source, sum(sizes[:me]), sizes[me]) for source, sizes in enumerate(sent)
    ]


def test_uneven_parts_of_a_large_run_are_found() -> None:
    n, count = 32_768, 10**9
    found = collective_operations.BY_NAME["all_to_all_v"].gives(case_of(n, n - 1, count))
    assert sum(piece.length for piece in found) == count

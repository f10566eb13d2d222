"""Known answers of reductions: exact in every type, at any number of ranks, in any order of the additions."""

from __future__ import annotations

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

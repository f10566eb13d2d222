"""The values that a search may give to keys: what overrides mean, and the numbers of combinations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.compose_points import space_of
from launcher.config.search_space import Dimension, combination, index_of, size
from launcher.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "dimension", "count"),
    [
        ("lr=0.1,0.01", Dimension(choices=("0.1", "0.01")), 2),
        ("lr=0.1,0.1", Dimension(choices=("0.1",)), 1),
        ("sync=choice(ddp,manual)", Dimension(choices=("ddp", "manual")), 2),
        ("x=[1,2],'a b',{k:1}", Dimension(choices=("[1,2]", "'a b'", "{k:1}")), 3),
        ("width=range(1,10)", Dimension(low=1, high=9, whole=True, step=1), 9),
        ("width=range(9,0,-4)", Dimension(low=1, high=9, whole=True, step=4), 3),
        ("p=range(0,1,0.25)", Dimension(low=0, high=0.75, step=0.25), 4),
        ("seed=range(7,8)", Dimension(choices=("7",)), 1),
        ("lr=interval(0.01,1)", Dimension(low=0.01, high=1.0), None),
        ("lr=interval(0,20)", Dimension(low=0.0, high=20.0), None),
        ("width=int(interval(1,64))", Dimension(low=1, high=64, whole=True), 64),
        ("lr=tag(log,interval(1e-4,1e-1))", Dimension(low=1e-4, high=0.1, log=True), None),
        ("width=tag(log,int(interval(1,64)))", Dimension(low=1, high=64, whole=True, log=True), 64),
    ],
)
def test_an_override_is_a_dimension(override: str, dimension: Dimension, count: int | None) -> None:
    (found,) = space_of([override])[0].values()
    assert found == dimension
    assert found.count() == count


def test_what_has_one_value_is_of_all_points_and_the_last_override_of_a_key_counts() -> None:
    space, fixed = space_of(["workload=p2p", "a=1,2", "a=3", "b=1", "b=4,5", "~c"])
    assert list(space) == ["b"]
    assert sorted(fixed) == ["a=3", "workload=p2p", "~c"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("lr=interval(1,0)", "to a larger one"),
        ("lr=interval(0,inf)", "to a larger one"),
        ("lr=tag(log,interval(0,1))", "needs numbers above 0"),
        ("lr=tag(lgo,interval(0.1,1))", "'lgo' is not known"),
        ("lr=tag(log,choice(1,2))", "only an interval has a logarithm"),
        ("lr=choice()", "empty choice"),
        ("lr=range(3,3)", "has no values"),
        ("workload=glob(*)", "a search needs the values"),
        ("lr=interval(0,", "cannot be read"),
        ("~lr=1,2", "changes values of keys only"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_the_override(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        space_of([override])


def test_a_search_needs_something_to_search() -> None:
    with pytest.raises(ConfigError, match="nothing to search"):
        space_of(["workload=p2p"])


def test_combinations_are_in_the_order_of_a_grid() -> None:
    space = space_of(["a=x,y", "b=range(1,3)"])[0]
    assert [tuple(combination(space, each).values()) for each in range(4)] == [
        ("x", "1"), ("x", "2"), ("y", "1"), ("y", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("p=range(0,0.4,0.1)", ["0.0", "0.1", "0.2", "0.3"]),
        ("p=range(-0.3,0.4,0.1)", ["-0.3", "-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3"]),
        ("p=range(1,0,-0.3)", ["0.1", "0.4", "0.7", "1.0"]),
        ("p=range(1e-5,4e-5,1e-5)", ["1e-05", "2e-05", "3e-05"]),
    ],
)
def test_values_of_a_range_are_what_the_user_means_and_are_known_as_floats_give_them(
    override: str, values: list[str]
) -> None:
    (dimension,) = space_of([override])[0].values()
    assert [dimension.value(index) for index in range(len(values))] == values
    assert dimension.ends() == (values[0], values[-1])
    assert dimension.step is not None
    added = [repr(dimension.low + index * dimension.step) for index in range(len(values))]  # as floats add up
    assert [dimension.index(each) for each in added] == [*range(len(values))]
    assert dimension.index("0.05") is None


_DIMENSIONS = st.one_of(
    st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=4, unique=True).map(
        lambda words: Dimension(choices=tuple(words))
    ),
    st.builds(
        lambda low, count: Dimension(low=low, high=low + count, whole=True), st.integers(-5, 5), st.integers(1, 4)
    ),
    st.builds(
        lambda low, count: Dimension(low=low / 10, high=low / 10 + count * 0.1, step=0.1),
        st.integers(-5, 5),
        st.integers(1, 4),
    ),
)


@given(st.dictionaries(st.sampled_from("abcd"), _DIMENSIONS, min_size=1), st.data())
def test_a_combination_has_one_number(space: dict[str, Dimension], data: st.DataObject) -> None:
    count = size(space)
    assert count is not None
    index = data.draw(st.integers(0, count - 1))
    assert index_of(space, combination(space, index)) == index


def test_what_is_no_combination_has_no_number() -> None:
    assert index_of({"a": Dimension(choices=("1",))}, {"a": "2"}) is None
    assert size({"a": Dimension(low=0, high=1)}) is None


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e6), st.floats(0, 1))
def test_a_number_of_an_interval_is_short_and_stays_in_it(low: float, span: float, where: float) -> None:
    interval = Dimension(low=low, high=low + span)
    number = min(max(low + where * span, interval.low), interval.high)
    short = interval.readable(number)
    assert interval.low <= short <= interval.high
    assert abs(short - number) <= 1e-5 * min(abs(number), interval.high - interval.low)


@pytest.mark.parametrize(
    ("dimension", "number", "short"),
    [
        (Dimension(low=0.01, high=0.5), 0.43650029516048205, 0.4365),
        (Dimension(low=1e-6, high=0.1, log=True), 3.2345678e-06, 3.2346e-06),
        (Dimension(low=1000000, high=1000001), 1000000.4321987, 1000000.4322),
        (Dimension(low=0.1234561, high=0.5), 0.1234561, 0.1234561),  # shorter ones are outside
        (Dimension(low=0, high=1, step=0.1), 0.30000000000000004, 0.3),
    ],
)
def test_a_number_of_an_interval_is_written_for_people(dimension: Dimension, number: float, short: float) -> None:
    assert dimension.readable(number) == short

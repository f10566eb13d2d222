"""Groups of ranks, as they are written and as they come out for a run's nodes."""

from __future__ import annotations

import pytest

from workloads.benchmark_keys import explicit_groups, groups_text, members_of, parse_groups


@pytest.mark.parametrize(
    ("node_ranks", "node", "stride"),
    [
        ((0,), ((0,),), ((0,),)),
        ((0, 0), ((0, 1),), ((0,), (1,))),
        ((0, 0, 1, 1), ((0, 1), (2, 3)), ((0, 2), (1, 3))),
        ((0, 0, 0, 1), ((0, 1, 2), (3,)), ((0, 3), (1,), (2,))),
    ],
)
def test_named_groups(node_ranks: tuple[int, ...], node: object, stride: object) -> None:
    assert members_of("world", node_ranks) == (tuple(range(len(node_ranks))),)
    assert members_of("node", node_ranks) == node
    assert members_of("stride", node_ranks) == stride


@pytest.mark.parametrize(
    ("text", "members", "words"),
    [
        ("0-1/2-3", ((0, 1), (2, 3)), "2 x 2"),
        ("0,2/1,3", ((0, 2), (1, 3)), "2 x 2"),
        ("3, 0 - 1", ((0, 1, 3),), "3"),
        ("2", ((2,),), "1"),
        ("0/1-3", ((0,), (1, 2, 3)), "2 x 1-3"),
    ],
)
def test_explicit_groups(text: str, members: object, words: str) -> None:
    assert explicit_groups(text) == members
    assert members_of(text.replace(" ", ""), (0, 0, 1, 1)) == members
    assert groups_text(explicit_groups(text)) == words


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("world", ("world",)),
        ("node,stride,node", ("node", "stride")),
        (["world", "0-1/2-3"], ("world", "0-1/2-3")),
        (["all", "0,2 / 1,3"], ("world", "node", "stride", "0,2/1,3")),
        ([0], ("0",)),
    ],
)
def test_groups_are_read(value: object, kinds: tuple[str, ...]) -> None:
    assert parse_groups(value) == kinds


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nodes", "Did you mean node"),
        ([], "no group is chosen"),
        ("0-1/1-2", "rank 1 is in it twice"),
        ("3-1", "3-1 is an empty range: write 1-3"),
        ("0-1/", "'0-1/' is no groups of ranks: write them as 0-1/2-3 or 0,2/1,3"),
        ("0;1", "is no groups of ranks"),
        ("0-9999999", "names more than 1000000 numbers"),
    ],
)
def test_what_is_no_groups_is_refused(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_groups(value)


@pytest.mark.parametrize(
    ("size", "words"), [(3, "there is no rank 3; this run has ranks 0 to 2"), (1, "no rank 1; this run has rank 0 al")]
)
def test_a_rank_that_does_not_exist_is_named(size: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        members_of("0-3", (0,) * size)

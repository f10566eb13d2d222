"""launch.bind as the user writes it."""

from __future__ import annotations

import pytest

from launcher.binding.masks import KINDS, MAP, BindRequest, parse
from launcher.errors import ConfigError


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != MAP])
def test_words(kind: str) -> None:
    assert parse(kind) == BindRequest(kind)


def test_lists() -> None:
    assert parse("map:0-1,8:2,3") == BindRequest("map", ((0, 1, 8), (2, 3)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("numas", "Did you mean numa"),
        ("", "is not auto"),
        ("map", "is not auto"),
        ("auto:0", "is not auto"),
        ("map:", "'' is not a list"),
        ("map:0::1", "'' is not a list"),
        ("map:3-1", "'3-1' is not a list"),
        ("map:0-3:3-5", "CPU 3 is given to local rank 0 and to local rank 1"),
        ("map:0,0", "CPU 0 is given to local rank 0 and to local rank 0"),
    ],
)
def test_what_is_none_of_these_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)

"""Any value is the same value again when Hydra and OmegaConf have read it, once in a run and twice in a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.overrides import element, opened, texts
from launcher.config.schema import MISSING

TEXTS = st.text(alphabet="ab0e \\'\"${}[](),:=\n?.-/~@", max_size=12).filter(lambda text: text != MISSING)


def read(text: str) -> Any:
    """What comes of a value on the command line; in a sweep, Hydra writes it out and reads it again."""
    parser = OverridesParser.create()
    override = parser.parse_override(f"key={text}")
    again = parser.parse_override(f"key={override.get_value_element_as_str()}")
    assert again.value() == override.value()
    config = OmegaConf.create({"key": None})
    OmegaConf.update(config, "key", override.value())
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return resolved["key"]


@given(TEXTS)
@example("${oc.env:HOME}")
@example("\\${a}\\")
@example("it's \\'so\\'")
def test_a_text_is_that_text(text: str) -> None:
    assert read(element(text)) == text
    assert read(element([text, "b"])) == [text, "b"]
    assert (texts(element(text)), texts(element([text, "b"]))) == ([text], [text, "b"])


@pytest.mark.parametrize(
    "value", ["", "a", "'a", "'a','b'", "['a'", "[a]", "'${oc.env:HOME}'", "'a\\'", "[1,'a']", '"a"']
)
def test_what_was_written_in_another_way_is_none_of_our_texts(value: str) -> None:
    assert texts(value) is None


@pytest.mark.parametrize("value", [0.1, -3, 1e-05, True, None, "true", "null", "0.1", [], {"a": [1, "b"]}])
def test_other_values_keep_their_type(value: Any) -> None:
    assert read(element(value)) == value
    assert type(read(element(value))) is type(value)


@pytest.mark.parametrize(
    "key",
    ["run_id", "name", "sweep.id", "cluster.qos", "cluster.environment.A", "+cluster.rank_environment.A"],
)
@pytest.mark.parametrize(
    "typed",
    ["1e3", "1E-3", "true", "False", "1_000", "007", "1.50", ".5", "5.", "inf", "NaN", "+5", "lr", "1e3x", "8", "0.5"],
)
def test_a_text_is_what_was_typed(key: str, typed: str) -> None:
    (override,) = opened([f"{key}={typed}"])
    assert str(OverridesParser.create().parse_override(override).value()) == typed


@pytest.mark.parametrize(
    "word",
    [
        "workload.lr=1e-3", "seed=1_000", "time=1_0", "mem=1e3", "checkpoint.memory=1_000", "preflight=true",
        "cluster.account=null", "cluster.account=${seed}", "cluster.account=choice(1.10,1.20,1.30)",
        "cluster.account=[1.10]", "+cluster.environment.A=null", "~cluster.environment.A=true", "hydra.x=1e3",
        r"cluster.account=a\,1.10",
    ],
)  # fmt: skip
def test_what_is_no_text_stays_as_it_is(word: str) -> None:
    assert opened([word]) == [word]


def test_values_of_a_multirun_are_quoted_one_by_one() -> None:
    assert opened(["cluster.environment.A=1.10, b,8"]) == ["++cluster.environment.A='1.10',b,8"]

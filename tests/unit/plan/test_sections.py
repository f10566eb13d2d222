"""A plan's sections have the names and, resolved, the types of the config's; the keys that they lack are listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from launcher.config import schema
from launcher.config.schema import Form
from launcher.errors import ConfigError
from launcher.plan import build
from launcher.plan.plan import JobPlan

# Keys that a plan does not have, for only the submitting machine needs them; those of its workload are in params.
BEFORE = {
    "cluster": {"required", "limits", "pools", "check", "race"},
    "env": {"snapshot"},
    "debug": {"rank"},  # `ranks`, when it is known how many there are
    "workload": {"min_ranks", "seed", "hook"},
}
FORMS: dict[Form, Any] = {
    Form.time: int, Form.memory: int, Form.natural: int, Form.positive: float, Form.ports: tuple[int, int],
    Form.flat: Mapping[str, Any], Form.steps: int | None,
}  # fmt: skip
# What several keys decide together, so that it is never empty, or is written in a way of its own.
RICHER = {"checkpoint.dir": str, "resume.lead": int, "tracking.experiment": str,
          "cluster.environment": Mapping[str, str | None], "cluster.rank_environment": Mapping[str, str],
          "cluster.expects": Mapping[str, list[str]]}  # fmt: skip
NAMES = [each.name for each in fields(JobPlan) if is_dataclass(get_type_hints(JobPlan)[each.name])]
MIRRORED = [name for name in NAMES if name not in ("code", "archive")]


def resolved_type(hint: Any) -> Any:
    """The type that a plan has for a key of this type."""
    if type(None) in get_args(hint):
        (inner,) = (each for each in get_args(hint) if each is not type(None))
        return resolved_type(inner) | None
    for form in getattr(hint, "__metadata__", ()):
        return FORMS[form]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str
    if get_origin(hint) is list:
        return tuple.__class_getitem__((get_args(hint)[0], ...))
    return Mapping[str, Any] if get_origin(hint) is dict else hint


@pytest.mark.parametrize("name", MIRRORED)
def test_a_section_has_the_keys_of_the_configs_in_their_resolved_types(name: str) -> None:
    keys = get_type_hints(get_type_hints(schema.Config)[name], include_extras=True)
    mine = get_type_hints(get_type_hints(JobPlan)[name])
    assert set(keys) - set(mine) == BEFORE.get(name, set())
    for key in set(keys) & set(mine):
        assert mine[key] == RICHER.get(f"{name}.{key}", resolved_type(keys[key])), key
    order = [key for key in mine if key in keys]
    assert order == [key for key in keys if key in mine]


def test_every_section_of_the_config_is_one_of_the_plan() -> None:
    hints = get_type_hints(schema.Config)
    assert {name for name, hint in hints.items() if is_dataclass(hint)} - set(MIRRORED) == {"sweep"}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("nodes", 2, 2),
        ("time", "90m", 5400),
        ("mem", "2K", 2048),
        ("mem", None, None),
        ("time", "soon", "x.time: 'soon' is not a time"),
    ],
)
def test_a_value_is_resolved_as_the_type_of_its_key_says(key: str, value: Any, expected: Any) -> None:
    config = schema.Config(**{key: value})
    if isinstance(expected, str):
        with pytest.raises(ConfigError) as refusal:
            build.resolved_value(config, key, "x.")
        assert str(refusal.value).startswith(expected)
    else:
        assert build.resolved_value(config, key) == expected

"""The template from which the records of a search's points are made, on compute nodes, without Hydra.

The submitter composes a few points with Hydra: it changes one key at a time, to each of its choices, or to the
smallest and the largest number (`Dimension.ends`). The fields of the record that differ depend on this key; all other
fields are the same for all points. Works without Optuna, as sweeps without a search do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.config.search_space import Space
from launcher.errors import ConfigError

Path = tuple[str | int, ...]  # keys that lead to a field of a record


def template_of(
    first: Mapping[str, Any], moved: Mapping[str, Any], others: Mapping[str, Mapping[str, Mapping[str, Any]]],
    space: Space, names: tuple[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Returns the template for the records of a search's points, as JSON types; `record_of` uses it.

    first, moved: records of points 0 and 1 (`names`: SWEEP/0, SWEEP/1), both with the first value of each key.
    others: for each key and each of its composed values, the record of point 0 with this value.
    Raises ConfigError: a field differs between points 0 and 1 in more than the id; a number is only a part of a field;
        or a field depends on two keys.
    """
    old, new = dict(_leaves(first)), dict(_leaves(moved))
    own = [path for path in old if old[path] != new.get(path)]
    for path in own:
        if not isinstance(old[path], str) or old[path].replace(*names) != new.get(path):
            raise ConfigError(f"{_dotted(path)} is another one for each point, and does not follow from the point's id")
    of_key: dict[Path, str] = {}
    choices: dict[str, dict[str, list[tuple[Path, Any]]]] = {}
    numbers: dict[str, list[Path]] = {}
    for key, dimension in space.items():
        records = {text: dict(_leaves(record)) for text, record in others[key].items()}
        paths = {path: None for leaves in records.values() for path in _differing(old, leaves)}
        for path in paths:
            if of_key.setdefault(path, key) != key:
                raise ConfigError(
                    f"{_dotted(path)} depends on {of_key[path]} and on {key}: a search can change one of them"
                )
        if dimension.choices:
            choices[key] = {
                text: [(path, _at(others[key][text], path)) for path in paths] for text in dimension.choices
            }
            continue
        for text, record in others[key].items():
            for path in paths:
                if (found := _at(record, path)) != float(text) or isinstance(found, bool):
                    raise ConfigError(
                        f"{_dotted(path)} is made of {key}, and is not its value alone ({found!r} of {text}): give it "
                        "a list of values instead of an interval or a range"
                    )
        numbers[key] = list(paths)
    return {"record": first, "name": names[0], "own": own, "choices": choices, "numbers": numbers}


def record_of(template: Mapping[str, Any], name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the record of a point (`SWEEP/7`) from `template_of`'s result, as read from JSON."""
    record = copy.deepcopy(template["record"])
    for path in template["own"]:
        _set(record, path, _at(record, path).replace(template["name"], name))
    for each in overrides:
        key, _, text = each.partition("=")
        for path, value in template["choices"].get(key, {}).get(text, ()):
            _set(record, path, value)
        for path in template["numbers"].get(key, ()):
            whole = isinstance(_at(record, path), int)
            _set(record, path, int(text) if whole else float(text))
    record["overrides"] = list(overrides)
    return record


_NOTHING: Any = object()


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, (*path, key))
    else:
        yield path, value


def _differing(one: Mapping[Path, Any], other: Mapping[Path, Any]) -> list[Path]:
    found = [path for path in one if path in other and one[path] != other[path]]
    for path in {**one, **other}:
        if (path in one) != (path in other):
            found.append(path[:-1])
    return list(dict.fromkeys(found))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _set(value: Any, path: Path, new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def _dotted(path: Path) -> str:
    return ".".join(map(str, path[1:] or path))

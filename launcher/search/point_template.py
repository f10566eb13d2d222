"""The template from which the records of a search's points are made, on compute nodes, without Hydra.

The submitter composes a few points with Hydra: it changes one key at a time, to each of its choices, or to the
smallest and the largest number (`Dimension.ends`). The fields of the record that differ depend on this key; all other
fields are the same for all points. Works without Optuna, as sweeps without a search do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    Raises ConfigError: a field differs between points 0 and 1 in more than the id; a number is a part of a field but
        not its end (as in `--lr 0.1`, `lr=0.1`); or a field depends on two keys.
    """
    old, new = dict(_leaves(first)), dict(_leaves(moved))
    own = [path for path in old if old[path] != new.get(path)]
    for path in own:
        if not isinstance(old[path], str) or old[path].replace(*names) != new.get(path):
            raise ConfigError(f"{_dotted(path)} is another one for each point, and does not follow from the point's id")
    of_key: dict[Path, str] = {}
    choices: dict[str, dict[str, list[tuple[Path, Any]]]] = {}
    numbers: dict[str, list[Path]] = {}
    texts: dict[str, list[tuple[Path, str]]] = {}  # fields that end with the number, with what is before it
    for key, dimension in space.items():
        records = {text: dict(_leaves(record)) for text, record in others[key].items()}
        paths = _outermost(path for leaves in records.values() for path in _differing(old, leaves))
        for path in paths:
            for other, its_key in of_key.items():
                if path[: len(other)] == other[: len(path)]:
                    both = f"{its_key} and on {key}"
                    raise ConfigError(f"{_dotted(path)} depends on {both}: a search can change one of them")
        of_key.update(dict.fromkeys(paths, key))
        if dimension.choices:
            choices[key] = {
                text: [(path, _at(others[key][text], path)) for path in paths] for text in dimension.choices
            }
            continue
        numbers[key], texts[key] = [], []
        for path in paths:
            found = {text: _at(record, path) for text, record in others[key].items()}
            if all(value == float(text) and not isinstance(value, bool) for text, value in found.items()):
                numbers[key].append(path)
            elif (before := _before_the_number(found)) is not None:
                texts[key].append((path, before))
            else:
                text, value = next(iter(found.items()))
                raise ConfigError(
                    f"{_dotted(path)} is made of {key}, and does not end with its value ({value!r} of {text}): give it "
                    "a list of values instead of an interval or a range"
                )
    return {"record": first, "name": names[0], "own": own, "choices": choices, "numbers": numbers, "texts": texts}


def record_of(template: Mapping[str, Any], name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the record of a point (`SWEEP/7`) from `template_of`'s result, as read from JSON."""
    record = copy.deepcopy(template["record"])
    for path in template["own"]:
        _set(record, path, _at(record, path).replace(template["name"], name))
    for each in overrides:
        key, _, text = each.partition("=")
        for path, value in template["choices"].get(key, {}).get(text, ()):
            _set(record, path, _renamed(value, template["name"], name))
        for path in template["numbers"].get(key, ()):
            whole = isinstance(_at(record, path), int)
            _set(record, path, int(text) if whole else float(text))
        for path, before in template["texts"].get(key, ()):
            _set(record, path, f"{_renamed(before, template['name'], name)}{text}")
    record["overrides"] = list(overrides)
    return record


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, (Mapping, list)) and value:
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(each, (*path, key))
    else:
        yield path, value


def _differing(one: Mapping[Path, Any], other: Mapping[Path, Any]) -> list[Path]:
    found = [path for path in one if path in other and one[path] != other[path]]
    for path, value in {**one, **other}.items():
        if (path in one) != (path in other):
            found.append(path if value in ({}, []) else path[:-1])
    return found


def _outermost(paths: Iterable[Path]) -> list[Path]:
    # Without fields that are in another one of them
    found = dict.fromkeys(paths)
    return [path for path in found if not any(path[:end] in found for end in range(len(path)))]


def _before_the_number(found: Mapping[str, Any]) -> str | None:
    # What all these texts have before their number (`lr=` of `lr=0.1`); None: one is no text, or does not end with it
    before = set()
    for text, value in found.items():
        number = next(
            (each for each in (text, str(float(text))) if isinstance(value, str) and value.endswith(each)), None
        )
        before.add(None if number is None else value.removesuffix(number))
    return before.pop() if len(before) == 1 else None


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _set(value: Any, path: Path, new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def _renamed(value: Any, name: str, new: str) -> Any:
    # With the id of another point: `value` is from the record of the template's point
    if isinstance(value, str):
        return value.replace(name, new)
    if isinstance(value, list):
        return [_renamed(each, name, new) for each in value]
    return {key: _renamed(each, name, new) for key, each in value.items()} if isinstance(value, Mapping) else value


def _dotted(path: Path) -> str:
    return ".".join(map(str, path[1:] or path))

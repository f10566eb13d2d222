"""Golden files: what the product prints and writes, kept as text in this folder. `make golden` writes them anew.

Whole texts have a file each. Of many similar ones a file has what differs: the rows of a plan, the keys of a record.
JSON that commands print is a line of the command's file, without the keys that are null.

formats/written/      records, journals and events, as the launcher writes them
formats/runs/         run directories, each as one file; written by hand
formats/answers/      recorded output of schedulers' commands: a command with wildcards, and below it its output
formats/json_output/  what commands print with --json about these runs, with these answers
"""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FORMATS = HERE / "formats"
SHOWN = 200  # at most so many lines of a difference are shown
GONE = "<gone>"  # a key that only the base of a record has
NULLS = "null"  # of a JSONL file's first line
update = False  # `make golden`: write the files instead of comparing with them


def check(name: str, text: str) -> None:
    """Compares a text with the golden file of this name, a path in this folder; fails the test if they differ."""
    path = HERE / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    else:
        _compare(name, path.read_text() if path.exists() else "", text)


def check_lines(name: str, start: str, lines: list[str]) -> None:
    """Compares lines with those of a golden file that start with `start` and a space; the file has other tests' too."""
    path = HERE / name
    before = path.read_text().splitlines() if path.exists() else []
    lines = [f"{start} {line}" for line in lines]
    own = [line for line in before if line.startswith(f"{start} ")]
    if not update:
        _compare(name, "\n".join([*own, ""]), "\n".join([*lines, ""]))
    elif own != lines:
        path.write_text("".join(f"{line}\n" for line in [*(line for line in before if line not in own), *lines]))


def check_json(command: str, name: str, text: str) -> None:
    """Compares JSON with the line `name` of a command's golden file.

    The file's first line has the keys that are null in some output, by the place of their object: an object without one
    of them in a later line has null there.
    """
    path = FORMATS / "json_output" / f"{command}.jsonl"
    value, outputs = json.loads(text), lines_of(path)
    nulls = outputs.pop(NULLS, {})
    if update:
        found = defaultdict(set, {place: set(keys) for place, keys in nulls.items()})
        _find_nulls(value, "", found)
        outputs[name] = _without_nulls(value)
        lines = [(NULLS, {place: sorted(found[place]) for place in sorted(found)}), *sorted(outputs.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps({title: line})}\n" for title, line in lines))
        return
    file = f"formats/json_output/{command}.jsonl: {name}"
    frozen = outputs.get(name)
    _compare(file, json.dumps(frozen, indent=1), json.dumps(_without_nulls(value), indent=1))
    whole = _with_nulls(frozen, "", nulls)
    _compare(file, *(json.dumps(each, indent=1, sort_keys=True) for each in (whole, value)))


def check_files(folder: str, names: list[str]) -> None:
    """Checks that a folder has no golden file but these; `make golden` removes the others."""
    others = sorted({path.name for path in (HERE / folder).iterdir()} - set(names))
    if update:
        for name in others:
            (HERE / folder / name).unlink()
    else:
        assert others == [], f"no test looks at these files of tests/golden/{folder}: `make golden` removes them"


def lines_of(path: Path) -> dict[str, Any]:
    """Returns the lines of a JSONL file by their names; empty if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: value for line in lines for name, value in json.loads(line).items()}


def sections(name: str, mark: str) -> list[tuple[str, str]]:
    """The parts of a file of formats/: each begins with a line `MARK title`; before the first there is a comment."""
    found: list[tuple[str, list[str]]] = []
    for line in (FORMATS / name).read_text().splitlines(keepends=True):
        if line.startswith(f"{mark} "):
            found.append((line[len(mark) + 1 :].rstrip("\n"), []))
        elif found:
            found[-1][1].append(line)
    return [(title, "".join(lines)) for title, lines in found]


def rows(record: dict[str, Any], base: dict[str, Any], start: str = "") -> dict[str, Any]:
    """Returns what differs between nested dicts, by dotted keys; `GONE` stands for a key that only the base has."""
    found: dict[str, Any] = {}
    for key in [*record, *(key for key in base if key not in record)]:
        value, before = record.get(key, GONE), base.get(key, GONE)
        if isinstance(value, dict) and isinstance(before, dict):
            found |= rows(value, before, f"{start}{key}.")
        elif value != before:
            found[f"{start}{key}"] = value
    return found


def put(record: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value of a dotted key in nested dicts; removes it if that is `GONE`."""
    *way, last = key.split(".")
    for each in way:
        record = record[each]
    if value == GONE:
        del record[last]
    else:
        record[last] = value


def _find_nulls(value: Any, place: str, found: dict[str, set[str]]) -> None:
    """Adds the keys that are null to `found`, by the place of their object."""
    if isinstance(value, dict):
        for key, each in value.items():
            if each is None:
                found[place].add(key)
            _find_nulls(each, f"{place}.{key}", found)
    elif isinstance(value, list):
        for each in value:
            _find_nulls(each, f"{place}[]", found)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _with_nulls(value: Any, place: str, nulls: dict[str, list[str]]) -> Any:
    if isinstance(value, dict):
        known = dict.fromkeys(nulls.get(place, ()))
        return known | {key: _with_nulls(each, f"{place}.{key}", nulls) for key, each in value.items()}
    return [_with_nulls(each, f"{place}[]", nulls) for each in value] if isinstance(value, list) else value


def _compare(name: str, before: str, now: str) -> None:
    if before == now:
        return
    file = f"tests/golden/{name}"
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), file, "now", lineterm=""))
    more = [f"... and {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else []
    pytest.fail(
        "\n".join([*lines[:SHOWN], *more, "", f"If {file} is to change: `make golden`, and read `git diff`."]),
        pytrace=False,
    )

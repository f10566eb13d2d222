"""Rewrites Hydra's errors about configuration files as our messages: file, key, what is wrong, near matches."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from pathlib import Path

from launcher.config import schema
from launcher.config.keys import all_keys, keys_of, of_other_schedulers
from launcher.errors import near
from launcher.paths import choices, resource, user_config_dir

IN_FILE = re.compile(r"In '([^']+)': (.*)", re.DOTALL)
WRONG_TYPE = re.compile(r"Value '(.*?)'(?: of type '\w+')? (?:could not be converted to|is not a(?: valid)?) (\w+)")
NO_CHOICE = re.compile(r"Invalid value '(.*?)', expected one of \[(.*)\]")
LIST = re.compile(r"Invalid value assigned: \w+ is not a ListConfig")
SECTION = re.compile(r"is not a DictConfig|Cannot assign \w+ to Dict|Invalid type assigned: \w+ is not a subclass of")
NULL = re.compile(r"NoneType is not a subclass of (str|int|float|bool)\b|field '[^']*' is not Optional")
KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false", "bool": "true or false"}


def explain(text: str, kind: type | None) -> str | None:
    """Returns our text for Hydra's error about a key of a section of class `kind`; None: another error."""
    match = IN_FILE.match(text)
    if match is None:
        return None
    name, message = match[1], match[2]
    where = str(file_of(name))
    group = name.rpartition("/")[0]
    if missing := re.search(r"Could not (?:load|find) '([^']+)'", message):
        if not group:  # the main file: it was chosen on the command line
            return None
        wanted = missing[1].rpartition("/")[2]
        known = [each for each in choices(group) if each != name.rpartition("/")[2]]
        return f"{where}: there is no {missing[1]} to start from.{near(wanted, known)} Known: {', '.join(known)}"
    key = next(iter(re.findall(r"full_key: (.+)", message)), "")
    if re.search(r"Key '[^']+' (is )?not in", message):
        if kind is schema.Cluster:
            return no_scheduler(name.rpartition("/")[2])
        if words := of_other_schedulers(key, kind):
            return f"{where}: {words}"
        return (
            f"{where}: there is no key {_short(key, group)!r}.{_near(key, group, kind)} `launcher help --all` lists all"
        )
    if key and (why := wrong_value(message)):
        value = NO_CHOICE.search(message) or WRONG_TYPE.search(message)
        return f"{where}: {_short(key, group)}{f'={value[1]}' if value else ''}: {why}"
    if "Cannot merge" in message:
        at = f"{_short(key, group)}: " if key else ""
        return f"{where}: {at}a list is given where a section ({{NAME: VALUE}}) is needed, or vice versa"
    if "is not a subclass of" in message:
        return f"{where}: it must have lines of the form KEY: VALUE"
    lines = [line.strip() for line in message.splitlines()[1:] if line.strip()]
    first = next(
        (line for line in lines if not line.startswith(("full_key", "object_type", "reference_type"))), message
    )
    return f"{where}: {_short(key, group) + ': ' if key else ''}{first}"


def no_scheduler(name: str) -> str:
    """Returns the text of the error that a profile names no scheduler."""
    return f"the profile of cluster={name} names no scheduler: begin its file with `defaults: [slurm, _self_]`, or pbs"


def wrong_value(message: str) -> str | None:
    """Returns the text about what a value must be, for an error about its type; None: the error is another one."""
    if choice := NO_CHOICE.search(message):
        known = [word.strip() for word in choice[2].split(",")]
        return f"it is one of {', '.join(known)}.{near(choice[1], known)}"
    if value := WRONG_TYPE.search(message):
        return f"it must be {KINDS.get(value[2], value[2])}"
    if NULL.search(message):
        return "null cannot be one of its values: leave it out, or quote the word ('null')"
    if LIST.search(message):
        return "it must be a list ([one, two])"
    return "it must be a section of its own ({NAME: VALUE})" if SECTION.search(message) else None


def in_yaml(error: Exception) -> str:
    """Returns our text for a YAML error: the file, the line and the reason."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    why = getattr(error, "problem", None) or str(error)
    if why.startswith("found duplicate key"):
        why += ". Next to `cluster: NAME`, give the keys of a section as separate lines (`cluster.account: me`)"
    if mark is None:
        return f"a file of the configuration is not valid YAML: {why}"
    return f"{mark.name}, line {mark.line + 1}: this is not valid YAML: {why}"


def place_of(key: str) -> str:
    """Returns `FILE: `, the start of an error, for the user's file that sets a key; empty: no such file sets it."""
    pattern = re.compile(rf"^[^#]*\b{re.escape(key)}\b", re.MULTILINE)
    folder = user_config_dir()
    for path in (folder / "user.yaml", *sorted((folder / "cluster").glob("*.yaml"))):
        if path.is_file() and pattern.search(path.read_text(errors="replace")):
            return f"{path}: "
    return ""


def file_of(name: str) -> Path:
    """Returns the file of a config by its name (`cluster/mine`). The user's file takes precedence over ours."""
    own = user_config_dir() / f"{name}.yaml"
    return own if own.exists() else resource("conf") / f"{name}.yaml"


def _short(key: str, group: str) -> str:
    return key.removeprefix(f"{group}.")


def _near(key: str, group: str, kind: type | None) -> str:
    inside = f"{key.rpartition('.')[0]}."
    names = [each.name for each in keys_of(kind, inside)] if kind is not None and is_dataclass(kind) else all_keys()
    known = [_short(each, group) for each in names if each.startswith(f"{group}.") or not group]
    return near(_short(key, group), known)

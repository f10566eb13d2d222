"""Converts Hydra's errors about overrides to ConfigErrors, which name the override and what to write instead."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import MissingMandatoryValue
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config import profile_errors
from launcher.config.hydra_text import key_of, quoted
from launcher.config.keys import as_typed, of_other_schedulers, types_of_keys, workloads_with
from launcher.errors import ConfigError, near
from launcher.own_module import program
from launcher.paths import GROUPS, choices

NO_NAME = re.compile(r"[-+]?[\d.]+|true|false|null", re.IGNORECASE)


@contextlib.contextmanager
def in_our_words(arguments: Sequence[str]) -> Iterator[None]:
    """Converts errors of Hydra, OmegaConf and YAML about these overrides in the block to ConfigErrors."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, arguments)) from None
    except YAMLError as error:  # it names the file and the line
        raise ConfigError(profile_errors.in_yaml(error)) from None


def explain(error: Exception, arguments: Sequence[str]) -> str:
    """Returns our text for a composition error: the override or file, what is wrong with it, and near matches."""
    text = str(error)
    kind = getattr(error.__cause__ or error.__context__, "object_type", None)
    if explained := profile_errors.explain(text, kind):
        return explained
    if isinstance(error.__cause__, MissingMandatoryValue) and all(key_of(word) != "workload" for word in arguments):
        return no_workload()
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        options = [option for option in error.options if option != "user"]
        typed = any(key_of(word) == group for word in arguments)  # else it is from user.yaml
        where = "" if typed else f"{profile_errors.file_of('user')}: "
        return f"{where}there is no {group}={choice}.{near(choice, options)} Known: {', '.join(options)}"
    if match := re.search(r"Could not (?:override|append to config) '([^'=]+)", text):
        key = match[1].lstrip("+")
        return of_other_schedulers(key, kind) or _unknown_key(key, arguments)
    if match := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        key, value = match[1].lstrip("+"), match[2]
        as_list, as_text = shlex.quote(f"{key}=[{value}]"), shlex.quote(f'{key}="{value}"')
        return f"{key}={value}: write {as_list} for a list, {as_text} for a text, or add -m for a sweep"
    if hint := _unreadable(arguments):
        return hint
    cause = str(error.__cause__ or error)
    first, *rest = [line.strip() for line in cause.splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in rest if line.startswith("full_key: ")), "")
    value = next((word for word in reversed(arguments) if key and key_of(word) == key), key)
    why = profile_errors.wrong_value(cause) or first
    return f"{value}: {why}" if value else why


def require_names(arguments: Sequence[str]) -> None:
    """Raises ConfigError for overrides for which Hydra would print a traceback (`=value`, a group set to a number)."""
    for word in arguments:
        key, equals, value = word.partition("=")
        if equals and (not key or (key in GROUPS and any(NO_NAME.fullmatch(each) for each in value.split(",")))):
            raise ConfigError(f"{word}: {'it must be the name of one' if key else 'there is no key in front of the ='}")


def no_workload() -> str:
    """Returns the text of the error that no workload was chosen."""
    return (
        f"no workload: add workload=NAME, with one of {', '.join(choices('workload'))}; or, for a script of your own, "
        f"{program()} run SCRIPT"
    )


def _unknown_key(key: str, arguments: Sequence[str]) -> str:
    known = types_of_keys(arguments)
    words = f"there is no key {key!r}.{near(key, known if '.' in key else [*GROUPS, *known])}"
    if owners := workloads_with(key):
        words += f" There is one with workload={' or '.join(owners)}."
    if any(key_of(word) in ("workload.script", "workload.module") for word in arguments):
        words += " Arguments of your own program follow `--`."
    return f"{words} `{program()} help --all` lists all"


def _unreadable(arguments: Sequence[str]) -> str | None:
    for number, word in enumerate(map(as_typed, arguments)):
        key, equals, value = word.partition("=")
        if word.startswith("-") or _parses(word):
            continue
        if equals and key:
            readable = _readable(key, value)
            hint = f"{word}: the value is not valid in Hydra's grammar: correct it, or quote it as a text: {readable}"
            alternative = "; or, without quotes, after `--` (run SCRIPT -- ARGUMENTS)"
            return hint + (alternative if key_of(word) == "workload.args" else "")
        if not (number and arguments[number - 1].startswith("-")):  # else it is an option's value
            return f"{word!r} is neither a command nor KEY=VALUE"
    return None


def _readable(key: str, value: str) -> str:
    # In a list, only elements that need quotes get them
    if value.startswith("[") and value.endswith("]"):
        elements = [each if _parses(f"k=[{each}]") else _in_quotes(each) for each in value[1:-1].split(",")]
        if _parses(whole := f"{key}=[{','.join(elements)}]"):
            return shlex.quote(whole)
    return shlex.quote(f"{key}={_in_quotes(value)}")


def _in_quotes(text: str) -> str:
    # Returns a string quoted for Hydra: in double quotes if possible, since the shell's quotes are single ones
    return quoted(text) if any(each in text for each in '"\\$') else f'"{text}"'


def _parses(word: str) -> bool:
    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return False
    return True

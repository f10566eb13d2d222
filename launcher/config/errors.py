"""Rewrites Hydra's errors as our messages: the override, option, or file and key, what is wrong, what to write instead.

Hydra is imported within functions, since `help` uses this module without it.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config import schema
from launcher.config.keys import all_keys, keys_of, known_keys, of_other_schedulers, workloads_with
from launcher.config.overrides import as_typed, key_of, quoted
from launcher.errors import ConfigError, near, program
from launcher.paths import GROUPS, choices, resource, user_config_dir

if TYPE_CHECKING:
    from argparse import Namespace

A_LIST, A_SECTION = "it must be a list ([one, two])", "it must be a section ({NAME: VALUE})"
NO_NAME = re.compile(r"[-+]?[\d.]+|true|false|null", re.IGNORECASE)
IN_FILE = re.compile(r"In '([^']+)': (.*)", re.DOTALL)
WRONG_TYPE = re.compile(r"Value '(.*?)'(?: of type '\w+')? (?:could not be converted to|is not a(?: valid)?) (\w+)")
NO_CHOICE = re.compile(r"Invalid value '(.*?)', expected one of \[(.*)\]")
NO_TEXT = re.compile(r"Cannot convert '\w+' to string")
LIST = re.compile(r"Invalid value assigned: \w+ is not a ListConfig")
SECTION = re.compile(r"is not a DictConfig|Cannot assign \w+ to Dict|Invalid type assigned: \w+ is not a subclass of")
NULL = re.compile(r"NoneType is not a subclass of (str|int|float|bool)\b")
NO_NULL = re.compile(r"field '[^']*' is not Optional")
KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false", "bool": "true or false"}


@contextlib.contextmanager
def in_our_words(arguments: Sequence[str]) -> Iterator[None]:
    """Converts errors of Hydra, OmegaConf and YAML about these overrides in the block to ConfigErrors."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with with_place(arguments):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, arguments)) from None
    except YAMLError as error:  # it names the file and the line
        raise ConfigError(in_yaml(error)) from None
    except RecursionError:
        why = "starts from itself by its `defaults`: give it another name than the one from which it starts"
        deep = "a value is nested too deeply (lists or sections in each other)"
        raise ConfigError(f"{deep}, or a file in {user_config_dir()} {why}") from None


def explain(error: Exception, arguments: Sequence[str]) -> str:
    """Returns our text for a composition error: the override or file, what is wrong with it, and near matches."""
    from hydra.errors import MissingConfigException
    from omegaconf import MissingMandatoryValue

    text = str(error)
    kind = getattr(error.__cause__ or error.__context__, "object_type", None)
    missing = error.missing_cfg_file or "" if isinstance(error, MissingConfigException) and error.options else ""
    group = next((each for each in GROUPS if missing.startswith(f"{each}/")), missing.rpartition("/")[0])
    choice = missing[len(group) + 1 :]
    was_typed = f"{group}={choice}" in [word.lstrip("+") for word in arguments]
    if not was_typed and (explained := _about_a_file(text, kind)):
        return explained
    if isinstance(error.__cause__, MissingMandatoryValue) and all(key_of(word) != "workload" for word in arguments):
        return no_workload()
    if isinstance(error, MissingConfigException) and error.options:
        options = [option for option in error.options if option != "user"]
        typed = next((word for word in reversed(arguments) if key_of(word) == group), None)  # else it is from user.yaml
        where = place_of(group, arguments) or f"{file_of('user')}: "
        if typed is not None:
            where = f"{typed}: " if "${" in typed else ""
        return f"{where}there is no {group}={choice}.{near(choice, options)} Known: {', '.join(options)}"
    if match := re.search(r"Could not (?:override|append to config) '([^'=]+)", text):
        key = match[1].lstrip("+")
        return of_other_schedulers(key, kind) or _unknown_key(key, arguments)
    if match := re.search(r"Could not delete from config\. '([^']+)' does not exist", text):
        return f"~{match[1]}: there is no key {match[1]!r} that could be removed"
    if match := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        key, value = match[1].lstrip("+"), match[2]
        as_list, as_text = shlex.quote(f"{key}=[{value}]"), shlex.quote(f'{key}="{value}"')
        return f"{key}={value}: add -m for a sweep of these values, or write {as_list} for a list, {as_text} for a text"
    if hint := _unreadable(arguments):
        return hint
    cause = str(error.__cause__ or error)
    first, *rest = [line.strip() for line in cause.splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in rest if line.startswith("full_key: ")), "")
    value = next((word for word in reversed(arguments) if key and key_of(word) == key), key)
    why = wrong_value(cause, key, arguments) or first
    return f"{value}: {why}" if value else why


def require_names(arguments: Sequence[str]) -> None:
    """Raises ConfigError for overrides for which Hydra would print a traceback (`=value`, a group set to a number)."""
    for word in arguments:
        key, equals, value = word.partition("=")
        if equals and (not key or (key in GROUPS and any(NO_NAME.fullmatch(each) for each in value.split(",")))):
            known = f"it must be one of {', '.join(choices(key))}" if key else "there is no key in front of the ="
            raise ConfigError(f"{word}: {known}")


def require_options(arguments: Sequence[str]) -> Namespace:
    """Returns Hydra's options among these; ConfigError for what Hydra would refuse with its usage, or a traceback."""
    from argparse import ArgumentError

    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    known = list(parser._option_string_actions)
    for word in arguments:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            key = option.lstrip("-").replace("-", "_")
            meant = f" Keys have no dashes: {key}=VALUE" if key in all_keys() else near(option, known)
            meant = meant or near(key, all_keys(), keys=True) or f" `{program()} --help` lists them"
            raise ConfigError(f"there is no option {option!r}.{meant}")
    parser.exit_on_error = False
    try:
        given, unknown = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise ConfigError(f"{error.argument_name}: {error.message}") from None
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is neither a command nor KEY=VALUE")
    modes = [f"--{name}" for name in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(given, name)]
    if len(modes) > 1:
        raise ConfigError(f"{' and '.join(modes)} exclude each other: leave one of them out")
    if given.config_dir and not Path(given.config_dir).is_dir():
        raise ConfigError(f"--config-dir {given.config_dir}: there is no such folder")
    if given.resolve and not given.cfg:
        raise ConfigError("--resolve is for --cfg: add --cfg job")
    return given


def no_workload() -> str:
    return (
        f"no workload: add workload=NAME, with one of {', '.join(choices('workload'))}; or, for a script of your own, "
        f"{program()} run SCRIPT"
    )


def _unknown_key(key: str, arguments: Sequence[str]) -> str:
    known = known_keys(arguments)
    words = f"there is no key {key!r}.{near(key, known if '.' in key else [*GROUPS, *known], keys=True)}"
    words += _of_workloads(key)
    if any(key_of(word) in ("workload.script", "workload.module") for word in arguments):
        words += " Arguments of your own program follow `--`."
    return f"{words} `{program()} help --all` lists all"


def _of_workloads(key: str) -> str:
    owners = workloads_with(key)
    return f" There is one with workload={' or '.join(owners)}." if owners else ""


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
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return False
    return True


# -- Errors in files of the configuration


def _about_a_file(text: str, kind: type | None) -> str | None:
    # Our text for Hydra's error about a key of a section of class `kind`; None: another error
    match = IN_FILE.match(text)
    if match is None:
        return None
    name, message = match[1], match[2]
    key = next(iter(re.findall(r"full_key: (.+)", message)), "")
    where = f"{file_of(name)}, line {line}" if (line := _keys_in(name).get(key, (0,))[0]) else str(file_of(name))
    group = name.rpartition("/")[0]
    if missing := re.search(r"Could not (?:load|find) '([^']+)'", message):
        if not group:  # the main file: it was chosen on the command line
            return None
        wanted = missing[1].rpartition("/")[2]
        known = [each for each in choices(group) if each != name.rpartition("/")[2]]
        return f"{where}: there is no {missing[1]} to start from.{near(wanted, known)} Known: {', '.join(known)}"
    if re.search(r"Key '[^']+' (is )?not in", message):
        if kind is schema.Cluster:
            cluster = name.rpartition("/")[2]
            if key.rpartition(".")[2] != "ssh":
                return no_scheduler(cluster)
            return (
                f"cluster={cluster} is behind ssh, where the config of its runs is composed: it is for new runs and "
                "sweeps, which dry_run=true on the command line shows"
            )
        if words := of_other_schedulers(key, kind):
            return f"{where}: {words}"
        if kind is schema.Workload and group == "workload":
            start, *more = workloads_with(key) or ["program", "function"]
            begin = ", or ".join([f"begin it with `defaults: [{start}, _self_]`", *more])
            return f"{where}: the file starts from no workload that has a key {_short(key, group)!r}: {begin}"
        words = f"there is no key {_short(key, group)!r}.{_near(key, group, kind)}{_of_workloads(key)}"
        return f"{where}: {words} `launcher help --all` lists all"
    if key and (why := wrong_value(message, key)):
        value = NO_CHOICE.search(message) or WRONG_TYPE.search(message)
        return f"{where}: {_short(key, group)}{f'={value[1]}' if value else ''}: {why}"
    if re.search("Cannot merge|is not a subclass of", message):
        lines_of = "must have lines of the form KEY: VALUE"
        return _of_wrong_form(name, group) or f"{where}: it, and each section in it, {lines_of}"
    lines = [line.strip() for line in message.splitlines()[1:] if line.strip()]
    others = ("full_key", "object_type", "reference_type")
    first = next((line for line in lines if not line.startswith(others)), message)
    return f"{where}: {_short(key, group) + ': ' if key else ''}{first}"


def _of_wrong_form(name: str, group: str) -> str | None:
    # Our text about the first key of a file that has a text or list where a section is needed, or a section for a list
    keys = known_keys(())
    for key, (line, value) in sorted(_keys_in(name).items(), key=lambda each: each[1][1] == []):  # `{}` may be right
        default = keys[key].default if key in keys else None
        if isinstance(value, list) and isinstance(next(iter(value), None), tuple):
            wrong = A_LIST if default == "[]" else ""
        elif default == "{}":
            wrong = "" if "${" in value else A_SECTION
        else:
            wrong = _inside(key, keys)
        if wrong and key not in GROUPS:
            return f"{file_of(name)}, line {line}: {_short(key, group)}: {wrong}"
    return None


def no_scheduler(name: str) -> str:
    return f"the profile of cluster={name} names no scheduler: begin its file with `defaults: [slurm, _self_]`, or pbs"


def wrong_value(message: str, name: str, arguments: Sequence[str] = ()) -> str | None:
    """Returns the text about what a key's value must be, for an error about its type; None: another error."""
    keys = known_keys(arguments)
    key = keys.get(name)
    if choice := NO_CHOICE.search(message):
        known = [word.strip() for word in choice[2].split(",")]
        return f"it must be one of {', '.join(known)}.{near(choice[1], known)}"
    if value := WRONG_TYPE.search(message):
        return f"it must be {KINDS.get(value[2], value[2])}" + (f": {key.doc}" if key and key.doc else "")  # the unit
    if NO_NULL.search(message):
        return "it cannot be null: leave it out for its default"
    if NULL.search(message):
        return "null cannot be one of its values: leave it out, or quote the word ('null')"
    if NO_TEXT.search(message):
        return "it must be one text, and no list or section"
    if LIST.search(message):
        return A_LIST
    if not SECTION.search(message):
        return None
    if name in map(key_of, arguments):
        return _inside(name, keys) or f"it is a section: set a name in it ({name}.NAME=VALUE)"
    return _inside(name, keys) or A_SECTION


def _inside(section: str, keys: Iterable[str]) -> str:
    # Empty: these keys are not in such a section
    inside = ", ".join(each for each in keys if each.startswith(f"{section}."))
    return f"it is a section: set a key in it ({inside})" if inside else ""


def in_yaml(error: Exception, file: Path | None = None) -> str:
    """Returns our text for a YAML error: the file (None: the one that the error names), the line and the reason."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    why = getattr(error, "problem", None) or str(error)
    if why.startswith("found duplicate key") and why.split()[-1] in GROUPS:
        why += ". Next to `cluster: NAME`, give the keys of a section as separate lines (`cluster.account: me`)"
    if mark is None:
        return f"{file or 'a file of the configuration'}: this is not valid YAML: {why}"
    return f"{file or mark.name}, line {mark.line + 1}: this is not valid YAML: {why}"


@contextlib.contextmanager
def with_place(arguments: Sequence[str]) -> Iterator[None]:
    """Adds the user's file and line to ConfigErrors about a key that one sets, unless these overrides set it."""
    try:
        yield
    except ConfigError as error:
        typed = (key for key in map(key_of, arguments) if f"{error.key}.".startswith(f"{key}."))
        if not error.key or any(key == error.key or key not in GROUPS for key in typed):  # cluster=NAME sets no key
            raise
        raise ConfigError(f"{place_of(error.key, arguments)}{error}") from None


def place_of(key: str, arguments: Sequence[str]) -> str:
    """Returns `FILE, line 3: ` for the user's file that sets a key, with these overrides; empty: none, or not sure."""
    group = key.partition(".")[0]
    typed = [word.partition("=")[2] for word in arguments if key_of(word) == group]
    chosen = typed[-1] if typed else _keys_in("user").get(group, (0, ""))[1]
    return _place_in("user", key) or _place_in(f"{group}/{chosen}", key)


def _place_in(name: str, key: str) -> str:
    # In this config or the one from which it starts; empty: in ours or none, or several may have the last word
    keys, folder = _keys_in(name), name[: name.rfind("/") + 1]
    order = [str(each.value) for each in keys.get(f"{folder}defaults".replace("/", "."), (0, ()))[1]]
    if key not in keys:
        return _place_in(folder + order[0], key) if order and order[1:] in ([], ["_self_"]) else ""
    own = file_of(name).is_relative_to(user_config_dir())
    return f"{file_of(name)}, line {keys[key][0]}: " if own and "_self_" not in order[:-1] else ""


def _keys_in(name: str) -> dict[str, tuple[int, Any]]:
    # The line of each key in a config's file, and its value: text, or nodes
    import yaml

    found, group = dict[str, tuple[int, Any]](), name.rpartition("/")[0]

    def look(node: yaml.Node | None, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            found[f"{prefix}{key.value}"] = key.start_mark.line + 1, value.value
            look(value, f"{prefix}{key.value}.")

    with contextlib.suppress(OSError, yaml.YAMLError):  # one that is in use was refused before
        look(yaml.compose(file_of(name).read_text(errors="replace"), yaml.SafeLoader), group and f"{group}.")
    return found


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
    return near(_short(key, group), known, keys=True)

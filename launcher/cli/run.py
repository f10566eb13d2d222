"""`run`: submits the user's own script as workload=program. The run is named after the script."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import Action, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.cli.commands import RUN_USAGE
from launcher.config import profiles
from launcher.config.hydra_text import element, key_of, quoted
from launcher.config.keys import all_keys
from launcher.config.scheduler_table import OURS, settings_class
from launcher.errors import ConfigError, near, program
from launcher.plan.build import name_of
from launcher.schedulers import registry
from launcher.schedulers.base import Scheduler

# Values that Hydra reads as what they are without quotes.
_BARE = re.compile(r"0|[1-9]\d*(:\d\d)*[smhdKMGT]?B?|(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w.-]*", re.IGNORECASE)
SCRIPT_ARGUMENTS = "; arguments of {} follow `--`"


def run(arguments: Namespace) -> int:
    from launcher.cli import submit

    words = overrides(arguments.script, arguments.overrides, module=arguments.module)
    words += [f"--{name}" for name in ("multirun", "yes", "resolve") if getattr(arguments, name)]
    words += [f"--cfg={arguments.cfg}"] if arguments.cfg else []
    words += [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    return submit.main(words if arguments.arguments is None else [*words, "--", *arguments.arguments])


class Given(NamedTuple):
    words: tuple[str, ...]  # that it takes up
    option: str  # its name with dashes
    value: str | None
    reader: Scheduler | None  # the scheduler that has it; None: the option is unknown


def as_keys(words: Sequence[str], own: Mapping[str, Action]) -> list[str]:
    """Replaces options of the cluster's scheduler (`--nodes 2`) by keys (`nodes=2`), and prints which.

    words: the arguments of `run` in front of `--`; own: the options of `run` itself. Raises ConfigError.
    """
    result: list[str] = []
    lists: dict[str, list[str]] = {}
    for each in split(words, own):
        if isinstance(each, str):
            result.append(each)
            continue
        if each.reader is None:
            raise ConfigError(_unknown(each.option, words, own))
        keys = _keys(each, each.reader, words)
        for key, value in keys.items():
            if isinstance(value, list):  # the option may come again, and the last override of a key counts
                keys[key] = lists[key] = [*lists.get(key, ()), *value]
        found = [f"{key}={value if _BARE.fullmatch(str(value)) else element(value)}" for key, value in keys.items()]
        print(f"launcher: {shlex.join(each.words)}: {' '.join(found)}", file=sys.stderr)
        result += found
    return result


def split(words: Sequence[str], own: Mapping[str, Action]) -> Iterator[str | Given]:
    """Yields the words of a command line; each option that `run` itself does not have is one `Given`."""
    known: Mapping[str, tuple[Scheduler, bool | None]] | None = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-") or option in own:
            yield word
            if option in own and own[option].nargs != 0 and not equals and rest:
                yield rest.pop(0)
            continue
        known = options(words) if known is None else known
        if option not in known and word[:2] in known and known[word[:2]][0].joins_values:
            option, equals, value = word[:2], word[2:], word[2:]  # -N2
        reader, takes = known.get(option, (None, None))
        if takes and not equals:
            if not rest:
                raise ConfigError(f"{option} needs a value")
            yield Given((word, rest[0]), option, rest.pop(0), reader)
        elif takes is False and equals:
            raise ConfigError(f"{word}: {option} has no value")
        else:
            yield Given((word,), option, value if equals else None, reader)


def options(words: Sequence[str]) -> dict[str, tuple[Scheduler, bool | None]]:
    """Returns the schedulers' options, with whether they have a value: short ones only of the chosen cluster's."""
    found: dict[str, tuple[Scheduler, bool | None]] = {}
    chosen = _scheduler(words)
    for reader in _readers(chosen):
        for option, takes in reader.command_options().items():
            if option.startswith("--") or reader.name == chosen:
                found.setdefault(option, (reader, takes))
    return found


def _readers(first: str = "") -> list[Scheduler]:
    names = dict.fromkeys((first, *OURS) if first else OURS)
    return [each for each in registry.schedulers(names) if each.command]


def _scheduler(words: Sequence[str]) -> str:
    name = _cluster(words)
    return next((each.scheduler for each in profiles.profiles() if each.name == name), "")


def _cluster(words: Sequence[str]) -> str:
    return next((word.partition("=")[2] for word in reversed(words) if key_of(word) == "cluster"), profiles.default())


def _keys(given: Given, reader: Scheduler, words: Sequence[str]) -> dict[str, Any]:
    # Returns the keys that an option stands for; see `Scheduler.keys_of`
    keys = dict(reader.keys_of(given.option, given.value))
    scheduler = _scheduler(words)
    settings = settings_class(scheduler)
    if (
        settings is not None and not settings.IGNORES_OTHERS and reader.name != scheduler
        and any(key.startswith("cluster.directives.") for key in keys)
    ):  # fmt: skip
        raise ConfigError(f"{given.option} is an option of {reader.command}, and the cluster is {scheduler}")
    return keys


def _unknown(option: str, words: Sequence[str], own: Mapping[str, Action]) -> str:
    behind = f"arguments of your own program follow `--`: {program()} {RUN_USAGE}"
    key = option.lstrip("-").replace("-", "_")
    if key in all_keys():
        return f"there is no option {option!r}: keys have no dashes ({key}=VALUE); {behind}"
    owners = [each.name for each in _readers() if option[:2] in each.command_options()]
    if not option.startswith("--") and owners:
        return (
            f"there is no option {option!r} with cluster={_cluster(words)}: name the cluster whose option it is "
            f"({' or '.join(owners)}), or write KEY=VALUE; {behind}"
        )
    return f"there is no option {option!r}.{near(option, [*own, *options(words)])} {behind[0].upper()}{behind[1:]}"


def overrides(script: str, given: Sequence[str], *, module: bool = False) -> list[str]:
    """Returns the overrides that run a script (or module): name, workload and script, then those given."""
    if "=" in script and not Path(script).is_file():  # Hydra's folders are named so: exp=1/train.py
        raise ConfigError(f"name the script before its KEY=VALUE {script!r}: {RUN_USAGE}")
    for word in given:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word!r} is not KEY=VALUE{SCRIPT_ARGUMENTS.format(script)}: {RUN_USAGE}")
    defaults = {
        "name": quoted(name_of(script, module=module)),
        "workload": "program",
        f"workload.{'module' if module else 'script'}": quoted(script),
    }
    given_keys = {key_of(word) for word in given}
    return [*(f"{key}={value}" for key, value in defaults.items() if key not in given_keys), *given]

"""`complete`: prints or installs the scripts that complete the launcher's command line in bash, zsh and fish."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.commands import remote_profiles
from launcher.cli.help import ACTIONS, COMMANDS, parser_of
from launcher.errors import ConfigError
from launcher.paths import GROUPS, choices, default_runs_dir, user_config_dir

if TYPE_CHECKING:
    from argparse import Action, Namespace
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.remote.clusters import RemoteCluster


SHELLS = ("bash", "zsh", "fish")
WORDS = "LAUNCHER_COMPLETE"  # variable with the words after the program's name, one per line, then a line with a dot


def run(arguments: Namespace) -> int:
    if arguments.candidates:
        for each in candidates(os.environ.get(WORDS, "\n.").split("\n")[:-1]):
            print(each)
        return 0
    if arguments.shell is not None:
        print(script(_known(arguments.shell)), end="")
        return 0
    if arguments.install is None:
        raise ConfigError(f"give --install, or --print with one of {', '.join(SHELLS)}")
    return _install(_known(arguments.install or os.path.basename(os.environ.get("SHELL", ""))))


def _known(shell: str) -> str:
    if shell not in SHELLS:
        raise ConfigError(f"there is no completion for {shell or 'a shell without a name'!r}: use {', '.join(SHELLS)}")
    return shell


def script(shell: str) -> str:
    return Path(__file__).with_name(f"complete.{shell}").read_text()


def _install(shell: str) -> int:
    from launcher.files.safe_io import write

    home = Path(os.environ.get("HOME", "~")).expanduser()
    folder = user_config_dir()
    if shell == "fish":  # fish loads every file in conf.d
        folder = Path(os.environ.get("XDG_CONFIG_HOME", home / ".config")) / "fish" / "conf.d"
    name = "launcher.fish" if shell == "fish" else f"complete.{shell}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = write(folder / name, script(shell))
        rc = {"bash": home / ".bashrc", "zsh": Path(os.environ.get("ZDOTDIR", home)) / ".zshrc"}.get(shell)
        if rc is not None:
            _add_line(rc, path)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written ({error.strerror})") from None
    print(f"{path}\n" + (f"{rc} loads it\n" if rc else "") + f"Open another {shell}, and press Tab after `launcher `")
    return 0


def _add_line(rc: Path, path: Path) -> None:
    line = f"[ ! -r {shlex.quote(str(path))} ] || . {shlex.quote(str(path))}  # launcher complete"
    text = rc.read_text(errors="surrogateescape") if rc.exists() else ""
    if line not in text.splitlines():
        with open(rc, "a") as file:
            file.write(("\n" if text and not text.endswith("\n") else "") + line + "\n")


# -- Computes completions of the word at the cursor on the launcher's command line, for bash, zsh and fish


FLAGS = (
    "--help", "--multirun", "-m", "--cfg", "--resolve", "--info", "--config-dir", "--hydra-help", "--version", "--yes",
)  # fmt: skip
VALUES_OF = {"--cfg": ("job", "hydra", "all"), "--info": ("all", "config", "defaults", "plugins", "searchpath")}
MAX_RUNS = 200  # a terminal shows no more


def candidates(words: Sequence[str]) -> list[str]:
    """Returns the completions, as whole words, of the last of the words after the program's name."""
    *before, word = words or [""]
    if not before and not word.startswith("-") and "=" not in word:
        return [*_starting(COMMANDS, word), *overrides(word, before)]
    if before and before[0] in COMMANDS:
        return _of_command(before[0], before[1:], word)
    if before and before[-1] in VALUES_OF:
        return _starting(VALUES_OF[before[-1]], word)
    if before and before[-1] == "--config-dir":
        return []
    return _starting(FLAGS, word) if word.startswith("-") else overrides(word, before)


def _of_command(name: str, before: Sequence[str], word: str) -> list[str]:
    if "--" in before and name in ("run", "resume"):
        return []  # arguments of the script; the shell offers files
    parser = parser_of(name)
    if before and (option := parser._option_string_actions.get(before[-1])) is not None and option.nargs != 0:
        return _starting(option.choices or (), word) or _values_of_argument(option, name, word)
    if word.startswith("-"):
        return _starting(sorted(parser._option_string_actions), word)
    positionals = [action for action in parser._actions if not action.option_strings]
    if not positionals:
        return []
    number = _count_positionals(before, parser._option_string_actions)
    if number >= len(positionals) and positionals[-1].nargs not in ("*", "+"):
        return []
    return _values_of_argument(positionals[min(number, len(positionals) - 1)], name, word)


def _count_positionals(before: Sequence[str], options: Mapping[str, Action]) -> int:
    count, value = 0, False
    for each in before:
        if value:
            value = False
        elif each.startswith("-"):
            value = each in options and options[each].nargs != 0
        else:
            count += 1
    return count


def _values_of_argument(action: Action, command: str, word: str) -> list[str]:
    # Its metavar (RUN, SWEEP, ...) decides the kind
    name, text = str(action.metavar or ""), action.help or ""
    if name == "RUN":
        return [*runs(word, sweeps="a sweep," in text), *_runs_of_clusters(word)]
    if name == "SWEEP":
        return [*runs(word, sweeps=True, points=False), *_runs_of_clusters(word)]
    if name == "ACTION" or name == "fetch":
        return _starting(ACTIONS.get(command, ()), word)
    if name == "WHAT":
        group, equals, _ = word.partition("=")
        named = overrides(word, ()) if not equals or group in GROUPS else []
        keys = (each if each in _GROUP_KEYS else each.removesuffix("=") for each in named)
        return [*_starting(COMMANDS, word), *keys]
    if name == "KEY=VALUE":
        return overrides(word, ("workload=program",) if command == "run" else ())
    if name == "NAME" and command == "prune":
        return _starting(_clusters(), word)
    if name == "NAME" and command == "doctor":
        return _starting(choices("cluster"), word)
    if name == "NAME" and command == "data":
        from launcher.plan import workload_hook

        return _starting(workload_hook.data_sets_of_all()[0], word)
    return []


def runs(word: str, *, sweeps: bool = False, points: bool = True) -> list[str]:
    """Returns ids of runs, sweeps and points (SWEEP/0) that start with `word`, the newest first."""
    folder = default_runs_dir()
    sweep, slash, point = word.rpartition("/")
    if slash:
        if sweep.startswith((".", "~", "/")) or not points:
            return []
        numbers = sorted(int(name) for name in _names(folder / sweep) if name.isdecimal() and name.startswith(point))
        return [f"{sweep}/{number}" for number in numbers[:MAX_RUNS]]
    kinds = [*(["record.json"] if points else []), *(["sweep.json"] if sweeps else [])]
    latest = any((folder / "latest" / kind).exists() for kind in kinds) and "latest".startswith(word)
    found = ["latest"] if latest else []
    for name in sorted((name for name in _names(folder) if name.startswith(word)), key=_timestamp, reverse=True):
        if len(found) >= MAX_RUNS:
            break
        if name == "latest":
            continue
        if points and (folder / name / "record.json").exists():
            found.append(name)
        elif (folder / name / "sweep.json").exists():
            found += [*([name] if sweeps else []), *([f"{name}/"] if points else [])]
    return found


def _runs_of_clusters(word: str) -> list[str]:
    # Runs and sweeps that are known to be on clusters behind ssh, without asking there
    if not (clusters := _clusters()):
        return []
    from launcher.remote.clusters import known_runs

    known = {run for cluster in clusters.values() for run in known_runs(cluster) if run.startswith(word)}
    return sorted(known, key=_timestamp, reverse=True)[:MAX_RUNS]


def _clusters() -> Mapping[str, RemoteCluster]:
    with contextlib.suppress(ConfigError):  # a profile is wrong: the commands say so
        return remote_profiles()
    return {}


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        names = (entry.name for entry in os.scandir(folder))
        return [name for name in names if name.isprintable() and not name.startswith(".")]
    return []


def _timestamp(name: str) -> str:
    parts = name.split("-")[-3:-1]
    return "-".join(parts) if "".join(parts).isdecimal() else ""


def overrides(word: str, before: Iterable[str]) -> list[str]:
    """Returns KEY= and KEY=VALUE that start with `word`; a `workload=NAME` before decides keys of `workload`."""
    plain = word.lstrip("+~")
    mark = word[: len(word) - len(plain)]
    key, equals, value = plain.partition("=")
    if equals:
        *kept, last = value.split(",")
        opened, bare = ("[", last[1:]) if last.startswith("[") and not kept else ("", last)
        start = f"{mark}{key}=" + "".join(f"{each}," for each in kept) + opened
        return [f"{start}{choice}" for choice in values_of(key, before) if choice.startswith(bare)]
    from launcher.config.keys import known_keys

    known = known_keys(before)
    section, dot, _ = plain.rpartition(".")
    if not dot:
        sections = sorted({name.partition(".")[0] for name in known if "." in name})
        found = [f"{name}=" for name in (*GROUPS, *(name for name in known if "." not in name))]
        found += [f"{name}." for name in sections]
    else:
        inside = [name for name in known if name.startswith(f"{section}.")]
        depth = section.count(".") + 2
        cut = {".".join(name.split(".")[:depth]): name.count(".") + 1 == depth for name in inside}
        found = [f"{name}{'=' if whole else '.'}" for name, whole in cut.items()]
    return [f"{mark}{name}" for name in dict.fromkeys(found) if name.startswith(plain)]


_GROUP_KEYS = tuple(f"{group}=" for group in GROUPS)


def values_of(key: str, before: Iterable[str] = ()) -> list[str]:
    """Returns the values that a key (`cluster`) may have, after such words; empty: any value, or it is unknown."""
    if key in GROUPS:
        return choices(key)
    if key == "track":
        from launcher.plan.build import TRACKERS

        return list(TRACKERS)
    if key == "cluster.scheduler":
        from launcher.schedulers import registry

        return list(registry.names())
    if key in ("baseline", "after", "sweep.after"):
        return runs("")
    from launcher.config.keys import known_keys

    known = known_keys(before).get(key)
    return list(known.choices) if known else []


def _starting(names: Iterable[Any], word: str) -> list[str]:
    return [str(name) for name in names if str(name).startswith(word)]

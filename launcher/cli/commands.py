"""The table of sub-commands, their parser and their dispatch. A command's module is imported when it is called.

Options and help of the commands are in `options`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from itertools import takewhile
from typing import TYPE_CHECKING

from launcher.cli import options
from launcher.errors import ConfigError, near
from launcher.own_module import program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from launcher.remote.clusters import RemoteCluster

# Each command's name, and its line in the list of commands.
COMMANDS = {
    "run": "Your own script; its arguments follow `--`.",
    "status": "States of runs and sweeps.",
    "logs": "The output of a run, or of one of its ranks.",
    "cancel": "Cancel runs, sweeps, or points of a sweep.",
    "resume": "Restart a run that is over, at the same size or another one.",
    "attach": "A shell on a rank's node, stacks of all ranks, or a debugger.",
    "prune": "List or remove old runs, with their checkpoints.",
    "wait": "Wait for a run and exit with its code.",
    "topology": "Which cores, GPU and NIC each rank gets, here or in a run.",
    "why": "Why a run waits, and what would start sooner.",
    "post-mortem": "Why a run ended, which rank failed first, and what to do.",
    "sweep": "Sweeps: status, results, rerun, cancel, throttle, wait.",
    "checkpoint": "Checkpoints of a run: list, inspect, verify, extract.",
    "site": "Profiles of sites: list, show, or write one for this site.",
    "env": "Pack a venv into an archive for the nodes (env.archive).",
    "template": "A template to start your own job scripts from.",
    "report": "One HTML page about a run, or several side by side.",
    "data": "Data sets: which are here, and how to get one.",
    "doctor": "Check this machine and its scheduler; a report for a ticket.",
    "complete": "Completion for bash, zsh and fish: commands, run ids, KEY=VALUE.",
    "help": "A command's options; keys, their defaults and meaning.",
}
# Commands that share a module, where their functions have their names. Any other has `run` in a module of its name.
SHARED = {
    "cancel": "cleanup", "prune": "cleanup", "why": "explain", "post-mortem": "explain", "env": "site", "data": "site",
    "template": "site", "resume": "submit",
}  # fmt: skip
# Commands that were there, and what does it now.
GONE = {"open": "report RUN --open", "site check": "doctor --cluster NAME"}


class Parser(argparse.ArgumentParser):
    """A parser that accepts options and arguments in any order, and reports an error in one line, with near matches."""

    def __init__(self, prog: str, description: str | None) -> None:
        # A fixed width, since argparse would import shutil and its dependencies to find the terminal's width.
        super().__init__(
            prog, description=description, allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=26, width=80),
        )  # fmt: skip
        # Attribute of the result that gets the arguments after `--` unchanged; None: they are parsed like all others.
        self.behind: str | None = None
        # Module whose `as_keys` replaces options of schedulers before the rest is parsed; None: there can be none.
        self.others: str | None = None
        self.goes_with: dict[str, list[str]] = {}  # by an option's attribute: the actions that it goes with, if not all
        self._command = prog.rpartition(" ")[2]

    def add(self, *names: str, only: str = "", **settings: Any) -> None:
        """Adds an argument; only: the actions that it goes with (`status, results`); `parse` refuses it with others."""
        if only:
            settings["help"] = f"{only}: {settings['help']}"
        added = self.add_argument(*names, **settings)
        if only:
            self.goes_with[added.dest] = only.split(", ")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Raises ConfigError: an argument is wrong; SystemExit: the help was requested, and has been printed."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        behind: Sequence[str] | None = None
        if self.behind is not None and "--" in words:
            at = words.index("--")
            words, behind = words[:at], words[at + 1 :]
        if self.others is not None:
            words = importlib.import_module(self.others).as_keys(words, self._option_string_actions)
        # Unknown options are found first, since argparse could take their values for a RUN.
        for word in takewhile(lambda word: word != "--", words):
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                more = f". Arguments of your own program follow `--`: {self.usage}" if self.behind else ""
                raise ConfigError(
                    f"there is no option {option!r}.{near(option, known)} Known: {', '.join(known)}{more}"
                )
        arguments, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        if self.behind is not None:
            setattr(arguments, self.behind, behind)
        if (action := getattr(arguments, "action", None)) is not None:
            options.require_action(self._command, action)
            self._require_fitting(arguments)
        return arguments

    def _require_fitting(self, arguments: argparse.Namespace) -> None:
        for each in self._actions:
            fitting = self.goes_with.get(each.dest, [arguments.action])
            if arguments.action not in fitting and getattr(arguments, each.dest) != each.default:
                known = " and ".join(f"{self._command} {action}" for action in fitting)
                raise ConfigError(f"{each.option_strings[-1]} goes with {known}")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def main(arguments: list[str]) -> int:
    name, *words = arguments
    if gone := next((each for each in (name, " ".join(arguments[:2])) if each in GONE), None):
        raise ConfigError(f"{gone} is gone: `{program()} {GONE[gone]}` does it")
    if name not in COMMANDS:
        if os.path.isfile(name):
            raise ConfigError(f"{name} is a file, and no command: `{program()} run {shlex.quote(name)}` runs it")
        raise ConfigError(
            f"there is no command {name!r}.{near(name, COMMANDS)} Known: {', '.join(COMMANDS)}; "
            "anything else is KEY=VALUE and submits a run"
        )
    about = configuration(name)
    parser = Parser(f"{program()} {name}", about.__doc__)
    about(parser)
    remote = importlib.import_module("launcher.cli.remote") if name == "run" and remote_profiles() else None
    if remote is not None and (code := remote.submit(words, name)) is not None:
        return int(code)
    try:
        parsed = parser.parse(words)
    except SystemExit:
        return 0
    about_runs = name == "doctor" or getattr(parsed, "runs_dir", parsed) is None
    if about_runs and remote_profiles():
        remote = importlib.import_module("launcher.cli.remote")
        if (code := remote.forward(name, parsed, words)) is not None:
            return int(code)
    return function(name)(parsed)


def function(name: str) -> Callable[[argparse.Namespace], int]:
    """Returns the function of a command; imports its module."""
    identifier = name.replace("-", "_")
    module = importlib.import_module(f"launcher.cli.{SHARED.get(name, identifier)}")
    found: Callable[[argparse.Namespace], int] = getattr(module, identifier if name in SHARED else "run")
    return found


def remote_profiles() -> Mapping[str, RemoteCluster]:
    """Returns the user's profiles of clusters behind ssh, by name; without any, `remote` is not imported."""
    from launcher.paths import user_config_dir

    if not os.path.isdir(user_config_dir() / "cluster"):
        return {}
    from launcher.remote.clusters import remote_clusters

    return remote_clusters()


def configuration(name: str) -> Callable[[Parser], None]:
    """Returns the function that adds a command's options to a parser; its docstring is the command's help."""
    found: Callable[[Parser], None] = getattr(options, f"of_{name.replace('-', '_')}")
    return found

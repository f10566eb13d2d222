"""The sub-commands. Each loads its own file only when it is called.

Such a file has `configure(parser)`, which adds the command's arguments, and `run(arguments)`, which returns its exit
code and whose docstring is the description in its help.
"""

from __future__ import annotations

import argparse
import importlib
import os
from itertools import takewhile
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, near
from launcher.own_module import program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

# Name, which is its file's too (`-` is `_` there), and one line for the list.
COMMANDS = {
    "run": "A script of yours, with its own arguments behind `--`.",
    "status": "State of runs, with one question to the scheduler for all.",
    "logs": "What a run printed, or one of its ranks.",
    "cancel": "End runs.",
    "resume": "Start a run again that is over, at the same size or another one.",
    "attach": "A shell beside a rank, stacks of all ranks, or a rank's debugger.",
    "open": "A run's report page in the browser.",
    "prune": "Remove old runs, with their checkpoints.",
    "wait": "Wait for a run and exit with its code.",
    "why": "Why a run waits, and what would start sooner.",
    "post-mortem": "Why a run ended, which rank failed first, and what to do.",
    "sweep": "Sweeps: status, results, rerun, cancel, throttle, wait.",
    "checkpoint": "Checkpoints of a run: list, inspect, verify, extract.",
    "site": "Profiles of sites: list, show, check, or make one from the site.",
    "env": "Archives of environments, unpacked on each node (env.archive).",
    "template": "Job scripts of your own: one to start from, and what yours lost.",
    "report": "One HTML page about a run, or several side by side.",
    "data": "Data sets: which are here, and how to get one.",
    "doctor": "This machine and its scheduler: a report to paste into a ticket.",
    "complete": "Completion for bash, zsh and fish: commands, run ids, KEY=VALUE.",
    "help": "Keys, their defaults and meaning; a command's options.",
}


class Parser(argparse.ArgumentParser):
    """Options and arguments in any order; what is wrong with them is told in a line, with near matches."""

    def __init__(self, prog: str, description: str | None) -> None:
        # Without a width argparse would load shutil and all it needs, to ask the terminal.
        super().__init__(
            prog, description=description, allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=26, width=80),
        )  # fmt: skip
        self.behind: str | None = (
            None  # where words behind `--` go to as they are; None: they are arguments like others
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments in `words`.

        Raises:
            ConfigError: they are not this command's.
            SystemExit: only the help was wanted, and has been printed.
        """
        known = [name for name in self._option_string_actions if name.startswith("--")]
        behind: Sequence[str] | None = None
        if self.behind is not None and "--" in words:
            at = words.index("--")
            words, behind = words[:at], words[at + 1 :]
        for word in takewhile(lambda word: word != "--", words):  # first, or a wrong one's value might pass for a RUN
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                more = f". Arguments of your own program stand behind `--`: {self.usage}" if self.behind else ""
                raise ConfigError(
                    f"there is no option {option!r}.{near(option, known)} Known: {', '.join(known)}{more}"
                )
        arguments, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        if self.behind is not None:
            setattr(arguments, self.behind, behind)
        return arguments

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; `{self.prog} --help` tells more")


def main(arguments: list[str]) -> int:
    """Runs a sub-command and returns its exit code."""
    name, *words = arguments
    if name not in COMMANDS:
        if os.path.isfile(name):
            raise ConfigError(f"{name} is a file, and no command: `{program()} run {name}` runs it")
        raise ConfigError(
            f"there is no command {name!r}.{near(name, COMMANDS)} Known: {', '.join(COMMANDS)}; "
            "anything else is KEY=VALUE and submits a run"
        )
    command = importlib.import_module(f"launcher.cli.{name.replace('-', '_')}")
    parser = Parser(f"{program()} {name}", command.run.__doc__)
    command.configure(parser)
    try:
        parsed = parser.parse(words)
    except SystemExit:
        return 0
    code: int = command.run(parsed)
    return code

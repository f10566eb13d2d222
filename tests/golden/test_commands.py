"""The commands and their options: what `--help` shows."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.golden.conftest import Shown
from tests.golden.golden import check, check_files

FOLDER = "commands"
COMMANDS = (
    "attach", "cancel", "checkpoint", "complete", "data", "doctor", "env", "help", "logs", "post-mortem",
    "prune", "report", "resume", "run", "site", "status", "sweep", "template", "topology",
    "wait", "why",
)  # fmt: skip
SHORT_OPTIONS = ("checkpoint", "report")  # have `-o FILE, --output FILE`, as argparse writes it before Python 3.13
# The others: a file's name, and what is typed.
OVERVIEWS = {"launcher": "", "launcher--help": "--help", "launcher--version": "--version"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_a_command_are_what_they_were(command: str, show: Callable[..., Shown]) -> None:
    if command in SHORT_OPTIONS and sys.version_info >= (3, 13):
        pytest.skip("argparse of this Python writes `-o, --output FILE`")
    check(f"{FOLDER}/{command}.txt", show(command, "--help").out)


@pytest.mark.parametrize("name", OVERVIEWS)
def test_what_is_told_without_a_command_is_what_it_was(name: str, show: Callable[..., Shown]) -> None:
    check(f"{FOLDER}/{name}.txt", show(*OVERVIEWS[name].split()).out)


def test_every_command_is_kept(show: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_COMPLETE", "\n.")  # one empty word, of which Tab was pressed
    words = show("complete", "--candidates").out.split()
    assert sorted(word for word in words if not word.endswith(("=", "."))) == list(COMMANDS)
    check_files(FOLDER, [f"{name}.txt" for name in (*COMMANDS, *OVERVIEWS)])

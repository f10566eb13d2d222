"""The commands that README.md and the pages show: the launcher's own parsers and composition take each of them.

Nothing is submitted: a command line goes its whole way up to where a run would be planned, or a sub-command begin.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from launcher.__main__ import main
from launcher.cli import commands, multirun, submit
from launcher.cli.commands import function
from launcher.cli.help import COMMANDS
from launcher.cli.multirun import Multirun
from launcher.submission import resume
from tests.launch import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ARGUMENT = rf"(?:(?:{'|'.join(COMMANDS)})\b|--?\w|[\w.+~/]+=)"  # what the first one of a command line may be
PROGRAM = re.compile(
    rf"python3? -m launcher(?=\s|$)|^launcher(?=\s)|\$ launcher(?=\s)|(?<=\s)launcher(?=\s+{ARGUMENT})"
)
BLOCK = re.compile(r"(?: {4}|\t)\s*[^\s`]")  # an indented line of code
LIST = re.compile(r"\s*(?!\$ )[^`]*`")  # one with text between backticks is a list's, if it is no command
SAID = re.compile(r"\s*launcher: (.*)")  # what a refused command prints
SUBMITS = {"run"}  # sub-commands that go on as a submission does
# What the pages take as made by the reader: files of his own config folder, and a variable.
OWN = {
    **{f"cluster/{name}.yaml": f"defaults: [slurm, _self_]\nname: {name}\n" for name in ("mysite", "hpc1")},
    "workload/mytrain.yaml": "defaults: [function, _self_]\nname: mytrain\ntarget: mypkg.train:main\n",
}


@dataclass(frozen=True)
class Shown:
    """A command line on a page.

    Attributes:
        place: page and line.
        words: its arguments.
        whole: nothing is left out of it.
        refusal: what the page says that it prints when it is refused, or nothing.
        installed: it is `launcher`, and not `python -m launcher`, which is what it then prints, too.
    """

    place: str
    words: tuple[str, ...]
    whole: bool
    refusal: str = ""
    installed: bool = True

    def meant(self) -> Iterator[tuple[str, ...]]:
        """The command lines that it may stand for: where something is left out, with a workload, or with runs."""
        yield self.words
        if not self.whole and "=" in self.words[0]:
            yield ("workload=ddp_mnist", *self.words)
        elif not self.whole:
            yield (*self.words, "RUN")
            yield (*self.words, "RUN", "RUN")


def words_of(text: str) -> tuple[tuple[str, ...], bool]:
    """The arguments in a command line as a page writes it, and whether these are all. Pure.

    Placeholders for any number of words (`…`, `KEY=VALUE`) are left out, and optional ones are kept without
    their brackets. It ends at a comment, a pipe, or two blanks, behind which pages explain it.
    """
    lexer = shlex.shlex(re.split(r"\s{2,}", text.strip())[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words, optional, whole = [], 0, True
    for token in lexer:
        if set(token) <= set("();<>|&"):
            break
        if token.startswith("[") or optional:  # and until its bracket is closed
            optional += token.count("[") - token.count("]")
            token = token.strip("[]")
        if token.endswith(("…", "...")) or token == "KEY=VALUE":
            whole = False
        else:
            words.append("1" if token in ("N", "R") else token)  # a number
    return tuple(words), whole


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of blocks of code with their numbers; one that ends with a backslash has the next ones with it."""
    fenced, whole, first = False, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or BLOCK.match(line):
            whole, first = (whole + line.strip(), first) if whole else (line, number)
            if whole.endswith("\\"):
                whole = whole[:-1]
                continue
            yield first, whole
        whole = ""


def shown_in(page: Path) -> Iterator[Shown]:
    """All command lines of a page: in its code, and between backticks in its text."""
    text = page.read_text()
    lines = list(code_lines(text))
    for index, (number, line) in enumerate(lines):
        if (found := PROGRAM.search(line)) and "<Tab>" not in line and not LIST.match(line):
            said = [match[1] for _, each in lines[index + 1 : index + 2] if (match := SAID.match(each))]
            installed = not found[0].startswith("python")
            yield Shown(f"{page.name}:{number}", *words_of(line[found.end() :]), "".join(said), installed)
    for match in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", text):
        place, span = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}", match[1]
        if found := PROGRAM.match(span):
            yield Shown(place, words_of(span[found.end() :])[0], whole=False)
        elif span.split()[0] in COMMANDS and len(span.split()) > 1 and " = " not in span:
            yield Shown(place, words_of(span)[0], whole=False)


@cache
def all_shown() -> list[Shown]:
    """Each command line once."""
    found: dict[tuple[str, ...], Shown] = {}
    for page in PAGES:
        for shown in shown_in(page):
            if shown.words and (shown.words not in found or shown.whole):
                found[shown.words] = shown
    return list(found.values())


class AcceptedError(Exception):
    """A sweep has come as far as it should here."""


@pytest.fixture
def checks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs or is submitted: sub-commands end when their arguments are parsed, a submission when its config is
    composed and typed, a sweep when its first point is."""
    GlobalHydra.instance().clear()
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setattr(submit, "_run", lambda *_, yes: 0)
    monkeypatch.setattr(Multirun, "__call__", first_point)
    monkeypatch.setattr(multirun, "prepare_search", accepted)
    monkeypatch.setattr(commands, "function", parsed_only)


def first_point(self: Multirun, batch: list[list[str]]) -> None:
    self._requested(batch[0], 0, batch)
    raise AcceptedError


def accepted(*_: object) -> None:
    raise AcceptedError


def exit_code(words: tuple[str, ...]) -> int | str | None:
    """Of the whole command, with the files of OWN that it names."""
    for name, text in OWN.items():
        if any(word.endswith(f"={Path(name).stem}") for word in words):
            file = Path(os.environ["LAUNCHER_CONFIG_DIR"], name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    try:
        return main(list(words))
    except SystemExit as exited:
        return exited.code
    except AcceptedError:
        return 0


def parsed_only(command: str) -> Callable[[Any], int]:
    """A sub-command that does nothing once its arguments are parsed, but for looking at its KEY=VALUEs."""
    if command in SUBMITS:
        return function(command)

    def run(arguments: Any) -> int:
        if overrides := getattr(arguments, "overrides", ()):
            resume.composed_config(["workload=ddp_mnist", *overrides])
        return 0

    return run


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_what_a_page_shows_are_commands_of_this_version(
    page: str, checks_only: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = {}
    for shown in all_shown():
        if shown.place.startswith(f"{page}:"):
            monkeypatch.setattr(sys, "argv", ["launcher" if shown.installed else "__main__.py"])
            if said := refused(shown, capsys):
                problems[f"{shown.place} {' '.join(shown.words)}"] = said
    assert problems == {}


def refused(shown: Shown, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints that is not as the page says; empty: it is."""
    said = ""
    for words in shown.meant():
        GlobalHydra.instance().clear()
        code, said = exit_code(words), capsys.readouterr().err
        if not code or (shown.refusal and " ".join(said.split()).startswith(f"launcher: {shown.refusal}")):
            return ""
    return said or "it fails"


@pytest.mark.parametrize(
    "words",
    [
        ("stauts",), ("status", "--wacht"), ("sweep", "stauts", "SWEEP"), ("wait",), ("resume", "RUN", "nods=4"),
        ("workload=ddp_mnist", "nods=2"), ("workload=ddp_mnits",), ("-m", "workload=ddp_mnist", "workload.rl=1,2"),
    ],
)  # fmt: skip
def test_what_is_no_command_of_this_version_is_noticed(
    words: tuple[str, ...], checks_only: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(words) and capsys.readouterr().err.startswith("launcher: ")


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("    $ python -m launcher status --watch   # all\n", [("status", "--watch")]),
        ("    launcher run train.py nodes=2 -- --lr 0.1\n", [("run", "train.py", "nodes=2", "--", "--lr", "0.1")]),
        ("    python -m launcher a=1 \\\n      'b=[1,2]' | tee x\n    c\n", [("a=1", "b=[1,2]")]),
        ("```\n$ salloc -N2 launcher a=1\n```\n", [("a=1",)]),
        ("Text, `launcher resume RUN [KEY=VALUE …]` and `logs RUN [-f] [--rank 3]`, `wait` for it.\n",
         [("resume", "RUN"), ("logs", "RUN", "-f", "--rank", "3")]),
        ("    logs -f RUN          what the launcher prints\n    launcher: no\n", []),
        ("Text with python -m launcher in it.\n", []),
    ],
)  # fmt: skip
def test_commands_are_found_in_pages(page: str, commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    assert [shown.words for shown in shown_in(tmp_path / "page.md")] == commands

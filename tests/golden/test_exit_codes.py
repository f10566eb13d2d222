"""The exit codes: code and pages tell of the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher import errors
from tests.golden.conftest import Shown
from tests.golden.golden import check
from tests.launch import ROOT

ROW = re.compile(r"^\| (\d+) \| (.*) \|$", re.MULTILINE)


def table(text: str) -> dict[int, str]:
    """Returns the meaning of each exit code in the first table of a text whose rows start with a number."""
    return {int(code): meaning for code, meaning in ROW.findall(text.partition("| code | meaning |")[2])}


def line(text: str) -> set[int]:
    """Returns the exit codes in a sentence that starts with `Exit codes:`."""
    sentence = " ".join(text.split()).partition("Exit codes: ")[2].partition(". ")[0]
    return {int(code) for code in re.findall(r"(?:^|, )(\d+) ", sentence)}


CODES = {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
PAGE = table((ROOT / "docs/index.md").read_text())


def test_the_codes_are_what_they_were() -> None:
    of_errors = [
        f"{name}: {kind.exit_code}"
        for name, kind in sorted(vars(errors).items())
        if isinstance(kind, type) and issubclass(kind, errors.LauncherError)
    ]
    codes = [f"{value} {name}: {PAGE.get(value)}" for name, value in sorted(CODES.items(), key=lambda item: item[1])]
    check("exit_codes.txt", "\n".join([*codes, "", *of_errors, ""]))


def test_code_and_pages_tell_of_the_same_codes(show: Callable[..., Shown]) -> None:
    told = {
        "docs/index.md": set(PAGE),
        "README.md": line((ROOT / "README.md").read_text()),
        "launcher --help": line(show("--help").out),
    }
    assert told == {name: set(CODES.values()) for name in told}

"""A page: its data types, and the HTML file that is made of it."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import LauncherError
from launcher.files import run_files
from launcher.reports.figures import Figure

if TYPE_CHECKING:
    from jinja2 import Template


# -- The data types that a page consists of: Page, Section, Table, Code. page.html.j2 renders them


@dataclass(frozen=True)
class Table:
    """A table of text."""

    heads: tuple[str, ...]  # the headings of the columns
    rows: Sequence[tuple[str, ...]]  # the rows, with the text of each cell
    # the numbers (from 0) of the columns that are aligned left, since they contain text
    left: frozenset[int] = frozenset({0})
    # the style of highlighted rows (`good`, `bad` or `chosen`), by the row's number from 0
    marks: dict[int, str] | None = None
    summary: str = ""  # the text on which to click to open the table; empty: the table is always open


@dataclass(frozen=True)
class Code:
    """Text to copy, such as a command or an option, with a label."""

    label: str
    text: str


@dataclass(frozen=True)
class Section:
    """A section of a page. Its contents are shown in this order: note, codes, legend, figures, tables, log."""

    title: str  # the heading
    note: str = ""  # text below the heading
    codes: Sequence[Code] = ()  # texts to copy
    figures: Sequence[Figure] = ()  # charts
    tables: Sequence[Table] = ()  # tables
    log: Sequence[str] = ()  # lines of output or of a traceback
    folded: bool = False  # whether the section is closed at first
    legend: Sequence[tuple[str, str]] = ()  # (colour, name) of each run, for all figures of the section

    @property
    def id(self) -> str:
        """The section's HTML id, made from its title."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Page:
    """A report page."""

    title: str  # the document's title and first heading
    kind: str  # what the page is about (`Sweep`), shown above that heading
    state: str  # the run's state; empty for a sweep or several runs
    cause: str  # a line below the heading: why the run ended, the baseline, or the states of a sweep's points
    facts: Sequence[tuple[str, str]]  # (name, value) of the main facts
    codes: Sequence[Code]  # commands to copy, such as the one that submitted the run
    sections: Sequence[Section]  # the sections, in order
    made: str  # a line that says when, by which version of the launcher, and from which directory the page was made


# -- Renders a page as one HTML file that contains plotly's JavaScript, and writes it


HERE = Path(__file__).resolve().parent
MOST_BYTES = 5_000_000


class ReportError(LauncherError):
    """The report page cannot be made or written; the text says why and what to do."""


def render(page: Page) -> str:
    """Returns a page as HTML.

    jinja2 escapes all text. The figures are JSON in which `<`, `>` and `&` are written as \\u003c and so on, so that
    nothing in them can close the script element. Scripts run only with the page's nonce, and the content security
    policy forbids every request (https://www.w3.org/TR/CSP3/). Lone surrogates, which UTF-8 cannot encode, become
    question marks.

    Raises:
        ReportError: plotly is not installed.
    """
    figures: list[Figure] = []

    def place(figure: Figure) -> int:
        figures.append(figure)
        return len(figures) - 1

    text = _template().render(
        page=page, place=place, figures=figures, nonce=secrets.token_urlsafe(16), plotly=packed_plotly
    )
    return text.encode(errors="replace").decode()


@lru_cache(maxsize=1)
def _template() -> Template:
    # Lazily: jinja2 takes 15 ms
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure_json"] = _json
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2")


def _json(figure: Figure) -> dict[str, Any]:
    return {"data": figure.traces, "layout": {**figure.layout, "height": figure.height}}


def packed_plotly() -> str:
    """Returns the installed plotly's plotly.min.js, compressed with gzip and encoded as base64: a third of its size.

    Raises ReportError: plotly is not installed.
    """
    found = importlib.util.find_spec("plotly")  # not imported, which would take a second
    path = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if path is None or not path.is_file():
        raise ReportError("the report page needs plotly, which is not installed here: pip install 'plotly>=6'")
    return _packed(path)


@lru_cache(maxsize=1)
def _packed(path: Path) -> str:
    return base64.b64encode(gzip.compress(path.read_bytes(), 6, mtime=0)).decode()


def write(path: Path, text: str) -> None:
    """Writes the text of a page to a file, atomically. Only the user can read the file.

    Raises ReportError: the file cannot be written.
    """
    try:
        run_files.replace(path, text.encode(), sync=False)
    except OSError as error:
        why = f"{path} cannot be written ({error.strerror}): choose another place with --output FILE"
        raise ReportError(why) from None

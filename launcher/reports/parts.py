"""The data types that a page consists of: Page, Section, Table, Code. page.html.j2 renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.reports.figures import Figure


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

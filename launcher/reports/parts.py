"""The data types that a page consists of: Page, Section, Table, Code. page.html.j2 renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.reports.figures import Figure


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        heads: the headings of the columns.
        rows: the rows, with the text of each cell.
        left: the numbers (from 0) of the columns that are aligned left, since they contain text.
        marks: the style of highlighted rows (`good`, `bad` or `chosen`), by the row's number from 0.
        summary: the text on which to click to open the table; empty: the table is always open.
    """

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: frozenset[int] = frozenset({0})
    marks: dict[int, str] | None = None
    summary: str = ""


@dataclass(frozen=True)
class Code:
    """Text to copy, such as a command or an option, with a label."""

    label: str
    text: str


@dataclass(frozen=True)
class Section:
    """A section of a page. Its contents are shown in this order: note, codes, legend, figures, tables, log.

    Attributes:
        title: the heading.
        note: text below the heading.
        codes: texts to copy.
        figures: charts.
        tables: tables.
        log: lines of output or of a traceback.
        folded: whether the section is closed at first.
        legend: (colour, name) of each run, for all figures of the section.
    """

    title: str
    note: str = ""
    codes: Sequence[Code] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    log: Sequence[str] = ()
    folded: bool = False
    legend: Sequence[tuple[str, str]] = ()

    @property
    def id(self) -> str:
        """The section's HTML id, made from its title."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Page:
    """A report page.

    Attributes:
        title: the document's title and first heading.
        kind: what the page is about (`Sweep`), shown above that heading.
        state: the run's state; empty for a sweep or several runs.
        cause: a line below the heading: why the run ended, the baseline, or the states of a sweep's points.
        facts: (name, value) of the main facts.
        codes: commands to copy, such as the one that submitted the run.
        sections: the sections, in order.
        made: a line that says when, by which version of the launcher, and from which directory the page was made.
    """

    title: str
    kind: str
    state: str
    cause: str
    facts: Sequence[tuple[str, str]]
    codes: Sequence[Code]
    sections: Sequence[Section]
    made: str

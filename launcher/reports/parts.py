"""The parts of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.reports.figures import Figure


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        heads: the headings of the columns.
        rows: the rows.
        left: the numbers of columns that are aligned left, since they contain text.
        marks: the style of highlighted rows (`good`, `bad` or `chosen`), by the row's number.
        summary: the text on which to click to open the table; empty: it is always open.
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
    """A part of the page.

    Attributes:
        title: its heading.
        note: text below the heading. The other contents follow in this order: codes, legend, figures, tables, log.
        codes: texts to copy.
        figures: charts.
        tables: tables.
        log: lines of output.
        folded: whether the section is closed at first.
        legend: colour and name of each run, for all figures.
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
        """The section's anchor in the page."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: the document's title and first heading.
        kind: the subject, shown above that heading.
        state: the run's state; empty for several runs.
        cause: why the run ended, in a line.
        facts: the main facts, as (name, value).
        codes: commands to copy, such as the one that submitted the run.
        sections: its parts.
        made: when, and by which version of the launcher, the page was made.
    """

    title: str
    kind: str
    state: str
    cause: str
    facts: Sequence[tuple[str, str]]
    codes: Sequence[Code]
    sections: Sequence[Section]
    made: str

"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.reports.figures import Figure


@dataclass(frozen=True)
class Table:
    """Heads and rows of text.

    Attributes:
        left: columns that hold words and not numbers.
        marks: `good` or `bad` for each row that stands out, by its number.
        summary: with it the table is folded away, and this is what one clicks on.
    """

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: frozenset[int] = frozenset({0})
    marks: dict[int, str] | None = None
    summary: str = ""


@dataclass(frozen=True)
class Code:
    """Text to be copied: a command, an option."""

    label: str
    text: str


@dataclass(frozen=True)
class Section:
    """One part of the page: a note, things to copy, a legend, figures, tables, lines of output, in this order.

    Attributes:
        legend: colour and name of each line that all the figures have.
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
        """For links."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Page:
    """
    Attributes:
        title: of the document and of its first heading.
        kind: what it is a page about, above that heading.
        state: of the run; empty for several.
        cause: why it ended as it did, in a line.
        facts: what one wants to know first, as (name, value).
        codes: how it was made, to be copied.
        made: when and by what the page was made.
    """

    title: str
    kind: str
    state: str
    cause: str
    facts: Sequence[tuple[str, str]]
    codes: Sequence[Code]
    sections: Sequence[Section]
    made: str

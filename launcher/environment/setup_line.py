"""One of the shell lines that run before the agents start."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.failures import text
from launcher.failures.codes import SetupPart


@dataclass(frozen=True)
class SetupLine:
    """A shell line, or several.

    Attributes:
        line: it.
        of: what it is for.
        number: its number among those, from 1.
        name: of the module, the environment or the folder that it is about.
    """

    line: str
    of: SetupPart
    number: int = 0
    name: str = ""

    @property
    def words(self) -> str:
        """What it is, for people."""
        return text.of_setup_line(self.of, self.number, self.name)

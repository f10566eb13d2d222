"""The type of the shell lines that the job script runs before the agents start."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.failures import text
from launcher.failures.codes import SetupPart


@dataclass(frozen=True)
class SetupLine:
    """One shell line (or several that belong together) of the job script's set-up.

    Attributes:
        line: the shell text.
        of: its purpose, and so the key that it comes from.
        number: its number among the lines of this purpose, from 1.
        name: the module, the environment or the folder that it concerns; empty: none.
    """

    line: str
    of: SetupPart
    number: int = 0
    name: str = ""

    @property
    def words(self) -> str:
        """The description of the line in errors."""
        return text.of_setup_line(self.of, self.number, self.name)

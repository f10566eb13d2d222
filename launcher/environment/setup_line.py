"""The type of the shell lines that the job script runs before the agents start."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.failures import text
from launcher.failures.codes import SetupPart


@dataclass(frozen=True)
class SetupLine:
    """One shell line (or several that belong together) of the job script's set-up."""

    line: str  # shell text
    of: SetupPart  # purpose of the line, by the config key that it comes from
    number: int = 0  # number of the line in cluster.setup or env.setup, from 1; 0: it comes from another key
    name: str = ""  # module, environment or folder that the line loads, activates or creates; empty: none

    @property
    def words(self) -> str:
        """The description of the line in errors."""
        return text.of_setup_line(self.of, self.number, self.name)

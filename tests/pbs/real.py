"""A real PBS, on a machine that can submit to one: the same tests run against it instead of the stand-in."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from pathlib import Path

from launcher.schedulers.base import QueryError
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.qsub import QsubKind, detect


class RealPbs:
    """The PBS of the commands on PATH. It needs at least two nodes that share the tests' folders with this machine.

    Attributes:
        hosts: the names of its nodes.
        against: what the closing table of the tests says about it.
        environment: the variables of this process that select its configuration.
    """

    def __init__(self, root: Path) -> None:
        """
        Args:
            root: the tests' folder; reset() deletes only jobs with their output below it.
        """
        self._root = root
        names = ("PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER")
        self.environment = {name: os.environ[name] for name in names if name in os.environ}
        self.hosts, self.against = self._nodes(), self.described()
        self._before = self._jobs()

    @staticmethod
    def answers() -> bool:
        """Returns whether this machine has a PBS with a server that answers."""
        if detect().kind is not QsubKind.PBS:
            return False
        try:
            PBS(10).jobs()
        except QueryError:
            return False
        return True

    @classmethod
    def described(cls) -> str:
        """Returns what the closing table of the tests says about this PBS."""
        return f"a real OpenPBS {detect().version}, {len(cls._nodes())} nodes"

    @staticmethod
    def _nodes() -> tuple[str, ...]:
        lines = subprocess.run(["pbsnodes", "-a"], capture_output=True, text=True, check=True).stdout.splitlines()
        return tuple(line for line in lines if line and not line[0].isspace())

    def reset(self) -> None:
        """Deletes the jobs of the tests that were submitted since this object was made, and waits for their ends."""
        deadline = time.monotonic() + 30
        while (jobs := [job for job in self._jobs() - self._before if self._ours(job)]) and time.monotonic() < deadline:
            for job in jobs:  # one by one: the server of 23.06.06 crashes if some of several ids are unknown
                subprocess.run(["qdel", "-W", "force", job], capture_output=True, check=False)
            time.sleep(0.2)

    def _ours(self, job: str) -> bool:
        return f":{self._root}/" in str((PBS().record(job) or {}).get("Output_Path"))

    @staticmethod
    def _jobs() -> set[str]:
        done = subprocess.run(["qselect", "-u", getpass.getuser()], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

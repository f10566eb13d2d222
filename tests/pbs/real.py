"""A real PBS, where this machine can submit to one: the same tests run against it instead of the stand-in."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from pathlib import Path

from launcher.schedulers.detect import Kind, detect
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.queries import QueryError


class RealPbs:
    """The PBS of the commands on PATH, with at least two nodes that see the folders of the tests.

    Attributes:
        hosts: the names of its nodes.
        environment: where its configuration is.
    """

    def __init__(self, root: Path) -> None:
        """
        Args:
            root: only jobs whose output is below this folder are ours to delete.
        """
        self._root = root
        names = ("PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER")
        self.environment = {name: os.environ[name] for name in names if name in os.environ}
        self.hosts, self.against = self._nodes(), self.described()
        self._before = self._jobs()

    @staticmethod
    def answers() -> bool:
        """Whether there is one."""
        if detect().kind is not Kind.PBS:
            return False
        try:
            PBS(10).jobs()
        except QueryError:
            return False
        return True

    @classmethod
    def described(cls) -> str:
        """What the closing table says of it."""
        return f"a real OpenPBS {detect().version}, {len(cls._nodes())} nodes"

    @staticmethod
    def _nodes() -> tuple[str, ...]:
        lines = subprocess.run(["pbsnodes", "-a"], capture_output=True, text=True, check=True).stdout.splitlines()
        return tuple(line for line in lines if line and not line[0].isspace())

    def reset(self) -> None:
        """Deletes the launcher's jobs that were submitted since the beginning, and waits until they are gone."""
        deadline = time.monotonic() + 30
        while (jobs := [job for job in self._jobs() - self._before if self._ours(job)]) and time.monotonic() < deadline:
            for job in jobs:  # several ids of which some are unknown crash the server of 23.06.06
                subprocess.run(["qdel", "-W", "force", job], capture_output=True, check=False)
            time.sleep(0.2)

    def _ours(self, job: str) -> bool:
        return f":{self._root}/" in str((PBS().record(job) or {}).get("Output_Path"))

    @staticmethod
    def _jobs() -> set[str]:
        done = subprocess.run(["qselect", "-u", getpass.getuser()], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

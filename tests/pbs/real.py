"""A real PBS, where this machine can submit to one: the same tests run against it instead of the stand-in."""

from __future__ import annotations

import getpass
import os
import subprocess
import time

from launcher.backends.base import QueryError
from launcher.backends.detect import Kind, detect
from launcher.backends.pbs_query import PBS, TOKEN


class RealPbs:
    """The PBS of the commands on PATH, with at least two nodes that see the folders of the tests.

    Attributes:
        hosts: the names of its nodes.
        environment: where its configuration is.
    """

    def __init__(self) -> None:
        names = ("PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER")
        self.environment = {name: os.environ[name] for name in names if name in os.environ}
        lines = subprocess.run(["pbsnodes", "-a"], capture_output=True, text=True, check=True).stdout.splitlines()
        self.hosts = tuple(line for line in lines if line and not line[0].isspace())
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

    @property
    def against(self) -> str:
        """What the closing table says of it."""
        return f"a real OpenPBS {detect().version}, {len(self.hosts)} nodes"

    def reset(self) -> None:
        """Deletes the launcher's jobs that were submitted since the beginning, and waits until they are gone."""
        deadline = time.monotonic() + 30
        while (jobs := [job for job in self._jobs() - self._before if self._ours(job)]) and time.monotonic() < deadline:
            subprocess.run(["qdel", "-W", "force", *jobs], capture_output=True, check=False)
            time.sleep(0.2)

    @staticmethod
    def _ours(job: str) -> bool:
        return TOKEN in ((PBS().record(job) or {}).get("Variable_List") or {})

    @staticmethod
    def _jobs() -> set[str]:
        done = subprocess.run(["qselect", "-u", getpass.getuser()], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

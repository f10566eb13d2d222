"""Runs the launcher's command line as a user does, for the layers above the unit tests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.failures import messages
from launcher.files.json_types import from_json
from launcher.runs.directory import Run
from launcher.runs.events import Fault
from launcher.runs.lookup import all_runs
from tests import forked_commands, warm_python

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
# Variables of a job that the test session may be in must not reach the runs.
_INHERITED = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "LAUNCHER_", "PBS_"))}


def until(condition: Callable[[], object], what: str, timeout: float = 60, details: Callable[[], str] = str) -> None:
    """Waits until a condition is true.

    Args:
        condition: is called again and again.
        what: what is waited for, for the error message.
        timeout: seconds.
        details: returns more text for the error message.
    """
    asked = time.monotonic()
    deadline = asked + timeout
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{what} within {timeout:g} s; {details()}"
        time.sleep(max(0.1, 2 * (now - asked)))  # a condition that runs a command must not keep a processor busy
        asked = time.monotonic()


def command_lines() -> list[str]:
    """The arguments of each live process but this one, with a blank behind each."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            if int(folder.name) != os.getpid():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@dataclass(frozen=True)
class Launcher:
    """The launcher's command line, with a folder of runs for the test.

    Attributes:
        runs_dir: the folder of runs.
        environment: variables that are added to the inherited ones.
        overrides: overrides of every submission (`cluster=slurm`).
        prefix: a command that runs the launcher (`salloc ...`); empty: none.
        hosts: the names of the first two nodes.
    """

    runs_dir: Path
    environment: Mapping[str, str]
    overrides: Sequence[str] = ()
    prefix: Sequence[str] = ()
    hosts: Sequence[str] = (socket.gethostname(),) * 2

    @property
    def config_dir(self) -> Path:
        """The user's config folder, which does not exist yet."""
        return self.runs_dir.with_name("config")

    @property
    def environ(self) -> dict[str, str]:
        return {
            **_INHERITED, "PYTHONPATH": str(ROOT), "LAUNCHER_RUNS_DIR": str(self.runs_dir),
            "LAUNCHER_CONFIG_DIR": str(self.config_dir), "LAUNCHER_CACHE_DIR": str(self.runs_dir.with_name("cache")),
            **self.environment,
        }  # fmt: skip

    def __call__(self, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m launcher ARGUMENTS`."""
        variables = {**self.environ, **environment}
        if not self.prefix or (self.prefix[0], self.prefix[-1]) == ("nsenter", "--"):  # it only enters namespaces
            return forked_commands.run(arguments, ROOT, variables, timeout, self.prefix)
        return subprocess.run(
            [*self.prefix, warm_python.python(), "-m", "launcher", *arguments], cwd=ROOT, env=variables,
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def submit(self, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Submits a run."""
        return self(*overrides, *self.overrides, **environment)

    def by_hand(self, command: str, **environment: str) -> None:
        """Runs the command that `submit=false` has printed, as a user would, in a shell."""
        done = subprocess.run(
            [*self.prefix, "bash", "-c", command], env={**self.environ, **environment}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def run(self, *overrides: str, **environment: str) -> Result:
        """Submits a run and waits until it is over."""
        done = self.submit(*overrides, "wait=true", **environment)
        assert all_runs(self.runs_dir), f"nothing was submitted: {done.stdout}{done.stderr}"
        return Result(self.last(), done.returncode, done.stdout + done.stderr)

    def fault(self, kind: str, *overrides: str, **environment: str) -> Result:
        """Runs a function of tests/chaos/faults.py as a workload, on two nodes with two ranks each."""
        return self.run(
            "workload=collective", f"workload.entry=tests.chaos.faults:{kind}", "nodes=2", "procs_per_node=2",
            *overrides, **environment,
        )  # fmt: skip

    def last(self) -> Run:
        """The newest run."""
        return all_runs(self.runs_dir)[0]

    def status(self) -> dict[str, Any]:
        """The newest run as `status --json` shows it."""
        done = self("status", "latest", "--json")
        assert done.returncode == 0, done.stderr
        row: dict[str, Any] = json.loads(done.stdout)[0]
        return row

    def until(self, condition: Callable[[], object], what: str, timeout: float = 60) -> None:
        """Waits until a condition is true; an error shows the output of the newest run."""
        until(condition, what, timeout, self.printed)

    def printed(self) -> str:
        """What the newest run has printed so far."""
        runs = all_runs(self.runs_dir)
        return "\n".join(path.read_text() for run in runs[:1] for path in run.outputs())


@dataclass(frozen=True)
class Result:
    """A run that is over: its directory, the command's exit code, and all that the command printed."""

    run: Run
    code: int
    output: str

    @property
    def metrics(self) -> dict[str, object]:
        return self.run.result() or {}

    @property
    def cause(self) -> str:
        """The text of the first fault in the record."""
        return messages.of_fault(from_json(self.fault, Fault))

    @property
    def fault(self) -> dict[str, object]:
        """The first fault in the record."""
        events = self.run.attempts()[-1].events()
        return next(event for event in events if event["event"] == "fault")

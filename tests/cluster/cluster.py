"""The base class of the test clusters of Slurm and Grid Engine, and their command line (up, down, env)."""

from __future__ import annotations

import argparse
import contextlib
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from tests.cluster.daemons import DaemonSet, wait_until

C = TypeVar("C", bound="Cluster")


class ClusterError(RuntimeError):
    """A test cluster, or a command on it, failed. The text has the daemons' logs if one of them may be the cause."""


class Cluster(ABC):
    """A scheduler with its daemons on this machine, with all files in one folder.

    Use it as a context manager, or call start() and stop(). A cluster belongs to the process that starts it: if this
    process dies without stopping it, the next start of a cluster on this host removes it. With detached=True it belongs
    to no process, and runs until stop() is called.

    Attributes:
        name: prefix of the folder's name, if no folder is given.
        mark: name of a file that marks the folder of a cluster; stop() removes only a folder with this file.
        start_timeout: seconds that start() may take.
    """

    name: ClassVar[str]
    mark: ClassVar[str]
    start_timeout: ClassVar[float]

    def __init__(self, folder: str | Path | None = None, *, detached: bool = False) -> None:
        self.folder = Path(folder or Path(tempfile.gettempdir(), f"{self.name}-{secrets.token_hex(4)}")).absolute()
        self.detached = detached
        self.daemons = DaemonSet(self.folder)

    # -- up and down

    def start(self: C) -> C:
        """Starts all daemons, and returns when all nodes accept jobs.

        Raises:
            ClusterError: the cluster cannot run here, the folder cannot be used, or a daemon did not start in time.
        """
        if reason := self._absent():
            raise ClusterError(reason)
        if not re.fullmatch(r"[\w./-]{1,70}", str(self.folder), re.ASCII):
            # Configuration files of schedulers have no quoting, and a Unix socket's path has at most 107 characters.
            raise ClusterError(f"{self.folder}: choose a path of at most 70 characters, none special or a space")
        self._clear_orphans()
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise ClusterError(f"{self.folder} is not empty: stop the cluster that it holds, or choose another folder")
        (self.folder / self.mark).touch()
        deadline = time.monotonic() + self.start_timeout
        try:
            self._start(deadline)
            self.wait_idle(timeout_s=deadline - time.monotonic())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends every daemon and every process of a job, and removes the folder. Safe to call twice."""
        if (self.folder / self.mark).exists():
            self._stop()
            with contextlib.suppress(FileNotFoundError):  # another process removes the same orphan
                shutil.rmtree(self.folder)

    def __enter__(self: C) -> C:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @abstractmethod
    def _absent(self) -> str | None:
        """Returns why the cluster cannot run on this machine, and how to fix it; None: it can run."""

    @abstractmethod
    def _clear_orphans(self) -> None:
        """Stops clusters on this host that still run although their owner has died, such as a killed test run."""

    @abstractmethod
    def _start(self, deadline: float) -> None:
        """Starts the daemons; `deadline` is a value of time.monotonic()."""

    @abstractmethod
    def _stop(self) -> None:
        """Ends all daemons and processes of jobs."""

    # -- for tests

    @abstractmethod
    def env(self) -> dict[str, str]:
        """Returns the environment for a command on this cluster: this process's, without other clusters' variables."""

    @abstractmethod
    def wait_idle(self, *, timeout_s: float = 60.0) -> None:
        """Waits until all nodes are up and have no job.

        Raises:
            ClusterError: this took longer than `timeout_s` seconds, or a daemon has ended.
        """

    def last_words(self) -> str:
        """Returns the last lines of all logs, for an error message."""
        return self.daemons.tails()

    def run(self, *argv: str, timeout_s: float = 60.0, text: str | None = None) -> str:
        """Runs a command on the cluster and returns its standard output.

        Args:
            argv: the command and its arguments.
            timeout_s: seconds after which the command is killed.
            text: its standard input; None: empty.

        Raises:
            ClusterError: the command failed or was killed; the text has its output.
        """
        done = self._ask(*argv, timeout_s=timeout_s, text=text)
        if done.returncode:
            raise ClusterError(f"{shlex.join(argv)} exited {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _ask(self, *argv: str, timeout_s: float = 20.0, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command on the cluster. One that takes longer than `timeout_s` seconds returns exit code 124."""
        try:
            return subprocess.run(
                argv, env=self.env(), capture_output=True, text=True, timeout=timeout_s, check=False, input=text or ""
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"no answer after {timeout_s:.0f} s")

    def _require_daemons(self) -> None:
        if dead := self.daemons.dead():
            raise ClusterError(f"{', '.join(dead)} ended by itself\n{self.last_words()}")

    def _wait(self, ready: Callable[[], bool], deadline: float, complaint: str) -> None:
        """Waits until a daemon is ready.

        Args:
            ready: returns whether it is.
            deadline: a value of time.monotonic().
            complaint: the text of the error.

        Raises:
            ClusterError: the deadline has passed, or one of the daemons has ended.
        """
        done = wait_until(lambda: bool(self.daemons.dead()) or ready(), timeout_s=deadline - time.monotonic())
        if dead := self.daemons.dead():
            complaint += f" ({', '.join(dead)} ended by itself)"
        if dead or not done:
            raise ClusterError(f"{complaint}\n{self.last_words()}")


def parser(text: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a test cluster's command line; `text` is the docstring of its module, for --help."""
    found = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    found.add_argument("action", choices=("up", "down", "env"))
    found.add_argument("--dir", required=True, type=Path, help="the cluster's folder; down removes it")
    return found


def act(action: str, cluster: Cluster, exported: Callable[[], Mapping[str, str]]) -> int:
    """Carries out an action of the command line, and returns the exit code.

    Args:
        action: `up` starts the cluster, `down` stops it. `up` and `env` print `export` lines for a shell to use it.
        cluster: the cluster.
        exported: returns the variables to export.
    """
    try:
        if action == "up":
            cluster.start()
        if action == "down":
            cluster.stop()
        else:
            for name, value in exported().items():
                print(f"export {name}={shlex.quote(value)}")
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0

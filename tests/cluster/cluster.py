"""What the test clusters of all schedulers share: a folder, daemons in it, an owner, commands, a command line."""

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
    """The cluster did not do what was asked. When a daemon may be why, the text ends with the daemons' last words."""


class Cluster(ABC):
    """A scheduler with its daemons on this machine, all in one folder.

    Use it as a context manager, or call start() and stop(). A cluster belongs to the process that starts it: should
    that die without stopping it, the next start on this host clears it away. With detached=True it stays up until told.

    Attributes:
        name: of the folder, where none is given.
        mark: a file in the folder; only a folder with it is ever removed.
        start_timeout: seconds.
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
        """Starts everything; returns when all nodes take jobs."""
        if reason := self._absent():
            raise ClusterError(reason)
        if not re.fullmatch(r"[\w./-]{1,70}", str(self.folder), re.ASCII):
            # Files of schedulers know no quoting, and a Unix socket has a path of at most 107 characters.
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
            with contextlib.suppress(FileNotFoundError):  # somebody else clears away the same orphan
                shutil.rmtree(self.folder)

    def __enter__(self: C) -> C:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @abstractmethod
    def _absent(self) -> str | None:
        """Why it cannot run here, with the words to fix it; None when it can."""

    @abstractmethod
    def _clear_orphans(self) -> None:
        """Stops the clusters whose owner died without stopping them, for instance a test run that was killed."""

    @abstractmethod
    def _start(self, deadline: float) -> None:
        """Starts the daemons."""

    @abstractmethod
    def _stop(self) -> None:
        """Ends all that was started."""

    # -- what tests use

    @abstractmethod
    def env(self) -> dict[str, str]:
        """The environment for a user's command on this cluster: ours, less every trace of another one."""

    @abstractmethod
    def wait_idle(self, *, timeout_s: float = 60.0) -> None:
        """Waits until all nodes are there and have no job."""

    def last_words(self) -> str:
        """The ends of all logs, for an error message."""
        return self.daemons.tails()

    def run(self, *argv: str, timeout_s: float = 60.0, text: str | None = None) -> str:
        """Runs a command on the cluster and returns what it printed; a failure shows its words."""
        done = self._ask(*argv, timeout_s=timeout_s, text=text)
        if done.returncode:
            raise ClusterError(f"{shlex.join(argv)} exited {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _ask(self, *argv: str, timeout_s: float = 20.0, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command on the cluster; one that hangs is as good as one that fails."""
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
        """Waits for a daemon to be ready; gives up at the deadline, or as soon as any daemon died."""
        done = wait_until(lambda: bool(self.daemons.dead()) or ready(), timeout_s=deadline - time.monotonic())
        if dead := self.daemons.dead():
            complaint += f" ({', '.join(dead)} ended by itself)"
        if dead or not done:
            raise ClusterError(f"{complaint}\n{self.last_words()}")


def parser(text: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a cluster's command line; `text` is its module's own."""
    found = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    found.add_argument("action", choices=("up", "down", "env"))
    found.add_argument("--dir", required=True, type=Path, help="the cluster's folder; down removes it")
    return found


def act(action: str, cluster: Cluster, exported: Callable[[], Mapping[str, str]]) -> int:
    """Starts or stops a cluster, and prints the variables by which a shell uses it. Returns the exit status."""
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

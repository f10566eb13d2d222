"""Starts a stand-in for OpenPBS with two nodes, in a folder of its own, for tests; see tests/pbs/stand_in.

For instance:

    with PbsCluster(tmp_path) as pbs:
        subprocess.run(["qsub", "job.sh"], env={**os.environ, **pbs.environment})
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.pbs.stand_in import wire

STAND_IN = Path(__file__).with_name("stand_in")
COMMANDS = (
    "qsub", "qstat", "qdel", "qsig", "qselect", "qrerun", "qalter", "qhold", "qrls", "pbsdsh", "pbsnodes",
)  # fmt: skip
LONGEST = 90  # characters of the folder's path, because a Unix socket's path has at most 107


class PbsCluster:
    """A PBS server, scheduler and two MoMs in one process, and PBS commands that call it. A context manager.

    Jobs are processes of this user. On exit everything is removed: the folder, and all processes of jobs, even those in
    sessions of their own (setsid), which MoM does not kill.

    Attributes:
        against: what the closing table of the tests says about it.
        hosts: the names of the nodes; both are names of this machine.
        home: the $HOME of jobs. Its .profile puts the PBS commands on PATH; a test may write another one.
        environment: the variables that a client needs in addition to its own environment.
    """

    against = "a stand-in for OpenPBS 23.06.06, 2 nodes"

    def __init__(self, folder: Path) -> None:
        long = len(str(folder)) > LONGEST
        self.folder = Path(tempfile.mkdtemp(prefix="pbs-", dir="/tmp")) if long else folder
        self.hosts = (socket.gethostname(), "localhost")
        self.home = self.folder / "home"
        self.conf = self.folder / "pbs.conf"
        self.environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PBS_CONF_FILE": str(self.conf), "HOME": str(self.home),
            "LOGNAME": getpass.getuser(),
        }  # fmt: skip
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PbsCluster:
        for name in ("bin", "home", "spool"):
            (self.folder / name).mkdir(parents=True)
        self.conf.write_text(
            f"PBS_EXEC={self.folder}\nPBS_SERVER=pbs-srv\nPBS_HOME={self.folder}/spool\nPBS_START_SERVER=0\n"
        )
        # On a real node /etc/profile.d does this, by $PBS_EXEC/etc/pbs.sh.
        (self.home / ".profile").write_text(f"export PATH=$PATH:{self.folder}/bin\n")
        python = [sys.executable, "-I", "-S"]
        for name in COMMANDS:
            words = [*python, str(STAND_IN / "client.py"), str(self.folder / "socket"), name]
            (self.folder / "bin" / name).write_text(f'#!/bin/bash\nexec {shlex.join(words)} "$@"\n')
            (self.folder / "bin" / name).chmod(0o755)
        with open(self.folder / "daemon.log", "wb") as log:
            self._daemon = subprocess.Popen(
                [*python, str(STAND_IN / "daemon.py"), str(self.folder), *self.hosts], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while not (self.folder / "socket").exists():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                log_text = (self.folder / "daemon.log").read_text()
                self.__exit__()
                raise RuntimeError(f"the stand-in did not start: {log_text}")
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._daemon is not None
        with contextlib.suppress(OSError):
            self._control("stop")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._daemon.wait(timeout=5)
        self._daemon.kill()
        self._daemon.wait()
        self._kill_stragglers()
        shutil.rmtree(self.folder)

    # -- the commands

    def run(self, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command as a client, and returns its result, even if it failed.

        Args:
            command: the command and its arguments.
            more: arguments of subprocess.run; `env` is added to the environment.
        """
        environment = {**os.environ, **self.environment, **more.pop("env", {})}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **more)

    @staticmethod
    def version() -> str:
        """Returns the version of OpenPBS that this stands in for."""
        return "23.06.06"

    def calls(self, command: str | None = None) -> list[list[str]]:
        """Returns all calls of a command since the last reset, as [name, arguments...]; None: of all but pbsdsh."""
        return [list(call) for call in self._control("calls", command)]

    def submissions(self) -> int:
        """Returns the number of calls of qsub since the last reset, without `qsub --version`."""
        return sum(call[1:] != ["--version"] for call in self.calls("qsub"))

    # -- what happens to a site

    def reset(self) -> None:
        """Removes all jobs with their processes, the history and the recorded calls, and restores all settings."""
        self._control("reset")
        self._kill_stragglers()

    def set(self, **settings: object) -> None:
        """Changes settings of the server until the next reset: fields of `Settings` in stand_in/server.py."""
        self._control("set", settings)

    def set_queues(self, *queues: Mapping[str, object]) -> None:
        """Replaces the queues until the next reset; each one is given as fields of `Queue` in stand_in/server.py."""
        self._control("queues", queues)

    def down(self) -> None:
        """Simulates a server that does not answer; jobs keep running."""
        self.set(down=True)

    def up(self) -> None:
        """Ends `down`: the server answers again."""
        self.set(down=False)

    def hang(self, seconds: float) -> None:
        """Makes qsub hang: the server accepts each job at once, but qsub returns only `seconds` later."""
        self.set(hang=seconds)

    def freeze_scheduler(self) -> None:
        """Makes the scheduler start no more jobs."""
        self.set(frozen=True)

    def thaw(self) -> None:
        """Ends `freeze_scheduler`: the scheduler starts the jobs that can start."""
        self.set(frozen=False)

    def rerun(self, job_id: str) -> None:
        """Requeues a job, as a manager's qrerun does: SIGTERM, SIGKILL after the setting kill_delay, then queued."""
        self._control("rerun", job_id)

    def lose_node(self, host: str) -> None:
        """Simulates the loss of a node: all processes of jobs on it are killed.

        Jobs with this node as their first one stay in state R until the node is back.
        """
        self._control("lose", host)

    def restore_node(self, host: str) -> None:
        """Ends `lose_node`: jobs with this node as their first one are queued again."""
        self._control("restore", host)

    def _kill_stragglers(self) -> None:
        """Kills processes of jobs that MoM does not know, because they called setsid.

        They have this cluster's pbs.conf and a job id in their environment.
        """
        marks = {f"PBS_CONF_FILE={self.conf}".encode()}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    settings = set((entry / "environ").read_bytes().split(b"\0"))
                    if marks <= settings and any(setting.startswith(b"PBS_JOBID=") for setting in settings):
                        os.kill(int(entry.name), signal.SIGKILL)

    def _control(self, what: str, value: object = None) -> Any:
        """Sends a request of a test to the daemon, and returns its answer (stand_in/daemon.py, Daemon._control).

        Raises:
            ValueError: the daemon refused it.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "socket"))
            connection.sendall(wire.pack({"command": "control", "what": what, "value": value}))
            answer = wire.receive(connection) or {}
        if error := answer.get("error"):
            raise ValueError(error)
        return answer.get("value")

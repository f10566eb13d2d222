"""A stand-in OpenPBS of two nodes in a folder of its own, for tests; see tests/pbs/stand_in.

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
LONGEST = 90  # of the folder's path: a Unix socket's has at most 107 characters


class PbsCluster:
    """Server, scheduler and two MoMs in one process, and the commands that talk to it.

    Jobs are processes of this user's, their $HOME is `home`. Nothing is left behind on exit, not even the folder or
    what a job has hidden from MoM with setsid.

    Attributes:
        hosts: the names of the nodes, both of which are this machine.
        home: the $HOME of jobs; its .profile is a test's to write, but without ours PATH has no PBS commands.
        environment: what a client needs in addition to its own environment.
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
        # What $PBS_EXEC/etc/pbs.sh does from /etc/profile.d on a real node.
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
        """Run a command as a client; a failure is the test's to look at."""
        environment = {**os.environ, **self.environment, **more.pop("env", {})}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **more)

    @staticmethod
    def version() -> str:
        """The version that it stands in for."""
        return "23.06.06"

    def calls(self, command: str | None = None) -> list[list[str]]:
        """Every invocation of a command (or of all, but pbsdsh) since the last reset, as its name and arguments."""
        return [list(call) for call in self._control("calls", command)]

    def submissions(self) -> int:
        """How often a job was handed to qsub since the last reset."""
        return sum(call[1:] != ["--version"] for call in self.calls("qsub"))

    # -- what happens to a site

    def reset(self) -> None:
        """No job, no process of a job, no history, no recorded call, and all settings as at first."""
        self._control("reset")
        self._kill_stragglers()

    def set(self, **settings: object) -> None:
        """Change settings until the next reset; their names are those of stand_in/server.py, Settings."""
        self._control("set", settings)

    def set_queues(self, *queues: Mapping[str, object]) -> None:
        """Queues instead of the usual ones, until the next reset; stand_in/server.py, Queue."""
        self._control("queues", queues)

    def down(self) -> None:
        """The server stops to answer; jobs go on."""
        self.set(down=True)

    def up(self) -> None:
        """The server answers again."""
        self.set(down=False)

    def hang(self, seconds: float) -> None:
        """Each qsub from now on is accepted at once and hears of it only then."""
        self.set(hang=seconds)

    def freeze_scheduler(self) -> None:
        """Nothing is started any more."""
        self.set(frozen=True)

    def thaw(self) -> None:
        """What can start starts."""
        self.set(frozen=False)

    def rerun(self, job_id: str) -> None:
        """qrerun by a manager: SIGTERM, SIGKILL after kill_delay, and the job is queued again."""
        self._control("rerun", job_id)

    def lose_node(self, host: str) -> None:
        """SIGKILL to a node's MoM and all that jobs run there; jobs that began there stay R until it is back."""
        self._control("lose", host)

    def restore_node(self, host: str) -> None:
        """A lost node's MoM is back: jobs that began there are queued again."""
        self._control("restore", host)

    def _kill_stragglers(self) -> None:
        """End what jobs have hidden from MoM: it has our pbs.conf and a job's id in its environment."""
        marks = {f"PBS_CONF_FILE={self.conf}".encode()}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    settings = set((entry / "environ").read_bytes().split(b"\0"))
                    if marks <= settings and any(setting.startswith(b"PBS_JOBID=") for setting in settings):
                        os.kill(int(entry.name), signal.SIGKILL)

    def _control(self, what: str, value: object = None) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "socket"))
            connection.sendall(wire.pack({"command": "control", "what": what, "value": value}))
            answer = wire.receive(connection) or {}
        if error := answer.get("error"):
            raise ValueError(error)
        return answer.get("value")

#!/usr/bin/env python3
"""A real four-node Slurm on this host, in a folder of its own, for tests.

    python tests/cluster/slurm_cluster.py up --dir /tmp/try [--accounting]
    eval "$(python tests/cluster/slurm_cluster.py env --dir /tmp/try)"
    sinfo; srun -N2 hostname
    python tests/cluster/slurm_cluster.py down --dir /tmp/try

Debian's slurmd can run several times on one host (`slurmd -N NAME`). Nothing outside the folder is used or changed,
except /etc/hosts, by which node1..node4 must resolve: see host.py. slurm_config.py has the daemons' configuration.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":  # as a command, not as a part of the test package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster import host, slurm_config
from tests.cluster.cluster import Cluster, ClusterError, act, parser
from tests.cluster.daemons import Proc, descendants, end, running, wait_until
from tests.cluster.slurm_config import NODES, Site

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
NEEDED_FOR_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")
INSTALL = "run tests/setup_debian.sh as root"
# The daemons belong to the sbatch on PATH, so another Slurm is tested by putting its bin first on PATH. They are in an
# sbin folder, which is not on every user's PATH.
BESIDE = str(Path(shutil.which("sbatch") or "/usr/bin/sbatch").parent.parent / "sbin")
SEARCH = os.pathsep.join([BESIDE, os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
# Prefixes of variables that another Slurm, or a job around the tests, may have put into the environment.
FOREIGN = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")


class SlurmCluster(Cluster):
    """A Slurm with four simulated nodes of 4 CPUs and 2 GPUs each, on this host.

    The partitions are gpu (default), debug, memory, and urgent, which preempts the others; see `slurm_config.Site`.
    """

    name, mark, start_timeout = "slurm", ".slurm-test-cluster", 30.0

    def __init__(
        self, folder: str | Path | None = None, *, accounting: bool = False, detached: bool = False,
        site: Site | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, detached=detached)
        self.accounting = accounting
        self.site = site or Site()
        self.conf = self.folder / "slurm.conf"

    @classmethod
    def missing(cls, *, accounting: bool = False) -> str | None:
        """Returns why a Slurm cannot run on this machine, and how to fix it; None: it can run."""
        if sys.platform != "linux":
            return "a real Slurm needs Linux: run the tests in a container"
        if absent := [name for name in NEEDED + NEEDED_FOR_ACCOUNTING * accounting if not _which(name)]:
            return f"{', '.join(absent)} not installed: {INSTALL}"
        if os.geteuid() != 0:
            return "not root, which Slurm's daemons need: run the tests as root, for instance in a container"
        if not os.access(host.HOSTS, os.W_OK):
            return f"{host.HOSTS} cannot be written, and node1..node4 must resolve: make it writable"
        return None

    # -- up and down

    def _absent(self) -> str | None:
        return self.missing(accounting=self.accounting)

    def _clear_orphans(self) -> None:
        for folder, owner in host.owners().items():
            if owner and not owner.alive():
                SlurmCluster(folder).stop()

    def _start(self, deadline: float) -> None:
        owner = None if self.detached else Proc.of(os.getpid())
        ports = host.join(self.folder, 2 + len(NODES), self.site.names, owner=owner)
        slurm_config.write(self.folder, ports, self.site, accounting=self.accounting)
        self._launch("munged", *slurm_config.munged_options(self.folder))
        self._wait((self.folder / "munge.socket").exists, deadline, "munged made no socket")
        if self.accounting:
            self._start_accounting(deadline)
        self._start_controller(deadline)
        for name in NODES:
            self._start_node(name)

    def _stop(self) -> None:
        if self.daemons.get("slurmctld"):
            self.cancel_all(timeout_s=2.0)
        self.daemons.stop(*NODES)
        self._kill_nodes(*NODES)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.daemons.stop(name)

    def stop(self) -> None:
        if (self.folder / self.mark).exists():
            super().stop()
            host.leave(self.folder)

    # -- for tests

    def env(self) -> dict[str, str]:
        """Returns the environment for a command on this cluster: this process's, without variables of other Slurms."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return clean | {"SLURM_CONF": str(self.conf)}

    @staticmethod
    def version() -> str:
        """Returns the version of the installed Slurm, for instance 22.05.8."""
        return subprocess.run([_path("slurmctld"), "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]

    def states(self) -> dict[str, str]:
        """Returns each node's state as sinfo shows it, for instance {"node1": "idle", "node2": "down*"}."""
        listing = self._ask("sinfo", "--noheader", "--Node", "--format=%N %T").stdout
        return dict(line.split() for line in listing.splitlines())

    def wait_idle(self, *, timeout_s: float = 60.0) -> None:
        """Waits until all four nodes are idle. Running nodes that a test set down or drained are resumed.

        Raises:
            ClusterError: this took longer than `timeout_s` seconds, or a daemon has ended.
        """

        def idle() -> bool:
            self._require_daemons()
            states = self.states()
            for name, state in states.items():
                if state in ("down", "drained") and self.daemons.get(name):
                    self._ask("scontrol", "update", f"nodename={name}", "state=resume")
            return list(states.values()) == ["idle"] * len(NODES)

        if not wait_until(idle, timeout_s=timeout_s):
            queue = self._ask("squeue").stdout
            raise ClusterError(f"not all nodes are idle: {self.states()}\n{queue}{self.daemons.tails()}")

    def cancel_all(self, *, timeout_s: float = 15.0) -> bool:
        """Cancels all jobs, and returns whether all have ended within `timeout_s` seconds."""
        if jobs := set(self._ask("squeue", "--noheader", "--format=%A").stdout.split()):
            self._ask("scancel", *jobs)
        return wait_until(lambda: not self._ask("squeue", "--noheader").stdout.strip(), timeout_s=timeout_s)

    def reset(self) -> None:
        """Prepares the cluster for the next test: cancels all jobs, and restores lost nodes."""
        self.cancel_all()
        for name in NODES:
            self.restore_node(name)
        self.wait_idle()

    def fail_node(self, name: str, *, told: bool = False) -> None:
        """Simulates the loss of a node: kills its slurmd and all processes of jobs on it with SIGKILL.

        Args:
            name: the node.
            told: also drain the node and set it down at once, as a site's health check would, so that Slurm reacts
                within a second. Otherwise Slurm notices the loss after about 25 to 45 s.
        """
        self._kill_nodes(name)
        if told:
            # Drain it, too: a late answer from the killed slurmd may resume a node that is only down.
            for state in ("drain", "down"):
                self.run("scontrol", "update", f"nodename={name}", f"state={state}", "reason=lost")

    def restore_node(self, name: str) -> None:
        """Starts the slurmd of a lost node again. Use wait_idle() to wait until Slurm knows that the node is back."""
        if self.daemons.get(name) is None:
            pid_file = self.folder / "run" / f"{name}.pid"
            pid_file.unlink(missing_ok=True)
            self._start_node(name)
            # slurmd writes this file when it listens. Before, Slurm may believe that the node is up, and lose a job.
            self._wait(pid_file.exists, time.monotonic() + 10, f"{name}'s slurmd does not start")

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        """Stops the controller for the block; jobs go on, and it knows them afterwards."""
        self.daemons.stop("slurmctld")
        try:
            yield
        finally:
            self._start_controller(time.monotonic() + self.start_timeout)

    # -- how

    def _start_controller(self, deadline: float) -> None:
        self._launch("slurmctld", "-D", "-i")
        self._wait(lambda: self._ask("scontrol", "ping").returncode == 0, deadline, "slurmctld does not answer")

    def _launch(self, daemon: str, *options: str, name: str | None = None, **settings: str) -> None:
        env = {"PATH": SEARCH, "SLURM_CONF": str(self.conf), **settings}
        self.daemons.start(name or daemon, [_path(daemon), *options], env)

    def _start_accounting(self, deadline: float) -> None:
        socket = self.folder / "mariadb.socket"
        made = self._ask(_path("mariadb-install-db"), *slurm_config.mariadb_options(self.folder, install=True))
        if made.returncode:
            raise ClusterError(f"mariadb-install-db exited {made.returncode}: {made.stderr or made.stdout}")
        self._launch("mariadbd", *slurm_config.mariadb_options(self.folder))
        self._wait(socket.exists, deadline, "mariadbd made no socket")
        # slurmdbd has no option for the database's socket; the client library it uses takes it from here.
        self._launch("slurmdbd", "-D", MYSQL_UNIX_PORT=str(socket))
        add = ("sacctmgr", "--immediate", "add", "cluster", "test")
        self._wait(lambda: self._ask(*add).returncode == 0, deadline, "slurmdbd does not answer")

    def _start_node(self, name: str) -> None:
        self._launch("slurmd", "-D", "-N", name, name=name, SLURMD_NODENAME=name)

    def _kill_nodes(self, *names: str) -> None:
        """Kills the slurmd, step daemons and tasks of these nodes with SIGKILL, until none is left."""
        while family := descendants(self._on_nodes(names)):
            end(family, timeout_s=0)
        self.daemons.stop(*names)

    def _on_nodes(self, names: Iterable[str]) -> Iterable[Proc]:
        """Yields the processes of these nodes.

        Tasks have the node's name in their environment. Daemons overwrite their environment, but keep the node's log
        open.
        """
        conf = f"SLURM_CONF={self.conf}"
        marks = {f"SLURMD_NODENAME={name}" for name in names}
        logs = {str(slurm_config.node_log(self.folder, name)) for name in names}
        for proc in running():
            settings = proc.environment()
            if (conf in settings and marks & settings) or logs & proc.open_files():
                yield proc


def _which(name: str) -> str | None:
    return shutil.which(name, path=SEARCH)


def _path(name: str) -> str:
    path = _which(name)
    if path is None:
        raise ClusterError(f"{name} not installed: {INSTALL}")
    return path


def main() -> int:
    """Runs the command line that the module's docstring describes, and returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--accounting", action="store_true", help="with slurmdbd and a database, so that sacct works")
    given = options.parse_args()
    cluster = SlurmCluster(given.dir, accounting=given.accounting, detached=True)
    return act(given.action, cluster, lambda: {"SLURM_CONF": str(cluster.conf)})


if __name__ == "__main__":
    sys.exit(main())

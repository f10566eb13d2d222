#!/usr/bin/env python3
"""A real Grid Engine with two execution hosts on this machine, in a folder and namespaces of its own, for tests.

    python tests/sge/sge_cluster.py up --dir /tmp/try
    eval "$(python tests/sge/sge_cluster.py env --dir /tmp/try)"
    qhost; qsub -b y -sync y hostname
    python tests/sge/sge_cluster.py down --dir /tmp/try

Grid Engine identifies hosts by name and address, so each simulated host has its own: a network namespace connected to a
switch on the head, a UTS namespace for its host name, and a mount namespace for its /etc/hosts. Files and processes are
shared with this machine. The commands in the folder's `bin` enter the namespaces of the head first, so that any process
of this machine can call them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # as a command, not as a part of the test package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster.cluster import Cluster, ClusterError, act, parser
from tests.cluster.daemons import Proc, descendants, end, running, wait_until

PROGRAMS = Path("/usr/lib/gridengine")  # the programs of Debian's packages; /usr/bin has scripts that call them
DEFAULTS = Path("/usr/share/gridengine")
COMMANDS = ("qsub", "qstat", "qdel", "qalter", "qhold", "qrls", "qconf", "qhost", "qacct", "qrsh", "qlogin", "qmod",
            "qselect", "qquota", "qping")  # fmt: skip
HEAD, NODES = "head", ("node1", "node2")
NETWORK = "10.214.0"
ADDRESSES = {name: f"{NETWORK}.{number}" for number, name in enumerate((HEAD, *NODES), start=1)}
SLOTS = 8
UNSHARE = ("unshare", "--net", "--uts", "--mount")
INSTALL = "run tests/setup_debian.sh as root"
FOREIGN = ("SGE_", "JOB_", "PE_")
OF_A_JOB = ("NSLOTS", "NHOSTS", "NQUEUES", "QUEUE", "REQUEST", "RESTARTED", "ARC")

BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {cell}/common;{spool}/qmaster
binary_path {programs}
qmaster_spool_dir {spool}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
jvm_threads 0
"""
# Parallel environments and their allocation_rule, as sites have them.
ENVIRONMENTS = {"nodes": "1", "smp": "$pe_slots", "fill": "$fill_up"}
ENVIRONMENT = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule {rule}
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
# Settings of the queue that differ from the template of `qconf -sq`. No load thresholds: a busy host takes jobs, too.
QUEUE = {"load_thresholds": "NONE", "notify": "00:00:20", "slots": str(SLOTS), "shell_start_mode": "unix_behavior",
         "rerun": "FALSE", "pe_list": " ".join(ENVIRONMENTS)}  # fmt: skip


class SgeCluster(Cluster):
    """A Grid Engine with a head and two execution hosts, which have 8 slots and 2 GPUs each (complex `gpu`).

    It has the queue all.q, and the parallel environments `nodes` (allocation_rule 1), `smp` ($pe_slots) and `fill`
    ($fill_up).

    Attributes:
        against: what the closing table of the tests says about it.
        hosts: the names of the execution hosts.
        root: SGE_ROOT.
        cell: the folder of the cell `default`.
    """

    name, mark, start_timeout = "sge", ".sge-test-cluster", 60.0  # the mark has the owner's pid and start time
    against = "Grid Engine 8.1.9, 2 execution hosts"
    hosts = NODES

    def __init__(self, folder: str | Path | None = None, *, detached: bool = False) -> None:
        super().__init__(folder, detached=detached)
        self.root, self.cell = self.folder / "root", self.folder / "root" / "default"

    @classmethod
    def missing(cls) -> str | None:
        """Returns why a Grid Engine cannot run on this machine, and how to fix it; None: it can run."""
        if sys.platform != "linux":
            return "a real Grid Engine needs Linux: run the tests in a container"
        for program, package in (("sge_qmaster", "master"), ("sge_execd", "exec"), ("qsub", "client")):
            if not (PROGRAMS / program).exists():
                return f"gridengine-{package} not installed: {INSTALL}"
        if absent := [name for name in ("ip", "nsenter", "unshare") if not shutil.which(name)]:
            return f"{', '.join(absent)} not installed: {INSTALL}"
        if os.geteuid() != 0:
            return "not root, which Grid Engine's hosts need: run the tests as root, for instance in a container"
        script = "ip link add probe0 type bridge && ip link add probe1 type veth"
        probe = subprocess.run([*UNSHARE, "sh", "-c", script], capture_output=True, text=True, check=False)
        return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode else None

    # -- up and down

    def _absent(self) -> str | None:
        return self.missing()

    def _clear_orphans(self) -> None:
        for mark in Path(tempfile.gettempdir()).glob(f"{self.name}-*/{self.mark}"):
            with contextlib.suppress(OSError, ValueError):
                pid, started = mark.read_text().split()  # the mark of a detached cluster is empty
                if not Proc(int(pid), int(started)).alive():
                    SgeCluster(mark.parent).stop()

    def _start(self, deadline: float) -> None:
        if not self.detached and (owner := Proc.of(os.getpid())):
            (self.folder / self.mark).write_text(f"{owner.pid} {owner.started}")
        self._make_hosts(deadline)
        self._make_cell()
        self._write_commands()
        self._launch(HEAD, "sge_qmaster")
        self._wait(lambda: self._ask("qconf", "-sm").returncode == 0, deadline, "qmaster does not answer")
        self._configure()
        for name in NODES:
            self._launch(name, "sge_execd")

    def _stop(self) -> None:
        for _ in range(20):
            family = descendants(self._own())
            if not family:
                break
            end(family, timeout_s=0)

    # -- for tests

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a user's shell has on this cluster."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {"PATH": path, "SGE_ROOT": str(self.root), "SGE_CELL": "default"}

    @property
    def on_head(self) -> list[str]:
        """The command prefix (`nsenter ...`) that runs a command on the head, the cluster's login node."""
        return self._enter(HEAD)

    def env(self) -> dict[str, str]:
        """Returns the environment for a command on this cluster: this process's, without other clusters' variables."""
        foreign = {name for name in os.environ if name.startswith(FOREIGN) or name in OF_A_JOB}
        return {name: value for name, value in os.environ.items() if name not in foreign} | self.environment

    def wait_idle(self, *, timeout_s: float = 60.0) -> None:
        """Waits until all execution hosts are up and have no job.

        Raises:
            ClusterError: this took longer than `timeout_s` seconds, or a daemon has ended.
        """

        def idle() -> bool:
            self._require_daemons()
            rows = [line.split() for line in self._ask("qstat", "-f").stdout.splitlines() if line.startswith("all.q@")]
            return len(rows) == len(NODES) and all(len(row) == 5 and row[2].startswith("0/0/") for row in rows)

        if not wait_until(idle, timeout_s=timeout_s, every_s=0.2):
            raise ClusterError(f"not all hosts are idle: {self._ask('qstat', '-f').stdout}\n{self.last_words()}")

    def cancel_all(self, *, timeout_s: float = 30.0) -> bool:
        """Deletes all jobs, and returns whether all have ended within `timeout_s` seconds."""
        self._ask("qdel", "-f", "-u", "*")
        return wait_until(lambda: not self._ask("qstat", "-u", "*").stdout.strip(), timeout_s=timeout_s)

    def reset(self) -> None:
        """Prepares the cluster for the next test: deletes all jobs, and waits until all hosts are idle."""
        if self._ask("qstat", "-u", "*").stdout.strip():
            self.cancel_all()
        self.wait_idle()

    def last_words(self, lines: int = 15) -> str:
        """Returns the last lines of all logs, for an error message."""
        logs = [*self.folder.glob("spool/*/messages"), *self.folder.glob("logs/*")]
        return "\n".join(
            line for log in logs for line in (f"--- {log}", *log.read_text(errors="replace").splitlines()[-lines:])
        )

    # -- how

    def _make_hosts(self, deadline: float) -> None:
        """Starts a process in namespaces of its own for each host, and connects them by a switch on the head."""
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in ADDRESSES.items()))
        for name in ADDRESSES:
            ready = self.folder / f"ready-{name}"
            script = (
                f"mount --bind {hosts} /etc/hosts && hostname {name} && ip link set lo up && touch {ready} && "
                "exec sleep infinity"
            )
            self.daemons.start(name, [*UNSHARE, "sh", "-c", script], {"PATH": _SEARCH, **self._mark})
            self._wait(ready.exists, deadline, f"{name} is not made")
        self._on(HEAD, "ip", "link", "add", "switch", "type", "bridge")
        self._on(HEAD, "ip", "address", "add", f"{ADDRESSES[HEAD]}/24", "dev", "switch")
        self._on(HEAD, "ip", "link", "set", "switch", "up")
        for name in NODES:
            peer = ("type", "veth", "peer", "name", "eth0", "netns", str(self._host(name).pid))
            self._on(HEAD, "ip", "link", "add", name, *peer)
            self._on(HEAD, "ip", "link", "set", name, "master", "switch", "up")
            self._on(name, "ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            self._on(name, "ip", "link", "set", "eth0", "up")

    def _make_cell(self) -> None:
        spool, common = self.folder / "spool", self.cell / "common"
        for folder in (common, spool / "qmaster" / "job_scripts"):
            folder.mkdir(parents=True)
        (self.root / "util").symlink_to(DEFAULTS / "util")
        for name in ("bin", "utilbin"):
            (self.root / name).mkdir()
            (self.root / name / "lx-amd64").symlink_to(PROGRAMS)
        (common / "bootstrap").write_text(BOOTSTRAP.format(cell=self.cell, spool=spool, programs=PROGRAMS))
        (common / "act_qmaster").write_text(f"{HEAD}\n")
        conf = (DEFAULTS / "default-configuration").read_text()
        for key, value in {
            "execd_spool_dir": spool, "min_uid": 0, "min_gid": 0, "mailer": "/bin/true", "load_report_time": "00:00:02",
            "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00",
        }.items():  # fmt: skip
            conf = re.sub(rf"(?m)^{key}\s.*$", f"{key} {value}", conf)
        (self.folder / "configuration").write_text(conf)
        init = [PROGRAMS / "spoolinit", "classic", "libspoolc", f"{common};{spool}/qmaster", "init"]
        self._on(HEAD, *map(str, init))
        self._on(HEAD, str(PROGRAMS / "spooldefaults"), "configuration", str(self.folder / "configuration"))
        self._on(HEAD, str(PROGRAMS / "spooldefaults"), "complexes", str(DEFAULTS / "util/resources/centry"))
        self._on(HEAD, str(PROGRAMS / "spooldefaults"), "usersets", str(DEFAULTS / "util/resources/usersets"))

    def _write_commands(self) -> None:
        """Writes a script for each of Grid Engine's commands to `bin`.

        On a simulated host it runs the command there, elsewhere on the head.
        """
        folder = self.folder / "bin"
        folder.mkdir()
        for name in COMMANDS:
            (folder / name).write_text(
                "#!/bin/sh\n"
                f'case $(hostname) in {"|".join(ADDRESSES)}) exec {PROGRAMS / name} "$@" ;; esac\n'
                f'exec {shlex.join(self._enter(HEAD)[:-1])} --wdns="$PWD" -- {PROGRAMS / name} "$@"\n'
            )
            (folder / name).chmod(0o755)

    def _configure(self) -> None:
        """Configures the cluster as a site's administrator would: hosts, queue, parallel environments, scheduler."""
        for name in (HEAD, *NODES):
            self._ask("qconf", "-as", name)
        for name in NODES:
            self._ask("qconf", "-ah", name)
        self.load("-Ahgrp", "group_name @allhosts\nhostlist " + " ".join(NODES) + "\n")
        for name, rule in ENVIRONMENTS.items():
            self.load("-Ap", ENVIRONMENT.format(name=name, rule=rule))
        complexes = self.run("qconf", "-sc")
        self.load("-Mc", f"{complexes}gpu gpu INT <= YES YES 0 0\n")
        folders = {name: self.folder / "tmp" / name for name in NODES}  # the hosts share files, so each gets a tmpdir
        for folder in folders.values():
            folder.mkdir(parents=True)
        tmpdir = ",".join(["/tmp", *(f"[{name}={folder}]" for name, folder in folders.items())])
        order = ",".join(["0", *(f"[{name}={number}]" for number, name in enumerate(NODES))])  # node1 is used first
        queue = self.run("qconf", "-sq")
        for key, value in {
            "qname": "all.q",
            "hostlist": "@allhosts",
            "tmpdir": tmpdir,
            "seq_no": order,
            **QUEUE,
        }.items():
            queue = re.sub(rf"(?m)^{key}\s.*(\n\s+.*)*$", f"{key} {value}", queue)
        self.set_gpus(2)
        self.load("-Aq", queue)
        schedule = self.run("qconf", "-ssconf")
        for key, value in {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1",
                           "schedd_job_info": "true", "queue_sort_method": "seqno"}.items():  # fmt: skip
            schedule = re.sub(rf"(?m)^{key}\s.*$", f"{key} {value}", schedule)
        self.load("-Msconf", schedule)

    def set_gpus(self, count: int) -> None:
        """Sets the number of GPUs of each execution host (complex `gpu`)."""
        for name in NODES:
            host = (
                f"hostname {name}\nload_scaling NONE\ncomplex_values gpu={count}\nuser_lists NONE\nxuser_lists NONE\n"
            )
            self.load("-Me", host + "projects NONE\nxprojects NONE\nusage_scaling NONE\nreport_variables NONE\n")

    def load(self, option: str, text: str) -> None:
        """Passes a configuration to qconf, in a file.

        Args:
            option: the option of qconf, such as `-Aq` to add a queue.
            text: the configuration.

        Raises:
            ClusterError: qconf refused it, which it may do with exit code 0.
        """
        file = self.folder / "qconf.txt"
        file.write_text(text)
        done = self._ask("qconf", option, str(file))
        words = f"{done.stdout}{done.stderr}".strip()
        if done.returncode or not re.search(r"added|modified|changed", words):
            raise ClusterError(f"qconf {option}: {words}\n{text}")

    @property
    def _mark(self) -> dict[str, str]:
        return {"SGE_TEST_CLUSTER": str(self.folder)}

    def _launch(self, host: str, daemon: str) -> None:
        settings = {"PATH": _SEARCH, **self._mark, "SGE_ROOT": str(self.root), "SGE_CELL": "default", "SGE_ND": "1"}
        settings |= {"SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        self.daemons.start(f"{daemon}-{host}", [*self._enter(host), str(PROGRAMS / daemon)], settings)

    def _host(self, name: str) -> Proc:
        host = self.daemons.get(name)
        if host is None:
            raise ClusterError(f"{name} is gone\n{self.last_words()}")
        return host

    def _enter(self, name: str) -> list[str]:
        return [
            "nsenter",
            f"--target={self._host(name).pid}",
            "--net",
            "--uts",
            "--mount",
            f"--wdns={os.getcwd()}",
            "--",
        ]

    def _on(self, host: str, *argv: str) -> str:
        done = subprocess.run(
            [*self._enter(host), *argv], env=self.env() | {"PATH": _SEARCH}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ClusterError(f"{shlex.join(argv)} on {host}: {done.stdout}{done.stderr}")
        return done.stdout

    def _own(self) -> list[Proc]:
        """Returns all processes of this cluster: simulated hosts, daemons and jobs.

        They have the cluster's folder in a variable: SGE_TEST_CLUSTER, or for jobs SGE_ROOT.
        """
        marks = {f"SGE_TEST_CLUSTER={self.folder}", f"SGE_ROOT={self.root}"}
        return [proc for proc in running() if proc.pid != os.getpid() and marks & proc.environment()]


_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def main() -> int:
    """Runs the command line that the module's docstring describes, and returns the exit code."""
    options = parser(__doc__).parse_args()
    cluster = SgeCluster(options.dir, detached=True)
    return act(options.action, cluster, lambda: cluster.environment)


if __name__ == "__main__":
    sys.exit(main())

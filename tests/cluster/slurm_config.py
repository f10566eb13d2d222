"""Configuration files and command-line options for the daemons of the Slurm test cluster."""

from __future__ import annotations

import os
import socket
import stat
import textwrap
from dataclasses import dataclass
from pathlib import Path

NODES = ("node1", "node2", "node3", "node4")


@dataclass(frozen=True)
class Site:
    """The configuration of the four simulated nodes and the controller.

    Attributes:
        node: the resources of a node without its GPUs, in the form of slurm.conf.
        gpus: the number of GPUs of a node.
        gpu_type: the type of the GPUs in gres.conf; empty: none.
        partitions: the partitions, in the form of slurm.conf after `PartitionName=`.
        settings: more lines of slurm.conf.
        filter: the content of job_submit.lua; empty: there is no such filter.
        aliases: suffixes with which the nodes' names must resolve, too.
    """

    node: str = "CPUs=4 RealMemory=6000"
    gpus: int = 2
    gpu_type: str = ""
    partitions: tuple[str, ...] = (
        "gpu    Nodes=node[1-4] MaxTime=02:00:00 PriorityTier=1  Default=YES",
        # The only partition with GraceTime: preempted jobs get SIGTERM, and 10 s until SIGKILL.
        "debug  Nodes=node[1-2] MaxTime=00:10:00 PriorityTier=1  GraceTime=10",
        "urgent Nodes=node[1-4] MaxTime=02:00:00 PriorityTier=10",
        # The only partition with memory as a resource: its jobs are killed if they use more than they asked for.
        "memory Nodes=node[1-4] MaxTime=02:00:00 PriorityTier=1  DefMemPerCPU=1000 SelectTypeParameters=CR_Core_Memory",
    )
    settings: tuple[str, ...] = ()
    filter: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{node}{alias}" for alias in ("", *self.aliases) for node in NODES)


SLURM_CONF = """\
    ClusterName=test
    SlurmctldHost=localhost
    SlurmctldPort={controller_port}
    SlurmUser=root
    AuthType=auth/munge
    # A requeued job starts again about cred_expire + 6 s later, instead of 120 s later.
    AuthInfo=socket={folder}/munge.socket,cred_expire=5
    StateSaveLocation={folder}/state
    SlurmdSpoolDir={folder}/spool/%n
    SlurmctldPidFile={folder}/run/slurmctld.pid
    SlurmdPidFile={folder}/run/%n.pid
    SlurmctldLogFile={folder}/logs/slurmctld.log
    SlurmdLogFile={folder}/logs/%n.log
    MailProg=/bin/true

    # A lost node is noticed after 25 to 45 s; with less, a busy machine would lose nodes that are there.
    SlurmdTimeout=10
    ReturnToService=2
    KillWait=5
    JobRequeue=1
    # Nodes may claim more CPUs and memory than the host has.
    SlurmdParameters=config_overrides
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core
    GresTypes=gpu
    SchedulerParameters=bf_interval=1,sched_min_interval=0,batch_sched_delay=0
    PreemptType=preempt/partition_prio
    PreemptMode=REQUEUE
    # Looks at the memory of jobs each second, and ends those that have more than they asked for: what cgroups do at
    # sites, without cgroups.
    JobAcctGatherType=jobacct_gather/linux
    JobAcctGatherFrequency=1
    JobAcctGatherParams=OverMemoryKill
    {accounting}

    NodeName=node[1-4] NodeHostname={hostname} NodeAddr=127.0.0.1 Port=[{node_ports}] \\
        {node} Gres={gres} State=UNKNOWN
    """

ACCOUNTING = """\
    AccountingStorageType=accounting_storage/slurmdbd
    AccountingStorageHost=localhost
    AccountingStoragePort={dbd_port}
    # A name that misleads: it is the munge socket for talking to slurmdbd; AuthInfo does not count there.
    AccountingStoragePass={folder}/munge.socket
    """

SLURMDBD_CONF = """\
    DbdHost=localhost
    DbdPort={dbd_port}
    SlurmUser=root
    AuthType=auth/munge
    AuthInfo=socket={folder}/munge.socket
    LogFile={folder}/logs/slurmdbd.log
    PidFile={folder}/run/slurmdbd.pid
    StorageType=accounting_storage/mysql
    StorageHost=localhost
    StorageUser=root
    StorageLoc=slurm_acct_db
    """


def write(folder: Path, ports: list[int], site: Site, *, accounting: bool) -> None:
    """Writes all configuration files of a cluster.

    Args:
        folder: the cluster's folder.
        ports: consecutive ports: the controller's, slurmdbd's, and one for each node.
        site: the nodes and settings.
        accounting: whether to configure slurmdbd.
    """
    controller_port, dbd_port, *node_ports = ports
    folder.chmod(0o755)
    for part in ("state", "logs", "run", "dev", *(f"spool/{name}" for name in NODES)):
        (folder / part).mkdir(parents=True)
    values = {
        "folder": folder,
        "controller_port": controller_port,
        "dbd_port": dbd_port,
        "node_ports": f"{node_ports[0]}-{node_ports[-1]}",
        "hostname": socket.gethostname().partition(".")[0],
        "node": site.node,
        "gres": ":".join(["gpu", *filter(None, [site.gpu_type]), str(site.gpus)]),
    }
    extra = _fill(ACCOUNTING, **values) if accounting else "# No accounting: sacct fails, as at many sites."
    more = [*site.settings, *(f"PartitionName={partition}" for partition in site.partitions)]
    if site.filter:
        more.append("JobSubmitPlugins=lua")
        (folder / "job_submit.lua").write_text(site.filter)
    (folder / "slurm.conf").write_text("\n".join([_fill(SLURM_CONF, **values, accounting=extra), *more, ""]))
    kind = f"Type={site.gpu_type} " if site.gpu_type else ""
    gpus = f"{_pretend_gpus(folder / 'dev', site.gpus)}[0-{site.gpus - 1}]"
    (folder / "gres.conf").write_text(f"NodeName=node[1-4] Name=gpu {kind}File={gpus}\n")
    # Nothing here uses cgroups. With a named plugin slurmd does not look for them: not every container has them.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    _write_secret(folder / "munge.key", os.urandom(128))
    if accounting:
        # slurmdbd refuses a file that others can read.
        _write_secret(folder / "slurmdbd.conf", _fill(SLURMDBD_CONF, **values).encode())


def node_log(folder: Path, name: str) -> Path:
    """Returns the path of the log that a node's slurmd and its step daemons keep open."""
    return folder / "logs" / f"{name}.log"


def munged_options(folder: Path) -> list[str]:
    """Returns the options of munged, with a key and a socket of the cluster's own."""
    return [
        "--foreground",
        "--force",  # also where other users cannot reach the socket, as in pytest's tmp_path
        f"--socket={folder}/munge.socket",
        f"--key-file={folder}/munge.key",
        f"--log-file={folder}/logs/munged.log",
        f"--pid-file={folder}/run/munged.pid",
        f"--seed-file={folder}/munge.seed",
    ]


def mariadb_options(folder: Path, *, install: bool = False) -> list[str]:
    """Returns the options of mariadbd, small and without a TCP port; with install=True, of mariadb-install-db."""
    common = ["--no-defaults", "--user=root", f"--datadir={folder}/mariadb", "--innodb-log-file-size=4M"]
    if install:
        return [*common, "--auth-root-authentication-method=socket", "--skip-test-db"]
    return [
        *common,
        f"--socket={folder}/mariadb.socket",
        f"--pid-file={folder}/run/mariadbd.pid",
        "--skip-networking",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=0",
    ]


def _fill(template: str, **values: object) -> str:
    return textwrap.dedent(template).format(**values)


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _pretend_gpus(folder: Path, count: int) -> str:
    """Creates device files gpu0, gpu1, ... with the device number of /dev/null; returns their path without the number.

    Slurm sets CUDA_VISIBLE_DEVICES only if the File in gres.conf is a character device. If device files cannot be
    created, the path of the terminals /dev/tty0, ... is returned.
    """
    try:
        for index in range(count):
            os.mknod(folder / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:  # a container without CAP_MKNOD; most hosts have terminals, which are character devices
        return "/dev/tty"
    return f"{folder}/gpu"

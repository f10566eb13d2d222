"""What each daemon of the test cluster is told: configuration files and options, all inside the cluster's folder."""

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
    """What the four nodes and the controller pretend to be.

    Attributes:
        node: what a node has, as slurm.conf says it, but for its GPUs.
        gpus: of a node.
        gpu_type: what Slurm calls them.
        partitions: lines of slurm.conf behind `PartitionName=`.
        settings: more lines of slurm.conf.
        filter: job_submit.lua; empty: none.
        aliases: what else the nodes' names resolve with, behind each name.
    """

    node: str = "CPUs=4 RealMemory=6000"
    gpus: int = 2
    gpu_type: str = ""
    partitions: tuple[str, ...] = (
        "gpu    Nodes=node[1-4] MaxTime=02:00:00 PriorityTier=1  Default=YES",
        # The only one that warns: preempted jobs get SIGTERM, and 10 s to leave.
        "debug  Nodes=node[1-2] MaxTime=00:10:00 PriorityTier=1  GraceTime=10",
        "urgent Nodes=node[1-4] MaxTime=02:00:00 PriorityTier=10",
        # The only one that counts memory, and so the only one whose jobs are ended for having too much.
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
    """Write all configuration files; `ports` are the controller's, slurmdbd's and one for each node, in a row."""
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
    # Nothing here uses cgroups; naming the plugin keeps slurmd from looking for them, as not every container has them.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    _write_secret(folder / "munge.key", os.urandom(128))
    if accounting:
        # slurmdbd refuses a file that others can read.
        _write_secret(folder / "slurmdbd.conf", _fill(SLURMDBD_CONF, **values).encode())


def node_log(folder: Path, name: str) -> Path:
    """The log that a node's slurmd and its step daemons hold open."""
    return folder / "logs" / f"{name}.log"


def munged_options(folder: Path) -> list[str]:
    """Options for a munged of our own, which shares no key with a system-wide one."""
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
    """Options for a small MariaDB of our own, reached by its socket only; with install=True to make its files."""
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
    """Devices gpu0, gpu1, ... that are /dev/null by another name; returns their path without the number.

    Slurm sets CUDA_VISIBLE_DEVICES only when the File in gres.conf is a character device, which a plain file is not.
    """
    try:
        for index in range(count):
            os.mknod(folder / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:  # a container without CAP_MKNOD: terminals, which most hosts have, do as well
        return "/dev/tty"
    return f"{folder}/gpu"

"""Events of a preflight: what each check has measured or found wrong on a node, and the result for all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from launcher.failures.codes import CheckCode, MismatchCode, PreflightThen
from launcher.runs.event_json import Event, Open

SOCKET = "Socket"  # NCCL's name of its transport over sockets


@dataclass(frozen=True)
class Fabric(Open):
    """The network that the NCCL of a rank uses between nodes.

    Attributes:
        version: NCCL's version; empty: not in the log.
        net: the transport: `IB`, `Socket`, or the name of a plug-in's transport; empty: not in the log.
        plugin: name and version of the plug-in; empty: NCCL uses its own transports.
        provider: the provider of libfabric, if the plug-in uses libfabric.
        devices: the network devices that were found for the transport.
        missing: messages about plug-ins and devices that were not found.
    """

    version: str = ""
    net: str = ""
    plugin: str = ""
    provider: str = ""
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Text for the user, such as `NCCL 2.19.3 uses IB (mlx5_10, mlx5_11)`."""
        name = f"NCCL {self.version}" if self.version else "NCCL"
        if not self.net:
            return f"{name} does not report its network"
        about = [*filter(None, (self.plugin, self.provider)), *self.devices]
        return f"{name} uses {'sockets' if self.net == SOCKET else self.net}" + (f" ({', '.join(about)})" * bool(about))


@dataclass(frozen=True)
class Mismatch(Open):
    """A difference between the network that NCCL uses and the one that the site expects.

    Attributes:
        code: why NCCL uses another network.
        fabric: the network that NCCL uses.
        name: the field of `fabric` that differs: `net`, `plugin` or `provider`.
        accepted: the values of this field that the site accepts.
    """

    code: MismatchCode
    fabric: Fabric
    name: str
    accepted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Observation(Open):
    """What a check has measured or found wrong. `launcher.failures.preflight_text` makes text for the user from it.

    Fields that do not apply to the code have their defaults.

    Attributes:
        code: kind of the observation.
        error: message of torch, a library or the system.
        path: the directory or file.
        key: config key or variable with which the user sets the directory.
        free: free bytes of the file system.
        least: for LITTLE_SPACE, bytes that the job needs; 0: the job may start, and this is only a warning.
        used, total: bytes of a GPU's memory.
        count: number of GPUs, files, ranks, nodes or wrong elements, as the code says.
        of: what `count` should be (gpus_per_node), or the number of all elements.
        owner, user: user ids of a file's owner and of the process that created it.
        mode: permissions of a file.
        device: name of the device.
        network: the network that NCCL uses; None: NCCL wrote no log.
        mismatch: how NCCL's network differs from the one that the site expects.
        ranks: ranks that sent wrong elements.
        seconds: duration or timeout.
        ahead: seconds by which a clock is ahead of the first node's; negative: behind.
        accuracy: largest error of `ahead`, in seconds.
        host: the node that tried to connect.
        hosts: the nodes that `host` could not reach.
        address: address and port of the first node in `hosts`; empty: this node has opened no port.
        local_rank: local rank of a process that ended.
        exit_code: exit code of this process; None: it still runs, or a signal killed it.
        signal: name of the signal that killed the process (`SIGKILL`).
    """

    code: CheckCode
    error: str = ""
    path: str = ""
    key: str = ""
    free: int = 0
    least: int = 0
    used: int = 0
    total: int = 0
    count: int = 0
    of: int = 0
    owner: int = 0
    user: int = 0
    mode: int = 0
    device: str = ""
    network: Fabric | None = None
    mismatch: Mismatch | None = None
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    ahead: float = 0.0
    accuracy: float = 0.0
    host: str = ""
    hosts: tuple[str, ...] = ()
    address: str = ""
    local_rank: int = 0
    exit_code: int | None = None
    signal: str = ""


NOTHING = Observation(code=CheckCode.UNKNOWN)


@dataclass(frozen=True)
class CheckEnded(Open):
    """The result of one check of a preflight on one node; see `launcher.preflight.checks.Check`."""

    name: str
    level: str
    found: Observation = NOTHING
    ms: float = 0.0


class NodeChecked(Event):
    """The result of a preflight on one node, written by the node's agent.

    Attributes:
        round: round before which the preflight ran.
        host, node: name and number of the node.
        fine: whether the node takes part in the round.
        seconds: duration of the preflight.
        checks: results of all checks that ran.
    """

    event: ClassVar[str] = "preflight"
    round: int
    host: str
    node: int
    fine: bool
    seconds: float
    checks: tuple[CheckEnded, ...] = ()


@dataclass(frozen=True)
class Finding(Open):
    """A problem that a preflight has found on a node.

    Attributes:
        name: name of the node in messages.
        host: host name of the node.
        check: the check that failed (`device`, `reach`); `silent`: no result in time; `leader`: the leading agent was
            lost.
        found: the problem.
    """

    name: str
    host: str
    check: str
    found: Observation = NOTHING


class Preflighted(Event):
    """The result of a preflight on all nodes.

    Attributes:
        round: round before which the preflight ran.
        then: what the attempt does next.
        nodes: number of nodes that took part in the preflight.
        seconds: duration of the preflight.
        bad: problem of each bad node.
        warnings: problems that do not exclude a node.
    """

    event: ClassVar[str] = "preflighted"
    round: int
    then: PreflightThen
    nodes: int
    seconds: float
    bad: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()

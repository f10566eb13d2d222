"""What NCCL (RCCL as well) says about the network that it uses, in its own log: whether the fast fabric is in use.

    environ.update(ask(environ, file))        # before the first communicator
    fabric = read(file)                       # after it
    judge(fabric, {"net": ("AWS Libfabric",)})

NCCL falls back to sockets without an error where a plug-in or a device is missing; the training is then several times
slower, and right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("", "VERSION", "WARN")  # of NCCL_DEBUG that tell less; with another one the user reads the log himself
SOCKET = "Socket"
MOST = 1 << 20  # characters of a log that are read

_VERSION = re.compile(r"\b[NR]CCL version (\S+)")
_NET = re.compile(r"NCCL INFO Using network (.+)|\[(?:send|receive)\] via NET/([^/\s]+)")
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) ?: Using (.+)")
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]+)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
_PLUGIN = re.compile(
    r"NET/OFI (?:Using|Initializing) (aws-ofi-[nr]ccl \S+)|NET/Plugin: Loaded net plugin (.+)|P2P plugin (\S+)"
)
_MISSING = re.compile(
    r"(No plugin found|Could not find: libnccl-net\S*|libnccl-net\S*: cannot open shared object file"
    r"|NET/OFI aws-ofi-[nr]ccl initialization failed|NET/IB : No device found)"
)


@dataclass(frozen=True)
class Fabric:
    """What one rank's NCCL uses between nodes.

    Attributes:
        version: of NCCL; empty: it does not say.
        net: its transport: `IB`, `Socket`, or the name that a plug-in gives itself; empty: it does not say.
        plugin: name and version of the plug-in; empty: NCCL's own transports.
        provider: libfabric's, with a plug-in for that.
        devices: the network devices that it found for its transport.
        missing: what it says of plug-ins and devices that it did not find.
    """

    version: str = ""
    net: str = ""
    plugin: str = ""
    provider: str = ""
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`NCCL 2.19.3 uses IB (mlx5_10, mlx5_11)`."""
        name = f"NCCL {self.version}" if self.version else "NCCL"
        if not self.net:
            return f"{name} does not say what it uses"
        about = [*filter(None, (self.plugin, self.provider)), *self.devices]
        return f"{name} uses {'sockets' if self.net == SOCKET else self.net}" + (f" ({', '.join(about)})" * bool(about))


def ask(environ: Mapping[str, str], path: Path) -> dict[str, str]:
    """The variables with which NCCL writes its log to a file; none where the user has it written elsewhere. Pure."""
    if environ.get("NCCL_DEBUG", "").upper() not in LEVELS or environ.get("NCCL_DEBUG_FILE"):
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(path)}


def log_name(rank: int) -> str:
    """The name of the file that `ask` has the log of a rank written to."""
    return f"nccl-{rank}.txt"


def read(path: Path) -> Fabric | None:
    """What is in a log; None: there is none."""
    try:
        with open(path, errors="replace") as file:
            return parse(file.read(MOST))
    except OSError:
        return None


def parse(log: str) -> Fabric:
    """What a log of one process says; of several networks the last one that it names. Pure."""
    version = next((match[1].partition("+")[0] for match in _VERSION.finditer(log)), "")
    nets = [(match[1] or match[2]).strip() for match in _NET.finditer(log)]
    found = {match[1]: tuple(_DEVICE.findall(match[2].partition(";")[0])) for match in _DEVICES.finditer(log)}
    net = nets[-1] if nets else next((name for name in ("IB", SOCKET) if name in found), "")  # before 2.5
    plugin = next((next(filter(None, match.groups())).strip() for match in _PLUGIN.finditer(log)), "")
    provider = next((match[1] for match in _PROVIDER.finditer(log)), "")
    own = net in ("IB", SOCKET)
    missing = tuple(dict.fromkeys(match[1] for match in _MISSING.finditer(log))) if own else ()
    devices = found.get(net) or (found.get("IB", ()) if net.startswith("IB") else ())
    return Fabric(version, net, "" if own else plugin, "" if own else provider, devices, missing)


def judge(fabric: Fabric | None, expects: Mapping[str, Sequence[str]]) -> str:
    """What is not as the site's profile has it, and what to do; empty: all is, or nobody can tell. Pure.

    Args:
        fabric: of a rank; None: it has left no log.
        expects: of net, plugin and provider the values of which one is right; of net and plugin the beginning, for a
            plug-in calls its network IBext_v8, say.
    """
    if fabric is None or not fabric.net:
        return ""
    for name, accepted in expects.items():
        value = getattr(fabric, name)
        whole = name == "provider"
        if any(value.lower() == each.lower() if whole else value.lower().startswith(each.lower()) for each in accepted):
            continue
        wanted = " or ".join(accepted)
        found = f"{fabric.words}, and this cluster expects {name} {wanted} (cluster.expects)"
        if any("libnccl-net" in each or "plugin" in each for each in fabric.missing):
            return f"{found}: it found no plug-in (libnccl-net.so); put its folder on LD_LIBRARY_PATH in cluster.setup"
        if fabric.missing:
            return f"{found}: {'; '.join(fabric.missing)}; see NCCL_DEBUG=INFO, and cluster.environment"
        return f"{found}: set NCCL_NET in cluster.environment, and see NCCL_DEBUG=INFO"
    return ""

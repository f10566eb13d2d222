"""Reads from NCCL's log (or RCCL's) which network it uses, and compares that with what the site expects.

    environ.update(log_variables(environ, file))     # before NCCL makes its first communicator
    fabric = read(file)                              # after the first collective
    mismatch(fabric, {"net": ("AWS Libfabric",)})

If a plug-in or a device is missing, NCCL falls back to sockets without an error: results are right, but the training is
several times slower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.structs import Struct

SOCKET = "Socket"  # NCCL's name of its transport over sockets
LEVELS = (
    "",
    "VERSION",
    "WARN",
)  # values of NCCL_DEBUG that INFO may replace; the user has set any other value on purpose
MOST = 1 << 20  # at most so many characters of a log are read

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


class Fabric(Struct):
    """The network that the NCCL of a rank uses between nodes."""

    version: str = ""  # NCCL's version; empty: not in the log
    net: str = ""  # the transport: `IB`, `Socket`, or the name of a plug-in's transport; empty: not in the log
    plugin: str = ""  # name and version of the plug-in; empty: NCCL uses its own transports
    provider: str = ""  # the provider of libfabric, if the plug-in uses libfabric
    devices: tuple[str, ...] = ()  # the network devices that were found for the transport
    missing: tuple[str, ...] = ()  # messages about plug-ins and devices that were not found

    @property
    def text(self) -> str:
        """Text for the user, such as `NCCL 2.19.3 uses IB (mlx5_10, mlx5_11)`."""
        name = f"NCCL {self.version}" if self.version else "NCCL"
        if not self.net:
            return f"{name} does not report its network"
        about = [*filter(None, (self.plugin, self.provider)), *self.devices]
        return f"{name} uses {'sockets' if self.net == SOCKET else self.net}" + (f" ({', '.join(about)})" * bool(about))


def log_variables(environ: Mapping[str, str], path: Path) -> dict[str, str]:
    """Returns the variables with which NCCL writes its log to a file; none if the user has asked for a log."""
    if environ.get("NCCL_DEBUG", "").upper() not in LEVELS or environ.get("NCCL_DEBUG_FILE"):
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(path)}


def log_name(rank: int) -> str:
    """Returns the file name of a rank's NCCL log."""
    return f"nccl-{rank}.txt"


def read(path: Path) -> Fabric | None:
    """Reads and parses an NCCL log; returns None if the file cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return parse(file.read(MOST))
    except OSError:
        return None


def parse(log: str) -> Fabric:
    """Parses the NCCL log of a rank. If it names several networks, the last one counts."""
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


def mismatch(fabric: Fabric | None, expects: Mapping[str, Sequence[str]]) -> str | None:
    """Returns how NCCL's network differs from what the site expects, and what to do; None: it does not, or unknown.

    expects: accepted values of `net`, `plugin` and `provider`. For `net` and `plugin` a value that begins with an
        accepted one is accepted too, because a plug-in's transport may be named IBext_v8, for example.
    """
    if fabric is None or not fabric.net:
        return None
    for name, accepted in expects.items():
        value = getattr(fabric, name)
        whole = name == "provider"
        if any(value.lower() == each.lower() if whole else value.lower().startswith(each.lower()) for each in accepted):
            continue
        todo = "set NCCL_NET in cluster.environment, and see NCCL_DEBUG=INFO"
        if any("libnccl-net" in each or "plugin" in each for each in fabric.missing):
            todo = "it found no plug-in (libnccl-net.so); put its folder on LD_LIBRARY_PATH in cluster.setup"
        elif fabric.missing:
            todo = f"{'; '.join(fabric.missing)}; see NCCL_DEBUG=INFO, and cluster.environment"
        wanted = f"{name} {' or '.join(accepted)} (cluster.expects)"
        return f"{fabric.text}, and this cluster expects {wanted}: {todo}"
    return None

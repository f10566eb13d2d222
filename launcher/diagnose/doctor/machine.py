"""Checks of this machine. Each takes the facts that it judges, and `probe_*` gets them."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from launcher.errors import ConfigError
from launcher.findings import Finding, ok, problem, warning
from launcher.formatting import format_size, long_size
from launcher.redaction import HIDDEN, is_secret, without_password
from launcher.schedulers.allocation import allocation

MIB, GIB = 2**20, 2**30
# Variables that change what the launcher, torch or a scheduler does.
TELLING = re.compile(
    r"(LAUNCHER|NCCL|GLOO|TORCH|UCX|FI|OMP|MKL|SBATCH|SQUEUE|SINFO|SACCT|TP|OMPI_MCA)_|SLURM_CONF$|PBS_(CONF_FILE|SERVER|"
    r"DEFAULT|EXEC)$|(CUDA|ROCR|HIP)_VISIBLE_DEVICES$|PYTHON(PATH|HOME|STARTUP|OPTIMIZE|DONTWRITEBYTECODE)$|"
    r"(CONDA_PREFIX|VIRTUAL_ENV|TMPDIR|HYDRA_FULL_ERROR|LD_PRELOAD)$"
)
LEAST_FILES, LEAST_PROCESSES = 4096, 1024


def shown_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, by name; a secret one is named and its value is not."""
    return {
        name: HIDDEN if is_secret(name) else without_password(environ[name])
        for name in sorted(environ)
        if TELLING.match(name)
    }


def environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that change what runs do, and whether this shell is inside of a job."""
    try:
        if held := allocation(environ):
            yield ok("shell", f"inside of job {held.job}: cluster=allocation runs here")
    except ConfigError as error:
        yield warning("shell", str(error))
    found = shown_environment(environ)
    if found:
        yield ok("variables", "; ".join(f"{name}={value}" for name, value in found.items()))
    if "LD_PRELOAD" in found:
        yield warning("variables", "LD_PRELOAD is set: it is loaded into every rank too", "unset it unless you mean it")


def proxies(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Proxies for downloads (`data fetch`); a user and password in them are not shown."""
    names = [name for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (name, name.upper())]
    told = [f"{name}={without_password(environ[name])}" for name in names if environ.get(name)]
    yield ok("proxies", "; ".join(told) if told else "none set")


def locale(encoding: str, umask: int) -> Iterator[Finding]:
    """The encoding of file names, and the umask."""
    if encoding.lower().replace("-", "") == "utf8":
        yield ok("locale", f"file names and texts are {encoding}")
    else:
        yield warning(
            "locale", f"file names and texts are {encoding}: names with other characters cannot be written",
            "export LC_ALL=C.UTF-8",
        )  # fmt: skip
    if umask & 0o700:
        yield problem("umask", f"umask {umask:03o} takes files from their own owner", "umask 022")
    else:
        yield ok("umask", f"{umask:03o}; run directories are 0700 whatever it is")


def limits(found: Mapping[str, int | None]) -> Iterator[Finding]:
    """Limits of processes of this shell (None: unlimited; sizes in bytes). Jobs of Slurm inherit them by default."""
    told, low = ", ".join(_limit(name, value) for name, value in found.items()), []
    if (files := found.get("nofile")) is not None and files < LEAST_FILES:
        low.append(f"ulimit -n {LEAST_FILES} (open files: ranks and data loaders need many)")
    if (processes := found.get("nproc")) is not None and processes < LEAST_PROCESSES:
        low.append(f"ulimit -u {LEAST_PROCESSES} (processes and threads)")
    if low:
        yield warning("ulimits", told, "; ".join(low))
    else:
        yield ok("ulimits", told)


def _limit(name: str, value: int | None) -> str:
    if value is None:
        return f"{name} unlimited"
    return f"{name} {long_size(value) if name in ('memlock', 'stack', 'core') else value}"


def probe_limits() -> dict[str, int | None]:
    names = ("nofile", "nproc", "memlock", "stack", "core")
    found: dict[str, int | None] = {}
    for name in names:
        if (number := getattr(resource, f"RLIMIT_{name.upper()}", None)) is not None:
            soft, _ = resource.getrlimit(number)
            found[name] = None if soft == resource.RLIM_INFINITY else soft
    return found


def host(name: str, addresses: Iterable[str] | str) -> Iterator[Finding]:
    """How this host's name resolves.

    Args:
        name: the host's name.
        addresses: what it resolves to; a text: why it does not.
    """
    if isinstance(addresses, str):
        yield problem(
            "host", f"{name} does not resolve ({addresses}): ranks that reach each other by this name cannot",
            f"add {name} to /etc/hosts, or ask who runs this machine",
        )  # fmt: skip
        return
    found = sorted(set(addresses))
    loops = [each for each in found if each.startswith("127.") or each == "::1"]
    if len(loops) == len(found):
        yield ok("host", f"{name} is {', '.join(found)}: only this machine reaches itself by that")
    else:
        yield ok("host", f"{name} is {', '.join(found)}")


def probe_host() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        addresses = [str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        yield from host(name, str(error))
        return
    yield from host(name, addresses)


def ports(wanted: tuple[int, int], ephemeral: tuple[int, int] | None, free: int, looked: int) -> Iterator[Finding]:
    """Ports of the rendezvous against those that the kernel hands out.

    Args:
        wanted: cluster.port_range.
        ephemeral: net.ipv4.ip_local_port_range; None: unknown.
        free: how many of `looked` ports of the range could be bound.
    """
    low, high = wanted
    if free == 0:
        yield problem(
            "ports", f"none of {looked} ports of cluster.port_range={low}-{high} could be bound here",
            "choose another cluster.port_range",
        )  # fmt: skip
    elif ephemeral is not None and low <= ephemeral[1] and ephemeral[0] <= high:
        yield warning(
            "ports", f"cluster.port_range={low}-{high} overlaps the ephemeral ports {ephemeral[0]}-{ephemeral[1]}: "
            "a connection of anybody may have taken the port", f"cluster.port_range below {ephemeral[0]}",
        )  # fmt: skip
    else:
        outside = "" if ephemeral is None else f", outside of the ephemeral {ephemeral[0]}-{ephemeral[1]}"
        yield ok("ports", f"cluster.port_range={low}-{high}{outside}; {free} of {looked} tried are free")


def probe_ports(wanted: tuple[int, int]) -> Iterator[Finding]:
    low, high = wanted
    step = max((high - low) // 16, 1)
    tried = list(range(low, high + 1, step))[:16]
    yield from ports(wanted, _ephemeral(), sum(map(_bindable, tried)), len(tried))


def _ephemeral() -> tuple[int, int] | None:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return None
    return int(low), int(high)


def _bindable(port: int) -> bool:
    with socket.socket() as door:
        try:
            door.bind(("", port))
        except OSError:
            return False
    return True


def interface(name: str | None, known: Iterable[str], *, queued: bool) -> Iterator[Finding]:
    """The interface that the profile names; nodes of a cluster may have others than this machine."""
    found = sorted(known)
    if not name:
        yield ok("interface", f"chosen on each node: the one that reaches the master; here: {', '.join(found)}")
    elif name in found:
        yield ok("interface", f"cluster.interface={name} is here")
    else:
        says = f"cluster.interface={name} is not on this machine, which has {', '.join(found)}"
        if queued:
            yield warning("interface", says, "fine if the nodes have it: `preflight=true` looks there")
        else:
            yield problem("interface", says, f"cluster.interface={found[0] if found else 'null'}, or leave it out")


def temporary(folder: str, free: int | str) -> Iterator[Finding]:
    """The folder for temporary files, and the bytes free in it; a text: why nothing can be written there."""
    if isinstance(free, str):
        yield problem("tmp", f"{folder} cannot be written: {free}", "set TMPDIR to a folder that can")
    elif free < 256 * MIB:
        says = f"{folder} has {format_size(free // MIB * MIB)} free"
        yield warning("tmp", says, "remove what is not needed, or set TMPDIR")
    else:
        yield ok("tmp", f"{folder}, {long_size(free)} free")


def probe_temporary() -> Iterator[Finding]:
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        free: int | str = shutil.disk_usage(folder).free
    except OSError as error:
        folder, free = os.environ.get("TMPDIR", "/tmp"), error.strerror or str(error)  # noqa: S108  only shown
    yield from temporary(folder, free)


def probe_machine() -> Iterator[Finding]:
    """Returns the results of the checks that are immediate."""
    umask = os.umask(0o077)
    os.umask(umask)
    yield from locale(sys.getfilesystemencoding(), umask)
    yield from limits(probe_limits())
    yield from environment(os.environ)
    yield from proxies(os.environ)

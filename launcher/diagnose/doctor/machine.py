"""Checks this machine: environment, limits, host name, ports, interface, temporary folder.

Each check is a function of facts. The functions `probe_*` collect the facts and call the check.
"""

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
# Environment variables that change what the launcher, torch or a scheduler does. The report shows them.
RELEVANT = re.compile(
    r"(LAUNCHER|NCCL|GLOO|TORCH|UCX|FI|OMP|MKL|SBATCH|SQUEUE|SINFO|SACCT|TP|OMPI_MCA)_|SLURM_CONF$|PBS_(CONF_FILE|SERVER|"
    r"DEFAULT|EXEC)$|(CUDA|ROCR|HIP)_VISIBLE_DEVICES$|PYTHON(PATH|HOME|STARTUP|OPTIMIZE|DONTWRITEBYTECODE)$|"
    r"(CONDA_PREFIX|VIRTUAL_ENV|TMPDIR|HYDRA_FULL_ERROR|LD_PRELOAD)$"
)
LEAST_FILES, LEAST_PROCESSES = 4096, 1024  # lower limits (ulimit -n, -u) are a warning


def shown_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that match RELEVANT, sorted by name; the values of secrets are hidden."""
    return {
        name: HIDDEN if is_secret(name) else without_password(environ[name])
        for name in sorted(environ)
        if RELEVANT.match(name)
    }


def environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Reports environment variables that change what runs do, and whether this shell is inside a job."""
    try:
        if held := allocation(environ):
            yield ok("shell", f"inside job {held.job}: cluster=allocation runs here")
    except ConfigError as error:
        yield warning("shell", str(error))
    found = shown_environment(environ)
    if found:
        yield ok("variables", "; ".join(f"{name}={value}" for name, value in found.items()))
    if "LD_PRELOAD" in found:
        yield warning("variables", "LD_PRELOAD is set: it is loaded into every rank too", "unset it unless you mean it")


def proxies(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Reports the proxies for downloads (`data fetch`). User names and passwords in their URLs are hidden."""
    names = [name for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (name, name.upper())]
    shown = [f"{name}={without_password(environ[name])}" for name in names if environ.get(name)]
    yield ok("proxies", "; ".join(shown) if shown else "none set")


def locale(encoding: str, umask: int) -> Iterator[Finding]:
    """Checks that the encoding of file names is UTF-8, and that the umask leaves the owner access to new files."""
    if encoding.lower().replace("-", "") == "utf8":
        yield ok("locale", f"file names and texts are {encoding}")
    else:
        yield warning(
            "locale", f"file names and texts are {encoding}: names with other characters cannot be written",
            "export LC_ALL=C.UTF-8",
        )  # fmt: skip
    if umask & 0o700:
        yield problem("umask", f"umask {umask:03o} denies the owner access to new files", "umask 022")
    else:
        yield ok("umask", f"{umask:03o}; run directories are 0700 whatever it is")


def limits(found: Mapping[str, int | None]) -> Iterator[Finding]:
    """Checks the soft resource limits (`ulimit`) of this shell, which Slurm jobs inherit.

    found: each limit by its name without RLIMIT_ (`nofile`), sizes in bytes; None: unlimited.
    """
    shown, low = ", ".join(_limit(name, value) for name, value in found.items()), []
    if (files := found.get("nofile")) is not None and files < LEAST_FILES:
        low.append(f"ulimit -n {LEAST_FILES} (open files: ranks and data loaders need many)")
    if (processes := found.get("nproc")) is not None and processes < LEAST_PROCESSES:
        low.append(f"ulimit -u {LEAST_PROCESSES} (processes and threads)")
    if low:
        yield warning("ulimits", shown, "; ".join(low))
    else:
        yield ok("ulimits", shown)


def _limit(name: str, value: int | None) -> str:
    if value is None:
        return f"{name} unlimited"
    return f"{name} {long_size(value) if name in ('memlock', 'stack', 'core') else value}"


def probe_limits() -> dict[str, int | None]:
    """Returns the soft resource limits of this process, in the form that `limits` takes."""
    names = ("nofile", "nproc", "memlock", "stack", "core")
    found: dict[str, int | None] = {}
    for name in names:
        if (number := getattr(resource, f"RLIMIT_{name.upper()}", None)) is not None:
            soft, _ = resource.getrlimit(number)
            found[name] = None if soft == resource.RLIM_INFINITY else soft
    return found


def host(name: str, addresses: Iterable[str] | str) -> Iterator[Finding]:
    """Checks that this host's name resolves.

    addresses: the addresses that the name resolves to; if it does not resolve, the error as a string.
    """
    if isinstance(addresses, str):
        yield problem(
            "host", f"{name} does not resolve ({addresses}): ranks that reach each other by this name cannot",
            f"add {name} to /etc/hosts, or ask the administrators of this machine",
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
    """Checks that ports of cluster.port_range are free, and that the range has none of the kernel's ephemeral ports.

    ephemeral: the lowest and the highest port of net.ipv4.ip_local_port_range; None: not known.
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
            "any connection may have taken the port", f"cluster.port_range below {ephemeral[0]}",
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
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def interface(name: str | None, known: Iterable[str], *, queued: bool) -> Iterator[Finding]:
    """Checks that this machine has the profile's network interface.

    A missing one is only a warning if runs start on other machines, which may have other interfaces.

    name: cluster.interface; None: each node chooses its own.
    queued: whether the profile's scheduler starts runs on other machines.
    """
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
    """Checks the folder for temporary files.

    free: free bytes; if the folder cannot be written to, the error as a string.
    """
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
    """Runs the checks of locale, umask, limits, environment variables and proxies, which do not wait for anything."""
    umask = os.umask(0o077)
    os.umask(umask)
    yield from locale(sys.getfilesystemencoding(), umask)
    yield from limits(probe_limits())
    yield from environment(os.environ)
    yield from proxies(os.environ)

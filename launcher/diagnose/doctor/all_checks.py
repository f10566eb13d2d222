"""The list of the checks that `doctor` runs, in the order of its report, and the checks of settings of the profile."""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.config.schema import Cluster, Config
from launcher.diagnose.doctor import folder, machine, scheduler, software
from launcher.diagnose.doctor.runner import Check
from launcher.errors import ConfigError
from launcher.findings import Finding, ok, problem
from launcher.paths import user_config_dir
from launcher.schedulers import registry
from launcher.schedulers.base import Queue
from launcher.spec import data_sets

TORCH = 60.0  # seconds for the import of torch
ASK = 8.0  # seconds for one query to a scheduler


def first() -> list[Check]:
    """Returns the first checks of the report, which need no configuration."""
    return [
        Check("launcher", software.launcher),
        Check("python", _python),
        Check("packages", lambda: software.packages(software.installed)),
        Check("machine", machine.probe_machine),
    ]


def rest(config: Config) -> list[Check]:
    """Returns the remaining checks (without torch's), which need the configuration."""
    cluster, queued = config.cluster, isinstance(registry.scheduler(config.cluster.scheduler), Queue)
    return [
        Check("profile", lambda: _profile(cluster)),
        Check("scheduler", lambda: scheduler.probe(cluster, min(ASK, cluster.submit_timeout)), 4 * ASK),
        Check("host", machine.probe_host),
        Check("ports", lambda: _ports(cluster)),
        Check("interface", lambda: _interface(cluster, queued=queued)),
        Check("runs_dir", lambda: folder.probe(Path(config.runs_dir).expanduser().absolute(), queued=queued), 15.0),
        Check("tmp", machine.probe_temporary),
        Check("data", _data),
        Check("gpus", software.probe_nvidia),
    ]


def torch() -> Check:
    """Returns the check of torch, which takes the longest: it imports torch in another process."""
    return Check("torch", lambda: software.probe_torch(TORCH), TORCH + 5)


def _python() -> Iterator[Finding]:
    yield from software.python(sys.version_info[:3], sys.executable)


def _profile(cluster: Cluster) -> Iterator[Finding]:
    own = user_config_dir()
    text = "no folder of your own settings"
    if own.is_dir():
        profiles = sorted(path.stem for path in (own / "cluster").glob("*.yaml"))
        text = f"your own settings are in {own}" + (f" (profiles {', '.join(profiles)})" if profiles else "")
    else:
        text += f" ({own})"
    settings = {each.name for each in dataclasses.fields(cluster)} - {each.name for each in dataclasses.fields(Cluster)}
    given = [f"{key}={value}" for key, value in vars(cluster).items()
             if key in {"account", *settings} and isinstance(value, str) and value]  # fmt: skip
    yield ok("config", f"cluster={cluster.name} ({cluster.scheduler}{', ' if given else ''}{', '.join(given)}); {text}")


def _ports(cluster: Cluster) -> Iterator[Finding]:
    low, _, high = cluster.port_range.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1024 <= int(low) < int(high) <= 65535):
        yield problem(
            "ports", f"cluster.port_range={cluster.port_range!r} is not LOW-HIGH with 1024 <= LOW < HIGH <= 65535",
            "write it as 20000-32767",
        )  # fmt: skip
        return
    yield from machine.probe_ports((int(low), int(high)))


def _interface(cluster: Cluster, *, queued: bool) -> Iterator[Finding]:
    known = [name for _, name in socket.if_nameindex()]
    yield from machine.interface(cluster.interface, known, queued=queued)


def _data() -> Iterator[Finding]:
    known, problems = data_sets.of_all_workloads()
    for each in problems:
        yield problem("data", each, "correct its key hook, or what it names")
    here, missing = [], []
    for name, source in known.items():
        try:
            found = source.find(None)
        except ConfigError as error:
            yield problem("data", f"{name}: {error}", f"launcher data fetch {name}")
            continue
        if found:
            here.append(f"{name} ({found.how})")
        else:
            missing.append(name)
    rest = f"; `data fetch` gets {', '.join(missing)}" if missing else ""
    yield ok("data", f"here: {', '.join(here) or 'none'}{rest}")

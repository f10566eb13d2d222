"""`doctor`: checks this machine, its software, the folder of runs and the scheduler, and prints the findings."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.cli.text import labelled
from launcher.config.schema import Cluster
from launcher.diagnose import machine
from launcher.errors import ConfigError
from launcher.findings import Finding, Level, ok, problem, warning, worst
from launcher.formatting import plural
from launcher.paths import user_config_dir
from launcher.plan import workload_hook
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError, Queue, Scheduler

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from launcher.config.schema import Config

MARKS = {Level.OK: "ok     ", Level.WARNING: "warning", Level.PROBLEM: "PROBLEM"}
STUCK = "a file system or a service that the check uses hangs: try it by hand"
# Seconds for: the import of torch, one query to a scheduler, the same about a whole site
TORCH, ASK, SURVEY = 60.0, 8.0, 20.0


def run(arguments: Namespace) -> int:
    found = []
    for each in _all(arguments.cluster):
        found.append(each)
        if not arguments.as_json:
            print(line(each), flush=True)
    level = worst(found)
    if arguments.as_json:
        values = {"launcher": __version__, "python": sys.version.split()[0], "level": level.value}
        print(json.dumps({**values, "findings": [dataclasses.asdict(each) for each in found]}, indent=1))
    else:
        problems, warnings = (sum(each.level is kind for each in found) for kind in (Level.PROBLEM, Level.WARNING))
        print(f"\n{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    return 1 if level is Level.PROBLEM else 0


def _all(cluster: str | None) -> Iterator[Finding]:
    torch = start(DoctorCheck("torch", lambda: [machine.probe_torch(TORCH)], TORCH + 5))  # slow, so in the background
    yield from run_all([
        DoctorCheck("launcher", machine.launcher),
        DoctorCheck("python", lambda: [machine.python(sys.version_info[:3], sys.executable)]),
        DoctorCheck("packages", lambda: machine.packages(machine.installed_version)),
        DoctorCheck("machine", machine.probe_machine),
    ])  # fmt: skip
    try:
        # What it needs may not be installed, which the checks before report
        from launcher.submission import resume

        config = resume.composed_config(["workload=p2p", *([f"cluster={cluster}"] if cluster else [])]).config
    except ConfigError as error:
        yield problem("config", str(error), "correct it, or choose another profile with --cluster NAME")
    except ImportError as error:
        yield problem("config", f"cannot be composed: {error}", "see packages above")
    else:
        yield from run_all(rest(config, compares=cluster is not None))
    yield from torch()


def line(found: Finding) -> str:
    head = f"{MARKS[found.level]}  {found.about:<10} "
    lines = labelled(head, found.says, column=len(head))
    if found.do:
        lines += labelled("", f"-> {found.do}", column=len(head))
    return "\n".join(lines)


# -- Runs checks concurrently, each in a thread and with a time limit


@dataclasses.dataclass(frozen=True)
class DoctorCheck:
    about: str  # its subject, as the report shows it
    look: Callable[[], Iterable[Finding]]
    limit: float = 10.0  # seconds that it may take


def start(check: DoctorCheck) -> Callable[[], list[Finding]]:
    """Starts a check in a thread; returns a function that waits for its findings, or for its limit.

    A check that raises, or takes longer than its limit, yields a problem.
    """
    findings: list[Finding] = []

    def look() -> None:
        try:
            for each in check.look():
                findings.append(each)
        except Exception as error:  # a check that fails must not hide the findings of others
            text = f"the check failed: {type(error).__name__}: {error}"
            findings.append(problem(check.about, text, "report this"))

    def wait() -> list[Finding]:
        thread.join(max(until - time.monotonic(), 0.0))
        late = [problem(check.about, f"no answer within {check.limit:g} s", STUCK)] if thread.is_alive() else []
        return [*findings, *late]

    # A thread that hangs in a file system cannot be ended. A daemon thread does not keep the process from exiting.
    thread, until = threading.Thread(target=look, daemon=True), time.monotonic() + check.limit
    thread.start()
    return wait


def run_all(checks: Sequence[DoctorCheck]) -> Iterator[Finding]:
    """Runs all checks concurrently, and yields their findings in the order of the checks."""
    for wait in [start(each) for each in checks]:
        yield from wait()


# -- Checks which schedulers are on this machine, and the one of the profile in detail


def probe(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    """Reports which schedulers are here, and runs the checks of the profile's; timeout: seconds a query."""
    wanted = registry.scheduler(cluster.scheduler)
    yield from which(wanted, [each for each in registry.schedulers() if each.command])
    if wanted.command and not wanted.problem():
        yield from wanted.check(cluster, timeout)


def which(wanted: Scheduler, known: Sequence[Scheduler]) -> Iterator[Finding]:
    none = f"none found: no {' and no '.join(dict.fromkeys(each.command for each in known))} is on PATH"
    present = "; ".join(filter(None, (each.found() for each in known))) or none
    if not wanted.command:
        yield ok("scheduler", present)
        if name := next((each.name for each in known if not each.problem()), None):
            looks = f"`doctor --cluster {name}` checks the scheduler"
            yield ok("scheduler", f"the profile runs on {wanted.title}; {looks}")
    elif why := wanted.problem():
        yield problem("scheduler", f"{present}; the profile needs {wanted.title}", why)
    else:
        yield ok("scheduler", present)


# -- The checks that need the configuration, in the order of the report


def rest(config: Config, *, compares: bool = False) -> list[DoctorCheck]:
    """Returns the checks that need the configuration; compares: the profile with what the site's scheduler reports."""
    cluster, queued = config.cluster, isinstance(registry.scheduler(config.cluster.scheduler), Queue)

    def interface() -> Finding:
        return machine.interface(cluster.interface, [name for _, name in socket.if_nameindex()], queued=queued)

    def folder() -> Iterator[Finding]:
        return machine.probe_folder(Path(config.runs_dir).expanduser().absolute(), queued=queued)

    return [
        DoctorCheck("profile", lambda: _profile(cluster)),
        DoctorCheck("scheduler", lambda: probe(cluster, min(ASK, cluster.submit_timeout)), 4 * ASK),
        *([DoctorCheck("site", lambda: compared_with_site(cluster), 2 * SURVEY)] if compares else []),
        DoctorCheck("host", lambda: [machine.probe_host()]),
        DoctorCheck("ports", lambda: _ports(cluster)),
        DoctorCheck("interface", lambda: [interface()]),
        DoctorCheck("runs_dir", folder, 15.0),
        DoctorCheck("tmp", lambda: [machine.probe_temporary()]),
        DoctorCheck("data", _data),
        DoctorCheck("gpus", lambda: [machine.probe_nvidia()]),
    ]


def _profile(cluster: Cluster) -> Iterator[Finding]:
    own = user_config_dir()
    profiles = sorted(path.stem for path in (own / "cluster").glob("*.yaml"))
    text = f"your own settings are in {own}" + (f" (profiles {', '.join(profiles)})" if profiles else "")
    text = text if own.is_dir() else f"no folder of your own settings ({own})"
    settings = {each.name for each in dataclasses.fields(cluster)} - {each.name for each in dataclasses.fields(Cluster)}
    given = [f"{key}={value}" for key, value in vars(cluster).items()
             if key in {"account", *settings} and isinstance(value, str) and value]  # fmt: skip
    yield ok("config", f"cluster={cluster.name} ({cluster.scheduler}{', ' if given else ''}{', '.join(given)}); {text}")


def compared_with_site(cluster: Cluster) -> Iterator[Finding]:
    wanted = registry.scheduler(cluster.scheduler)
    if not wanted.command or wanted.problem():  # `probe` says so
        return
    try:
        site = wanted.survey(SURVEY)
    except QueryError as error:
        yield warning("site", f"not compared with the profile: {wanted.title} does not answer: {error}")
        return
    yield from site.differences(cluster)
    for each in site.problems:
        yield warning("site", f"not compared: {each}")


def _ports(cluster: Cluster) -> Iterator[Finding]:
    low, _, high = cluster.port_range.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1024 <= int(low) < int(high) <= 65535):
        text = f"cluster.port_range={cluster.port_range!r} is not LOW-HIGH with 1024 <= LOW < HIGH <= 65535"
        yield problem("ports", text, "write it as 20000-32767")
        return
    yield machine.probe_ports((int(low), int(high)))


def _data() -> Iterator[Finding]:
    known, problems = workload_hook.data_sets_of_all()
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

"""All checks of `doctor`, and the process in which each one runs."""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.config.schema import Cluster, Config
from launcher.diagnose import machine
from launcher.errors import ConfigError
from launcher.findings import Finding, ok, problem, warning
from launcher.paths import user_config_dir
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError, Queue, Scheduler
from launcher.spec import workload_hook

# -- Runs checks concurrently, each in a thread and with a time limit


@dataclass(frozen=True)
class DoctorCheck:
    """A check that `doctor` runs."""

    about: str  # the check's subject, as the report shows it
    look: Callable[[], Iterable[Finding]]  # the function that runs the check and returns its findings
    limit: float = 10.0  # seconds that the check may take


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
        late = [problem(check.about, f"no answer within {check.limit:g} s", _STUCK)] if thread.is_alive() else []
        return [*findings, *late]

    # A thread that hangs in a file system cannot be ended. A daemon thread does not keep the process from exiting.
    thread, until = threading.Thread(target=look, daemon=True), time.monotonic() + check.limit
    thread.start()
    return wait


def run_all(checks: Sequence[DoctorCheck]) -> Iterator[Finding]:
    """Runs all checks concurrently, and yields their findings in the order of the checks, each as soon as possible."""
    for wait in [start(each) for each in checks]:
        yield from wait()


_STUCK = "a file system or a service that the check uses hangs: try it by hand"


# -- Checks which schedulers are on this machine, and the one of the profile in detail


def probe(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    """Reports which schedulers are here, and runs the checks of the profile's; timeout: seconds a query."""
    wanted = registry.scheduler(cluster.scheduler)
    yield from which(wanted, [each for each in registry.schedulers() if each.command])
    if wanted.command and not wanted.problem():
        yield from wanted.check(cluster, timeout)


def which(wanted: Scheduler, known: Sequence[Scheduler]) -> Iterator[Finding]:
    """Reports which schedulers have their commands on PATH, and checks that the profile's scheduler is one of them."""
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


# -- The list of the checks that `doctor` runs, in the order of its report, and the checks of settings of the profile


TORCH = 60.0  # seconds for the import of torch
ASK = 8.0  # seconds for one query to a scheduler
SURVEY = 20.0  # the same, about a whole site


def first() -> list[DoctorCheck]:
    """Returns the first checks of the report, which need no configuration."""
    return [
        DoctorCheck("launcher", machine.launcher),
        DoctorCheck("python", lambda: [machine.python(sys.version_info[:3], sys.executable)]),
        DoctorCheck("packages", lambda: machine.packages(machine.installed_version)),
        DoctorCheck("machine", machine.probe_machine),
    ]


def rest(config: Config, *, compares: bool = False) -> list[DoctorCheck]:
    """Returns the remaining checks (without torch's), which need the configuration.

    compares: whether the profile is compared with what the site's scheduler reports, which takes some queries.
    """
    cluster, queued = config.cluster, isinstance(registry.scheduler(config.cluster.scheduler), Queue)
    return [
        DoctorCheck("profile", lambda: _profile(cluster)),
        DoctorCheck("scheduler", lambda: probe(cluster, min(ASK, cluster.submit_timeout)), 4 * ASK),
        *([DoctorCheck("site", lambda: compared_with_site(cluster), 2 * SURVEY)] if compares else []),
        DoctorCheck("host", lambda: [machine.probe_host()]),
        DoctorCheck("ports", lambda: _ports(cluster)),
        DoctorCheck("interface", lambda: [machine.interface(cluster.interface, _interfaces(), queued=queued)]),
        DoctorCheck(
            "runs_dir", lambda: machine.probe_folder(Path(config.runs_dir).expanduser().absolute(), queued=queued), 15.0
        ),
        DoctorCheck("tmp", lambda: [machine.probe_temporary()]),
        DoctorCheck("data", _data),
        DoctorCheck("gpus", lambda: [machine.probe_nvidia()]),
    ]


def torch() -> DoctorCheck:
    """Returns the check of torch, which takes the longest: it imports torch in another process."""
    return DoctorCheck("torch", lambda: [machine.probe_torch(TORCH)], TORCH + 5)


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


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


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

"""Fixtures that start a Slurm, a PBS or a Grid Engine, and the closing table: which scheduler was tested on what.

For authors of tests:

- The fixtures `slurm` (without accounting: sacct fails, as at many sites) and `slurm_with_accounting` are a
  `SlurmCluster` of four nodes, which is started at first use, once per session. A test leaves it idle; `slurm.reset()`
  ends all jobs.
- The fixture `pbs` is the real PBS of this machine if it has one, else a stand-in; see tests/pbs/. Tests that need what
  only the stand-in can do (a server that goes down) use `pbs_stand_in`.
- The fixture `sge` is a real Grid Engine with two execution hosts in network namespaces. A test leaves it idle;
  `sge.reset()` ends all jobs.
- The table counts tests that use these fixtures. Others have a marker, such as
  `@pytest.mark.backend("local", "this machine")` or `@pytest.mark.backend("local", "allocation inside {slurm}")`, or
  call a fixture: `ran_against("pbs", "OpenPBS 23.06, 2 nodes")`.
- With --numprocesses each process of pytest has its own clusters, so no test may use a fixed port or path.
- Commands of `tests.launch.Launcher` run with an interpreter that forks agents and programs from a process
  that has torch (`tests/warm_python`); a `sitecustomize` or LD_PRELOAD in the run's environment makes them start as for
  users.
- What runs where. `make test` has each fact once, where that costs least: as a call, else in processes, else as a run
  on this machine, else on Slurm; and once on each of the four schedulers: submission, state, output, cancelling, what
  continues a run, a killed rank, a lost node, arrays, dependencies, pilots. `ci` has the same with more schedulers,
  numbers of ranks and kinds of state, what starts torch anew, and short forms of benchmarks and of chaos. `slow` is
  what CI has no time for. Some facts are in `ci` alone, because they cost too much: what
  has no cheaper twin there is a candidate for one (`tests.markers` marks single values of parameters).
- If no Slurm or Grid Engine can run, these tests are skipped, and the table shows the reason. With CI=true they fail,
  so that a green CI means that they ran.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from tests import hydra_cache
from tests.cluster.slurm_cluster import SlurmCluster
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs
from tests.sge.sge_cluster import SgeCluster

RECORD = "ran against"
WIDTH = 80

# Test machines are busy: hypothesis sets no time limit, neither for running an example nor for generating one.
# `make test-slow` tries the properties with the profile `long`.
for profile, examples in (("launcher", 25), ("long", 500)):
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("launcher")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """No garbage is looked for while modules and tests are loaded, nor among these later: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


# -- state that a test must not leave behind


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fails a test that leaves torch's process group behind, because later tests in the same process would fail."""
    try:
        yield
    finally:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
            pytest.fail("This test left torch's default process group behind.", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def shared_compositions() -> Iterator[None]:
    """Hydra does once for all tests of this process what depends on the files of conf/ and on their choice alone."""
    with hydra_cache.shared():
        yield


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A process of xdist tells the one that prints how a test ended, and not also that it began, was set up and torn
    down as it should: six messages a test took as much time as many a test."""
    config = item.config
    if (
        not hasattr(config, "workerinput")
        or config.getoption("durations") is not None
        or config.pluginmanager.hasplugin("rerunfailures")
    ):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Kills what a failed test has left on this machine and in its clusters: later tests would wait for that."""
    report = yield
    for name, cluster in _clusters.items() if report.failed else ():
        if name in getattr(item, "fixturenames", ()):
            with contextlib.suppress(Exception):  # its next test shows it
                cluster.reset()
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                environment = (process / "environ").read_bytes()
                of_test = os.fsencode(folder) in environment + (process / "cmdline").read_bytes()
                in_job = any(name in environment for name in (b"SLURM_JOB_ID=", b"PBS_JOBID=", b"JOB_ID="))
                if of_test and not in_job and int(process.name) != os.getpid():
                    os.kill(int(process.name), signal.SIGKILL)
    return report


# -- the clusters


C = TypeVar("C")
_clusters: dict[str, Any] = {}  # that run, by the name of their fixture


def _noted(name: str, cluster: C) -> C:
    _clusters[name] = cluster
    return cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A real four-node Slurm without accounting."""
    yield from _cluster("slurm", accounting=False)


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Iterator[SlurmCluster]:
    """A real four-node Slurm with slurmdbd, so that sacct works."""
    yield from _cluster("slurm_with_accounting", accounting=True)


@pytest.fixture(scope="session")
def pbs_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PbsCluster]:
    """A stand-in for OpenPBS with two nodes."""
    with PbsCluster(tmp_path_factory.mktemp("pbs") / "site") as cluster:
        yield _noted("pbs_stand_in", cluster)


@pytest.fixture(scope="session")
def pbs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PbsCluster | RealPbs:
    """The real PBS of this machine if it has one, else the stand-in."""
    stand_in: PbsCluster | None = None if RealPbs.answers() else request.getfixturevalue("pbs_stand_in")
    return _noted("pbs", stand_in or RealPbs(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def sge() -> Iterator[SgeCluster]:
    """A real Grid Engine with two execution hosts."""
    if reason := SgeCluster.missing():
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI must run against a real Grid Engine, but: {reason}", pytrace=False)
        pytest.skip(reason)
    with SgeCluster() as cluster:
        yield _noted("sge", cluster)


def _cluster(name: str, *, accounting: bool) -> Iterator[SlurmCluster]:
    """Yields a running Slurm cluster; skips the test if none can run here, or fails it in CI."""
    if reason := SlurmCluster.missing(accounting=accounting):
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI must run against a real Slurm, but: {reason}", pytrace=False)
        pytest.skip(reason)
    with SlurmCluster(accounting=accounting) as cluster:
        yield _noted(name, cluster)


# -- the table: which scheduler was tested against what


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers, enables SIGINT, and chooses a folder for temporary files that daemons can use.

    A shell starts background processes (`make test &`) with SIGINT ignored, and their children inherit this.
    Configuration files of schedulers have no quoting, and the path of a Unix socket has at most 107 characters.
    """
    if not re.fullmatch(r"[\w./-]{1,20}", tempfile.gettempdir(), re.ASCII):
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for marker in (
        "backend(name, against): count this test in the closing table; {slurm} stands for Slurm and its version",
        "ci: a fact of `make test` once more, with another scheduler, number of ranks or kind; benchmarks and chaos in "
        "short. `.ci/run` runs it",
        "slow: what CI has no time for, because other tests hold it too; `make test-slow` runs it, and `ci`",
        "waits: for more than a minute, in which the others compute: it begins first",
        "root: in a file of unit tests some of which need root; the CI of root runs the others as an ordinary user",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Records for each test which scheduler it will run against, from its marker or its fixture."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if marker := item.get_closest_marker("backend"):
            name, against = marker.args
            _record(item, name, against.replace("{slurm}", _slurm()))
        elif "pbs" in fixtures and RealPbs.answers():
            _record(item, "pbs", RealPbs.described())
        elif "pbs" in fixtures or "pbs_stand_in" in fixtures:
            _record(item, "pbs", PbsCluster.against)
        elif "sge" in fixtures:
            _record(item, "sge", SgeCluster.against)
        elif "slurm_with_accounting" in fixtures:
            _record(item, "slurm", f"{_slurm()}, 4 real nodes, accounting")
        elif "slurm" in fixtures:
            _record(item, "slurm", f"{_slurm()}, 4 real nodes, no accounting")


@pytest.fixture
def ran_against(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function that records what the test runs against: ran_against(scheduler, description).

    For tests that know this only while they run.
    """
    return lambda name, against: _record(request.node, name, against)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the closing table."""
    outcomes: dict[str, tuple[tuple[str, str], str, str]] = {}
    # Later entries replace earlier ones: a test that passed and then failed in teardown has failed.
    for category, outcome in (
        ("passed", "passed"),
        ("skipped", "skipped"),
        ("xfailed", "skipped"),
        ("xpassed", "failed"),
        ("failed", "failed"),
        ("error", "failed"),
    ):
        for report in terminalreporter.stats.get(category, []):
            for key, value in getattr(report, "user_properties", ()):
                if key == RECORD:
                    outcomes[report.nodeid] = ((value[0], value[1]), outcome, _reason(report))
    if outcomes:
        terminalreporter.section("which backend ran against what")
        for line in table(list(outcomes.values())):
            terminalreporter.write_line(line)


def table(outcomes: list[tuple[tuple[str, str], str, str]]) -> list[str]:
    """Returns the lines of the closing table.

    Args:
        outcomes: ((scheduler, what it ran against), outcome, why it was skipped) of each test; the outcome is passed,
            failed or skipped.
    """
    rows: dict[tuple[str, str], dict[str, int]] = {}
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row, outcome, reason in sorted(outcomes):
        counts = rows.setdefault(row, {"passed": 0, "failed": 0, "skipped": 0})
        counts[outcome] += 1
        if outcome == "skipped":
            reasons.setdefault(row, {})[reason] = None
    first = max(len("backend"), *(len(name) for name, _ in rows))
    second = WIDTH - first - 2 - 3 * 9
    lines = [f"{'backend':{first}}  {'ran against':{second}}{'passed':>9}{'failed':>9}{'skipped':>9}"]
    for (name, against), counts in rows.items():
        start, *more = textwrap.wrap(against, second) or [""]
        lines.append(f"{name:{first}}  {start:{second}}" + "".join(f"{count or '-':>9}" for count in counts.values()))
        lines += [f"{'':{first}}  {line}" for line in more]
        for reason in reasons.get((name, against), {}):
            lines += textwrap.wrap(
                f"skipped: {reason}", WIDTH, initial_indent=" " * (first + 2), subsequent_indent=" " * (first + 4)
            )
    return lines


def _record(item: pytest.Item, name: str, against: str) -> None:
    item.user_properties[:] = [entry for entry in item.user_properties if entry[0] != RECORD]
    item.user_properties.append((RECORD, [name, against]))


def _reason(report: object) -> str:
    """Returns why a test was skipped or is expected to fail, from pytest's report; empty: neither applies."""
    if xfail := getattr(report, "wasxfail", ""):
        return f"expected to fail: {xfail}"
    details = getattr(report, "longrepr", None)
    return str(details[2]).removeprefix("Skipped: ") if isinstance(details, tuple) else ""


@cache
def _slurm() -> str:
    return "Slurm" if SlurmCluster.missing() else f"Slurm {SlurmCluster.version()}"

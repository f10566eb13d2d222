"""A Slurm, a PBS or a Grid Engine for tests that ask for one, and the closing table: which backend ran against what.

For test authors:

- Ask for the fixture `slurm` (no accounting: sacct fails, as at many sites) or `slurm_with_accounting`. Each is a
  `SlurmCluster` of four nodes, started at first use, once per session; leave it idle, with `slurm.reset()` if need be.
- Ask for the fixture `pbs`: the real PBS of this machine where it has one, else a stand-in; see tests/pbs/. What only a
  stand-in can do (a server that goes down) asks for `pbs_stand_in`.
- Ask for the fixture `sge`: a real Grid Engine with two execution hosts in network namespaces; leave it idle, with
  `sge.reset()` if need be.
- The table then counts the test by itself. A test of another backend, or one that runs inside an allocation, says so:
  `@pytest.mark.backend("local", "this machine")`, `@pytest.mark.backend("local", "allocation inside {slurm}")`;
  one that only knows while it runs calls the fixture: `ran_against("pbs", "OpenPBS 23.06, 2 nodes")`.
- With --numprocesses each process of pytest has clusters of its own; nothing may ask for a fixed port or path.
- Where no Slurm or Grid Engine can run, such tests skip and the table says why. With CI=true they fail: a green CI
  means that the real thing ran.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache

import hypothesis
import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs
from tests.sge.sge_cluster import SgeCluster

RECORD = "ran against"
WIDTH = 80

# Machines are busy: neither an example nor making one has a time limit.
hypothesis.settings.register_profile("launcher", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("launcher")


# -- what no test leaves to the next


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """Tests run in any order, several in one process: the one that leaves a process group behind is the one to fail."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        pytest.fail("This test left torch's default process group behind.", pytrace=False)


# -- the clusters


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A real four-node Slurm without accounting."""
    yield from _cluster(accounting=False)


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Iterator[SlurmCluster]:
    """A real four-node Slurm with slurmdbd, so that sacct works."""
    yield from _cluster(accounting=True)


@pytest.fixture(scope="session")
def pbs_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PbsCluster]:
    """A stand-in for OpenPBS."""
    with PbsCluster(tmp_path_factory.mktemp("pbs") / "site") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pbs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PbsCluster | RealPbs:
    """The real PBS of this machine, else a stand-in."""
    stand_in: PbsCluster | None = None if RealPbs.answers() else request.getfixturevalue("pbs_stand_in")
    return stand_in or RealPbs(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def sge() -> Iterator[SgeCluster]:
    """A real Grid Engine with two execution hosts."""
    if reason := SgeCluster.missing():
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI must run against a real Grid Engine, but: {reason}", pytrace=False)
        pytest.skip(reason)
    with SgeCluster() as cluster:
        yield cluster


def _cluster(*, accounting: bool) -> Iterator[SlurmCluster]:
    if reason := SlurmCluster.missing(accounting=accounting):
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI must run against a real Slurm, but: {reason}", pytrace=False)
        pytest.skip(reason)
    with SlurmCluster(accounting=accounting) as cluster:
        yield cluster


# -- what ran against what


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, so that --strict-markers knows them; and let Ctrl-C interrupt.

    What a shell starts in the background (`make test &`) ignores SIGINT, and so would all that the tests start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for marker in (
        "backend(name, against): count this test in the closing table; {slurm} stands for Slurm and its version",
        "slow: a longer form of what other tests hold too; `make test-slow` runs these alone",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note on each item what it will run against: its marker's words, or else the cluster fixture it asks for."""
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
    """Say while the test runs which backend it runs against what; takes the place of a marker."""
    return lambda name, against: _record(request.node, name, against)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, if any test ran against anything."""
    outcomes: dict[str, tuple[tuple[str, str], str, str]] = {}
    # Later words outweigh earlier ones: a test that passed and then failed in teardown has failed.
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
    """Lines for ((backend, against), outcome, reason) of each test; every reason for skipping is told once per row."""
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
    """Why a test was skipped, in the words of whoever skipped it."""
    if xfail := getattr(report, "wasxfail", ""):
        return f"expected to fail: {xfail}"
    words = getattr(report, "longrepr", None)
    return str(words[2]).removeprefix("Skipped: ") if isinstance(words, tuple) else ""


@cache
def _slurm() -> str:
    return "Slurm" if SlurmCluster.missing() else f"Slurm {SlurmCluster.version()}"

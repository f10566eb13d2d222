"""Sweeps of thousands of points: their commands work, and do no more for each point than in small sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli.sweep import show_results, show_status
from launcher.monitoring.run_status import JobMonitor
from launcher.monitoring.sweep_status import point_statuses
from launcher.runs.point_claims import Claims, EntryKind, Manager, left_out
from launcher.runs.sweep_directory import Sweep
from launcher.sweeps import control
from tests.unit.operations import Counted, operations
from tests.unit.pilots.managers import packed_sweep
from tests.unit.slurm_stand_in import SlurmStandIn
from tests.unit.sweep_runs import end, make_sweep
from tests.unit.sweep_site import Site, seeds

FEW = 6
MANAGER = Manager(0, 0, 0, 0)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    slurm = SlurmStandIn(tmp_path / "slurm")
    (slurm.bin / "scancel").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    return Site(tmp_path, slurm)


def test_what_5000_points_have_in_common_does_not_count_5000_times(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [f"+workload.word{number}={'x' * 80}" for number in range(50)]
    sweep = make_sweep(site.folder / "runs", 5000, array=None, made=FEW, common=common)
    (site.slurm.folder / "jobs").write_text(f"100 {FEW} 0-11 launcher-1 - script\n")
    sweep.submitting("launcher-1", range(FEW))
    sweep.submitted("launcher-1", "100")
    show_status(sweep)
    assert f"{sweep.id}: 0/5000 done, {FEW} queued, {5000 - FEW} waiting" in capsys.readouterr().out
    assert len(control.cancel(sweep)) == 5000
    site.slurm.end("100")
    rerun = control.rerun(sweep, range(FEW))
    assert rerun is not None
    assert [points for _, points in rerun.jobs] == [tuple(range(FEW))]
    assert sweep.manifest().points[4999] == (*common, "workload.lr=499.9")


def queued(folder: Path, count: int) -> Sweep:
    return make_sweep(folder, count)


def failed(folder: Path, count: int) -> Sweep:
    sweep = make_sweep(folder, count)
    for index in range(count):
        end(sweep.run(index), 1, fault="it broke")
    return sweep


def waiting(folder: Path, count: int) -> Sweep:
    sweep = make_sweep(folder, count, array=None)
    sweep.request_local(range(count), restart=False)
    return sweep


def packed(folder: Path, count: int) -> Sweep:
    sweep = packed_sweep(folder, count)
    claims = Claims(sweep.path, 0)
    for point in range(count):
        claims.add(point, 0, EntryKind.CLAIMED, MANAGER)
        claims.add(point, 1, EntryKind.DONE if point % 2 else EntryKind.RELEASED, MANAGER)
    return sweep


def every(sweep: Sweep) -> list[int]:
    return [Counted(point) for point in range(len(sweep.manifest().points))]


Commands = dict[str, Callable[[Sweep], object]]
# How a sweep is made, and commands on it, of which the last one changes most.
COMMANDS: list[tuple[Callable[[Path, int], Sweep], Commands]] = [
    (
        queued,
        {
            "status": show_status,
            "status --json": lambda sweep: show_status(sweep, as_json=True),
            "results": show_results,
            "point_statuses": lambda sweep: point_statuses(sweep, JobMonitor(), every(sweep)),
            "throttle": lambda sweep: control.throttle(sweep, 2),
            "cancel of points": lambda sweep: control.cancel(sweep, every(sweep)),
        },
    ),
    (queued, {"cancel": control.cancel}),
    (
        failed,
        {
            "status": lambda sweep: show_status(sweep, everything=True),
            "results": show_results,
            "rerun": lambda sweep: control.rerun(sweep, every(sweep)),
        },
    ),
    (waiting, {"status": show_status, "cancel of points": lambda sweep: control.cancel(sweep, every(sweep))}),
    (packed, {"status": show_status, "cancel of points": lambda sweep: control.cancel(sweep, every(sweep))}),
]


@pytest.mark.parametrize("few", [FEW, pytest.param(4 * FEW, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("made", "commands"), COMMANDS)
def test_the_work_of_a_command_grows_as_the_points_do(
    site: Site, made: Callable[[Path, int], Sweep], commands: Commands, few: int
) -> None:
    work: dict[str, list[int]] = {name: [] for name in commands}
    compared: dict[str, list[int]] = {name: [] for name in commands}
    for folder, count in (("first", 2), ("few", few), ("many", 10 * few)):
        script = f"100 {count} 0-{count - 1} launcher-1 - script\n"
        (site.slurm.folder / "jobs").write_text("" if made is failed else script)
        sweep = made(site.folder / folder, count)
        for name, command in commands.items():
            Counted.compared = 0
            work[name].append(operations(lambda sweep=sweep, command=command: command(sweep)))  # type: ignore[misc]
            compared[name].append(Counted.compared)
    assert {name: counts for name, counts in work.items() if counts[2] >= 15 * counts[1]} == {}
    assert {name: counts for name, counts in compared.items() if counts[2] > 15 * counts[1]} == {}


def test_the_work_of_a_submission_grows_as_the_points_do(site: Site) -> None:
    _, few, many = (
        operations(lambda count=count: site.submit(seeds(count), name=f"name{count}"))  # type: ignore[misc]
        for count in (2, FEW, 10 * FEW)
    )
    assert many < 15 * few


def test_a_node_on_which_many_points_failed_looks_at_the_last_ones_only() -> None:
    few, many = (
        operations(lambda count=count: left_out([(point, EntryKind.FAILED) for point in range(count)], True))  # type: ignore[misc]
        for count in (FEW, 10 * FEW)
    )
    assert few == many

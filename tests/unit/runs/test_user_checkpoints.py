"""What a program has saved, in folders of any size: newer, not newer, or unknown."""

from __future__ import annotations

import glob
import math
import os
from pathlib import Path

import pytest

from launcher.plan.plan import JobPlan
from launcher.runs import lease_and_locks, user_checkpoints
from tests.unit.faults import FileServer
from tests.unit.operations import operations
from tests.unit.plans import bare_plan


def saved(folder: Path, folders: int, files: int = 5) -> JobPlan:
    """Checkpoints in folders of their own; file F of folder N has the time 1000 N + F."""
    for number in range(folders):
        step = folder / "checkpoints" / f"step-{number * 7919 % folders}-{number}"  # not in the order of their names
        step.mkdir(parents=True)
        for file in range(files):
            (step / f"{file}.bin").touch()
            os.utime(step / f"{file}.bin", ns=(0, 1000 * number + file))
        os.utime(step, ns=(0, 1000 * number + files))
    (folder / "work").mkdir()
    workload = {"kind": "Program", "params": {"checkpoint": None}}
    return bare_plan(workdir=str(folder / "work"), checkpoint={"dir": f"{folder}/checkpoints"}, workload=workload)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_scan_that_was_not_finished_says_nothing(tmp_path: Path, seconds: float) -> None:
    plan = saved(tmp_path, 3)
    with pytest.raises(TimeoutError):
        user_checkpoints.newest(plan, math.inf, seconds)
    assert user_checkpoints.newest(plan) == 2004
    assert user_checkpoints.newest(plan, 1999, seconds) == 2000  # this much is known


def test_the_mark_of_a_run_in_its_checkpoint_folder_is_nothing_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = saved(tmp_path, 0)
    (tmp_path / "checkpoints").mkdir()
    for name, value in (("RUN_DIR", tmp_path / "run"), ("LEASE", tmp_path / "run" / "lease")):
        monkeypatch.setenv(f"LAUNCHER_{name}", str(value))
    lease_and_locks.use_folder(tmp_path / "checkpoints")
    assert list((tmp_path / "checkpoints").iterdir())
    assert user_checkpoints.newest(plan) == -1


@pytest.mark.parametrize("where", ["checkpoints/{}/", "work/{}.txt", "work/out/{}/"])
def test_a_scan_that_finds_no_file_ends_in_time(tmp_path: Path, where: str) -> None:
    plan = saved(tmp_path, 0)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "work" / "out").mkdir()
    if "out" in where:
        plan.workload.params["checkpoint"] = "out/*"
    for number in range(user_checkpoints.EVERY):
        path = tmp_path / where.format(number)
        path.mkdir() if where.endswith("/") else path.touch()
    with pytest.raises(TimeoutError, match="looked at in 0 s"):
        user_checkpoints.newest(plan, math.inf, 0)
    assert user_checkpoints.newest(plan) == -1


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, server = saved(tmp_path, 3), FileServer(monkeypatch)
    server.fail("step-1-2")
    with pytest.raises(OSError, match="Input/output"):
        user_checkpoints.newest(plan, 1_000_000)


@pytest.mark.parametrize("pattern", ["out/*/*.pt", "out/**/*.pt", "out/**", "**/step-[0-9]", "out/step-1/*"])
def test_a_folder_of_a_pattern_that_cannot_be_read_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    plan, server = saved(tmp_path, 0), FileServer(monkeypatch)
    plan.workload.params["checkpoint"] = pattern
    for step in (1, 2):
        (tmp_path / f"work/out/step-{step}").mkdir(parents=True)
        (tmp_path / f"work/out/step-{step}/a.pt").touch()
    assert user_checkpoints.newest(plan) > 0
    server.fail("step-1")
    with pytest.raises(OSError, match="Input/output"):
        user_checkpoints.newest(plan)


@pytest.mark.parametrize("pattern", ["out/**/*.none", "**/none/*", "out/*/*/*.none"])
def test_a_pattern_that_matches_nothing_ends_in_time(tmp_path: Path, pattern: str) -> None:
    plan = saved(tmp_path, 0)
    plan.workload.params["checkpoint"] = pattern
    for number in range(user_checkpoints.EVERY):
        (tmp_path / f"work/out/a/{number}").mkdir(parents=True)
    with pytest.raises(TimeoutError, match="looked at in 0 s"):
        user_checkpoints.newest(plan, math.inf, 0)
    assert user_checkpoints.newest(plan) == -1


@pytest.mark.parametrize(
    "pattern",
    [
        "out", "out/", "*", "*/*", "**", "**/", "**/*", "**/*.pt", "out/**/c", "out/**/**/c", "**/b/**/*.pt",
        "*/b*/../a", "./o?t/[ab]",
        ".hidden/*", "*/.h*", "**/.h/*", "none/*", "a.pt/*", "[x].pt", "loop/*", "out/b/**",
    ],
)  # fmt: skip
def test_a_pattern_matches_what_it_does_in_python(tmp_path: Path, pattern: str) -> None:
    plan = saved(tmp_path, 0)
    plan.workload.params["checkpoint"] = pattern
    for name in ("out/a/1.pt", "out/b/c/2.pt", "out/b/.h/3.pt", ".hidden/4.pt", "a.pt", "[x].pt", "x.pt", "out/c"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).touch()
    (tmp_path / "work/loop").symlink_to(tmp_path / "work/out")
    found: set[str] = set()
    whole = str(tmp_path / "work" / pattern)
    for path in map(Path, [whole, *glob.glob(whole, recursive=True)]):  # noqa: PTH207  Path.glob differs
        found |= {os.path.realpath(each) for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file()}
    assert {os.path.realpath(path) for path, _ in user_checkpoints.files(plan)} == found


def test_the_folder_in_which_it_runs_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "lr[01]").mkdir()
    plan = saved(tmp_path / "lr[01]", 0)
    plan.workload.params["checkpoint"] = "*.pt"
    (tmp_path / "lr[01]/work/1.pt").touch()
    assert user_checkpoints.newest(plan) > 0


def test_what_is_new_is_found_before_what_is_old_is_read(tmp_path: Path) -> None:
    work = []
    for count in (20, 200):
        plan = saved(tmp_path / str(count), count, 2)
        newest = 1000 * (count - 1)
        work.append(operations(lambda plan=plan, newest=newest: user_checkpoints.newest(plan, newest - 1)))  # type: ignore[misc]
        assert user_checkpoints.newest(plan, newest - 1) == newest
    assert work[1] < 15 * work[0]
    few, many = (
        operations(lambda count=count: user_checkpoints.newest(saved(tmp_path / f"flat{count}", 1, count), 0))  # type: ignore[misc]
        for count in (20, 200)
    )
    assert many < 15 * few


def test_links_and_what_vanishes_are_no_obstacle(tmp_path: Path) -> None:
    plan = saved(tmp_path, 2)
    (tmp_path / "checkpoints" / "latest").symlink_to(tmp_path / "checkpoints")  # a loop
    (tmp_path / "checkpoints" / "gone").symlink_to(tmp_path / "nowhere")
    assert user_checkpoints.newest(plan) == 1004
    new = tmp_path / "elsewhere.bin"
    new.touch()
    os.utime(new, ns=(0, 9999))
    (tmp_path / "checkpoints" / "last.bin").symlink_to(new)
    assert user_checkpoints.newest(plan) == 9999

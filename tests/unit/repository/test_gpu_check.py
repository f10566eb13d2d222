"""The program behind `make gpu-check`: its list is whole, its table tells, and a machine without GPUs passes it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.gpu import check
from tests.gpu.check import CHECKS, Check, Failed, Machine, Outcome


def test_a_machine_without_gpus_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "look_for_gpus", lambda: ([], "torch 2.13.0+cpu was built for CPUs only"))
    assert check.main([]) == 0
    said = "gpu-check: nothing was checked, for there is no GPU here: torch 2.13.0+cpu was built for CPUs only\n"
    assert capsys.readouterr().out == said


def test_the_list_is_whole() -> None:
    assert [each.name for each in CHECKS] == [
        "versions", "unit tests", "ddp_mnist with preflight", "no visible device", "is_available() at import",
        "two ranks on one GPU", "gloo with GPU tensors", "all collectives to 8 GiB", "types and groups",
        "p2p over NCCL", "train.invariant", "memory of a save", "set_default_device", "fsdp_lm bf16 resumed",
        "staging under a queue", "kill -9 while full", "kill -9 under a queue", "kernel that never ends",
        "collective that a rank misses", "SIGTERM with a large state", "flight recorder", "benchmarks",
    ]  # fmt: skip
    assert all(each.call.__doc__ and each.limit > 0 for each in CHECKS)


def fine(machine: Machine) -> str:
    assert machine.asks == ("gpus_per_node=4",)
    (machine.folder / "file").touch()
    return str(machine.folder)


def fails(machine: Machine) -> str:
    raise Failed("accuracy 0.1\nand the whole log")


def breaks(machine: Machine) -> str:
    raise KeyError("loss")


def is_slow(machine: Machine) -> str:
    machine.command("sleep", "60")
    return "never"


def test_each_outcome_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "look_for_gpus", lambda: ([9, 8, 9, 9], ""))
    monkeypatch.setattr(
        check, "CHECKS", (Check("fine", fine, 60), Check("fails", fails, 60), Check("late", is_slow, 0.1))
    )
    assert check.main([]) == 1
    head, first, second, third = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in head.split("|")] == ["check", "result", "seconds", "detail"]
    name, result, _, folder = (cell.strip() for cell in first.split("|"))
    assert (name, result, Path(folder).exists()) == ("fine", "passed", False)
    assert second.startswith("fails | FAILED") and second.endswith("| accuracy 0.1")
    assert third.startswith("late  | FAILED") and third.endswith("| not done within 0.1 s")
    assert check.main(["--only", "fin"]) == 0


def test_an_error_in_a_check_fails_it() -> None:
    outcome = check.run_check(Check("breaks", breaks, 60), 1, 1)
    assert (outcome.result, outcome.detail) == ("FAILED", "KeyError: 'loss'")


def test_a_check_that_leaves_a_process_behind_fails() -> None:
    left: list[subprocess.Popen[bytes]] = []

    def leaves(machine: Machine) -> str:
        left.append(subprocess.Popen(["sleep", "60"], env={**os.environ, check.TOKEN: machine.token}))
        while not Path(f"/proc/{left[0].pid}/environ").read_bytes():  # the kernel sets it last
            time.sleep(0.001)
        return "done"

    outcome = check.run_check(Check("leaves", leaves, 60), 1, 1)
    assert (outcome.result, outcome.detail) == ("FAILED", "1 processes were left behind; done")
    assert left[0].wait() == -9


def test_the_table_has_the_first_line_of_a_detail() -> None:
    assert check.table([Outcome("a", "passed", 1.25, "x\ny")]).splitlines()[1] == "a     | passed | 1.2     | x"

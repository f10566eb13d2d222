"""The files of a function's job under a second name, with and without hard links, and the job that continues it."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.schedulers import functions
from launcher.schedulers.functions.task import link_as
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.executor import PBSExecutor, PBSJobEnvironment
from launcher.schedulers.qsub import Qsub, QsubKind


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    file = tmp_path / "payload.pkl"
    file.write_bytes(b"function")
    return file


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(file: Path, name: Path) -> None:
        raise OSError(number, os.strerror(number), str(name))

    monkeypatch.setattr(os, "link", link)


def test_a_file_is_linked_and_one_that_exists_is_kept(payload: Path, tmp_path: Path) -> None:
    name = tmp_path / "folder" / "7_submitted.pkl"
    link_as(payload, name)
    assert name.samefile(payload)
    name.unlink()
    name.write_bytes(b"checkpoint")
    link_as(payload, name)
    assert name.read_bytes() == b"checkpoint"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_is_copied_where_there_are_no_hard_links(
    payload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_links(monkeypatch, number)
    name = tmp_path / "7_submitted.pkl"
    link_as(payload, name)
    assert name.read_bytes() == b"function"
    name.write_bytes(b"checkpoint")
    link_as(payload, name)
    assert name.read_bytes() == b"checkpoint"
    assert sorted(tmp_path.iterdir()) == [name, payload]


def test_another_error_is_raised(payload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_links(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        link_as(payload, tmp_path / "7_submitted.pkl")


def test_a_function_is_resubmitted_with_the_variables_of_its_directives_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def accepts(_: PBS, script: str, environment: Mapping[str, str], *arguments: str, text: str) -> str:
        assert "HF_TOKEN" not in environment
        asked.extend(PBS().request(script, environment, *arguments, text=text).command)
        return "8.server"

    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#PBS -v LAUNCHER_TOKEN=launcher-1,USE_SSH=1\n")
    for name, value in (("JOB_ID", "7.server"), ("SCRIPT", str(script)), ("JOB_NAME", "job")):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    monkeypatch.setenv("HF_TOKEN", "hidden")
    monkeypatch.setattr(PBS, "submit", accepts)
    monkeypatch.setattr(PBSJobEnvironment, "record_resubmission", lambda *_: None)
    PBSJobEnvironment()._requeue(1)
    first, token, other = asked[asked.index("-v") + 1].split(",")
    assert (first, token.startswith("LAUNCHER_TOKEN=launcher-"), other) == (
        "LAUNCHER_FIRST_JOB=7.server", True, "USE_SSH=1"
    )  # fmt: skip


def test_a_function_is_submitted_by_the_command_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -f: otherwise qsub leaves a process, which could submit the job after the timeout."""
    asked: list[str] = []

    def accepts(_: PBS, script: str, environment: Mapping[str, str], *arguments: str) -> str:
        asked.extend(arguments)
        return "7.server"

    monkeypatch.setattr(functions, "detect", lambda: Qsub(QsubKind.PBS))
    monkeypatch.setattr(PBS, "submit", accepts)
    odd = os.fsencode(tmp_path) + b"/\xe4"  # a name that is not UTF-8
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    assert PBSExecutor(tmp_path / "jobs").submit(print).job_id == "7.server"
    assert asked == ["-f"]

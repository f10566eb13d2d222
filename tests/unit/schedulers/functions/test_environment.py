"""The files of a function's job under a second name, on file systems with and without hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.schedulers.functions.task import link_as


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

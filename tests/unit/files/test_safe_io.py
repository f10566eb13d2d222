"""Files that are written whole: by a rename, and once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.files import safe_io


def test_a_new_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert safe_io.create(path, b"first") == path
    with pytest.raises(FileExistsError):
        safe_io.create(path, b"second")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, [each.name for each in tmp_path.iterdir()]) == (
        b"first", 0o600, ["a"],
    )  # fmt: skip


def test_a_request_that_was_sent_again_has_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: Path, target: Path) -> None:  # NFS: the first answer is lost
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert safe_io.create(tmp_path / "a", b"mine").read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(PermissionError):
        safe_io.create(tmp_path / "a", b"text")
    assert not list(tmp_path.iterdir())

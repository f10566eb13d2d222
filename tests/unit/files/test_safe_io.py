"""Files that are written whole: by a rename, and once."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
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


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EIO])
def test_a_file_is_made_once_without_hard_links_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            safe_io.create(tmp_path / "a", b"text")
        assert not list(tmp_path.iterdir())
        return
    assert safe_io.create(tmp_path / "a", b"first").read_bytes() == b"first"
    with pytest.raises(FileExistsError):
        safe_io.create(tmp_path / "a", b"second")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a", b"first")]


def test_a_file_that_is_made_without_hard_links_is_gone_if_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def full(descriptor: int, mode: str) -> Iterator[None]:
        os.close(descriptor)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield

    def no_links(source: Path, target: Path) -> None:
        monkeypatch.setattr(safe_io, "open", full, raising=False)
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(OSError, match="No space left"):
        safe_io.create(tmp_path / "a", b"text")
    assert not list(tmp_path.iterdir())

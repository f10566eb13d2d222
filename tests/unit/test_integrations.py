"""What callbacks for other people's trainers decide, and what is told where a package is missing."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import pytest
import torch

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import CannotRead
from launcher.integrations import trainers
from launcher.integrations.trainers import leaves, newest, numbers


def test_numbers_are_taken_out_of_tensors_too() -> None:
    values = {"loss": torch.tensor(0.5), "many": torch.zeros(2), "steps": 3, "text": "x", "none": None, "one": [1]}
    assert numbers({**values, "f1": numpy.float32(0.25)}) == {"loss": 0.5, "steps": 3.0, "f1": 0.25}


@pytest.mark.parametrize(
    ("stop", "step", "total", "expected"),
    [(None, 3, 9, False), ("x", 3, 9, True), ("x", 3, 0, True), ("x", 9, 9, False), (None, 9, 9, False)],
)
def test_who_is_at_the_end_anyway_does_not_leave_before(
    stop: str | None, step: int, total: int, expected: bool
) -> None:
    assert leaves(stop, step, total) is expected


@pytest.mark.parametrize("package", ["lightning", "transformers"])
def test_a_missing_package_is_an_error_with_what_to_type(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"launcher.integrations.{package}", raising=False)
    with pytest.raises(ImportError, match=rf"needs the package {package}: pip install 'launcher\[{package}\]'"):
        importlib.import_module(f"launcher.integrations.{package}")


# -- the checkpoint that was completed last


LAST_FILES = "last", "of another kind"
NAMES = r"c-\d+"


@pytest.fixture(autouse=True)
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "CHECKPOINT", replace(trainers.CHECKPOINT, read_timeout=0))


def is_whole(file: BinaryIO) -> bool:
    return file.read() == b"whole"


def checkpoint(path: Path, last: str | None = "last", content: str = "whole", at: int = 0, changed: int = 0) -> None:
    """A folder whose file that is written last is of one date, and the folder itself of another."""
    path.mkdir()
    if last is not None:
        (path / last).write_text(content)
        os.utime(path / last, (at, at))
    os.utime(path, (changed, changed))


def found(folder: Path) -> str | None:
    path = newest(folder, NAMES, LAST_FILES, is_whole)
    return None if path is None else path.name


def test_the_checkpoint_that_was_completed_last_is_the_newest(tmp_path: Path) -> None:
    assert found(tmp_path / "none") is None
    assert found(tmp_path) is None
    checkpoint(tmp_path / "c-8", at=1, changed=9)  # its removal has begun
    assert found(tmp_path) == "c-8"
    checkpoint(tmp_path / "c-3", "of another kind", at=2)  # the training has gone back
    assert found(tmp_path) == "c-3"
    checkpoint(tmp_path / "c-4", None, changed=8)
    checkpoint(tmp_path / "c-5", content="cut", at=7)
    checkpoint(tmp_path / ".c-6", at=6)
    (tmp_path / "c-7").symlink_to("removed")
    (tmp_path / "c-9").write_text("a file, and not a whole one")
    assert found(tmp_path) == "c-3"
    checkpoint(tmp_path / "c-10", at=2)  # of the same date
    assert found(tmp_path) == "c-10"
    (tmp_path / "elsewhere").write_text("whole")
    (tmp_path / "c-2").symlink_to("elsewhere")
    assert found(tmp_path) == "c-2"


def fails(function: Callable[[Path], Any], name: str, number: int) -> Callable[[Path], Any]:
    def call(path: Path) -> Any:
        if path.name == name:
            raise OSError(number, os.strerror(number))
        return function(path)

    return call


@pytest.mark.parametrize(("call", "name"), [("_entries", "checkpoints"), ("_open", "last")])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_cannot_be_read_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str, number: int
) -> None:
    (tmp_path / "checkpoints").mkdir()
    checkpoint(tmp_path / "checkpoints" / "c-8", "of another kind", at=1)
    checkpoint(tmp_path / "checkpoints" / "c-9", at=2)
    monkeypatch.setattr(checkpoints, call, fails(getattr(checkpoints, call), name, number))
    with pytest.raises(CannotRead) as raised:
        found(tmp_path / "checkpoints")
    assert raised.value.exit_code == 75 and os.strerror(number) in str(raised.value)


class Readable(io.FileIO):
    """A file of which only the beginning can be read."""

    def readinto(self, buffer: Any) -> int | None:
        if self.tell():
            raise OSError(errno.EIO, "no answer")
        return super().readinto(buffer)


def test_what_zipfile_cannot_read_is_not_taken_for_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment, name in enumerate(("c-8", "c-9")):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("data", "x" * 1_000_000)
        os.utime(tmp_path / name, (moment, moment))
    real = checkpoints._open
    monkeypatch.setattr(checkpoints, "_open", lambda path: Readable(path) if path.name == "c-9" else real(path))
    with pytest.raises(CannotRead, match="no answer"):
        newest(tmp_path, NAMES, LAST_FILES, lambda file: file.read(2) == b"PK" and zipfile.is_zipfile(file))

"""What the system refuses is told with its place and a cure; a defect of ours keeps its traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher import __main__ as command_line
from launcher.cli import commands
from launcher.errors import explain, near
from launcher.files.safe_io import naming


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "", "/runs/a"), ("/runs/a: No space left", "make room", "runs_dir=DIR")),
        (OSError(errno.EDQUOT, "", "/runs/a"), ("/runs/a: Disk quota exceeded", "quota -s")),
        (OSError(errno.ENOSPC, ""), ("the output of this command or a file: No space left",)),
        (PermissionError(errno.EACCES, "", "/runs"), ("/runs: Permission denied (EACCES)", "ls -ld")),
        (OSError(errno.EROFS, "", "/runs"), ("Read-only file system", "runs_dir=DIR")),
        (OSError(errno.EMFILE, "", "/runs"), ("ulimit -n",)),
        (BlockingIOError(errno.EAGAIN, ""), ("ulimit -u",)),
        (OSError(errno.EIO, "", "/runs"), ("/runs: Input/output error", "later")),
        (OSError(errno.ESTALE, "", "/runs"), ("Stale file handle", "later")),
        (FileNotFoundError(errno.ENOENT, "", "/runs/a"), ("/runs/a: No such file", "it was removed")),
        (OSError(errno.EEXIST, "", "/runs/a", None, "/runs/b"), ("/runs/a, /runs/b: File exists",)),
        (TimeoutError("timed out"), ("timed out: try later",)),
        # What nobody but a programmer can mend.
        (OSError(errno.EBADF, ""), None),
        (OSError(errno.EINVAL, "", "/runs"), None),
        (FileNotFoundError(errno.ENOENT, ""), None),
        (OSError("no number"), None),
    ],
)  # fmt: skip
def test_an_error_of_the_system_in_words(error: OSError, words: tuple[str, ...] | None) -> None:
    found = explain(error)
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert [each for each in words if each not in found] == []


@pytest.mark.parametrize(
    ("word", "known", "first"),
    [
        ("train.py", "train.sh setup.py eval.py train2.py utils.py", "train2.py"),
        ("ddp.mnist-20261130-1", "ddp.other-20261130-1 ddp_mnist-20261130-1", "ddp_mnist-20261130-1"),
        ("model.head.weight", "model.head.bias model.norm.weight model.heads.weight", "model.heads.weight"),
    ],
)
def test_a_name_that_is_no_key_is_compared_as_a_whole(word: str, known: str, first: str) -> None:
    assert near(word, known.split()).startswith(f" Did you mean {first}")


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"report\.html") as caught, naming(tmp_path / "report.html"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "report.html")
    with pytest.raises(OSError, match=r"other") as caught, naming(tmp_path / "report.html"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "other")
    assert caught.value.filename == "other"


def test_the_command_line_shows_an_error_and_of_a_defect_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(error: Exception) -> None:
        def run(_: list[str]) -> int:
            raise error

        monkeypatch.setattr(commands, "main", run)

    fails(OSError(errno.ENOSPC, "", "/runs/a"))
    assert command_line.main([]) == 1
    assert capsys.readouterr().err.startswith("launcher: /runs/a: No space left on device (ENOSPC): make room there")
    for error in (OSError(errno.EBADF, ""), KeyError("no such key")):
        fails(error)
        with pytest.raises(type(error)):
            command_line.main([])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    fails(OSError(errno.ENOSPC, "", "/runs/a"))
    with pytest.raises(OSError, match="/runs/a"):
        command_line.main([])

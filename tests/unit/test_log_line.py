"""The launcher's own lines in the output of jobs and ranks."""

from __future__ import annotations

import errno
import io

import pytest

from launcher.formatting import log_line


def test_a_line_goes_to_the_errors_unless_another_stream_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    other = io.StringIO()
    log_line("one")
    log_line("two", other)
    assert (capsys.readouterr(), other.getvalue()) == (("", "launcher: one\n"), "launcher: two\n")


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_end_the_work() -> None:
    log_line("lost", Full())

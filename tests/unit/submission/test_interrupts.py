"""Ctrl-C while this very process writes to its terminal."""

from __future__ import annotations

import io
import signal
import sys
from typing import Any

import pytest

from launcher.cli.wait import ctrl_c
from launcher.submission.submit import delayed_interrupt


class Interrupted(io.RawIOBase):
    """A terminal whose user presses Ctrl-C while something is written to it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        return len(data)


def prints_and_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as here:
        here.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Interrupted())))
        print("step 3/10", file=sys.stderr, flush=True)


def test_ctrl_c_in_the_middle_of_a_write_ends_the_run_and_again_kills_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cancelled: list[bool] = []
    with ctrl_c(True, cancelled.append):
        prints_and_is_interrupted(monkeypatch)
        assert cancelled == [False]
        prints_and_is_interrupted(monkeypatch)
    assert cancelled == [False, True]
    assert capfd.readouterr().err == "launcher: stopping; Ctrl-C again kills\nlauncher: killing\n"


def test_ctrl_c_in_the_middle_of_a_write_waits_for_the_submission(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with delayed_interrupt() as noted:
        prints_and_is_interrupted(monkeypatch)
    assert noted == [signal.SIGINT]
    assert "waiting for the scheduler's answer" in capfd.readouterr().err

"""A process is known again by its start time, and never taken for another one that has its id."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.processes import Process
from launcher.runs.directory import Run
from launcher.runs.events import ProcessStarted, Submitted
from launcher.runs.history import process_of


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The leader of a process group, under a name that is hard to read in /proc."""
    (tmp_path / "x) R 1 (y").symlink_to("/bin/sleep")
    process = subprocess.Popen([tmp_path / "x) R 1 (y", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_lives_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    assert process.alive()
    sleeper.kill()
    signalled = sleeper.pid
    with open(f"/proc/{signalled}/stat") as stat:  # until it is waited for it is a zombie, which is not alive either
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            stat.seek(0)
    assert not process.alive()
    sleeper.wait()
    assert not process.alive()
    process.signal(signal.SIGTERM)  # nobody is left to hear it, which is no error


def test_a_signal_reaches_the_whole_group() -> None:
    leader = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    child = Process.of(int(leader.stdout.readline()))
    Process.of(leader.pid).signal(signal.SIGTERM)
    assert leader.wait() == -signal.SIGTERM
    assert leader.stdout.read() == b""  # nobody holds the pipe any more
    assert not child.alive()


def test_another_process_with_the_same_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    for other in (replace(process, start=process.start + 1), replace(process, host="elsewhere")):
        assert not other.alive()
        other.signal(signal.SIGKILL)
    assert process.alive()


def test_it_is_found_again_in_the_journal(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process, run = Process.of(sleeper.pid), Run(tmp_path)
    assert process_of(run) is None
    for event in (
        ProcessStarted(pid=1, start=2, host="h"), ProcessStarted(**asdict(process)), Submitted(job="7")
    ):  # fmt: skip
        run.journal(event)
    assert process_of(run) == process
    assert (process.host, process.here()) == (socket.gethostname(), True)


def test_a_process_that_is_gone_already_is_not_alive() -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    assert not Process.of(gone.pid).alive()

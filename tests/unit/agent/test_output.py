"""The output of ranks on the agent's own: whole lines, none held back for ever, nothing missing without a word."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import workers
from launcher.agent.workers import Forwarder


class Files:
    """Two ranks' files, what is copied of them, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.copies = [os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("copy.out", "copy.err")]
        self.forwarder = Forwarder(*self.copies, clock=self.clock)
        for rank in (0, 11):
            paths = [folder / f"{rank}.{kind}" for kind in ("out", "err")]
            for path in paths:
                path.touch()
            self.forwarder.add(rank, *(os.open(path, os.O_RDONLY) for path in paths), paths)

    def clock(self) -> float:
        self.now += 1e-6  # so that nothing waits for ever
        return self.now

    def write(self, name: str, data: bytes) -> None:
        with open(self.folder / name, "ab") as file:
            file.write(data)

    def copied(self, kind: str = "out") -> bytes:
        return (self.folder / f"copy.{kind}").read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.forwarder.finish(timeout=0)
    for descriptor in made.copies:
        os.close(descriptor)


def test_each_line_has_its_rank(files: Files) -> None:
    files.write("0.out", b"one\ntwo\n")
    files.write("11.out", b"three\n")
    files.write("11.err", b"oh\n\n")
    assert files.forwarder.forward() is False
    assert files.copied() == b"[0] one\n[0] two\n[11] three\n"
    assert files.copied("err") == b"[11] oh\n[11] \n"
    files.forwarder.forward()
    assert files.copied() == b"[0] one\n[0] two\n[11] three\n"


def test_a_line_is_shown_whole(files: Files) -> None:
    files.write("0.out", b"one, ")
    files.forwarder.forward()
    assert files.copied() == b""
    files.write("0.out", b"two\nthr")
    files.forwarder.forward()
    assert files.copied() == b"[0] one, two\n"
    files.forwarder.finish()
    assert files.copied() == b"[0] one, two\n[0] thr\n"


def test_a_line_that_has_no_end_is_not_held_back_for_ever(files: Files) -> None:
    files.write("0.err", b"reading ... ")
    files.forwarder.forward()
    files.now += workers.STALE
    files.forwarder.forward()
    assert files.copied("err") == b"[0] reading ... \n"
    files.write("0.err", b"done\n")
    files.forwarder.forward()
    assert files.copied("err") == b"[0] reading ... \n[0] done\n"


@pytest.mark.parametrize("pieces", [[b"\r  0%\r 50%", b"\r100%\n"], [b"  0%\r", b" 50%\r", b"100%\r\n"]])
def test_of_a_progress_bar_a_state_is_shown_now_and_then_and_the_last_one_as_a_line(
    files: Files, pieces: list[bytes]
) -> None:
    for piece in pieces:
        files.write("0.err", piece)
        files.forwarder.forward()
    copied = files.copied("err")
    assert copied.endswith(b"%\r[0] 100%\n")
    assert copied.count(b"\r") == 1  # no second has passed


def test_a_progress_bar_of_an_hour_takes_a_state_a_second(files: Files) -> None:
    for tenth in range(600):
        files.now = tenth / 10
        files.write("0.err", b"\r%3d%%" % (tenth // 6))
        files.forwarder.forward()
    files.now += workers.STALE
    files.forwarder.forward()
    states = files.copied("err").split(b"\r")
    assert 55 <= len(states) <= 65
    assert states[-2:] == [b"[0]  99%", b""]  # that stands, and has not ended
    files.now += workers.STALE
    files.forwarder.forward()
    assert files.copied("err").split(b"\r") == states
    files.write("0.err", b"\n")
    files.forwarder.forward()
    assert files.copied("err").endswith(b"\r[0]  99%\n")


def test_a_progress_bar_that_never_ended_its_line_is_kept(files: Files) -> None:
    files.write("0.err", b"\r 10%\r 20%\r")
    files.forwarder.finish()
    assert files.copied("err") == b"[0]  20%\r[0]  20%\n"


def test_much_output_is_copied_in_pieces(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "READ", 8)
    monkeypatch.setattr(workers, "MOST", 16)
    files.write("0.out", b"0123456\n" * 4)
    assert files.forwarder.forward() is True
    assert files.copied() == b"[0] 0123456\n" * 2
    files.forwarder.finish()
    assert files.copied() == b"[0] 0123456\n" * 4


def test_who_prints_much_does_not_hold_up_the_others(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "READ", 8)
    monkeypatch.setattr(workers, "MOST", 16)
    files.write("0.out", b"0123456\n" * 100)
    files.write("11.out", b"here\n")
    files.forwarder.forward()
    assert b"[11] here\n" in files.copied()


@pytest.mark.parametrize("size", [1_000, 10_000])
def test_each_call_takes_the_same_work_however_much_was_printed(
    files: Files, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "READ", 80)
    monkeypatch.setattr(workers, "MOST", 800)
    reads, pread = [0], os.pread

    def counted(*arguments: int) -> bytes:
        reads[0] += 1
        return pread(*arguments)

    monkeypatch.setattr(workers.os, "pread", counted)
    files.write("0.out", b"0123456\n" * size)
    calls = 0
    while files.forwarder.forward():
        calls += 1
    assert calls == size // 100
    assert reads[0] / calls <= 4 * 10 + 8  # one for each of the four files


def test_what_there_is_no_time_for_is_named_and_the_last_lines_are_copied(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "READ", 64)
    monkeypatch.setattr(workers, "TAIL", 64)
    monkeypatch.setattr(workers, "MOST", 64)
    files.write("0.out", b"".join(b"line %d\n" % number for number in range(1000)))
    files.write("11.err", b"ValueError: no")
    files.forwarder.finish(timeout=0)
    lines = files.copied().decode().splitlines()
    assert lines[-1] == "[0] line 999"
    (notice,) = (place for place, line in enumerate(lines) if "is missing here" in line)
    assert lines[notice].endswith(f"of this rank's output is missing here: all of it is in {files.folder}/0.out")
    assert all(re.fullmatch(r"\[0\] line \d+", line) for line in [*lines[:notice], *lines[notice + 1 :]])
    assert files.copied("err") == b"[11] ValueError: no\n"


def test_what_a_full_disk_did_not_take_is_written_later(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [10]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not (count := min(room[0], len(data))):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= count
        return write(descriptor, data[:count])

    monkeypatch.setattr(workers.os, "write", nearly_full)
    for number in range(3):
        files.write("0.out", b"line %d\n" % number)
        files.forwarder.forward()
    assert files.forwarder.forward() is False
    assert files.copied() == b"[0] line 0"
    room[0] = 1 << 20
    files.forwarder.forward()
    assert files.copied() == b"[0] line 0\n[0] line 1\n[0] line 2\n"


def test_a_reader_that_is_slow_is_not_waited_for(tmp_path: Path) -> None:
    there, here = os.pipe()
    (tmp_path / "out").write_bytes(b"0123456\n" * 20_000)
    (tmp_path / "err").touch()
    forwarder = Forwarder(here, 2, clock=lambda: 0.0)
    paths = [tmp_path / "out", tmp_path / "err"]
    forwarder.add(3, *(os.open(path, os.O_RDONLY) for path in paths), paths)
    assert forwarder.forward() is True  # the pipe takes 64 KiB
    assert forwarder.forward() is False
    read = b""
    while len(read) < 20_000 * 12:
        read += os.read(there, 1 << 20)
        forwarder.forward()
    assert read == b"[3] 0123456\n" * 20_000
    forwarder.finish()
    os.close(there)
    os.close(here)


def test_without_a_reader_the_work_goes_on(tmp_path: Path) -> None:
    there, here = os.pipe()
    os.close(there)
    (tmp_path / "out").write_bytes(b"0123456\n")
    forwarder = Forwarder(here, here)
    forwarder.add(3, *(os.open(tmp_path / "out", os.O_RDONLY) for _ in range(2)), [tmp_path / "out"] * 2)
    assert forwarder.forward() is False
    forwarder.finish()
    os.close(here)


def test_through_a_slow_reader_each_rank_has_its_turn(tmp_path: Path) -> None:
    there, here = os.pipe()
    forwarder = Forwarder(here, 2, clock=lambda: 0.0)
    for rank, text in enumerate([b"0123456\n" * 100_000, b"here\n"]):
        (tmp_path / f"{rank}").write_bytes(text)
        descriptors = [os.open(path, os.O_RDONLY) for path in (tmp_path / f"{rank}", os.devnull)]
        forwarder.add(rank, *descriptors, [tmp_path / f"{rank}", Path(os.devnull)])
    read = b""
    for _ in range(6):
        forwarder.forward()
        read += os.read(there, 1 << 16)
    assert b"[1] here\n" in read
    os.close(there)
    forwarder.finish()
    os.close(here)

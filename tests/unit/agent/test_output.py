"""The output of ranks on the agent's own: whole lines, none held back for ever, and nobody is waited for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import output
from launcher.agent.output import Forwarder


class Files:
    """Two ranks' files, what is copied of them, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.copies = [os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("copy.out", "copy.err")]
        self.forwarder = Forwarder(*self.copies, clock=lambda: self.now)
        for rank in (0, 11):
            for kind in ("out", "err"):
                (folder / f"{rank}.{kind}").touch()
            self.forwarder.add(rank, *(os.open(folder / f"{rank}.{kind}", os.O_RDONLY) for kind in ("out", "err")))

    def write(self, name: str, data: bytes) -> None:
        with open(self.folder / name, "ab") as file:
            file.write(data)

    def copied(self, kind: str = "out") -> bytes:
        return (self.folder / f"copy.{kind}").read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.forwarder.finish()
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
    files.now += output.STALE
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
    files.now += output.STALE
    files.forwarder.forward()
    states = files.copied("err").split(b"\r")
    assert 55 <= len(states) <= 65
    assert states[-2:] == [b"[0]  99%", b""]  # that stands, and has not ended
    files.now += output.STALE
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
    monkeypatch.setattr(output, "READ", 10)
    files.write("0.out", b"0123456\n" * 4)
    assert files.forwarder.forward() is True
    assert files.copied() == b"[0] 0123456\n"
    files.forwarder.finish()
    assert files.copied() == b"[0] 0123456\n" * 4


def test_a_line_that_is_too_long_is_cut(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LONGEST_LINE", 10)
    files.write("0.out", b"x" * 25)
    files.forwarder.forward()
    files.write("0.out", b"y\n")
    files.forwarder.forward()
    assert files.copied() == b"[0] " + b"x" * 25 + b"\n[0] y\n"


def test_a_reader_that_is_slow_is_not_waited_for(tmp_path: Path) -> None:
    there, here = os.pipe()
    (tmp_path / "out").write_bytes(b"0123456\n" * 20_000)
    (tmp_path / "err").touch()
    forwarder = Forwarder(here, 2)
    forwarder.add(3, os.open(tmp_path / "out", os.O_RDONLY), os.open(tmp_path / "err", os.O_RDONLY))
    for _ in range(10):
        forwarder.forward()  # the pipe takes 64 KiB
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
    forwarder.add(3, *(os.open(tmp_path / "out", os.O_RDONLY) for _ in range(2)))
    assert forwarder.forward() is False
    forwarder.finish()
    os.close(here)

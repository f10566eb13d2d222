"""What attempts printed: which part of which file, read in pieces, from its end, and by rank."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.errors import UnavailableError
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs import output_files as printed
from launcher.runs.directory import Run
from launcher.runs.output_files import Part, Stream, file_names, lines_of, parts_of, read, start_of_last
from tests.unit.faults import FileServer

A, B = Path("/r/output-7.log"), Path("/r/output-8.log")


def make(tmp_path: Path) -> Run:
    run = Run(tmp_path / "a")
    run.path.mkdir()
    return run


def begin(run: Run, number: int, job: str, output: int | None) -> None:
    """Attempt `number` begins, after so many bytes of its job's output."""
    events = run.path / "attempts" / str(number) / "events"
    events.mkdir(parents=True)
    event_files.append(
        events / "script.jsonl", kinds.Started(job=job, **({} if output is None else {"output": output}))
    )


def write(run: Run, text: str, job: str = "7") -> None:
    with open(run.path / f"output-{job}.log", "a") as file:
        file.write(text)


def told(stream: Stream, last: bool = False) -> str:
    """What is new, with times that are none."""
    return re.sub(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d ---", "12:03 ---", b"".join(stream.new(last)).decode())


# -- where


@pytest.mark.parametrize(
    ("starts", "parts"),
    [
        ({}, [Part(A, job="7", began=5.0), Part(B, job="8", began=6.0)]),
        (
            {0: kinds.Started(job="7", time=1.0, output=30)},
            [Part(A, 0, None, 0, "7", 1.0), Part(B, job="8", began=6.0)],
        ),
        (
            {
                1: kinds.Started(job="7", time=2.0, output=30),
                0: kinds.Started(job="7", time=1.0, output=3),
                2: kinds.Started(job="8", time=3.0),
            },
            [Part(A, 0, 30, 0, "7", 1.0), Part(A, 30, None, 1, "7", 2.0), Part(B, 0, None, 2, "8", 3.0)],
        ),
    ],
)
def test_the_parts_of_the_output(starts: dict[int, kinds.Started], parts: list[Part]) -> None:
    assert parts_of(starts, [(A, 5.0), (B, 6.0)]) == parts


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("17", "output-17.log"),
        ("17_3", "output-17_3.log"),
        ("local-launcher-1a2b", "output-local-launcher-1a2b.log"),
        ("136.pbs-srv", "136.pbs-srv.OU"),
        ("150.pbs-srv_5", "150[5].pbs-srv.OU"),
        ("12_0", "output-12_1.log"),  # Grid Engine counts from 1
    ],
)
def test_the_output_file_of_a_job(job: str, name: str) -> None:
    assert name in file_names(job)


def test_a_heading_tells_attempt_job_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    still = SimpleNamespace(localtime=lambda moment=now: time.localtime(moment), strftime=time.strftime)
    monkeypatch.setattr(printed, "time", still)
    moment = time.strftime("%H:%M", time.localtime(now))
    assert Part(A, attempt=1, job="17", began=now).heading == f"--- attempt 1, job 17, {moment} ---"
    assert Part(A, attempt=1, job="17.pbs-srv", began=now).heading == f"--- attempt 1, job 17, {moment} ---"
    assert Part(A, attempt=2, job="local-launcher-1a", began=now).heading == f"--- attempt 2, {moment} ---"
    assert Part(A, job="17", began=0.0).heading.startswith("--- job 17, 19")


# -- reading

LINES = st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=12)


@given(lines=LINES, half=st.booleans(), block=st.integers(1, 20), last=st.booleans())
def test_whole_lines_are_read_in_pieces(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], half: bool,
                                        block: int, last: bool) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("read") / "file"
    text = b"".join(line + b"\n" for line in lines)
    path.write_bytes(text + (b"half" if half else b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed, "BLOCK", block)
        pieces = list(read(path, 0, None, last=last))
        assert b"".join(read(path, 0, len(text), last=False)) == text
    assert b"".join(pieces) == text + (b"half" if half and last else b"")
    assert all(piece.endswith((b"\n", b"\r")) for piece in pieces[:-1])


def test_a_line_that_does_not_end_is_shown_when_it_is_long(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (io_bounds.OUTPUT_LINE_BYTES + printed.BLOCK))
    assert b"".join(read(tmp_path / "file", 0, None, last=False)).startswith(b"x" * io_bounds.OUTPUT_LINE_BYTES)


@given(lines=LINES, half=st.booleans(), block=st.integers(1, 20), count=st.integers(1, 15))
def test_the_last_lines_are_found_from_the_end(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes],
                                               half: bool, block: int, count: int) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("last") / "file"
    before = b"not this\n"
    text = before + b"".join(line + b"\n" for line in lines) + (b"half" if half else b"")
    path.write_bytes(text)
    all_of_it = [*lines, *([b"half"] if half else [])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed, "BLOCK", block)
        start, found = start_of_last(path, len(before), None, count)
    assert found == min(count, len(all_of_it))
    assert text[start:].removesuffix(b"\n").split(b"\n")[:found] == all_of_it[len(all_of_it) - found :][:found]


def test_lines_of_ranks() -> None:
    text = b"[1] a\n[11] b\nlauncher: [1] c\n[2] d\n[1] e"
    assert lines_of([1]).findall(text) == [b"[1] a\n", b"[1] e"]
    assert lines_of([2, 11]).findall(text) == [b"[11] b\n", b"[2] d\n"]
    bars = b"[0]  1%\r[1]  2%\r[0] [1]\n[1]  3%\r[1] done\n"
    assert lines_of([1]).findall(bars) == [b"[1]  2%\r", b"[1]  3%\r", b"[1] done\n"]


# -- a run's


def test_attempts_of_one_job_are_told_apart(tmp_path: Path) -> None:
    run = make(tmp_path)
    write(run, "waits\n[0] a\n")
    begin(run, 0, "7", 6)
    stream = Stream(run)
    assert told(stream) == "waits\n[0] a\n"
    write(run, "[0] b\nhal")
    assert told(stream) == "[0] b\n"
    write(run, "f\n")
    size = (run.path / "output-7.log").stat().st_size
    begin(run, 1, "7", size)
    write(run, "[0] c\n")
    assert told(stream) == "half\n--- attempt 1, job 7, 12:03 ---\n[0] c\n"
    assert told(stream) == ""
    assert told(Stream(run, attempt=1)) == "[0] c\n"
    assert told(Stream(run, attempt=0)) == "waits\n[0] a\n[0] b\nhalf\n"


def test_a_file_that_the_scheduler_is_moving_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "outputs", lambda _: [tmp_path / "7.OU"])
    stream = Stream(Run(tmp_path))
    assert told(stream) == ""
    (tmp_path / "7.OU").write_text("here\n")
    assert told(stream) == "here\n"


def test_attempts_of_several_jobs_follow_each_other(tmp_path: Path) -> None:
    run = make(tmp_path)
    begin(run, 0, "7", 0)
    write(run, "[0] a\n[1] a\nhalf", job="7")
    begin(run, 1, "8", 0)
    stream = Stream(run, ranks=[0, 2])
    write(run, "[0] b\n[2] b", job="8")
    assert told(stream) == "[0] a\n--- attempt 1, job 8, 12:03 ---\n[0] b\n"
    assert told(stream, last=True) == "[2] b"
    assert told(Stream(run), last=True) == (
        "[0] a\n[1] a\nhalf\n--- attempt 1, job 8, 12:03 ---\n[0] b\n[2] b"
    )  # fmt: skip


def test_an_attempt_that_begins_is_told_before_it_prints(tmp_path: Path) -> None:
    run = make(tmp_path)
    begin(run, 0, "7", 0)
    write(run, "[0] a\n")
    stream = Stream(run)
    told(stream)
    begin(run, 1, "7", 6)
    assert told(stream) == "--- attempt 1, job 7, 12:03 ---\n"
    write(run, "[0] b\n")
    assert told(stream) == "[0] b\n"


def test_what_is_known_is_skipped(tmp_path: Path) -> None:
    run = make(tmp_path)
    begin(run, 0, "7", 0)
    write(run, "[0] a\n")
    stream = Stream(run)
    stream.skip()
    assert told(stream) == ""
    begin(run, 1, "8", 0)
    write(run, "[0] b\n", job="8")
    assert told(stream) == "--- attempt 1, job 8, 12:03 ---\n[0] b\n"


@pytest.mark.parametrize(
    ("count", "ranks", "shown"),
    [
        (1, (), "[1] d\n"),
        (2, (), "[0] c\n[1] d\n"),
        (3, (), "[1] b\n--- attempt 1, job 8, 12:03 ---\n[0] c\n[1] d\n"),
        (9, (), "[0] a\n[1] b\n--- attempt 1, job 8, 12:03 ---\n[0] c\n[1] d\n"),
        (1, (0, 2), "[0] c\n"),
        (2, (0, 2), "[0] a\n--- attempt 1, job 8, 12:03 ---\n[0] c\n"),
    ],
)
def test_the_last_lines_of_all_attempts(tmp_path: Path, count: int, ranks: tuple[int, ...], shown: str) -> None:
    run = make(tmp_path)
    begin(run, 0, "7", 0)
    write(run, "[0] a\n[1] b\n")
    begin(run, 1, "8", 0)
    write(run, "[0] c\n[1] d\n", job="8")
    stream = Stream(run, ranks=ranks)
    stream.skip_to_last(count)
    assert told(stream, last=True) == shown


@pytest.mark.parametrize(
    ("part", "why"),
    [("attempts", r" cannot be read now: .* \(EIO\)"), ("output-7.log", r": .* \(EIO\): nothing answers")],
)
def test_a_folder_that_cannot_be_read_now_is_an_error_at_the_end_and_read_later_before(
    part: str, why: str, tmp_path: Path, server: FileServer
) -> None:
    run = make(tmp_path)
    begin(run, 0, "7", 0)
    write(run, "[0] a\n")
    stream = Stream(run)
    server.fail(run.path / part)
    assert told(stream) == ""
    with pytest.raises(UnavailableError, match=f"^{run.path}/{part}{why}"):
        told(stream, last=True)
    server.recover()
    assert told(stream) == "[0] a\n"


def not_now(path: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def test_output_that_cannot_be_read_now_is_an_error_at_the_end_and_read_later_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path)
    begin(run, 0, "7", 0)
    write(run, "[0] a\n")
    stream = Stream(run)
    assert told(stream) == "[0] a\n"
    write(run, "[0] b\n")
    with monkeypatch.context() as patch:
        patch.setattr(printed.safe_io, "open_regular", not_now)
        assert told(stream) == ""
        with pytest.raises(UnavailableError, match=r"output-7\.log cannot be read now"):
            told(stream, last=True)
    assert told(stream, last=True) == "[0] b\n"

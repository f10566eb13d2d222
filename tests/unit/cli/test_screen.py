"""What reaches the terminal: no escape sequence of a folder's name, a log or a scheduler."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.cli.progress_bars import Bars
from launcher.formatting import Screen, clean, cleaned, coloured, one_line, raw, write_output
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from tests.unit.cli.test_hostile_files import sample
from tests.unit.sweep_runs import begin, make_sweep

TITLE, CLIPBOARD, ABOVE, LINK = "\x1b]0;gone\x07", "\x1b]52;c;cm0=\x1b\\", "\x1b[2A\x1b[2K", "\x1b]8;;http://x\x1b\\"
SEQUENCES = [
    TITLE, CLIPBOARD, ABOVE, LINK, "\x1bPq\x1b\\", "\x1b_x\x1b\\", "\x1b^x\x07", "\x1bc", "\x1b[?1049h", "\x9b2J",
    "\b\b",
    "\x1b]0;no end", "\x7f", "\x00", "\x1b",
]  # fmt: skip


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_no_sequence_is_left(sequence: str) -> None:
    for function in (clean, coloured, one_line):
        left = function(f"a{sequence}")
        assert left.isprintable(), left
        assert left.startswith("a")


def test_line_breaks_tabs_and_colours() -> None:
    text = "a\tb\n\x1b[1;31mred\x1b[0m 10%\r20%"
    assert clean(text) == "a\tb\nred 10%20%"
    assert coloured(text) == text
    assert one_line(text) == "a b red 10%20%"


def test_a_sequence_in_two_parts_is_none() -> None:
    stream = io.StringIO()
    shown = Screen(stream)
    for part in ("\x1b", "]0;x", "\x07", "end\n"):
        shown.write(part)
    assert stream.getvalue() == "]0;xend\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_output_of_runs_has_colours_on_a_terminal_and_every_byte_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = f"\x1b[32mgreen\x1b[0m{TITLE}\n".encode()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with cleaned():
        write_output(data)
        assert raw(sys.stdout) is terminal
    assert terminal.getvalue() == "\x1b[32mgreen\x1b[0m\n"
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    binary = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", binary)
    with cleaned():
        write_output(data)
    assert binary.buffer.getvalue() == data  # type: ignore[attr-defined]


def test_bars_show_texts_as_they_are() -> None:
    terminal = Terminal()
    bars = Bars(terminal, keep=True)
    with bars.bars:
        bars.print(f"[red]x[/red]{TITLE}{CLIPBOARD}{LINK}")
        bars.show("step", 1, 2, f"[link=http://x]a[/link]{TITLE}")
    shown = terminal.getvalue()
    assert "gone" not in shown
    assert "]52;" not in shown
    assert "http://x\x1b" not in shown
    assert "[red]x[/red]" in shown


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has a word that acts upon a terminal for each job."""
    jobs = {
        job: SchedulerJob(job, JobState.PENDING, f"PENDING{TITLE}", f"Reason{ABOVE}\nforged  done", time_left=60)
        for job in ("7", "100_0", "100_1")
    }
    monkeypatch.setattr(Slurm, "jobs", lambda *_: dict(jobs))
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})


@pytest.mark.parametrize("options", [[], ["--all"], ["--json"], ["NAME"]])
def test_names_and_words_of_schedulers(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    name = f"run{TITLE}{ABOVE}\n  forged"
    run = sample(tmp_path, name, job="7", code=None)
    event_files.append(
        run.path / "attempts/1/events/node-0.jsonl", kinds.Fault(error=f"x{CLIPBOARD}", rank=0, host="h")
    )
    words = [str(run.path) if each == "NAME" else each for each in options]
    assert main(["status", *words, "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "\x1b" not in text
        assert "\x07" not in text
    if "--json" not in options:
        assert not [line for line in shown.out.splitlines() if line.startswith("  forged")]


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, 2, name=f"lr{TITLE}")
    begin(sweep.run(0))
    assert main(["sweep", "status", str(sweep.path)]) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err


def test_errors_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", f"no{TITLE}such", "--runs-dir", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "launcher: no run" in shown.err
    assert "\x1b]0" not in shown.err
    assert not isinstance(sys.stdout, Screen)
    assert raw(sys.stdout) is sys.stdout


@pytest.mark.parametrize(
    ("encoding", "errors", "shown"),
    [("latin-1", "strict", b"10%|? \xe9\n"), ("ascii", "surrogateescape", b"10%|? ?\n")],  # Python's with LC_ALL=C
)
def test_a_terminal_that_lacks_a_character_shows_another_one(
    encoding: str, errors: str, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors, write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr("launcher.cli.commands.main", lambda _: print("10%|█ é") or 0)
    assert main([]) == 0
    assert stream.buffer.getvalue() == shown  # type: ignore[attr-defined]

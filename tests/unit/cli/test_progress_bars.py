"""How far something is: its rate, its words, and what is shown with and without a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import commands
from launcher.cli.progress_bars import (
    Bars,
    Lines,
    Rate,
    RunBars,
    of_download,
    of_training,
    on_terminal,
    shown,
)  # fmt: skip
from launcher.runs.events import Progress
from workloads import image_data


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rate_of(*seen: tuple[float, float], window: float = 30) -> Rate:
    rate = Rate(window)
    for moment, done in seen:
        rate.add(moment, done)
    return rate


# -- rates


@pytest.mark.parametrize(
    ("seen", "per_second", "left"),
    [
        ([], None, None),
        ([(0, 5)], None, None),
        ([(0, 0), (10, 20)], 2, 40),
        ([(0, 0), (10, 20), (5, 90)], 2, 40),  # known already
        ([(0, 0), (1000, 10), (1010, 30), (1040, 90)], 2, 5),  # what was long ago does not count
        ([(0, 50), (10, 60), (20, 10), (30, 20)], 1, 80),  # another attempt began
        ([(0, 50), (10, 50)], None, None),
        ([(0, 0), (12, 1), (13, 2), (15, 4)], 1, 96),  # the first step took longer than all others will
        ([(0, 50), (10, 120)], 7, 0),
    ],
)
def test_a_rate(seen: list[tuple[float, float]], per_second: float | None, left: float | None) -> None:
    rate = rate_of(*seen)
    assert (rate.per_second, rate.left(100)) == (per_second, left)


# -- words


@pytest.mark.parametrize(
    ("values", "seen", "words"),
    [
        ({}, [], "120/2200"),
        ({"loss": 0.00212, "op": "all_reduce"}, [], "120/2200  loss 0.00212  op all_reduce"),
        (
            {"epoch": 2, "loss": 0.5, "images_per_s": 26850},
            [(0, 100), (10, 120)],
            "120/2200  2 steps/s  26,850 images/s  17m left  epoch 2  loss 0.5",
        ),
        ({}, [(0, 119), (20, 120)], "120/2200  20 s/step  11h33m left"),
    ],
)
def test_words_of_a_training(values: dict[str, Any], seen: list[tuple[float, float]], words: str) -> None:
    event = Progress(time=1.0, step=120, total=2200, values=values)
    assert of_training(event, rate_of(*seen)) == words


def test_words_of_a_download() -> None:
    assert of_download(3_200_000, 9_900_000, rate_of((0, 0), (2, 3_200_000))) == (
        "3.1 MiB of 9.4 MiB  1.5 MiB/s  4s left"
    )  # fmt: skip


# -- what is shown


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = Lines(stream, 10, lambda: now[0])
    for moment, done, words in (
        (0, 0, "0 of 9"), (5, 1, "1 of 9  2/s"), (10, 2, "2 of 9  2/s"), (25, 2, "2 of 9  1/s"), (26, 9, "9 of 9"),
        (27, 9, "9 of 9  1/s"),
    ):  # fmt: skip
        now[0] = moment
        lines.show("file", done, 9, words)
    lines.show("other", 9, 9, "9 of 9")
    assert stream.getvalue().splitlines() == [
        "file: 0 of 9", "file: 2 of 9  2/s", "file: 9 of 9", "other: 9 of 9",
    ]  # fmt: skip


def test_lines_of_output_alone() -> None:
    stream = io.StringIO()
    with shown(stream, every=None) as show:
        show.show("step", 1, 2, "1/2")
        show.print("[0] hello")
    assert stream.getvalue() == "[0] hello\n"


@pytest.mark.parametrize(
    ("stream", "term", "drawn"),
    [(Terminal(), "xterm", True), (Terminal(), "dumb", False), (io.StringIO(), "xterm", False)],
)
def test_where_bars_are_drawn(
    stream: io.StringIO, term: str, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("TERM", term)
    assert on_terminal(stream) is drawn
    with shown(stream) as show:
        assert isinstance(show, Bars if drawn else Lines)


@pytest.mark.parametrize("no_color", [False, True])
def test_a_bar_fits_and_has_colours_unless_nobody_wants_them(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with shown(stream) as show:
        show.print("[0] \x1b[31mred\x1b[0m")
        show.show("step", 120, 2200, "120/2200  2 steps/s  26,850 images/s  17m left  epoch 2  loss 0.5  lr 0.0001")
    text = stream.getvalue()
    assert "120/2200  2 steps/s" in text and "[0] " in text
    assert ("\x1b[31m" in text) is not no_color
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]", plain))


def test_a_download_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fetch(dataset: image_data.Dataset, _: Any, mirrors: Any, progress: image_data.Progress) -> image_data.Found:
        for done in (1_000_000, 5_000_000, 9_900_000):
            progress("images.gz", done, 9_900_000)
        return image_data.Found(dataset.name, tmp_path, "just fetched", ())

    monkeypatch.setattr(image_data.Dataset, "fetch", fetch)
    assert commands.main(["data", "fetch", "mnist"]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "images.gz: 977 KiB of 9.4 MiB"
    assert len(rest) == 1 and rest[0].startswith("images.gz: 9.4 MiB of 9.4 MiB")


# -- bars of a run's own


def test_a_standing_bar_is_rewritten_on_a_terminal_and_makes_room_for_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "9")
    stream = Terminal()
    bars = RunBars(stream)
    for states in ([b"[0] 10%"], [b"[0] 10%"], [b"[0] 10%", b"[1] 20% of much"]):
        bars.show(states)
    bars.clear()
    stream.write("a line\n")
    bars.clear()
    bars.show([])
    assert stream.getvalue() == "\r[0] 10%\x1b[K\r[1] 20% \x1b[K\r\x1b[Ka line\n"


def test_a_standing_bar_is_a_line_now_and_then_elsewhere() -> None:
    now = 0.0
    stream = io.StringIO()
    bars = RunBars(stream, lambda: now)
    for second in range(25):
        now = float(second)
        bars.show([b"[0] %d%%" % second])
        bars.clear()
    assert stream.getvalue() == "[0] 10%\n[0] 20%\n"

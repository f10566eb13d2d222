"""`report`: where a browser would be seen, and what is read of a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli import report
from launcher.cli.report import has_browser
from launcher.reports import collect
from launcher.runs import event_files
from launcher.runs.directory import Attempt
from launcher.runs.events import Progress
from tests.unit.sweep_runs import end, make_sweep


@pytest.mark.parametrize(
    ("environ", "platform", "there"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"BROWSER": "code --open"}, "linux", True),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "a 1 b 2"}, "darwin", False),
        ({"SSH_CONNECTION": "a 1 b 2", "DISPLAY": "localhost:10.0"}, "linux", True),
    ],
)
def test_where_a_browser_has_a_screen(environ: dict[str, str], platform: str, there: bool) -> None:
    assert has_browser(environ, platform) is there


def test_of_a_sweep_only_the_events_of_points_with_curves_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path, 4, objective=("test.accuracy",), array=None)
    for index, accuracy in enumerate((0.5, 0.9, 0.7)):
        end(sweep.run(index), 0, metrics={"test": {"accuracy": accuracy}})
        for step in (1, 2):
            progress = Progress(step=step, total=2, values={"loss": 1 / (index + step)})
            event_files.append(sweep.run(index).attempts()[0].events_file("rank-0"), progress)
    read, events = [], Attempt.events
    monkeypatch.setattr(Attempt, "events", lambda self: read.append(self.run.path.name) or events(self))
    monkeypatch.setattr(collect, "MOST_CURVES", 2)
    page = report._sweep(sweep)
    assert read == ["1", "2"]
    assert [section.title for section in page.sections] == ["Points", "Training"]
    assert [row[:2] for row in page.sections[0].tables[0].rows] == [
        ("1", "done"), ("2", "done"), ("0", "done"), ("3", "waiting"),
    ]  # fmt: skip


def test_the_page_of_a_sweep_shows_no_secret(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 2, objective=("accuracy",), array=None)
    points = tuple((f"workload.lr={index}", f"workload.hub_token=hf_{index}") for index in range(2))
    sweep.write(replace(sweep.manifest(), points=points))
    for index in range(2):
        end(sweep.run(index), 0, metrics={"accuracy": index})
    text = str(report._sweep(sweep))
    assert "hf_" not in text
    assert "lr=1" in text and "workload.hub_token" in text

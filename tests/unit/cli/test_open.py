"""`open`: when a page is made anew, where a browser would be seen, and how the page gets to one's own machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.cli.browser import copy_command, has_browser
from launcher.cli.open import stale
from launcher.runs.directory import Run


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


@pytest.mark.parametrize(
    ("path", "environ", "command"),
    [
        ("/runs/r/report.html", {}, "scp me@login1:/runs/r/report.html ."),
        ("/runs/r/report.html", {"SSH_CONNECTION": "10.1.1.1 5 10.0.0.2 22"}, "scp me@10.0.0.2:/runs/r/report.html ."),
        ("/r/report.html", {"SSH_CONNECTION": "fe80::1 5 fe80::2 22"}, "scp 'me@[fe80::2]:/r/report.html' ."),
        ("/my runs/r/report.html", {"SSH_CONNECTION": "broken"}, "scp 'me@login1:/my runs/r/report.html' ."),
    ],
)
def test_the_command_that_copies_a_page(path: str, environ: dict[str, str], command: str) -> None:
    assert copy_command(Path(path), environ, "me", "login1") == command


def test_a_page_is_made_again_when_the_run_has_written_something(tmp_path: Path) -> None:
    run, page = Run(tmp_path), tmp_path / "report.html"
    events = tmp_path / "attempts/0/events/rank-0.jsonl"
    events.parent.mkdir(parents=True)
    for path in (tmp_path / "record.json", tmp_path / "journal.jsonl", events):
        path.touch()
    assert stale(run, page)
    page.touch()
    later = events.stat().st_mtime + 10
    os.utime(page, (later, later))
    assert not stale(run, page)
    os.utime(events, (later + 1, later + 1))
    assert stale(run, page)

"""`report --open`: where a browser would be seen, and how the page gets to one's own machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli.report import copy_command, has_browser


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

"""`report --open`: where a browser would be seen."""

from __future__ import annotations

import pytest

from launcher.cli.report import has_browser


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

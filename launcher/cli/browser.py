"""Opens an HTML page in the user's browser, or prints how to copy the page to another machine."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from launcher.formatting import rough_size


def show(path: Path) -> None:
    """Opens a page in the browser; without a browser, prints where the page is and how to copy it."""
    if has_browser(os.environ, sys.platform):
        try:
            if webbrowser.open(path.absolute().as_uri()):
                return
        except webbrowser.Error:
            pass
    print_location(path)


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Returns whether a graphical browser can be opened.

    `webbrowser` alone would also open a text browser, which shows no charts.

    | condition | result |
    |---|---|
    | BROWSER is set (editors that work over ssh set it) | yes |
    | DISPLAY or WAYLAND_DISPLAY is set | yes |
    | macOS, and not over ssh | yes |
    | else | no |
    """
    if any(environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return True
    return platform == "darwin" and not environ.get("SSH_CONNECTION")


def print_location(path: Path) -> None:
    """Prints a page's path and size, and the command that copies the page to the user's own machine."""
    path = path.absolute()
    print(f"directory  {path.parent}")
    print(f"page       {path} ({rough_size(path.stat().st_size)})")
    print(f"copy it    {copy_command(path, os.environ, getpass.getuser(), socket.gethostname())}")


def copy_command(path: Path, environ: Mapping[str, str], user: str, host: str) -> str:
    """Returns the scp command that copies a file from this machine to the user's own.

    The command names this machine by the address to which the user's ssh connected; without ssh, by `host`.
    """
    address = (environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2:3]  # client, its port, server, its port
    name = address[0] if address and address[0] else host
    name = f"[{name}]" if ":" in name else name
    return f"scp {shlex.quote(f'{user}@{name}:{path}')} ."

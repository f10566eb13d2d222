"""A page in the user's browser; where there is none, how to get at it."""

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
    """Opens a page in the browser, or tells how to get at it."""
    if has_browser(os.environ, sys.platform):
        try:
            if webbrowser.open(path.absolute().as_uri()):
                return
        except webbrowser.Error:
            pass
    tell(path)


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser would have a screen: a text browser that webbrowser finds shows no charts. Pure.

    | | |
    |---|---|
    | BROWSER is set (editors that work over ssh set it) | yes |
    | DISPLAY or WAYLAND_DISPLAY is set | yes |
    | macOS, and not over ssh | yes |
    | else | no |
    """
    if any(environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return True
    return platform == "darwin" and not environ.get("SSH_CONNECTION")


def tell(path: Path) -> None:
    """Where a page is, and what to type on one's own machine to see it."""
    path = path.absolute()
    print(f"directory  {path.parent}")
    print(f"page       {path} ({rough_size(path.stat().st_size)})")
    print(f"copy it    {copy_command(path, os.environ, getpass.getuser(), socket.gethostname())}")


def copy_command(path: Path, environ: Mapping[str, str], user: str, host: str) -> str:
    """scp for the user's own machine: from the address by which it has reached this one, if it did by ssh. Pure."""
    address = (environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2:3]  # client, its port, server, its port
    name = address[0] if address and address[0] else host
    name = f"[{name}]" if ":" in name else name
    return f"scp {shlex.quote(f'{user}@{name}:{path}')} ."

"""`open`: a run's report page in the browser; where there is none, how to get at it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from launcher.cli.options import EITHER, add_runs_dir, find_either

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.runs.directory import Run
    from launcher.runs.sweep_directory import Sweep


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=EITHER)
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="only tell where it is, and how to copy it"
    )
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Open the report page of RUN in the browser. It is made if it is missing or older than what the run has written;
    `report` does more. Without a browser here, the command that copies the page to your own machine is printed."""
    from launcher.cli.report import write_alone
    from launcher.files.ownership import require_own

    found = find_either(arguments.name, arguments.runs_dir)
    require_own(found.path, "open its page; `report` with -o FILE makes one of your own")
    path = found.path / "report.html"
    if stale(found, path):
        path = write_alone(found)
    if arguments.only_print:
        tell(path)
    else:
        show(path)
    return 0


def stale(found: Run | Sweep, page: Path) -> bool:
    """Whether the page is missing, or something of the run is newer. A sweep's is always made again."""
    from launcher.runs.directory import Run

    if not isinstance(found, Run) or not page.exists():
        return True
    written = page.stat().st_mtime
    sources = [found.path / "record.json", found.path / "journal.jsonl", found.path / "result.json"]
    for attempt in found.attempts():
        sources += [*(attempt.path / "events").glob("*.jsonl"), *(attempt.path / "pace").glob("*.jsonl")]
    return any(source.stat().st_mtime >= written for source in sources if source.exists())


def show(path: Path) -> None:
    """Opens a page in the browser, or tells how to get at it."""
    if has_browser(os.environ, sys.platform):
        import webbrowser

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
    import getpass
    import socket

    path = path.absolute()
    print(f"directory  {path.parent}")
    print(f"page       {path} ({path.stat().st_size / 1e6:.1f} MB)")
    print(f"copy it    {copy_command(path, os.environ, getpass.getuser(), socket.gethostname())}")


def copy_command(path: Path, environ: Mapping[str, str], user: str, host: str) -> str:
    """scp for the user's own machine: from the address by which it has reached this one, if it did by ssh. Pure."""
    import shlex

    address = (environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2:3]  # client, its port, server, its port
    name = address[0] if address and address[0] else host
    name = f"[{name}]" if ":" in name else name
    return f"scp {shlex.quote(f'{user}@{name}:{path}')} ."

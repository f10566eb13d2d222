"""`report`: writes an HTML page about a run, several runs side by side, or a sweep, and opens it."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import sys
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.text import cause
from launcher.errors import ConfigError
from launcher.formatting import rough_size
from launcher.monitoring.run_status import all_statuses, status_of
from launcher.monitoring.sweep import SweepMonitor, point_statuses
from launcher.reports import page, sections
from launcher.reports.collect import collect
from launcher.reports.sweep import SweepPoint, sweep_page
from launcher.runs.directory import Run
from launcher.runs.lookup import find, find_either
from launcher.runs.sweep_directory import SearchRecord, Sweep
from launcher.search.progress import last_value, look

if TYPE_CHECKING:
    from argparse import Namespace

    from launcher.reports.page import Page


def open_page(path: Path) -> None:
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
    """Returns the scp command that copies a file here to the user's own machine, from the address of ssh, or `host`."""
    address = (environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2:3]  # client, its port, server, its port
    name = address[0] if address and address[0] else host
    name = f"[{name}]" if ":" in name else name
    return f"scp {shlex.quote(f'{user}@{name}:{path}')} ."


# -- `report`: writes an HTML page about a run, several runs side by side, or a sweep


def run(arguments: Namespace) -> int:
    runs_dir = arguments.runs_dir
    named = list({each.path: each for each in (find_either(name, runs_dir) for name in arguments.names)}.values())
    baseline = find(arguments.baseline, runs_dir) if arguments.baseline is not None else None
    runs = [each for each in named if not isinstance(each, Sweep)]
    sweeps = [each for each in named if isinstance(each, Sweep)]
    if sweeps and (len(named) > 1 or baseline):
        raise ConfigError(f"{sweeps[0].id} is a sweep, whose page shows nothing else: name it alone, or its points")
    shown = _sweep(sweeps[0]) if sweeps else _runs(runs, baseline)
    alone = sweeps or {each.path for each in (*runs, *([baseline] if baseline else []))} == {runs[0].path}
    path: Path = arguments.output or named[0].path / ("report.html" if alone else "comparison.html")
    _write(path, shown)
    if arguments.show:
        open_page(path)
    return 0


def _write(path: Path, shown: Page) -> None:
    text = page.render(shown)
    page.write(path, text)
    print(f"wrote {path} ({rough_size(len(text.encode()))})")


def _runs(runs: list[Run], baseline: Run | None) -> Page:
    wanted = {each.path: each for each in (*runs, *([baseline] if baseline else []))}
    shown = {seen.run.path: collect(seen, cause(seen)) for seen in all_statuses(wanted.values())}
    return sections.comparison_page([shown[each.path] for each in runs], shown[baseline.path] if baseline else None)


def _sweep(sweep: Sweep) -> Page:
    live, manifest, points = SweepMonitor(), sweep.manifest(), []
    search, reported = None, {}
    if manifest.search:
        search = look(sweep)
        reported = {each.number: last_value(each) for each in SearchRecord(sweep.path).journal().trials}
    for each in point_statuses(sweep, live):
        seen = each.seen if each.state != "done" else status_of(each.point.run, live)
        run = collect(seen, cause(seen)) if seen is not None else None
        points.append(
            SweepPoint(str(each.point.index), each.point.overrides, each.state, run, reported.get(each.point.index))
        )
    return sweep_page(sweep.id, points, manifest.objective, manifest.best_is, str(sweep.path), time.time(), search)

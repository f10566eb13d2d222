"""`report`: writes an HTML page about a run or a sweep, and opens it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import webbrowser
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from launcher.cli.output import cause
from launcher.formatting import rough_size
from launcher.monitoring.run_status import all_statuses
from launcher.reports import page
from launcher.reports.collect import collect, collect_points
from launcher.reports.page import Page, sweep_page
from launcher.runs.lookup import find_either
from launcher.runs.sweep_directory import Sweep
from launcher.search.progress import look


def open_page(path: Path) -> None:
    """Opens a page in the browser; without a browser, says so."""
    with contextlib.suppress(webbrowser.Error):
        if has_browser(os.environ, sys.platform) and webbrowser.open(path.absolute().as_uri()):
            return
    print("there is no browser here that shows it: copy it to your own machine")


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Returns whether a graphical browser can be opened: `webbrowser` alone would also open one that shows no charts.

    Editors that work over ssh set BROWSER.
    """
    if any(environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return True
    return platform == "darwin" and not environ.get("SSH_CONNECTION")


def run(arguments: Namespace) -> int:
    named = find_either(arguments.name, arguments.runs_dir)
    if isinstance(named, Sweep):
        shown = _sweep(named)
    else:
        [seen] = all_statuses([named])
        shown = page.run_page(collect(seen, cause(seen)))
    path: Path = arguments.output or named.path / "report.html"
    text = page.render(shown)
    page.write(path, text)
    print(f"wrote {path} ({rough_size(len(text.encode()))})")
    if arguments.show:
        open_page(path)
    return 0


def _sweep(sweep: Sweep) -> Page:
    manifest, points = sweep.manifest(), collect_points(sweep)
    search = look(sweep) if manifest.search else None
    return sweep_page(sweep.id, points, manifest.objective, manifest.best_is, str(sweep.path), time.time(), search)

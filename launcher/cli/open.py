"""`open`: opens the report page of a run or sweep in the browser, or prints how to copy the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli import browser
from launcher.cli.find import find_either
from launcher.cli.report import write_alone
from launcher.files.ownership import require_own
from launcher.runs.directory import Run

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from launcher.runs.sweep_directory import Sweep


def run(arguments: Namespace) -> int:
    found = find_either(arguments.name, arguments.runs_dir)
    require_own(found.path, "open its page; `report` with -o FILE writes one elsewhere")
    path = found.path / "report.html"
    if stale(found, path):
        path = write_alone(found)
    if arguments.only_print:
        browser.print_location(path)
    else:
        browser.show(path)
    return 0


def stale(found: Run | Sweep, page: Path) -> bool:
    """Returns whether the page is missing or older than the run's records. The page of a sweep always counts as stale.

    page: path of the report page of `found`.
    """
    if not isinstance(found, Run) or not page.exists():
        return True
    written = page.stat().st_mtime
    sources = [found.path / "record.json", found.path / "journal.jsonl", found.path / "result.json"]
    for attempt in found.attempts():
        sources += [*(attempt.path / "events").glob("*.jsonl"), *(attempt.path / "pace").glob("*.jsonl")]
    return any(source.stat().st_mtime >= written for source in sources if source.exists())

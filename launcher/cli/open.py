"""`open`: a run's report page in the browser; where there is none, how to get at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import EITHER, add_runs_dir, find_either

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
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
    from launcher.cli import browser
    from launcher.cli.report import write_alone
    from launcher.files.ownership import require_own

    found = find_either(arguments.name, arguments.runs_dir)
    require_own(found.path, "open its page; `report` with -o FILE makes one of your own")
    path = found.path / "report.html"
    if stale(found, path):
        path = write_alone(found)
    if arguments.only_print:
        browser.tell(path)
    else:
        browser.show(path)
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

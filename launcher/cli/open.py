"""`open`: opens a run's report page in the browser, or prints how to copy the page."""

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
        "--print", action="store_true", dest="only_print", help="only print where it is, and how to copy it"
    )
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Open the report page of RUN in the browser. The page is made first if it is missing or older than the run's
    newest records; `report` has more options. Without a browser on this machine, the command that copies the page to
    your own machine is printed."""
    # Lazily: neither --help nor completion needs it
    from launcher.cli import browser
    from launcher.cli.report import write_alone
    from launcher.files.ownership import require_own

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
    """Returns whether the page is missing or older than the run's records. A sweep's page is always stale."""
    # Lazily: neither --help nor completion needs it
    from launcher.runs.directory import Run

    if not isinstance(found, Run) or not page.exists():
        return True
    written = page.stat().st_mtime
    sources = [found.path / "record.json", found.path / "journal.jsonl", found.path / "result.json"]
    for attempt in found.attempts():
        sources += [*(attempt.path / "events").glob("*.jsonl"), *(attempt.path / "pace").glob("*.jsonl")]
    return any(source.stat().st_mtime >= written for source in sources if source.exists())

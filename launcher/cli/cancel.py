"""`cancel`: ends runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_runs_dir, find

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("names", metavar="RUN", nargs="+", help=RUN)
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """End the RUNs. Ranks get SIGTERM, and SIGKILL after launch.grace seconds."""
    from launcher.live import Live, look  # not for --help

    runs = [find(name, arguments.runs_dir) for name in arguments.names]
    live = Live()
    for each in runs:
        seen = look(each, live)
        if seen.state.over:
            print(f"{each.id} is over already: {seen.state.value}")
            continue
        live.cancel(each)
        print(f"{each.id} is being cancelled", flush=True)
    return 0

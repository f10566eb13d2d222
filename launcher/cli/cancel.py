"""`cancel`: ends runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import EITHER, add_runs_dir, find_either

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("names", metavar="RUN", nargs="+", help=EITHER)
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """End the RUNs, or all points of a sweep. Ranks get SIGTERM, and SIGKILL after launch.grace seconds."""
    from launcher.live import Live, look  # not for --help
    from launcher.sweeps import Sweep, sweep_of

    found = [find_either(name, arguments.runs_dir) for name in arguments.names]
    live = Live()
    for each in found:
        sweep = each if isinstance(each, Sweep) else sweep_of(each)
        if sweep is not None:
            from launcher.cli import sweep_change

            sweep_change.cancel(sweep, None if sweep is each else [int(each.path.name)])
            continue
        assert not isinstance(each, Sweep)
        seen = look(each, live)
        if seen.state.over:
            print(f"{each.id} is over already: {seen.state.value}")
            continue
        live.cancel(each)
        print(f"{each.id} is being cancelled", flush=True)
    return 0

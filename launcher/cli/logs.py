"""`logs`: what a run printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_runs_dir, find
from launcher.errors import ConfigError, RunError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from launcher.runs import Run


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run is over")
    parser.add_argument("--rank", type=_number, metavar="N", help="only this rank's own output")
    parser.add_argument(
        "--attempt", type=_number, metavar="N", help="with --rank: of this attempt (default: the last one)"
    )
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """What the run printed: all ranks, each line with its rank in front; or one rank alone."""
    from launcher.cli.follow import Tails  # not for --help
    from launcher.live import Live, look

    if arguments.attempt is not None and arguments.rank is None:
        raise ConfigError("--attempt goes with --rank")
    wanted = find(arguments.name, arguments.runs_dir)
    tails = Tails(wanted, None if arguments.rank is None else _files(wanted, arguments.rank, arguments.attempt))
    live = Live()
    while True:
        over = not arguments.follow or look(wanted, live).state.over
        for text in tails.new(last=over):
            print(text, flush=True)
        if over:
            return 0
        time.sleep(0.5)


def _number(text: str) -> int:
    if not text.isdecimal():
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _files(run: Run, rank: int, attempt: int | None) -> list[Path]:
    attempts = {each.number: each for each in run.attempts()}
    if not attempts:
        raise RunError(f"{run.id} has not started yet")
    number = max(attempts) if attempt is None else attempt
    if number not in attempts:
        raise RunError(f"{run.id} has no attempt {number}: its attempts are 0 to {max(attempts)}")
    logs = attempts[number].logs
    rounds = 1 + max(
        (int(path.name.split("-")[2].split(".")[0]) for path in logs.glob("rank-*.round-*.out")), default=0
    )
    names = [f"rank-{rank}" + (f".round-{each}" if each else "") for each in range(rounds)]
    files = [logs / f"{name}.{stream}" for name in names for stream in ("out", "err")]
    if not any(path.exists() for path in files):
        ranks = sum(1 for path in logs.glob("rank-*.out") if ".round-" not in path.name)
        raise RunError(f"{run.id} has no rank {rank} in attempt {number}: it has {ranks} ranks")
    return files

"""`logs`: what a run printed."""

from __future__ import annotations

import time
from pathlib import Path

import click

from launcher.cli.follow import Tails
from launcher.cli.options import find, runs_dir_option
from launcher.errors import RunError
from launcher.live import Live, look
from launcher.runs import Run


@click.command()
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank's own output.")
@click.option("--attempt", type=click.IntRange(min=0), help="With --rank: of this attempt (default: the last one).")
@runs_dir_option
def logs(name: str, follow: bool, rank: int | None, attempt: int | None, runs_dir: Path | None) -> int:
    """What the run printed: all ranks, each line with its rank in front; or one rank alone."""
    run = find(name, runs_dir)
    if attempt is not None and rank is None:
        raise click.UsageError("--attempt goes with --rank")
    tails = Tails(run, None if rank is None else _files(run, rank, attempt))
    live = Live()
    while True:
        over = not follow or look(run, live).state.over
        for text in tails.new(last=over):
            click.echo(text)
        if over:
            return 0
        time.sleep(0.5)


def _files(run: Run, rank: int, attempt: int | None) -> list[Path]:
    attempts = {each.number: each for each in run.attempts()}
    if not attempts:
        raise RunError(f"{run.id} has not started yet")
    number = max(attempts) if attempt is None else attempt
    if number not in attempts:
        raise RunError(f"{run.id} has no attempt {number}: its attempts are 0 to {max(attempts)}")
    files = [attempts[number].logs / f"rank-{rank}.{stream}" for stream in ("out", "err")]
    if not any(path.exists() for path in files):
        ranks = sum(1 for _ in attempts[number].logs.glob("rank-*.out"))
        raise RunError(f"{run.id} has no rank {rank} in attempt {number}: it has {ranks} ranks")
    return files

"""`cancel`: ends runs."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.options import find, runs_dir_option
from launcher.live import Live, look


@click.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@runs_dir_option
def cancel(names: tuple[str, ...], runs_dir: Path | None) -> int:
    """End the RUNs. Ranks get SIGTERM, and SIGKILL after launch.grace seconds."""
    runs = [find(name, runs_dir) for name in names]
    live = Live()
    for run in runs:
        seen = look(run, live)
        if seen.state.over:
            click.echo(f"{run.id} is over already: {seen.state.value}")
            continue
        live.cancel(run)
        click.echo(f"{run.id} is being cancelled")
    return 0

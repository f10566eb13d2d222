"""`data`: data sets on this machine, and getting one from the internet, which compute nodes often lack."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from launcher import datasets
from launcher.errors import FAILED

DATA_DIR = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder of the data sets (default: the per-user data folder)."
)


@click.group(invoke_without_command=True)
@click.pass_context
@DATA_DIR
def data(ctx: click.Context, data_dir: Path | None) -> int:
    """Show which data sets are on this machine."""
    if ctx.invoked_subcommand is not None:
        return 0
    code = 0
    for name in datasets.KNOWN:
        try:
            found = datasets.find(name, data_dir)
            click.echo(f"{name:<15} {found.dir} ({found.how})")
        except datasets.DatasetError as error:
            missing = "is not on this machine" in str(error)
            click.echo(f"{name:<15} {'not here; python -m launcher data fetch ' + name if missing else error}")
            code = code if missing else FAILED
    return code


@data.command()
@click.argument("name", type=click.Choice(list(datasets.KNOWN)))
@click.option("--mirror", "mirrors", multiple=True, metavar="URL", help="Folder to download from, instead of ours.")
@DATA_DIR
def fetch(name: str, mirrors: tuple[str, ...], data_dir: Path | None) -> int:
    """Download a data set, verify its checksums, and put it where runs look for it."""
    with contextlib.ExitStack() as stack:
        bars: dict[str, tuple[click._termui_impl.ProgressBar[int], list[int]]] = {}

        def progress(file: str, done: int, total: int) -> None:
            if file not in bars:
                bars[file] = (stack.enter_context(click.progressbar(length=total, label=file)), [0])
            bar, seen = bars[file]
            bar.update(done - seen[0])
            seen[0] = done

        found = datasets.fetch(name, data_dir, mirrors or None, progress)
    click.echo(f"{found.name} is in {found.dir}")
    return 0

"""`data`: data sets on this machine, and getting one from the internet, which compute nodes often lack."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from launcher import datasets
from launcher.cli.options import folder, require_action
from launcher.errors import FAILED, ConfigError, LauncherError, near

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ", ".join(datasets.KNOWN)


def configure(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [fetch NAME [--mirror URL]] [--data-dir DIR]"
    parser.add_argument("action", nargs="?", metavar="fetch", help="download NAME, verify its checksums, keep it here")
    parser.add_argument("name", nargs="?", metavar="NAME", help=NAMES)
    parser.add_argument(
        "--mirror",
        action="append",
        metavar="URL",
        dest="mirrors",
        help="folder to download from, instead of ours (may be repeated)",
    )
    parser.add_argument(
        "--data-dir",
        type=folder,
        metavar="DIR",
        help="folder of the data sets, where runs look for them (default: the per-user data folder)",
    )


def run(arguments: Namespace) -> int:
    """Show which data sets are on this machine; with `fetch NAME`, get one."""
    action, name = arguments.action, arguments.name
    if action is None:
        if arguments.mirrors:
            raise ConfigError("--mirror goes with fetch NAME")
        return _list(arguments.data_dir)
    require_action("data", action, ["fetch"])
    if name is None:
        raise ConfigError(f"fetch needs the NAME of a data set: {NAMES}")
    if name not in datasets.KNOWN:
        raise ConfigError(f"there is no data set {name!r}.{near(name, datasets.KNOWN)} Known: {NAMES}")
    return _fetch(name, arguments.mirrors, arguments.data_dir)


def _list(data_dir: Path | None) -> int:
    code = 0
    for name in datasets.KNOWN:
        try:
            found = datasets.find(name, data_dir)
            print(f"{name:<15} {found.dir} ({found.how})")
        except datasets.NotHere as error:
            print(f"{name:<15} not here; {error.command}")
        except datasets.DatasetError as error:
            print(f"{name:<15} {error}")
            code = FAILED
    return code


def _fetch(name: str, mirrors: list[str] | None, data_dir: Path | None) -> int:
    try:
        with _shown() as progress:
            found = datasets.fetch(name, data_dir, mirrors, progress)
    except datasets.DatasetError as error:  # what was asked for was right
        raise LauncherError(str(error)) from error
    print(f"{found.name} is in {found.dir}")
    return 0


@contextlib.contextmanager
def _shown() -> Iterator[datasets.Progress]:
    """A bar for each file, or a line now and then."""
    from launcher.cli.progress import Rate, of_download, shown

    rates: dict[str, Rate] = {}
    with shown(sys.stderr, keep=True) as show:

        def progress(file: str, done: int, total: int) -> None:
            rate = rates.setdefault(file, Rate())
            rate.add(time.monotonic(), done)
            show.show(file, done, total, of_download(done, total, rate))

        yield progress

"""`env`: makes archives of environments, for env.archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import add_actions, require_action
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

ACTIONS = {"pack": "make an archive of a venv that env.archive unpacks on each node"}


def configure(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s ACTION [FOLDER] ARCHIVE"
    add_actions(parser, ACTIONS)
    parser.add_argument("paths", metavar="[FOLDER] ARCHIVE", nargs="+", help="venv (default: this one), and the file")
    parser.add_argument("--force", action="store_true", help="replace an existing archive")


def run(arguments: Namespace) -> int:
    """Make an archive of an environment (env.archive): .tar, .tar.gz or .tar.zst."""
    # Lazily: neither --help nor completion needs it
    from pathlib import Path

    from launcher.environment import archives
    from launcher.formatting import rough_size

    require_action("env", arguments.action, ACTIONS)
    if len(arguments.paths) > 2:
        raise ConfigError("`env pack` takes a FOLDER and an ARCHIVE")
    *folder, name = (Path(path).expanduser().absolute() for path in arguments.paths)
    if name.exists() and not arguments.force:
        raise ConfigError(f"{name} exists already: --force replaces it")
    source = folder[0] if folder else archives.default_folder()
    packed = archives.pack(source, name)
    print(f"{name}: {rough_size(packed['bytes'])} of {source}")
    print(f"torch was imported from {source} in {packed['import_seconds']:.1f} s")
    print(f"use it with env.archive={name}")
    return 0

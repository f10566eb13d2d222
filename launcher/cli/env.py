"""`env`: packs a venv into an archive, which jobs unpack on each node (env.archive)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.options import require_action
from launcher.environment import archives
from launcher.errors import ConfigError
from launcher.formatting import rough_size

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    require_action("env", arguments.action)
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

"""`data`: lists the data sets on this machine, and downloads one. `env`: packs a venv into an archive.

Both make files for compute nodes, which often have no internet access, and slow file systems.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.progress import Rate, of_download, shown
from launcher.environment import archives
from launcher.errors import FAILED, ConfigError, LauncherError, near
from launcher.formatting import rough_size
from launcher.own_module import program
from launcher.spec import workload_hook

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from launcher.spec.workload_hook import KnownDataSet, Progress


def data(arguments: Namespace) -> int:
    action, name = arguments.action, arguments.name
    if action is None:
        if arguments.mirrors:
            raise ConfigError("--mirror goes with fetch NAME")
        return _list(arguments.data_dir)
    known, problems = workload_hook.data_sets_of_all()
    names = ", ".join(known)
    if name is None:
        raise ConfigError(f"fetch needs the NAME of a data set: {names}")
    if name not in known:
        unread = "".join(f"\nnot listed: {problem}" for problem in problems)
        raise ConfigError(f"there is no data set {name!r}.{near(name, known)} Known: {names}{unread}")
    return _fetch(known[name], arguments.mirrors, arguments.data_dir)


def _list(data_dir: Path | None) -> int:
    code = 0
    known, problems = workload_hook.data_sets_of_all()
    for name, each in known.items():
        try:
            found = each.find(data_dir)
        except ConfigError as error:
            print(f"{name:<15} {error}")
            code = FAILED
            continue
        where = f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else ""
        missing = f"not here; {program()} data fetch {name}{where}"
        print(f"{name:<15} {f'{found.dir} ({found.how})' if found else missing}")
    for problem in problems:
        print(problem)
        code = FAILED
    return code


def _fetch(source: KnownDataSet, mirrors: list[str] | None, data_dir: Path | None) -> int:
    try:
        with _shown() as progress:
            found = source.fetch(data_dir, mirrors, progress)
    except ConfigError as error:  # the command was right, so the exit code is not that of a wrong one
        raise LauncherError(str(error)) from error
    print(f"{source.name} is in {found.dir}")
    return 0


@contextlib.contextmanager
def _shown() -> Iterator[Progress]:
    rates: dict[str, Rate] = {}
    with shown(sys.stderr, keep=True) as show:

        def progress(file: str, done: int, total: int) -> None:
            rate = rates.setdefault(file, Rate())
            rate.add(time.monotonic(), done)
            show.show(file, done, total, of_download(done, total, rate))

        yield progress


def env(arguments: Namespace) -> int:
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

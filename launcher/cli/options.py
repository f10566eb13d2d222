"""Options, arguments and their conversions that several sub-commands share."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, RunError, near

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from launcher.runs.directory import Run
    from launcher.runs.sweep_directory import Sweep

RUN = "id, unique prefix of one, `latest`, or directory"
EITHER = f"of a run, a sweep, or a sweep's point (SWEEP/7): {RUN}"


def add_actions(parser: ArgumentParser, actions: Mapping[str, str], more: str = "") -> None:
    """Adds the argument ACTION to a command that has several actions.

    Args:
        parser: the command's parser.
        actions: each action's line in the list that the help shows below the options.
        more: text below that list.
    """
    parser.formatter_class = lambda prog: RawDescriptionHelpFormatter(prog, max_help_position=26, width=80)
    parser.epilog = "actions:\n" + "\n".join(f"  {name:<10}{words}" for name, words in actions.items()) + more
    parser.add_argument("action", metavar="ACTION", help="see below")


def require_action(command: str, action: str, actions: Iterable[str]) -> None:
    """Checks the name of an action.

    Raises:
        ConfigError: the command has no such action.
    """
    known = list(actions)
    if action not in known:
        raise ConfigError(f"there is no {command} command {action!r}.{near(action, known)} Known: {', '.join(known)}")


def add_runs_dir(parser: ArgumentParser) -> None:
    """Adds the option --runs-dir; its value is a Path, or None."""
    parser.add_argument(
        "--runs-dir",
        type=folder,
        metavar="DIR",
        help="where run directories are (default: $LAUNCHER_RUNS_DIR, else the per-user data folder)",
    )


def folder(text: str) -> Path:
    """Converts an option's value to a Path."""
    # Lazily: neither --help nor completion needs it
    from pathlib import Path

    return Path(text)


def whole_number(text: str) -> int:
    """Converts an option's value to a whole number from 0 up."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def age(text: str) -> float:
    """Converts an option's value to a time, in seconds since the epoch.

    The value is an age (2d, 12h, 90m), a day (2026-10-31), or a local time (2026-10-31T18:00).
    """
    # Lazily: neither --help nor completion needs it
    from datetime import datetime

    from launcher.units import parse_time

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        if text.isdecimal():
            raise ValueError
        return time.time() - parse_time(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time: write 2d, 12h, 90m, 2026-10-31 or 2026-10-31T18:00") from None


def find(name: str, runs_dir: Path | None) -> Run:
    """Returns the run with a name; see `lookup.find`."""
    # Lazily: neither --help nor completion needs it
    from launcher.paths import default_runs_dir
    from launcher.runs import lookup

    return lookup.find(name, runs_dir or default_runs_dir())


def reference(run: Run) -> str:
    """Returns a name by which commands find a run, now and later: its id, or else its directory."""
    # Lazily: neither --help nor completion needs it
    from launcher.paths import default_runs_dir
    from launcher.runs import lookup

    try:
        return run.id if lookup.find(run.id, default_runs_dir()) == run else str(run.path)
    except RunError:
        return str(run.path)


def find_sweep(name: str, runs_dir: Path | None) -> Sweep:
    """The sweep meant by `name`; see `lookup.find_sweep`."""
    # Lazily: neither --help nor completion needs it
    from launcher.paths import default_runs_dir
    from launcher.runs import lookup

    return lookup.find_sweep(name, runs_dir or default_runs_dir())


def find_either(name: str, runs_dir: Path | None) -> Run | Sweep:
    """Returns the run, the point or the sweep with a name.

    Raises:
        RunError: none has this name, or it is a prefix of several ids.
    """
    # Lazily: neither --help nor completion needs it
    from launcher.files.shared_files import exists, unwrap
    from launcher.paths import default_runs_dir
    from launcher.runs import lookup, sweep_directory

    folder = runs_dir or default_runs_dir()
    if "/" in name or name == "latest" or unwrap(exists(folder / name / "record.json")):
        try:
            return lookup.find(name, folder)
        except RunError as error:
            try:
                return lookup.find_sweep(name, folder)
            except RunError:
                raise error from None
    if unwrap(exists(folder / name / sweep_directory.RECORD)):
        return lookup.find_sweep(name, folder)
    there = lookup.names(folder)  # only directories with a matching name are opened: there may be thousands
    matches = sorted(
        each
        for each in there
        if each.startswith(name) and any(lookup.may_have(f"{folder}/{each}", file) for file in lookup.RECORDS.values())
    )
    if len(matches) == 1:
        return find_either(matches[0], folder)
    if matches:
        raise RunError(f"{name!r} fits {len(matches)} runs and sweeps: {', '.join(matches[:5])}")
    raise RunError(f"no run {name!r} in {folder}, and no sweep.{near(name, [*there, 'latest'])}")

"""`sweep`: shows the progress and the results of sweeps, and runs, cancels or throttles their points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_actions, add_runs_dir, find_sweep, require_action
from launcher.errors import ConfigError
from launcher.units import parse_ranges

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from launcher.runs.sweep_directory import Sweep

ACTIONS = {
    "status": "its progress, and points that failed or run; no SWEEP: all sweeps",
    "results": "its points with their metrics, the best one first",
    "rerun": "restart points that are not done, from their checkpoints",
    "cancel": "end its points, and start no more",
    "throttle": "let at most N of its points run at once from now on",
    "wait": "wait until all its points are over; exit code 0 if all are done",
}
# Options of single actions: the attribute, the option, and its actions.
OPTIONS = {
    "as_json": ("--json", ("status", "results")),
    "everything": ("--all", ("status",)),
    "sort": ("--sort", ("results",)),
    "reverse": ("--reverse", ("results",)),
    "csv": ("--csv", ("results",)),
    "yes": ("--yes", ("rerun",)),
}


def configure(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s ACTION [SWEEP] [POINT ...] [options]"
    add_actions(parser, ACTIONS)
    parser.add_argument("name", metavar="SWEEP", nargs="?", help=RUN)
    parser.add_argument(
        "points", metavar="POINT", nargs="*",
        help="rerun, cancel: numbers of points (3, 0-4,7; default: all unfinished); throttle: N",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", dest="everything", help="status: all points, all sweeps")
    parser.add_argument("--sort", metavar="METRIC", help="results: by this, smallest first (default: its objective)")
    parser.add_argument("--reverse", action="store_true", help="results: in reverse order")
    parser.add_argument("--csv", metavar="FILE", help="results: everything as a CSV file (-: print it)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="status, results: for programs")
    parser.add_argument("--yes", action="store_true", help="rerun: submit without confirmation (confirm_above)")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Show or change sweeps. Their points are runs like any others: `logs SWEEP/7` ..."""
    action, name = arguments.action, arguments.name
    require_action("sweep", action, ACTIONS)
    for key, (option, actions) in OPTIONS.items():
        if getattr(arguments, key) and action not in actions:
            raise ConfigError(f"{option} goes with sweep {' and sweep '.join(actions)}")
    if action == "status" and name is None:
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_status

        return sweep_status.overview(arguments.runs_dir, arguments.everything, arguments.as_json)
    if name is None:
        raise ConfigError(f"sweep {action} needs the SWEEP; `sweep status` lists them")
    if arguments.points and action in ("status", "results", "wait"):
        raise ConfigError(f"sweep {action} is about whole sweeps; of one point: `status {name}/{arguments.points[0]}`")
    return _do(action, find_sweep(name, arguments.runs_dir), arguments)


def _do(action: str, sweep: Sweep, arguments: Namespace) -> int:
    """Executes an action on a sweep, and returns the exit code."""
    if action == "status":
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_status

        return sweep_status.show(sweep, everything=arguments.everything, as_json=arguments.as_json)
    if action == "results":
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_results

        options = {"sort": arguments.sort, "reverse": arguments.reverse}
        return sweep_results.show(sweep, **options, csv=arguments.csv, as_json=arguments.as_json)
    if action == "wait":
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_follow

        return sweep_follow.follow_to_end(sweep)
    # Lazily: neither --help nor completion needs it
    from launcher.cli import sweep_change
    from launcher.files.ownership import require_own

    require_own(sweep.path, f"{action} it")
    if action == "throttle":
        return sweep_change.throttle(sweep, _most(arguments.points))
    points = numbers(arguments.points, sweep)
    if action == "rerun":
        return sweep_change.rerun(sweep, points, yes=arguments.yes)
    return sweep_change.cancel(sweep, points)


def numbers(words: Sequence[str], sweep: Sweep) -> list[int] | None:
    """Converts words such as `3` and `0-4,7` to numbers of points; None: there are no words.

    Raises:
        ConfigError: a word is something else.
        RunError: the sweep has no such point.
    """
    # Lazily: neither --help nor completion needs it
    from launcher.runs.sweep_directory import require_known

    if not words:
        return None
    count = len(sweep.manifest().points)
    try:
        points = parse_ranges(",".join(words))
    except ValueError as error:
        raise ConfigError(f"points: {error}") from None
    require_known(points, sweep, count)
    return list(dict.fromkeys(points))


def _most(words: Sequence[str]) -> int:
    if len(words) != 1 or not words[0].isdecimal() or int(words[0]) < 1:
        problem = f"{' '.join(words)!r} is not the number" if words else "give the number"
        raise ConfigError(f"sweep throttle SWEEP N: {problem} of points that may run at once, 1 or more")
    return int(words[0])

"""`sweep`: shows the progress and the results of sweeps, and runs, cancels or throttles their points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.find import find_sweep
from launcher.cli.options import require_action
from launcher.errors import ConfigError
from launcher.files.ownership import require_own
from launcher.runs.sweep_directory import require_known
from launcher.units import parse_ranges

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from launcher.runs.sweep_directory import Sweep

# Options of single actions: the attribute, the option, and its actions.
OPTIONS = {
    "as_json": ("--json", ("status", "results")),
    "everything": ("--all", ("status",)),
    "sort": ("--sort", ("results",)),
    "reverse": ("--reverse", ("results",)),
    "csv": ("--csv", ("results",)),
    "yes": ("--yes", ("rerun",)),
}


def run(arguments: Namespace) -> int:
    action, name = arguments.action, arguments.name
    require_action("sweep", action)
    for key, (option, actions) in OPTIONS.items():
        if getattr(arguments, key) and action not in actions:
            raise ConfigError(f"{option} goes with sweep {' and sweep '.join(actions)}")
    if action == "status" and name is None:
        from launcher.cli import sweep_status

        return sweep_status.overview(arguments.runs_dir, arguments.everything, arguments.as_json)
    if name is None:
        raise ConfigError(f"sweep {action} needs the SWEEP; `sweep status` lists them")
    if arguments.points and action in ("status", "results", "wait"):
        raise ConfigError(f"sweep {action} is about whole sweeps; of one point: `status {name}/{arguments.points[0]}`")
    return _do(action, find_sweep(name, arguments.runs_dir), arguments)


def _do(action: str, sweep: Sweep, arguments: Namespace) -> int:
    if action == "status":
        from launcher.cli import sweep_status

        return sweep_status.show(sweep, everything=arguments.everything, as_json=arguments.as_json)
    if action == "results":
        from launcher.cli import sweep_results

        options = {"sort": arguments.sort, "reverse": arguments.reverse}
        return sweep_results.show(sweep, **options, csv=arguments.csv, as_json=arguments.as_json)
    if action == "wait":
        from launcher.cli import sweep_results

        return sweep_results.follow_to_end(sweep)
    from launcher.cli import sweep_change

    require_own(sweep.path, f"{action} it")
    if action == "throttle":
        return sweep_change.throttle(sweep, _most(arguments.points))
    points = numbers(arguments.points, sweep)
    if action == "rerun":
        return sweep_change.rerun(sweep, points, yes=arguments.yes)
    return sweep_change.cancel(sweep, points)


def numbers(words: Sequence[str], sweep: Sweep) -> list[int] | None:
    """Converts `3` and `0-4,7` to point numbers without duplicates, or None; raises ConfigError, RunError."""
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

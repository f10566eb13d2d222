"""`status`: shows the states of runs and sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import EITHER, add_runs_dir, age
from launcher.errors import ConfigError, RunError
from launcher.escapes import one_line

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from launcher.cli.status_rows import View
    from launcher.monitoring.live import RunStatus

SILENCE = 300.0  # seconds without a heartbeat after which it is reported; the machines' clocks may differ


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("names", metavar="RUN", nargs="*", help=EITHER)
    parser.add_argument(
        "--all", action="store_true", dest="everything", help="all runs, not only live ones and the newest others"
    )
    parser.add_argument("--failed", action="store_true", help="only those that failed, are lost or cannot be read")
    parser.add_argument(
        "--since", type=age, metavar="AGE", help="only those active since then: 2d, 12h, 90m, or 2026-10-31"
    )
    parser.add_argument("--watch", action="store_true", help="update until all are over; Ctrl-C exits")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: a list of objects")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Show the state of the live runs and sweeps and the newest others, or of the named RUNs, with one query to the
    scheduler for all."""
    # Lazily: neither --help nor completion needs it
    from launcher.paths import default_runs_dir
    from launcher.runs import lookup
    from launcher.schedulers.registry import queues_here

    names, folder = arguments.names, arguments.runs_dir or default_runs_dir()
    if arguments.watch and arguments.as_json:
        raise ConfigError("--json does not go with --watch: call `status --json` repeatedly")
    if not names and lookup.is_empty(folder) and not queues_here():
        print("[]" if arguments.as_json else f"no runs in {folder}")
        return 0
    # Lazily: where there is nothing to show, it is most of the time
    from launcher.cli.status_rows import ORPHANED, Rows, Wanted, plain
    from launcher.cli.status_table import table
    from launcher.runs.sweep_directory import Sweep

    if names and (arguments.failed or arguments.since is not None):
        raise ConfigError("--failed and --since choose among all runs: leave the names out")
    rows = Rows(names, folder, arguments.everything, Wanted(arguments.failed, arguments.since))
    if arguments.watch:
        # Lazily: neither --help nor completion needs it
        from launcher.cli import watch

        return watch.show(rows)
    if len(rows.wanted) == 1 and isinstance(rows.wanted[0], Sweep):
        # Lazily: neither --help nor completion needs it
        from launcher.cli import sweep_status

        return sweep_status.show(rows.wanted[0], everything=arguments.everything, as_json=arguments.as_json)
    view = rows.look()
    damaged = [row for row in view.rows if "unread" in row]
    if names and len(damaged) == len(view.rows):
        raise RunError("\n".join(row["cause"] for row in damaged))
    if arguments.as_json:
        # Lazily: neither --help nor completion needs it
        import json

        print(json.dumps([plain(row) for row in view.rows], indent=1))
        return 0
    if not view.rows:
        print(f"no runs in {folder}" + (" that match" if rows.filter.filters else ""))
        return 0
    for line in table(view.rows, _width()):
        print(line)
    for each in view.seen if names else ():
        _print_details(each, heading=len(view.rows) > 1)
    for row in [*damaged, *(row for row in view.rows if row["state"] == ORPHANED)]:
        print(f"\n{one_line(row['run'])}: {row['cause']}")
    for number, line in enumerate(unanswered(view)):
        print(line if number else f"\n{line}")
    if view.older:
        print(f"... and {view.older} older; --all shows them")
    return 0


def unanswered(view: View) -> Iterator[str]:
    """Yields a line or two for each scheduler that did not answer."""
    # Lazily: neither --help nor completion needs it
    from launcher.cli.status_table import brief

    for scheduler, seen in view.unanswered.items():
        unknown = sum(each.unanswered == scheduler and each.state.value == "unknown" for each in view.seen)
        yield f"This is incomplete: {scheduler} does not answer ({seen.problem})."
        if unknown and seen.age is not None:
            states = "1 state is" if unknown == 1 else f"{unknown} states are"
            yield f"{states} unknown; the state of {brief(seen.age)} ago is in brackets."


def _width() -> int:
    # Lazily: neither --help nor completion needs it
    import shutil

    from launcher.cli.status_table import WIDTH

    return shutil.get_terminal_size((WIDTH, 24)).columns


def _print_details(seen: RunStatus, *, heading: bool) -> None:
    """Prints details of a run that the table does not show.

    Args:
        seen: the run.
        heading: whether the run's id is printed above its attempts.
    """
    # Lazily: neither --help nor completion needs it
    from launcher.cli.text import print_columns, print_unreadable

    if seen.history.attempt:
        print(f"\n{one_line(seen.run.id)}:" if heading else "")
        print_columns(_attempts(seen))
    if not seen.unanswered and (why := _remark(seen)):
        print(f"\n{one_line(f'{seen.run.id}: {why}')}")
    for line in _health(seen):
        print(one_line(f"{seen.run.id}: {line}"))
    print_unreadable(seen.run)


def _remark(seen: RunStatus) -> str | None:
    """Returns a remark about a run, or None.

    | the run is | remark |
    |---|---|
    | done | none |
    | running | that its heartbeat is missing, if it is |
    | queued, unknown, unconfirmed | the scheduler's reason, if there is one |
    | over in another way | the cause |
    """
    if seen.state.value == "running":
        # Lazily: neither --help nor completion needs it
        from launcher.formatting import format_time

        silent = seen.run.lease_age()
        if silent is None or silent < SILENCE:
            return None
        return (
            f"its job shows no sign of life for {format_time(int(silent))}, although the scheduler says that it runs: "
            "has it lost its first node? Cancel it, then resume it"
        )
    if seen.state.value == "done":
        return None
    # Lazily: neither --help nor completion needs it
    from launcher.cli.text import cause

    return cause(seen) if seen.state.over else seen.detail or None


def _health(seen: RunStatus) -> list[str]:
    """Returns lines about the preflight checks of the last attempt, and about ranks that are slower than the others."""
    # Lazily: neither --help nor completion needs it
    from launcher.runs.health import preflights, stragglers

    attempts = seen.run.attempts()
    if not attempts:
        return []
    plan, over = seen.plan, seen.state.over
    slow = stragglers(attempts[-1].paces(), plan.train.straggler_factor, plan.train.straggler_time, over=over)
    return preflights(seen.history.events) + [each.words for each in slow if over or each.until is None]


def _attempts(seen: RunStatus) -> list[tuple[str, ...]]:
    """Returns a table of a run's attempts, with its heading."""
    # Lazily: neither --help nor completion needs it
    from launcher.cli.status_table import short_job
    from launcher.diagnose.post_mortem.findings import verdicts
    from launcher.formatting import format_time
    from launcher.runs.events import Ended, Met, Progress, Started, last

    ends = {attempt.number: verdict for attempt, verdict, _ in verdicts(seen)}
    lines: list[tuple[str, ...]] = [("ATTEMPT", "JOB", "RANKS", "STEP", "ELAPSED", "ENDED")]
    for attempt in seen.run.attempts():
        events = attempt.latest_events()
        elapsed = events[-1]["time"] - events[0]["time"] if events else 0.0
        progress, ended, end = last(events, Progress), last(events, Ended), ends.get(attempt.number)
        words = f"{ended.code}" if ended else "-"
        if end is not None and end.cause is not None:
            words += f" {end.kind.value}: {end.cause}"
        met, started = last(events, Met), last(events, Started)
        lines.append((
            str(attempt.number), short_job(started.job if started else "-"), str(met.ranks if met else "-"),
            str(progress.step if progress else "-"), format_time(int(elapsed)), words,
        ))  # fmt: skip
    return lines

"""`resume`: starts another attempt of a run that is over, at the same size or at another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_runs_dir, find

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="keys to change (nodes=4, time=2h)")
    parser.add_argument("--new-snapshot", action="store_true", help="with env.snapshot: of the code as it is now")
    parser.add_argument("--yes", action="store_true", help="submit without confirmation (confirm_above)")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Restart RUN from its newest checkpoint, with the configuration with which it was submitted, changed by the
    KEY=VALUEs. It must be over: stopped, failed, cancelled or lost."""
    # Lazily: neither --help nor completion needs it
    from launcher.cli import submit
    from launcher.monitoring.live import JobMonitor
    from launcher.runs.output import Stream
    from launcher.submission import from_overrides
    from launcher.submission.submit import require_over

    found = find(arguments.name, arguments.runs_dir)
    ready = from_overrides.again(found, arguments.overrides, new_snapshot=arguments.new_snapshot)
    if ready.composed.config.dry_run:
        return submit.show(ready.prepared)
    require_over(found, JobMonitor())  # before the user is asked to confirm; `Ready.submit` checks once more
    submit.ask(ready, yes=arguments.yes)
    output = Stream(found)
    output.skip()  # the output of earlier attempts
    return submit.conclude(ready, output)

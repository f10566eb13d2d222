"""`resume`: another attempt of a run that is over, at the same size or at another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import RUN, add_runs_dir, find

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="what is to be different (nodes=4, time=2h)")
    parser.add_argument("--new-snapshot", action="store_true", help="with env.snapshot: of the code as it is now")
    parser.add_argument("--yes", action="store_true", help="submit without a question (confirm_above)")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Start RUN again where its newest checkpoint left it. Everything stays as it was when it was submitted, but for
    the KEY=VALUEs. It must be over: stopped, failed, cancelled or lost."""
    from launcher.cli import submit
    from launcher.monitoring.live import Live
    from launcher.runs.output import Stream
    from launcher.submission import from_overrides
    from launcher.submission.submit import require_over

    found = find(arguments.name, arguments.runs_dir)
    ready = from_overrides.again(found, arguments.overrides, new_snapshot=arguments.new_snapshot)
    if ready.composed.config.dry_run:
        return submit.show(ready.prepared)
    require_over(found, Live())  # before a question; `Ready.submit` looks again
    submit.ask(ready, yes=arguments.yes)
    printed = Stream(found)
    printed.skip()  # what earlier attempts have printed
    return submit.conclude(ready, printed)

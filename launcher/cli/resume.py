"""`resume`: starts another attempt of a run that is over, at the same size or at another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli import submit
from launcher.cli.find import find
from launcher.config.schema import Program
from launcher.errors import ConfigError
from launcher.monitoring.run_status import JobMonitor
from launcher.runs.output import Stream
from launcher.submission import resume
from launcher.submission.resume import require_over

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    changes = arguments.overrides
    if arguments.arguments is not None:
        if found.plan().workload.kind != Program.__name__:
            raise ConfigError(f"{found.id} is no run of a script of yours, so it has no arguments (--): use KEY=VALUE")
        changes = submit.with_program_arguments([*changes, "--", *arguments.arguments])
    ready = resume.ready_attempt(found, changes, new_snapshot=arguments.new_snapshot)
    if ready.composed.config.dry_run:
        return submit.show(ready.prepared)
    require_over(found, JobMonitor())  # before the user is asked to confirm; `Ready.submit` checks once more
    submit.ask(ready, yes=arguments.yes)
    output = Stream(found)
    output.skip()  # the output of earlier attempts
    return submit.conclude(ready, output)

"""Submits another attempt of a run that is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.environment import secrets, snapshot
from launcher.errors import ConfigError, RunError
from launcher.monitoring.packed import rerun
from launcher.monitoring.run_status import JobMonitor, status_of
from launcher.monitoring.state import RunState
from launcher.own_module import program
from launcher.runs.directory import Run
from launcher.runs.events import Submitted as JobSubmitted
from launcher.runs.events import every
from launcher.runs.journal import journal_events
from launcher.runs.submitter_lock import only_submitter
from launcher.schedulers.run_command import Refused
from launcher.submission.prepare import Prepared
from launcher.submission.submit import (
    Submitted,
    interrupted,
    journal_jobs,
    redacted_record,
    refusals_of_the_system,
    require_commands,
    start,
    tried,
    write_record,
)


def resume(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> Submitted:
    """Submits another attempt of a run that is over. Its plan may differ from that of earlier attempts.

    prepared: checked plan of the new attempt, with the run's id.
    overrides: overrides of the user, from this command and from earlier attempts.
    Raises ConfigError: the plan has another workload.
    Raises RunError: the run is done, is not over, or runs in pilots of its sweep.
    Raises SubmissionError: the scheduler refused the job, or did not answer (repeat the command).
    """
    with secrets.exported(prepared.secrets):
        return _resume(run, prepared, *redacted_record(prepared, config, overrides))


def _resume(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> Submitted:
    plan = prepared.plan
    if again := rerun(run):
        raise RunError(f"{run.id} runs in pilots of its sweep: `{program()} {again}` starts it again")
    require_commands(plan)
    with only_submitter(run.path):
        before = run.plan()
        if (plan.workload.entry, plan.workload.kind) != (before.workload.entry, before.workload.kind):
            raise ConfigError(
                f"{run.id} is a run of workload={before.workload.name}: for workload={plan.workload.name} "
                "start another run"
            )
        require_over(run, JobMonitor())
        # The same token until the journal says `submitted`, so that repeating this command looks for the same job.
        journal = journal_events(run)
        token = f"{prepared.token}-r{len(every(journal, JobSubmitted))}"
        tried_before = tried(run, token)
        prepared = dataclasses.replace(prepared, token=token)
        snapshot.take(plan)
        with refusals_of_the_system(run, plan, token):
            run.clear_for_resume()
        try:
            with interrupted(run), refusals_of_the_system(run, plan, token):
                write_record(run, prepared, config, overrides)
                job = start(run, plan, token, resumed=tried_before)
                journal_jobs(run, plan, job.job_id, token)
        except (Refused, ConfigError):  # the run is unchanged
            run.restore_record()
            raise
    return Submitted(run, job.job_id)


def require_over(run: Run, live: JobMonitor) -> None:
    """Checks that a run can be resumed.

    live: monitor that queries the schedulers for the state of jobs.
    Raises RunError: the run is done, or is not over.
    """
    seen = status_of(run, live)
    if seen.state is RunState.DONE:
        raise RunError(f"{run.id} is done: there is nothing to resume")
    if not seen.state.over:
        word = f" ({seen.job.text})" if seen.state is RunState.UNKNOWN and seen.job.text else ""
        raise RunError(f"{run.id} is {seen.state.value}{word}: to change its size, `touch {run.path}/stop` and wait")

"""Runs as they are now: their records, and one question to each scheduler for all of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.backends.base import JobState, QueryError
from launcher.backends.processes import Process
from launcher.backends.slurm_query import Slurm
from launcher.errors import RunError
from launcher.plan import JobPlan
from launcher.runs import Run
from launcher.state import RunState, Story, run_state, tell

SCHEDULER_INTERVAL = 2.0  # seconds for which a scheduler's answer is good enough


@dataclass(frozen=True)
class Seen:
    """One run as it is now.

    Attributes:
        word: the scheduler's own word, when it adds something (`PENDING (Resources)`).
        progress: the last progress event of rank 0.
    """

    run: Run
    plan: JobPlan
    story: Story
    state: RunState
    word: str
    progress: Mapping[str, Any] | None

    @property
    def exit_code(self) -> int:
        """What a command that waited for the run exits with."""
        if self.state is RunState.FAILED and self.story.ended == errors.NO_RETRY:
            return errors.NO_RETRY
        return self.state.exit_code


class Live:
    """Asks schedulers, no more often than needed."""

    def __init__(self, slurm: Slurm | None = None) -> None:
        self._slurm = slurm or Slurm()
        self._asked = float("-inf")
        self._answer: dict[str, tuple[JobState, str]] | None = None

    def job(self, run: Run, plan: JobPlan, story: Story) -> tuple[JobState | None, str, bool]:
        """State of the run's job (None: no such job), the scheduler's word on it, and whether it answered."""
        if not plan.queued:
            process = Process.started(run.journal_events())
            if process is None:
                return None, "", True
            if not process.here():
                return JobState.UNKNOWN, f"it runs on {process.host}", False
            return (JobState.RUNNING, "", True) if process.alive() else (None, "", True)
        if story.job_id is None:
            return None, "", True
        if time.monotonic() - self._asked > SCHEDULER_INTERVAL:
            try:
                self._answer = {
                    job.id: (job.state, job.word + (f" ({job.reason})" if job.reason else ""))
                    for job in self._slurm.jobs().values()
                }
            except QueryError as error:
                self._answer, self._problem = None, str(error)
            self._asked = time.monotonic()  # after the answer, which may have taken long
        if self._answer is None:
            return None, self._problem, False
        if story.job_id not in self._answer:
            for job in self._slurm.accounting([story.job_id]).values():
                self._answer[job.id] = (job.state, job.word)
        state, word = self._answer.get(story.job_id, (None, ""))
        return state, word, True

    def cancel(self, run: Run, *, kill: bool = False) -> None:
        """Asks the run's scheduler to end its job.

        Raises:
            RunError: it has no job, or it runs on another machine.
            QueryError: the scheduler does not answer.
        """
        plan, story = run.plan(), read(run)
        run.journal("cancelled")
        if not plan.queued:
            process = Process.started(run.journal_events())
            if process is not None and not process.here():
                raise RunError(f"{run.id} runs on {process.host}: cancel it there")
            if process is not None:
                process.signal(signal.SIGKILL if kill else signal.SIGTERM)
            return
        job_id = story.job_id or self._slurm.find(run.record()["token"])
        if job_id is None:
            raise RunError(f"{run.id} has no job")
        self._slurm.cancel(job_id)


def read(run: Run) -> Story:
    """The story that the run's own record tells."""
    attempts = run.attempts()
    last = attempts[-1] if attempts else None
    return tell(run.journal_events(), last.number if last else None, last.events() if last else ())


def look(run: Run, live: Live) -> Seen:
    """The run as it is now."""
    plan, story = run.plan(), read(run)
    state, word = RunState.DONE, ""
    if story.ended != 0:
        job, word, answered = live.job(run, plan, story)
        state = run_state(story, job, answered=answered)
        if state.over and story.ended is None:
            # The job may have ended between the two looks: what it wrote last counts.
            story = read(run)
            state = run_state(story, job, answered=answered)
    return Seen(run, plan, story, state, word, story.last("progress"))


def look_at_all(runs: Iterable[Run], *, strict: bool) -> list[Seen]:
    """Many runs with one question to the scheduler.

    Raises:
        RunError: one cannot be read, and `strict`; else it is left out.
    """
    live, seen = Live(), []
    for run in runs:
        try:
            seen.append(look(run, live))
        except RunError:
            if strict:
                raise
    return seen

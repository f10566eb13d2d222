"""The third scheduler, as an implementation of the launcher's protocols."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from launcher.plan.plan import settings_of
from launcher.schedulers.base import JobOrigin, JobState, Queue, SchedulerJob
from launcher.schedulers.job_environment import Scrubbed, scrubbed
from launcher.schedulers.run_command import SubmitCommand
from tests.fakes.third_scheduler import queue
from tests.fakes.third_scheduler.settings import ThirdSettings

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan
    from launcher.runs.directory import Run


@dataclass(frozen=True)
class Queries:
    """The queries of the scheduler."""

    terse: ClassVar[tuple[str, ...]] = ()

    def _all(self) -> dict[str, SchedulerJob]:
        return {
            each["id"]: SchedulerJob(each["id"], JobState[each["state"]], each["state"], comment=each["token"])
            for each in queue.jobs()
        }

    def jobs(self) -> dict[str, SchedulerJob]:
        return {key: job for key, job in self._all().items() if job.state.live}

    def key(self, job_id: str) -> str:
        return job_id

    def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
        return {key: job for key, job in self._all().items() if key in job_ids}

    def find(self, token: str, name: str) -> str | None:
        return next((each["id"] for each in queue.jobs() if each["token"] == token), None)

    def origins(self, numbers: Sequence[str]) -> dict[str, JobOrigin]:
        known = {each["id"]: JobOrigin(each["id"], each["token"], each["script"]) for each in queue.jobs()}
        return {number: known[number] for number in numbers if number in known}

    def options(self, jobs: Sequence[str], token: str | None = None) -> list[str]:
        return [*([] if token is None else [f"--token={token}"]), *(f"--after={job}" for job in jobs)]

    def request(self, script: str, environment: Mapping[str, str], *arguments: str) -> SubmitCommand:
        return SubmitCommand([sys.executable, "-m", queue.MODULE, "submit", *arguments, script], environment)

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str) -> str:
        return queue.submit([*arguments, script], environment)

    def wait_for(self, job_id: str, jobs: Sequence[str]) -> None:
        queue.write(queue.folder() / job_id, "after", " ".join(jobs))

    def cancel(self, job_id: str) -> None:
        queue.cancel(job_id)

    def max_array_size(self, plan: JobPlan) -> int | None:
        return 1  # it has no arrays: each point of a sweep is a job

    def throttle(self, job_id: str, most: int) -> None:
        raise NotImplementedError("there are no arrays")


class ThirdScheduler(Queue):
    """The third scheduler."""

    name = "third"
    title = "the third scheduler"
    template = str(Path(__file__).with_name("third.sh.j2"))
    no_requeue = "it has no such command"

    def directives(self, plan: JobPlan, token: str, array: str | None, folder: str | None) -> list[str]:
        settings = settings_of(plan, ThirdSettings)
        return [
            f"--name {plan.name}",
            f"--token {token}",
            *([f"--lane {settings.lane}"] if settings.lane else []),
            f"--priority {settings.priority.value}",
        ]

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        return scrubbed(environ, own=[name for name in environ if name == "THIRD_JOB"])

    def queries(self, timeout: float) -> Queries:
        return Queries()

    def here(self) -> bool:
        return "THIRD_QUEUE" in os.environ

    def server(self) -> tuple[str | None, ...]:
        return (os.environ.get("THIRD_QUEUE"),)

    def array_of(self, job_id: str) -> str:
        return job_id

    def compare(self, plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
        return ()

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ["THIRD_JOB"]

    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        return self.job_environment(os.environ, plan).environment

"""What our submitit executors share: a plan instead of parameters, our templates, private files, one submission only.

A payload is dumped before the job is submitted, and the job's script gives it the name that submitit looks for. So
from the moment the scheduler has taken a job, the job needs nothing more from the process that submitted it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from submitit.core import core, utils

from launcher import render
from launcher.plan import JobPlan
from launcher.runs import Run


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """New files are 0600 and new folders 0700 inside."""
    previous = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(previous)


class RunExecutor(core.PicklingExecutor):
    """A submitit executor for the resources of one plan.

    `submit(fn, ...)` runs fn in every task that the plan starts (in every agent, or in every rank with launch=tasks);
    `map_array(fn, ...)` makes an array whose elements have directories of their own, numbered from 0.
    """

    def __init__(self, run: Run, plan: JobPlan, token: str, throttle: int | None = None) -> None:
        """
        Args:
            run: the run's directory, which is there already.
            plan: what every job asks for.
            token: what the job is found by, if nobody hears whether it was submitted.
            throttle: elements of an array that may run at once.
        """
        super().__init__(run.submitit_folder)
        self.run, self.plan, self.token, self.throttle = run, plan, token, throttle

    def _num_tasks(self) -> int:
        return self.plan.nodes * self.plan.tasks_per_node

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        raise ValueError("the plan holds the parameters of this executor: make another plan and another executor")

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return render.script(self.plan, token=self.token)

    def _make_submission_command(self, submission_file_path: Any) -> list[str]:
        return ["bash", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        return string if isinstance(string, str) else string.decode()

    def _send(self, script: str) -> str:
        """Hands the script over and returns the job's id."""
        raise NotImplementedError

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        count = len(delayed_submissions)
        if count == 1:
            return [self._submit_one(delayed_submissions[0])]
        for index, delayed in enumerate(delayed_submissions):
            element = Run(self.run.path / str(index))
            if not element.path.exists():
                Run.create(element.path)
            self._dump(delayed, element)
        array = f"0-{count - 1}" + (f"%{self.throttle}" if self.throttle else "")
        script = render.script(self.plan, token=self.token, array=array)
        with private_files():
            path = self.run.write_script(script)
        job_id = self._send(str(path))
        tasks = range(self._num_tasks())
        return [
            self.job_class(self.run.path / str(index) / "submitit", f"{job_id}_{index}", tasks)
            for index in range(count)
        ]

    def _submit_one(self, delayed: utils.DelayedSubmission) -> core.Job[Any]:
        self._dump(delayed, self.run)
        with private_files():
            path = self.run.write_script(self._make_submission_file_text("", ""))
        job_id = self._send(str(path))
        return self.job_class(self.folder, job_id, range(self._num_tasks()))

    def _dump(self, delayed: utils.DelayedSubmission, run: Run) -> None:
        delayed.set_timeout(-(-self.plan.time // 60), self.max_num_timeout)
        with private_files():
            delayed.dump(run.submitit_folder / "payload.pkl")

"""What every executor must do: submit functions and arrays of them, and return their results."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.core import Executor, Job
from submitit.core.utils import FailedJobError, UncompletedJobError

from launcher.errors import SubmissionError
from launcher.plan.build import PlanFacts
from launcher.runs.directory import Run
from launcher.schedulers import registry
from launcher.submission import render
from tests import warm_python
from tests.contract import functions
from tests.launch import ROOT, until
from tests.markers import ci, slow
from tests.unit.plans import plan_of

KINDS = (
    slow("local"), slow("slurm"), slow("pbs run"), "pbs function", slow("sge run"), "sge function",
)  # fmt: skip
FUNCTIONS = pytest.mark.parametrize("site", [ci("pbs function"), "sge function"], indirect=True)


@dataclass
class Place:
    """An executor: that of a run, or `PBSExecutor` or `SGEExecutor` of submitit.

    Attributes:
        kind: one of KINDS.
        folder: the folder of its jobs.
    """

    kind: str
    folder: Path
    made: list[Executor] = field(default_factory=list)

    def executor(
        self, *, nodes: int = 1, tasks: int = 1, throttle: int | None = None, queue: str | None = None, **more: Any
    ) -> Any:
        """Returns a new executor. On Slurm, `queue` is a partition. `more` are other parameters of submitit."""
        folder, scheduler = self.folder / f"e{len(self.made)}", self.kind.split()[0]
        sites = {"parallel_environment": "nodes"} if scheduler == "sge" and nodes > 1 else {}
        if self.kind.endswith(" function"):
            # On a busy machine some attempts of a function are over before it has begun.
            limit = {f"{scheduler}_max_num_timeout": 100}
            executor: Any = submitit.AutoExecutor(folder, cluster=scheduler, **limit)
            own = {"array_parallelism": throttle, "queue": queue, **sites, **more}
            executor.update_parameters(
                timeout_min=5, nodes=nodes, tasks_per_node=tasks,
                **{f"{scheduler}_{name}": value for name, value in own.items()},
            )  # fmt: skip
        else:
            key = "partition" if scheduler == "slurm" else "queue"
            site = PlanFacts(folder.name, str(folder), warm_python.python(), str(ROOT), str(ROOT))
            plan = plan_of(
                site, cluster={"scheduler": scheduler, "name": self.kind, **({key: queue} if queue else {}), **sites},
                nodes=nodes, procs_per_node=tasks, time="5m", launch={"mode": all_tasks(), "grace": 3},
            )  # fmt: skip
            executor = registry.scheduler(scheduler).executor()(
                Run.create(folder), plan, f"launcher-{os.urandom(6).hex()}", throttle, scripts=render
            )
        self.made.append(executor)
        return executor

    def results(self, jobs: Sequence[Job[Any]]) -> list[list[Any]]:
        return [job.results() for job in jobs]


def all_tasks() -> Any:
    """Makes every task call the function."""
    from launcher.config.schema import LaunchMode

    return LaunchMode.tasks


@pytest.fixture(params=KINDS)  # the executors of runs are in `make test` by the sweeps, whose arrays they submit
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    ran_against: Callable[[str, str], None],
) -> Iterator[Place]:  # fmt: skip
    monkeypatch.chdir(ROOT)
    if request.param == "local":
        ran_against("local", "this machine")
        yield Place("local", tmp_path)
        return
    backend = request.param.split()[0]
    cluster = request.getfixturevalue(backend)
    if backend == "slurm":
        ran_against("slurm", f"Slurm {cluster.version()}, 4 real nodes")
        monkeypatch.setenv("SLURM_CONF", cluster.env()["SLURM_CONF"])
    else:
        ran_against(backend, cluster.against)
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
    yield Place(request.param, tmp_path)
    cluster.reset()


def test_a_function_gives_its_result(site: Place) -> None:
    job = site.executor().submit(functions.square, 7)
    assert job.result() == 49
    assert job.exception() is None
    until(lambda: job.done(force_check=True), "it is done")


def test_the_state_of_a_running_job(site: Place) -> None:
    job = site.executor().submit(functions.waits, str(site.folder))
    until((site.folder / "runs").exists, "it runs")
    until(lambda: job.watcher.update() or job.state == "RUNNING", "its state is RUNNING")
    assert not job.done(force_check=True)
    job.cancel()


def test_a_function_that_fails_brings_its_traceback(site: Place) -> None:
    job = site.executor().submit(functions.divide, 7)
    error = job.exception()
    assert isinstance(error, FailedJobError)
    assert "ZeroDivisionError" in str(error)
    with pytest.raises(FailedJobError, match="ZeroDivisionError"):
        job.result()


def test_a_cancelled_job_is_done_and_has_no_result(site: Place) -> None:
    job = site.executor().submit(functions.waits, str(site.folder))
    until((site.folder / "runs").exists, "it runs")
    job.cancel()
    until(lambda: job.done(force_check=True), "it is done")
    job._results_timeout_s = 0
    assert isinstance(job.exception(), UncompletedJobError)
    if site.kind != "local":  # Grid Engine's accounting does not tell who ended a job
        assert job.state in ("CANCELLED", "FORGOTTEN", *(["FAILED"] if site.kind.startswith("sge") else []))


@FUNCTIONS
def test_an_array_gives_its_results_in_order(site: Place) -> None:
    executor = site.executor()
    jobs = executor.map_array(functions.square, range(6))
    assert site.results(jobs) == [[0], [1], [4], [9], [16], [25]]
    assert len({job.job_id for job in jobs}) == 6


@FUNCTIONS
def test_an_array_of_one_is_a_job(site: Place) -> None:
    [job] = site.executor().map_array(functions.square, [3])
    assert job.result() == 9


@FUNCTIONS
def test_an_element_that_fails_leaves_the_others_alone(site: Place) -> None:
    jobs = site.executor().submit_array([lambda: 1, lambda: 1 / 0, lambda: 3])
    assert [type(job.exception()).__name__ for job in jobs] == ["NoneType", "FailedJobError", "NoneType"]
    assert (jobs[0].result(), jobs[2].result()) == (1, 3)


@FUNCTIONS
def test_a_throttled_array_runs_so_many_at_once(site: Place) -> None:
    (spans := site.folder / "spans").mkdir()
    jobs = site.executor(throttle=2).map_array(functions.sleep_in, [str(spans)] * 5, [0.5] * 5)
    site.results(jobs)
    assert len(list(spans.iterdir())) == 5
    assert functions.most_at_once(spans) <= 2


def test_every_task_of_several_nodes_knows_its_place(site: Place) -> None:
    job = site.executor(nodes=2, tasks=2).submit(functions.place)
    assert job.results() == [(0, 0, 0, 4), (1, 1, 0, 4), (2, 0, 1, 4), (3, 1, 1, 4)]


def test_a_bad_request_is_refused_in_the_schedulers_words(site: Place) -> None:
    if site.kind == "local":
        pytest.skip("there is nobody to refuse it")
    with pytest.raises(SubmissionError, match=r"nvalid partition|nknown queue"):
        site.executor(queue="no-such-queue").submit(functions.square, 7)
    left = [path for path in site.folder.rglob("*.pkl") if site.kind.endswith(" function")]
    assert not left


def test_a_job_that_somebody_else_killed_is_done_and_not_a_success(site: Place) -> None:
    job = site.executor().submit(functions.waits, str(site.folder))
    until((site.folder / "runs").exists, "it runs")
    if site.kind == "local":
        os.killpg(job._process.pid, 9)
    elif site.kind == "slurm":
        subprocess.run(["scancel", "--signal=KILL", "--full", job.job_id], check=True)
    else:
        force = ["-f"] if site.kind.startswith("sge") else ["-W", "force"]
        subprocess.run(["qdel", *force, job.job_id], check=True)
    until(lambda: job.done(force_check=True), "it is done")
    job._results_timeout_s = 0
    assert isinstance(job.exception(), UncompletedJobError)
    assert job.state != "COMPLETED"


# -- checkpoints of functions

SHORT = {"walltime": "00:00:12", "signal_delay_s": 9}  # an attempt has 6 s, half of the wall time


@FUNCTIONS
def test_a_function_that_is_out_of_time_is_checkpointed_and_continued_by_another_job(site: Place) -> None:
    job = site.executor(**SHORT).submit(functions.Counter(), 70, str(site.folder))
    log = job.result()
    assert [number for _, number in log] == sorted(number for _, number in log)
    assert len({name for name, _ in log}) == len(log) >= 2
    assert log[-1][1] > 0, "what was counted is not counted again"
    until(lambda: job.done(force_check=True), "it is done")


@FUNCTIONS
def test_an_element_that_is_out_of_time_is_continued_by_a_plain_job(site: Place) -> None:
    short, long = site.executor(**SHORT).map_array(functions.Counter(), [2, 70], [str(site.folder)] * 2)
    assert long.result()[-1][1] > 0
    assert len(short.result()) >= 1


@FUNCTIONS
def test_all_tasks_end_when_the_first_is_continued_by_another_job(site: Place) -> None:
    job = site.executor(tasks=2, **SHORT).submit(functions.Counter(), 70, str(site.folder))
    first, second = job.results()
    assert first[-1][0] == second[-1][0] != first[0][0], "both end in the same job"


@FUNCTIONS
def test_a_function_whose_job_is_deleted_is_checkpointed_and_not_continued(site: Place) -> None:
    job = site.executor().submit(functions.Counter(), 1000, str(site.folder))
    until((site.folder / "runs").exists, "it runs")
    time.sleep(1)
    job.cancel()
    until(lambda: job.done(force_check=True), "it is done")
    until(lambda: job.submission().function.number > 0, "its checkpoint is there")
    assert not list(site.folder.rglob("*_resubmitted.txt"))

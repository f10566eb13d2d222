"""From a plan to a job, once: the run directory first, then the scheduler, with a journal in between.

A run id is submitted at most once. Whoever submits it again gets the job that is there, or finishes a submission that
was cut short, provided that the config is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__, check, render
from launcher.backends.base import QueryError
from launcher.backends.detect import detect
from launcher.backends.pbs_query import PBS
from launcher.backends.scrub import job_environment
from launcher.backends.slurm_query import Slurm
from launcher.backends.successor import submit_after
from launcher.config import Config, ResumeHow, Scheduler
from launcher.errors import ConfigError, RunError, SubmissionError
from launcher.held import Held, allocation
from launcher.live import Live, look, read
from launcher.paths import default_runs_dir
from launcher.plan import JobPlan, Site, as_dict, check_name, make_plan
from launcher.runs import Run, new_id
from launcher.state import RunState

if TYPE_CHECKING:
    from submitit import Job


@dataclass(frozen=True)
class Prepared:
    """A plan that has passed every check, and what the user should know before it is used."""

    plan: JobPlan
    token: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Submitted:
    """The run and its job; `again` when the job was there already."""

    run: Run
    job_id: str
    again: bool = False


def prepare(config: Config, environ: Mapping[str, str] = os.environ) -> Prepared:
    """Plans and checks; nothing is written and nothing submitted.

    Raises:
        ConfigError: the config cannot be run; the text names the fix.
    """
    held = _held(environ) if config.cluster.scheduler is Scheduler.allocation else None
    check_name("name", config.name)
    run_id = new_id(config.name) if config.run_id is None else check_name("run_id", config.run_id)
    runs_dir = Path(config.runs_dir).expanduser().absolute()
    umask = os.umask(0o077)
    os.umask(umask)
    starter = held.starter if held else None
    site = Site(run_id, str(runs_dir / run_id), sys.executable, _code_root(), os.getcwd(), umask, starter)
    config, notes = _with_data(config)
    plan = make_plan(config, site)
    check.check_names(plan)
    check.check_batch(plan)
    check.check_limits(plan, config.cluster.limits)
    if plan.queued:
        notes += _check_live(plan, config, environ)
        if dropped := job_environment(environ, plan).dropped:
            notes += (f"not handed on to the job: {', '.join(dropped)}",)
    elif held and plan.nodes > held.nodes:
        raise ConfigError(
            f"nodes={plan.nodes}: the allocation that this shell is in holds {held.nodes}: use nodes={held.nodes}"
        )
    # The token is made of the id, so that a second submission of it looks for the same job.
    token = "launcher-" + hashlib.sha256(f"{os.getuid()}:{plan.run_dir}".encode()).hexdigest()[:20]
    render.script(plan, token=token)  # refuses extra options that collide with keys, and what cannot be written
    return Prepared(plan, token, notes)


def submit(prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str] = ()) -> Submitted:
    """Makes the run directory and hands the job over.

    Args:
        prepared: what `prepare` returned.
        config: the resolved config, for the record.
        overrides: what the user wrote to get it, for `resume`.

    Raises:
        ConfigError: no run directory can be made, or the run id belongs to another config.
        SubmissionError: the scheduler refused (nothing is left behind) or did not answer (repeat it with the run id).
    """
    plan = prepared.plan
    run = Run(Path(plan.run_dir))
    resumed = run.recorded()
    if resumed:
        run.require_private()
    else:  # or its submitter was killed before it had submitted anything
        _make(run, prepared, config, overrides)
    with run.only_submitter():
        _require_same(run, plan)  # others may have been here at the same time
        if job_id := read(run).job_id:
            return Submitted(run, job_id, again=True)
        try:
            job = _start(run, plan, prepared.token, resumed)
        except SubmissionError as error:
            from launcher.backends.once import Refused

            if isinstance(error, Refused):
                if not resumed:
                    shutil.rmtree(run.path)
                raise
            raise SubmissionError(
                f"{error}.\nRepeat the command with run_id={plan.run_id}: it takes the job that is there, or submits "
                "it if there is none"
            ) from None
        _journal_jobs(run, plan, job.job_id, prepared.token)
    with contextlib.suppress(OSError):  # a convenience: `status RUN` also takes a path
        run.link(default_runs_dir())
    return Submitted(run, job.job_id)


def _make(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """The run directory with its record."""
    plan = prepared.plan
    if problem := _problem(plan):
        raise SubmissionError(f"nothing was submitted: {problem}")
    Run.create(run.path)
    _record(run, prepared, config, overrides)


def _record(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    import hydra
    import submitit

    plan = prepared.plan

    versions = {
        "launcher": __version__, "python": platform.python_version(), "hydra": hydra.__version__,
        "submitit": submitit.__version__,
    }  # fmt: skip
    facts = {**versions, "host": platform.node(), "commit": _commit(plan.workdir), "token": prepared.token,
             "overrides": list(overrides)}  # fmt: skip
    run.write_record(plan, config, facts)


def resume(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> Submitted:
    """Starts another attempt of a run that is over, with a plan that may be another one.

    Args:
        run: the run.
        prepared: what `prepare` returned for its run id.
        config: the resolved config, for the record.
        overrides: what the user wrote to get it, this time and before.

    Raises:
        ConfigError: it is the plan of another workload.
        RunError: the run is done, or not over.
        SubmissionError: the scheduler refused, or did not answer (repeat the command).
    """
    from launcher.backends.once import Refused

    plan = prepared.plan
    if problem := _problem(plan):
        raise SubmissionError(f"nothing was submitted: {problem}")
    with run.only_submitter():
        before, seen = run.plan(), look(run, Live())
        if (plan.entry, plan.kind) != (before.entry, before.kind):
            raise ConfigError(
                f"{run.id} is a run of workload={before.workload}: for workload={plan.workload} start another run"
            )
        if seen.state is RunState.DONE:
            raise RunError(f"{run.id} is done: there is nothing to resume")
        if not seen.state.over:
            raise RunError(f"{run.id} is {seen.state.value}: to change its size, `touch {run.path}/stop` and wait")
        # The same token until the journal says `submitted`, so that repeating this command looks for the same job.
        journal = run.journal_events()
        token = f"{prepared.token}-r{sum(entry['event'] == 'submitted' for entry in journal)}"
        tried = any(entry["event"] == "submitting" and entry["token"] == token for entry in journal)
        prepared = dataclasses.replace(prepared, token=token)
        run.clear_for_resume()
        _record(run, prepared, config, overrides)
        try:
            job = _start(run, plan, token, resumed=tried)
        except Refused:  # the run is still what it was
            run.take_back_record()
            raise
        _journal_jobs(run, plan, job.job_id, token)
    return Submitted(run, job.job_id)


def _journal_jobs(run: Run, plan: JobPlan, job_id: str, token: str) -> None:
    """Notes the job; those of its chain are submitted first."""
    if plan.resume_how != ResumeHow.chain.value:
        run.journal("submitted", job=job_id)
        return
    environment = job_environment(os.environ, plan).environment
    jobs = [job_id]
    try:
        for number in range(1, plan.max_attempts):
            script = str(run.path / "script.sh")
            jobs.append(submit_after(plan, jobs[-1], script, f"{token}-{number}", environment, plan.submit_timeout))
    finally:  # some may be there although the site takes no more
        run.journal("submitted", job=jobs[0], chain=jobs[1:])


def _start(run: Run, plan: JobPlan, token: str, resumed: bool) -> Job[Any]:
    from launcher.node import payload

    if plan.scheduler == Scheduler.slurm.value:
        from launcher.backends.slurm import SlurmExecutor

        return SlurmExecutor(run, plan, token, resumed=resumed).submit(payload.run, str(run.path))
    if plan.scheduler == Scheduler.pbs.value:
        from launcher.backends.pbs_run import PBSRunExecutor

        return PBSRunExecutor(run, plan, token, resumed=resumed).submit(payload.run, str(run.path))
    from launcher.backends.local import LocalExecutor

    return LocalExecutor(run, plan, token).submit(payload.run, str(run.path))


def _problem(plan: JobPlan) -> str | None:
    """Why this machine cannot submit the plan."""
    if plan.scheduler == Scheduler.slurm.value and shutil.which("sbatch") is None:
        return "sbatch is not on this machine's PATH: submit from a login node of the cluster, or use cluster=local"
    return detect().problem() if plan.scheduler == Scheduler.pbs.value else None


def _require_same(run: Run, plan: JobPlan) -> None:
    mine, theirs = (json.loads(json.dumps(as_dict(each))) for each in (plan, run.plan()))
    # Where and with which interpreter the command was typed does not make another run of it.
    different = [key for key in mine if mine[key] != theirs.get(key) and key not in ("workdir", "umask", "python")]
    if different:
        raise ConfigError(
            f"run_id={plan.run_id} is there already with other values of {', '.join(different)}: choose another run_id"
        )


def _code_root() -> str | None:
    from launcher.paths import code_root

    root = code_root()
    return None if root is None else str(root)


def _with_data(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Finds the data set or text here, where there may be an internet, and writes what was found into the config."""
    from launcher.config import DDPMnist, FSDPLm

    if isinstance(config.workload, FSDPLm):
        from launcher import texts

        text = texts.find(config.workload.text)
        texts.check(config.workload, text, config.train.invariant)
        language_model = dataclasses.replace(config.workload, text=text.name)
        return dataclasses.replace(config, workload=language_model), (f"text: {text.name}, {text.length:,} bytes",)
    if not isinstance(config.workload, DDPMnist):
        return config, ()
    from launcher import datasets

    folder = config.workload.data_dir
    try:
        found = datasets.find(config.workload.dataset, None if folder is None else Path(folder))
    except datasets.DatasetError as error:
        raise ConfigError(f"workload.dataset={config.workload.dataset}: {error}") from None
    workload = dataclasses.replace(config.workload, dataset=found.name, data_dir=str(found.dir))
    note = f"data set: {found.name}, {found.how}"
    return dataclasses.replace(config, workload=workload), (note,)


def _check_live(plan: JobPlan, config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    if not config.cluster.check:
        return ()
    if plan.scheduler == Scheduler.pbs.value:
        try:
            if queues := PBS(plan.submit_timeout).queues():
                check.check_queue(plan, queues)
        except QueryError as error:
            return (f"not compared with the live queues: {error}",)
        return ()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(Slurm(plan.submit_timeout).partitions)
        importlib.import_module("launcher.backends.slurm")  # 30 ms that the submission needs next, while Slurm answers
    try:
        partitions = answer.result()
    except QueryError as error:
        return (f"not compared with the live partitions: {error}",)
    if partitions:
        partition = plan.partition or environ.get("SBATCH_PARTITION")  # which sbatch gets as well
        check.check_partition(dataclasses.replace(plan, partition=partition), partitions)
    return ()


def _held(environ: Mapping[str, str]) -> Held:
    found = allocation(environ)
    if found is None:
        raise ConfigError(
            "cluster=allocation: this shell is in no allocation (neither SLURM_JOB_ID nor PBS_JOBID and PBS_NODEFILE "
            "are set): get one with salloc first, or on PBS with qsub -I, or use a cluster that is submitted to"
        )
    return found


def _commit(folder: str) -> str | None:
    """The git commit of the folder the user works in, with `+` when files differ from it."""
    head = Path(folder)
    while not (head / ".git").exists():
        if head == head.parent:
            return None
        head = head.parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"], cwd=folder, capture_output=True,
            text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None

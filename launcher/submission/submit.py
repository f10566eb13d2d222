"""Idempotent submission of a plan: the run directory is created first, then the job, with a journal in between.

A run id is submitted at most once. Another submission of it returns the existing job, or completes an interrupted
submission; the config must be the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__, redaction
from launcher.agent import payload
from launcher.config.schema import Config, ResumeHow
from launcher.environment import record_redaction, snapshot, trackers
from launcher.environment import secrets as secret
from launcher.errors import ConfigError, RunError, SubmissionError, UnavailableError
from launcher.files import trusted_folders
from launcher.files.os_errors import explain
from launcher.monitoring.live import JobMonitor, read_history, status_of
from launcher.monitoring.packed import is_packed
from launcher.monitoring.state import RunState
from launcher.own_module import program
from launcher.paths import code_root, default_runs_dir
from launcher.runs import events, live_index
from launcher.runs.directory import Run, new_id, token_of
from launcher.runs.events import Submitting, every
from launcher.runs.journal import journal_events, process_of
from launcher.runs.lookup import find
from launcher.schedulers import job_script, registry
from launcher.schedulers.allocation import Allocation, require_room
from launcher.schedulers.idempotent_submit import Refused
from launcher.schedulers.job_environment import job_environment
from launcher.schedulers.planning import make_plan, scheduler_of
from launcher.schedulers.queries import QueryError
from launcher.schedulers.scheduler import CountsJobs
from launcher.schedulers.successor import submit_after
from launcher.script import lost_parts
from launcher.spec import limits, pools
from launcher.spec.plan import JobPlan, Site, check_name, keys_of
from launcher.submission import dependencies
from launcher.submission.inputs import Inputs
from launcher.submission.interrupts import Interrupted, delayed_interrupt

if TYPE_CHECKING:
    from submitit import Job

# Fields of a plan that may differ between two submissions of one run.
OF_THE_COMMAND = ("workdir", "umask", "python", "queued", "code.repository", "code.path", "secrets_dir")


@dataclass(frozen=True)
class Prepared:
    """A plan that has passed all checks, with notes for the user."""

    plan: JobPlan
    token: str
    notes: tuple[str, ...]
    secrets: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # of cluster.environment; never written to a record


@dataclass(frozen=True)
class Submitted:
    """A run and its job. `again`: the job existed already."""

    run: Run
    job_id: str
    again: bool = False


def prepare(
    config: Config, environ: Mapping[str, str] = os.environ, *, run_id: str | None = None, new_snapshot: bool = False
) -> Prepared:
    """Makes and checks a plan. Nothing is written or submitted.

    Args:
        config: the config.
        environ: of this process.
        run_id: of an existing run, which may be a point of a sweep; None: that of the config, or a new one.
        new_snapshot: with env.snapshot: copy the code again, although the run has a copy.

    Raises:
        ConfigError: the config cannot be run; it names the key and the fix.
    """
    held, resumes = held_allocation(config, environ), run_id is not None
    check_name("name", config.name)
    trusted_folders.require_in_files(config.cluster.trusted_folders)
    if run_id is None:
        run_id = new_id(config.name) if config.run_id is None else check_name("run_id", config.run_id)
    plan, notes = planned(config, site_of(config, run_id, held), Inputs(), new_snapshot=new_snapshot)
    chain = plan.resume.how == ResumeHow.chain.value
    # A submission that is repeated may have its jobs already; one that resumes a run needs others.
    repeated = not resumes and Run(Path(plan.run_dir)).recorded()
    jobs = 0 if repeated else plan.resume.max_attempts if chain else 1
    notes += check_capacity(plan, config, environ, held, jobs)
    # Made from the id, so that a second submission looks for the same job.
    token = token_of(plan.run_dir)
    job_script.script(
        plan, token=token
    )  # raises where an extra option collides with a key, or a value cannot be written
    if plan.cluster.template is not None:
        notes += lost_parts.notes(plan, functools.partial(job_script.script, token=token))
    secrets = secrets_of(config)
    record_redaction.require_absent(keys_of(plan), {**redaction.secrets_in(environ, plan.env.secrets), **secrets})
    return Prepared(plan, token, notes, secrets)


def secrets_of(config: Config) -> dict[str, str]:
    """Returns the secrets among the variables that a config sets (cluster.environment)."""
    values = {name: None if value is None else str(value) for name, value in config.cluster.environment.items()}
    return redaction.secrets_in(values, redaction.all_patterns(config.env.secrets))


def site_of(config: Config, run_id: str, held: Allocation | None) -> Site:
    """Returns what the submitting machine adds to the config of a run. The id of a point is SWEEP/N."""
    umask = os.umask(0o077)
    os.umask(umask)
    run_dir = Path(config.runs_dir).expanduser().absolute() / run_id
    starter = held.starter if held else None
    after = _after(config, Run(run_dir))
    in_files = scheduler_of(config.cluster).secrets_in_files
    secrets_dir = str(secret.folder()) if in_files else None
    return Site(
        run_id, str(run_dir), sys.executable, _code_root(), os.getcwd(), umask, starter, after, secrets_dir=secrets_dir
    )


def _after(config: Config, run: Run) -> tuple[str, ...]:
    """Returns the dependencies of a run, as its plan keeps them.

    Raises:
        ConfigError: one cannot be found.
    """
    wanted = {"after": config.after, "sweep.after": config.sweep.after if run.path.name.isdecimal() else None}
    if not any(wanted.values()):
        return ()
    if run.recorded() and (dependencies.conditions_met(run) or any(map(dependencies.names_latest, wanted.values()))):
        return run.plan().after  # `latest` may be another run now, and a run that it waited for may have been deleted
    runs_dir = Path(config.runs_dir).expanduser().absolute()
    return tuple(each for key, value in wanted.items() for each in dependencies.resolve(value, runs_dir, key))


def planned(
    config: Config, site: Site, inputs: Inputs, *, new_snapshot: bool = False
) -> tuple[JobPlan, tuple[str, ...]]:
    """Makes a plan and checks it, but for the live scheduler. Returns it with notes for the user.

    Args:
        config: the config.
        site: what this machine adds to it.
        inputs: finds data, code and environments; one object for all points of a sweep.
        new_snapshot: see `prepare`.

    Raises:
        ConfigError: the config cannot be run; the text names the fix.
    """
    run = None if new_snapshot else Run(Path(site.run_dir))
    config = dataclasses.replace(config, cluster=pools.merged(config.cluster))
    config, notes = inputs.into(_with_baseline(config), run)
    config = inputs.with_template(config)
    config, more = inputs.with_environment(config)
    notes += more
    site = inputs.with_code(config, site, new_snapshot=new_snapshot)
    plan = snapshot.into_plan(make_plan(config, site))
    notes += inputs.check(plan)
    limits.check_limits(plan, config.cluster)
    return plan, notes + snapshot.notes(plan) + trackers.check(plan)


def check_capacity(
    plan: JobPlan, config: Config, environ: Mapping[str, str], held: Allocation | None, jobs: int = 0
) -> tuple[str, ...]:
    """Checks whether the live scheduler, or the allocation of this shell, can run a plan. Returns notes for the user.

    Args:
        plan: the plan.
        config: the config from which it was made.
        environ: of this process.
        held: the allocation of this shell, if the plan uses it.
        jobs: how many jobs are to be submitted; 0: they may exist already, so the limit of jobs is not checked.

    Raises:
        ConfigError: it could never start there, or a condition of `after` can never be met.
    """
    waits = dependencies.check_dependencies(plan) if plan.after else ()
    if plan.queued:
        dropped = job_environment(environ, plan).dropped
        notes = (f"not handed on to the job: {', '.join(dropped)}",) if dropped else ()
        return _check_live(plan, config, environ, jobs) + notes + waits
    if held:
        require_room(held, plan)
    return waits


def submit(prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str] = ()) -> Submitted:
    """Creates the run directory and submits the job.

    Args:
        prepared: what `prepare` returned.
        config: the resolved config, for the record.
        overrides: the user's overrides, for `resume`.

    Raises:
        ConfigError: the run directory cannot be created, or the run id exists with another config.
        SubmissionError: the scheduler refused the job (nothing is left), or did not answer (repeat the command).
    """
    with secret.exported(prepared.secrets):
        return _submit(prepared, config, overrides)


def _submit(prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> Submitted:
    plan = prepared.plan
    run = Run(Path(plan.run_dir))
    resumed = run.recorded()
    if resumed:
        run.require_private()
    else:  # new, or its submitter was killed before it submitted anything
        try:
            with _refusals_of_the_system(run, plan, prepared.token):
                _make(run, prepared, config, overrides)
        except Refused:
            _remove(run)
            raise
    with run.only_submitter():
        require_same(run, plan)  # another process may have submitted it at the same time
        if job_id := read_history(run).job_id:
            return Submitted(run, job_id, again=True)
        try:
            with _interrupted(run), _refusals_of_the_system(run, plan, prepared.token):
                job = start(run, plan, prepared.token, resumed)
                journal_jobs(run, plan, job.job_id, prepared.token)
        except Refused:
            if not resumed:
                _remove(run)
            raise
        except SubmissionError as error:
            raise SubmissionError(
                f"{error}.\nRepeat the command with run_id={plan.run_id}: it takes the job that is there, or submits "
                "it if there is none"
            ) from None
    with contextlib.suppress(OSError):  # a convenience: `status` accepts paths, too
        run.link(default_runs_dir())
    return Submitted(run, job.job_id)


@contextlib.contextmanager
def _refusals_of_the_system(run: Run, plan: JobPlan, token: str) -> Iterator[None]:
    """Converts errors of the operating system inside the `with` block, a full disk for instance.

    Raises:
        Refused: the scheduler has not been called: there is no job.
        SubmissionError: the scheduler has been called: there may be a job.
    """
    try:
        yield
    except UnavailableError:  # a file that cannot be read now is no reason to remove anything
        raise
    except OSError as error:
        words = explain(error)
        if words is None:
            raise
        if plan.queued and tried(run, token):
            raise SubmissionError(f"{words}; there may be a job, which the same command finds") from None
        if process := process_of(run):
            process.signal(signal.SIGKILL)
        raise Refused(f"nothing was submitted: {words}", definite=True) from None


@contextlib.contextmanager
def _interrupted(run: Run) -> Iterator[None]:
    """Delays Ctrl-C inside the `with` block until the submission is complete.

    Raises:
        Interrupted: after the first Ctrl-C, with the job; at the second one: it is unknown whether there is a job.
    """
    try:
        with delayed_interrupt() as interrupted:
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"nobody knows whether {run.id} was submitted: repeat the command with run_id={run.id}, which takes the "
            f"job that is there, or end it with `launcher cancel {run.id}`"
        ) from None
    if interrupted:
        job_id = read_history(run).job_id
        raise Interrupted(f"{run.id} was submitted as job {job_id}, and goes on: `launcher cancel {run.id}` ends it")


def tried(run: Run, token: str) -> bool:
    """Returns whether a job of the run may have been submitted with this token."""
    return any(entry.token == token for entry in every(journal_events(run), Submitting))


def _remove(run: Run) -> None:
    """Removes a run that was never submitted."""
    shutil.rmtree(run.path, ignore_errors=True)
    live_index.discard(run.path)


def _make(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Creates the run directory with its record."""
    plan = prepared.plan
    require_commands(plan)
    public = redacted_record(prepared, config, overrides)
    Run.create(run.path)
    try:
        snapshot.take(plan)
    except ConfigError:
        _remove(run)
        raise
    _record(run, prepared, *public)


def redacted_record(
    prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """The config and the overrides as they may be written.

    Raises:
        ConfigError: the value of a secret stands where it cannot be left out.
    """
    names = prepared.plan.env.secrets
    found = (
        record_redaction.redact_config(config, prepared.secrets),
        record_redaction.redact_overrides(overrides, names),
    )
    secrets = {**redaction.secrets_in(os.environ, names), **prepared.secrets}
    record_redaction.require_absent({**found[0], "overrides": found[1]}, secrets)
    return found


def _record(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    facts = {**facts_of_here(prepared.plan.submitted_in), **snapshot.facts(prepared.plan)}
    facts |= {"token": prepared.token, "overrides": list(overrides)}
    run.write_record(prepared.plan, config, facts)


def facts_of_here(folder: str) -> dict[str, Any]:
    """Versions, this machine, and the commit of the folder that the user works in."""
    # Lazily: 15 ms, and submitit has loaded it by now
    from importlib.metadata import version

    return {
        "launcher": __version__, "python": platform.python_version(), "hydra": version("hydra-core"),
        "submitit": version("submitit"), "host": platform.node(), "commit": _commit(folder),
    }  # fmt: skip


def resume(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> Submitted:
    """Submits another attempt of a run that is over; its plan may differ.

    Args:
        run: the run.
        prepared: what `prepare` returned for its run id.
        config: the resolved config, for the record.
        overrides: the user's overrides, of now and of before.

    Raises:
        ConfigError: the plan has another workload.
        RunError: the run is done, or not over.
        SubmissionError: the scheduler refused the job, or did not answer (repeat the command).
    """
    with secret.exported(prepared.secrets):
        return _resume(run, prepared, *redacted_record(prepared, config, overrides))


def _resume(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> Submitted:
    plan = prepared.plan
    if is_packed(run):
        sweep, _, point = run.id.rpartition("/")
        raise RunError(f"{run.id} runs in pilots of its sweep: `launcher sweep rerun {sweep} {point}` starts it again")
    require_commands(plan)
    with run.only_submitter():
        before = run.plan()
        if (plan.workload.entry, plan.workload.kind) != (before.workload.entry, before.workload.kind):
            raise ConfigError(
                f"{run.id} is a run of workload={before.workload.name}: for workload={plan.workload.name} "
                "start another run"
            )
        require_over(run, JobMonitor())
        # The same token until the journal says `submitted`, so that repeating this command looks for the same job.
        journal = journal_events(run)
        token = f"{prepared.token}-r{len(every(journal, events.Submitted))}"
        tried_before = tried(run, token)
        prepared = dataclasses.replace(prepared, token=token)
        snapshot.take(plan)
        with _refusals_of_the_system(run, plan, token):
            run.clear_for_resume()
        try:
            with _interrupted(run), _refusals_of_the_system(run, plan, token):
                _record(run, prepared, config, overrides)
                job = start(run, plan, token, resumed=tried_before)
                journal_jobs(run, plan, job.job_id, token)
        except Refused:  # the run is unchanged
            run.restore_record()
            raise
    return Submitted(run, job.job_id)


def require_over(run: Run, live: JobMonitor) -> None:
    """Checks that a run can be resumed.

    Raises:
        RunError: it is done, or not over.
    """
    seen = status_of(run, live)
    if seen.state is RunState.DONE:
        raise RunError(f"{run.id} is done: there is nothing to resume")
    if not seen.state.over:
        word = f" ({seen.detail})" if seen.state is RunState.UNKNOWN and seen.detail else ""
        raise RunError(f"{run.id} is {seen.state.value}{word}: to change its size, `touch {run.path}/stop` and wait")


def journal_jobs(run: Run, plan: JobPlan, job_id: str, token: str) -> None:
    """Writes the job into the journal. With resume.how=chain it first submits the jobs that follow."""
    if plan.resume.how != ResumeHow.chain.value:
        run.journal(events.Submitted(job=job_id))
        return
    environment = job_environment(os.environ, plan).environment
    jobs = [job_id]
    try:
        for number in range(1, plan.resume.max_attempts):
            script = str(run.path / "script.sh")
            jobs.append(
                submit_after(plan, jobs[-1], script, f"{token}-{number}", environment, plan.cluster.submit_timeout)
            )
    finally:  # some may have been submitted before the site refused more
        run.journal(events.Submitted(job=jobs[0], chain=tuple(jobs[1:])))


def start(
    run: Run, plan: JobPlan, token: str, resumed: bool, blocking_jobs: Callable[[], Sequence[str]] | None = None
) -> Job[Any]:
    """Submits one run.

    Args:
        run: the run.
        plan: its plan.
        token: by which its job is found.
        resumed: it may have been submitted with this token before.
        blocking_jobs: returns the jobs that must end before it may start; None: those of the key `after`.
    """
    executor = registry.scheduler(plan.cluster.scheduler).executor()
    held = executor(
        run, plan, token, resumed=resumed, blocking_jobs=blocking_jobs or (lambda: dependencies.blocking_jobs(plan))
    )
    return held.submit(payload.run, str(run.path))


def require_commands(plan: JobPlan) -> None:
    """Checks that this machine can submit to the scheduler of a plan.

    Raises:
        SubmissionError: it cannot; the text names the reason.
    """
    if problem := registry.scheduler(plan.cluster.scheduler).problem():
        raise SubmissionError(f"nothing was submitted: {problem}")


def require_same(run: Run, plan: JobPlan) -> None:
    """Checks that an existing run has the same plan.

    Raises:
        ConfigError: it differs; the text names the keys.
    """
    mine, theirs = (json.loads(json.dumps(keys_of(each))) for each in (plan, run.first_plan()))
    different = [key for key in mine if mine[key] != theirs.get(key) and key not in OF_THE_COMMAND]
    if different:
        raise ConfigError(
            f"{plan.run_id} is there already with other values of {', '.join(different)}: choose another "
            + ("sweep.id" if run.is_point else "run_id")
        )


def _code_root() -> str | None:
    root = code_root()
    return None if root is None else str(root)


def _with_baseline(config: Config) -> Config:
    """Returns the config with the path of the run or file that `baseline` names."""
    if config.baseline is None:
        return config
    workload = config.workload
    if not hasattr(workload, "baseline"):
        raise ConfigError(
            f"baseline={config.baseline}: workload={workload.name} is not compared with another run: leave it out "
            f"({program()} report compares runs of every kind)"
        )
    path = Path(config.baseline).expanduser().absolute()
    if not path.is_file():
        try:
            path = find(config.baseline, Path(config.runs_dir).expanduser().absolute()).path
        except RunError as error:
            raise ConfigError(f"baseline={config.baseline}: {error}") from None
    found: dict[str, Any] = {"baseline": str(path)}
    return dataclasses.replace(config, workload=dataclasses.replace(workload, **found))


def _check_live(plan: JobPlan, config: Config, environ: Mapping[str, str], jobs: int) -> tuple[str, ...]:
    if not config.cluster.check:
        return ()
    queue = registry.queue(plan.cluster.scheduler)
    notes = queue.compare(plan, environ)
    if not (jobs and limits.limited_jobs(config.cluster) and isinstance(queue, CountsJobs)):
        return notes
    try:
        there = queue.count_jobs(plan.cluster.submit_timeout)
    except QueryError as error:
        return (*notes, f"your jobs were not counted: {error}")
    limits.check_jobs(config.cluster, jobs, there)
    return notes


def held_allocation(config: Config, environ: Mapping[str, str]) -> Allocation | None:
    """Returns the allocation of this shell, for a cluster that uses it; None for other clusters.

    Raises:
        ConfigError: the shell is in no allocation.
    """
    return scheduler_of(config.cluster).held(environ)


def _commit(folder: str) -> str | None:
    """Returns the git commit of a folder, with a `+` if files differ from it; None: it is in no repository."""
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

"""Idempotent submission of a plan: the run directory is created first, then the job, with a journal in between.

Another submission of a run id with the same config returns the existing job, or completes an interrupted submission.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from launcher import __version__, redaction
from launcher.agent import payload
from launcher.environment import code_files, snapshot
from launcher.environment import secrets as secret
from launcher.errors import ConfigError, SubmissionError, UnavailableError, explain
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.formatting import clean
from launcher.paths import default_runs_dir
from launcher.plan.plan import JobPlan, keys_of
from launcher.runs import events, live_runs_index
from launcher.runs.directory import Run, chain_tokens
from launcher.runs.events import Submitting, every
from launcher.runs.history import journal_events, process_of, read_history
from launcher.runs.lease_and_locks import only_submitter
from launcher.schedulers import registry
from launcher.schedulers.base import BY_HAND
from launcher.schedulers.run_command import SubmissionRefused, submit_behind
from launcher.submission import dependencies, race, render
from launcher.submission.prepare import Prepared

if TYPE_CHECKING:
    from launcher.schedulers.executor import RunExecutor

# Fields of a plan that may differ between two submissions of one run.
OF_THE_COMMAND = (
    "workdir", "umask", "python", "queued", "code.repository", "code.path", "secrets_dir", "workload.hook"
)  # fmt: skip


class SubmittedRun(Struct):
    run: Run
    job_id: str  # BY_HAND: the user has yet to submit it
    again: bool = False  # whether the job existed already: an earlier submission of this run made it
    command: str = ""  # with submit=false: the command with which the user submits the job


def submit(
    prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str] = (), *, by_hand: bool = False
) -> SubmittedRun:
    """Creates the run directory and submits the job; raises ConfigError, and SubmissionError: refused, or no answer.

    overrides: of the user, for the record. by_hand: the user submits the job, with the result's command (submit=false).
    """
    plan = prepared.plan
    run = Run(Path(plan.run_dir))
    if not run.recorded():
        require_commands(plan)
    public = redacted_record(prepared, config, overrides)
    with secret.exported(prepared.secrets), _only_submitter(run, prepared):
        if resumed := run.recorded():  # maybe since a moment ago, by another process
            require_same(run, plan)
        else:  # new, or its submitter was killed before it submitted anything
            _record(run, prepared, *public)
        run.link(default_runs_dir(), latest=False)  # now: commands must find it if the scheduler's answer is lost
        if job_id := read_history(run).job_id:
            return SubmittedRun(run, job_id, again=True)
        if resumed:
            run.unmark("cancelled")  # before there was a job
        try:
            again = f"the command with run_id={run.id}"
            with interrupted(run, again), refusals_of_the_system(run, plan, prepared.token):
                started = start(run, plan, prepared.token, resumed, by_hand=by_hand)
        except SubmissionRefused:
            if not resumed:
                remove(run)
            raise
        except SubmissionError as error:
            raise SubmissionError(
                f"{error}.\nRepeat the command with run_id={plan.run_id}: it takes the job that is there, or submits "
                "it if there is none"
            ) from None
    run.link(default_runs_dir())
    return started


@contextlib.contextmanager
def _only_submitter(run: Run, prepared: Prepared) -> Iterator[None]:
    # Makes the run's folder if it is not there: another process, which was refused, may remove it while this one waits
    with contextlib.ExitStack() as held:
        while True:
            with refusals_of_the_system(run, prepared.plan, prepared.token):
                if run.recorded():
                    run.require_private()
                else:
                    Run.create(run.path)
            with contextlib.suppress(FileNotFoundError):
                held.enter_context(only_submitter(run.path))
                break
        yield


@contextlib.contextmanager
def refusals_of_the_system(run: Run, plan: JobPlan, token: str) -> Iterator[None]:
    """Turns errors of the operating system into SubmissionRefused, or SubmissionError if there may be a job already."""
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
        raise SubmissionRefused(f"nothing was submitted: {words}", definite=True) from None


@contextlib.contextmanager
def interrupted(run: Run, again: str) -> Iterator[None]:
    """Delays Ctrl-C in the block until the submission is complete; then, or at the second one, raises Interrupted."""
    try:
        with delayed_interrupt() as pressed:
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"nobody knows whether {run.id} was submitted: repeat {again}, which takes the "
            f"job that is there, or end it with `launcher cancel {run.id}`"
        ) from None
    if pressed:
        job_id = read_history(run).job_id
        raise Interrupted(f"{run.id} was submitted as job {job_id}, and goes on: `launcher cancel {run.id}` ends it")


def tried(run: Run, token: str) -> bool:
    return any(entry.token == token for entry in every(journal_events(run), Submitting))


def remove(run: Run) -> None:
    """Removes the directory of a run, or of a sweep, that was not submitted after all."""
    gone = run.path.with_name(safe_io.temporary_name(run.path.name))
    with contextlib.suppress(OSError):  # at once: another process may be making it again
        run.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    live_runs_index.discard(run.path)
    run.unlink(default_runs_dir())


def _record(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    try:
        with refusals_of_the_system(run, prepared.plan, prepared.token):
            snapshot.take(prepared.plan)
            write_record(run, prepared, config, overrides)
    except (ConfigError, SubmissionRefused):
        remove(run)
        raise


def redacted_record(
    prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Returns `config` and `overrides` for the record, without secrets; ConfigError: one cannot be left out."""
    names = prepared.plan.env.secrets
    found = (secret.redact_config(config, names), secret.redact_overrides(overrides, names))
    secrets = {**redaction.secrets_in(os.environ, names), **prepared.secrets}
    secret.require_absent({**found[0], "overrides": found[1]}, secrets)
    return found


def write_record(run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Writes the record of a run; config (resolved) and overrides have no secrets."""
    facts = {**facts_of_here(prepared.plan.submitted_in), "token": prepared.token, "overrides": list(overrides)}
    run.write_record(prepared.plan, config, facts)


def facts_of_here(folder: str) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "launcher": __version__, "python": platform.python_version(), "hydra": version("hydra-core"),
        "submitit": version("submitit"), "host": platform.node(), "commit": code_files.commit_of(folder),
    }  # fmt: skip


def start(
    run: Run, plan: JobPlan, token: str, resumed: bool, blocking_jobs: Callable[[], Sequence[str]] | None = None, *,
    by_hand: bool = False,
) -> SubmittedRun:  # fmt: skip
    """Submits the job of a run, and those of its chain, and writes them into its journal; resumed: there may be one.

    blocking_jobs: returns those that must end first; None: of key `after`.
    """

    def executor_of(plan: JobPlan, token: str) -> RunExecutor:
        return registry.scheduler(plan.cluster.scheduler).executor()(
            run, plan, token, scripts=render, resumed=resumed, by_hand=by_hand,
            blocking_jobs=blocking_jobs or (lambda: dependencies.blocking_jobs(plan)),
        )  # fmt: skip

    if plan.race:
        ids = race.submit_all(
            plan, token, lambda each, own: executor_of(each, own).submit(payload.run, str(run.path)).job_id,
            lambda: run.has(f".race-{token}"), SubmissionRefused,
        )  # fmt: skip
        run.journal(events.Submitted(job=ids[0], chain=tuple(ids[1:]), race=True))
        return SubmittedRun(run, ids[0])
    executor = executor_of(plan, token)
    jobs, script = [executor.submit(payload.run, str(run.path)).job_id], str(run.path / "script.sh")
    following = chain_tokens(plan, token)[1:]
    if jobs[0] == BY_HAND:
        return SubmittedRun(run, BY_HAND, command=_chain(plan, executor, script, following))
    try:
        for each in following:
            timeout = plan.cluster.submit_timeout
            jobs.append(submit_behind(plan, jobs[-1:], script, each, executor.environment, timeout, resumed))
    except SubmissionRefused as error:  # a limit on the number of jobs, say: the run goes on with those that are there
        print_notice(f"the chain has {len(jobs)} of {len(following) + 1} jobs: {error}")
    finally:  # also after an error that leaves unknown whether there are more
        run.journal(events.Submitted(job=jobs[0], chain=tuple(jobs[1:])))
    return SubmittedRun(run, jobs[0])


def _chain(plan: JobPlan, executor: RunExecutor, script: str, tokens: Sequence[str]) -> str:
    # The commands of a chain for the user's shell, in which $job is the job before
    if not tokens:
        return executor.command
    before, commands = "@job@", registry.queue(plan.cluster.scheduler).queries(0)
    lines = [f"job=$( {executor.command} )"]
    for token in tokens:
        request = commands.request(script, executor.environment, *commands.terse, *commands.options([before], token))
        lines.append(f"job=$( {request.line(os.environ)} )".replace(before, '"${job%%;*}"'))
    return " &&\n".join(lines)


def require_commands(plan: JobPlan) -> None:
    if problem := registry.scheduler(plan.cluster.scheduler).problem():
        raise SubmissionError(f"nothing was submitted: {problem}")


def require_same(run: Run, plan: JobPlan) -> None:
    """Raises ConfigError, with the keys, if an existing run has another plan, apart from OF_THE_COMMAND."""
    if different := [key for key in different_keys(plan, run.first_plan()) if key not in OF_THE_COMMAND]:
        raise ConfigError(
            f"{plan.run_id} is there already with other values of {', '.join(different)}: choose another "
            + ("sweep.id" if run.is_point else "run_id")
        )


def different_keys(plan: JobPlan, other: JobPlan) -> list[str]:
    mine, theirs = (json.loads(json.dumps(keys_of(each))) for each in (plan, other))
    return [key for key in mine if mine[key] != theirs.get(key)]


# -- Ctrl-C during a submission: it is delayed until the scheduler has answered, so that no job is left unrecorded


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a submission. The text names the submitted jobs, and the command that cancels them."""


def print_notice(words: str) -> None:
    """Prints a line to stderr, also in a signal handler, which may have interrupted a write to its buffer."""
    with contextlib.suppress(OSError):  # the terminal is closed
        os.write(2, f"launcher: {clean(words)}\n".encode())


@contextlib.contextmanager
def delayed_interrupt() -> Iterator[list[int]]:
    """Delays Ctrl-C in the block, unless the program handles it: the first is put into the list, the second raises."""
    noted: list[int] = []

    def interrupted(number: int, _: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt
        print_notice(
            "interrupted: waiting for the scheduler's answer, so that the job is recorded; Ctrl-C again leaves at once"
        )

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""Another attempt of a run from overrides: makes its plan, and submits it if the run is over."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.config import compose
from launcher.config.compose import FOR_HYDRA, Composed
from launcher.config.errors import with_place
from launcher.config.overrides import element, key_of, opened, quoted, require_cluster
from launcher.environment import secrets, snapshot
from launcher.environment.code_files import sent_tree
from launcher.errors import ConfigError, RunError, program
from launcher.fast_dataclasses import Struct
from launcher.files.folder_checks import require_own
from launcher.monitoring.run_status import JobMonitor, RunState, queries, rerun, status_of
from launcher.plan.limits import pools_by_key
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Refused, every
from launcher.runs.events import Submitted as JobSubmitted
from launcher.runs.history import journal_events, read_history
from launcher.runs.lease_and_locks import only_submitter
from launcher.runs.sweep_directory import COMMAND_KEYS, sweep_of
from launcher.schedulers import registry
from launcher.schedulers.run_command import SubmissionRefused
from launcher.submission import race
from launcher.submission import submit as submission
from launcher.submission.dependencies import update_followers
from launcher.submission.prepare import Prepared, check_capacity, prepare
from launcher.submission.submit import SubmittedRun, require_commands, start, submit

# -- Configs with the number of nodes of the allocation that this process is in (`${launcher.held_nodes:}`)


def register() -> None:
    """Registers the schema and our resolvers with Hydra for the rest of this process, which is our command line."""
    compose.register(_held_nodes)


def composed_config(overrides: Sequence[str]) -> Composed:
    with compose.registered(_held_nodes):
        return compose.composed(overrides)


def _held_nodes() -> int:
    return registry.nodes(os.environ)


def resume(
    run: Run, prepared: Prepared, config: Mapping[str, Any], overrides: Sequence[str], *, by_hand: bool = False
) -> SubmittedRun:
    """Submits another attempt of a run that is over; raises ConfigError, RunError, SubmissionError, QueryError."""
    public = submission.redacted_record(prepared, config, overrides)
    plan = prepared.plan
    require_commands(plan)
    with secrets.exported(prepared.secrets), only_submitter((sweep_of(run) or run).path):
        before = run.plan()
        if {"workload.entry", "workload.kind"} & {*submission.different_keys(plan, before)}:
            now = plan.workload.name
            raise ConfigError(f"{run.id} is a run of workload={before.workload.name}: for {now} start another run")
        require_over(run)
        if recover(run, before, "" if _differs(plan, before) else _token(run, prepared)):
            require_over(run)
        token = _token(run, prepared)
        tried_before = submission.tried(run, token)
        prepared = dataclasses.replace(prepared, token=token)
        snapshot.take(plan)
        # The jobs of a chain that failed would have ended because of a mark that is removed now
        followers = read_history(run).waiting
        for job in followers:
            queries(before).cancel(job)
        with submission.refusals_of_the_system(run, plan, token):
            run.clear_for_resume()
        try:
            with submission.interrupted(run, "the command"), submission.refusals_of_the_system(run, plan, token):
                submission.write_record(run, prepared, *public)
                started = start(run, plan, token, resumed=tried_before, by_hand=by_hand)
        except (SubmissionRefused, ConfigError) as error:  # the run is unchanged
            # What fails before the scheduler is asked says nothing of an earlier try, which may have made a job.
            if submission.tried(run, token) and (isinstance(error, SubmissionRefused) or not tried_before):
                with contextlib.suppress(OSError):  # a full disk: the run then counts as unconfirmed
                    run.journal(Refused(token=token, error=str(error)))
            run.restore_record()
            run.unmark("script.sh")  # of what was refused: the next attempt makes it anew
            raise
        for problem in update_followers(run.path) if followers else ():  # PBS holds what waits for a deleted job
            submission.print_notice(f"a dependency was not updated to job {started.job_id}: {problem}")
        return started


def _token(run: Run, prepared: Prepared) -> str:
    # The same one until the journal says `submitted`, so that repeating the command looks for the same job
    return f"{prepared.token}-r{len(every(journal_events(run), JobSubmitted))}"


def recover(run: Run, plan: JobPlan, without: str = "") -> bool:
    """Records jobs of a run of which no submitter has learnt: it, or the job that submits the next one, was killed.

    Returns whether there was one; without: a token that is not looked for. Needs the submitter's lock.
    """
    found, base = False, f"{token_of(plan.run_dir)}-"  # a point's history has the tokens of its arrays, too
    for token in sorted(read_history(run).open - {without}) if plan.queued else ():
        if token.startswith(base) and (job := queries(plan).find(token, plan.name)):
            run.journal(JobSubmitted(job=job))
            found = True
    return found


def _differs(plan: JobPlan, before: JobPlan) -> bool:
    # Whether a job for the plan before would be another one
    return bool({*submission.different_keys(plan, before)} - {*submission.OF_THE_COMMAND})


def require_over(run: Run) -> None:
    """Raises RunError if a run is done, or is not over, so that it cannot be resumed."""
    seen = status_of(run, JobMonitor())
    if seen.state is RunState.DONE:
        raise RunError(f"{run.id} is done: there is nothing to resume")
    if not seen.state.over and seen.state is not RunState.UNSUBMITTED:
        word = f" ({seen.job.text})" if seen.state is RunState.UNKNOWN and seen.job.text else ""
        queued = seen.state in (RunState.QUEUED, RunState.UNCONFIRMED)
        do = f"`{program()} cancel {run.id}` first" if queued else f"`touch {run.path}/stop` and wait"
        raise RunError(f"{run.id} is {seen.state.value}{word}: to change its size, {do}")


FIXED = ("run_id", "runs_dir", "workload", "name")  # keys that another attempt of a run cannot change


class Ready(Struct):
    """An attempt that has passed every check. A dry run shows it, and `submit` submits it."""

    composed: Composed
    prepared: Prepared
    overrides: tuple[str, ...]  # overrides of the user, from this command and from earlier attempts
    run: Run | None = None  # run that gets another attempt; None: it is a new run

    def submit(self) -> SubmittedRun:
        by_hand = not self.composed.config.submit
        if self.run is None:
            return submit(self.prepared, self.composed.resolved, self.overrides, by_hand=by_hand)
        with _submitted_in(self.run):
            return resume(self.run, self.prepared, self.composed.resolved, self.overrides, by_hand=by_hand)


def ready_run(composed: Composed, overrides: Sequence[str]) -> Ready:
    if word := next((each for each in overrides if key_of(each).startswith("sweep.")), None):
        raise ConfigError(f"{word} is for a sweep, and this is a single run: add -m, or leave it out")
    require_cluster(overrides, composed.config.cluster.scheduler)
    return Ready(*_prepared(composed, overrides), tuple(overrides))


def _prepared(composed: Composed, overrides: Sequence[str], **given: Any) -> tuple[Composed, Prepared]:
    # For a race, with the plans of all its jobs; the config is the first one's
    made: list[Composed] = []

    def one(words: Sequence[str]) -> Prepared:
        made.append(composed_config([*overrides, *words]) if words else composed)
        with with_place([*overrides, *words]):
            return prepare(made[-1].config, **given)

    if not (members := composed.config.cluster.race):
        return composed, one(())
    if not composed.config.submit:
        raise ConfigError("submit=false: a race has several jobs, of which the winner ends the others: leave it out")
    found = race.prepared(
        members, one, lambda number, plan, jobs: check_capacity(plan, made[number].config, os.environ, None, jobs)
    )
    return made[0], found


def ready_attempt(run: Run, changes: Sequence[str], *, new_snapshot: bool = False) -> Ready:
    """Prepares another attempt of a run; relative paths in `changes` are of the folder of its submission.

    new_snapshot: whether to copy the code again, with env.snapshot. Raises ConfigError, and RunError: it is not ours.
    """
    require_own(run.path, "resume it")
    if again := rerun(run):
        raise RunError(f"{run.id} is part of a packed sweep: `{program()} {again}` starts again what is not done")
    record = run.record()
    if "overrides" not in record:
        raise RunError(f"{run.path}/record.json does not tell how it was submitted: another version wrote it")
    for word in changes:
        if "=" not in word or FOR_HYDRA.match(word):
            raise ConfigError(f"{word!r} is not KEY=VALUE")
        if (key := key_of(word)) in FIXED:
            raise ConfigError(f"{word}: {key} is what makes it this run; start another one instead")
    before = opened(record["overrides"])
    of_sweep = record["config"]["sweep"]["after"] if sweep_of(run) else None  # not in a point's overrides
    if of_sweep and "sweep.after" not in map(key_of, before):
        before = [*before, f"sweep.after={element(of_sweep)}"]
    overrides = merged_overrides(before, opened(changes))
    with _submitted_in(run):
        words = [*overrides, *place_overrides(run)]
        composed, prepared = _prepared(composed_config(words), words, run_id=run.id, new_snapshot=new_snapshot)
    return Ready(composed, prepared, tuple(overrides), run)


def secrets_again(run: Run) -> dict[str, str]:
    """Returns the secrets that a run's config sets (cluster.environment), by name, if they still have a value."""
    words, plan = [*run.record().get("overrides", []), *place_overrides(run)], run.plan()
    with compose.registered(_held_nodes):
        pools = [name.partition("@")[0] for name in pools_by_key(plan).values()]
        return compose.variables(words, plan.secret_variables, pools)


def place_overrides(run: Run) -> list[str]:
    """Returns runs_dir and run_id of a new attempt in the run's directory; for a point (no such id) runs_dir alone."""
    sweep = sweep_of(run)
    runs_dir = f"runs_dir={quoted(str((sweep or run).path.parent))}"
    return [runs_dir] if sweep else [f"run_id={run.id}", runs_dir]


@contextlib.contextmanager
def _submitted_in(run: Run) -> Iterator[None]:
    # If that folder is gone and the run has a snapshot, the job's workdir in the snapshot is used. New code that was
    # sent for this attempt is in the working folder
    if sent_tree(os.getcwd()) is not None:
        yield
        return
    plan = run.plan()
    # The snapshot has what the job needs.
    gone = plan.code.snapshot is not None and not os.path.isdir(plan.submitted_in)
    folder = plan.workdir if gone else plan.submitted_in
    before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))  # O_PATH: the folder may not be readable
    try:
        try:
            os.chdir(folder)
        except OSError as error:
            raise RunError(
                f"{run.id} was submitted in {folder}, where its job starts: it cannot be entered ({error.strerror})"
            ) from None
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def merged_overrides(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Returns a record's overrides (but of keys in `now` or COMMAND_KEYS), then those of a new command."""
    added = {key_of(word) for word in before if word.startswith("+")}  # keys that the config itself does not have
    now = [f"+{word}" if key_of(word) in added and not word.startswith(("+", "~")) else word for word in now]
    replaced = {*COMMAND_KEYS, *map(key_of, now)}
    return [word for word in before if key_of(word) not in replaced] + now

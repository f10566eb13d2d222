"""Makes a checked plan from overrides: of a new run, or of another attempt of a run. Commands and the API use it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.config.compose import FOR_HYDRA, Composed
from launcher.config.hydra_text import key_of, quoted
from launcher.config.keys import opened
from launcher.errors import ConfigError, RunError
from launcher.files.ownership import require_own
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import sweep_of
from launcher.submission import configs
from launcher.submission.prepare import Prepared, prepare
from launcher.submission.resume import resume
from launcher.submission.submit import Submitted, submit

FIXED = ("run_id", "runs_dir", "workload", "name")  # keys that another attempt of a run cannot change
# Keys that are for one command: a resumed run does not take them from its earlier overrides.
PASSING = ("run_id", "runs_dir", "wait", "dry_run", "confirm_above")


@dataclass(frozen=True)
class Ready:
    """An attempt that has passed every check. A dry run shows it, and `submit` submits it."""

    composed: Composed
    prepared: Prepared
    overrides: tuple[str, ...]  # overrides of the user, from this command and from earlier attempts
    run: Run | None = None  # run that gets another attempt; None: it is a new run

    def submit(self) -> Submitted:
        """Submits the attempt.

        Raises:
            ConfigError: the run directory cannot be made, or an existing run of this id has another config or workload.
            RunError: the run to resume is done, is not over, or runs in pilots of its sweep.
            SubmissionError: the scheduler refused the job, or did not answer (repeat the command).
        """
        if self.run is None:
            return submit(self.prepared, self.composed.resolved, self.overrides)
        with _submitted_in(self.run):
            return resume(self.run, self.prepared, self.composed.resolved, self.overrides)


def new(composed: Composed, overrides: Sequence[str]) -> Ready:
    """Prepares a new run. Raises ConfigError: the config cannot be run; the text names the fix."""
    if word := next((each for each in overrides if key_of(each).startswith("sweep.")), None):
        raise ConfigError(f"{word} is for a sweep, and this is a single run: add -m, or leave it out")
    return Ready(composed, prepare(composed.config), tuple(overrides))


def again(run: Run, changes: Sequence[str], *, new_snapshot: bool = False) -> Ready:
    """Prepares another attempt of a run. Relative paths in `changes` refer to the folder where the run was submitted.

    new_snapshot: whether to copy the code again, with env.snapshot.
    Raises ConfigError: a change is not KEY=VALUE or changes a key in FIXED, or the config cannot be run.
    Raises RunError: the run belongs to another user, or its record has no overrides.
    """
    require_own(run.path, "resume it")
    record = run.record()
    if "overrides" not in record:
        raise RunError(f"{run.path}/record.json does not tell how it was submitted: another version wrote it")
    for word in changes:
        if "=" not in word or FOR_HYDRA.match(word):
            raise ConfigError(f"{word!r} is not KEY=VALUE")
        if (key := key_of(word)) in FIXED:
            raise ConfigError(f"{word}: {key} is what makes it this run; start another one instead")
    overrides = merged(record["overrides"], opened(changes))
    with _submitted_in(run):
        composed = configs.composed([*overrides, *place(run)])
        prepared = prepare(composed.config, run_id=run.id, new_snapshot=new_snapshot)
    return Ready(composed, prepared, tuple(overrides), run)


def secrets_again(run: Run) -> dict[str, str]:
    """Returns the values of the secret variables that a run's config sets (cluster.environment), by name.

    A variable is left out if its value cannot be determined any more.
    """
    return configs.variables([*run.record().get("overrides", []), *place(run)], run.plan().secret_variables)


def place(run: Run) -> list[str]:
    """Returns the overrides that place a new attempt in the run's directory: runs_dir and run_id.

    For a point of a sweep it is runs_dir alone, since a config cannot have the id of a point.
    """
    sweep = sweep_of(run)
    runs_dir = f"runs_dir={quoted(str((sweep or run).path.parent))}"
    return [runs_dir] if sweep else [f"run_id={run.id}", runs_dir]


@contextlib.contextmanager
def _submitted_in(run: Run) -> Iterator[None]:
    # If that folder is gone and the run has a snapshot, the job's workdir in the snapshot is used
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
                f"{run.id} was submitted in {folder}, which cannot be entered ({error.strerror}): "
                "its job starts there, so make that folder again"
            ) from None
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def merged(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Returns the overrides of a run's record (`before`), followed by those of a new command (`now`).

    Overrides in `before` of keys in `now` or PASSING are left out.
    """
    added = {key_of(word) for word in before if word.startswith("+")}  # keys that the config itself does not have
    now = [f"+{word}" if key_of(word) in added and not word.startswith(("+", "~")) else word for word in now]
    replaced = {*PASSING, *map(key_of, now)}
    return [word for word in before if key_of(word) not in replaced] + now

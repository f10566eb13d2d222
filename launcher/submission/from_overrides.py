"""From overrides to what would be submitted: a new run, or another attempt of one. For commands and scripts."""

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
from launcher.submission.submit import Submitted, submit

FIXED = ("run_id", "runs_dir", "workload", "name")  # what makes it this run
PASSING = ("run_id", "runs_dir", "wait", "dry_run", "confirm_above")  # of one command, not of the run


@dataclass(frozen=True)
class Ready:
    """An attempt that has passed every check: what a dry run shows, and what `submit` hands over.

    Attributes:
        composed: its config.
        prepared: its plan, and what the user should know.
        overrides: what the user wrote to get it, this time and before.
        run: the one that continues; None: it is a new one.
    """

    composed: Composed
    prepared: Prepared
    overrides: tuple[str, ...]
    run: Run | None = None

    def submit(self) -> Submitted:
        """Hands it over; raises what `submit` and `resume` of this package raise."""
        if self.run is None:
            return submit(self.prepared, self.composed.resolved, self.overrides)
        # Lazily: only a resume needs the state of a run, and what finds that takes 10 ms
        from launcher.submission.resume import resume

        with _submitted_in(self.run):
            return resume(self.run, self.prepared, self.composed.resolved, self.overrides)


def new(composed: Composed, overrides: Sequence[str]) -> Ready:
    """A new run.

    Raises:
        ConfigError: the config cannot be run; the text names the fix.
    """
    if word := next((each for each in overrides if key_of(each).startswith("sweep.")), None):
        raise ConfigError(f"{word} is for a sweep, and this is a single run: add -m, or leave it out")
    return Ready(composed, prepare(composed.config), tuple(overrides))


def again(run: Run, changes: Sequence[str], *, new_snapshot: bool = False) -> Ready:
    """Another attempt of a run, from the folder where it was submitted: relative paths in its overrides begin there.

    Args:
        run: the run.
        changes: overrides on top of those that it had.
        new_snapshot: with env.snapshot: of the code as it is now.

    Raises:
        ConfigError: a change is none that a run may have, or the config cannot be run.
        RunError: the run is somebody else's, or its record does not say how it was submitted.
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
    """The secrets that a run's config sets: of the profile, or of a variable that its overrides name. Those that
    cannot be had any more are left out."""
    return configs.variables([*run.record().get("overrides", []), *place(run)], run.plan().secret_variables)


def place(run: Run) -> list[str]:
    """The overrides by which a run is found; the id of a sweep's point is none that a config may have."""
    sweep = sweep_of(run)
    runs_dir = f"runs_dir={quoted(str((sweep or run).path.parent))}"
    return [runs_dir] if sweep else [f"run_id={run.id}", runs_dir]


@contextlib.contextmanager
def _submitted_in(run: Run) -> Iterator[None]:
    """Inside, the working folder is the one where the run was submitted.

    Raises:
        RunError: it cannot be entered.
    """
    plan = run.plan()
    gone = plan.code.snapshot is not None and not os.path.isdir(
        plan.submitted_in
    )  # the snapshot has what the job needs
    folder = plan.workdir if gone else plan.submitted_in
    before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))  # which may not be readable
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
    """The overrides of a run with others on top; of those for one key only the last counts. Pure."""
    added = {key_of(word) for word in before if word.startswith("+")}  # keys that the config itself does not have
    now = [f"+{word}" if key_of(word) in added and not word.startswith(("+", "~")) else word for word in now]
    replaced = {*PASSING, *map(key_of, now)}
    return [word for word in before if key_of(word) not in replaced] + now

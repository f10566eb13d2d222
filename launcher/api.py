"""Runs for scripts on the login node: `submit` one, `find` one, wait for it, read its metrics, resume it.

The same as the command line, from the same overrides: nothing is asked, and nothing is printed (but for a line on
standard error when a scheduler does not answer for seconds). What goes wrong is raised as an error of launcher.errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.hydra_text import element
from launcher.errors import ConfigError, UnavailableError
from launcher.files.ownership import require_own
from launcher.monitoring.live import Live, look
from launcher.monitoring.state import RunState
from launcher.paths import GROUPS, default_runs_dir
from launcher.runs import directory, lookup
from launcher.runs.output import Stream
from launcher.runs.sweep_directory import sweep_of

if TYPE_CHECKING:
    from launcher.config.schema import Config
    from launcher.spec.plan import JobPlan
    from launcher.submission.from_overrides import Ready

Overrides = str | Sequence[str] | Mapping[str, Any]

FIRST, SLOWER, SLOWEST = 0.1, 1.2, 15.0  # seconds between two looks at a run, and how they become more


class Run:
    """A run, by its directory: everything is read anew when it is asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """
        Args:
            path: its directory.
        """
        self._run = directory.Run(Path(path).absolute())

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def id(self) -> str:
        """By which every command knows it; SWEEP/7 of a sweep's point."""
        return self._run.id

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._run.path

    @property
    def plan(self) -> JobPlan:
        """What its scheduler is asked for, and what its ranks run.

        Raises:
            RunError: it cannot be read.
        """
        return self._run.plan()

    def state(self) -> RunState:
        """What it does now: its record first, then its scheduler, which is asked no more often than commands ask it.

        Raises:
            RunError: the record cannot be read.
        """
        return look(self._run, Live(share=True)).state

    def wait(self, timeout: float | None = None) -> RunState:
        """Waits until it is over, also through attempts that it begins by itself.

        Args:
            timeout: seconds after which it is waited for no longer; None: none.

        Returns:
            Its state; after `timeout` one whose `over` is False.

        Raises:
            RunError: the record is damaged.
        """
        live, pause = Live(share=True), FIRST
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                state = look(self._run, live).state
            except UnavailableError:  # nothing follows from it, and later it can be read
                state = RunState.UNKNOWN
            left = pause if until is None else until - time.monotonic()
            if state.over or left <= 0:
                return state
            time.sleep(min(pause, left))
            pause = min(pause * SLOWER, SLOWEST)

    def cancel(self) -> None:
        """Ends it: its ranks get SIGTERM, and SIGKILL after launch.grace seconds. One that is over stays as it is.

        Raises:
            RunError: it is somebody else's, or runs on another machine.
            QueryError: the scheduler does not answer.
        """
        require_own(self.path, "cancel it")
        if sweep := sweep_of(self._run):
            from launcher.sweeps import control

            control.cancel(sweep, [int(self.path.name)])
            return
        live = Live()
        if not look(self._run, live).state.over:
            live.cancel(self._run)

    def resume(self, overrides: Overrides = (), *, new_snapshot: bool = False, **keys: Any) -> Run:
        """Another attempt, from the newest checkpoint; everything stays as it was but for what is given.

        Args:
            overrides: what is to be different; as for `submit`.
            new_snapshot: with env.snapshot: of the code as it is now.
            keys: the same.

        Returns:
            This run.

        Raises:
            ConfigError: it cannot be run that way.
            RunError: it is done, not over, or somebody else's.
            SubmissionError: the scheduler refused, or did not answer.
        """
        from launcher.submission import from_overrides

        from_overrides.again(self._run, words_of(overrides, keys), new_snapshot=new_snapshot).submit()
        return self

    def metrics(self) -> dict[str, Any]:
        """What rank 0 returned or reported; empty while there is nothing.

        Raises:
            UnavailableError: it cannot be read now.
        """
        return self._run.result() or {}

    def logs(self, ranks: Sequence[int] = (), *, attempt: int | None = None) -> Iterator[str]:
        """What it has printed so far, line by line, `[3] ` in front of those of rank 3; attempt after attempt.

        Args:
            ranks: only of these; empty: of all.
            attempt: only of this one, from 0 up; None: of all.
        """
        for text in Stream(self._run, attempt=attempt, ranks=ranks).new(last=True):
            yield from text.decode(errors="replace").removesuffix("\n").split("\n")


@dataclass(frozen=True)
class PreparedRun:
    """A run that has passed every check of a submission: what `submit` hands over, to the letter."""

    _ready: Ready

    @property
    def id(self) -> str:
        """That it will have."""
        return self._ready.prepared.plan.run_id

    @property
    def path(self) -> Path:
        """The directory that it will have."""
        return Path(self._ready.prepared.plan.run_dir)

    @property
    def config(self) -> Config:
        """As it was composed."""
        return self._ready.composed.config

    @property
    def plan(self) -> JobPlan:
        """What the scheduler will be asked for, and what the ranks will run."""
        return self._ready.prepared.plan

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, as the command line prints it."""
        return self._ready.prepared.notes

    @property
    def script(self) -> str:
        """The job script."""
        from launcher.schedulers import job_script

        return job_script.script(self.plan, token=self._ready.prepared.token)

    def submit(self) -> Run:
        """Hands it over; again, it returns the run that is there.

        Raises:
            ConfigError: no run directory can be made.
            SubmissionError: the scheduler refused (nothing is left behind), or did not answer (call it again).
        """
        return Run(self._ready.submit().run.path)


def submit(overrides: Overrides = (), **keys: Any) -> Run:
    """Submits a run, and does not wait for it; with cluster=local it runs in the background.

        run = launcher.submit(["workload=ddp_mnist", "cluster=slurm", "nodes=2", "workload.lr=0.1"])
        run = launcher.submit({"workload.lr": 0.1}, workload="ddp_mnist", cluster="slurm", nodes=2)

    Args:
        overrides: as on the command line (`KEY=VALUE`), or keys and their values: texts, numbers, True, None, lists,
            dictionaries, paths. The settings of the command line itself (wait, confirm_above) do nothing here.
        keys: more keys and values, for names without a dot.

    Raises:
        ConfigError: it cannot be run; nothing was submitted.
        SubmissionError: the scheduler refused (nothing is left behind), or did not answer (repeat it with the run_id
            in the text).
    """
    return prepare(overrides, **keys).submit()


def prepare(overrides: Overrides = (), **keys: Any) -> PreparedRun:
    """A dry run: composes, plans and checks, writes nothing, and returns what `submit` would hand over.

    Args:
        overrides: as for `submit`.
        keys: as for `submit`.

    Raises:
        ConfigError: it cannot be run.
    """
    from launcher.config.hydra_errors import require_names
    from launcher.submission import configs, from_overrides

    words = words_of(overrides, keys)
    require_names(words)
    composed = configs.composed(words)
    if composed.config.dry_run:
        raise ConfigError("dry_run=true: launcher.prepare(...) is a dry run; leave the key out")
    return PreparedRun(from_overrides.new(composed, words))


def find(name: str, runs_dir: str | os.PathLike[str] | None = None) -> Run:
    """A run that was submitted, from here or from anywhere.

    Args:
        name: its id, the unique beginning of one, `latest`, its directory, or a sweep's point (SWEEP/7).
        runs_dir: where run directories are; None: $LAUNCHER_RUNS_DIR, else the per-user data folder.

    Raises:
        RunError: there is none, or there are several.
    """
    return Run(lookup.find(name, default_runs_dir() if runs_dir is None else Path(runs_dir)).path)


def words_of(overrides: Overrides, keys: Mapping[str, Any]) -> list[str]:
    """The overrides as they are written on a command line. Pure.

    Raises:
        ConfigError: one is no override of a run's, or a value has no such form.
    """
    from launcher.config.compose import FOR_HYDRA
    from launcher.config.keys import opened

    if isinstance(overrides, str):
        overrides = [overrides]
    if isinstance(overrides, Mapping):
        words = [_written(key, value) for key, value in overrides.items()]
    else:
        words = list(overrides)
    for word in words:
        if ("=" not in word and not word.startswith("~")) or FOR_HYDRA.match(word):
            raise ConfigError(f"{word!r} is not KEY=VALUE")
    return opened([*words, *(_written(key, value) for key, value in keys.items())])


def _written(key: str, value: Any) -> str:
    if key in GROUPS:  # the name of a file in conf/, which Hydra takes without quotes
        return f"{key}={value}"
    return f"{key}={element(_plain(key, value))}"


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(key, each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(key, each) for each in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ConfigError(f"{key}: {type(value).__name__} is nothing that a config can have: give a text, number or list")

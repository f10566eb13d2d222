"""The Python API for scripts on the login node: submit or find a run, wait for it, read its metrics, resume it.

It takes the same overrides as the command line, asks no questions, and prints nothing, except a line on standard error
when a scheduler takes seconds to respond. Errors are those of launcher.errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.overrides import element, opened
from launcher.errors import (
    BAD_INPUT,
    RESUME,
    ConfigError,
    LauncherError,
    NoRunError,
    RunError,
    SubmissionError,
    UnavailableError,
)
from launcher.files.folder_checks import require_own
from launcher.monitoring.run_status import JobMonitor, RunState, status_of, wait_until_over
from launcher.paths import GROUPS, default_runs_dir
from launcher.remote import ssh
from launcher.remote.clusters import RemoteCluster, Unreachable, chosen, locate
from launcher.runs import directory, lookup
from launcher.runs.output_files import Stream
from launcher.runs.sweep_directory import sweep_of
from launcher.submission import render
from launcher.sweeps import control

if TYPE_CHECKING:
    from launcher.config.schema import Config
    from launcher.plan.plan import JobPlan
    from launcher.submission.resume import Ready

Overrides = str | Sequence[str] | Mapping[str, Any]

FIRST, SLOWEST = 0.1, 15.0  # seconds between polls: at first, at most
FIRST_REMOTE, SLOWEST_REMOTE = 1.0, 30.0  # the same behind ssh


class Run:
    """A run that was submitted. Every method and property reads the run's current files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # path: the run's directory
        self._run = directory.Run(Path(path).absolute())

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def id(self) -> str:
        """The run's id, such as `ddp_mnist-20261121-074601-3f9c`; SWEEP/7 for a point of a sweep."""
        return self._run.id

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self._run.path

    @property
    def plan(self) -> JobPlan:
        """The plan: what the scheduler was asked for, and what the ranks run; raises RunError."""
        return self._run.plan()

    def state(self) -> RunState:
        """Returns the run's current state; raises RunError. Replies of the scheduler are shared with other commands."""
        return status_of(self._run, JobMonitor(share=True)).state

    def wait(self, timeout: float | None = None) -> RunState:
        """Waits until the run is over, including later attempts after a requeue or resubmission, and returns its state.

        Args:
            timeout: seconds to wait at most; then `over` of the state is False. None: no limit.

        Raises:
            RunError: the run's record is damaged.
        """
        live = JobMonitor(share=True)

        def look() -> RunState:
            return status_of(self._run, live).state

        return wait_until_over(look, timeout, first=FIRST, slowest=SLOWEST, unavailable=UnavailableError)

    def cancel(self) -> None:
        """Cancels the run: the ranks get SIGTERM, and SIGKILL after launch.grace seconds. Ignores a run that is over.

        Raises:
            RunError: the run belongs to another user, or runs on another machine.
            QueryError: the scheduler does not respond.
        """
        require_own(self.path, "cancel it")
        if sweep := sweep_of(self._run):
            control.cancel(sweep, [int(self.path.name)])
            return
        live = JobMonitor()
        if not (seen := status_of(self._run, live)).state.over:
            live.cancel(self._run)
            control.release_followers([self.path], [seen])

    def resume(self, overrides: Overrides = (), *, new_snapshot: bool = False, **keys: Any) -> Run:
        """Submits another attempt, which continues from the newest checkpoint, and returns this run.

        Args:
            overrides: the settings to change, as for `submit`; all others keep their values.
            new_snapshot: with env.snapshot, whether to copy the code again and run the new copy.
            keys: more settings to change, as for `submit`.

        Raises:
            ConfigError: the run cannot continue with these settings.
            RunError: the run is done, is not over yet, or belongs to another user.
            SubmissionError: the scheduler refused, or did not respond.
        """
        from launcher.submission.resume import ready_attempt

        ready_attempt(self._run, as_overrides(overrides, keys), new_snapshot=new_snapshot).submit()
        return self

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics that rank 0 has returned or reported; empty: none yet; raises UnavailableError."""
        return self._run.result() or {}

    def logs(self, ranks: Sequence[int] = (), *, attempt: int | None = None) -> Iterator[str]:
        """Yields the lines that the run has printed so far, attempt by attempt. Lines of rank 3 start with `[3] `.

        Args:
            ranks: the ranks to include; empty: all.
            attempt: number of the only attempt to include (the first is 0); None: all.
        """
        for text in Stream(self._run, attempt=attempt, ranks=ranks).new(last=True):
            yield from text.decode(errors="replace").removesuffix("\n").split("\n")


@dataclass(frozen=True)
class RemoteRun:
    """A run on a cluster behind ssh. Every method asks the launcher there; Unreachable: it did not answer."""

    cluster: RemoteCluster
    id: str

    def state(self) -> RunState:
        """Returns the run's current state; raises RunError: there is no such run."""
        state = self._row()["state"]
        return RunState(state) if state in {each.value for each in RunState} else RunState.UNKNOWN

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics that rank 0 has returned or reported; empty: none yet."""
        return self._row().get("metrics") or {}

    def wait(self, timeout: float | None = None) -> RunState:
        """Waits until the run is over, and returns its state; after `timeout` seconds (None: no limit) that it has.

        A cluster that does not answer, or cannot read the run now, is asked again.
        """
        later = (Unreachable, UnavailableError)
        return wait_until_over(self.state, timeout, first=FIRST_REMOTE, slowest=SLOWEST_REMOTE, unavailable=later)

    def cancel(self) -> None:
        """Cancels the run; raises RunError."""
        self._call(["cancel", self.id])

    def resume(self, overrides: Overrides = (), *, new_snapshot: bool = False, **keys: Any) -> RemoteRun:
        """Submits another attempt, as `Run.resume`, and returns this run; raises ConfigError or SubmissionError."""
        words = ["resume", self.id, *as_overrides(overrides, keys), "wait=false", "--yes"]
        code = partial(ssh.SentCode.here, self.cluster, words) if new_snapshot else None
        self._call([*words, *(["--new-snapshot"] if new_snapshot else [])], submits=True, code=code)
        return self

    def logs(self) -> Iterator[str]:
        """Yields the lines that the run has printed so far; those of rank 3 start with `[3] `."""
        if text := self._call(["logs", self.id]):
            yield from text.removesuffix("\n").split("\n")

    def _row(self) -> dict[str, Any]:
        row: dict[str, Any] = ssh.rows_of(self._call(["status", self.id, "--json"]), self.cluster.name)[0]
        if "state" not in row:
            raise NoRunError(f"{self.id} is a sweep: name one of its points ({self.id}/0)")
        return row

    def _call(
        self, words: Sequence[str], *, submits: bool = False, code: Callable[[], ssh.SentCode] | None = None
    ) -> str:
        said, printed = list[str](), list[bytes]()
        failed = ssh.call(self.cluster, words, prompts=submits, code=code, show=printed.append, errors=said.append)
        if failed:
            wrong, other = (ConfigError, SubmissionError) if submits else (NoRunError, RunError)
            raise _as_said(said, {BAD_INPUT: wrong, RESUME: UnavailableError}.get(failed, other))
        return b"".join(printed).decode(errors="replace")


def _as_said(said: Sequence[str], error: type[LauncherError]) -> LauncherError:
    return error("".join(said).strip().removeprefix("launcher: "))


@dataclass(frozen=True)
class PreparedRun:
    """A run that has passed every check of a submission, as returned by a dry run. `submit` submits exactly this."""

    _ready: Ready

    @property
    def id(self) -> str:
        """The run's id, which is fixed before submission."""
        return self._ready.prepared.plan.run_id

    @property
    def path(self) -> Path:
        """The run's directory, which `submit` creates."""
        return Path(self._ready.prepared.plan.run_dir)

    @property
    def config(self) -> Config:
        """The config, composed from all files and overrides."""
        return self._ready.composed.config

    @property
    def plan(self) -> JobPlan:
        """The plan: what the scheduler will be asked for, and what the ranks will run."""
        return self._ready.prepared.plan

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, as the command line prints them."""
        return self._ready.prepared.notes

    @property
    def script(self) -> str:
        """The job script."""
        return render.script(self.plan, token=self._ready.prepared.token)

    def submit(self) -> Run:
        """Submits the run. Idempotent: a second call returns the run of the first one.

        Raises:
            ConfigError: the run directory cannot be created.
            SubmissionError: the scheduler refused (nothing is left behind), or did not respond (call it again).
        """
        return Run(self._ready.submit().run.path)


def submit(overrides: Overrides = (), **keys: Any) -> Run | RemoteRun:
    """Submits a run without waiting for it; with cluster=local it runs in the background.

    With a cluster behind ssh it submits the code of the working folder there, and returns a `RemoteRun`.

        run = launcher.submit(["workload=ddp_mnist", "cluster=slurm", "nodes=2", "workload.lr=0.1"])
        run = launcher.submit({"workload.lr": 0.1}, workload="ddp_mnist", cluster="slurm", nodes=2)

    Args:
        overrides: `KEY=VALUE` as on the command line, or a mapping of keys to values: text, numbers, True, None, lists,
            dictionaries, paths. Settings of the command line itself (wait, confirm_above) have no effect.
        keys: more keys and values, for keys without a dot.

    Raises:
        ConfigError: the settings are not valid; nothing was submitted.
        SubmissionError: the scheduler refused (nothing is left behind), or did not respond (call it again with the
            run_id in the text).
        UnavailableError: a file that the run needs cannot be read now.
    """
    words = as_overrides(overrides, keys)
    if (cluster := chosen(words)) is None:
        return prepare(overrides, **keys).submit()
    given = {key: value.lower() for key, value in ssh.keys_of(words).items()}
    _require_submission(dry_run=given.get("dry_run") == "true", submit=given.get("submit") != "false")
    said: list[str] = []
    made = ssh.submit([*words, "--yes"], show=lambda _: None, errors=said.append)
    assert made is not None, "they choose a cluster behind ssh"
    if made.exit_code:
        raise _as_said(said, {BAD_INPUT: ConfigError, RESUME: UnavailableError}.get(made.exit_code, SubmissionError))
    return RemoteRun(cluster, made.run_id)


def prepare(overrides: Overrides = (), **keys: Any) -> PreparedRun:
    """Makes a dry run: composes, plans and checks, writes nothing, and returns what `submit` would submit.

    Arguments are those of `submit`. Raises ConfigError: the settings are not valid; UnavailableError, as `submit`.
    """
    from launcher.config.errors import require_names
    from launcher.submission import resume
    from launcher.submission.resume import ready_run

    words = as_overrides(overrides, keys)
    require_names(words)
    composed = resume.composed_config(words)
    _require_submission(dry_run=composed.config.dry_run, submit=composed.config.submit)
    return PreparedRun(ready_run(composed, words))


def _require_submission(*, dry_run: bool, submit: bool) -> None:
    if dry_run:
        raise ConfigError("dry_run=true: launcher.prepare(...) is a dry run; leave the key out")
    if not submit:
        raise ConfigError("submit=false: it is for the command line, which prints the command; leave the key out")


def find(name: str, runs_dir: str | os.PathLike[str] | None = None) -> Run | RemoteRun:
    """Finds a run that was submitted before, also by another user, or on a cluster behind ssh.

    Args:
        name: the run's id or a unique prefix of it, `latest`, its directory, a sweep's point (SWEEP/7), or CLUSTER:RUN.
        runs_dir: the folder that contains run directories; None: $LAUNCHER_RUNS_DIR, else `runs` in the per-user data
            folder.

    Raises:
        RunError: no run matches, or several do.
    """
    cluster, there = locate(name) if runs_dir is None else (None, name)
    if cluster is not None:
        return RemoteRun(cluster, there)
    return Run(lookup.find(name, default_runs_dir() if runs_dir is None else Path(runs_dir)).path)


def as_overrides(overrides: Overrides, keys: Mapping[str, Any]) -> list[str]:
    """Converts the arguments of `submit` to overrides as on a command line; raises ConfigError."""
    from launcher.config.compose import FOR_HYDRA

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
    if key in GROUPS:  # the value is the name of a file in conf/, which Hydra takes without quotes
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
    raise ConfigError(
        f"{key}: a config cannot hold a value of type {type(value).__name__}: give a text, a number or a list"
    )

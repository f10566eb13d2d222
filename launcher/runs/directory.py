"""The run directory: the one place that reads and writes its format.

    RUN/                    0700, files 0600
      record.json           plan, config, versions, commit; written once, by the submitter
      script.sh             the script as it was handed over
      code/, code-N/        with env.snapshot: the code that it runs (of a sweep's points: in the sweep's directory)
      lib-VERSION/          the launcher itself, for another Python (env.activate), unless it runs from a checkout
      environment.sh        on PBS: what the job takes over of the submitter's environment
      journal.jsonl         what the submitter did: token, job ids, cancellations
      stop, save            made by the user: save and end; save and go on
      cancelled, over       it is not to go on; its chain of jobs is not to go on
      lease                 the job and attempt that run it now
      checkpoints/          see launcher/checkpoint/format.py
      record-N.json         what the record was before the Nth time that it was resumed
      submitit/             submitit's own files (payload and results)
      output-JOB.log        what the scheduler caught of the job (PBS: JOB.OU)
      attempts/N/events/    script.jsonl, node-K.jsonl, rank-0.jsonl: one writer per file
      attempts/N/logs/      rank-R.out, rank-R.err
      attempts/N/tasks/     with pbsdsh: what it needs, and each task's output and exit status
      attempts/N/pace/      member-I.jsonl: how fast the ranks of agent I were
      attempts/N/preflight/ member-I: that the others see it
      attempts/N/asked*     requests of commands to its agents, and the replies; see attach/requests.py
      attempts/N/exit_code  what the attempt's agents ended with
      result.json           metrics of rank 0, once done
      tensorboard/, mlflow_run   with `track`: TensorBoard's files, the id of the run in MLflow
      wandb/, wandb_run     the same: W&B's files, the id of the run there and how far it is

`runs_dir/latest` is a link to the newest run; the default runs_dir also has a link to every run kept elsewhere.
Works without torch, hydra and submitit: both sides use it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, RunError, UnavailableError
from launcher.files import locks, ownership, run_files, shared_secret
from launcher.files.json_types import misfit
from launcher.files.shared_files import (
    Ok,
    Outcome,
    Wrong,
    exists,
    list_names,
    read_json,
    read_text,
    retry_read,
    unwrap,
)
from launcher.runs import event_file, live_index
from launcher.runs.event_json import Event
from launcher.runs.events import Submitting

FORMAT = 3  # of a run directory; another number is another version's
# Fields of a record and their types; the plan's are those of JobPlan.
_RECORD = {
    "format": int, "config": dict, "overrides": list[str], "token": str, "launcher": str, "python": str,
    "hydra": str, "submitit": str, "host": str, "commit": str | None,
}  # fmt: skip
_END = 1 << 18  # bytes of a long file of paces that are read: half a day or more
SECRET = "secret"  # noqa: S105  a file; see `shared_secret`
_BEFORE = {"submitit", "attempts", "code", SECRET}  # what may be there before the record
_HALF = (".record.json.", ".code-", "lib-", f".{SECRET}.")  # and beginnings of names, also of what was half written
SUBMITTING = ".submitting"  # the file that whoever submits in a folder has locked
_LOCKED: set[Path] = set()  # folders in which this process alone submits

if TYPE_CHECKING:
    from datetime import datetime

    from launcher.spec.plan import JobPlan


def new_id(name: str, now: datetime | None = None) -> str:
    """`ddp_mnist-20261121-074601-3f9c`: sorts by time, and two of one second differ."""
    # Lazily: 2 ms, and commands on runs that are there need none of it
    from datetime import datetime

    moment = now or datetime.now()
    return f"{name}-{moment:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"


TOKEN = "launcher-"  # noqa: S105  how each begins


def token_of(folder: str) -> str:
    """What the jobs of a run or sweep with this directory are found by."""
    return TOKEN + hashlib.sha256(f"{os.getuid()}:{folder}".encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Run:
    """One run's directory."""

    path: Path

    @property
    def is_point(self) -> bool:
        """Whether it is a point of a sweep, or an element of a run's array: their names are numbers.

        Raises:
            UnavailableError: nobody can tell now.
        """
        return unwrap(self._in_another())

    @property
    def id(self) -> str:
        """Its name; a point's has its sweep's in front (`lr-3f9c/7`)."""
        found = self._in_another(retry_seconds=0)  # a name is wanted in any case, and most runs have none of digits
        point = found.value if isinstance(found, Ok) else True
        return f"{self.path.parent.name}/{self.path.name}" if point else self.path.name

    def _in_another(self, *, retry_seconds: float | None = None) -> Outcome[bool]:
        found: Outcome[bool] = Ok(False)
        for name in ("sweep.json", "submitit") if self.path.name.isdecimal() else ():
            found = exists(self.path.parent / name, retry_seconds=retry_seconds)
            if found != Ok(False):
                break
        return found

    @property
    def submitit_folder(self) -> Path:
        return self.path / "submitit"

    # -- what the submitter writes

    @classmethod
    def create(cls, path: Path) -> Run:
        """Makes the directory, or completes one whose submitter was killed before it had written the record.

        Raises:
            ConfigError: it cannot be made (`runs_dir` is not writable, or others could replace it), or is there
                already.
            RunError: it was left incomplete, and others can write to it.
        """
        try:
            ownership.require_safe_way(path.parent, f"runs_dir={path.parent}")
            run_files.make_folder(path.parent)
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                names = {entry.name for entry in path.iterdir()} if path.is_dir() else {"a file"}
                if not {name for name in names if not name.startswith(_HALF)} <= _BEFORE:
                    raise ConfigError(f"{path} is there already: choose another run_id") from None
                require_private(path)
            for folder in (path / "submitit", path / "attempts"):
                folder.mkdir(mode=0o700, exist_ok=True)
            if not (path / SECRET).exists():
                shared_secret.make(path / SECRET)
        except UnavailableError:
            raise
        except OSError as error:
            raise ConfigError(
                f"runs_dir={path.parent}: a run directory cannot be made there ({error.strerror}): "
                "set runs_dir to a folder that you can write to and that all nodes share"
            ) from None
        return cls(path)

    def recorded(self) -> bool:
        """Whether its record is there; nothing is submitted before.

        Raises:
            UnavailableError: nobody can tell now.
        """
        return self.has("record.json")

    def has(self, name: str) -> bool:
        """Whether it has a file of this name: its record, or a mark (`stop`, `cancelled`, `over`).

        Raises:
            UnavailableError: nobody can tell now.
        """
        return unwrap(exists(self.path / name))

    def write_record(
        self, plan: JobPlan, config: Mapping[str, Any], facts: Mapping[str, Any], *, sync: bool = True
    ) -> None:
        """The record: the plan, the resolved config, and facts about the submitting machine.

        Without `sync`, for one of many runs, nobody waits for the disk, nor for line breaks (ten times as long).
        """
        # Lazily: the schema takes 8 ms, and `logs` reads no plan
        from launcher.spec.plan import as_dict

        values = {"format": FORMAT, "plan": as_dict(plan), "config": config, **facts}
        text = json.dumps(values, indent=1 if sync else None)
        run_files.write(self.path / "record.json", text, sync=sync)

    def mark(self, name: str) -> None:
        """Makes a file whose being there is all that it says (`cancelled`)."""
        (self.path / name).touch(mode=0o600)

    def unmark(self, name: str) -> None:
        """Takes such a file away."""
        (self.path / name).unlink(missing_ok=True)

    def clear_for_resume(self) -> None:
        """Keeps the record, and removes what would keep the run from going on, the lease of a dead job included."""
        self._write(f"record-{self._earlier_records()}.json", (self.path / "record.json").read_text())
        self.clear_marks()

    def _earlier_records(self) -> int:
        """How many records it had before this one.

        Raises:
            UnavailableError: nobody can tell now.
        """
        found = unwrap(list_names(self.path)) or ()
        return sum(name.startswith("record-") and name.endswith(".json") for name in found)

    def clear_marks(self) -> None:
        """Removes what would keep the run from going on, the lease of a dead job included."""
        for name in ("stop", "cancelled", "over", "lease"):
            (self.path / name).unlink(missing_ok=True)

    def take_back_record(self) -> None:
        """The record is again what it was before the last `clear_for_resume`."""
        kept = self.path / f"record-{self._earlier_records() - 1}.json"
        kept.replace(self.path / "record.json")

    def write_script(self, text: str) -> Path:
        return self._write("script.sh", text)

    def write_environment(self, text: str) -> None:
        """What the job takes over of the submitter's environment, as shell text."""
        self._write("environment.sh", text)

    def write_result(self, metrics: Mapping[str, Any]) -> None:
        self._write("result.json", json.dumps(metrics, indent=1))

    def journal(self, event: Event, *, sync: bool = True) -> None:
        """Appends to the submitter's journal and waits until it is on disk."""
        if isinstance(event, Submitting):
            live_index.add(self.path.parent if self.is_point else self.path)
        event_file.append(self.path / "journal.jsonl", event, sync=sync)

    @contextlib.contextmanager
    def only_submitter(self) -> Iterator[None]:
        """Keeps other processes from submitting this run meanwhile."""
        with only_submitter(self.path):
            yield

    def link(self, index: Path) -> None:
        """Points `latest` at this run, and makes it known in `index`, where commands look for runs by their id."""
        for folder in {self.path.parent, index}:
            with contextlib.suppress(OSError):  # the job is there already, and works without
                run_files.make_folder(folder)
                if folder != self.path.parent:
                    _relink(folder / self.id, self.path)
                    live_index.add_to(folder, self.id)
                _relink(folder / "latest", self.path)

    def _write(self, name: str, text: str) -> Path:
        return run_files.write(self.path / name, text)

    # -- what everybody reads

    def record(self, name: str = "record.json") -> dict[str, Any]:
        """The record; `record-0.json` is the first one of a run that was resumed.

        Raises:
            UnavailableError: it cannot be read now.
            RunError: there is none, it is damaged, or another version wrote it.
        """
        path = f"{self.path}/{name}"
        record = unwrap(read_json(path))
        if record is None and not unwrap(exists(path)):
            raise RunError(f"{self.path} is not a run: it has no {name}")
        if not isinstance(record, dict):
            raise RunError(f"{path} cannot be read: it is no record of a run")
        if record.get("format", FORMAT) != FORMAT:
            raise RunError(
                f"{path} was written by another version ({record.get('launcher', 'unknown')}, format "
                f"{record['format']}; this one knows {FORMAT}): use that one"
            )
        for key, kind in _RECORD.items():
            if key in record and (wrong := misfit(record[key], kind, key)):
                raise RunError(f"{path} cannot be read: {wrong}")
        return record

    def plan(self, name: str = "record.json") -> JobPlan:
        """The plan in the record.

        Raises:
            RunError: it cannot be read, or another version wrote it.
        """
        # Lazily: the schema takes 8 ms, and `logs` reads no plan
        from launcher.spec.plan import from_dict, wrong_in

        record = self.record(name)
        version = record.get("launcher", "unknown")
        if wrong := wrong_in(record.get("plan")):
            raise RunError(f"{self.path}/{name} was written by another version ({version}): {wrong}")
        return from_dict(record["plan"])

    def own_plan(self) -> JobPlan:
        """As `plan`; a point that an array has just started, and that has no record yet, has that of its array."""
        if self.recorded():
            return self.plan()
        whole = Run(self.path.parent).plan()
        folder = whole.checkpoint.dir.replace(whole.run_dir, str(self.path), 1)
        return replace(whole, run_dir=str(self.path), checkpoint=replace(whole.checkpoint, dir=folder))

    def first_plan(self) -> JobPlan:
        """The plan that the run was submitted with at first, before any `resume`.

        Raises:
            RunError: as for `plan`.
        """
        return self.plan("record-0.json" if self.has("record-0.json") else "record.json")

    def result(self) -> dict[str, Any] | None:
        """The metrics of rank 0; None: there are none, or they are damaged.

        Raises:
            UnavailableError: they cannot be read now.
        """
        found = read_json(self.path / "result.json")
        if isinstance(found, Wrong):
            return None
        metrics = unwrap(found)
        return metrics if isinstance(metrics, dict) else None

    def attempts(self) -> list[Attempt]:
        """All attempts, in order.

        Raises:
            UnavailableError: nobody can tell now.
        """
        found = unwrap(list_names(f"{self.path}/attempts")) or ()
        return [Attempt(self, number) for number in sorted(int(name) for name in found if name.isdecimal())]

    def silent_for(self) -> float | None:
        """Seconds since whoever holds the lease has shown that it lives; None: nobody has it, or nobody can tell."""
        found = retry_read((self.path / "lease").stat, self.path, retry_seconds=0)
        return time.time() - found.value.st_mtime if isinstance(found, Ok) and found.value is not None else None

    def outputs(self) -> list[Path]:
        """The scheduler's output files, oldest first. A point's are links to files in `arrays` of its sweep."""
        arrays = os.path.realpath(self.path.parent / "arrays")
        found = []
        for path in (*self.path.glob("output-*.log"), *self.path.glob("*.OU")):
            target = os.path.realpath(path)
            path = Path(target) if target == f"{arrays}/{path.name}" else path
            with contextlib.suppress(FileNotFoundError):  # it is being moved
                found.append((path.lstat().st_mtime, path))
        return [path for _, path in sorted(found)]

    def secret(self) -> bytes:
        """What only the run's own processes know; the secrets of its attempts are derived from it.

        Raises:
            RunError: it is damaged, or others can read it.
            UnavailableError: it cannot be read now.
        """
        path = self.path / SECRET
        secret = unwrap(retry_read(lambda: shared_secret.of_file(path), path))  # makes it, for runs of old versions
        if secret is None:
            raise RunError(f"{path} is gone")
        return secret

    def require_private(self) -> None:
        """Payloads are unpickled from here, so nobody else may be able to write here.

        Raises:
            UnavailableError: nobody can tell now.
            RunError: the directory is incomplete or somebody else's, or others can write to it.
        """
        for path in (self.path, self.submitit_folder):
            if not unwrap(exists(path)):
                raise RunError(f"{self.path} is not a whole run: it has no folder {path.name}")
            require_private(path)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run."""

    run: Run
    number: int

    @property
    def path(self) -> Path:
        return self.run.path / "attempts" / str(self.number)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def write_exit_code(self, code: int) -> None:
        """For the job script: the code of who failed first, or of the first agent when the work is done.

        The scheduler's own is that of whoever it killed last, or of a node that came too late.
        """
        path = self.path / "exit_code"

        def written() -> bool:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(f"{code}\n")
            return True

        outcome = retry_read(written, path)
        if outcome != Ok(True):  # a full disk, say; then the script goes by the scheduler's status
            reason = "its folder is gone" if isinstance(outcome, Ok) else outcome.reason
            print(f"launcher: the exit code {code} cannot be written to {path}: {reason}", file=sys.stderr)

    def exit_code(self) -> int | None:
        """What `write_exit_code` wrote; None: nothing, or not all of it.

        Raises:
            UnavailableError: it cannot be read now.
        """
        text = unwrap(read_text(f"{self.path}/exit_code")) or ""
        return int(text) if text.strip().isdecimal() else None

    def events_file(self, writer: str) -> Path:
        """The file of one writer: `script`, `node-3`, `rank-0`."""
        return self.path / "events" / f"{writer}.jsonl"

    def events(self) -> list[dict[str, Any]]:
        """The events of all writers by time, each with its `writer`."""
        return self._events(whole=True)

    def latest_events(self) -> list[dict[str, Any]]:
        """As `events`, but of how rank 0 got on only the beginning and the end."""
        return self._events(whole=False)

    def _events(self, *, whole: bool) -> list[dict[str, Any]]:
        folder = f"{self.run.path}/attempts/{self.number}/events"
        found = unwrap(list_names(folder)) or ()
        events: list[dict[str, Any]] = []
        for name in sorted(name for name in found if name.endswith(".jsonl")):
            writer = name.removesuffix(".jsonl")
            read = event_file.read_ends if writer == "rank-0" and not whole else event_file.read
            for event in read(f"{folder}/{name}"):
                event["writer"] = writer
                events.append(event)
        return sorted(events, key=itemgetter("time"))

    def paces(self) -> list[dict[str, Any]]:
        """How fast ranks were: the events `pace` of all agents by time, of long files the last ones."""
        events = [
            event for path in sorted((self.path / "pace").glob("*.jsonl")) for event in event_file.read(path, _END)
        ]
        return sorted(events, key=lambda event: event.get("time", 0.0))


def require_private(folder: Path) -> None:
    """Refuses a folder in which somebody else could have put what is to be unpickled.

    Raises:
        UnavailableError: nobody can tell now.
        FileNotFoundError: it is not there.
        RunError: it is somebody else's, or others can write to it.
    """
    status = unwrap(retry_read(folder.stat, folder))
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    if status.st_uid != os.getuid():
        raise RunError(f"{folder} belongs to user {status.st_uid}, not to you: it is not used")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(f"others can write to {folder}: it is not used; `chmod 700 {folder}` after a look into it")


@contextlib.contextmanager
def only_submitter(folder: Path) -> Iterator[None]:
    """Keeps other processes from submitting what is in this folder meanwhile.

    An sbatch or qsub inherits the lock (`command.run_submission`): when its submitter is killed, the next one waits
    until it has come to its end as well, and then there is a job to be found or there is none. On a file system without
    locks the token still finds a job that is there. Whoever has the lock may ask for it once more.
    """
    if folder in _LOCKED:
        yield
        return

    def waiting() -> None:
        print(f"launcher: waiting for another command that submits in {folder}", file=sys.stderr, flush=True)

    with locks.acquire(folder / SUBMITTING, inheritable=True, waiting=waiting):
        _LOCKED.add(folder)
        try:
            yield
        finally:
            _LOCKED.discard(folder)


def being_submitted(folder: Path) -> bool:
    """Whether somebody submits what is in this folder now."""
    return locks.is_locked(folder / SUBMITTING)


def _relink(link: Path, target: Path) -> None:
    temporary = link.with_name(run_files.temporary_name(link.name))
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:  # another run of this name lives there
        temporary.unlink()

"""The run directory: the one place that reads and writes its format.

    RUN/                    0700, files 0600
      record.json           plan, config, versions, commit; written once, by the submitter
      script.sh             the script as it was handed over
      code/, code-N/        with env.snapshot: the code that it runs (of a sweep's points: in the sweep's directory)
      lib-VERSION/          the launcher itself, for another Python (env.activate), unless it runs from a checkout
      environment.sh        on PBS: the submitter's environment that the job inherits
      journal.jsonl         what the submitter did: token, job ids, cancellations
      stop, save            made by the user: save and stop; save and continue
      cancelled, over       the run must not continue; its chain of jobs must not continue
      lease                 the job and attempt that run it now
      checkpoints/          see launcher/checkpoint/format.py
      record-N.json         the record before resume number N (from 0)
      submitit/             submitit's own files (payload and results)
      output-JOB.log        the job's output, written by the scheduler (PBS: JOB.OU)
      attempts/N/events/    script.jsonl, node-K.jsonl, rank-0.jsonl: one writer per file
      attempts/N/logs/      rank-R.out, rank-R.err
      attempts/N/tasks/     with pbsdsh: its input, and each task's output and exit status
      attempts/N/pace/      member-I.jsonl: step times of the ranks of agent I
      attempts/N/preflight/ member-I: written by agent I, so that the others can test the shared folder
      attempts/N/attach*    requests of commands to its agents, and the replies; see attach/requests.py
      attempts/N/exit_code  exit code of the attempt's agents
      result.json           metrics of rank 0, once done
      tensorboard/, mlflow_run   with `track`: TensorBoard's files, the id of the run in MLflow
      wandb/, wandb_run     the same for W&B: its files, its run id and the last step

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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, RunError, UnavailableError
from launcher.files import ownership, run_files, shared_secret
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

FORMAT = 4  # of a run directory; other versions of the launcher have other numbers
# Fields of a record and their types; the plan's are those of JobPlan.
_RECORD = {
    "format": int, "config": dict, "overrides": list[str], "token": str, "launcher": str, "python": str,
    "hydra": str, "submitit": str, "host": str, "commit": str | None,
}  # fmt: skip
_PACE_TAIL = 1 << 18  # bytes that are read at the end of a file of paces: half a day or more
SECRET = "secret"  # noqa: S105  a file; see `shared_secret`
_WITHOUT_RECORD = {"submitit", "attempts", "code", SECRET}  # names that may exist before the record does
_UNFINISHED = (".record.json.", ".code-", "lib-", f".{SECRET}.")  # prefixes of such names; temporary files too

if TYPE_CHECKING:
    from datetime import datetime

    from launcher.spec.plan import JobPlan


def new_id(name: str, now: datetime | None = None) -> str:
    """Returns a new run id, such as `ddp_mnist-20261121-074601-3f9c`: it sorts by time, and ends with random digits."""
    # Lazily: 2 ms, and commands on existing runs do not need it
    from datetime import datetime

    moment = now or datetime.now()
    return f"{name}-{moment:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"


TOKEN = "launcher-"  # noqa: S105  prefix of all tokens


def token_of(folder: str) -> str:
    """Returns the token by which the scheduler finds the jobs of the run or sweep in this directory."""
    return TOKEN + hashlib.sha256(f"{os.getuid()}:{folder}".encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Run:
    """One run's directory."""

    path: Path

    @property
    def is_point(self) -> bool:
        """Whether the run is a point of a sweep, or an element of a run's array: their names are numbers.

        Raises:
            UnavailableError: the parent folder cannot be read now.
        """
        return unwrap(self._in_sweep_or_array())

    @property
    def id(self) -> str:
        """The name of its directory; for a point, behind that of its sweep (`lr-3f9c/7`)."""
        found = self._in_sweep_or_array(retry_seconds=0)  # without retry: an id is needed in any case
        point = found.value if isinstance(found, Ok) else True
        return f"{self.path.parent.name}/{self.path.name}" if point else self.path.name

    def _in_sweep_or_array(self, *, retry_seconds: float | None = None) -> Outcome[bool]:
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
            ConfigError: the directory cannot be made (`runs_dir` is not writable, or others could replace it), or
                exists already.
            RunError: the directory is incomplete, and others can write to it.
        """
        try:
            ownership.require_safe_way(path.parent, f"runs_dir={path.parent}")
            run_files.make_folder(path.parent)
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                names = {entry.name for entry in path.iterdir()} if path.is_dir() else {"a file"}
                if not {name for name in names if not name.startswith(_UNFINISHED)} <= _WITHOUT_RECORD:
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
        """Whether its record exists; nothing is submitted before that.

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        return self.has("record.json")

    def has(self, name: str) -> bool:
        """Whether the directory has a file of this name: the record, or a mark (`stop`, `cancelled`, `over`).

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        return unwrap(exists(self.path / name))

    def write_record(
        self, plan: JobPlan, config: Mapping[str, Any], facts: Mapping[str, Any], *, sync: bool = True
    ) -> None:
        """Writes the record: the plan, the resolved config, and facts about the submitting machine.

        Without `sync`, for the points of a sweep, it does not wait for the disk and writes no indentation, which would
        take ten times as long.
        """
        text = json.dumps(record_of(plan, config, facts), indent=1 if sync else None)
        run_files.write(self.path / "record.json", text, sync=sync)

    def mark(self, name: str) -> None:
        """Makes an empty file that marks the run (`cancelled`)."""
        (self.path / name).touch(mode=0o600)

    def unmark(self, name: str) -> None:
        """Removes such a mark."""
        (self.path / name).unlink(missing_ok=True)

    def clear_for_resume(self) -> None:
        """Copies the record to record-N.json, and removes what would stop the next attempt; see `clear_marks`."""
        self._write(f"record-{self._earlier_records()}.json", (self.path / "record.json").read_text())
        self.clear_marks()

    def _earlier_records(self) -> int:
        """Returns the number of files record-N.json.

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        found = unwrap(list_names(self.path)) or ()
        return sum(name.startswith("record-") and name.endswith(".json") for name in found)

    def clear_marks(self) -> None:
        """Removes `stop`, `cancelled` and `over`, which would stop the next attempt, and the lease of a dead job."""
        for name in ("stop", "cancelled", "over", "lease"):
            (self.path / name).unlink(missing_ok=True)

    def restore_record(self) -> None:
        """Undoes the change of the record since the last `clear_for_resume`."""
        kept = self.path / f"record-{self._earlier_records() - 1}.json"
        kept.replace(self.path / "record.json")

    def write_script(self, text: str) -> Path:
        return self._write("script.sh", text)

    def write_environment(self, text: str) -> None:
        """Writes the submitter's environment that the job inherits, as shell text."""
        self._write("environment.sh", text)

    def write_result(self, metrics: Mapping[str, Any]) -> None:
        self._write("result.json", json.dumps(metrics, indent=1))

    def journal(self, event: Event, *, sync: bool = True) -> None:
        """Appends to the submitter's journal and waits until it is on disk."""
        if isinstance(event, Submitting):
            live_index.add(self.path.parent if self.is_point else self.path)
        event_file.append(self.path / "journal.jsonl", event, sync=sync)

    def link(self, index: Path) -> None:
        """Points `latest` at this run, and adds a link to it to `index`, where commands look for runs by their id."""
        for folder in {self.path.parent, index}:
            with contextlib.suppress(OSError):  # the job is submitted already, and does not need the links
                run_files.make_folder(folder)
                if folder != self.path.parent:
                    _relink(folder / self.id, self.path)
                    live_index.add_to(folder, self.id)
                _relink(folder / "latest", self.path)

    def _write(self, name: str, text: str) -> Path:
        return run_files.write(self.path / name, text)

    # -- what all commands and the job read

    def record(self, name: str = "record.json") -> dict[str, Any]:
        """Returns the record; `record-0.json` is the first one of a run that was resumed.

        Raises:
            UnavailableError: the record cannot be read now.
            RunError: there is no record, it is damaged, or another version wrote it.
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
        """Returns the plan in the record.

        Raises:
            RunError: the record cannot be read, or another version wrote it.
        """
        # Lazily: the schema takes 8 ms, and `logs` reads no plan
        from launcher.spec.plan import from_dict, plan_misfit

        record = self.record(name)
        version = record.get("launcher", "unknown")
        if wrong := plan_misfit(record.get("plan")):
            raise RunError(f"{self.path}/{name} was written by another version ({version}): {wrong}")
        return from_dict(record["plan"])

    def own_plan(self) -> JobPlan:
        """Returns the plan as `plan` does; for an array's element without a record, it is made of the array's plan."""
        if self.recorded():
            return self.plan()
        whole = Run(self.path.parent).plan()
        folder = whole.checkpoint.dir.replace(whole.run_dir, str(self.path), 1)
        return replace(whole, run_dir=str(self.path), checkpoint=replace(whole.checkpoint, dir=folder))

    def first_plan(self) -> JobPlan:
        """Returns the plan of the first submission, before any `resume`.

        Raises:
            RunError: as for `plan`.
        """
        return self.plan("record-0.json" if self.has("record-0.json") else "record.json")

    def result(self) -> dict[str, Any] | None:
        """Returns the metrics of rank 0; None: there are none, or the file is damaged.

        Raises:
            UnavailableError: the file cannot be read now.
        """
        found = read_json(self.path / "result.json")
        if isinstance(found, Wrong):
            return None
        metrics = unwrap(found)
        return metrics if isinstance(metrics, dict) else None

    def attempts(self) -> list[Attempt]:
        """Returns all attempts, in order.

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        found = unwrap(list_names(f"{self.path}/attempts")) or ()
        return [Attempt(self, number) for number in sorted(int(name) for name in found if name.isdecimal())]

    def lease_age(self) -> float | None:
        """Returns the seconds since the lease's holder last touched it; None: no lease, or it cannot be read now."""
        found = retry_read((self.path / "lease").stat, self.path, retry_seconds=0)
        return time.time() - found.value.st_mtime if isinstance(found, Ok) and found.value is not None else None

    def outputs(self) -> list[Path]:
        """Returns the scheduler's output files, oldest first. A point's are links to files in its sweep's `arrays`."""
        arrays = os.path.realpath(self.path.parent / "arrays")
        found = []
        for path in (*self.path.glob("output-*.log"), *self.path.glob("*.OU")):
            target = os.path.realpath(path)
            path = Path(target) if target == f"{arrays}/{path.name}" else path
            with contextlib.suppress(FileNotFoundError):  # it is being moved
                found.append((path.lstat().st_mtime, path))
        return [path for _, path in sorted(found)]

    def secret(self) -> bytes:
        """Returns the run's secret, which its processes share; the secrets of its attempts are derived from it.

        Raises:
            RunError: its file is damaged, or others can read it.
            UnavailableError: its file cannot be read now.
        """
        path = self.path / SECRET
        secret = unwrap(retry_read(lambda: shared_secret.of_file(path), path))  # made now for runs of old versions
        if secret is None:
            raise RunError(f"{path} is gone")
        return secret

    def require_private(self) -> None:
        """Refuses a directory that others can write to: payloads are unpickled from it.

        Raises:
            UnavailableError: the directory cannot be read now.
            RunError: the directory is incomplete or another user's, or others can write to it.
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
        """Writes the attempt's exit code for the job script: of the first failure, or of the first agent at success.

        The scheduler's own code would be that of the process that it killed last, or of a node that came too late.
        """
        path = self.path / "exit_code"

        def written() -> bool:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(f"{code}\n")
            return True

        outcome = retry_read(written, path)
        if outcome != Ok(True):  # a full disk, say; then the script uses the scheduler's exit status
            reason = "its folder is gone" if isinstance(outcome, Ok) else outcome.reason
            print(f"launcher: the exit code {code} cannot be written to {path}: {reason}", file=sys.stderr)

    def exit_code(self) -> int | None:
        """Returns the code that `write_exit_code` wrote; None: none, or not all of it.

        Raises:
            UnavailableError: the file cannot be read now.
        """
        text = unwrap(read_text(f"{self.path}/exit_code")) or ""
        return int(text) if text.strip().isdecimal() else None

    def events_file(self, writer: str) -> Path:
        """Returns the path of one writer's events; writers are `script`, `node-3`, `rank-0`, ..."""
        return self.path / "events" / f"{writer}.jsonl"

    def events(self) -> list[dict[str, Any]]:
        """Returns the events of all writers, sorted by time, each with its `writer`."""
        return self._events(whole=True)

    def latest_events(self) -> list[dict[str, Any]]:
        """Returns the events as `events` does, but of rank 0's progress only the first and the last ones."""
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
        """Returns the step times of ranks: the events `pace` of all agents, sorted by time; of long files the last."""
        events = [
            event
            for path in sorted((self.path / "pace").glob("*.jsonl"))
            for event in event_file.read(path, _PACE_TAIL)
        ]
        return sorted(events, key=lambda event: event.get("time", 0.0))


def require_private(folder: Path) -> None:
    """Refuses a folder in which another user could have placed files that are unpickled.

    Raises:
        UnavailableError: the folder cannot be read now.
        FileNotFoundError: the folder does not exist.
        RunError: the folder is another user's, or others can write to it.
    """
    status = unwrap(retry_read(folder.stat, folder))
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    if status.st_uid != os.getuid():
        raise RunError(f"{folder} belongs to user {status.st_uid}, not to you: it is not used")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(f"others can write to {folder}: it is not used; `chmod 700 {folder}` after a look into it")


def record_of(plan: JobPlan, config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a run's record. Pure.

    Args:
        plan: the plan.
        config: the resolved config.
        facts: about the submitting machine, with the run's token and overrides.
    """
    # Lazily: the schema takes 8 ms, and `logs` reads no plan
    from launcher.spec.plan import as_dict

    return {"format": FORMAT, "plan": as_dict(plan), "config": config, **facts}


def _relink(link: Path, target: Path) -> None:
    temporary = link.with_name(run_files.temporary_name(link.name))
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:  # a run of this name is in that folder
        temporary.unlink()

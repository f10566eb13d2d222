"""The run directory: the one place that reads and writes its format.

    RUN/                    0700, files 0600
      record.json           plan, config, versions, commit; written once, by the submitter
      script.sh             the script as it was handed over
      environment.sh        on PBS: what the job takes over of the submitter's environment
      journal.jsonl         what the submitter did: token, job ids, cancellations
      stop, save            made by the user: save and end; save and go on
      cancelled, over       it is not to go on; its chain of jobs is not to go on
      lease                 the job and attempt that run it now
      checkpoints/          see launcher/checkpoints.py
      record-N.json         what the record was before the Nth time that it was resumed
      submitit/             submitit's own files (payload and results)
      output-JOB.log        what the scheduler caught of the job (PBS: JOB.OU)
      attempts/N/events/    script.jsonl, node-K.jsonl, rank-0.jsonl: one writer per file
      attempts/N/logs/      rank-R.out, rank-R.err, rank-R.error.json
      attempts/N/tasks/     with pbsdsh: what it needs, and each task's output and exit status
      attempts/N/exit_code  what the attempt's agents ended with
      result.json           metrics of rank 0, once done

`runs_dir/latest` is a link to the newest run; the default runs_dir also has a link to every run kept elsewhere.
Works without torch, hydra and submitit: both sides use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, RunError, near

if TYPE_CHECKING:
    from datetime import datetime

    from launcher.plan import JobPlan


def new_id(name: str, now: datetime | None = None) -> str:
    """`ddp_mnist-20261121-074601-3f9c`: sorts by time, and two of one second differ."""
    from datetime import datetime  # commands on runs that are there do without

    moment = now or datetime.now()
    return f"{name}-{moment:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"


@dataclass(frozen=True)
class Run:
    """One run's directory."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def submitit_folder(self) -> Path:
        return self.path / "submitit"

    # -- what the submitter writes

    @classmethod
    def create(cls, path: Path) -> Run:
        """Makes the directory, or completes one whose submitter was killed before it had written the record.

        Raises:
            ConfigError: it cannot be made (`runs_dir` is not writable), or is there already.
            RunError: it was left incomplete, and others can write to it.
        """
        folders = (path, path / "submitit", path / "attempts")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.path.lexists(path):
                names = {entry.name for entry in path.iterdir()} if path.is_dir() else {"a file"}
                if not {name for name in names if not name.startswith(".record.json.")} <= {"submitit", "attempts"}:
                    raise ConfigError(f"{path} is there already: choose another run_id")
                require_private(path)
            for folder in folders:
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"runs_dir={path.parent}: a run directory cannot be made there ({error.strerror}): "
                "set runs_dir to a folder that you can write to and that all nodes share"
            ) from None
        return cls(path)

    def recorded(self) -> bool:
        """Whether its record is there; nothing is submitted before."""
        return (self.path / "record.json").exists()

    def write_record(self, plan: JobPlan, config: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """The record: the plan, the resolved config, and facts about the submitting machine."""
        from launcher.plan import as_dict

        self._write("record.json", json.dumps({"plan": as_dict(plan), "config": config, **facts}, indent=1))

    def mark(self, name: str) -> None:
        """Makes a file whose being there is all that it says (`cancelled`)."""
        (self.path / name).touch(mode=0o600)

    def clear_for_resume(self) -> None:
        """Keeps the record, and removes what would keep the run from going on, the lease of a dead job included."""
        number = len(list(self.path.glob("record-*.json")))
        self._write(f"record-{number}.json", (self.path / "record.json").read_text())
        for name in ("stop", "cancelled", "over", "lease"):
            (self.path / name).unlink(missing_ok=True)

    def take_back_record(self) -> None:
        """The record is again what it was before the last `clear_for_resume`."""
        kept = self.path / f"record-{len(list(self.path.glob('record-*.json'))) - 1}.json"
        kept.replace(self.path / "record.json")

    def write_script(self, text: str) -> Path:
        return self._write("script.sh", text)

    def write_environment(self, text: str) -> None:
        """What the job takes over of the submitter's environment, as shell text."""
        self._write("environment.sh", text)

    def write_result(self, metrics: Mapping[str, Any]) -> None:
        self._write("result.json", json.dumps(metrics, indent=1))

    def journal(self, event: str, **values: Any) -> None:
        """Appends to the submitter's journal and waits until it is on disk."""
        append(self.path / "journal.jsonl", event, sync=True, **values)

    @contextlib.contextmanager
    def only_submitter(self) -> Iterator[None]:
        """Keeps other processes from submitting this run meanwhile (fcntl locks work on NFS as well)."""
        with open(os.open(self.path / ".submitting", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            with contextlib.suppress(OSError):  # a file system without locks; the token still finds a job that is there
                fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    def link(self, index: Path) -> None:
        """Points `latest` at this run, and makes it known in `index`, where commands look for runs by their id."""
        for folder in {self.path.parent, index}:
            with contextlib.suppress(OSError):  # the job is there already, and works without
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if folder != self.path.parent:
                    _relink(folder / self.id, self.path)
                _relink(folder / "latest", self.path)

    def _write(self, name: str, text: str) -> Path:
        """Whole or not at all: a reader never sees half a file."""
        path, temporary = self.path / name, self.path / f".{name}.{os.getpid()}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(os.fsencode(text))  # what came from the environment need not be UTF-8
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return path

    # -- what everybody reads

    def record(self) -> dict[str, Any]:
        """The record.

        Raises:
            RunError: there is none, or it cannot be read.
        """
        try:
            record = json.loads((self.path / "record.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run: it has no record.json") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path}/record.json cannot be read: {error}") from None
        return dict(record)

    def plan(self) -> JobPlan:
        """The plan in the record.

        Raises:
            RunError: it cannot be read, or another version wrote it.
        """
        from launcher.plan import from_dict

        record = self.record()
        try:
            return from_dict(record["plan"])
        except (KeyError, TypeError) as error:
            version = record.get("launcher", "unknown")
            raise RunError(f"{self.path}/record.json was written by another version ({version}): {error}") from None

    def result(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.path / "result.json").read_text()))
        except (OSError, ValueError):
            return None

    def journal_events(self) -> list[dict[str, Any]]:
        return list(read_events(self.path / "journal.jsonl"))

    def attempts(self) -> list[Attempt]:
        """All attempts, in order."""
        try:
            numbers = sorted(int(entry.name) for entry in os.scandir(self.path / "attempts") if entry.name.isdecimal())
        except FileNotFoundError:
            return []
        return [Attempt(self, number) for number in numbers]

    def silent_for(self) -> float | None:
        """Seconds since whoever holds the lease has shown that it lives; None: nobody holds it."""
        try:
            return time.time() - (self.path / "lease").stat().st_mtime
        except OSError:
            return None

    def outputs(self) -> list[Path]:
        """The scheduler's output files, oldest first."""
        paths = [*self.path.glob("output-*.log"), *self.path.glob("*.OU")]
        return sorted(paths, key=lambda path: path.stat().st_mtime)

    def require_private(self) -> None:
        """Payloads are unpickled from here, so nobody else may be able to write here.

        Raises:
            RunError: the directory is incomplete or somebody else's, or others can write to it.
        """
        for path in (self.path, self.submitit_folder):
            if not path.exists():
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
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(f"{code}\n")
        except OSError as error:  # a full disk; then the script goes by the scheduler's status
            print(f"launcher: cannot write to {path}: {error}", file=sys.stderr)

    def events_file(self, writer: str) -> Path:
        """The file of one writer: `script`, `node-3`, `rank-0`."""
        return self.path / "events" / f"{writer}.jsonl"

    def events(self) -> list[dict[str, Any]]:
        """The events of all writers by time, each with its `writer`."""
        events = [
            {**event, "writer": path.stem}
            for path in sorted((self.path / "events").glob("*.jsonl"))
            for event in read_events(path)
        ]
        return sorted(events, key=lambda event: event.get("time", 0.0))


def require_private(folder: Path) -> None:
    """Refuses a folder in which somebody else could have put what is to be unpickled.

    Raises:
        RunError: it is somebody else's, or others can write to it.
    """
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise RunError(f"{folder} belongs to user {status.st_uid}, not to you: it is not used")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(f"others can write to {folder}: it is not used; `chmod 700 {folder}` after a look into it")


def _relink(link: Path, target: Path) -> None:
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:  # another run of this name lives there
        temporary.unlink()


def append(path: Path, event: str, *, sync: bool = False, **values: Any) -> None:
    """Adds one event, in a single write, so that a reader sees it whole or not yet."""
    line = json.dumps({"time": round(time.time(), 3), "event": event, **values}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one file; a last line that is still being written is left out."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def all_runs(runs_dir: Path) -> list[Run]:
    """All runs, newest first."""
    try:
        entries = [entry for entry in os.scandir(runs_dir) if entry.is_dir() and entry.name != "latest"]
    except FileNotFoundError:
        return []
    paths = [Path(entry.path).resolve() for entry in entries if not entry.name.startswith(".")]
    found = [(path.stat().st_ctime, path) for path in paths if (path / "record.json").exists()]
    return [Run(path) for _, path in sorted(found, reverse=True)]


def find(name: str, runs_dir: Path) -> Run:
    """The run meant by an id, a unique beginning of one, `latest`, or the path of its directory.

    Raises:
        RunError: none fits, or several do.
    """
    if "/" in name:
        path = Path(name).expanduser().resolve()
        if (path / "record.json").exists():
            return Run(path)
        raise RunError(f"{path} is not a run: it has no record.json")
    if name == "latest":
        link = runs_dir / "latest"
        if not (link / "record.json").exists():
            raise RunError(f"there is no latest run in {runs_dir}")
        return Run(link.resolve())
    if (runs_dir / name / "record.json").exists():
        return Run((runs_dir / name).resolve())
    runs = all_runs(runs_dir)
    matches = [run for run in runs if run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunError(f"{name!r} fits {len(matches)} runs: {', '.join(run.id for run in matches[:5])}")
    raise RunError(f"no run {name!r} in {runs_dir}.{near(name, (run.id for run in runs))}")

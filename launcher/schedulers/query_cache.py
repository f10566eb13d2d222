"""A scheduler's answer to "which jobs has this user", shared between commands, so that several ask it once.

    CACHE/answers/NAME.json     0600: the last answer; NAME stands for the scheduler, the user and this machine
    CACHE/answers/NAME.lock     held by whoever asks; the others wait for its answer

Only a file counts that nobody else can write to. Where none can be kept, each command asks for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from launcher.files import run_files
from launcher.files.run_files import write
from launcher.paths import user_cache_dir
from launcher.schedulers import registry
from launcher.schedulers.queries import JobState, QueryError, SchedulerJob

FORMAT = 2
QUICKEST, SLOWEST = 2.0, 60.0  # seconds for which an answer is good
SLOWER = 1.3  # by which they grow with each answer that is no other than the one before
SHARE = 10  # times what an answer takes is how long it is good: nobody spends more than a tenth of his time on it


@dataclass(frozen=True)
class JobSnapshot:
    """What a scheduler said.

    Attributes:
        jobs: all of the user's jobs by `Queries.key`; when it did not answer, what it said before.
        asked: when `jobs` were asked for, in seconds since the epoch; None: it has never said.
        completed: when it had said so, or had not.
        took: seconds that took.
        problem: why it did not answer; empty: it did.
        own: this process has asked, and not another one.
    """

    jobs: dict[str, SchedulerJob] = field(default_factory=dict)
    asked: float | None = None
    completed: float = 0.0
    took: float = 0.0
    problem: str = ""
    own: bool = True

    def is_fresh(self, seconds: float, now: float) -> bool:
        """Whether it need not be asked again."""
        return 0 <= now - self.completed <= seconds


def interval(unchanged: int, took: float, quickest: float = QUICKEST, slowest: float = SLOWEST) -> float:
    """Seconds for which an answer is good: 2, and up to 60 while nothing changes or when asking takes long. Pure.

    Args:
        unchanged: how many answers in a row were no other than the ones before.
        took: seconds that the last one took.
        quickest, slowest: seconds for which it is good at least, and at most.
    """
    return min(slowest, max(quickest * SLOWER ** min(unchanged, 50), SHARE * took))


def take_snapshot(jobs: Callable[[], dict[str, SchedulerJob]], before: JobSnapshot | None = None) -> JobSnapshot:
    """Asks now.

    Args:
        jobs: asks; raises QueryError.
        before: what was said before.
    """
    asked, problem = time.time(), ""
    began = time.monotonic()
    found: dict[str, SchedulerJob] | None = None
    try:
        found = jobs()
    except QueryError as error:
        problem = str(error)
    took = time.monotonic() - began
    if found is not None:
        return JobSnapshot(found, asked, time.time(), took)
    return JobSnapshot(before.jobs if before else {}, before.asked if before else None, time.time(), took, problem)


class SharedSnapshot:
    """The answer of one scheduler that this user's commands on this machine share."""

    def __init__(self, scheduler: str) -> None:
        which = [scheduler, str(os.getuid()), socket.gethostname(), *registry.queue(scheduler).server()]
        name = f"{scheduler}-{hashlib.sha256(repr(which).encode()).hexdigest()[:16]}"
        self._file = user_cache_dir() / "answers" / f"{name}.json"

    def get(
        self, good_for: float, jobs: Callable[[], dict[str, SchedulerJob]], timeout: float, *, newer: float = 0.0
    ) -> JobSnapshot:
        """The answer there is, or a new one.

        Args:
            good_for: seconds for which one is good.
            jobs: asks; raises QueryError.
            timeout: seconds to wait for another command that asks.
            newer: it must have been asked for after that time, in seconds since the epoch.
        """

        def good(answer: JobSnapshot | None) -> JobSnapshot | None:
            fits = answer is not None and answer.is_fresh(good_for, time.time()) and (answer.asked or 0.0) >= newer
            return answer if fits else None

        if found := good(self._read()):
            return found
        with self._only_one(timeout):
            before = self._read()
            if found := good(before):
                return found
            answer = take_snapshot(jobs, before)
            self._write(answer)
            return answer

    def forget(self) -> None:
        """What was said counts no more: a job has been cancelled, say."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _read(self) -> JobSnapshot | None:
        """The last answer; None: there is none, or none that can be trusted."""
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not (_private(os.fstat(descriptor)) and _private(os.stat(self._file.parent))):
                    return None
                values = json.loads(file.read())
            if values["format"] != FORMAT or values["told"] > time.time() + 1:
                return None
            jobs = {key: SchedulerJob(name, JobState(state), word, why, comment, left)
                    for key, name, state, word, why, comment, left in values["jobs"]}  # fmt: skip
            return JobSnapshot(jobs, values["asked"], values["told"], values["took"], values["problem"], own=False)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, answer: JobSnapshot) -> None:
        jobs = [
            (key, job.id, job.state.value, job.raw_state, job.reason, job.comment, job.time_left)
            for key, job in answer.jobs.items()
        ]
        values = {"format": FORMAT, "asked": answer.asked, "told": answer.completed, "took": answer.took,
                  "problem": answer.problem, "jobs": jobs}  # fmt: skip
        with contextlib.suppress(OSError):
            write(self._file, json.dumps(values), sync=False)

    @contextlib.contextmanager
    def _only_one(self, timeout: float) -> Iterator[None]:
        """Keeps others from asking meanwhile, where that can be, and no longer than one of them may take."""
        try:
            run_files.make_folder(self._file.parent)
            lock = os.open(self._file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            end = time.monotonic() + timeout
            while time.monotonic() < end:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.02)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(lock)


def _private(status: os.stat_result) -> bool:
    """Whether it is ours, and nobody else can write to it."""
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

"""Caches the list of the user's jobs for all commands on this machine, so that several commands query it once.

    CACHE/queries/NAME.json     0600: the last result; NAME has a hash of scheduler, server, user and machine
    CACHE/queries/qsub-*.json   which scheduler a qsub belongs to
    CACHE/queries/NAME.lock     locked during a query; other commands wait for its result

A cache file that other users can write to is ignored. Without a writable cache, each command queries the scheduler.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.files.retried_reads import backoff
from launcher.files.safe_io import write
from launcher.paths import user_cache_dir
from launcher.schedulers import registry
from launcher.schedulers.base import JobState, QueryError, SchedulerJob

FORMAT = 4
QUICKEST, SLOWEST = 2.0, 60.0  # minimum and maximum seconds for which a result is fresh
SLOWER = 1.3  # factor by which this time grows with each unchanged result
SHARE = 10  # a result is fresh for at least 10 durations of its query, so queries take at most a tenth of the time


class JobSnapshot(Struct):
    """The result of one query for all jobs of the user."""

    jobs: Mapping[str, SchedulerJob] = MappingProxyType({})  # by `Queries.key`, from the last query that succeeded
    began: float | None = None  # its start, in seconds since the epoch; None: none has succeeded
    completed: float = 0.0  # end of the latest query, in seconds since the epoch
    took: float = 0.0  # duration of the latest query in seconds
    problem: str = ""  # why the latest query failed; empty if it succeeded
    own: bool = True  # whether this process made the query; False if the result was read from the cache

    def is_fresh(self, seconds: float, now: float) -> bool:
        return 0 <= now - self.completed <= seconds

    def suffices(self, good_for: float, newer: float, least: float, now: float) -> bool:
        """Returns whether it is fresh and began at or after `newer`, or the site's minimum interval has not passed."""
        fresh = self.is_fresh(good_for, now) and (self.began or 0.0) >= newer
        return fresh or (least > 0 and self.is_fresh(least, now))


def interval(unchanged: int, took: float, quickest: float = QUICKEST, slowest: float = SLOWEST) -> float:
    return min(slowest, max(quickest * SLOWER ** min(unchanged, 50), SHARE * took))


def take_snapshot(jobs: Callable[[], dict[str, SchedulerJob]], before: JobSnapshot | None) -> JobSnapshot:
    """Queries the scheduler now; an error becomes `JobSnapshot.problem`, with the jobs of `before`."""
    began, start = time.time(), time.monotonic()
    try:
        return JobSnapshot(jobs(), began, time.time(), time.monotonic() - start)
    except QueryError as error:
        before = before or JobSnapshot()
        return JobSnapshot(before.jobs, before.began, time.time(), time.monotonic() - start, str(error))


def cache_file(name: str, which: object) -> Path:
    return user_cache_dir() / "queries" / f"{name}-{hashlib.sha256(repr(which).encode()).hexdigest()[:16]}.json"


def read_cached(path: Path) -> Any:
    """Returns the value in a file of the cache; None: others can write to it; raises OSError and ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        private = _private(os.fstat(descriptor)) and _private(os.stat(path.parent))
        return json.loads(file.read()) if private else None


def write_cached(path: Path, value: object) -> None:
    with contextlib.suppress(OSError):
        safe_io.make_folder(path.parent)
        write(path, json.dumps(value), sync=False)


class SharedSnapshot:
    """The cached snapshot of one scheduler's jobs, shared by this user's commands on this machine."""

    def __init__(self, scheduler: str) -> None:
        which = [scheduler, str(os.getuid()), socket.gethostname(), *registry.queue(scheduler).server()]
        self._file = cache_file(scheduler, which)

    def get(
        self, good_for: float, jobs: Callable[[], dict[str, SchedulerJob]], timeout: float, *, newer: float = 0.0,
        least: float = 0.0,
    ) -> JobSnapshot:  # fmt: skip
        """Returns the cached snapshot if it suffices, else a new one; timeout: seconds to wait for another query."""

        def good(snapshot: JobSnapshot | None) -> JobSnapshot | None:
            return snapshot if snapshot is not None and snapshot.suffices(good_for, newer, least, time.time()) else None

        if found := good(self._read()):
            return found
        with self._only_one(timeout):
            before = self._read()
            if found := good(before):
                return found
            snapshot = take_snapshot(jobs, before)
            self._write(snapshot)
            return snapshot

    def forget(self) -> None:
        """Removes the cached snapshot, for instance because a job was cancelled."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _read(self) -> JobSnapshot | None:
        try:
            values = read_cached(self._file)
            if values["format"] != FORMAT or values["completed"] > time.time() + 1:
                return None
            jobs = {key: SchedulerJob(id_, JobState(state), *rest) for key, id_, state, *rest in values["jobs"]}
            return JobSnapshot(jobs, values["began"], values["completed"], values["took"], values["problem"], own=False)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, snapshot: JobSnapshot) -> None:
        jobs = [[key, *(vars(job) | {"state": job.state.value}).values()] for key, job in snapshot.jobs.items()]
        values = {"format": FORMAT, "began": snapshot.began, "completed": snapshot.completed, "took": snapshot.took,
                  "problem": snapshot.problem, "jobs": jobs}  # fmt: skip
        write_cached(self._file, values)

    @contextlib.contextmanager
    def _only_one(self, timeout: float) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # nothing can be cached, or a file system has no locks
                safe_io.make_folder(self._file.parent)
                lock = os.open(self._file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                held.callback(os.close, lock)
                for _ in backoff(timeout, 0.02, 0.02):
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
            yield


def _private(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

"""Optuna's journal in a file of the sweep's directory, written by processes of several nodes.

It replaces Optuna's JournalFileBackend, whose file is the same, for three reasons:

- An operation of a search (choose a point, say) is several records of Optuna's. Here they are written together, in one
  append at the end of the operation: a process that is killed leaves all of them or none.
- Optuna breaks a lock after 30 s, whoever holds it; `launcher.files.link_lock` breaks one whose holder is dead, at once
  if it was on the same node.
- After a record that was cut off (a full disk, a killed node) Optuna reads nothing more. Such a line is passed over
  here, and the next record begins on a line of its own.

Numbers of trials follow from the order of lines in the file, which is the same for every reader.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from launcher.errors import UnavailableError
from launcher.files import link_lock
from launcher.files.run_files import naming
from launcher.files.shared_files import retry_read, unwrap
from launcher.runs.search_record import SearchRecord, entries


class JournalBackend(BaseJournalBackend):
    """Reads the journal, and appends to it within `operation`. For one JournalStorage, which reads in order."""

    def __init__(self, record: SearchRecord, waiting: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            record: the files of the search.
            waiting: see `link_lock.hold`.
        """
        self._path, self._lock, self._waiting = record.journal_file, record.lock_file, waiting
        self._offset = 0  # bytes that have been read
        self._number = 0  # records that have been read
        self._open = self._up_to_date = False  # an operation; it has read the file
        self._pending: list[dict[str, Any]] = []
        self._shown = 0  # pending records that have been read

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the records that have not been read yet; within an operation also its own.

        Raises:
            UnavailableError: the file cannot be read now.
        """
        if log_number_from != self._number:
            raise ValueError(f"records are read in order: {self._number} is next, not {log_number_from}")
        if not self._shown:  # else the lock is held, and the file does not grow
            data = unwrap(retry_read(self._rest, self._path)) or b""
            if self._up_to_date and b"\n" in data:
                raise self._lock_lost()
            self._up_to_date = self._open
            self._offset += data.rfind(b"\n") + 1
            for entry in entries(data):
                self._number += 1
                yield entry
        for entry in self._pending[self._shown :]:
            self._shown += 1
            self._number += 1
            yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds records to the current `operation`, which writes them when its block ends."""
        if not self._open:
            raise ValueError("records are appended within an operation")
        self._pending += json.loads(json.dumps(logs))  # as they will be read: enums as numbers

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """Holds the journal's lock while the block runs, and writes the block's records at its end.

        After an error nothing is written, and the storage that has read these records must be made again.

        Raises:
            UnavailableError: the file server does not answer, or another process has taken the lock over meanwhile.
            OSError: the records cannot be written.
        """
        with link_lock.hold(self._lock, waiting=self._waiting):
            self._open = True
            try:
                yield
                self._write()
            finally:
                self._open, self._up_to_date, self._pending, self._shown = False, False, [], 0

    def _lock_lost(self) -> UnavailableError:
        """Nobody writes while the lock is held. What was decided without the records of others is not valid."""
        return UnavailableError(f"{self._path} was written by a process that has taken over its lock")

    def _rest(self) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            return file.read()

    def _write(self) -> None:
        if not self._pending:
            return
        data = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in self._pending).encode()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if b"\n" in os.pread(descriptor, max(0, size - self._offset), self._offset):
                raise self._lock_lost()
            before = b"" if not size or os.pread(descriptor, 1, size - 1) == b"\n" else b"\n"
            with naming(self._path):
                left = before + data
                try:
                    while left:
                        left = left[os.write(descriptor, left) :]
                    os.fsync(descriptor)
                except OSError:  # a full disk: half of an operation must not be read
                    os.ftruncate(descriptor, size)
                    raise
        finally:
            os.close(descriptor)
        # This process has read its own records already: all that is new in the file, for the lock was held.
        self._offset = size + len(before) + len(data)

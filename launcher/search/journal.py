"""Optuna's journal in a file of the sweep's directory, written by processes of several nodes.

It replaces Optuna's JournalFileBackend, with the same file format, for three reasons:

- An operation of a search (choose a point, say) is several records of Optuna. Here they are written together, in one
  append at the end of the operation, so that a killed process leaves all of them or none.
- Optuna takes over any lock after 30 s. `launcher.files.locks` takes over only the lock of a dead holder, at once
  if the holder was on the same node.
- Optuna stops reading at an incomplete record (a full disk, a killed node). Here such a line is skipped, and the next
  record starts on a line of its own.

The number of a trial is its index in the order of lines in the file, which is the same for every reader.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from launcher import bounds
from launcher.errors import RunError, UnavailableError
from launcher.files import locks
from launcher.files.run_files import naming, open_regular
from launcher.files.shared_files import retry_read, unwrap
from launcher.formatting import long_size
from launcher.runs.search_record import SearchRecord, entries


class JournalBackend(BaseJournalBackend):
    """Optuna backend that reads the journal, and appends to it within `operation`.

    An object serves one JournalStorage, which reads each record once, in order.
    """

    def __init__(self, record: SearchRecord, waiting: Callable[[], None] = lambda: None) -> None:
        """waiting: called again and again while another process holds the lock."""
        self._path, self._lock, self._waiting = record.journal_file, record.lock_file, waiting
        self._offset = 0  # bytes that have been read
        self._number = 0  # records that have been read
        self._open = self._up_to_date = False  # whether an operation is in progress; whether it has read the file
        self._pending: list[dict[str, Any]] = []  # records of this operation, which are not written yet
        self._shown = 0  # how many of the pending records have been read

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the records that have not been read yet; in an operation, also those that it has appended.

        log_number_from: number of the first record; must be the next one, because records are read in order.
        Raises UnavailableError: the file cannot be read now, or another process has taken over the lock.
        """
        if log_number_from != self._number:
            raise ValueError(f"records are read in order: {self._number} is next, not {log_number_from}")
        if not self._shown:  # else the lock is held, and the file does not grow
            data = unwrap(retry_read(self._rest, self._path)) or b""
            if self._up_to_date and b"\n" in data:
                raise self._lock_lost()
            self._up_to_date = self._open
            self._offset += data.rfind(b"\n") + 1
            for entry in entries(data, self._path):
                self._number += 1
                yield entry
        for entry in self._pending[self._shown :]:
            self._shown += 1
            self._number += 1
            yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds records to the current `operation`, which writes them at the end of its block."""
        if not self._open:
            raise ValueError("records are appended within an operation")
        self._pending += json.loads(json.dumps(logs))  # as they will be read from the file: enums as numbers

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """Holds the journal's lock while the block runs, and writes the block's records at its end.

        After an error nothing is written. Then the caller must make a new JournalStorage and backend, because the old
        ones have read records that were not written.

        Raises UnavailableError: the file server does not respond, or another process has taken over the lock meanwhile.
        Raises OSError: the records cannot be written.
        """
        with locks.hold(self._lock, waiting=self._waiting):
            self._open = True
            try:
                yield
                self._write()
            finally:
                self._open, self._up_to_date, self._pending, self._shown = False, False, [], 0

    def _lock_lost(self) -> UnavailableError:
        return UnavailableError(f"{self._path} was written by a process that has taken over its lock")

    def _rest(self) -> bytes:
        with open_regular(self._path) as file:
            file.seek(self._offset)
            return file.read(bounds.SEARCH_BYTES)

    def _write(self) -> None:
        if not self._pending:
            return
        lines = [json.dumps(each, separators=(",", ":")).encode() for each in self._pending]
        if (longest := max(map(len, lines))) > bounds.SEARCH_LINE_BYTES:
            raise RunError(
                f"a line of {self._path} would have {long_size(longest)}, and no more than "
                f"{long_size(bounds.SEARCH_LINE_BYTES)} are read: give the keys fewer choices"
            )
        data = b"\n".join(lines) + b"\n"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if b"\n" in os.pread(descriptor, max(0, size - self._offset), self._offset):
                raise self._lock_lost()
            before = b"" if not size or os.pread(descriptor, 1, size - 1) == b"\n" else b"\n"
            if size + len(before + data) > bounds.SEARCH_BYTES:
                raise RunError(
                    f"{self._path} has {long_size(size)}, and no more than {long_size(bounds.SEARCH_BYTES)} are read: "
                    "continue with another search (sweep.id)"
                )
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
        # Only this process's records are new in the file, because it held the lock, and it has read them already.
        self._offset = size + len(before) + len(data)

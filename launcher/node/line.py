"""The common store, reached through a thread: a master that stopped answering must not stop whoever asks it.

Calls of torch's TCPStore wait for ever on a server that is stopped or cut off. Here they are made one after the other
by a thread of their own, and the agent goes on watching its ranks and its signals meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import TypeVar

from torch.distributed import Store

T = TypeVar("T")


class LineDead(Exception):
    """The store did not answer in time, or its host is gone."""


class Line:
    """Calls of a store, in order."""

    def __init__(self, store: Store, patience: float) -> None:
        """
        Args:
            store: nobody else uses it while this is open.
            patience: seconds without an answer after which the line is dead.
        """
        self._store, self._patience = store, patience
        self._calls: queue.SimpleQueue[tuple[Callable[[Store], object], Future] | None] = queue.SimpleQueue()
        self._waiting_since: float | None = None
        self._dead = ""
        self._thread: threading.Thread | None = None

    def post(self, call: Callable[[Store], T]) -> Future[T]:
        """Has the store called soon; the future gets the answer, or the store's error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def ask(self, call: Callable[[Store], T]) -> T:
        """The store's answer.

        Raises:
            LineDead: there is none.
        """
        self.require()
        try:
            return self.post(call).result(self._patience)
        except Late:
            raise LineDead(f"no answer for {self._patience:g} s") from None
        except RuntimeError as error:  # what torch's stores raise
            raise LineDead(str(error)) from None

    def answer(self, future: Future[T]) -> T:
        """What a call that is over has brought.

        Raises:
            LineDead: the store is gone.
        """
        try:
            return future.result()
        except RuntimeError as error:
            raise LineDead(str(error)) from None

    def require(self) -> None:
        """
        Raises:
            LineDead: a call has failed, or has been waiting for an answer for too long.
        """
        if self._dead:
            raise LineDead(self._dead)
        since = self._waiting_since
        if since is not None and time.monotonic() - since > self._patience:
            raise LineDead(f"no answer for {self._patience:g} s")

    def close(self) -> None:
        """Ends the thread, so that the process can be forked; one that still waits for an answer is left behind."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(0.2 if self._waiting_since is None else 0.0)
            self._thread = None

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            ask, future = call
            self._waiting_since = time.monotonic()
            try:
                future.set_result(ask(self._store))
            except Exception as error:
                self._dead = str(error).partition("\n")[0] or type(error).__name__
                future.set_exception(error)
            self._waiting_since = None

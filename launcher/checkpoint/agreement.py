"""Collective calls of a Checkpointer's ranks: an error on one rank is raised on all of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from launcher.checkpoint.files import combined_error, one_line
from launcher.checkpoint.format import CheckpointError
from launcher.errors import RESUME
from launcher.torch_compat import destroy_without_gil
from launcher.worker import process_group

LONGEST_PAUSE = 0.05  # seconds between two reads of the store
_RANKS = 1 << 20  # more ranks than any job has: three counts of ranks are packed into one number of the store

T = TypeVar("T")
_numbers = itertools.count()  # numbers the instances of Peers; all ranks make them in the same order


class SavesFail(CheckpointError):
    """Too many saves in a row have failed: this attempt ends, and a later one may try again."""

    exit_code = RESUME
    code = "saves_failed"


@dataclass(frozen=True)
class SaveResult:
    """How a save ended on all ranks."""

    published: bool  # whether the checkpoint was published
    broken: int  # number of ranks on which the process group failed


class Peers:
    """Collective calls of all ranks through a process group for checkpoints; an error on one rank is raised on all.

    After an error of the process group itself (for example because a rank was too slow) no rank knows whether the
    others had the error, too. So each rank records in the store how each save ended, and before the next save all ranks
    read these records.
    """

    def __init__(self, rank: int, world_size: int, timeout: float, *, own_group: bool) -> None:
        # All ranks make their Peers at the same point of the program
        self.rank, self.world_size = rank, world_size
        self.many = world_size > 1
        self.group: dist.ProcessGroup | None = None
        self._timeout = timeout
        self._saves = self._settled = 0
        self._last: SaveResult | None = None
        self._store: dist.Store | None = None
        if own_group:
            store = distributed_c10d._get_default_store()
            self._store = dist.PrefixStore(f"launcher/checkpoint/{next(_numbers)}", store)
            self._make_group()

    def _make_group(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        destroy_without_gil(self.group)

    def close(self) -> None:
        """Destroys the process group for checkpoints, if there is one."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None

    # -- from one save to the next

    def record_end(self, *, published: bool, broken: bool) -> None:
        """Records how a save ended on this rank, for the others: published or not; whether the group failed."""
        self._saves += 1
        self._last = SaveResult(published, int(broken))
        if self._store is not None:
            counted = published and self.rank == 0
            with contextlib.suppress(RuntimeError):  # if the store is gone, `last_result` raises the error
                self._store.add(f"ended/{self._saves}", 1 + _RANKS * broken + _RANKS**2 * counted)

    def last_result(self) -> SaveResult | None:
        """Waits until the last save has ended on all ranks (None: there was none since the last call).

        All ranks call it before the next save. If the group failed in that save, it makes a new one.
        Raises SavesFail: some ranks have not finished that save within the timeout.
        """
        if self._settled == self._saves:
            return None
        self._settled = self._saves
        if self._store is None:
            return self._last
        key, pause = f"ended/{self._saves}", 1e-4
        deadline = time.monotonic() + self._timeout
        while (counts := self._store.add(key, 0)) % _RANKS < self.world_size:
            if time.monotonic() > deadline:
                raise SavesFail(
                    f"{self.world_size - counts % _RANKS} of {self.world_size} ranks are not through with the last "
                    f"checkpoint after {self._timeout:g} s (checkpoint.timeout)"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        result = SaveResult(bool(counts // _RANKS**2), counts // _RANKS % _RANKS)
        if result.broken:
            self.close()
            self._make_group()
        return result

    # -- collective calls

    def gather(self, mine: T) -> list[T]:
        """Returns on rank 0 the values of all ranks, in order; on the other ranks an empty list."""
        if not self.many:
            return [mine]
        return process_group.gather(mine, self.group)

    def total(self, mine: Tensor) -> Tensor:
        """Returns the sum of the tensors of all ranks, in `mine`."""
        if self.many:
            dist.all_reduce(mine, group=self.group)
        return mine

    def on_each(self, function: Callable[[], T]) -> list[T]:
        """Calls the function on each rank; returns the results of all ranks on rank 0, or raises their errors as one on
        all. On other ranks the list is empty."""
        outcomes: list[Any] = self.gather(_attempt(function))
        self.on_first(lambda: _require_no_error(outcomes))
        return [value for value, _ in outcomes]

    def on_first(self, function: Callable[[], T]) -> T:
        """Calls the function on rank 0; returns its result, or raises its error as a CheckpointError, on all ranks."""
        outcome = _attempt(function) if self.rank == 0 else (None, None)
        return cast(T, _result(process_group.broadcast(outcome, self.group) if self.many else outcome))

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """Calls the function on each rank; returns the results of all ranks on all, or raises their errors as one."""
        mine = _attempt(function)
        outcomes: list[Any] = process_group.all_gather(mine, self.group) if self.many else [mine]
        _require_no_error(outcomes)
        return [value for value, _ in outcomes]


def _attempt(function: Callable[[], T]) -> tuple[T | None, CheckpointError | str | None]:
    try:
        return function(), None
    except CheckpointError as error:
        return None, error
    except Exception as error:  # any error, or the other ranks would wait for this one
        return None, one_line(error)


def _require_no_error(outcomes: Sequence[tuple[Any, CheckpointError | str | None]]) -> None:
    errors = {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}
    if errors:
        raise combined_error(errors, len(outcomes))


def _result(outcome: tuple[T, CheckpointError | str | None]) -> T:
    value, error = outcome
    if isinstance(error, CheckpointError):
        raise error
    if error is not None:
        raise CheckpointError(error)
    return value

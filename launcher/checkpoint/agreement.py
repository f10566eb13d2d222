"""Collective calls of a Checkpointer's ranks: an error on one rank is raised on all of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d

from launcher.checkpoint.files import combined_error, one_line
from launcher.checkpoint.format import CheckpointError
from launcher.errors import RESUME
from launcher.torch_compat import destroy_without_gil
from launcher.worker import rank_objects

LONGEST_PAUSE = 0.05  # seconds between two reads of the store
_RANKS = 1 << 20  # more than any job has: several counts of ranks are packed into one number of the store

T = TypeVar("T")
_numbers = itertools.count()  # number the Checkpointers; all ranks make them in the same order


class SavesFail(CheckpointError):
    """No save has worked for a while: the attempt ends, so that another one can try."""

    exit_code = RESUME
    code = "saves_failed"


@dataclass(frozen=True)
class SaveResult:
    """How a save ended on all ranks.

    Attributes:
        published: whether the checkpoint is there.
        broken: on how many ranks the process group failed.
    """

    published: bool
    broken: int


class Peers:
    """All ranks of the job, with a process group for checkpoints; an error on one rank is raised on all.

    After an error of the group itself (for example because a rank was too slow) no rank knows whether the others had it
    too. So each rank records in the store how each save ended, and before the next save all ranks read that.
    """

    def __init__(self, rank: int, world_size: int, timeout: float, *, own_group: bool) -> None:
        """All ranks call it.

        Args:
            rank, world_size: of this process.
            timeout: seconds to wait for the slowest rank.
            own_group: whether to make a group; otherwise the default group is used.
        """
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
        """Destroys the group."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None

    # -- from one save to the next

    def record_end(self, *, published: bool, broken: bool) -> None:
        """Records how a save ended on this rank. Any thread may call it."""
        self._saves += 1
        self._last = SaveResult(published, int(broken))
        if self._store is not None:
            counted = published and self.rank == 0
            with contextlib.suppress(RuntimeError):  # a missing store is reported by `last_result`
                self._store.add(f"ended/{self._saves}", 1 + _RANKS * broken + _RANKS**2 * counted)

    def last_result(self) -> SaveResult | None:
        """Waits until the last save has ended on all ranks; None if there was none since the last call.

        Makes a new group if the group failed in that save. All ranks call it before the next save.

        Raises:
            SavesFail: some ranks have not finished that save within the timeout.
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
        """All ranks' values on rank 0; an empty list on the others."""
        if not self.many:
            return [mine]
        return rank_objects.gather(mine, self.group)

    def on_first(self, function: Callable[[], T]) -> T:
        """Calls the function on rank 0; returns its result, or raises its error, on all ranks."""
        outcome = _attempt(function) if self.rank == 0 else (None, None)
        return cast(T, _result(rank_objects.broadcast(outcome, self.group) if self.many else outcome))

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """Calls the function on all ranks; returns all results, or raises all errors as one, on all ranks."""
        mine = _attempt(function)
        outcomes: list[Any] = rank_objects.all_gather(mine, self.group) if self.many else [mine]
        errors = {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}
        if errors:
            raise combined_error(errors, self.world_size)
        return [value for value, _ in outcomes]


def _attempt(function: Callable[[], T]) -> tuple[T | None, CheckpointError | str | None]:
    try:
        return function(), None
    except CheckpointError as error:
        return None, error
    except Exception as error:  # any error, or the other ranks would wait for this one
        return None, one_line(error)


def _result(outcome: tuple[T, CheckpointError | str | None]) -> T:
    value, error = outcome
    if isinstance(error, CheckpointError):
        raise error
    if error is not None:
        raise CheckpointError(error)
    return value

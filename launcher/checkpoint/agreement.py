"""The ranks of a Checkpointer as one: what one of them raises, all of them raise."""

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

from launcher.checkpoint.files import together, words
from launcher.checkpoint.format import CheckpointError
from launcher.errors import RESUME
from launcher.torch_compat import destroy_without_gil
from launcher.worker import rank_objects

LONGEST_PAUSE = 0.05  # seconds between two looks at the store
_RANKS = 1 << 20  # more than there are; counts of ranks share a number in the store

T = TypeVar("T")
_numbers = itertools.count()  # of Checkpointers; all ranks make them in the same order


class SavesFail(CheckpointError):
    """No save has worked for a while: the attempt ends, and another one may be luckier."""

    exit_code = RESUME
    code = "saves_failed"


@dataclass(frozen=True)
class Ended:
    """How a save ended on all ranks together.

    Attributes:
        published: it is there.
        broken: on how many ranks the group failed, and not what they wrote.
    """

    published: bool
    broken: int


class Peers:
    """All ranks of the job, with a group of their own; what one of them raises, all of them raise.

    After an error of the group itself (a rank was too slow, say) no rank knows whether the others saw it too. So each
    rank counts in the store how each save ended, and before the next one they all read the same numbers.
    """

    def __init__(self, rank: int, world_size: int, timeout: float, *, own_group: bool) -> None:
        """All ranks call it.

        Args:
            rank, world_size: this rank.
            timeout: seconds for which the slowest rank is awaited.
            own_group: make a group; without one the default group is used.
        """
        self.rank, self.world_size = rank, world_size
        self.many = world_size > 1
        self.group: dist.ProcessGroup | None = None
        self._timeout = timeout
        self._saves = self._settled = 0
        self._last: Ended | None = None
        self._store: dist.Store | None = None
        if own_group:
            store = distributed_c10d._get_default_store()
            self._store = dist.PrefixStore(f"launcher/checkpoint/{next(_numbers)}", store)
            self._make_group()

    def _make_group(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        destroy_without_gil(self.group)

    def close(self) -> None:
        """Gives the group back."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None

    # -- from one save to the next

    def ended(self, *, published: bool, broken: bool) -> None:
        """How a save ended on this rank; in whatever thread it ran."""
        self._saves += 1
        self._last = Ended(published, int(broken))
        if self._store is not None:
            ours = published and self.rank == 0
            with contextlib.suppress(RuntimeError):  # a store that is gone is noticed by whoever reads it
                self._store.add(f"ended/{self._saves}", 1 + _RANKS * broken + _RANKS**2 * ours)

    def settle(self) -> Ended | None:
        """How the last save ended, once all ranks are through with it; None: there was none since the last call.

        If its group failed, all ranks have a new one now. They all call it, before the next save.

        Raises:
            SavesFail: some ranks are not through with it.
        """
        if self._settled == self._saves:
            return None
        self._settled = self._saves
        if self._store is None:
            return self._last
        key, pause = f"ended/{self._saves}", 1e-4
        give_up = time.monotonic() + self._timeout
        while (told := self._store.add(key, 0)) % _RANKS < self.world_size:
            if time.monotonic() > give_up:
                raise SavesFail(
                    f"{self.world_size - told % _RANKS} of {self.world_size} ranks are not through with the last "
                    f"checkpoint after {self._timeout:g} s (checkpoint.timeout)"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        result = Ended(bool(told // _RANKS**2), told // _RANKS % _RANKS)
        if result.broken:
            self.close()
            self._make_group()
        return result

    # -- as one

    def gather(self, mine: T) -> list[T]:
        """Of all ranks on rank 0, elsewhere nothing."""
        if not self.many:
            return [mine]
        return rank_objects.gather(mine, self.group)

    def on_first(self, function: Callable[[], T]) -> T:
        """The function's result on rank 0, or what it raised there, on all ranks."""
        told = _attempt(function) if self.rank == 0 else (None, None)
        return cast(T, _result(rank_objects.broadcast(told, self.group) if self.many else told))

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """The function's results on all ranks; or what it raised on any of them, as one error on all."""
        mine = _attempt(function)
        told: list[Any] = rank_objects.all_gather(mine, self.group) if self.many else [mine]
        errors = {rank: error for rank, (_, error) in enumerate(told) if error is not None}
        if errors:
            raise together(errors, self.world_size)
        return [value for value, _ in told]


def _attempt(function: Callable[[], T]) -> tuple[T | None, CheckpointError | str | None]:
    try:
        return function(), None
    except CheckpointError as error:
        return None, error
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        return None, words(error)


def _result(told: tuple[T, CheckpointError | str | None]) -> T:
    value, error = told
    if isinstance(error, CheckpointError):
        raise error
    if error is not None:
        raise CheckpointError(error)
    return value

"""The ranks of a Checkpointer as one: what one of them raises, all of them raise."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from launcher.checkpoint.files import together, words
from launcher.checkpoint.format import CheckpointError

MESSAGE = 1 << 10  # bytes of a message that is sent at once

T = TypeVar("T")


class Peers:
    """All ranks; what one of them raises, all of them raise."""

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group
        self.many = world_size > 1

    def gather(self, mine: T) -> list[T]:
        """Of all ranks on rank 0, elsewhere nothing."""
        if not self.many:
            return [mine]
        all_of_them: list[Any] = [None] * self.world_size if self.rank == 0 else []
        dist.gather_object(mine, all_of_them if self.rank == 0 else None, dst=0, group=self.group)
        return all_of_them

    def on_first(self, function: Callable[[], T]) -> T:
        """The function's result on rank 0, or what it raised there, on all ranks."""
        told = _attempt(function) if self.rank == 0 else (None, None)
        return cast(T, _result(self._broadcast(told) if self.many else told))

    def _broadcast(self, told: T) -> T:
        """Rank 0's, in one message if it is small (broadcast_object_list always needs two)."""
        message = pickle.dumps(told)
        first = torch.zeros(MESSAGE, dtype=torch.uint8)
        if self.rank == 0:
            head = len(message).to_bytes(8, "big") + message[: MESSAGE - 8]
            first[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        dist.broadcast(first, src=0, group=self.group)
        head = bytes(first.tolist())
        size = int.from_bytes(head[:8], "big")
        if size <= MESSAGE - 8:
            message = head[8 : 8 + size]
        else:
            rest = torch.empty(size, dtype=torch.uint8)
            if self.rank == 0:
                rest = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            dist.broadcast(rest, src=0, group=self.group)
            message = bytes(rest.tolist())
        return cast(T, pickle.loads(message))  # noqa: S301  # as torch's own collectives of objects do

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """The function's results on all ranks, or what it raised on any of them."""
        mine = _attempt(function)
        told: list[Any] = [mine]
        if self.many:
            told = [None] * self.world_size
            dist.all_gather_object(told, mine, group=self.group)
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

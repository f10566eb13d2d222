"""Collective calls of a Checkpointer's ranks: an error on one rank is raised on all of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from launcher.checkpoint.format import CannotRead, CheckpointError, Damaged, Misfit
from launcher.errors import RESUME
from launcher.files.retried_reads import backoff
from launcher.formatting import name_ranks
from launcher.worker import process_group

PAUSES = 1e-4, 0.05  # first and longest seconds between two reads of the store
_RANKS = 1 << 20  # more ranks than any job has: three counts of ranks are packed into one number of the store

T = TypeVar("T")
_numbers = itertools.count()  # numbers the instances of Peers; all ranks make them in the same order


class SavesFail(CheckpointError):
    """Too many saves in a row have failed: this attempt ends, and a later one may try again."""

    exit_code = RESUME
    code = "saves_failed"


class Peers:
    """Collective calls of all ranks through a process group for checkpoints; an error on one rank is raised on all.

    After an error of the process group itself no rank knows whether the others had it, too. So each rank records in the
    store how each save ended, and before the next save all ranks read these records.
    """

    def __init__(self, rank: int, world_size: int, timeout: float, *, own_group: bool) -> None:
        # All ranks make their Peers at the same point of the program
        self.rank, self.world_size = rank, world_size
        self.many = world_size > 1
        self.group: dist.ProcessGroup | None = None
        self._timeout = timeout
        self._saves = self._settled = 0
        self._published = False  # whether this rank has published the last save
        self._store: dist.Store | None = None
        if own_group:
            store = distributed_c10d._get_default_store()
            self._store = dist.PrefixStore(f"launcher/checkpoint/{next(_numbers)}", store)

    def open(self) -> Peers:
        """Makes the process group, unless it is there or there is to be none. All ranks call it, before collectives."""
        if self.group is None and self._store is not None:
            self.group = process_group.gloo_group(self.world_size, self._timeout)
        return self

    def close(self) -> None:
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None

    # -- from one save to the next

    def record_end(self, *, published: bool, broken: bool) -> None:
        """Records how a save ended on this rank, for the others: published or not; whether the group failed."""
        self._saves += 1
        self._published = published
        if self._store is not None:
            counted = published and self.rank == 0
            with contextlib.suppress(RuntimeError):  # if the store is gone, `last_result` raises the error
                self._store.add(f"ended/{self._saves}", 1 + _RANKS * broken + _RANKS**2 * counted)

    def last_result(self) -> bool | None:
        """Waits until the last save has ended on all ranks; returns whether it was published (None: no new save).

        All ranks call it before the next save. If the group failed in that save, it is closed. Raises SavesFail.
        """
        if self._settled == self._saves:
            return None
        self._settled = self._saves
        if self._store is None:
            return self._published
        for _ in backoff(self._timeout, *PAUSES):
            counts = self._store.add(f"ended/{self._saves}", 0)
            if counts % _RANKS >= self.world_size:
                break
        else:
            raise SavesFail(
                f"{self.world_size - counts % _RANKS} of {self.world_size} ranks did not finish the last "
                f"checkpoint within {self._timeout:g} s (checkpoint.timeout)"
            )
        if counts // _RANKS % _RANKS:  # ranks on which the group failed
            self.close()
        return bool(counts // _RANKS**2)

    # -- collective calls

    def gather(self, mine: T) -> list[T]:
        """Returns on rank 0 the values of all ranks, in order; on the other ranks an empty list."""
        if not self.many:
            return [mine]
        return process_group.gather(mine, self.group)

    def total(self, mine: Tensor) -> Tensor:
        if self.many:
            dist.all_reduce(mine, group=self.group)
        return mine

    def on_each(self, function: Callable[[], T]) -> list[T]:
        """Like `on_all`, but returns the results on rank 0 alone, and [] on others."""
        outcomes: list[Any] = self.gather(_told(_attempt(function)))
        self.on_first(lambda: _require_no_error(outcomes, None))
        return [value for value, _ in outcomes]

    def on_first(self, function: Callable[[], T]) -> T:
        """Calls the function on rank 0; returns its result, or raises its error as a CheckpointError, on all ranks."""
        outcome = _told(_attempt(function)) if self.rank == 0 else (None, None)
        value, error = process_group.broadcast(outcome, self.group, self._timeout) if self.many else outcome
        if error is not None:
            raise error if isinstance(error, CheckpointError) else CheckpointError(error)
        return cast(T, value)

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """Calls the function on each rank; returns the results of all ranks on all, or raises their errors as one."""
        mine = _attempt(function)
        outcomes: list[Any] = process_group.all_gather(_told(mine), self.group) if self.many else [_told(mine)]
        _require_no_error(outcomes, mine[1])
        return [value for value, _ in outcomes]


def _attempt(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:  # any error, or the other ranks would wait for this one
        return None, error


def _told(outcome: tuple[T | None, Exception | None]) -> tuple[T | None, CheckpointError | str | None]:
    value, error = outcome
    return value, error if error is None or isinstance(error, CheckpointError) else one_line(error)


def _require_no_error(outcomes: Sequence[tuple[Any, CheckpointError | str | None]], cause: Exception | None) -> None:
    errors = {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}
    if errors:
        said = isinstance(cause, CheckpointError)  # the combined one has its text: one traceback is enough
        raise combined_error(errors, len(outcomes)) from None if said else cause


def combined_error(errors: Mapping[int, BaseException | str], world_size: int) -> CheckpointError:
    """Returns one error for the errors of several ranks, which it names: a Misfit, CannotRead, or Damaged if any is.

    What one rank cannot read now is not damaged because another one does not find it: that would quarantine it.
    """
    kinds = (Misfit, CannotRead, Damaged)
    kind = next((kind for kind in kinds for error in errors.values() if isinstance(error, kind)), CheckpointError)
    chosen = {rank: error for rank, error in errors.items() if kind is CheckpointError or isinstance(error, kind)}
    ranks: dict[str, list[int]] = {}
    for rank, error in sorted(chosen.items()):
        ranks.setdefault(error if isinstance(error, str) else one_line(error), []).append(rank)
    on_all = len(chosen) == world_size and all(isinstance(error, CheckpointError) for error in chosen.values())
    if len(ranks) == 1 and (on_all or kind is not CheckpointError):  # no need to name the ranks
        return kind(next(iter(ranks)))
    return kind("; ".join(f"{name_ranks(who)}: {text}" for text, who in ranks.items()))


def one_line(error: BaseException) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"

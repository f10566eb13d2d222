"""Collective helpers of all workloads: introduce the ranks, compare values, raise errors on all ranks.

An error that only one rank raises leaves the others waiting in their next collective. So whatever may fail on one rank
alone (reading a file, checking a result) is gathered first, and then every rank raises the same error.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from launcher import formatting
from launcher.worker import rank_objects

if TYPE_CHECKING:
    from launcher import Env

T = TypeVar("T")
V = TypeVar("V", bound=Hashable)


class WorkloadError(RuntimeError):
    """A workload cannot continue, or found something wrong; the text names rank and host where that matters."""


def say(text: str) -> None:
    """Prints a line in one write, so that lines of several ranks do not mix."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def introduce(env: Env) -> None:
    """Prints a line about this rank: number, host, backend and device."""
    say(f"rank {env.rank}/{env.world_size} local {env.local_rank} on {env.host}: {env.backend}, {env.device}")


def gather(value: T, env: Env) -> list[T]:
    """Every rank's `value`, in order, on every rank. For small values."""
    return rank_objects.all_gather(value) if env.world_size > 1 else [value]


def raise_together(error: str | None, env: Env) -> None:
    """Raises an error on every rank if any rank has one.

    Raises:
        WorkloadError: the errors, each with its ranks and hosts; equal ones appear once.
    """
    errors = _by_value(error, env)
    errors.pop(None, None)
    if errors:
        raise WorkloadError("; ".join(f"{who}: {theirs}" for theirs, who in errors.items()))


def same_everywhere(what: str, value: str | int | float | tuple, env: Env) -> None:
    """Checks that `value` is equal on all ranks.

    Raises:
        WorkloadError: it differs; the text says which ranks have which value.
    """
    found = _by_value(value, env)
    if len(found) > 1:
        holders = "; ".join(f"{who}: {theirs}" for theirs, who in found.items())
        raise WorkloadError(f"{what} should be the same on all ranks, and is not: {holders}")


def name_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """`rank 3 on node2`, or `ranks 0-1 on node1, node2`; `hosts` are those of all ranks, in order."""
    return f"{formatting.name_ranks(ranks)} on {', '.join(dict.fromkeys(hosts[rank] for rank in ranks))}"


def _by_value(value: V, env: Env) -> dict[V, str]:
    """Each value, with the ranks and hosts that have it in words."""
    everyone = gather((value, env.host), env)
    hosts = [host for _, host in everyone]
    ranks_of: dict[V, list[int]] = {}
    for rank, (theirs, _) in enumerate(everyone):
        ranks_of.setdefault(theirs, []).append(rank)
    return {theirs: name_ranks(ranks, hosts) for theirs, ranks in ranks_of.items()}

"""Helpers of all workloads: gather values of all ranks, compare them, print lines, raise errors on all ranks.

An error that only one rank raises leaves the others waiting in their next collective. So whatever may fail on one rank
alone (reading a file, checking a result) is gathered first, and then every rank raises the same error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from launcher import formatting
from launcher.errors import LauncherError, UnavailableError
from launcher.worker import process_group

if TYPE_CHECKING:
    from launcher import Env

T = TypeVar("T")
V = TypeVar("V", bound=Hashable)


class WorkloadError(RuntimeError):
    """A workload cannot continue, or has found an error; the text names rank and host if only some ranks have it."""


def say(text: str) -> None:
    """Prints a line in one write, so that lines of several ranks do not mix."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def introduce(env: Env) -> None:
    """Prints a line about this rank: rank, world size, local rank, host, backend and device."""
    say(f"rank {env.rank}/{env.world_size} local {env.local_rank} on {env.host}: {env.backend}, {env.device}")


def gather(value: T, env: Env) -> list[T]:
    """Returns the (small) value of each rank, in order of rank, on every rank. All ranks must call it."""
    return process_group.all_gather(value) if env.world_size > 1 else [value]


def together(call: Callable[[], T], env: Env) -> T:
    """Returns the result of `call`; if it raises a LauncherError or a ValueError on any rank, an error on every rank:
    UnavailableError if all that is wrong is a file that cannot be read now, else WorkloadError."""
    result: T | None = None
    problem: tuple[str, bool] | None = None
    try:
        result = call()
    except (LauncherError, ValueError) as error:
        problem = str(error), isinstance(error, UnavailableError)
    if problems := {each: who for each, who in _by_value(problem, env).items() if each is not None}:
        text = "; ".join(f"{who}: {theirs}" for (theirs, _), who in problems.items())
        raise UnavailableError(text) if all(passes for _, passes in problems) else WorkloadError(text)
    return cast(T, result)


def same_everywhere(what: str, value: str | int | float | tuple, env: Env) -> None:
    """Raises WorkloadError if a value, such as "the initial weights", is not the same on all ranks, which all call."""
    found = _by_value(value, env)
    if len(found) > 1:
        holders = "; ".join(f"{who}: {theirs}" for theirs, who in found.items())
        raise WorkloadError(f"{what} should be the same on all ranks, and is not: {holders}")


def name_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Returns `rank 3 on node2`, or `ranks 0-1 on node1, node2`."""
    return f"{formatting.name_ranks(ranks)} on {', '.join(dict.fromkeys(hosts[rank] for rank in ranks))}"


def _by_value(value: V, env: Env) -> dict[V, str]:
    # All ranks must call it
    everyone = gather((value, env.host), env)
    hosts = [host for _, host in everyone]
    ranks_of: dict[V, list[int]] = {}
    for rank, (theirs, _) in enumerate(everyone):
        ranks_of.setdefault(theirs, []).append(rank)
    return {theirs: name_ranks(ranks, hosts) for theirs, ranks in ranks_of.items()}

"""Which points of a sweep share an array: those whose scripts are equal but for the run. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from launcher.environment import containers
from launcher.schedulers import job_script
from launcher.spec.plan import JobPlan, keys_of

# Keys and sections of a plan that only ranks look at. What is not here may be in the script.
FOR_RANKS = (
    "workload", "train", "seed", "preflight", "resume.strict", "checkpoint.every", "checkpoint.every_steps",
    "checkpoint.keep", "checkpoint.best", "checkpoint.best_is", "checkpoint.background", "checkpoint.verify",
)  # fmt: skip


def array_plan(plan: JobPlan, sweep_id: str, folder: Path) -> JobPlan:
    """The plan of the array that a point with this plan is in; its directory is the sweep's."""
    own = plan.checkpoint.dir == f"{plan.run_dir}/checkpoints"
    checkpoints = f"{folder}/checkpoints" if own else plan.checkpoint.dir
    return dataclasses.replace(
        plan, run_id=sweep_id, run_dir=str(folder), checkpoint=dataclasses.replace(plan.checkpoint, dir=checkpoints)
    )


def groups(
    plans: Mapping[int, JobPlan], sweep_id: str, folder: Path,
    naming: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[JobPlan, tuple[int, ...]]]:  # fmt: skip
    """The plan of each array and the points in it, in their order.

    Args:
        plans: of the points, by their numbers.
        sweep_id: of their sweep.
        folder: its directory.
        naming: makes errors inside tell whose they are.

    Raises:
        ConfigError: a plan cannot be written as a script (extra options that collide with keys).
    """
    texts: dict[tuple[object, ...], str] = {}
    found: dict[str, tuple[JobPlan, list[int]]] = {}
    for index, plan in plans.items():
        whole = array_plan(plan, sweep_id, folder)
        key = _key(whole)
        if key not in texts:
            with naming(index):
                texts[key] = job_script.script(whole, token="", array="0-1", elements=folder / "arrays" / "0")
        found.setdefault(texts[key], (whole, []))[1].append(index)
    return [(whole, tuple(members)) for whole, members in found.values()]


def _key(plan: JobPlan) -> tuple[object, ...]:
    own = (
        repr(value) if isinstance(value, Mapping) else value
        for name, value in keys_of(plan).items()
        if name not in FOR_RANKS and name.partition(".")[0] not in FOR_RANKS
    )
    return (*own, *containers.srun_options(plan))  # which have folders of keys for ranks


def shares(parallelism: int | None, sizes: Sequence[int]) -> list[int | None]:
    """How many elements of each array may run at once, so that it is `parallelism` in all.

    Each gets one at least, or an array would never end; the rest goes by size.
    """
    if parallelism is None:
        return [None] * len(sizes)
    rest, total = max(parallelism - len(sizes), 0), sum(sizes)
    shares = [min(1 + rest * size // total, size) for size in sizes]
    largest = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    while (left := min(parallelism, total) - sum(shares)) > 0:
        for index in [index for index in largest if shares[index] < sizes[index]][:left]:
            shares[index] += 1
    return list(shares)

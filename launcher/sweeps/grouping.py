"""Decides which points of a sweep share a job array: those whose job scripts differ in the run's id only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from launcher.environment import containers
from launcher.spec.plan import JobPlan, keys_of
from launcher.submission import render

# Keys and sections of a plan that only ranks read, so that they do not change the job script.
RANK_KEYS = (
    "workload", "train", "seed", "preflight", "resume.strict", "checkpoint.every", "checkpoint.every_steps",
    "checkpoint.keep", "checkpoint.best", "checkpoint.best_is", "checkpoint.background", "checkpoint.verify",
)  # fmt: skip


def array_plan(plan: JobPlan, sweep_id: str, folder: Path) -> JobPlan:
    """Returns the plan for the job script of a point's array: the point's plan, with the sweep's id and directory.

    Any point of the array can stand for all: their plans differ only in values that are not in the job script (see
    `RANK_KEYS`), which each element's ranks read from their own point's record.
    """
    own = plan.checkpoint.dir == f"{plan.run_dir}/checkpoints"
    checkpoints = f"{folder}/checkpoints" if own else plan.checkpoint.dir
    return dataclasses.replace(
        plan, run_id=sweep_id, run_dir=str(folder), checkpoint=dataclasses.replace(plan.checkpoint, dir=checkpoints)
    )


def groups(
    plans: Mapping[int, JobPlan], sweep_id: str, folder: Path,
    naming: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[JobPlan, tuple[int, ...]]]:  # fmt: skip
    """Groups points into arrays; returns for each array its plan and the numbers of its points, in order of `plans`.

    plans: plan of each point, by the point's number.
    naming: takes a point's number, and returns a context manager that adds the point to errors raised in its block.
    Raises ConfigError: no job script can be made from a plan (extra options that collide with keys).
    """
    texts: dict[tuple[object, ...], str] = {}
    found: dict[str, tuple[JobPlan, list[int]]] = {}
    for index, plan in plans.items():
        shared = array_plan(plan, sweep_id, folder)
        key = _key(shared)
        if key not in texts:
            with naming(index):
                text = render.rendered(shared, token="", array="0-1", elements=folder / "arrays" / "0")
                texts[key] = text.script + text.job
        found.setdefault(texts[key], (shared, []))[1].append(index)
    return [(shared, tuple(members)) for shared, members in found.values()]


def _key(plan: JobPlan) -> tuple[object, ...]:
    own = (
        repr(value) if isinstance(value, (Mapping, list)) else value
        for name, value in keys_of(plan).items()
        if name not in RANK_KEYS and name.partition(".")[0] not in RANK_KEYS
    )
    return (*own, *containers.srun_options(plan))  # these contain folders that RANK_KEYS set


def shares(parallelism: int | None, sizes: Sequence[int]) -> list[int | None]:
    """Divides the number of points that may run at once among arrays.

    Each array gets at least one, because otherwise it would never end; the rest is divided in proportion to size.

    parallelism: number of points that may run at once; None: no limit.
    Returns for each array, the number of its points that may run at once; None: no limit.
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

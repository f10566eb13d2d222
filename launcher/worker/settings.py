"""The settings of a run that its ranks need: for checkpoints, deadlines and training."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.config.schema import BestIs
from launcher.runs.event_writer import current_attempt
from launcher.runs.time_left import time_left
from launcher.worker.debugger import FOREVER


@dataclass(frozen=True)
class Settings:
    """A run's settings for trainings. The defaults apply outside of a run.

    Attributes:
        run_dir: the run directory; None outside of a run.
        attempt: number of this attempt.
        world_size: ranks of the run if it gets all its nodes.
        checkpoint_dir: folder of checkpoints; None: none are written.
        every, every_steps: seconds or steps between two saves; both None: computed from the measured costs.
        keep: how many of the newest complete checkpoints to keep.
        best, best_is: metric whose best checkpoint is kept as well, and which value is the best (`max`, `min`).
        background: whether to write while training continues.
        verify: whether to compare checksums when loading.
        read_timeout: seconds for which a failing read is retried.
        checkpoint_timeout: seconds to wait for the slowest rank in a save or a load.
        max_failures: saves in a row that may fail; 0: any number.
        check_replicas: whether to compare the tensors that ranks have under the same name.
        start_over: whether to start from the beginning if no checkpoint is sound.
        strict: whether to refuse a checkpoint with which the result could differ.
        invariant, micro_batches: see launcher.config.schema.Train.
        lead: seconds before the deadline at which to stop, at least.
        timeout: seconds for each collective; None: torch's default.
        deadline: when the scheduler ends the attempt, in seconds since the epoch by this machine's clock; None: never,
            or other ranks know it better.
    """

    run_dir: Path | None = None
    attempt: int = 0
    world_size: int | None = None
    checkpoint_dir: Path | None = None
    every: float | None = None
    every_steps: int | None = None
    keep: int = 2
    best: str | None = None
    best_is: str = BestIs.max.value
    background: bool = True
    verify: bool = True
    read_timeout: float = 300.0
    checkpoint_timeout: float = 3600.0
    max_failures: int = 5
    check_replicas: bool = True
    start_over: bool = False
    strict: bool = False
    invariant: bool = False
    micro_batches: int = 8
    lead: float = 0.0
    timeout: float | None = None
    deadline: float | None = None


def settings() -> Settings:
    """The settings of the run that this process belongs to.

    Raises:
        RunError: the run's record cannot be read.
    """
    attempt = current_attempt()
    if attempt is None:
        return Settings()
    plan, left = attempt.run.plan(), time_left(os.environ)
    watches = left is not None and (left.sure or os.environ.get("RANK", "0") == "0")
    return Settings(
        run_dir=attempt.run.path,
        attempt=attempt.number,
        world_size=plan.world_size,
        checkpoint_dir=Path(plan.checkpoint.dir),
        every=plan.checkpoint.every,
        every_steps=plan.checkpoint.every_steps,
        keep=plan.checkpoint.keep,
        best=plan.checkpoint.best,
        best_is=plan.checkpoint.best_is,
        background=plan.checkpoint.background,
        verify=plan.checkpoint.verify,
        read_timeout=plan.checkpoint.read_timeout,
        checkpoint_timeout=plan.checkpoint.timeout,
        max_failures=plan.checkpoint.max_failures,
        check_replicas=plan.checkpoint.check_replicas,
        start_over=plan.checkpoint.start_over,
        strict=plan.resume.strict,
        invariant=plan.train.invariant,
        micro_batches=plan.train.micro_batches,
        lead=plan.resume.lead,
        timeout=FOREVER if plan.debugs else float(plan.launch.timeout),  # others wait for a rank at a breakpoint
        deadline=time.time() + left.seconds if left is not None and watches else None,
    )

"""The settings of a run that trainings in its ranks need: sections of the plan, the run directory, the deadline."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.config.scheduler_table import settings_class
from launcher.config.schema import BestIs, ResumeHow
from launcher.errors import LauncherError
from launcher.runs.event_writer import current_attempt
from launcher.runs.history import Experience, experience
from launcher.runs.time_left import time_left
from launcher.schedulers import registry
from launcher.spec.sections import Checkpoint, Resume, Train
from launcher.worker.debugger import FOREVER

# Outside of a run:
CHECKPOINT = Checkpoint(
    every=None, every_steps=None, keep=2, best=None, best_is=BestIs.max.value, dir="", background=True, verify=True,
    read_timeout=300, timeout=3600, max_failures=5, check_replicas=True, start_over=False,
)  # fmt: skip
NONE_YET = Experience()
RESUME = Resume(how=ResumeHow.never.value, max_attempts=1, lead=0, strict=False)
TRAIN = Train(invariant=False, micro_batches=8, straggler_factor=1.5, straggler_time=60)


@dataclass(frozen=True)
class Settings:
    """A run's settings for trainings. The defaults apply outside of a run."""

    checkpoint: Checkpoint = CHECKPOINT  # checkpoint, resume, train: sections of the plan
    resume: Resume = RESUME
    train: Train = TRAIN
    run_dir: Path | None = None  # the run directory; None outside of a run
    attempt: int = 0  # index of this attempt, from 0
    nodes: int = 1  # number of nodes with ranks
    failures: Experience = NONE_YET  # of the user's runs on this cluster; on rank 0
    world_size: int | None = None  # number of ranks of the run when it has all its nodes; None outside of a run
    timeout: float | None = None  # seconds for each collective; None: torch's default
    # when the scheduler ends the attempt, in seconds since the epoch by this machine's clock; None: there is no time
    # limit, or this rank only estimates it and leaves it to rank 0
    deadline: float | None = None

    @property
    def checkpoint_dir(self) -> Path | None:
        """Folder of the run's checkpoints; None if no checkpoints are written."""
        return Path(self.checkpoint.dir) if self.checkpoint.dir else None


def settings() -> Settings:
    """Returns the settings of this process's run, or the defaults; raises RunError for an unreadable record."""
    attempt = current_attempt()
    if attempt is None:
        return Settings()
    plan, left = attempt.run.plan(), time_left(os.environ)
    first = os.environ.get("RANK", "0") == "0"
    watches = left is not None and (left.sure or first)
    return Settings(
        plan.checkpoint,
        plan.resume,
        plan.train,
        run_dir=attempt.run.path,
        attempt=attempt.number,
        nodes=plan.nodes - plan.spares,
        failures=experience(attempt.run.path, plan.cluster.name) if first else NONE_YET,
        world_size=plan.world_size,
        timeout=FOREVER if plan.debugs else float(plan.launch.timeout),  # others wait for a rank at a breakpoint
        deadline=time.time() + left.seconds if left is not None and watches else None,
    )


# -- Makes text on how the next run can exclude bad nodes, for workloads that find some, by the run's scheduler


def how_to_exclude(hosts: str) -> str:
    """Returns how `resume` can exclude nodes from this process's run.

    | the run's scheduler | text |
    |---|---|
    | can exclude nodes | the shell-quoted config override, with the nodes that the run excludes already |
    | cannot | what to use in its place (`SchedulerSettings.INSTEAD`) |
    | cannot, and has nothing in its place; or this process is in no run, or its record cannot be read | empty |
    """
    attempt = current_attempt()
    if attempt is None:
        return ""
    try:
        plan = attempt.run.plan()
        if override := registry.scheduler(plan.cluster.scheduler).without(hosts, plan.cluster.settings):
            return override
        settings = settings_class(plan.cluster.scheduler)
    except LauncherError:  # a measurement must not fail for want of this text
        return ""
    return "" if settings is None else settings.INSTEAD.get("exclude", "")

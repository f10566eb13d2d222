"""The workload ddp_mnist with a pause in each step, which reports its ranks and steps to the harness.

`RUN/chaos/rank-R` has the pids of a rank and of its agent, `RUN/chaos/now` the current step and the first step of these
ranks. The file `RUN/chaos/fast` ends the pauses. The file `RUN/chaos/no-memory-R` makes rank R run out of memory once,
when it copies its state for a checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from launcher.checkpoint.saving import Copying, Staging
from launcher.worker.stop import settings
from workloads.ddp import Trainer

PAUSE = 0.05  # seconds


def main(config: Any, env: Any) -> dict[str, Any]:
    run = settings()
    assert run.run_dir is not None
    folder = run.run_dir / "chaos"
    folder.mkdir(mode=0o700, exist_ok=True)
    write(
        folder / f"rank-{env.rank}", rank=env.rank, pid=os.getpid(), agent=os.getppid(), attempt=run.attempt,
        world=env.world_size,
    )  # fmt: skip

    life = os.urandom(8).hex()  # identifies these ranks; pids are reused
    begun: list[int] = []  # the first step
    lose_memory(folder / f"no-memory-{env.rank}")

    class Slowly(Trainer):
        def step(self, step: int, chosen: Any) -> Any:
            begun[:] = begun or [step]
            os.stat(str(run.run_dir))  # as a training that reads its data from the same file server
            if not (folder / "fast").exists():
                time.sleep(PAUSE)
            if env.rank == 0:
                write(
                    folder / "now", step=step, attempt=run.attempt, world=env.world_size, pid=os.getpid(), life=life,
                    begun=begun[0],
                )  # fmt: skip
            return super().step(step, chosen)

    return dict(Slowly(config, env).run())


def lose_memory(trigger: Path) -> None:
    """Makes the next copy for a checkpoint in this rank raise MemoryError once, when the file `trigger` exists."""
    start = Staging.start

    def failing(self: Staging, *arguments: Any, **options: Any) -> Copying:
        if trigger.exists():
            trigger.unlink()
            raise MemoryError("no memory for a copy")
        return start(self, *arguments, **options)

    Staging.start = failing  # type: ignore[method-assign]


def write(path: Path, **values: Any) -> None:
    """Writes values to a file as JSON, atomically."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps(values))
    temporary.replace(path)

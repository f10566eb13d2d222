"""ddp_mnist with a pause in every step, so that faults find it at work, and with word of who runs and how far it is.

`RUN/chaos/rank-R` has the process ids of a rank and of its agent, `RUN/chaos/now` the steps that are done and the step
at which these ranks have begun. There is no pause any more once there is a file `RUN/chaos/fast`. A file
`RUN/chaos/no-memory-R` takes memory from rank R once, when it copies what a checkpoint is to hold.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from launcher.checkpoint.staging import Copying, Staging
from launcher.worker.settings import settings
from workloads.ddp import Trainer

PAUSE = 0.02  # seconds


def main(config: Any, env: Any) -> dict[str, Any]:
    run = settings()
    assert run.run_dir is not None
    folder = run.run_dir / "chaos"
    folder.mkdir(mode=0o700, exist_ok=True)
    write(
        folder / f"rank-{env.rank}", rank=env.rank, pid=os.getpid(), agent=os.getppid(), attempt=run.attempt,
        world=env.world_size,
    )  # fmt: skip

    life = os.urandom(8).hex()  # process ids come again
    begun: list[int] = []  # the first step
    lose_memory(folder / f"no-memory-{env.rank}")

    class Slowly(Trainer):
        def step(self, step: int, chosen: Any) -> Any:
            begun[:] = begun or [step]
            os.stat(str(run.run_dir))  # as one that reads its data from the same file server
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
    """This rank fails once in the copy for a checkpoint, when there is this file."""
    start = Staging.start

    def failing(self: Staging, *arguments: Any, **options: Any) -> Copying:
        if trigger.exists():
            trigger.unlink()
            raise MemoryError("no memory for a copy")
        return start(self, *arguments, **options)

    Staging.start = failing  # type: ignore[method-assign]


def write(path: Path, **values: Any) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps(values))
    temporary.replace(path)

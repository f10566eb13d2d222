"""ddp_mnist with a pause in every step, so that faults find it at work, and with word of who runs and how far it is.

`RUN/chaos/rank-R` has the process ids of a rank and of its agent, `RUN/chaos/now` the steps that are done. There is no
pause any more once there is a file `RUN/chaos/fast`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from launcher.node.settings import settings
from workloads.ddp import Trainer

PAUSE = 0.02  # seconds


def main(config: Any, env: Any) -> dict[str, Any]:
    run = settings()
    assert run.run_dir is not None
    folder = run.run_dir / "chaos"
    folder.mkdir(mode=0o700, exist_ok=True)
    write(folder / f"rank-{env.rank}", pid=os.getpid(), agent=os.getppid(), attempt=run.attempt, world=env.world_size)

    life = os.urandom(8).hex()  # process ids come again

    class Slowly(Trainer):
        def step(self, step: int, chosen: Any) -> Any:
            if not (folder / "fast").exists():
                time.sleep(PAUSE)
            if env.rank == 0:
                write(folder / "now", step=step, attempt=run.attempt, world=env.world_size, pid=os.getpid(), life=life)
            return super().step(step, chosen)

    return dict(Slowly(config, env).run())


def write(path: Path, **values: Any) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps(values))
    temporary.replace(path)

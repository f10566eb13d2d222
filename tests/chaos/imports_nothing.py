"""A workload whose import fails on all ranks at the same time, because it imports a library that does not exist."""

import os
import time
from pathlib import Path

marks = Path(os.environ["LAUNCHER_RUN_DIR"], "importing")
marks.mkdir(exist_ok=True)
(marks / os.environ["RANK"]).touch()
give_up = time.monotonic() + 60
while len(list(marks.iterdir())) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < give_up:
    time.sleep(0.01)

import no_such_library  # type: ignore[import-not-found]  # noqa: E402, F401

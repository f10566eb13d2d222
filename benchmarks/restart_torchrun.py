"""The program that torchrun starts in `benchmarks.restart`: endless all_reduces; rank 0 writes the time of each one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    folder, rank, step = Path(os.environ["RESTART_FOLDER"]), dist.get_rank(), 0
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    known = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    while True:
        dist.all_reduce(torch.ones(1))
        step += 1
        if rank == 0:
            state = json.dumps({"round": known, "step": step, "time": time.time()})
            for name in ["now", f"first-{known}"] if step == 1 else ["now"]:
                temporary = folder / f".{name}"
                temporary.write_text(state)
                temporary.replace(folder / name)
        time.sleep(0.005)


if __name__ == "__main__":
    main()

"""A script that submits functions by submitit's interface, and prints their results as JSON; for test_slurm_runs.py."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from launcher.plan.build import PlanFacts
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.schedulers.executor import RunExecutor
from launcher.submission import render, resume
from launcher.submission.prepare import make_plan


def plan(folder: Path, nodes: int = 1) -> JobPlan:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from launcher.paths import resource

    resume.register()
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        config = compose("config", ["workload=collective", "cluster=slurm", f"nodes={nodes}"])
    site = PlanFacts(folder.name, str(folder), sys.executable, str(Path.cwd()), str(Path.cwd()))
    return make_plan(OmegaConf.to_object(config), site)  # type: ignore[arg-type]


def executor(folder: Path, nodes: int = 1, throttle: int | None = None, elements: int = 0) -> RunExecutor:
    run = Run.create(folder)
    runs = [Run.create(folder / str(number)) for number in range(elements)] or None
    return RunExecutor(run, plan(folder, nodes), f"token-{folder.name}", throttle, scripts=render, elements=runs)


def place(tasks: int) -> list[int]:
    return [int(os.environ["SLURM_PROCID"]), tasks]


def square(number: int) -> int:
    return number * number


def divide(number: int) -> float:
    return number / 0


def main(folder: Path) -> None:
    single = executor(folder / "single", nodes=2).submit(place, 2)
    array = executor(folder / "array", throttle=2, elements=4).map_array(square, [1, 2, 3, 4])
    failing = executor(folder / "failing").submit(divide, 3)
    told: dict[str, object] = {"single": single.results(), "array": [[job.result() for job in array]]}
    error = str(failing.exception())
    told["error"] = "ZeroDivisionError" if "ZeroDivisionError" in error else error
    cancelled = executor(folder / "cancelled").submit(time.sleep, 600)
    cancelled.cancel()
    while not cancelled.done(force_check=True):
        time.sleep(0.2)
    told["state after cancel"] = cancelled.state
    told["template"] = "launcher_driver" in next((folder / "array/arrays").glob("*.sh")).read_text()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Time to derive ranks, and to render the job script, for 10,000 nodes with 8 ranks each, in a new process.

    python -m benchmarks.scale

The time to import jinja2 does not depend on the number of nodes, so it is shown separately.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time

from benchmarks.measure import Result, environment, python, report

NODES, RANKS = 10_000, 8
NODE_LIST = "rack[000-099]n[01-99],login[0001-0100]"
LIMIT = 50  # milliseconds


def once() -> dict[str, float]:
    """Does each part once in this process; returns the milliseconds: "derive", "import" (with jinja2), "jinja2" and
    "render"."""
    from launcher.config.schema import Cluster, Collective, Config, Launch
    from launcher.plan.build import PlanFacts
    from launcher.schedulers import topology
    from launcher.submission.prepare import make_plan

    srun = {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": NODE_LIST,
        "SLURM_STEP_NUM_TASKS": str(NODES * RANKS), "SLURM_STEP_TASKS_PER_NODE": f"{RANKS}(x{NODES})",
        "SLURM_PROCID": str(NODES * RANKS - 1), "SLURM_NODEID": str(NODES - 1), "SLURM_LOCALID": str(RANKS - 1),
    }  # fmt: skip
    started = time.perf_counter()
    place = topology.derive(srun, "login0100", lambda path: "")
    derived = time.perf_counter()
    assert (place.nnodes, place.world_size, place.hosts[-1]) == (NODES, NODES * RANKS, "login0100")

    config = Config(
        Collective(name="collective", entry="workloads.collective:main", seed=0),
        Cluster(name="slurm", scheduler="slurm"), Launch(),
        name="collective", nodes=NODES, gpus_per_node=RANKS,
    )  # fmt: skip
    plan = make_plan(config, PlanFacts("run", "/scratch/runs/run", sys.executable, None, "/home/me"))
    before = time.perf_counter()
    from launcher.submission import render

    imported = time.perf_counter()
    import jinja2  # noqa: F401  apart from rendering, which would import it

    jinja = time.perf_counter()
    assert f"--nodes={NODES}" in render.script(plan, token="launcher-0")  # noqa: S106
    rendered = time.perf_counter()
    return {
        "derive": (derived - started) * 1000,
        "import": (jinja - before) * 1000,
        "jinja2": (jinja - imported) * 1000,
        "render": (rendered - jinja) * 1000,
    }


def results(repeats: int = 9) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        env = environment(LAUNCHER_RUNS_DIR=folder)
        runs = [json.loads(python("-m", "benchmarks.scale", "--once", env=env)[1]) for _ in range(repeats + 1)][1:]
    times = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    size, fresh = f"{NODES:,} nodes x {RANKS}", f"first call, median of {repeats} processes"
    imports = f"{times['render'] + times['import']:.0f} ms with the import of jinja2"
    return [
        Result(f"ranks of {size}", times["derive"], LIMIT, fresh, "ms"),
        Result(f"script for {size}", times["render"], LIMIT, f"{imports}; {fresh}", "ms"),
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["--once"]:
        print(json.dumps(once()))
    else:
        sys.exit(report(results()))

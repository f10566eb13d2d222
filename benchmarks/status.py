"""Time of `status` with 1000 live runs and 10,000 finished ones: the whole process without its scheduler query.

    python -m benchmarks.status [--live 1000] [--finished 10000]

One run is submitted to a stand-in for Slurm. The others are copies of its record, written through
launcher.runs.directory, with events and checkpoints of a training. An earlier `status` has put the finished runs into
its index; the time of that first call is in the detail. The stand-in for squeue prints a line for each live run. Its
time, measured alone in the same round, is subtracted. The rest is compared with a script that parses the records and
events of the live runs (`measure.parse`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Result, environment, interleaved, medians, parse, python, report, stand_ins
from launcher.files.safe_io import write
from launcher.plan.plan import from_dict
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run

STEPS = 4690  # steps of each training
STAND_INS = {
    "sbatch": "echo 1",
    "srun": "true",  # submitit takes a machine with srun for a Slurm cluster
    "sinfo": "echo 'batch*|infinite|infinite|1000|64|256000|gpu:8'",
    "scontrol": "echo 'MaxArraySize = 10001'",
    "squeue": 'echo asked >>"$ASKED"\ncat "$JOBS"',
    "sacct": 'echo sacct >>"$ASKED"',
}


def results(live: int = 1000, finished: int = 10000, repeats: int = 5) -> list[Result]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        env = _stand_ins(folder)
        record = _record(folder, env)
        for number in range(finished):
            _make(folder / "runs", f"done-{number:05}", record, 10**6 + number, over=True)
        for number in range(live):
            _make(folder / "runs", f"live-{number:05}", record, number, over=False)
        first, *_ = _status(env)
        (folder / "asked").write_text("")
        directories = sorted((folder / "runs").glob("live-*"))
        rounds = interleaved(
            {
                "status": lambda: _status(env)[0],
                "squeue": lambda: _squeue(env),
                "script": lambda: parse(directories, env),
            },
            repeats,
            warmup=1,
        )
        taken = [whole - query for whole, query in zip(rounds["status"], rounds["squeue"], strict=True)]
        ratio = statistics.median(ours / script for ours, script in zip(taken, rounds["script"], strict=True))
        questions = (folder / "asked").read_text().split()
        rows = json.loads(_status(env, "--json")[1])
    if sum(row["state"] == "running" for row in rows) != live:
        raise RuntimeError(f"status shows {len(rows)} runs, of which not {live} are running")
    if questions != ["asked"] * 2 * (repeats + 1):  # each round: status once, and squeue alone
        raise RuntimeError(f"the scheduler was not asked once each time: {questions}")
    detail = (
        f"{medians(rounds)}; {len(rows)} rows; the first look, which makes the index, {first:.1f} s; "
        f"{os.cpu_count()} CPUs"
    )
    claim = f"status of {live} live and {finished} finished runs / a script that parses the live ones"
    return [Result(claim, ratio, 2, detail)]


def _stand_ins(folder: Path) -> dict[str, str]:
    """Returns an environment in which all Slurm commands are stand-ins."""
    (folder / "jobs").touch()
    return environment(
        PATH=stand_ins(folder / "bin", STAND_INS), JOBS=f"{folder}/jobs", ASKED=f"{folder}/asked",
        LAUNCHER_CONFIG_DIR=f"{folder}/config", LAUNCHER_CACHE_DIR=f"{folder}/cache",
        LAUNCHER_RUNS_DIR=f"{folder}/runs",
    )  # fmt: skip


def _record(folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Submits a run, and returns the content of its record.json. `status` does not list this run."""
    command = ["-m", "launcher", "workload=ddp_mnist", "cluster=slurm", "run_id=model", f"runs_dir={folder}/model"]
    python(*command, env=env)
    values: dict[str, Any] = json.loads((folder / "model" / "model" / "record.json").read_text())
    for link in (folder / "runs").rglob("model"):
        link.unlink()
    return values


def _make(runs: Path, name: str, record: Mapping[str, Any], job: int, *, over: bool) -> None:
    """Writes the directory of a run that has finished its training (`over`), or has done a third of it."""
    run = Run.create(runs / name)
    plan = from_dict(record["plan"])
    plan = dataclasses.replace(
        plan,
        run_id=name,
        run_dir=str(run.path),
        checkpoint=dataclasses.replace(plan.checkpoint, dir=f"{run.path}/checkpoints"),
    )
    facts = {key: value for key, value in record.items() if key not in ("plan", "config", "format")}
    run.write_record(plan, record["config"], facts, sync=False)
    event_files.append(run.path / "journal.jsonl", kinds.Submitting(token=str(record["token"])))
    event_files.append(run.path / "journal.jsonl", kinds.Submitted(job=str(job)))
    step = STEPS if over else STEPS // 3
    events = run.path / "attempts" / "0" / "events"
    events.mkdir(parents=True, mode=0o700)
    event_files.append(events / "script.jsonl", kinds.Started(job=str(job), host="node1"))
    for writer, text in _event_files(step).items():
        (events / f"{writer}.jsonl").write_text(text)
    if over:
        event_files.append(events / "script.jsonl", kinds.Ended(code=0))
        write(run.path / "result.json", json.dumps({"accuracy": 0.98}), sync=False)
        return
    (run.path / "checkpoints" / f"step-{step:09}").mkdir(parents=True)
    with open(runs.parent / "jobs", "a") as jobs:
        jobs.write(f"{job:<64}{'RUNNING':<32}{'None':<64}{record['token']:<256}{'1:30:00':<32}\n")


@cache
def _event_files(step: int) -> dict[str, str]:
    """Returns the event files of a training after `step` steps, by the name of the writer."""
    began = time.time() - 1800
    events: dict[str, list[dict[str, Any]]] = {
        "node-0": [{"time": began + 5, "event": "met", "ranks": 4, "members": 2}],
        "rank-0": [
            {"time": began + 10 + each, "event": "progress", "step": each * step // 500, "total": STEPS,
             "values": {"loss": 0.1}}
            for each in range(501)
        ],
        "checkpoint": [
            {"time": began + 60 * each, "event": "saved", "step": each * step // 10, "seconds": 0.1, "bytes": 10**8}
            for each in range(11)
        ],
    }  # fmt: skip
    return {writer: "".join(json.dumps(line) + "\n" for line in lines) for writer, lines in events.items()}


def _status(env: Mapping[str, str], *options: str) -> tuple[float, str]:
    """Runs `status` without cached scheduler queries; returns its seconds and its output."""
    for file in Path(env["LAUNCHER_CACHE_DIR"]).rglob("*.json"):
        file.unlink()
    seconds, output, _ = python("-m", "launcher", "status", *options, env=env)
    return seconds, output


def _squeue(env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        [f"{env['JOBS'].removesuffix('jobs')}bin/squeue"], env=env, capture_output=True, check=True, cwd=ROOT
    )
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--finished", type=int, default=10000)
    options = parser.parse_args()
    return report(results(options.live, options.finished))


if __name__ == "__main__":
    sys.exit(main())

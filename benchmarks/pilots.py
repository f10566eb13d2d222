"""Sweep points in pilots: time per point, use of slots, time to the first point; and against a job array.

    python -m benchmarks.pilots [--points 1000] [--seconds 100] [--listed 10000] [--elements 200]

Two pilots of two simulated nodes on this machine run points that do nothing, then points that take a second. The times
are from the journals of the slot managers: from the first point's start to the last one's end, and the time in which
slots ran points. They are compared with four programs at once which load torch and take a second: what a point costs
that starts by itself. `sweep status` is measured on a sweep whose claims are written by the benchmark, against a script
that lists the sweep's directory and parses its journals (`measure.parse`).

The job array: points that do nothing run as a job array, in two pilots of one node, and by hydra-submitit-launcher, on
a real Slurm with four nodes on this machine, timed from the command until squeue shows no job. Pilots need some seconds
to start, so the ratio grows with the number of points. hydra-submitit-launcher is installed from PyPI for the
measurement. Its points are jobs that load Hydra and submitit, but not torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import ROOT, Result, environment, interleaved, median_ratio, medians, parse, python, report
from benchmarks.sweep import PATIENCE, THEIRS, install_theirs, to_the_end, wait_until_idle
from launcher.runs.event_files import read
from launcher.runs.events import Event, ManagerBegan, PointBegan, PointEnded, Started, every, known
from launcher.runs.history import process_of
from launcher.runs.point_claims import Claims, EntryKind, Manager
from launcher.runs.sweep_directory import Packing, Sweep, SweepManifest
from tests.cluster.slurm_cluster import SlurmCluster

PILOTS, NODES = 2, 2
SLOTS = PILOTS * NODES
BY_ITSELF = "import torch, time; time.sleep(1)"


def results(
    points: int = 1000, seconds: int = 100, listed: int = 10_000, elements: int = 200, repeats: int = 5
) -> list[Result]:
    """Runs the benchmark. An argument of 0 leaves out that part.

    Args:
        points: number of points that do nothing.
        seconds: number of points that take a second.
        listed: number of points of the sweep that `sweep status` shows.
        elements: number of points that are compared with a job array.
        repeats: number of times that `sweep status`, and programs that start by themselves, are timed.
    """
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        alone = by_themselves(repeats) if points or seconds else 0.0
        if points:
            found += costs(Path(scratch), points, alone)
        if seconds:
            found.append(busy(Path(scratch), seconds, alone))
        if listed:
            found.append(status(Path(scratch), listed, repeats))
    if elements:
        found += against_jobs(elements)
    return found


def by_themselves(repeats: int) -> float:
    """Returns the seconds that SLOTS programs at once take to load torch and then sleep for a second."""
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        programs = [subprocess.Popen([sys.executable, "-c", BY_ITSELF], env=environment()) for _ in range(SLOTS)]
        for program in programs:
            program.wait()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def costs(folder: Path, points: int, alone: float) -> list[Result]:
    """Measures points that do nothing. `alone`: what `by_themselves` returned."""
    sweep = _run(folder, "nothing", points)
    journals = _journals(sweep)
    begun, ended = _times(journals, PointBegan), _times(journals, PointEnded)
    each = [end - begin for events in journals for begin, end in _lives(events)]
    took = max(ended) - min(begun)
    detail = (
        f"{points} points in {took:.1f} s, {PILOTS} pilots of {NODES} simulated nodes, {os.cpu_count()} CPUs; a point "
        f"takes {1000 * statistics.median(each):.0f} ms in its slot"
    )
    start = alone - 1
    first = [
        min(_times([events], PointBegan)) - _pilot_began(sweep, number)
        for number in range(PILOTS) for events in _journals(sweep, number)
    ]  # fmt: skip
    return [
        Result(
            "time of a point that does nothing / of a program that loads torch", took / points / (start / SLOTS), 0.1,
            f"{1000 * took / points:.1f} and {1000 * start / SLOTS:.0f} ms; {detail}",
        ),
        Result(
            f"first point after a pilot's start / {SLOTS} programs that load torch", max(first) / start, 2,
            f"{max(first):.2f} and {start:.2f} s; the last of {len(first)} nodes",
        ),
    ]  # fmt: skip


def busy(folder: Path, points: int, alone: float) -> Result:
    """Measures points of a second. `alone`: what `by_themselves` returned."""
    journals = _journals(_run(folder, "second", points))
    begun, ended = _times(journals, PointBegan), _times(journals, PointEnded)
    span = statistics.mean(max(_times([events], PointEnded)) - min(_times([events], PointBegan)) for events in journals)
    detail = (
        f"{points} points of 1 s in {SLOTS} slots, from the first start to the last end {max(ended) - min(begun):.1f} s"
    )
    share = points / (SLOTS * span)
    return Result(
        "slot time that points of 1 s compute in / if each loads torch", share * alone, 2,
        f"{100 * share:.1f} and {100 / alone:.1f} %; {detail}", at_least=True,
    )  # fmt: skip


def status(folder: Path, points: int, repeats: int) -> Result:
    """Times `sweep status` on a sweep of which 9 of 10 points are done."""
    sweep = Sweep.create(folder / "runs" / "listed")
    overrides = tuple((f"seed={number}",) for number in range(points))
    packing = Packing(pilots=1, nodes=1, slots=4, gpus=0, gpus_per_point=0, cpus_per_point=1, retries=2, lease=90.0)
    sweep.write(SweepManifest("listed", (), overrides, packing=packing))
    Claims.create(sweep.path)
    claims, manager = Claims(sweep.path, 2), Manager(0, 0, 0, 0)
    claims.note(manager, ManagerBegan(host="node1", job="1", slots=4, pid=1, start=1, namespace=""))
    for point in range(points):
        claims.add(point, 0, EntryKind.CLAIMED, manager)
        claims.note(manager, PointBegan(point=point, slot=point % 4, attempt=0))
        if point < points * 9 // 10:
            claims.add(point, 1, EntryKind.DONE, manager)
            claims.note(manager, PointEnded(point=point, slot=point % 4, code=0, kind=EntryKind.DONE.value))
    env = _environment(folder)
    seconds = interleaved(
        {
            "status": lambda: python("-m", "launcher", "sweep", "status", "listed", env=env)[0],
            "a script": lambda: parse([sweep.path], env),
        },
        repeats,
    )
    return Result(
        f"status of {points} points / a script that parses its journals", median_ratio(seconds, "status", "a script"),
        12, medians(seconds),
    )  # fmt: skip


def against_jobs(elements: int) -> list[Result]:
    """Times points that do nothing in pilots, in a job array, and by hydra-submitit-launcher. Without a Slurm on this
    machine, it returns no results."""
    if reason := SlurmCluster.missing():
        print(f"note: no array was run: {reason}", file=sys.stderr)
        return []
    with SlurmCluster() as cluster, tempfile.TemporaryDirectory() as scratch:
        env = {**_environment(Path(scratch)), **cluster.env()}
        command = [
            sys.executable, "-m", "launcher", "-m", "workload=function", "workload.init=false", "cluster=slurm",
            "workload.target=time:sleep", "workload.entry=benchmarks.pilot_point:nothing", "time=30",
            f"seed=range({elements})",
        ]  # fmt: skip
        array = to_the_end(cluster, [*command, "sweep.id=array"], env)
        pilots = to_the_end(cluster, [*command, "sweep.id=packed", "sweep.pack=2", "sweep.slots=2"], env)
        done = [len(list(Path(scratch, "runs", name).glob("*/result.json"))) for name in ("array", "packed")]
        if done != [elements, elements]:
            raise RuntimeError(f"of {elements} points of the array and in pilots {done} are done")
        theirs = _theirs(cluster, Path(scratch), elements, env)
    detail = f"{elements} points: pilots {pilots:.1f} s; Slurm {SlurmCluster.version()}, {os.cpu_count()} CPUs"
    others = {"in an array": array, f"with {THEIRS}": theirs}
    return [
        Result(f"points per minute in pilots / {name}", took / pilots, 5, f"{detail}; {took:.1f} s", at_least=True)
        for name, took in others.items() if took is not None
    ]  # fmt: skip


def _theirs(cluster: SlurmCluster, folder: Path, elements: int, env: Mapping[str, str]) -> float | None:
    """Returns the seconds from hydra-submitit-launcher's command to the end of its jobs; None: it cannot be
    installed."""
    if not install_theirs(folder / "theirs"):
        return None
    command = [
        sys.executable, str(ROOT / "benchmarks" / "pilot_hydra.py"), "-m", f"+seed=range({elements})",
        "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=30", "hydra.launcher.mem_gb=null",
        f"hydra.launcher.array_parallelism={elements}", f"hydra.sweep.dir={folder}/multirun",
    ]  # fmt: skip
    begun = time.perf_counter()
    with (folder / "theirs.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**env, "PYTHONPATH": f"{folder}/theirs:{ROOT}"}, cwd=folder, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        # The command itself polls for results every few seconds, so it exits later.
        while sum(1 for _ in folder.glob("multirun/.submitit/*/*_result.pkl")) < elements:
            if process.poll() or time.perf_counter() - begun > PATIENCE:
                raise RuntimeError(f"{THEIRS} did not end:\n{(folder / 'theirs.log').read_text()[-2000:]}")
            time.sleep(0.5)
        wait_until_idle(cluster, begun)
        return time.perf_counter() - begun
    finally:
        process.kill()
        process.wait()


# -- small


def _run(folder: Path, function: str, points: int) -> Sweep:
    """Runs a packed sweep on this machine to its end; `function` is the name of one in `pilot_point`."""
    _launcher(
        [
            "-m", "workload=function", "workload.init=false", "workload.target=time:sleep",
            f"workload.entry=benchmarks.pilot_point:{function}", f"seed=range({points})", f"sweep.id={function}",
            f"sweep.pack={PILOTS}", f"sweep.nodes={NODES}", "sweep.slots=1", "wait=true",
        ],
        _environment(folder),
    )  # fmt: skip
    sweep = Sweep(folder / "runs" / function)
    for number in range(PILOTS):  # they end after their last point, and write until then
        process = process_of(sweep.pilot(number))
        while process is not None and process.alive():
            time.sleep(0.05)
    return sweep


def _environment(folder: Path) -> dict[str, str]:
    own = {"LAUNCHER_RUNS_DIR": f"{folder}/runs", "LAUNCHER_CONFIG_DIR": f"{folder}/config"}
    return {**environment(), **own}


def _launcher(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "launcher", *arguments]
    done = subprocess.run(command, env=dict(env), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"launcher exited with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr}")


def _journals(sweep: Sweep, pilot: int | None = None) -> list[list[Event]]:
    """Returns the events of each slot manager that ran points. `pilot`: only those of this pilot."""
    claims = Claims(sweep.path, 0)
    found = [
        list(known(read(claims.journal(each)))) for each in claims.managers() if pilot is None or each.pilot == pilot
    ]
    return [events for events in found if any(isinstance(event, PointEnded) for event in events)]


def _times(journals: Iterable[Sequence[Event]], kind: type[Event]) -> list[float]:
    return [event.time for events in journals for event in events if isinstance(event, kind)]


def _lives(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Returns start and end of each point of one slot manager, in Unix seconds."""
    begun = {event.point: event.time for event in events if isinstance(event, PointBegan)}
    return [(begun[event.point], event.time) for event in events if isinstance(event, PointEnded)]


def _pilot_began(sweep: Sweep, number: int) -> float:
    return every(sweep.pilot(number).attempts()[0].events(), Started)[0].time


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=1000, help="that do nothing; 0: none")
    parser.add_argument("--seconds", type=int, default=100, help="points that take a second; 0: none")
    parser.add_argument("--listed", type=int, default=10_000, help="of the sweep that status shows; 0: none")
    parser.add_argument("--elements", type=int, default=200, help="of the array, and as many in pilots; 0: none")
    options = parser.parse_args()
    return report(results(options.points, options.seconds, options.listed, options.elements))


if __name__ == "__main__":
    sys.exit(main())

"""A packed sweep of many points. Its pilots run out of time, are preempted, and lose a node; for any scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from launcher.failures.codes import StopReason
from launcher.runs.directory import Attempt
from launcher.runs.events import Stop, every
from launcher.runs.point_claims import Claims, EntryKind
from launcher.runs.sweep_directory import Sweep
from tests.launch import Launcher

POINTS, STEPS, STEP_TIME, PILOTS = 200, 10, 0.2, 2
TIME, LEAD = "3m", "2m"  # pilots ask their points to stop after a minute


def survives(
    launcher: Launcher, preempt: Callable[[Sweep], object], lose_node: Callable[[Sweep], object],
    restore_node: Callable[[], object], preempted: Collection[StopReason] = (StopReason.SIGNAL,),
) -> None:  # fmt: skip
    """Runs the sweep, disturbs it, and asserts that its results are those of an undisturbed sweep.

    Args:
        launcher: the launcher with one of the schedulers.
        preempt: preempts all pilots of the sweep.
        lose_node: takes down the node of a pilot that runs points.
        restore_node: restores this node.
        preempted: the stop reasons that preempted pilots may record.
    """
    submitted = launcher.submit(
        "-m", "workload=collective", "workload.entry=tests.chaos.steps:main", "procs_per_node=1",
        f"seed=range({POINTS})", "sweep.id=many", "sweep.slots=2", f"sweep.pack={PILOTS}", "sweep.retries=0",
        f"time={TIME}", f"resume.lead={LEAD}", "wait=false", STEPS=str(STEPS), STEP_TIME=str(STEP_TIME),
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    sweep = Sweep(launcher.runs_dir / "many")

    def stops(reasons: Collection[StopReason]) -> int:
        events = [event for each in attempts(sweep) for event in each.events()]
        return sum(stop.reason in reasons for stop in every(events, Stop))

    def count(state: str) -> int:
        return counts(launcher).get(state, 0)

    launcher.until(lambda: count("done") >= 10, "10 points are done", timeout=400)
    preempt(sweep)
    launcher.until(lambda: stops(preempted) >= PILOTS, "both pilots are preempted", timeout=400)
    launcher.until(lambda: stops([StopReason.TIME_LIMIT]), "a pilot is out of time", timeout=400)
    launcher.until(lambda: count("running") > 0, "points run", timeout=400)
    before = count("done")
    lose_node(sweep)
    try:
        launcher.until(lambda: count("done") >= before + 5, "the other pilot goes on", timeout=400)
    finally:
        restore_node()
    waited = launcher("sweep", "wait", "many", timeout=1000)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert counts(launcher) == {"done": POINTS}
    results = [sweep.run(index).result() or {} for index in range(POINTS)]
    assert [result["sum"] for result in results] == [[float(STEPS)] * 4] * POINTS
    ends = [[entry.kind for entry in log].count(EntryKind.DONE) for log in Claims(sweep.path, 0).entries().values()]
    assert ends == [1] * POINTS
    assert any(result["begun"] > 0 for result in results)  # from a checkpoint


def attempts(sweep: Sweep) -> list[Attempt]:
    """Returns the attempts of all pilots of a sweep."""
    return [attempt for number in range(PILOTS) for attempt in sweep.pilot(number).attempts()]


def counts(launcher: Launcher) -> dict[str, int]:
    """Returns the number of the sweep's points in each state, from `sweep status`."""
    done = launcher("sweep", "status", "many", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)["counts"]
    return found

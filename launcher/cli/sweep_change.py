"""`sweep rerun`, `sweep cancel` and `sweep throttle`."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.cli import confirm
from launcher.cli.text import program
from launcher.formatting import plural, ranges
from launcher.monitoring.sweep import WAITING
from launcher.runs.sweep_directory import Sweep
from launcher.spec import cost
from launcher.submission.from_overrides import secrets_again
from launcher.sweeps import control
from launcher.sweeps.submit import SubmittedSweep


def rerun(sweep: Sweep, points: Sequence[int] | None, *, yes: bool = False) -> int:
    """Starts points again and tells which; `yes`: without a question."""

    def ask(chosen: Sequence[int]) -> None:
        plans = [plan for plan in (sweep.run(index).plan() for index in chosen) if plan.queued]
        if plans:
            above = sweep.run(chosen[0]).record().get("config", {}).get("confirm_above")
            confirm.tell_and_ask(cost.lines_of_all(plans), cost.of_plans(plans), above, yes=yes)

    submitted = control.rerun(sweep, points, ask, secrets_again)
    if submitted is None:
        print(f"{sweep.id}: there is nothing to run again; `{program()} sweep status {sweep.id}` tells more")
        return 0
    for line in told(submitted):
        print(line)
    print(f"next     {program()} sweep wait {sweep.id}")
    return 1 if submitted.left[0] else 0


def told(submitted: SubmittedSweep) -> list[str]:
    """What became of points that were handed over, in lines."""
    lines = [f"job      {job}: {_points(points)}" for job, points in submitted.jobs]
    if submitted.local:
        lines.append(f"here     {_points(submitted.local)}")
    points, words = submitted.left
    if points:
        lines.append(f"left     {_points(points)}: {words}")
        lines.append(f"         later: {program()} sweep rerun {submitted.sweep.id}")
    return lines


def _points(points: Sequence[int]) -> str:
    text = ranges(sorted(points))
    if len(text) > 40:
        text = f"{text[:37].rpartition(',')[0]},..."
    return f"point {text}" if len(points) == 1 else f"{len(points)} points ({text})"


def cancel(sweep: Sweep, points: Sequence[int] | None) -> int:
    """Ends points and tells which."""
    before = control.cancel(sweep, points)
    ending = [index for index, state in before.items() if state != WAITING]
    unbegun = [index for index, state in before.items() if state == WAITING]
    if unbegun:
        print(f"{sweep.id}: {_points(unbegun)} will not begin")
    if ending:
        print(f"{sweep.id}: {_points(ending)} {'is' if len(ending) == 1 else 'are'} being cancelled")
    if over := [index for index in points or () if index not in before]:
        print(f"{sweep.id}: {_points(over)} {'is' if len(over) == 1 else 'are'} over already")
    if not before and points is None:
        print(f"{sweep.id} is over already")
    return 0


def throttle(sweep: Sweep, most: int) -> int:
    """Sets how many points may run at once and tells how many of each array."""
    given = control.throttle(sweep, most)
    print(f"{sweep.id}: at most {plural(most, 'point')} at once")
    for job, part in given:
        print(f"  {part} of array {job}")
    if len(given) > most:
        print(f"  {len(given)} arrays wait, and each runs one point at least")
    return 0

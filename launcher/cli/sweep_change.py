"""`sweep rerun`, `sweep cancel` and `sweep throttle`: restart or cancel points, or limit how many run at once."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.cli.text import confirm, program
from launcher.formatting import plural, ranges
from launcher.monitoring.sweep import WAITING
from launcher.runs.sweep_directory import Sweep
from launcher.spec import limits
from launcher.submission.resume import secrets_again
from launcher.sweeps import control
from launcher.sweeps.submit import SubmittedPilots, SubmittedSweep, throttle_pilots


def rerun(sweep: Sweep, points: Sequence[int] | None, *, yes: bool = False) -> int:
    """Restarts points (None: all that did not succeed), prints which; returns 1 if not all were accepted."""

    def ask(chosen: Sequence[int]) -> None:
        plans = [plan for plan in (sweep.run(index).plan() for index in chosen) if plan.queued]
        if plans:
            above = sweep.run(chosen[0]).record().get("config", {}).get("confirm_above")
            confirm(limits.lines_of_all(plans), limits.of_plans(plans), above, yes=yes)

    submitted = control.rerun(sweep, points, ask, secrets_again)
    if submitted is None:
        print(f"{sweep.id}: there is nothing to run again; points that were cancelled are run again if you name them")
        return 0
    for line in lines_of(submitted):
        print(line)
    print(f"next     {program()} sweep wait {sweep.id}")
    return 1 if submitted.not_accepted else 0


def lines_of(submitted: SubmittedSweep) -> list[str]:
    """Returns lines about the points that were submitted, and about those that were not accepted."""
    lines = [f"job      {job}: {_points(points)}" for job, points in submitted.jobs]
    if submitted.pilots is not None:
        return lines + lines_of_pilots(submitted.sweep, submitted.pilots)
    if submitted.local:
        lines.append(f"here     {_points(submitted.local)}")
    if submitted.not_accepted:
        lines.append(f"left     {_points(submitted.not_accepted)}: {submitted.limit}")
        lines.append(f"         later: {program()} sweep rerun {submitted.sweep.id}")
    return lines


def lines_of_pilots(sweep: Sweep, submitted: SubmittedPilots) -> list[str]:
    """Returns lines about the pilots that were submitted, and about those that were not accepted."""
    lines = [f"pilot    {sweep.pilot(number).id}: job {job}" for number, job in submitted.jobs.items()]
    if submitted.left:
        lines.append(f"left     {plural(submitted.left, 'pilot')}: {submitted.words}")
        lines.append(f"         later: {program()} sweep throttle {sweep.id} {_pilots(sweep)}")
    return lines


def _pilots(sweep: Sweep) -> int:
    packing = sweep.manifest().packing
    return packing.pilots if packing else 0


def _points(points: Sequence[int]) -> str:
    text = ranges(sorted(points))
    if len(text) > 40:
        text = f"{text[:37].rpartition(',')[0]},..."
    return f"point {text}" if len(points) == 1 else f"{len(points)} points ({text})"


def cancel(sweep: Sweep, points: Sequence[int] | None) -> int:
    """Cancels the points with these numbers (None: all points) and prints which; returns 0."""
    before = control.cancel(sweep, points)
    started = [index for index, state in before.items() if state != WAITING]
    waiting = [index for index, state in before.items() if state == WAITING]
    if waiting:
        print(f"{sweep.id}: {_points(waiting)} will not start")
    if started:
        print(f"{sweep.id}: {_points(started)} {'is' if len(started) == 1 else 'are'} being cancelled")
    if over := [index for index in points or () if index not in before]:
        print(f"{sweep.id}: {_points(over)} {'is' if len(over) == 1 else 'are'} over already")
    if not before and points is None:
        print(f"{sweep.id} is over already")
    return 0


def throttle(sweep: Sweep, most: int) -> int:
    """Lets at most `most` points or pilots run at once, prints the limits; returns 1 if pilots were refused."""
    if sweep.manifest().packing is not None:
        submitted, stopping = throttle_pilots(sweep, most)
        print(f"{sweep.id}: {plural(most, 'pilot')}")
        for line in lines_of_pilots(sweep, submitted):
            print(line)
        for name in stopping:
            print(f"stops    {name}: its points go on in others")
        if submitted.enough == 0:
            print("all its points are over: no pilot is submitted")
        elif submitted.enough is not None:
            print(f"{plural(submitted.enough, 'pilot')} can run all points that are left: no more is submitted")
        return 1 if submitted.left else 0
    given = control.throttle(sweep, most)
    print(f"{sweep.id}: at most {plural(most, 'point')} at once")
    for job, part in given:
        print(f"  {part} of array {job}")
    if len(given) > most:
        print(f"  {len(given)} arrays wait, and each runs one point at least")
    return 0

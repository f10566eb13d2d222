"""How `why` shows an explanation, and what it says of runs that do not wait."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli.text import cause
from launcher.cli.why import moment, shown
from launcher.diagnose.why.of_run import explain
from launcher.runs import events as kinds
from launcher.runs.claims import Claims, Manager
from launcher.runs.directory import Run
from launcher.schedulers.explanation import Explanation, Option
from tests.unit.pilots.managers import packed_sweep
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import make_sweep

NOW = time.mktime((2026, 11, 21, 21, 0, 0, 0, 0, -1))
LONG = Explanation(
    "a-run-with-a-long-name-20261121-074601-3f9c", "queued", "jobs of higher priority are in front of it " * 3,
    job="12", code="Priority", do="`sprio -l -j 12` tells what its priority is made of, and more than that as well",
    starts=NOW + 600, limits=("partition gpu: MaxTime=02:00:00, and it asks for 05:00:00", "another limit"),
    nodes=("partition gpu: 4 nodes: 3 allocated, 1 planned, 1 mixed, 1 drained, 1 down, 1 maint, 1 reserved, 1 idle",),
    tried=(Option((), NOW + 600), Option(("cluster.partition=urgent",), NOW, "its tier is higher: it may cost more")),
    commands=("launcher cancel r", "launcher resume r nodes=2"), notes=("a note " * 20,),
)  # fmt: skip


def test_everything_fits_a_terminal() -> None:
    lines = shown(LONG, NOW).splitlines()
    assert max(map(len, lines)) < 80
    assert lines[0] == f"{LONG.run}: queued, job 12"
    for words in ("  reason  Priority", "  starts  21:10 (in 10 min), says the scheduler", "another limit", "as it is"):
        assert any(words in line for line in lines)


def test_without_an_estimate_it_says_so() -> None:
    assert "has no estimate" in shown(Explanation("r", "queued", "why"), NOW)
    assert "estimate" not in shown(Explanation("r", "done", "it is done"), NOW)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (-500, "now"),
        (40, "21:00 (in 1 min)"),
        (600, "21:10 (in 10 min)"),
        (2 * 3600, "23:00 (in 2 h)"),
        (4 * 3600, "Sun 22 Nov 01:00 (in 4 h)"),
        (3 * 86400, "Tue 24 Nov 21:00 (in 3 days)"),
    ],
)
def test_a_start_is_told_as_a_time_and_a_wait(seconds: float, text: str) -> None:
    assert moment(NOW + seconds, NOW) == text


def made(folder: Path, *events: str) -> Run:
    run = Run.create(folder / "r")
    plan = plan_of(cluster={"name": "local", "scheduler": "local"})
    run.write_record(replace(plan, run_id="r"), {}, {"overrides": []})
    run.journal(kinds.Submitted(job="local-1"))
    attempt = run.path / "attempts/0/events"
    attempt.mkdir(parents=True)
    (attempt / "script.jsonl").write_text("".join(f"{event}\n" for event in events))
    return run


STARTED = '{"time": 1.0, "event": "started", "job": "local-1", "host": "h"}'
STOP = '{"time": 2.0, "event": "stop", "reason": "time_limit", "step": 7}'


@pytest.mark.parametrize(
    ("events", "state", "why", "do"),
    [
        ((STARTED, '{"time": 2.0, "event": "ended", "code": 0}'), "done", "it is done", "report"),
        ((STARTED, '{"time": 2.0, "event": "ended", "code": 1}'), "failed", "exit code 1", "post-mortem"),
        ((STARTED, STOP, '{"time": 3.0, "event": "ended", "code": 75}'), "stopped", "its time is nearly up", "resume"),
        ((STARTED,), "lost", "its script recorded no end", "post-mortem"),
    ],
)
def test_a_run_that_is_over_is_told_in_a_line(
    tmp_path: Path, events: tuple[str, ...], state: str, why: str, do: str
) -> None:
    found = explain(made(tmp_path, *events), "launcher", cause)
    assert found.state == state
    assert why in found.why
    assert do in found.do


def test_a_point_that_waits_for_its_turn_says_how_many_run_at_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3, array=None, parallelism=1)
    assert "it is not submitted" in explain(sweep.run(2), "launcher", cause).why
    sweep.request_local([2], restart=False)
    found = explain(sweep.run(2), "launcher", cause)
    assert (found.state, found.limits) == ("waiting", (f"sweep {sweep.id}: 1 point at once (sweep.parallelism)",))
    assert found.do == f"`launcher sweep throttle {sweep.id} N` changes how many run at once"


def test_a_point_of_a_packed_sweep_waits_for_a_slot(tmp_path: Path) -> None:
    """It has no job of its own, so that it has none is no sign of an interrupted submission."""
    sweep = packed_sweep(tmp_path, 2)
    found = explain(sweep.run(1), "launcher", cause)
    assert (found.state, found.why) == ("waiting", "no pilot of its sweep runs now")
    assert f"`launcher why {sweep.id}-pilot-0`" in found.do
    Claims(sweep.path, 0).note(
        Manager(0, 0, 0, 0), kinds.ManagerBegan(host="n1", job="1", slots=1, pid=1, start=1, namespace="", time=1.0)
    )
    found = explain(sweep.run(1), "launcher", cause)
    assert (found.state, found.why) == ("waiting", "it waits for a free slot of a pilot")
    assert found.do == f"`launcher sweep throttle {sweep.id} N` changes how many pilots there are"

"""How points of a sweep share pilots, and what a pilot asks for."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.config.schema import Debug, LaunchMode, Method
from launcher.config.schema import Sweep as Keys
from launcher.errors import ConfigError
from launcher.monitoring.run_status import RunState
from launcher.runs.point_claims import LEASE, Claims, EntryKind, Manager
from launcher.runs.sweep_directory import Packing, Sweep
from launcher.submission.submit import SubmittedRun
from launcher.sweeps import prepare, submit
from launcher.sweeps.submit import SubmittedPilots
from tests.unit.pilots.managers import packed_sweep
from tests.unit.plans import make_config, plan_of, with_fields

SWEEP = Sweep(Path("/runs/lr-1"))
ONE = Packing(pilots=1, nodes=1, slots=1, gpus=0, gpus_per_point=0, cpus_per_point=1, retries=2, lease=LEASE)


def packing(sweep: dict[str, Any], **keys: Any) -> Packing | None:
    config = make_config(sweep=Keys(**sweep), **keys)
    return prepare.packing_of(config, plan_of(**keys))


@pytest.mark.parametrize(
    ("sweep", "keys", "expected"),
    [
        ({}, {}, None),
        ({"slots": 2}, {}, {"slots": 2}),
        ({"pack": 3}, {}, {"pilots": 3}),
        ({"search": Method.tpe}, {}, {}),
        ({"pack": 2, "slots": 4, "nodes": 3, "retries": 0}, {}, {"pilots": 2, "slots": 4, "nodes": 3, "retries": 0}),
        (
            {"slots": 4},
            {"gpus_per_node": 2, "cpus_per_proc": 3},
            {"slots": 4, "gpus": 8, "gpus_per_point": 2, "cpus_per_point": 6},
        ),
        ({"slots": 8, "gpus": 4}, {"gpus_per_node": 1}, {"slots": 8, "gpus": 4, "gpus_per_point": 1}),
    ],
)
def test_the_keys_of_pilots(sweep: dict[str, Any], keys: dict[str, Any], expected: dict[str, Any] | None) -> None:
    found = packing(sweep, **keys)
    assert (found and vars(found)) == (None if expected is None else {**vars(ONE), **expected})


@pytest.mark.parametrize(
    ("sweep", "keys", "words"),
    [
        ({"slots": 2, "parallelism": 4}, {}, "sweep.parallelism"),
        ({"nodes": 2}, {}, "sweep.nodes is for pilots"),
        ({"gpus": 2}, {"gpus_per_node": 2}, "sweep.gpus is for pilots"),
        ({"slots": 1}, {"nodes": 2}, r"nodes=2: a point in a pilot .* Leave sweep.slots"),
        (
            {"pack": 1, "search": Method.tpe},
            {"nodes": 2},
            r"\(sweep.search\) runs on one node. Use nodes=1",
        ),
        ({"slots": 2}, {"launch": {"mode": LaunchMode.tasks}}, "launch=tasks"),
        ({"slots": 2}, {"debug": Debug(rank=0)}, "debug.rank"),
        ({"slots": 2, "gpus": 3}, {"gpus_per_node": 1}, "sweep.gpus=3 is more"),
        ({"slots": 2, "gpus": 1}, {"gpus_per_node": 2}, "sweep.gpus=1 is less"),
    ],
)
def test_points_that_cannot_share_pilots_are_refused(sweep: dict[str, Any], keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        packing(sweep, **keys)


def test_a_pilot_asks_for_what_all_its_slots_need() -> None:
    keys: dict[str, Any] = {"gpus_per_node": 1, "procs_per_node": 1, "cpus_per_proc": 4, "mem": "8G"}
    point, shares = plan_of(**keys), packing({"slots": 8, "gpus": 4, "nodes": 2}, **keys)
    assert shares is not None
    plan = prepare.plan_of(point, SWEEP, shares, 3)
    assert (plan.run_id, plan.run_dir) == ("lr-1-pilot-3", "/runs/lr-1-pilot-3")
    assert (plan.nodes, plan.min_nodes, plan.procs_per_node, plan.cpus_per_node) == (2, 1, 1, 32)
    assert (plan.gpus_per_node, plan.mem, plan.time) == (4, 8 * (8 << 30), point.time)
    assert plan.workload.params["kwargs"] == {"sweep": "/runs/lr-1", "pilot": 3}


@pytest.mark.parametrize(
    ("done", "more", "slots", "asked", "submitted", "enough"),
    [
        (0, False, 1, 2, 2, None),
        (1, False, 1, 2, 1, 1),  # one point is left: a second pilot would have nothing to run
        (0, False, 2, 2, 1, 1),
        (0, False, 1, 3, 2, 2),
        (2, False, 1, 2, 0, 0),
        (2, True, 1, 2, 2, None),
    ],
)
def test_no_more_pilots_are_submitted_than_the_points_that_are_left_can_use(
    done: int, more: bool, slots: int, asked: int, submitted: int, enough: int | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sweep, owner = packed_sweep(tmp_path, 2), Manager(0, 0, 0, 0)
    for point in range(done):
        Claims(sweep.path, 0).add(point, 0, EntryKind.CLAIMED, owner)
        Claims(sweep.path, 0).add(point, 1, EntryKind.DONE, owner)
    monkeypatch.setattr(submit, "chooses_more", lambda sweep: more)
    monkeypatch.setattr(
        submit, "_submit_pilot",
        lambda sweep, plan, number, config, by_hand: SubmittedRun(sweep.pilot(number), f"job {number}"),
    )  # fmt: skip
    shares = sweep.manifest().packing
    assert shares is not None
    sweep.write(dataclasses.replace(sweep.manifest(), packing=dataclasses.replace(shares, slots=slots)))
    found, _ = submit.throttle_pilots(sweep, asked)
    assert (len(found.jobs), found.enough) == (submitted, enough)


def test_with_fewer_pilots_those_go_that_wait_and_those_stay_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, states = packed_sweep(tmp_path, 9), (RunState.QUEUED, RunState.RUNNING, RunState.QUEUED, RunState.RUNNING)
    living = [SimpleNamespace(run=sweep.pilot(number), state=state) for number, state in enumerate(states)]
    monkeypatch.setattr(submit, "live_pilots", lambda *_: living)
    monkeypatch.setattr(submit.JobMonitor, "cancel", lambda *_: None)
    monkeypatch.setattr(submit, "submit_pilots", lambda *_: pytest.fail("a pilot that was cancelled is submitted"))
    assert submit.throttle_pilots(sweep, 2) == (SubmittedPilots({}), ["lr-1-pilot-0", "lr-1-pilot-2"])


def test_a_pilot_goes_on_with_one_node() -> None:
    shares = packing({"slots": 2, "pack": 2, "nodes": 6})
    assert shares is not None
    plan = prepare.plan_of(plan_of(), SWEEP, shares, 0)
    assert (plan.nodes, plan.min_nodes, plan.independent) == (6, 1, True)
    assert shares.at_once == 2 * 6 * 2


def test_more_pilots_have_the_secrets_of_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, given = packed_sweep(tmp_path, 2), list[str | None]()
    plan = with_fields(sweep.run(0).plan(), secret_variables=("MY_TOKEN",))
    sweep.run(0).write_record(plan, {}, {"token": "t"})
    monkeypatch.setattr(submit, "require_commands", lambda _: None)
    monkeypatch.setattr(
        submit, "submit_pilots",
        lambda *_: given.append(os.environ.get("MY_TOKEN")) or SimpleNamespace(pilots=SubmittedPilots({})),
    )  # fmt: skip
    submit.throttle_pilots(sweep, 3, lambda _: {"MY_TOKEN": "hidden"})
    assert given == ["hidden"]

"""`resume` finds its run again in whatever folder it is: the record is data, and no config."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import RunError
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep, SweepManifest
from launcher.submission import resume
from tests.unit.plans import bare_plan

NAMES = [
    "plain", "${oc.env:HOME}", "${HOME}", "$HOME", "a\\b", "a\\\\b", "a\\", "\\${x}", "\\\\${x}", "it's", "\"so\"",
    "a,b", "[a]", "{a: b}", "a=b", "a b", "'${oc.env:HOME}'", "${launcher.runs_dir:}", "é", "\\'", "null",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_resumed_where_it_is(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path / name / "run-1")
    composed = resume.composed_config(["workload=p2p", *resume.place_overrides(run)])
    assert composed.config.runs_dir == str(tmp_path / name)
    assert composed.resolved["runs_dir"] == str(tmp_path / name)


def test_settings_for_hydras_own_command_line_do_not_keep_others_from_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    (tmp_path / "user.yaml").write_text("hydra: {verbose: true}\nnodes: 3\n")
    assert resume.composed_config(["workload=p2p"]).config.nodes == 3


def test_another_attempt_begins_where_the_first_one_was_submitted_and_the_caller_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "own"))
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "x.py").touch()
    run = Run.create(tmp_path / "runs" / "run-1")
    words = ["workload=program", "workload.script=x.py"]
    run.write_record(bare_plan(workdir=str(there)), {}, {"overrides": words})
    monkeypatch.chdir(here)
    ready = resume.ready_attempt(run, ["nodes=2"])
    assert (ready.prepared.plan.workdir, ready.prepared.plan.nodes) == (str(there), 2)
    assert Path.cwd() == here
    (there / "x.py").unlink()
    there.rmdir()
    with pytest.raises(RunError, match=f"run-1 was submitted in {there}, where its job starts: it cannot be entered"):
        resume.ready_attempt(run, ["nodes=2"])
    assert Path.cwd() == here


def test_a_run_of_a_former_version_is_resumed_with_variables_as_they_were_typed(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "runs" / "run-1")
    words = ["workload=p2p", "++cluster.environment.A=true"]
    run.write_record(bare_plan(workdir=str(tmp_path)), {}, {"overrides": words})
    assert resume.ready_attempt(run, []).prepared.plan.cluster.environment["A"] == "true"


@pytest.mark.parametrize(
    ("changes", "waits"), [([], ["first"]), (["sweep.after=null"], []), (["after=second"], ["second", "first"])]
)
def test_another_attempt_of_a_point_waits_for_what_its_sweep_waits_for(
    changes: list[str], waits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        Run.create(tmp_path / name).write_record(bare_plan(run_id=name), {}, {})
    sweep = Sweep.create(tmp_path / "points")
    sweep.write(SweepManifest("points", (), (("seed=1",),)))
    config = {"sweep": {"after": ["first"]}}
    plan = bare_plan(workdir=str(tmp_path), run_id="points/0")
    sweep.run(0).path.mkdir()
    sweep.run(0).write_record(plan, config, {"overrides": ["workload=p2p", "seed=1"]})
    again = resume.ready_attempt(sweep.run(0), changes)
    assert again.prepared.plan.after == tuple(f"ok:{tmp_path}/{name}" for name in waits)


def test_a_pilot_is_not_resumed_but_the_points_of_its_sweep(tmp_path: Path) -> None:
    sweep = Sweep.create(tmp_path / "points")
    sweep.write(SweepManifest("points", (), (("seed=1",),)))
    pilot = Run.create(sweep.pilot(0).path)
    pilot.write_record(bare_plan(run_id=pilot.id), {}, {"overrides": []})
    with pytest.raises(
        RunError, match=r"points-pilot-0 is part of a packed sweep: .* sweep rerun points` starts again"
    ):
        resume.ready_attempt(pilot, [])

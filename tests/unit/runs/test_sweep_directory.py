"""A sweep's directory: what is written is what is read, and points are told apart by what they were asked for."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.errors import ConfigError, RunError
from launcher.runs import events as kinds
from launcher.runs import lookup, sweep_directory
from launcher.runs.directory import Run
from launcher.runs.history import history_of, journal_events
from launcher.runs.sweep_directory import Sweep, SweepManifest, canonical, differing, label, text_of, values_of
from tests.unit.sweep_runs import begin, make_sweep, submit_array


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=1", "nodes=2"], ("nodes=2", "seed=1")),
        (["seed=1", "wait=true", "dry_run=true", "runs_dir=/x", "run_id=y"], ("seed=1",)),
        (["seed=1", "sweep.parallelism=3", "hydra.verbose=true", "hydra/launcher=x"], ("seed=1",)),
        (["+cluster.environment.B=1", "cluster.account=x"], ("cluster.account=x", "+cluster.environment.B=1")),
        (["seed=2", "nodes=1", "seed=1"], ("nodes=1", "seed=2", "seed=1")),  # the last one counts
        (["seed=1", "nodes=1", "seed=2"], ("nodes=1", "seed=1", "seed=2")),
        (["b.c=1", "b={c: 2}", "a=1"], ("b.c=1", "b={c: 2}", "a=1")),  # merged in that order
        (["workload.op=all", "workload=collective"], ("workload=collective", "workload.op=all")),
    ],
)  # fmt: skip
def test_a_point_is_its_overrides_without_those_of_one_command(overrides: list[str], expected: tuple[str, ...]) -> None:
    assert canonical(overrides) == expected
    assert canonical(expected) == expected


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3), min_size=1), st.randoms())
def test_the_order_of_different_keys_makes_no_other_point(values: dict[str, int], random: object) -> None:
    words = [f"{key}={value}" for key, value in values.items()]
    other = list(words)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert canonical(words) == canonical(other)


@pytest.mark.parametrize(
    ("points", "keys", "labels"),
    [
        ([["seed=1"], ["seed=2"]], ["seed"], ["seed=1", "seed=2"]),
        ([["seed=1", "nodes=1"], ["seed=1", "nodes=2"]], ["nodes"], ["nodes=1", "nodes=2"]),
        ([["workload.lr=1", "s=1"], ["workload.lr=2", "s=2"]], ["workload.lr", "s"], ["lr=1 s=1", "lr=2 s=2"]),
        ([["seed=1"], ["seed=1"]], [], ["", ""]),
        ([["seed=1"]], [], [""]),
        ([], [], []),
        ([["seed=1"], ["seed=1", "nodes=2"]], ["nodes"], ["", "nodes=2"]),  # the first leaves it at its default
        ([["+x=1"], ["x=2"], ["~x"]], ["x"], ["x=1", "x=2", "x="]),
        ([["name='a=b'"], ["name='a=c'"]], ["name"], ["name='a=b'", "name='a=c'"]),
        ([["seed=1", "seed=2"], ["seed=3", "seed=2"]], [], ["", ""]),  # what does not count makes no difference
    ],
)  # fmt: skip
def test_what_tells_points_apart(points: list[list[str]], keys: list[str], labels: list[str]) -> None:
    assert differing(points) == keys
    assert [label(point, keys) for point in points] == labels


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)), min_size=1, max_size=6))
def test_keys_differ_exactly_where_values_do(values: list[dict[str, int]]) -> None:
    points = [[f"{key}={value}" for key, value in each.items()] for each in values]
    expected = {key for key in "abc" if len({each.get(key) for each in values}) > 1}
    assert set(differing(points)) == expected
    shown = [tuple(sorted(values_of(point, differing(points)).items())) for point in points]
    assert len(set(shown)) == len({tuple(sorted(each.items())) for each in values})


# -- the directory

MANIFEST = SweepManifest(
    "lr", ("-m", "seed=1,2", "name='é \"x\"'"), (("seed=1",), ("seed=2", "x=ü")), ("a", "b"), "min", 3
)


@pytest.mark.parametrize("manifest", [MANIFEST, SweepManifest("lr", (), ()), SweepManifest("lr", (), ((),))])
def test_a_manifest_is_read_as_it_was_written(tmp_path: Path, manifest: SweepManifest) -> None:
    sweep = Sweep.create(tmp_path / "runs" / "lr-1")
    assert not sweep.recorded()
    sweep.write(manifest)
    assert sweep.recorded()
    assert sweep.manifest() == manifest
    assert [(each.index, each.overrides) for each in sweep.points()] == list(enumerate(manifest.points))


POINTS = st.lists(st.lists(st.sampled_from(["a=1", "a=2", "b={c: 1}", "+d=é"]), max_size=4).map(tuple), max_size=5)


@given(POINTS)
def test_the_overrides_of_any_points_are_read_as_they_were_written(tmp_path_factory: Any, points: Any) -> None:
    sweep = Sweep.create(tmp_path_factory.mktemp("runs") / "lr-1")
    sweep.write(SweepManifest("lr", (), tuple(points)))
    assert sweep.manifest().points == tuple(points)


def many(count: int, common: int) -> SweepManifest:
    return SweepManifest("lr", (), tuple(("a=1", f"seed={10**6 + seed}", f"z={'x' * common}") for seed in range(count)))


def test_overrides_that_all_points_have_are_written_once() -> None:
    few, more, longer = (len(text_of(many(*each))) for each in ((100, 4000), (1000, 4000), (1000, 8000)))
    assert more - few < 900 * 20
    assert longer - more == 4000


def test_a_manifest_with_too_many_points_is_refused_before_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep.create(tmp_path / "lr-1")
    sweep.write(many(20, 0))
    monkeypatch.setattr(io_bounds, "SWEEP_POINTS", 19)
    monkeypatch.setattr("launcher.runs.sweep_directory.misfit", lambda *_: pytest.fail("each point was looked at"))
    with pytest.raises(RunError, match="it has 20 points, and a sweep has at most 19"):
        sweep.manifest()


def test_the_directory_is_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        sweep = make_sweep(tmp_path / "runs")
        sweep.request_local([1], restart=False)
        sweep.mark_cancelled(True)
    finally:
        os.umask(previous)
    for path in (sweep.path, *sweep.path.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def sparse(points: int, common: int) -> str:
    return json.dumps({"format": 2, "points": [[]] * points, "common": ["a"] * common, "command": [], "name": "x"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not a sweep: it has no sweep.json"),
        ("", "cannot be read"),
        ('{"format": 2, "name": "x"', "cannot be read"),
        ("[]", "cannot be read"),
        ("7", "cannot be read"),
        ('{"format": 1}', "another version"),
        ('{"format": 3}', "another version"),
        ('{"name": "x"}', "cannot be read"),
        ('{"format": 2, "common": [], "points": [["a=1"]], "objective": []}', "cannot be read"),
        ('{"format": 2, "common": [], "points": [], "command": [], "name": "x", "more": 1}', "cannot be read"),
        ('{"format": 2, "common": [], "points": 3, "objective": [], "command": [], "name": "x"}', "cannot be read"),
        ('{"format": 2, "points": [["a=1"]], "command": [], "name": "x"}', "common"),
        ('{"format": 2, "points": [["a=1"]], "common": ["b=1", 3], "command": [], "name": "x"}', "common"),
        ('{"format": 2, "points": [["a=1"]], "common": [null, null], "command": [], "name": "x"}', "lacks overrides"),
        (sparse(100_001, 0), "100,001 points"),
        (sparse(10_000, 1_001), "10,010,000 overrides"),
    ],
)
def test_a_broken_manifest_is_told(tmp_path: Path, text: str | None, words: str) -> None:
    sweep = Sweep.create(tmp_path / "lr-1")
    if text is not None:
        (sweep.path / "sweep.json").write_text(text)
    with pytest.raises(RunError, match=words) as caught:
        sweep.manifest()
    assert str(sweep.path) in str(caught.value)


def test_a_manifest_that_was_being_written_is_what_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep.create(tmp_path / "lr-1")
    sweep.write(MANIFEST)

    def power_fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", power_fails)
    with pytest.raises(OSError, match="disk full"):
        sweep.write(SweepManifest("other", (), ()))
    assert sweep.manifest() == MANIFEST


def test_a_sweep_is_not_made_of_a_run_or_where_others_can_write(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run-1")
    (run.path / "record.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is a run: choose another sweep\.id"):
        Sweep.create(run.path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RunError, match="others can write to"):
        Sweep.create(tmp_path / "open")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"runs_dir=.*cannot be made"):
        Sweep.create(tmp_path / "file" / "lr-1")


def test_arrays_are_known_from_their_announcement_to_their_refusal(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 9, array=None)
    assert (sweep.submissions(), sweep.tokens()) == ([], set())
    sweep.submitting("t-0", [0, 1, 2, 5])
    sweep.submitting("t-1", [3])
    sweep.submitting("t-2", [4])
    sweep.submitted("t-0", "70")
    sweep.refused("t-1")
    found = {(each.token, each.points, each.job) for each in sweep.submissions()}
    assert found == {("t-2", (4,), None), ("t-0", (0, 1, 2, 5), "70")}
    assert sweep.tokens() == {"t-0", "t-1", "t-2"}  # none is used again


def test_what_is_told_of_an_unknown_array_is_nothing(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 2, array=None)
    sweep.submitted("t-9", "70")
    sweep.refused("t-8")
    with (sweep.path / "journal.jsonl").open("a") as file:
        file.write('{"time": 1, "event": "submitting", "tok')  # its writer was killed
    assert sweep.submissions() == []


def test_a_journal_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 2, array=None)
    (sweep.path / "journal.jsonl").write_text('{"time": 1, "event": "subm')
    submit_array(sweep, [0, 1], "70", "t-0")
    assert [each.job for each in sweep.submissions()] == ["70"]


@pytest.mark.parametrize(("job", "expected"), [("70", "70_1"), ("70[].pbs-srv", "70.pbs-srv_1")])
def test_a_points_journal_tells_of_its_arrays(tmp_path: Path, job: str, expected: str) -> None:
    sweep = make_sweep(tmp_path, 3, array=None)
    submit_array(sweep, [0, 2], job)
    run = sweep.run(2)
    assert run.is_point
    assert run.id == "lr-1/2"
    assert history_of(journal_events(run), None, ()).job_id == expected
    assert journal_events(sweep.run(1)) == []
    run.journal(kinds.Cancelled())
    assert history_of(journal_events(run), None, ()).cancelled
    submit_array(sweep, [1, 2], "80", "t-2")
    history = history_of(journal_events(run), None, ())
    assert (history.job_id, history.cancelled) == ("80_1", False)
    begin(run, "80_1")
    run.journal(kinds.Submitted(job="90"))  # it was resubmitted alone
    assert history_of(journal_events(run), None, ()).job_id == "90"


@pytest.mark.parametrize("run_id", ["7", "2026"])
def test_a_run_whose_id_is_a_number_is_no_point(tmp_path: Path, run_id: str) -> None:
    run = Run.create(tmp_path / "runs" / run_id)
    assert (run.id, run.is_point) == (run_id, False)
    assert sweep_directory.sweep_of(run) is None


def test_a_sweep_whose_id_is_a_number_is_found_with_its_points(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, name="7")
    assert (sweep.id, sweep.run(3).id) == ("7", "7/3")
    assert Run(sweep.path).id == "7"
    assert lookup.find("7/3", tmp_path).path == sweep.run(3).path
    assert sweep_directory.sweep_of(sweep.run(3)) == sweep


def test_points_that_this_machine_is_to_run(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    assert sweep.local_requests() == {}
    sweep.request_local([2, 0], restart=False)
    sweep.request_local([1, 2], restart=False)
    assert sweep.local_requests() == {2: 0.0, 0: 0.0, 1: 0.0}
    sweep.request_local([0], restart=True)
    asked = sweep.local_requests()
    assert asked[0] > 1e9
    sweep.request_local([0, 3], restart=False)
    assert sweep.local_requests() == {**asked, 3: 0.0}
    with (sweep.path / "points").open("a") as file:
        file.write("0.0 4-")  # by a machine that died
    sweep.request_local([4, 5], restart=False)
    assert sweep.local_requests() == {**asked, 3: 0.0, 4: 0.0, 5: 0.0}


def test_sweeps_and_points_are_found(tmp_path: Path) -> None:
    sweep, other = make_sweep(tmp_path, name="lr-1"), make_sweep(tmp_path, name="lr-2")
    assert {each.id for each in lookup.all_sweeps(tmp_path)} == {"lr-1", "lr-2"}
    assert lookup.all_runs(tmp_path) == []
    assert lookup.find_sweep("lr-1", tmp_path) == sweep
    assert lookup.find_sweep(str(other.path), tmp_path) == other
    assert lookup.find("lr-2/3", tmp_path).path == other.path / "3"
    for name, words in [
        ("lr", "fits 2 sweeps"), ("lx-1", "Did you mean lr-1"), ("latest", "no latest sweep"),
        ("lr-1/9", "only 0-3"),
    ]:  # fmt: skip
        with pytest.raises(RunError, match=words):
            lookup.find(name, tmp_path) if "/" in name else lookup.find_sweep(name, tmp_path)
    Run(sweep.path).link(tmp_path)
    with pytest.raises(RunError, match=r"latest is lr-1, a sweep: name one of its points \(lr-1/0\)"):
        lookup.find("latest", tmp_path)
    with pytest.raises(RunError, match="is a sweep: name one of its points"):
        lookup.find("lr-1", tmp_path)
    run = Run.create(tmp_path / "newer-run")
    (run.path / lookup.RECORDS["run"]).write_text("{}")
    with pytest.raises(RunError, match="newer-run is a run, and no sweep: see `launcher status newer-run`"):
        lookup.find_sweep("newer-run", tmp_path)
    run.link(tmp_path)
    assert lookup.find("latest", tmp_path) == run
    assert lookup.find_sweep("latest", tmp_path) in (sweep, other), "the newest sweep, though a run is newer"
    (Run.create(tmp_path / "wd").path / lookup.RECORDS["run"]).write_text("{}")
    longer = make_sweep(tmp_path, name="wd-1")
    assert lookup.find_sweep("wd", tmp_path) == longer, "its prefix is a run's id, too"


def test_cancelling_is_taken_back(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    for wanted in (False, True, True, False):
        sweep.mark_cancelled(wanted)
        assert sweep.cancelled() is wanted


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["submitting", "submitted", "refused"]), max_size=8))
def test_an_array_is_what_was_told_of_it_last(events: Sequence[str]) -> None:
    """Of one token; what comes before its announcement does not count."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep.create(Path(folder) / "lr-1")
        expected: str | None = "none"
        for number, event in enumerate(events):
            if event == "submitting":
                sweep.submitting("t", [0])
                expected = None
            elif event == "submitted":
                sweep.submitted("t", str(number))
                expected = expected if expected == "none" else str(number)
            else:
                sweep.refused("t")
                expected = "none"
        assert [each.job for each in sweep.submissions()] == ([] if expected == "none" else [expected])

"""`sweep`, and the commands on runs where they meet sweeps and points: what they print and exit with."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import commands
from launcher.cli import sweep as sweep_command
from launcher.cli.status import _row_of_sweep
from launcher.errors import LauncherError
from launcher.monitoring.sweep_status import PointStatus
from launcher.runs import live_runs_index
from launcher.runs.directory import Run
from launcher.runs.point_claims import EntryKind
from launcher.runs.sweep_directory import Point, Sweep, SweepManifest
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from launcher.search.progress import chooses_more
from launcher.submission import resume
from launcher.submission.prepare import prepare
from launcher.submission.submit import SubmittedRun
from launcher.sweeps import control, submit
from launcher.sweeps.submit import SubmittedPilots, SubmittedSweep
from tests.unit.cli.test_commands import make as make_run
from tests.unit.clock import Clock
from tests.unit.plans import bare_plan, make_config
from tests.unit.sweep_runs import allow_points, begin, choose, end, make_search, make_sweep


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command where there are no runs but those in tmp_path/runs; Slurm runs 100_3 and no more."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(Slurm, "jobs", lambda _: {"100_3": SchedulerJob("100_3", JobState.RUNNING, "RUNNING")})
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})
    monkeypatch.setattr(Slurm, "cancel", lambda *_: None)
    (tmp_path / "runs").mkdir()

    def run(line: str) -> Answer:
        try:
            code, problem = commands.main(shlex.split(line)), ""
        except LauncherError as error:
            code, problem = error.exit_code, str(error)
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err + problem)

    return run


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Three points are done, one runs, one has failed, one waits."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    found = make_sweep(tmp_path / "runs", 6, first=0, objective=("accuracy",), array=None)
    found.submitting("t", range(5))
    found.submitted("t", "100")
    for index, accuracy in enumerate((0.5, 0.9, 0.7)):
        end(found.run(index), 0, metrics={"epochs": 4, "accuracy": accuracy, "loss": 1 - accuracy, "rates": [1, 2]})
    begin(found.run(3), "100_3", step=7)
    end(found.run(4), 1, fault="ValueError: the loss is a banana", rank=1, host="node2")
    return found


# -- bad input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sweep", "required: ACTION"),
        ("sweep statsu", "there is no sweep command 'statsu'. Did you mean status? Known: status, results, rerun"),
        ("sweep results", "sweep results needs the SWEEP; `sweep status` lists them"),
        ("sweep wait lr-1 3", "sweep wait is about whole sweeps; of one point: `status lr-1/3`"),
        ("sweep rerun lr-1 --csv -", "--csv goes with sweep results"),
        ("sweep results lr-1 --csv - --json", "--csv and --json exclude each other"),
        ("sweep wait lr-1 --json", "--json goes with sweep status and sweep results"),
        ("sweep throttle lr-1", "give the number of points that may run at once, 1 or more"),
        ("sweep throttle lr-1 0", "'0' is not the number of points"),
        ("sweep throttle lr-1 many", "'many' is not the number of points"),
        ("sweep cancel lr-1 a", "points: 'a' is not a number, or a range of them: write 3 or 0-3,7"),
        ("sweep cancel lr-1 3-1", "3-1 is an empty range: write 1-3"),
        ("sweep cancel lr-1 0-99999999999", "'0-99999999999' names more than 1000000 numbers"),
        ("sweep results lr-1 --sort los", "--sort los: no point has such a metric. Did you mean loss? Known: epochs"),
        ("sweep results lr-1 --csv /dev/null/x.csv", "the file cannot be written (Not a directory)"),
    ],
)
def test_bad_input_is_told_with_what_was_meant(call: Call, sweep: Sweep, line: str, words: str) -> None:
    answer = call(line)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.error


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("sweep status lr-2", "no sweep 'lr-2' in ", 2),
        ("logs lr-1/x", "lr-1/x does not exist; a point of a sweep is SWEEP/NUMBER", 2),
        ("sweep cancel lr-1 6", "sweep lr-1 has no point 6, only 0-5", 2),
        ("sweep rerun lr-1 0 3 5", "only points that are over and not done can be restarted (0 done, 3 running)", 1),
        ("status lr-2", "and no sweep. Did you mean lr-1", 2),
        ("status lr-1/6", "sweep lr-1 has no point 6, only 0-5", 2),
        ("logs lr-1", "lr-1 is a sweep: name one of its points (lr-1/0)", 2),
        ("status l", "'l' fits 2 runs and sweeps: lr, lr-1", 2),
    ],
)
def test_what_is_not_there_is_a_failure(
    call: Call, sweep: Sweep, tmp_path: Path, line: str, words: str, code: int
) -> None:
    make_run(tmp_path, "lr", code=0)
    answer = call(line)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.error


# -- status


@pytest.mark.usefixtures("clock")
def test_status_tells_of_points_that_fail_or_run(call: Call, sweep: Sweep) -> None:
    lines = call("sweep status lr-1").lines
    assert lines[0] == "lr-1: 3/6 done, 1 failed, 1 running, 1 waiting"
    assert [line.split()[0] for line in lines[2:] if line] == ["POINT", "4", "rank", "3", "next"]
    assert lines[4] == "       rank 1 on node2: ValueError: the loss is a banana"
    assert lines[5].split() == ["3", "running", "7/100", "00:00:00", "lr=0.3"]
    assert call("status lr-1").lines == lines
    assert [line.split()[0] for line in call("sweep status lr-1 --all").lines if line[:1].isdecimal()] == list("012345")


def test_a_node_whose_clock_is_ahead_has_run_for_no_time(call: Call, sweep: Sweep, clock: Clock) -> None:
    clock.now -= 5
    assert "3      running  7/100  00:00:00" in call("sweep status lr-1").out


def test_status_for_programs(call: Call, sweep: Sweep) -> None:
    told = json.loads(call("sweep status lr-1 --json").out)
    assert (told["sweep"], told["parallelism"]) == ("lr-1", None)
    assert told["counts"] == {"waiting": 1, "running": 1, "done": 3, "failed": 1}
    point = told["points"][4]
    assert (point["point"], point["run"], point["state"], point["job"]) == (4, "lr-1/4", "failed", "100_4")
    assert (point["rank"], point["host"]) == (1, "node2")
    assert point["cause"] == "rank 1 on node2: ValueError: the loss is a banana"
    assert told["points"][3]["step"] == 7


def test_a_large_sweep_is_shortened(call: Call, tmp_path: Path) -> None:
    make_sweep(tmp_path / "runs", 30)
    lines = call("sweep status lr-1").lines
    assert lines[0] == "lr-1: 0/30 done, 29 lost, 1 running"
    assert lines[-3] == "... and 10 more; --all shows all points"
    assert len(call("sweep status lr-1 --all").lines) == 35


def test_all_sweeps_and_sweeps_among_runs(call: Call, sweep: Sweep, tmp_path: Path) -> None:
    make_run(tmp_path, "a", code=0)
    make_run(tmp_path, "lr-1-pilot-0", code=0)
    assert call("status l").lines[0] == "lr-1: 3/6 done, 1 failed, 1 running, 1 waiting"  # not its pilot
    shutil.rmtree(tmp_path / "runs" / "lr-1-pilot-0")
    assert call("sweep status").lines == ["SWEEP  POINTS", "lr-1   3/6 done, 1 failed, 1 running, 1 waiting"]
    assert json.loads(call("sweep status --json").out)[0]["counts"]["done"] == 3
    (make_sweep(tmp_path / "runs", 2, name="lr-0").path / "sweep.json").write_text("{")
    damaged, shown = json.loads(call("sweep status --json").out), call("sweep status").lines
    assert {row["sweep"]: "cause" in row for row in damaged} == {"lr-0": True, "lr-1": False}
    assert [line.split()[:2] for line in shown if line.startswith("lr-0")] == [["lr-0", "unreadable:"]]
    shutil.rmtree(tmp_path / "runs" / "lr-0")
    rows = {line.split()[0]: line for line in call("status").lines}
    assert " ".join(rows["lr-1"].split()) == "lr-1 3/6 done, 1 failed - - -"
    assert set(rows) == {"RUN", "lr-1", "a"}
    assert {row["run"]: row.get("points") for row in json.loads(call("status --json").out)} == {
        "a": None,
        "lr-1": {"waiting": 1, "running": 1, "done": 3, "failed": 1},
    }


@pytest.mark.parametrize("state", ["pruned", "failed", "lost", "cancelled", "stopped", "damaged"])
def test_a_sweep_whose_other_points_are_over_is_not_shown_as_going_on(state: str) -> None:
    row = _row_of_sweep(Sweep(Path("/runs/lr")), {"done": 2, state: 10}, True)
    assert (row["state"], row["over"]) == (f"2/12 done, 10 {state}", True)
    assert _row_of_sweep(Sweep(Path("/runs/lr")), {"done": 2, "running": 1}, False)["state"] == "2/3 done"


def test_a_search_that_may_choose_more_points_is_not_over(call: Call, tmp_path: Path) -> None:
    """Its budget was spent and became larger; the pilots that choose more points wait for a long time."""
    runs = tmp_path / "runs"
    sweep = make_search(runs, 2, points=2)
    call("status")  # makes the index
    assert live_runs_index.possibly_live(runs) == set()
    allow_points(sweep, 4)
    live_runs_index.add(sweep.path)
    os.utime(runs / ".live" / sweep.id, (0, 0))
    for _ in range(2):
        assert json.loads(call("status --json").out)[0]["state"] == "2/2 done"
        assert live_runs_index.possibly_live(runs) == {sweep.id}
    for point in (2, 3):
        choose(sweep, point, EntryKind.DONE if point == 2 else EntryKind.FATAL)
    assert json.loads(call("status --failed --json").out)[0]["state"] == "3/4 done, 1 failed"
    assert live_runs_index.possibly_live(runs) == set()


def test_a_search_that_was_cancelled_is_over(call: Call, tmp_path: Path) -> None:
    sweep = make_search(tmp_path / "runs", 2, points=4)
    assert chooses_more(sweep)
    call("sweep cancel search-1")
    assert not chooses_more(sweep)  # a pilot would end at once
    call("status")
    assert live_runs_index.possibly_live(sweep.path.parent) == set()


def test_no_sweeps(call: Call, tmp_path: Path) -> None:
    assert call("sweep status").out == f"no sweeps in {tmp_path / 'runs'}\n"


def test_a_point_is_a_run(call: Call, sweep: Sweep) -> None:
    states = [json.loads(call(f"status lr-1/{index} --json").out)[0]["state"] for index in range(6)]
    assert states == ["done", "done", "done", "running", "failed", "waiting"]
    assert call("wait lr-1/4 -q").code == 1
    assert call("logs lr-1/4") == Answer(0, "", "")
    assert call("cancel lr-1/4").out == "lr-1: point 4 is over already\n"


words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200)


@given(st.lists(st.tuples(words, words), max_size=4))
def test_no_line_of_the_table_is_wider_than_a_terminal(values: list[tuple[str, str]]) -> None:
    overrides = tuple(f"{key}={value}" for key, value in values)
    seen = [PointStatus(Point(7, overrides, Sweep(Path("/runs/lr-1")).run(7)), "waiting")]
    assert all(len(line) <= 80 for line in sweep_command.points_table(seen, [key for key, _ in values]))
    assert all(len(line) <= 80 for key, value in values for line in sweep_command.indented(key + value, 7))


# -- results


def test_results_are_sorted_by_the_objective(call: Call, sweep: Sweep) -> None:
    lines = call("sweep results lr-1").lines
    assert [line.split() for line in lines[:4]] == [
        ["POINT", "lr", "accuracy", "loss"],
        ["1", "best", "0.1", "0.9", "0.1"],
        ["2", "0.2", "0.7", "0.3"],
        ["0", "0", "0.5", "0.5"],
    ]
    assert lines[5] == "left out, --csv has them: epochs, rates"
    assert lines[7:9] == ["point 4 failed: lr=0.4", "  rank 1 on node2: ValueError: the loss is a banana"]
    assert lines[-2] == "best  point 1, accuracy 0.9: lr=0.1"
    assert lines[-1].endswith(" workload=collective workload.lr=0.1")


@pytest.mark.parametrize(
    ("options", "best_is", "order"),
    [
        ("", "max", "120"),
        ("", "min", "021"),
        ("--reverse", "max", "021"),
        ("--sort accuracy", "max", "120"),
        ("--sort loss", "max", "120"),
        ("--sort loss --reverse", "max", "021"),
        ("--sort epochs", "max", "012"),
        ("--sort rates", "max", "012"),
    ],
)
def test_the_order_of_results(call: Call, sweep: Sweep, options: str, best_is: str, order: str) -> None:
    manifest = sweep.manifest()
    sweep.write(SweepManifest(manifest.name, manifest.command, manifest.points, ("accuracy",), best_is))
    lines = call(f"sweep results lr-1 {options}").lines
    assert "".join(line[0] for line in lines[1:4]) == order


def test_without_an_objective_no_point_is_the_best(call: Call, sweep: Sweep) -> None:
    manifest = sweep.manifest()
    sweep.write(SweepManifest(manifest.name, manifest.command, manifest.points))
    answer = call("sweep results lr-1")
    assert "best" not in answer.out
    assert answer.lines[-1].startswith("no objective: `--sort METRIC` orders them")
    sweep.write(SweepManifest(manifest.name, manifest.command, manifest.points, ("speed",)))
    assert call("sweep results lr-1").lines[-1].startswith("no point has the objective 'speed' in its result: ")


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("http://x")', "'=HYPERLINK(\"http://x\")"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"), ("-2+3", "'-2+3"), ("\t=1", "'\t=1"), ("-0.5", "-0.5"), ("+1e-3", "+1e-3"), (-3, -3),
        ("lr=0.1", "lr=0.1"), ("", ""), (None, None),
    ],
)  # fmt: skip
def test_no_cell_is_a_formula(value: object, cell: object) -> None:
    assert sweep_command.csv_cell(value) == cell


def test_csv_has_everything(call: Call, sweep: Sweep, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(call("sweep results lr-1 --csv -").out)))
    assert [row["point"] for row in rows] == ["1", "2", "0", "3", "4", "5"]
    assert rows[0] == {
        "point": "1", "workload.lr": "0.1", "state": "done", "epochs": "4", "accuracy": "0.9", "loss": str(1 - 0.9),
        "rates": "[1, 2]", "cause": "", "rank": "", "host": "",
    }  # fmt: skip
    assert (rows[4]["state"], rows[4]["rank"], rows[4]["host"]) == ("failed", "1", "node2")
    assert call(f"sweep results lr-1 --csv {tmp_path}/x.csv").out == f"{tmp_path}/x.csv: 6 points\n"
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 7


def test_a_result_that_is_damaged_is_told(call: Call, sweep: Sweep) -> None:
    (sweep.run(1).path / "result.json").write_text('{"accuracy": 0.')
    answer = call("sweep results lr-1")
    assert [line.split()[0] for line in answer.lines[1:4]] == ["2", "0", "1"]
    assert answer.error.startswith(f"launcher: point 1: {sweep.run(1).path}/result.json cannot be read: ")


def test_results_for_programs(call: Call, sweep: Sweep) -> None:
    told = json.loads(call("sweep results lr-1 --json").out)
    assert (told["sorted_by"], told["best"]) == ("accuracy", 1)
    assert told["points"][0]["metrics"] == {"epochs": 4, "accuracy": 0.9, "loss": 1 - 0.9, "rates": [1, 2]}
    assert told["points"][-1]["metrics"] == {}


@pytest.mark.parametrize(
    ("done", "heads", "left"), [(1, ["POINT", "loss"], "rates"), (2, ["POINT", "lr"], "loss, rates")]
)
def test_one_point_alone_shows_its_metrics_and_several_those_that_differ(
    call: Call, tmp_path: Path, done: int, heads: list[str], left: str
) -> None:
    found = make_sweep(tmp_path / "runs", done)
    for index in range(done):
        end(found.run(index), 0, metrics={"loss": 0.5, "rates": [1, 2]})
    lines = call("sweep results lr-1").lines
    assert lines[0].split() == heads
    assert f"left out, --csv has them: {left}" in lines


def test_a_wide_table_is_cut_to_the_terminal(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_sweep(tmp_path / "runs", 3, objective=("m9",))
    for index in range(3):
        end(found.run(index), 0, metrics={f"m{number}": index + number / 7 for number in range(30)})
    lines = call("sweep results lr-1").lines
    head, told = lines[0].split(), lines[5]
    assert head[:4] == ["POINT", "lr", "m9", "m0"] and all(len(line) <= 80 for line in lines[:-1])
    assert told.startswith("left out, --csv has them: ")
    monkeypatch.setenv("COLUMNS", "400")
    wide = call("sweep results lr-1").lines
    assert wide[0].split() == ["POINT", "lr", "m9", *(f"m{number}" for number in range(30) if number != 9)]
    monkeypatch.setenv("COLUMNS", "20")
    assert call("sweep results lr-1").lines[0].split() == ["POINT", "lr", "m9"]


metrics = st.dictionaries(
    st.sampled_from("abcdef"), st.floats() | st.integers() | st.sampled_from(["", "1", "nan", "größe"]) | st.none()
)


@given(st.lists(metrics, min_size=1, max_size=8), st.booleans())
def test_ranking_is_an_order_with_what_has_no_number_last(found: list[dict[str, Any]], largest: bool) -> None:
    numbered = dict(enumerate(found))
    ranked = sweep_command.ranking(numbered, "a", largest_first=largest)
    assert sorted(ranked) == list(numbered)
    values = [numbered[index].get("a") for index in ranked]
    numbers = [value for value in values if isinstance(value, (int, float)) and value == value]
    assert numbers == sorted(numbers, key=float, reverse=largest)
    assert values[: len(numbers)] == numbers


def test_metrics_in_tables_lie_flat() -> None:
    assert sweep_command.flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == {"a": 1, "b.c": 2, "b.d.e": 3}


# -- changes


def test_rerun_tells_what_was_submitted(call: Call, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resubmit(sweep: Sweep, points: list[int], secrets: object) -> SubmittedSweep:
        assert secrets is resume.secrets_again
        asked.append(points)
        return SubmittedSweep(sweep, (("200", (4,)),), (), (), (5,), "sbatch: submit limit")

    monkeypatch.setattr(submit, "resubmit", resubmit)
    answer = call("sweep rerun lr-1")
    assert (answer.code, asked) == (1, [[4, 5]])
    assert answer.lines[0] == "requests   2 x 1 node x 1 CPU x 1h = 2 node-hours, 2 core-hours"
    assert answer.lines[2:4] == ["job      200: point 4", "left     point 5: sbatch: submit limit"]
    call("sweep rerun lr-1 4")
    assert asked[1:] == [[4]]


def test_rerun_tells_the_jobs_of_pilots(call: Call, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    pilots = SubmittedPilots({0: SubmittedRun(sweep.pilot(0), "300")})
    monkeypatch.setattr(submit, "resubmit", lambda *_: SubmittedSweep(sweep, (), (), (), pilots=pilots))
    assert f"pilot    {sweep.pilot(0).id}: job 300" in call("sweep rerun lr-1").lines


def test_nothing_to_rerun(call: Call, tmp_path: Path) -> None:
    end(make_sweep(tmp_path / "runs", 1).run(0), 0)
    answer = call("sweep rerun lr-1")
    assert (answer.code, "there is nothing to run again" in answer.out) == (0, True)


def test_cancelled_points_are_run_again_by_number_only(call: Call, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "runs", 3, array=None)
    end(sweep.run(0), 0)
    call("sweep cancel lr-1")
    assert "run again if you name them" in call("sweep rerun lr-1").out
    assert call("sweep status lr-1").lines[-1].endswith("sweep rerun lr-1 1-2")


@pytest.mark.parametrize("line", ["sweep cancel lr-1", "cancel lr-1"])
def test_cancel_of_a_sweep(call: Call, sweep: Sweep, line: str) -> None:
    assert call(line).lines == ["lr-1: point 5 will not start", "lr-1: point 3 is being cancelled"]
    assert sweep.cancelled()


@pytest.mark.parametrize("line", ["sweep cancel lr-1 4,5", "sweep cancel lr-1 4-5", "cancel lr-1/4 lr-1/5"])
def test_cancel_of_points(call: Call, sweep: Sweep, line: str) -> None:
    assert sorted(call(line).lines) == ["lr-1: point 4 is over already", "lr-1: point 5 will not start"]
    assert not sweep.cancelled()


def test_a_throttle_that_cannot_be_kept_is_told(call: Call, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "throttle", lambda *_: [("100", 1), ("200", 1)])
    assert call("sweep throttle lr-1 1").lines == [
        "lr-1: at most 1 point at once", "  1 of array 100", "  1 of array 200",
        "  2 arrays wait, and each runs one point at least",
    ]  # fmt: skip


def test_many_points_are_told_in_one_line() -> None:
    assert sweep_command._points([3]) == "point 3"
    assert sweep_command._points([0, 1, 2, 7]) == "4 points (0-2,7)"
    assert len(sweep_command._points(range(0, 1000, 2))) < 60


# -- resume


def test_a_point_keeps_its_id_and_its_place_when_it_is_resumed(tmp_path: Path) -> None:
    run = make_sweep(tmp_path / "my runs").run(3)
    assert resume.place_overrides(run) == [f"runs_dir='{tmp_path}/my runs'"]
    config = make_config(cluster={"scheduler": "local"}, runs_dir=str(tmp_path / "my runs"))
    plan = prepare(config, {}, run_id=run.id).plan
    assert (plan.run_id, plan.run_dir) == ("lr-1/3", str(run.path))
    assert plan.checkpoint.dir == f"{run.path}/checkpoints"


def test_secrets_come_again_from_where_they_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "mine")
    monkeypatch.delenv("B_TOKEN", raising=False)
    run = Run.create(tmp_path / "run-1")
    words = ["workload=p2p", "cluster=local", "+cluster.environment.A_TOKEN=${oc.env:MY_TOKEN}"]
    words += ["+cluster.environment.B_TOKEN=${oc.env:B_TOKEN}", "+cluster.environment.PLAIN=x"]
    run.write_record(bare_plan(secret_variables=("A_TOKEN", "B_TOKEN")), {}, {"overrides": words})
    assert resume.secrets_again(run) == {"A_TOKEN": "mine"}


def test_a_run_is_resumed_by_its_id(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", code=1)
    assert resume.place_overrides(run) == ["run_id=a", f"runs_dir='{tmp_path}/runs'"]

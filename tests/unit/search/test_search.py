"""Searches that jobs decide: which points are chosen, which are pruned, and what a killed process leaves behind."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.config import search_space
from launcher.config.compose_points import space_of
from launcher.config.search_space import Dimension, Goal, Method
from launcher.errors import RunError, UnavailableError
from launcher.files import safe_io
from launcher.runs.sweep_directory import SearchRecord, SearchSettings, TrialRecord, TrialState
from launcher.search import progress

optuna = pytest.importorskip("optuna", minversion="4", reason="pip install 'launcher[optuna]'")

from launcher.search import search as search_module  # noqa: E402
from launcher.search.search import Search  # noqa: E402

GRID = ["workload=ddp_mnist", "workload.lr=0.1,0.01,0.001", "seed=range(3)"]
FLOATS = ["workload=ddp_mnist", "workload.lr=tag(log,interval(1e-4,1e-1))", "workload.momentum=interval(0,1)"]
_FORK = multiprocessing.get_context("fork")


def made(path: Path, method: str, overrides: list[str], **changes: Any) -> Search:
    space, fixed = space_of(overrides)
    settings = SearchSettings(Method(method), "accuracy", Goal.maximize, space, tuple(fixed), **changes)
    SearchRecord(path).create(settings, {})
    return Search(path)


def asked(search: Search, most: int = 1000) -> list[TrialRecord]:
    found: list[TrialRecord] = []
    while len(found) < most and (trial := search.ask()) is not None:
        found.append(trial)
    return found


def test_a_grid_is_all_combinations_in_order(tmp_path: Path) -> None:
    found = asked(made(tmp_path, "grid", GRID))
    assert [each.number for each in found] == list(range(9))
    assert found[1].overrides == ("workload=ddp_mnist", "workload.lr=0.1", "seed=1")
    assert len({each.overrides for each in found}) == 9


@pytest.mark.parametrize("overrides", [GRID, ["n=tag(log,int(interval(1,9)))"]])
@pytest.mark.parametrize("method", ["random", "asha", "tpe"])
def test_of_a_finite_space_every_combination_is_chosen_once(method: str, overrides: list[str], tmp_path: Path) -> None:
    search = made(tmp_path, method, overrides)
    found = []
    while (trial := search.ask()) is not None:
        found.append(trial.overrides)
        search.finish(trial.number, TrialState.COMPLETE, 0.5)
    assert len(found) == len(set(found)) == 9
    assert found != sorted(found, reverse=True)


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
@pytest.mark.parametrize("values", ["range(0,0.4,0.1)", "range(0,0.2,0.05)", "range(1,0,-0.3)", "range(0.1,1,0.1)"])
def test_every_value_of_a_range_of_decimals_is_chosen(method: str, values: str, tmp_path: Path) -> None:
    search = made(tmp_path, method, [f"p={values}", "seed=0,1"])
    assert len({each.overrides for each in asked(search)}) == 2 * (search.settings.space["p"].count() or 0)


@pytest.mark.parametrize("method", ["random", "asha"])
def test_whole_numbers_with_the_tag_log_are_spread_on_a_logarithmic_scale(method: str, tmp_path: Path) -> None:
    found = asked(made(tmp_path, method, ["n=tag(log,int(interval(1,4096)))", "seed=1,2"]), 60)
    assert 20 <= sum(int(each.overrides[0].removeprefix("n=")) <= 64 for each in found) <= 40


def test_a_value_with_the_error_of_float_arithmetic_is_not_chosen_again(tmp_path: Path) -> None:
    search = made(tmp_path, "tpe", ["p=range(0,1,0.1)"])
    trial = optuna.trial.create_trial(params={"p": 3 * 0.1}, distributions=search._distributions, value=0.5)
    with search._operation() as study:
        trial.set_user_attr(search_module.OVERRIDES, ["p=0.30000000000000004"])
        study.add_trial(trial)
    assert sorted(each.overrides[-1] for each in asked(search)) == [f"p={n / 10}" for n in range(10) if n != 3]


@pytest.mark.parametrize("method", ["random", "asha", "tpe"])
def test_the_seed_and_the_results_determine_the_points(method: str, tmp_path: Path) -> None:
    def points(name: str, seed: int) -> list[TrialRecord]:
        found = []
        for _ in range(14):
            # Another process each time, as far as the search can see
            trial = (Search(tmp_path / name) if found else made(tmp_path / name, method, FLOATS, seed=seed)).ask()
            assert trial is not None
            found.append(trial)
            Search(tmp_path / name).finish(trial.number, TrialState.COMPLETE, -trial.number)
        return found

    assert points("one", 1) == points("other", 1) != points("third", 2)


def test_values_are_within_their_dimensions(tmp_path: Path) -> None:
    search = made(tmp_path, "tpe", [*FLOATS, "width=int(interval(1,8))", "p=range(0,1,0.25)", "sync=ddp,manual"])
    for number in range(25):
        values = dict(each.split("=") for each in search.ask().overrides)  # type: ignore[union-attr]
        assert 1e-4 <= float(values["workload.lr"]) <= 1e-1
        assert 1 <= int(values["width"]) <= 8
        assert float(values["p"]) in (0, 0.25, 0.5, 0.75)
        assert values["sync"] in ("ddp", "manual")
        search.finish(number, TrialState.COMPLETE, number)


def test_a_choice_among_many_numbers_looks_at_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    of_one = search_space.index_of
    monkeypatch.setattr(search_space, "index_of", lambda *values: calls.append(values) or of_one(*values))
    monkeypatch.setattr(Dimension, "value", lambda self, index: calls.append(index) or self.text(self.low + index))
    search = made(tmp_path, "tpe", ["seed=int(interval(0,2147483647))", "layers=int(interval(2,24))"], points=15)
    assert len(asked(search)) == 15
    assert len(calls) <= 15 * 4  # its index, that of the point before, and a value of each key


def test_tpe_comes_near_the_best_of_a_smooth_function(tmp_path: Path) -> None:
    search = made(tmp_path, "tpe", ["x=interval(0,1)"], points=60)
    running: list[TrialRecord] = []
    while (trial := search.ask()) is not None:
        running.append(trial)
        if len(running) == 4:  # four at the same time
            done = running.pop(0)
            x = float(done.overrides[-1].split("=")[1])
            search.finish(done.number, TrialState.COMPLETE, -((x - 0.7) ** 2))
    best = max(each.value for each in SearchRecord(tmp_path).journal().trials if each.value is not None)
    assert best > -0.001


# -- the budget


@pytest.mark.parametrize("overrides", [GRID, FLOATS])
def test_a_budget_of_points_is_never_exceeded(overrides: list[str], tmp_path: Path) -> None:
    assert len(asked(made(tmp_path, "random", overrides, points=5))) == 5
    assert Search(tmp_path).ask() is None


def test_a_budget_of_hours_ends_the_search_when_it_is_spent(tmp_path: Path) -> None:
    search = made(tmp_path, "random", FLOATS, gpu_hours=1.0, devices=4)
    for number in range(3):
        assert search.ask() is not None
        search.finish(number, TrialState.COMPLETE, 0.5, seconds=300)
    assert search.ask() is None  # 3 x 4 GPUs x 5 minutes


def test_hours_of_points_that_run_count_as_well(tmp_path: Path) -> None:
    made(tmp_path, "random", FLOATS, gpu_hours=1.0)
    running = {0: 100.0, 1: 100.0}
    search = Search(tmp_path, lambda number: running[number])
    assert search.ask() is not None
    assert search.ask() is not None
    running = {0: 1801.0, 1: 1801.0}
    assert search.ask() is None


def test_a_larger_budget_continues_the_search(tmp_path: Path) -> None:
    search = made(tmp_path, "random", FLOATS, points=2)
    before = asked(search)
    SearchRecord(tmp_path).create(dataclasses.replace(search.settings, points=4), {})
    assert [each.number for each in before + asked(Search(tmp_path))] == [0, 1, 2, 3]


def test_a_search_that_was_stopped_chooses_nothing_more(tmp_path: Path) -> None:
    search = made(tmp_path, "random", FLOATS)
    assert search.ask() is not None
    Search(tmp_path).stop("no point reports acuracy")
    assert search.ask() is None
    assert SearchRecord(tmp_path).journal().stopped == "no point reports acuracy"


@pytest.mark.parametrize(
    ("total", "factor", "rungs", "first"),
    [(0, 3, 3, None), (270, 3, 3, 10), (20, 3, 3, 1), (1, 3, 3, 1), (256, 4, 3, 4), (100, 2, 1, 50)],
)
def test_where_the_first_rung_is(total: int, factor: int, rungs: int, first: int | None) -> None:
    assert progress.min_steps_of(total, factor, rungs) == first


def test_what_was_spent_and_saved() -> None:
    trials = [
        TrialRecord(0, state=TrialState.COMPLETE, seconds=100, steps=100),
        TrialRecord(1, state=TrialState.PRUNED, seconds=10, steps=10),
        TrialRecord(2, state=TrialState.PRUNED, seconds=30, steps=25),
        TrialRecord(3),
    ]
    assert progress.budget_spent([100, 10, 30, 5], 2) == pytest.approx(2 * 145 / 3600)
    assert progress.budget_saved(trials, 2) == pytest.approx(2 * (90 + 90) / 3600)
    assert progress.budget_saved(trials[1:], 2) is None


@pytest.mark.parametrize(("count", "most"), [(1, 1000), (2, 1000), (7, 1000), (100, 1000), (7, 6), (100, 6), (101, 6)])
def test_a_permutation_reaches_every_number_once(count: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LARGEST_SHUFFLED", most)
    assert sorted(progress.permutation(count, place, 3) for place in range(count)) == list(range(count))


# -- pruning


def run(search: Search, trial: TrialRecord, values: list[float]) -> int:
    """Reports a value after each step until the point is pruned; returns its steps."""
    for step, value in enumerate(values, 1):
        if search.report(trial.number, step, value, len(values)):
            search.finish(trial.number, TrialState.PRUNED, steps=step)
            return step
    search.finish(trial.number, TrialState.COMPLETE, values[-1], steps=len(values))
    return len(values)


@pytest.mark.parametrize(
    ("qualities", "steps"),
    [
        ([3, 2, 1], [27, 1, 1]),  # the best comes first
        ([1, 2, 3], [27, 27, 27]),  # each is the best so far
        ([5, 1, 2, 6, 3, 4], [27, 1, 1, 27, 1, 1]),
        ([9, 8, 7, 6, 8.5], [27, 1, 1, 1, 1]),  # the second best of five is not among a third
        ([9, 8, 7, 6, 5, 8.5], [27, 1, 1, 1, 1, 3]),  # of six it is, and falls behind at the next rung
        ([9, math.nan, 10], [27, 1, 27]),
    ],
)
def test_a_third_of_the_points_goes_on_at_each_rung(qualities: list[float], steps: list[int], tmp_path: Path) -> None:
    search = made(tmp_path, "asha", FLOATS)
    found = [run(search, trial, [quality] * 27) for quality in qualities if (trial := search.ask())]
    assert found == steps
    trials = SearchRecord(tmp_path).journal().trials
    assert [each.state for each in trials] == [
        TrialState.COMPLETE if each == 27 else TrialState.PRUNED for each in steps
    ]
    assert [each.steps for each in trials] == steps


def test_where_less_is_better_the_smallest_goes_on(tmp_path: Path) -> None:
    search = made(tmp_path, "asha", FLOATS)
    SearchRecord(tmp_path).create(dataclasses.replace(search.settings, goal=Goal.minimize), {})
    search = Search(tmp_path)
    assert [run(search, trial, [each] * 27) for each in (1, 2, 0.5) if (trial := search.ask())] == [27, 1, 27]


def test_points_that_report_late_are_compared_at_the_rungs_that_they_have_passed(tmp_path: Path) -> None:
    search = made(tmp_path, "asha", FLOATS)
    assert run(search, search.ask(), [2.0] * 27) == 27  # type: ignore[arg-type]
    assert search.ask() is not None
    assert search.report(1, 10, 1.0, 27)  # its first report
    trial = SearchRecord(tmp_path).journal().trials[1]
    assert (trial.rungs, trial.reports, trial.pruned_at) == ({0: 1.0}, {10: 1.0}, 10)


def test_a_decision_to_prune_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    search = made(tmp_path, "asha", FLOATS)
    run(search, search.ask(), [2.0] * 27)  # type: ignore[arg-type]
    assert search.ask() is not None
    assert search.report(1, 1, 1.0, 27)
    assert Search(tmp_path).report(1, 2, 9.0, 27)  # the point was continued by another process, before it had stopped
    assert [each.rungs for each in SearchRecord(tmp_path).journal().trials][1] == {0: 1.0}


def test_a_pruned_point_that_is_started_again_runs_to_its_end(tmp_path: Path) -> None:
    search = made(tmp_path, "asha", FLOATS)
    run(search, search.ask(), [2.0] * 27)  # type: ignore[arg-type]
    assert run(search, search.ask(), [1.0] * 27) == 1  # type: ignore[arg-type]
    assert not any(Search(tmp_path).report(1, step, 1.0, 27) for step in range(1, 28))


def test_a_point_that_is_continued_is_not_compared_at_a_rung_twice(tmp_path: Path) -> None:
    search = made(tmp_path, "asha", FLOATS)
    assert search.ask() is not None
    assert not search.report(0, 1, 5.0, 27)
    assert not Search(tmp_path).report(0, 1, 0.0, 27)
    assert SearchRecord(tmp_path).journal().trials[0].rungs == {0: 5.0}


def test_without_a_number_of_steps_nothing_is_pruned_unless_the_first_rung_is_given(tmp_path: Path) -> None:
    search = made(tmp_path / "a", "asha", FLOATS)
    given = made(tmp_path / "b", "asha", FLOATS, min_steps=4)
    for each in (search, given):
        assert each.ask() is not None
        assert each.ask() is not None
    assert not any(search.report(number, step, -number) for step in range(1, 50) for number in range(2))
    assert [next((step for step in range(1, 50) if given.report(n, step, -n)), None) for n in range(2)] == [None, 4]


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
def test_other_searches_prune_nothing_and_write_no_reports(method: str, tmp_path: Path) -> None:
    search = made(tmp_path, method, GRID)
    assert [run(search, trial, [-each] * 27) for each in range(4) if (trial := search.ask())] == [27] * 4
    assert not any(each.reports for each in SearchRecord(tmp_path).journal().trials)


# -- ends


def test_a_point_ends_once(tmp_path: Path) -> None:
    search = made(tmp_path, "random", FLOATS)
    assert search.ask() is not None
    search.finish(0, TrialState.FAIL, cause="rank 0 on node1: killed by SIGKILL")
    search.finish(0, TrialState.COMPLETE, 1.0)
    search.finish(7, TrialState.COMPLETE, 1.0)  # there is no such point
    (trial,) = SearchRecord(tmp_path).journal().trials
    assert (trial.state, trial.value, trial.cause) == (TrialState.FAIL, None, "rank 0 on node1: killed by SIGKILL")


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_point_without_an_objective_has_failed(value: float | None, tmp_path: Path) -> None:
    search = made(tmp_path, "random", FLOATS)
    assert search.ask() is not None
    search.finish(0, TrialState.COMPLETE, value)
    (trial,) = SearchRecord(tmp_path).journal().trials
    assert trial.state is TrialState.FAIL
    assert trial.cause == "accuracy is not a number"


# -- several processes, and those that are killed


def _worker(path: Path, most: int) -> None:
    search = Search(path)
    for trial in asked(search, most):
        for step in range(1, 10):
            if search.report(trial.number, step, random.random(), 9):
                search.finish(trial.number, TrialState.PRUNED)
                break
        else:
            search.finish(trial.number, TrialState.COMPLETE, random.random())


def test_processes_that_ask_at_once_choose_different_points_within_the_budget(tmp_path: Path) -> None:
    made(tmp_path, "asha", FLOATS, points=40)
    processes = [_FORK.Process(target=_worker, args=(tmp_path, 40)) for _ in range(4)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0] * 4
    trials = SearchRecord(tmp_path).journal().trials
    assert len({each.overrides for each in trials}) == len(trials) == 40
    assert all(each.state.over for each in trials)


def test_processes_that_are_killed_leave_a_journal_that_others_go_on_with(tmp_path: Path) -> None:
    assert made(tmp_path, "asha", FLOATS).ask() is not None
    chances, journal = random.Random(5), SearchRecord(tmp_path).journal_file
    for _ in range(8):
        size = journal.stat().st_size + chances.randrange(10_000)
        processes = [_FORK.Process(target=_worker, args=(tmp_path, 10_000), daemon=True) for _ in range(2)]
        for each in processes:
            each.start()
        while journal.stat().st_size < size and all(each.is_alive() for each in processes):
            time.sleep(0.001)
        for each in processes:
            os.kill(each.pid or 0, signal.SIGKILL)
            each.join()
    before = len(SearchRecord(tmp_path).journal().trials)
    trial = Search(tmp_path).ask()
    assert trial is not None
    assert trial.number == before
    as_optuna_reads_it(tmp_path)


def as_optuna_reads_it(path: Path) -> None:
    """What is read without Optuna is what Optuna reads, with its own backend."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    backend = JournalFileBackend(str(SearchRecord(path).journal_file))
    study = optuna.load_study(storage=JournalStorage(backend), study_name=search_module.NAME)
    ours = SearchRecord(path).journal()
    assert len(ours.trials) == len(study.trials)
    for mine, theirs in zip(ours.trials, study.trials, strict=True):
        assert mine.overrides == tuple(theirs.user_attrs["overrides"])
        assert mine.state.name == theirs.state.name
        assert mine.reports == theirs.intermediate_values
        assert list(mine.rungs.values()) == [
            value for key, value in theirs.system_attrs.items() if key.startswith("completed_rung_")
        ]
        if theirs.state.name != "PRUNED":
            assert mine.value == theirs.value


def test_the_journal_is_read_as_optuna_reads_it(tmp_path: Path) -> None:
    made(tmp_path, "asha", FLOATS, points=20)
    _worker(tmp_path, 30)
    as_optuna_reads_it(tmp_path)


def test_an_operation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = made(tmp_path, "random", FLOATS)
    first = search.ask()
    before = SearchRecord(tmp_path).journal_file.read_bytes()

    def full(descriptor: int, data: bytes) -> int:
        if len(written) == 1:
            raise OSError(28, "No space left on device")
        written.append(real(descriptor, data[:20]))
        return written[0]

    with monkeypatch.context() as patch:
        real, written = os.write, list[int]()
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            search.ask()
    assert SearchRecord(tmp_path).journal_file.read_bytes() == before
    second = search.ask()
    assert second is not None
    assert second.number == 1
    assert second != first


@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_has_lost_the_lock_decides_anew(late: bool, tmp_path: Path) -> None:
    search, other = made(tmp_path, "random", FLOATS), Search(tmp_path)
    assert search.ask() is not None

    def decide(study: Any) -> None:
        study.set_user_attr("decided", "from what was known before")

    with pytest.raises(UnavailableError, match="taken over its lock"), search._operation() as study:
        assert len(study.get_trials()) == 1
        if late:
            decide(study)
        SearchRecord(tmp_path).lock_file.unlink()
        assert other.ask() is not None
        if not late:
            decide(study)
    assert b"decided" not in SearchRecord(tmp_path).journal_file.read_bytes()
    assert search.trials() == other.trials() == Search(tmp_path).trials()


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    search = made(tmp_path, "random", FLOATS)
    assert search.ask() is not None
    with SearchRecord(tmp_path).journal_file.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"x","study')
    for number, each in enumerate((search, Search(tmp_path), search), 1):
        trial = each.ask()
        assert trial is not None
        assert trial.number == number
    assert len(SearchRecord(tmp_path).journal().trials) == 4
    as_optuna_reads_it(tmp_path)


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    search = made(tmp_path, "tpe", [*FLOATS, "p=range(0,1,0.25)"], points=3, gpu_hours=0.5, seed=4, min_steps=2)
    assert SearchRecord(tmp_path).settings() == search.settings
    assert SearchRecord(tmp_path).exists()


@pytest.mark.parametrize("damage", ["{}", "[]", '{"format": 2}', '{"format": 1, "method": "magic", "space": {}}'])
def test_damaged_settings_are_an_error_with_the_file(damage: str, tmp_path: Path) -> None:
    from launcher.errors import RunError

    safe_io.make_folder(tmp_path / "search")
    (tmp_path / "search" / "settings.json").write_text(damage)
    with pytest.raises(RunError, match=r"settings\.json cannot be read"):
        Search(tmp_path)


@pytest.mark.parametrize(
    "line",
    [b'{"op_code":4,"state":77}', b'{"op_code":4,"user_attrs":[]}', b'{"op_code":2,"user_attr":1}'],
)
def test_a_damaged_journal_is_an_error_with_the_file(line: bytes, tmp_path: Path) -> None:
    made(tmp_path, "random", FLOATS)
    SearchRecord(tmp_path).journal_file.write_bytes(line + b"\n")
    with pytest.raises(RunError, match=r"journal\.jsonl cannot be read"):
        SearchRecord(tmp_path).journal()


def test_a_journal_that_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    made(tmp_path, "random", FLOATS)
    os.mkfifo(SearchRecord(tmp_path).journal_file)
    with pytest.raises(RunError, match=r"journal\.jsonl cannot be read"):
        SearchRecord(tmp_path).journal()


def test_reports_without_a_number_of_steps_open_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = made(tmp_path, "asha", FLOATS)
    assert search.ask() is not None
    monkeypatch.setattr(search, "_operation", None)
    assert not any(search.report(0, step, 0.5) for step in range(10))

"""What rank 0 reports reaches trackers, later attempts go on with the same log, and no tracker harms the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.environment import programs
from launcher.errors import ConfigError, UnavailableError
from launcher.plan import build as tracking_keys
from launcher.redaction import HIDDEN, public
from launcher.runs.directory import Run
from launcher.runs.lease_and_locks import LeaseLost
from launcher.worker import tracking
from launcher.worker.tracking import About, Reporter, TrackerEntry, TrackerQueues, flat_config, numbers_in
from tests.launch import until
from tests.unit.faults import FileServer
from tests.unit.plans import SITE, bare_plan, make_config, plan_of


class Fake:
    """A tracker that keeps what it gets, fails as often as it is told to, and waits while it is told to."""

    def __init__(self, fails: int = 0, *, held: bool = False) -> None:
        self.entries: list[TrackerEntry] = []
        self.done: bool | None = None
        self._fails, self._free = fails, threading.Event()
        self.reached = threading.Event()
        if not held:
            self._free.set()

    def log(self, entries: Sequence[TrackerEntry]) -> None:
        self.reached.set()
        self._free.wait(30)
        if self._fails:
            self._fails -= 1
            raise ConnectionError("nobody\nanswers")
        self.entries += entries

    def close(self, done: bool) -> None:
        self.done = done

    def free(self) -> None:
        self._free.set()


def tracked(**fakes: Fake) -> TrackerQueues:
    return TrackerQueues({name: (lambda fake=fake: fake) for name, fake in fakes.items()})  # type: ignore[misc]


# -- what is asked for


@pytest.mark.parametrize(
    ("track", "run_id", "track_of", "experiment"),
    [
        (None, "run-1", (), "job"),
        ("mlflow", "run-1", ("mlflow",), "job"),
        (["tensorboard", "mlflow", "mlflow"], "lr-3f/7", ("tensorboard", "mlflow"), "lr-3f"),
    ],
)
def test_trackers_of_a_config(track: Any, run_id: str, track_of: tuple[str, ...], experiment: str) -> None:
    config = make_config(track=track)
    assert (tracking_keys.trackers(config.track), tracking_keys.experiment(config, run_id)) == (track_of, experiment)


def test_a_tracker_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="track=tensorbord: there is no such tracker"):
        tracking_keys.trackers("tensorbord")


def test_a_missing_package_is_told_before_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_is_installed", lambda name: name != "mlflow")
    assert programs.check(bare_plan(track=("tensorboard",))) == ()
    with pytest.raises(ConfigError, match=r"/usr/bin/python3 does not have: pip install 'launcher\[mlflow\]'"):
        programs.check(bare_plan(track=("tensorboard", "mlflow")))
    (note,) = programs.check(bare_plan(track=("mlflow",), cluster={"setup": ("module load mlflow",)}))
    assert "pip install 'launcher[mlflow]'" in note  # the set-up lines may bring it
    for key in ("modules", "setup"):
        assert len(programs.check(bare_plan(track=("mlflow",), env={key: ("x",)}))) == 1
    for key in ("activate", "archive", "container"):
        (note,) = programs.check(bare_plan(track=("mlflow",), env={key: "/other"}))
        assert note.endswith("which is not installed here; /other has to have it")


def test_what_a_config_has_of_secrets_is_not_tracked() -> None:
    environment = {"HF_TOKEN": "hush", "WANDB_API_KEY": "hush", "NCCL_DEBUG": "INFO"}
    tracking = {"uri": "https://me:hush@host:5000/x"}
    args = [["--token", "hush"], ["--hub_key=hush"], ["--lr", 1, {"token": "hush"}], ["https://me:hush@host"]]
    workload = {f"args{number}": words for number, words in enumerate(args)}
    config = {"cluster": {"environment": environment}, "tracking": tracking, "mail": "a@b", "workload": workload}
    config["credentials"] = {"user": "me", "pass": "hush"}
    told = dict(flat_config(config))
    assert "hush" not in str(told)
    assert told["cluster.environment.NCCL_DEBUG"] == "INFO"
    assert (told["tracking.uri"], told["mail"]) == ("https://(not shown)@host:5000", "a@b")
    assert [told[f"workload.args{number}"] for number in range(4)] == [
        "(not shown)", "(not shown)", "['--lr', 1, {'token': '(not shown)'}]", "['https://(not shown)@host']",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        (["--api-key", "hush"], True), (["--hub-key=hush"], True), (["-token", "hush"], True), (["token=hush"], True),
        (["--max_tokens", "256"], False), (["--max-new-tokens=256"], False), (["--num-tokens", "4"], False),
        (["--data", "/data/tokens.bin"], False), (["tokens.bin", "--out=/a/secrets"], False),
        (["+model.api_key=hush"], True), (["{hub_key: hush}"], True), (['{"token": "hush"}'], True),
        (["bash", "-c", "export A=4; export HF_TOKEN=hush; python t.py"], True), (["a=b,token=hush"], True),
    ],
)  # fmt: skip
def test_an_argument_is_a_secret_by_the_rules_for_variables(words: list[str], hidden: bool) -> None:
    assert public("args", words) == (HIDDEN if hidden else words)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("--api-key hush", True), ("--lr 1 --hub_key=hush", True), ("['--hub_key','hush']", True),
        ("[--tokenizer,gpt2,--token,hush]", True), ("{hub_key: hush}", True), ("--max_tokens 256", False),
        ("s3://data/a_key", False), ("/data/tokens.bin", False), ("what a token is", False), ("lr-token", False),
    ],
)  # fmt: skip
def test_arguments_that_are_one_text_are_as_secret_as_those_of_a_list(text: str, hidden: bool) -> None:
    assert public("args", text) == (HIDDEN if hidden else text)


# -- the thread


def test_numbers_alone_are_tracked() -> None:
    values = {"loss": 1, "name": "x", "ok": True, "none": None, "inner": {"a": 0.5}, "huge": 10**400}
    assert dict(numbers_in("train", values)) == {"train/loss": 1.0, "train/ok": 1.0, "train/inner/a": 0.5}


def test_a_config_becomes_flat() -> None:
    config = {"workload": {"lr": 0.1, "empty": None}, "nodes": 2, "list": [1, 2], "none": [], "dict": {}}
    assert dict(flat_config(config)) == {"workload.lr": "0.1", "nodes": "2", "list": "[1, 2]"}


def test_entries_reach_all_trackers_in_order() -> None:
    one, two = Fake(), Fake()
    both = tracked(one=one, two=two)
    for step in range(1000):
        both.log("train", {"loss": step}, step)
    both.log("result", {"loss": 7})
    both.finished()
    both.close()
    for fake in (one, two):
        assert [entry.step for entry in fake.entries] == [*range(1000), 999]
        assert fake.entries[-1].values == {"result/loss": 7.0} and fake.done is True


def test_a_tracker_that_fails_for_a_while_is_told_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    fake, other = Fake(fails=tracking.FAILURES - 1), Fake()
    both = tracked(mlflow=fake, other=other)
    for step in range(4):
        both.log("train", {"loss": step}, step)
        _settle(both)
    both.close()
    assert [entry.step for entry in other.entries] == [entry.step for entry in fake.entries] == [0, 1, 2, 3]
    assert capfd.readouterr().err == "launcher: mlflow failed, the run continues: ConnectionError: nobody answers\n"


def test_a_tracker_that_keeps_failing_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    fake = Fake(fails=1000)
    both = tracked(mlflow=fake)
    for step in range(10):
        both.log("train", {"loss": step}, step)
        _settle(both)
    both.close()
    assert 1000 - fake._fails == tracking.FAILURES and fake.done is None
    assert capfd.readouterr().err.splitlines()[1:] == [
        "launcher: mlflow is disabled: nothing more is tracked there",
        "launcher: 10 entries did not reach mlflow: it takes them more slowly than they come, or hangs",
    ]


def _settle(both: TrackerQueues) -> None:
    """Waits until all that was logged has been handed on, or given up."""
    give_up = time.monotonic() + 30
    for feed in both._feeds:
        while feed._thread.is_alive() and feed._queue.unfinished_tasks:
            assert time.monotonic() < give_up
            time.sleep(0.001)


def test_one_that_hangs_is_in_no_others_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "CLOSE_TIMEOUT", 0.0)
    hangs, other = Fake(held=True), Fake()
    both = tracked(mlflow=hangs, tensorboard=other)
    both.log("train", {"loss": 1}, 1)
    assert hangs.reached.wait(30)
    until(lambda: other.entries, "the other one has it")
    both.close()
    assert len(other.entries) == 1 and not hangs.entries
    hangs.free()


def test_what_a_tracker_does_not_take_in_time_is_dropped_and_counted(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "QUEUE", 3)
    monkeypatch.setattr(tracking, "CLOSE_TIMEOUT", 0.0)
    fake = Fake(held=True)
    slow = tracked(mlflow=fake)
    slow.log("train", {"loss": 0}, 0)
    assert fake.reached.wait(30)
    for step in range(1, 11):  # none of these waits for the tracker
        slow.log("train", {"loss": step}, step)
    slow.close()
    # 7 were dropped, 3 wait, and one is on its way.
    assert "launcher: 11 entries did not reach mlflow" in capfd.readouterr().err
    fake.free()


def test_a_missing_package_is_told_once_in_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    def missing() -> Fake:
        raise ModuleNotFoundError("No module named 'mlflow'")

    lost = TrackerQueues({"mlflow": missing})
    for step in range(3):
        lost.log("train", {"loss": step}, step)
    lost.close()
    told = capfd.readouterr().err.splitlines()
    assert told[:2] == [
        "launcher: mlflow failed, the run continues: ModuleNotFoundError: No module named 'mlflow'",
        "launcher: mlflow is disabled: nothing more is tracked there",
    ]
    assert told[2].startswith("launcher: 3 entries did not reach mlflow")


# -- what does not arrive


def test_one_that_writes_to_files_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node, its start alone takes longer than a server is waited for."""
    monkeypatch.setattr(tracking, "CLOSE_TIMEOUT", 0.0)
    fake = Fake()

    def slow() -> Fake:
        both._feeds[0].ends.wait(30)  # its start lasts until the end of the work
        return fake

    both = TrackerQueues({"wandb": slow}, local=["wandb"])
    both.log("train", {"loss": 1}, 1)
    both.finished()
    both.close()
    assert (len(fake.entries), fake.done) == (1, True)


def test_the_newest_values_are_tracked_at_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of frequent reports some are left out, and never the last one."""
    fake = Fake()
    both = tracked(fake=fake)
    monkeypatch.setattr("launcher.worker.tracking.tracking_of", lambda _: both)
    monkeypatch.setattr("launcher.worker.tracking.INTERVAL", 1e9)
    monkeypatch.setattr("launcher.worker.tracking.FIRST", 1)
    reporter = Reporter(run.attempts()[0], 0)
    for step in range(1, 5):
        reporter.progress(step, 100, {"loss": step})
        reporter.evaluated(step, {"accuracy": step})
    reporter.progress(5, 100)
    both.close()
    told = [(entry.step, dict(entry.values)) for entry in fake.entries]
    assert told == [
        (1, {"train/loss": 1}), (1, {"eval/accuracy": 1}), (4, {"train/loss": 4}), (4, {"eval/accuracy": 4}),
    ]  # fmt: skip


# -- in a run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "run-1")
    plan = plan_of(SITE, track=["tensorboard", "mlflow"], name="job")
    run.write_record(plan, {"workload": {"lr": 0.1}, "nodes": 2}, {"launcher": "1", "token": "t"})
    for number in range(2):
        (run.path / "attempts" / str(number) / "events").mkdir(parents=True)
    return run


def test_what_rank_0_reports_is_tracked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    both = tracked(fake=fake)
    monkeypatch.setattr("launcher.worker.tracking.tracking_of", lambda _: both)
    attempt = run.attempts()[0]
    for rank in (0, 1):
        reporter = Reporter(attempt, rank)
        reporter.progress(1, 2, {"loss": 0.5})
        reporter.evaluated(1, {"accuracy": 0.9})
        reporter.report({"loss": 0.4, "name": "x"})
    both.close()
    told = [(entry.step, dict(entry.values)) for entry in fake.entries]
    assert told == [(1, {"train/loss": 0.5}), (1, {"eval/accuracy": 0.9}), (1, {"result/loss": 0.4})]
    assert fake.done is True


def test_an_attempt_that_has_lost_the_run_does_not_write_its_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ATTEMPT", "0"), ("JOB_ID", "7"), ("LEASE", str(run.path / "lease"))):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    monkeypatch.setattr("launcher.worker.tracking.tracking_of", lambda _: None)
    reporter = Reporter(run.attempts()[0], 0)
    (run.path / "lease").write_text("7 0 node1\n")
    reporter.report({"loss": 0.4})
    (run.path / "lease").write_text("7 1 node2\n")
    with pytest.raises(LeaseLost):
        reporter.report({"loss": 0.3})
    assert run.result() == {"loss": 0.4}


def test_a_run_that_is_not_tracked_has_no_thread(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run-1")
    run.write_record(plan_of(), {}, {"launcher": "1", "token": "t"})
    (run.path / "attempts" / "0").mkdir()
    before = threading.active_count()
    Reporter(run.attempts()[0], 0).report({"loss": 0.4})
    assert threading.active_count() == before


def about(run: Run, attempt: int) -> About:
    return About(
        "run-1", run.path, "job", (run.path / "mlflow").as_uri(), run.path / "tensorboard",
        {"workload.lr": "0.1", "text": "a|b"}, {"attempt": str(attempt), "job": "7"},
    )  # fmt: skip


def two_attempts(make: Callable[[About], tracking.Tracker], run: Run) -> None:
    """Steps 1 to 5; then, after a restart from step 2, steps 3 to 6 again, with other values."""
    for attempt, steps, done in ((0, range(1, 6), False), (1, range(3, 7), True)):
        tracker = make(about(run, attempt))
        for step in steps:
            tracker.log([TrackerEntry(step, 1000.0 + 10 * attempt + step, {"train/loss": step + attempt / 10})])
        tracker.close(done)


def test_tensorboard_shows_no_step_twice(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from launcher.worker.tracking import TensorBoard

    two_attempts(TensorBoard, run)
    shown = EventAccumulator(str(run.path / "tensorboard"))
    shown.Reload()
    loss = [(event.step, round(event.value, 3)) for event in shown.Scalars("train/loss")]
    assert loss == [(1, 1.0), (2, 2.0), (3, 3.1), (4, 4.1), (5, 5.1), (6, 6.1)]
    (text, *_) = shown.Tensors("config/text_summary")
    assert b"| workload.lr | `0.1` |" in text.tensor_proto.string_val[0]
    assert (run.path / "tensorboard").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (run.path / "tensorboard").iterdir()} == {0o600}


def test_tensorboard_keeps_a_step_whose_evaluation_was_left_to_the_next_attempt(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from launcher.worker.tracking import TensorBoard

    attempts = (((2, "train/loss"), (3, "train/loss")), ((3, "eval/accuracy"), (4, "train/loss")))
    for attempt, entries in enumerate(attempts):
        tracker = TensorBoard(about(run, attempt))
        for step, name in entries:
            tracker.log([TrackerEntry(step, 1000.0 + step, {name: float(step)})])
        tracker.close(attempt == 1)
    shown = EventAccumulator(str(run.path / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("train/loss")] == [2, 3, 4]
    assert [event.step for event in shown.Scalars("eval/accuracy")] == [3]


def test_mlflow_goes_on_with_the_same_run(run: Run) -> None:
    from launcher.worker.tracking import MLflow

    two_attempts(MLflow, run)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=about(run, 0).uri)
    experiment = client.get_experiment_by_name("job")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert (kept.info.run_name, kept.info.status) == ("run-1", "FINISHED")
    assert kept.data.params == {"workload.lr": "0.1", "text": "a|b"}
    assert (kept.data.tags["launcher.attempt"], kept.data.tags["launcher.job"]) == ("1", "7")
    history = client.get_metric_history(kept.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6.1)]


def test_mlflow_makes_no_second_run_because_the_name_of_the_first_cannot_be_read_now(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.worker.tracking import MLFLOW_RUN, MLflow

    entry = TrackerEntry(1, 1000.0, {"train/loss": 1.0})
    MLflow(about(run, 0)).log([entry])
    first, later = (run.path / MLFLOW_RUN).read_text(), MLflow(about(run, 1))
    server = FileServer(monkeypatch)
    server.fail(MLFLOW_RUN)
    with pytest.raises(UnavailableError):
        later.log([entry])
    server.recover()
    later.log([entry])
    assert (run.path / MLFLOW_RUN).read_text() == first


def test_mlflow_gets_names_that_it_takes(run: Run) -> None:
    from mlflow.tracking import MlflowClient

    from launcher.worker.tracking import MLFLOW_RUN, MLflow

    names = ("acc@1", "top5 (%)", "a//b/", "größe", "a.b-c d:e", "x" * 300)
    for attempt in range(2):
        tracker = MLflow(replace(about(run, attempt), config={"kwargs.a@b": "1"}))
        tracker.log([TrackerEntry(1, 1000.0, {f"eval/{name}": 1.0 for name in names})])
    kept = MlflowClient(tracking_uri=about(run, 0).uri).get_run((run.path / MLFLOW_RUN).read_text().split()[-1])
    expected = ["acc_1", "top5 ___", "a/b", "größe", "a.b-c d:e", "x" * 245]
    assert kept.data.metrics == {f"eval/{name}": 1.0 for name in expected}
    assert kept.data.params == {"kwargs.a_b": "1"}


def test_a_run_that_mlflow_has_lost_is_made_again(run: Run) -> None:
    from launcher.worker.tracking import MLFLOW_RUN, MLflow

    (run.path / MLFLOW_RUN).write_text("http://another.server.example 1234\n")
    tracker = MLflow(about(run, 0))
    tracker.log([TrackerEntry(1, 1000.0, {"train/loss": 1.0})])
    assert (run.path / MLFLOW_RUN).read_text().startswith("file:///")

"""cluster.race: what is asked for, which jobs are submitted, which of them runs the run, and what its files say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.config.overrides import opened
from launcher.errors import ConfigError, UnavailableError
from launcher.files import retried_reads
from launcher.plan.plan import JobPlan, member_plan, race_token
from launcher.runs import lease_and_locks
from launcher.runs.directory import Run
from launcher.runs.event_files import entry
from launcher.runs.events import Ended, Started, Submitted
from launcher.runs.history import history_of
from launcher.submission.prepare import Prepared
from launcher.submission.race import others, overrides_of, prepared, submit_all
from tests.unit.plans import plan_of


class RefusedError(Exception):
    pass


def plan() -> JobPlan:
    return dataclasses.replace(plan_of(), race=({"time": 60}, {"time": 120}, {"time": 180, "mem": 7}))


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("cluster.race=[partition=a,partition=b]", "cluster.race=['partition=a','partition=b']"),
        ("cluster.race=[partition=a time=1h, profile=b]", "cluster.race=['partition=a time=1h','profile=b']"),
        ("++cluster.race=[a=1]", "++cluster.race=['a=1']"),
        ("cluster.race=['partition=a','partition=b']", "cluster.race=['partition=a','partition=b']"),
        ('cluster.race=["partition=a"]', 'cluster.race=["partition=a"]'),
        ("cluster.racer=[a=1]", "cluster.racer=[a=1]"),
    ],
)
def test_the_jobs_are_typed_without_quotes(typed: str, given: str) -> None:
    assert opened([typed]) == [given]


def test_each_job_has_overrides() -> None:
    found = overrides_of(["partition=a", "cluster.qos=low time=1h", "profile=b", "mem=4G account=me"])
    assert found == [
        ["cluster.partition=a"], ["cluster.qos=low", "time=1h"], ["cluster=b"], ["mem=4G", "cluster.account=me"],
    ]  # fmt: skip


def test_values_and_keys_of_ones_own_are_those_of_the_command_line() -> None:
    assert overrides_of(["account=2024_017", "directives.qos=high"]) == [
        ["cluster.account='2024_017'"], ["++cluster.directives.qos=high"],
    ]  # fmt: skip


def test_jobs_that_are_alike_are_counted_together_and_by_their_own_limits() -> None:
    asked: list[tuple[int, str, int]] = []

    def prepare(words: Sequence[str]) -> Prepared:
        made = plan_of(cluster={"partition": words[0].rpartition("=")[2]})
        return Prepared(made, "token", ())

    def check(number: int, made: JobPlan, jobs: int) -> None:
        asked.append((number, made.cluster.settings["partition"], jobs))

    prepared(["partition=a", "partition=b time=1h", "partition=b time=2h"], prepare, check)
    assert asked == [(1, "b", 2), (2, "b", 2)]


def test_each_job_gets_the_secrets_of_all_profiles() -> None:
    def prepare(words: Sequence[str]) -> Prepared:
        name, _, value = words[0].partition("=")
        return Prepared(plan_of(), "token", (), {name.rpartition(".")[2]: value})

    def check(*_: object) -> None: ...

    words = "environment.{}={}".format
    found = prepared([words("A_TOKEN", 1), words("B_TOKEN", 2), words("A_TOKEN", 1) + " time=2h"], prepare, check)
    assert found.secrets == {"A_TOKEN": "1", "B_TOKEN": "2"}
    with pytest.raises(ConfigError, match="A_TOKEN is a secret: it must be the same everywhere"):
        prepared([words("A_TOKEN", 1), words("A_TOKEN", 2)], prepare, check)


@pytest.mark.parametrize("race", [["partition=a"], ["partition=a", ""], ["time=1h mem=1G", "mem=1G time=1h"]])
def test_two_jobs_that_differ_are_needed(race: list[str]) -> None:
    with pytest.raises(ConfigError, match="name two different jobs or more"):
        overrides_of(race)


@pytest.mark.parametrize("word", ["nodes=2", "partitoin=a", "partition", "workload.lr=1"])
def test_other_keys_are_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster.race: '{word}' is none of profile, time, mem or a key of cluster"):
        overrides_of(["time=1h", word])


@pytest.mark.parametrize(
    ("refused", "won_after", "jobs"),
    [((), 9, ["j0", "j1", "j2"]), ((1,), 9, ["j0", "j2"]), ((0,), 9, ["j1", "j2"]), ((), 1, ["j0"]), ((0,), 0, ["j1"])],
)
def test_jobs_are_submitted_until_one_has_started(
    refused: tuple[int, ...], won_after: int, jobs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[int] = []

    def submit(each: JobPlan, token: str) -> str:
        assert (each.time, token) == ((60, 120, 180)[each.member], race_token("t", each.member))
        if each.member in refused:
            raise RefusedError(f"job {each.member}")
        sent.append(each.member)
        return f"j{each.member}"

    assert submit_all(plan(), "t", submit, lambda: len(sent) >= won_after, RefusedError) == jobs
    assert capsys.readouterr().err.count("was not accepted") == len(refused)


def test_a_race_of_which_no_job_is_accepted_is_refused() -> None:
    def submit(each: JobPlan, _: str) -> str:
        raise RefusedError(f"job {each.member}")

    with pytest.raises(RefusedError, match="job 0"):
        submit_all(plan(), "t", submit, lambda: False, RefusedError)


def test_the_others_are_found_by_their_tokens() -> None:
    assert list(others(plan(), "t")) == ["t-m1", "t-m2"]
    assert list(others(member_plan(plan(), 2), "t-m2")) == ["t", "t-m1"]


def test_the_first_job_wins_for_ever(tmp_path: Path) -> None:
    run = str(tmp_path)
    for job in ("1", "2"):
        lease_and_locks.require_not_lost(run, "r", job)
    lease_and_locks.win(run, "r", "1")
    lease_and_locks.win(run, "r", "1")  # it was requeued
    lease_and_locks.require_not_lost(run, "r", "1")
    for call in (lease_and_locks.win, lease_and_locks.require_not_lost):
        with pytest.raises(lease_and_locks.RaceLost, match="runs in job 1, which was the first to start: job 2 ends"):
            call(run, "r", "2")
    lease_and_locks.win(run, "later", "2")


def test_a_mark_that_cannot_be_read_is_no_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unread = retried_reads.Unavailable(tmp_path, OSError(5, "Input/output error"))
    monkeypatch.setattr(lease_and_locks, "read_text", lambda _: unread)
    with pytest.raises(UnavailableError):
        lease_and_locks.win(str(tmp_path), "r", "1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("started", "code", "job", "waiting"),
    [(None, None, "1", ("2", "3")), ("2", None, "2", ()), ("2", 75, "2", ()), ("9", None, "9", ())],
)
def test_the_job_of_a_run_is_the_one_that_has_started(
    started: str | None, code: int | None, job: str, waiting: tuple[str, ...]
) -> None:
    journal = [entry(Submitted(time=1.0, job="1", chain=("2", "3"), race=True))]
    events = [] if started is None else [entry(Started(time=2.0, job=started, host="n", output=0))]
    events += [] if code is None else [entry(Ended(time=3.0, code=code))]
    history = history_of(journal, None if started is None else 0, events)
    assert (history.job_id, history.waiting) == (job, waiting)


def test_a_process_of_the_winner_reads_its_own_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(dataclasses.replace(plan(), run_dir=str(run.path)), {}, {})
    monkeypatch.setenv("LAUNCHER_MEMBER", "2")
    assert run.plan().member == 0
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(run.path))
    assert (run.plan().time, run.plan().mem, run.plan().member) == (180, 7, 2)
    assert member_plan(run.plan(), 1).time == 120

"""The run directory: private, written whole or not at all, and found by whatever a user calls it."""

from __future__ import annotations

import errno
import json
import math
import os
import select
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from launcher import io_bounds
from launcher.errors import ConfigError, RunError
from launcher.files import safe_io
from launcher.paths import new_id
from launcher.plan.build import check_name
from launcher.runs import event_files, lookup
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run, current_attempt
from launcher.runs.history import journal_events
from launcher.runs.lease_and_locks import only_submitter
from launcher.runs.lookup import all_runs, find
from launcher.worker.tracking import Reporter
from tests.unit.plans import plan_of


def make(folder: Path, name: str) -> Run:
    run = Run.create(folder / name)
    run.write_record(plan_of(), {"nodes": 1}, {"launcher": "1", "token": "t"})
    return run


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_can_read_a_run(tmp_path: Path, umask: int) -> None:
    previous = os.umask(umask)
    try:
        run = make(tmp_path / "runs", "a")
        run.write_script("#!/bin/bash\n")
        run.write_environment("export A=1\n")
        run.write_result({"loss": 1})
        run.journal(kinds.Submitted(job="7"))
    finally:
        os.umask(previous)
    assert modes(tmp_path / "runs") == {
        ".": 0o700, "a": 0o700, "a/submitit": 0o700, "a/attempts": 0o700, "a/record.json": 0o600, "a/script.sh": 0o600,
        "a/environment.sh": 0o600, "a/result.json": 0o600, "a/journal.jsonl": 0o600, "a/secret": 0o600,
    }  # fmt: skip
    run.require_private()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    assert run.plan() == plan_of()
    assert (run.record()["config"], run.record()["token"]) == ({"nodes": 1}, "t")
    assert run.result() is None
    run.write_result({"loss": 0.5, "名": "größe"})
    assert run.result() == {"loss": 0.5, "名": "größe"}
    run.journal(kinds.Submitting(token="t"))
    run.journal(kinds.Submitted(job="7"))
    assert [(event["event"], event.get("job")) for event in journal_events(run)] == [
        ("submitting", None),
        ("submitted", "7"),
    ]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_results_and_configs_come_back_up_to_their_bounds(tmp_path: Path) -> None:
    most = io_bounds.JSON_LEVELS - 2
    values = {
        "integers": [sign * value for sign in (1, -1) for value in (2**63 - 1, 2**63, 2**64, 2**128, 10**300 - 1)],
        "levels": [nested(most - 2), nested(most - 1)],
        "floats": [math.inf, -math.inf, 1e308],
    }
    run = make(tmp_path, "a")
    assert run.write_result(values) == []
    assert run.result() == values
    run.write_record(plan_of(), {"config": values["integers"], "nan": math.nan}, {"token": "t"})
    assert run.record()["config"]["config"] == values["integers"]
    assert math.isnan(run.record()["config"]["nan"])


def test_a_result_leaves_out_what_could_not_be_read_again_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path, "a")
    values = {"big": 10**300, "deep": nested(io_bounds.JSON_LEVELS), "loss": 0.5, "key": {(1, 2): 3}, "other": run}
    left = run.write_result(values)
    assert run.result() == {"loss": 0.5, "other": str(run)}
    assert [line.partition(":")[0] for line in left] == ["big", "deep", "key"]
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(run.path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    reporter = Reporter(current_attempt(), 0)
    reporter.report(values)
    reporter.report({"done": 1})
    assert capsys.readouterr().err.count("the run's result lacks big: it has an integer of more than 300 digits") == 1
    assert run.result() == {"loss": 0.5, "other": str(run), "done": 1}


def test_a_result_of_any_size_is_written_without_its_largest_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_bounds, "RESULT_BYTES", 1 << 10)
    run = make(tmp_path, "a")
    (line,) = run.write_result({"curve": "x" * 600, "loss": 1, "weights": "x" * 700})
    assert line.startswith("weights: ")
    assert run.result() == {"curve": "x" * 600, "loss": 1}


def test_a_record_that_could_not_be_read_again_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, "a")
    before = run.record()
    for config, words in [
        ({"seed": 10**300}, "an integer of more than 300 digits"),
        ({"a": nested(io_bounds.JSON_LEVELS)}, "nested more than 64 levels"),
        ({"a": "x" * 20_000}, "bytes as JSON, and 20,000 are read"),
    ]:
        monkeypatch.setattr(io_bounds, "RECORD_BYTES", 20_000)
        with pytest.raises(ConfigError, match=words):
            run.write_record(plan_of(), config, {})
    with pytest.raises(ConfigError, match="procs_per_node is an integer of more than 64 bits"):
        run.write_record(replace(plan_of(), procs_per_node=io_bounds.FIELD_INTEGERS), {}, {})
    assert run.record() == before


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    run.write_result({"step": 0})
    seen, stop = [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(run.result())

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, 30):
        run.write_result({"step": step, "padding": "x" * 100_000})
    stop.set()
    reader.join()
    assert None not in seen
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, "a")
    run.write_result({"step": 0})

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        run.write_result({"step": 1})
    assert run.result() == {"step": 0}


def test_the_environment_of_a_run_is_replaced_whole_and_may_hold_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, "a")
    file = run.path / "environment.sh"
    file.touch(0o644)
    octets = b"export A='\xff gr\xc3\xb6\xc3\x9fe\n\r\n'\n"
    run.write_environment(os.fsdecode(octets))
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (octets, 0o600)

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        run.write_environment("export A=2\n")
    assert file.read_bytes() == octets


@pytest.mark.parametrize("content", ["record.json", "thesis.tex", "logs"])
def test_a_directory_that_is_there_already_is_not_taken(tmp_path: Path, content: str) -> None:
    make(tmp_path, "a")
    (tmp_path / "a" / content).touch()
    with pytest.raises(ConfigError, match="is there already: choose another run_id"):
        Run.create(tmp_path / "a")
    (tmp_path / "b").touch()
    with pytest.raises(ConfigError, match="is there already: choose another run_id"):
        Run.create(tmp_path / "b")


def test_a_directory_whose_submitter_was_killed_before_it_wrote_the_record_is_completed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    (tmp_path / "a/submitit").mkdir(mode=0o700)
    (tmp_path / "a/.record.json.123").touch()
    run = Run.create(tmp_path / "a")
    assert not run.recorded()
    assert (run.path / "attempts").is_dir()
    run.path.chmod(0o777)
    with pytest.raises(RunError, match="others can write to"):
        Run.create(tmp_path / "a")


def test_a_runs_dir_that_cannot_be_is_told_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"runs_dir=.*file: .* cannot be made .*set runs_dir to a folder"):
        Run.create(tmp_path / "file" / "a")


def test_a_run_for_whose_files_there_is_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(safe_io, "create", full)
    with pytest.raises(ConfigError, match=r"cannot be made there \(No space left on device\): make room there, or set"):
        Run.create(tmp_path / "a")
    (tmp_path / "b").mkdir(mode=0o700)  # of a submitter that was killed, or is at work
    with pytest.raises(ConfigError, match="No space left"):
        Run.create(tmp_path / "b")
    assert [each.name for each in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a run: it has no record.json"),
        ("{", "record.json cannot be read"),
        ('{"launcher": "0.9", "plan": {"nodes": 1}}', r"written by another version \(0\.9\)"),
        ('{"launcher": "9", "plan": {"colour": 1}}', r"written by another version \(9\)"),
        ("{}", "written by another version"),
    ],
)
def test_a_damaged_record_is_told(tmp_path: Path, content: str | None, words: str) -> None:
    run = Run.create(tmp_path / "a")
    if content is not None:
        (run.path / "record.json").write_text(content)
    with pytest.raises(RunError, match=words):
        run.plan()


@pytest.mark.parametrize("folder", [".", "submitit"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702, 0o720, 0o777])
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path, folder: str, mode: int) -> None:
    run = make(tmp_path, "a")
    (run.path / folder).chmod(mode)
    with pytest.raises(RunError, match=r"others can write to .*: it is not used; `chmod 700"):
        run.require_private()


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_directory_that_others_can_only_read_is_used(tmp_path: Path, mode: int) -> None:
    run = make(tmp_path, "a")
    run.path.chmod(mode)
    run.require_private()


@pytest.mark.parametrize("folder", ["a", "submitit"])
def test_somebody_elses_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    run = make(tmp_path, "a")
    before = Path.stat

    def foreign(path: Path, **options: bool) -> os.stat_result:
        status = list(before(path, **options))
        if path.name == folder:
            status[4] += 1
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", foreign)
    with pytest.raises(RunError, match=rf"{folder} belongs to user {os.getuid() + 1}, not to you: it is not used"):
        run.require_private()


def test_a_directory_that_was_never_finished_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    with pytest.raises(RunError, match="is not a whole run: it has no folder submitit"):
        Run(tmp_path / "a").require_private()


def test_a_line_that_is_half_written_or_no_event_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    event_files.append(path, kinds.CancelFailed(error="a\nb"))
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n"text"\n\n{"time": 2, "event": "second"}\n{"time": 3, "event": "thi')
    assert [event["event"] for event in event_files.read(path)] == ["cancel_failed", "second"]
    assert list(event_files.read(tmp_path / "none")) == []


def test_events_of_many_writers_at_once_are_all_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writers = [
        threading.Thread(
            target=lambda n=n: [event_files.append(path, kinds.CancelFailed(error=f"{n}" * 500)) for _ in range(50)]
        )
        for n in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(list(event_files.read(path))) == len(path.read_text().splitlines()) == 200


def test_the_events_of_an_attempt_are_merged_by_time(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    attempt = Attempt(run, 3)
    (attempt.path / "events").mkdir(parents=True)
    for writer, moment in (("script", 3.0), ("node-0", 1.0), ("rank-0", 2.0)):
        attempt.events_file(writer).write_text(json.dumps({"time": moment, "event": "e"}) + "\n")
    assert [event["writer"] for event in attempt.events()] == ["node-0", "rank-0", "script"]


def test_attempts_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    for name in ("10", "9", "0", "notes"):
        (run.path / "attempts" / name).mkdir()
    assert [attempt.number for attempt in run.attempts()] == [0, 9, 10]
    assert Run(tmp_path / "none").attempts() == []


def test_the_latest_link_follows_the_newest_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path, name).link(tmp_path)
        assert find("latest", tmp_path).id == name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "latest"]
    assert sorted(run.id for run in all_runs(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("train-1", "train-1"), ("train-12", "train-12"), ("train-2", "train-20"), ("b", "bench"), ("latest", "bench"),
        ("bench/", "bench"),
    ],
)  # fmt: skip
def test_a_run_is_found_by_what_it_is_called(tmp_path: Path, name: str, found: str) -> None:
    for each in ("train-1", "train-12", "train-20", "bench"):
        make(tmp_path, each).link(tmp_path)
    assert find(name, tmp_path) == Run(tmp_path / found)
    assert find(str(tmp_path / found), Path("/nowhere")) == Run(tmp_path / found)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train", r"'train' fits 2 runs: "),
        ("tarin-1", r"no run 'tarin-1' in .* Did you mean train-1"),
        ("zzz", r"no run 'zzz' in [^?]*$"),
        ("./notes", "notes does not exist"),
        ("/", "/ is not a run: it has no record.json"),
        ("./", "is not a run: it has no record.json"),
        ("/nowhere", "/nowhere does not exist"),
        ("zzz/", "no run 'zzz'"),
        ("notes", "no run 'notes'"),
        ("latest", "there is no latest run in"),
        ("~nobodyx/runs/a", "~nobodyx/runs/a does not exist"),
        ("~nobodyx/7", "no sweep '~nobodyx'"),
        ("x" * 5000, "no run 'xxx"),
        (f"{'x' * 5000}/7", "no sweep 'xxx"),
        (f"{'x' * 5000}/y", "does not exist"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_what_is(tmp_path: Path, name: str, words: str) -> None:
    make(tmp_path, "train-1")
    make(tmp_path, "train-2")
    (tmp_path / "notes").mkdir()
    with pytest.raises(RunError, match=words):
        find(name, tmp_path)


def test_of_very_many_runs_the_nearest_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(lookup, "names", lambda _: [f"run-{number:05d}" for number in range(30_000)])
    monkeypatch.setattr(lookup, "near", lambda _, known: compared.extend(known) or "")
    with pytest.raises(RunError, match="no run 'run-1234x'"):
        find("run-1234x", tmp_path)
    assert {"run-12340", "run-12349", "latest"} < {*compared}
    assert len(compared) == 2 * lookup.COMPARED + 1


def test_a_run_that_is_kept_elsewhere_is_found_by_its_name(tmp_path: Path) -> None:
    index = tmp_path / "new/index"
    for folder in ("one", "two"):
        make(tmp_path / folder, f"run-{folder}").link(index)
    assert find("run-one", index).path == tmp_path / "one/run-one"
    assert find("latest", index).path == tmp_path / "two/run-two"
    assert find("latest", tmp_path / "one").path == tmp_path / "one/run-one"
    assert sorted(run.id for run in all_runs(index)) == ["run-one", "run-two"]
    assert stat.S_IMODE(index.stat().st_mode) == 0o700


def test_a_link_that_cannot_be_made_is_no_reason_to_fail(tmp_path: Path) -> None:
    """The job has been submitted by then."""
    (tmp_path / "file").touch()
    make(tmp_path / "one", "a").link(tmp_path / "file" / "index")
    mine = make(tmp_path / "index", "a")
    make(tmp_path / "two", "a").link(tmp_path / "index")
    assert find("a", tmp_path / "index") == mine  # the run that is there is not replaced
    assert find("latest", tmp_path / "index").path == tmp_path / "two/a"
    assert [path.name for path in (tmp_path / "index").glob(".*")] == [".live"]


def test_one_process_at_a_time_submits_a_run(tmp_path: Path) -> None:
    run, order = make(tmp_path, "a"), []
    imports = "import sys; from pathlib import Path; from launcher.runs.lease_and_locks import only_submitter"
    code = f"{imports}\nwith only_submitter(Path(sys.argv[1])): print('in')"
    with only_submitter(run.path):
        other = subprocess.Popen([sys.executable, "-c", code, run.path], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert select.select([other.stdout], [], [], 0.3)[0] == []
        order.append("out")
    order.append(other.communicate(timeout=30)[0].strip())
    assert order == ["out", "in"]


def test_no_runs_are_no_error(tmp_path: Path) -> None:
    assert all_runs(tmp_path / "none") == []


def test_ids_sort_by_time_and_differ_within_a_second() -> None:
    ids = {new_id("a", datetime(2026, 11, 21, 7, 46, 1)) for _ in range(20)}
    assert len(ids) > 15
    assert all(text.startswith("a-20261121-074601-") for text in ids)
    assert max(ids) < new_id("a", datetime(2026, 11, 21, 7, 46, 2))


@pytest.mark.parametrize("length", [42, 43, 44, 64, 200])
def test_an_id_that_is_made_of_a_long_name_can_be_given_again(length: int) -> None:
    name = "n" * length
    assert check_name("run_id", new_id(name)).startswith(f"{name[:43]}-2")

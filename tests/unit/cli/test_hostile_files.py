"""A run directory may be anybody's: whatever its files hold, commands show what fits, and name what does not."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from launcher import io_bounds
from launcher.checkpoint import format as checkpoints
from launcher.cli import checkpoint, post_mortem, status, why
from launcher.cli.output import cause, outcome, print_unreadable
from launcher.cli.status import Rows, plain, runs_table
from launcher.cli.sweep import show_status
from launcher.diagnose.verdict import evidence_of
from launcher.errors import LauncherError, RunError
from launcher.failures.codes import FaultCode, NextReason, PreflightThen, StopReason
from launcher.files.retried_reads import Wrong, read_json
from launcher.monitoring.run_status import JobMonitor, all_statuses, status_of
from launcher.reports import collect, page
from launcher.runs import directory, event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.output_files import Stream
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from tests.unit.plans import plan_of, with_fields
from tests.unit.sweep_runs import begin, end, make_sweep

Chosen = Callable[[int], list[Callable[[Run], None]]]  # the commands for a change, by its number
MEMORY = 1 << 30  # bytes that a test may take besides what the process has


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm knows one job that runs, and has forgotten all others."""
    jobs = {"7": SchedulerJob("7", JobState.RUNNING, "RUNNING", time_left=60)}
    monkeypatch.setattr(Slurm, "jobs", lambda *_: dict(jobs))
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})
    monkeypatch.setattr("launcher.schedulers.slurm.client.history", lambda *_: [])


@pytest.fixture
def bounded() -> Iterator[None]:
    """No command takes gigabytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def sample(folder: Path, name: str = "sample", *, job: str = "8", code: int | None = 1) -> Run:
    """A run that failed in its second attempt (or whose job runs, without a code), with every file that one has."""
    run = Run.create(folder / name)
    kept = run.path / "checkpoints"
    plan = with_fields(plan_of(), run_id=name, run_dir=str(run.path), checkpoint={"dir": str(kept)}, mem=1 << 30)
    record = {"launcher": "1", "token": "t", "overrides": ["workload=collective", "nodes=1"], "host": "login1"}
    run.write_record(plan, {"nodes": 1, "name": "größe", "cluster": {"directives": {"a": [1]}}}, record)
    run.write_script("#!/bin/bash\n")
    run.journal(kinds.Submitting(token="t"))
    run.journal(kinds.Submitted(job=job, chain=["9"]))
    for number in (0, 1):
        attempt = run.path / "attempts" / str(number)
        for each in ("events", "logs"):
            (attempt / each).mkdir(parents=True)
        events = attempt / "events"
        event_files.append(events / "script.jsonl", kinds.Started(job=job, host="node1", output=0))
        node = events / "node-0.jsonl"
        event_files.append(
            node, kinds.Met(ranks=2, members=1, round=0, host="node1", torch="2", interface="lo", port=5)
        )
        wrong = kinds.Observation("slow")
        bad = (kinds.NodeFinding("node2", "node2", "device", wrong),)
        event_files.append(node, kinds.Preflighted(round=0, then=PreflightThen.WITHOUT, nodes=2, bad=bad, seconds=0.5))
        event_files.append(node, kinds.Restart(round=1, rank=0, signal="SIGKILL", step=3, world_size=2))
        event_files.append(node, kinds.Resized(round=1, members=1, world_size=2, size=2))
        event_files.append(
            events / "rank-0.jsonl", kinds.Progress(step=1, total=9, values={"loss": 0.5, "images_per_s": 3.5})
        )
        event_files.append(events / "rank-0.jsonl", kinds.Evaluated(step=1, values={"loss": 0.5}))
        event_files.append(events / "rank-0.jsonl", kinds.Progress(step=5, total=9))
        event_files.append(events / "checkpoint.jsonl", kinds.Saved(step=4, bytes=3, seconds=0.5, checkpoint="x"))
        event_files.append(events / "checkpoint.jsonl", kinds.SaveFailure(step=4, error="full"))
        if number == 0 or code is not None:
            event_files.append(
                node, kinds.Fault(error="ValueError: ü", rank=1, host="node1", code=FaultCode.RAISED,
                step=5, traceback="Traceback:\n  File x\nValueError: ü", memory={"used": 5, "limit": 7}))  # fmt: skip
            event_files.append(node, kinds.Stop(reason=StopReason.SIGNAL, step=5, host="node1"))
            event_files.append(events / "script.jsonl", kinds.Continues(what="here", reason=NextReason.RESUMABLE))
            event_files.append(events / "script.jsonl", kinds.Ended(code=75 if number == 0 else code))
        (attempt / "logs/rank-1.err").write_text("Traceback (most recent call last):\nValueError: ü\n")
        (attempt / "logs/rank-1.out").write_text("hello\n")
    (run.path / f"output-{job}.log").write_text("[0] hello\nslurmstepd: error: x\n")
    run.write_result({"loss": 1, "name": "x"})
    rows = [{"op": "all_reduce", "size": 8, "busbw": 1e9, "seconds": {"median": 0.1}}]
    matrix = {"hosts": ["a", "b"], "bandwidth": [[None, 1.0], [1.0, None]], "latency": [[None, 1.0], [1.0, None]]}
    fabric = {"format": 1, "rows": rows, "conditions": {"hosts": ["a"]}, "roof": {"memory": 1e9}, "matrix": matrix}
    (run.path / "results.json").write_text(json.dumps({**fabric, "workload": "collective", "complete": True}))
    for step in (4, 5):
        saved = kept / checkpoints.name_of(step)
        saved.mkdir(parents=True)
        (saved / "state.pt").write_bytes(b"abc")
        files = {"state.pt": checkpoints.File(3, (891568578,))}
        manifest = checkpoints.Manifest(step, "single", 1, 0, {"a": 1}, {}, {"loss": 0.5}, files, time=1.7e9)
        (saved / "manifest.json").write_text(manifest.text())
    return run


# -- what the commands do, without their clocks


def a_status(run: Run) -> None:
    view = Rows([], run.path.parent, False).look()
    assert runs_table(view.rows)
    json.dumps([plain(row) for row in view.rows])
    states = {row["run"]: row["state"] for row in view.rows}
    assert states["whole"] == "running", "a run hides another one"
    for each in view.seen:
        if each.run == run:
            status._print_details(each, heading=True)


def a_why(run: Run) -> None:
    found = why.explain(run, "launcher")
    json.dumps(why.as_json(found))
    why.shown(found, time.time())


def a_post_mortem(run: Run) -> None:
    for for_programs in (False, True):
        _, lines = post_mortem._examine(run, Namespace(name="sample", attempt=None, as_json=for_programs))
        print("\n".join(lines))
    print_unreadable(run)


def a_report(run: Run) -> None:
    seen = all_statuses([run])[0]
    print(page.render(page.run_page(collect.collect(seen, cause(seen)))))


def a_wait(run: Run) -> None:
    seen = status_of(run, JobMonitor(share=True))
    evidence_of(seen)
    for text in islice(Stream(run).new(last=True), 10):
        text.decode(errors="replace")
    outcome(seen)


def a_list(run: Run) -> None:
    for for_programs in (False, True):
        checkpoint._list(checkpoint._place(str(run.path), run.path.parent, None), for_programs)


def the_unreadable(run: Run) -> None:
    directory.problems(run)


COMMANDS: list[Callable[[Run], None]] = [
    a_status, a_why, a_post_mortem, a_report, a_wait, a_list, the_unreadable
]  # fmt: skip


def all_of_them(_: int) -> list[Callable[[Run], None]]:
    return COMMANDS


def one_of_them(number: int) -> list[Callable[[Run], None]]:
    """Another one for the next number, so that each has its turn in every file."""
    return [COMMANDS[number % len(COMMANDS)]]


def some_or_all(some: Chosen) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("chosen", [some, pytest.param(all_of_them, marks=pytest.mark.slow)])


def run_all(run: Run, what: object, commands: list[Callable[[Run], None]] = COMMANDS) -> tuple[list[str], str]:
    """All commands on a run; what they refused it for, and what they printed. Nothing but errors for the user comes of
    them."""
    refused, printed = [], io.StringIO()
    for command in commands:
        try:
            with contextlib.redirect_stdout(printed):
                command(run)
        except LauncherError as error:
            refused.append(str(error))
        except BaseException as error:
            raise AssertionError(f"{command.__name__}: {what}: {type(error).__name__}: {error}") from error
    printed.getvalue().encode(errors="backslashreplace")
    return refused, printed.getvalue()


# -- one field at a time

VALUES: list[Any] = [
    None, True, -1, 0, 2**62, 10**30, 0.5, 1e14, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "a\0b", "../..",
    "\x1b]0;x\x07", [], [[]], {}, {"x": []}, ["x"], [None], [-1, 2**62],
]  # fmt: skip
DELETED = object()


def places(value: Any, depth: int = 3) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value inside another one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (key,)
        if depth:
            yield from ((key, *more) for more in places(each, depth - 1))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at one place."""
    value = json.loads(json.dumps(value))
    inside = value
    for key in place[:-1]:
        inside = inside[key]
    if new is DELETED:
        del inside[place[-1]]
    else:
        inside[place[-1]] = new
    return value


def with_checksum(values: Any) -> Any:
    """A manifest as one who means harm would write it."""
    if isinstance(values, dict) and "crc32" in values:
        values = {key: each for key, each in values.items() if key != "crc32"}
        return {**values, "crc32": checkpoints._own_checksum(values)}
    return values


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JavaScript takes most of a page's time."""
    monkeypatch.setattr(page, "packed_plotly", lambda: "")


@pytest.fixture
def one(tmp_path: Path) -> Run:
    sample(tmp_path, "whole", job="7", code=None)
    return sample(tmp_path)


def lines_of(path: Path) -> list[str]:
    """The JSON values of a file."""
    return path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


def changes(lines: Sequence[str]) -> Iterator[tuple[int, Any, tuple[Any, ...], Any]]:
    """What may be changed: the number of a value in its file, the value, a place in it, and what will be there."""
    for number, line in enumerate(lines):
        values = json.loads(line)
        for place in places(values):
            for new in (DELETED, *VALUES):
                yield number, values, place, new


def short_changes(path: Path) -> Iterator[tuple[object, str]]:
    """Every field is deleted, and every third one is something else, which is another value each time: what was
    changed, and the text of the file then."""
    each, lines = len(VALUES) + 1, lines_of(path)
    for count, (number, values, place, new) in enumerate(changes(lines)):
        if count % each == 0 or count % (3 * each - 1) == 0:
            other = json.dumps(with_checksum(changed(values, place, new)))
            yield (path.name, number, place, new), "\n".join([*lines[:number], other, *lines[number + 1 :]]) + "\n"


def names_of_sources() -> list[str]:
    """The files of a sample run; of equal ones of two attempts and of two checkpoints the second."""
    events = [f"attempts/1/events/{name}.jsonl" for name in ("script", "node-0", "rank-0", "checkpoint")]
    rest = ["journal.jsonl", "result.json", "results.json"]
    return [*events, *rest, f"checkpoints/{checkpoints.name_of(5)}/manifest.json", "record.json"]


@some_or_all(one_of_them)
@pytest.mark.parametrize("name", names_of_sources())
def test_one_field_of_one_file_is_something_else(one: Run, name: str, bounded: None, chosen: Chosen) -> None:
    path = one.path / name
    whole = path.read_text()
    assert run_all(one, "nothing was changed")[0] == []
    for number, (what, text) in enumerate(short_changes(path)):
        path.write_text(text)
        run_all(one, what, chosen(number))
    path.write_text(whole)


def test_a_field_of_another_type_is_named(one: Run) -> None:
    journal = one.path / "journal.jsonl"
    journal.write_text(journal.read_text() + '{"time": 3170843000000000, "event": "submitted", "job": "9"}\n')
    with (one.path / "attempts/1/events/node-0.jsonl").open("a") as file:
        file.write(
            '{"time": 2, "event": "fault", "error": ["x"]}\n{"time": 2, "event": "met", "ranks": "2", "members": 2}\n'
        )
    assert directory.problems(one) == [
        f"{journal}, line 3: time is not a time",
        f"{one.path}/attempts/1/events/node-0.jsonl, line 7: error is not text",
        f"{one.path}/attempts/1/events/node-0.jsonl, line 8: ranks is not a whole number",
    ]
    assert "line 7: error is not text" in shown(one, a_post_mortem)
    assert "line 7: error is not text" in shown(one, a_report)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": "2"}, "plan.nodes is not a whole number"), ({"colour": "red"}, "plan.colour is not known here"),
        ({"cluster": {"port_range": [1]}}, "plan.cluster.port_range has 1 items instead of 2"),
        ({"mem": True}, "plan.mem is no"),
        ({"cluster": {"setup": ["a", 1]}}, r"plan.cluster.setup\[1\] is not text"),
        ({"run_dir": "/a\0"}, "plan.run_dir has a NUL byte"),
        ({"cluster": {"environment": {"A": 1}}}, "plan.cluster.environment.A is no"),
        ({"code": {"snapshot": "/a\0"}}, "plan.code.snapshot has a NUL byte"),
    ],
)  # fmt: skip
def test_a_field_of_the_plan_of_another_type_is_named(one: Run, change: dict[str, Any], words: str) -> None:
    record = json.loads((one.path / "record.json").read_text())
    for name, value in change.items():
        section = record["plan"].get(name)
        record["plan"][name] = {**section, **value} if isinstance(value, dict) else value
    (one.path / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=f"record.json was written by another version .*: {words}"):
        one.plan()


def shown(run: Run, command: Callable[[Run], None]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        command(run)
    return text.getvalue()


# -- one file at a time


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # a socket's whole path may have 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def a_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_elsewhere(path: Path) -> None:
    secret = path.parent / "secret"
    secret.write_text('{"time": 1, "event": "fault", "error": "a secret of somebody else"}\n')
    path.symlink_to(secret)


def eight_gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


def one_line(path: Path) -> None:
    path.write_bytes(b'{"time": 1, "event": "' + b"x" * (2 << 20))


def brackets(path: Path) -> None:
    path.write_bytes(b"[" * (1 << 19) + b"\n")


def deeply(path: Path) -> None:
    path.write_bytes(b'{"time": 1, "event": "started", "job": "7", "x": ' + b"[" * 900 + b"]" * 900 + b"}\n")


def many_small(path: Path) -> None:
    path.write_bytes(b"[],\n" * (1 << 13))


def a_folder(path: Path) -> None:
    path.mkdir()


FILES = [
    a_fifo, a_socket, a_link, a_link_elsewhere, eight_gigabytes, one_line, brackets, deeply, many_small, a_folder
]  # fmt: skip
PLAIN = ["output-8.log", "attempts/1/logs/rank-1.err", "attempts/1/logs/rank-1.out"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are soon reached."""
    monkeypatch.setattr(io_bounds, "EVENTS_BYTES", 1 << 20)
    monkeypatch.setattr(io_bounds, "RECORD_BYTES", 1 << 20)
    monkeypatch.setattr(io_bounds, "EVENTS_LINES", 1 << 12)
    monkeypatch.setattr(io_bounds, "EVENT_BYTES", 1 << 18)


@pytest.mark.parametrize("make", [eight_gigabytes, many_small, one_line, brackets])
def test_no_file_takes_gigabytes(tmp_path: Path, make: Callable[[Path], None], bounded: None) -> None:
    path = tmp_path / "file.jsonl"
    make(path)
    assert list(event_files.read(path)) == []
    assert event_files.read_ends(str(path)) == []
    event_files.problems(path)
    assert isinstance(read_json(path), Wrong)


@some_or_all(one_of_them)
@pytest.mark.parametrize("make", FILES)
def test_a_file_is_not_what_it_says(
    one: Run, make: Callable[[Path], None], small: None, bounded: None, chosen: Chosen
) -> None:
    for number, name in enumerate((*names_of_sources(), *PLAIN)):
        path = one.path / name
        whole = path.read_bytes()
        path.unlink()
        make(path)
        _, printed = run_all(one, name, COMMANDS if make is a_link_elsewhere else chosen(number))
        assert "a secret of somebody else" not in printed, name
        if name.endswith(".jsonl"):
            assert name in "\n".join(directory.problems(one)), name
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(whole)


def test_files_may_be_of_any_time(one: Run) -> None:
    for path in one.path.rglob("*"):
        os.utime(path, (1e14, 1e14))
    assert run_all(one, "the year 3170843")[0] == []


def test_a_point_writes_into_the_arrays_of_its_sweep_and_its_link_to_anything_else_is_not_followed(
    tmp_path: Path,
) -> None:
    sweep = make_sweep(tmp_path, 2)
    run = sweep.run(0)
    target = sweep.path / "arrays/output-100_0.log"
    target.write_text("hello\n")
    (run.path / "output-100_0.log").symlink_to(target)
    assert run.outputs() == [target]
    (run.path / "output-100_0.log").unlink()
    (run.path / "output-100_0.log").symlink_to("/etc/passwd")
    with pytest.raises(RunError, match=r"output-100_0\.log cannot be read: it is a link, and not a regular file"):
        list(Stream(run).new(last=True))


def test_a_sweep_of_which_a_field_is_something_else_is_in_nobodys_way(tmp_path: Path, bounded: None) -> None:
    sample(tmp_path, "whole", job="7", code=None)
    sweep = make_sweep(tmp_path, 2)
    end(sweep.run(0), 0, metrics={"loss": 1})
    begin(sweep.run(1))
    for path in (sweep.path / "sweep.json", sweep.path / "journal.jsonl", sweep.path / "points"):
        whole = path.read_text() if path.exists() else None
        texts = ["0.0 0-999999999999\n", "x y\n", f"{'9' * 5000} 1\n"] if whole is None else [
            text for _, text in short_changes(path)
        ]  # fmt: skip
        for text in texts:
            path.write_text(text)
            states = {row["run"]: row["state"] for row in Rows([], tmp_path, False).look().rows}
            assert states["whole"] == "running"
            for show in (lambda: show_status(Sweep(sweep.path), everything=True, as_json=False),):
                with contextlib.suppress(LauncherError), contextlib.redirect_stdout(io.StringIO()):
                    show()
        path.unlink() if whole is None else path.write_text(whole)

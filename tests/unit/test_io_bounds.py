"""At each bound: what is just below it and what reaches it comes back, and what is just above it is refused.

A size is tried as the bound is moved around it, so that both edges are exact however the bytes of a file come about.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from launcher import Env, io_bounds
from launcher.agent import workers
from launcher.checkpoint import Checkpointer, state
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import Damaged
from launcher.cli import ssh_serve
from launcher.config.compose_points import space_of
from launcher.environment.code_files import SENT, Tree, digest_of, listed, sent_tree
from launcher.errors import ConfigError, RunError
from launcher.files import safe_io
from launcher.remote import clusters
from launcher.rendezvous.signed_channel import Channel, ChannelError
from launcher.runs import event_files, history
from launcher.runs import output_files as printed
from launcher.runs.directory import Run
from launcher.runs.events import Progress
from launcher.runs.sweep_directory import RUNG, SearchRecord, Sweep, SweepManifest
from launcher.schedulers.run_command import QueryError, query
from launcher.schedulers.sge import qrsh
from launcher.schedulers.sge.client import accounted
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.topology import hosts_in, variable
from launcher.sweeps import control
from launcher.worker.shared_with_agent import read_error_file, read_last_words, read_report
from tests.unit.agent.test_leader import LAUNCH, Cluster
from tests.unit.agent.test_output import Files
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import make_sweep
from tests.unit.sweeps.test_control import Site, elements
from tests.unit.worker.test_shared_with_agent import ARGPARSE

NAMES = [name for name in vars(io_bounds) if name.isupper()]
# What is written and read is below these bounds; the others may be reached.
BELOW = {"JSON_INTEGERS", "FIELD_INTEGERS", "OUTPUT_LINE_BYTES"}
REFUSED = (
    ConfigError, RunError, ChannelError, QueryError, checkpoints.CheckpointError, Damaged, ValueError,
)  # fmt: skip
ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))


class Tried(NamedTuple):
    """Something that was written.

    Attributes:
        size: what it takes of its bound.
        read: returns whether all of it comes back, or raises one of REFUSED.
        write: writes it again, and returns whether all of it was written, or raises one of REFUSED.
        words: pattern of what `write` says where it refuses.
    """

    size: int
    read: Callable[[], bool] | None = None
    write: Callable[[], bool] | None = None
    words: str = ""


class Place(NamedTuple):
    """Where something is written: a folder, changes that last for the test, and what is closed after it."""

    folder: Path
    patch: pytest.MonkeyPatch
    stack: contextlib.ExitStack


TRIED: dict[str, list[Callable[[Place], Tried]]] = defaultdict(list)


def tries(bound: str) -> Callable[[Callable[[Place], Tried]], Callable[[Place], Tried]]:
    """Registers a function that writes something whose size counts for a bound."""

    def register(function: Callable[[Place], Tried]) -> Callable[[Place], Tried]:
        TRIED[bound].append(function)
        return function

    return register


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        yield Place(tmp_path, monkeypatch, stack)


def whole(call: Callable[[], bool], words: str) -> bool:
    try:
        return call()
    except REFUSED as error:
        assert re.search(words, str(error))
        return False


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("bound", NAMES)
def test_what_a_bound_allows_comes_back_and_more_is_refused(bound: str, more: int, place: Place) -> None:
    assert TRIED[bound], f"tell here how {bound} is reached"
    for number, function in enumerate(TRIED[bound]):
        (folder := place.folder / str(number)).mkdir()
        tried = function(place._replace(folder=folder))
        assert tried.read or tried.write
        allowed = tried.size + more * -1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(io_bounds, bound, allowed)
            fits = more < 0 if bound in BELOW else more <= 0
            assert tried.read is None or whole(tried.read, "") is fits, function.__name__
            assert tried.write is None or whole(tried.write, tried.words) is fits, function.__name__
            if fits and tried.read:
                assert tried.read(), f"{function.__name__}, written again"


def nested(levels: int) -> Any:
    """A value of so many levels, itself among them."""
    return 1 if levels == 1 else [nested(levels - 1)]


def config_of(place: Place, config: Mapping[str, Any]) -> tuple[Callable[[], bool], Callable[[], bool], Path]:
    run = Run.create(place.folder / "run")

    def write() -> bool:
        run.write_record(plan_of(), config, {})
        return True

    write()
    return lambda: run.record()["config"] == config, write, run.path / "record.json"


def result_of(place: Place, values: Mapping[str, Any]) -> tuple[Callable[[], bool], Callable[[], bool], Path]:
    run = Run.create(place.folder / "run")
    assert run.write_result(values) == []
    other = Run.create(place.folder / "other")
    return lambda: run.result() == values, lambda: other.write_result(values) == [], run.path / "result.json"


def saved(place: Place, **given: Any) -> Callable[[], bool]:
    """Returns what saves and loads a checkpoint with these facts or states in it."""
    counted = iter(range(100))

    def write() -> bool:
        folder = place.folder / f"checkpoints-{next(counted)}"
        values = {"weight": torch.ones(2), **given.get("state", {})}
        step, facts = given.get("step", 1), {key: given[key] for key in ("extra", "rank_state") if key in given}
        with contextlib.closing(Checkpointer(folder, ALONE, identity=given.get("identity", {}))) as saver:
            saver.save(step, values, wait=True, **facts)
        with contextlib.closing(Checkpointer(folder, ALONE, identity=given.get("identity", {}))) as loader:
            loaded = loader.load({**values, "weight": torch.zeros(2)})
        assert loaded is not None
        assert loaded.step == step
        found = {"extra": loaded.extra, "rank_state": loaded.rank_state}
        return all(found[key] == value for key, value in facts.items())

    assert write()
    return write


# -- records, results and sweeps


@tries("RECORD_BYTES")
def a_record(place: Place) -> Tried:
    read, write, path = config_of(place, {"a": "x" * 100})
    return Tried(path.stat().st_size, read, write, "could not be read again: .* bytes as JSON, and .* are read")


@tries("RESULT_BYTES")
def a_result(place: Place) -> Tried:
    read, write, path = result_of(place, {"a": "x" * 100, "b": 1})
    return Tried(path.stat().st_size, read, write)


@tries("REPORT_BYTES")
def a_report(place: Place) -> Tried:
    data = json.dumps(report := {"returned": {"a": "x" * 100}}).encode()
    descriptor = os.memfd_create("report")
    place.stack.callback(os.close, descriptor)
    os.write(descriptor, data)
    return Tried(len(data), lambda: read_report(descriptor)[0] == report["returned"])


@tries("REPORT_BYTES")
def a_report_of_torch(place: Place) -> Tried:
    path = place.folder / "error.json"
    path.write_text('{"message": {"message": "ValueError: oh", "extraInfo": {"py_callstack": "here"}}}')
    return Tried(path.stat().st_size, lambda: read_error_file(path) is not None)


@tries("LAST_WORDS_BYTES")
def last_words(place: Place) -> Tried:
    (path := place.folder / "err").write_text(ARGPARSE)

    def read() -> bool:
        """Without its beginning, it is no longer known as what argparse prints."""
        found = read_last_words(path, 2)
        return found is not None and found.code == "usage"

    return Tried(len(ARGPARSE), read)


def sweep_of(place: Place) -> tuple[Callable[[], bool], Callable[[], bool], Path]:
    sweep = Sweep.create(place.folder / "lr-1")
    manifest = SweepManifest("lr", (), tuple(("a=1", f"seed={number}", "z=1") for number in range(100, 120)))

    def write() -> bool:
        sweep.write(manifest)
        return True

    write()
    return lambda: sweep.manifest() == manifest, write, sweep.path / "sweep.json"


@tries("FAILURE_LOG_BYTES")
def a_list_of_failures(place: Place) -> Tried:
    for _ in range(2):
        history.add_failures(place.folder / "run", "hpc", 1, 1)
    size = (place.folder / history.FAILURES).stat().st_size
    return Tried(size, lambda: history.experience(place.folder / "run", "hpc").failures == 2)


@tries("REMOTE_RUNS_BYTES")
def runs_of_a_cluster_behind_ssh(place: Place) -> Tried:
    place.patch.setenv("XDG_DATA_HOME", str(place.folder))
    cluster = clusters.RemoteCluster("hpc", place.folder / "hpc.yaml", "login")
    for name in ("a-1", "a-2"):
        clusters.note(cluster, name)
    size = (cluster.folder / "runs.jsonl").stat().st_size
    return Tried(size, lambda: len(clusters.noted(cluster)) == 2)


@tries("CODE_LIST_BYTES")
def a_list_of_files(place: Place) -> Tried:
    place.patch.setenv("LAUNCHER_CACHE_DIR", str(place.folder / "cache"))
    (place.folder / "a").write_text("a")
    files = listed(Tree(place.folder, {"a": 1}))[0]
    digest = digest_of(files)

    def write() -> bool:
        shutil.rmtree(place.folder / "cache", ignore_errors=True)
        folder = ssh_serve.receive({"files": files, "commit": None}, digest, lambda _: lambda size: b"a"[:size])
        return sent_tree(str(folder)) is not None

    write()
    path = ssh_serve.folder_of(digest)
    assert path is not None
    return Tried((path / SENT).stat().st_size, lambda: sent_tree(str(path)) is not None, write, "send fewer")


@tries("SWEEP_BYTES")
def a_sweep(place: Place) -> Tried:
    read, write, path = sweep_of(place)
    return Tried(path.stat().st_size, read, write, "the overrides in which its points differ have .* are read")


@tries("SWEEP_POINTS")
def points(place: Place) -> Tried:
    return Tried(20, *sweep_of(place)[:2], "it has 20 points, and a sweep has at most 19")


@tries("SWEEP_OVERRIDES")
def overrides(place: Place) -> Tried:
    return Tried(60, *sweep_of(place)[:2], "its points have 60 overrides, and those of a sweep at most 59")


def search_of(place: Place) -> tuple[SearchRecord, Tried]:
    journal = pytest.importorskip("launcher.search.search", reason="pip install 'launcher[optuna]'")
    record = SearchRecord(place.folder)
    record.journal_file.parent.mkdir()

    def write() -> bool:
        record.journal_file.unlink(missing_ok=True)
        backend = journal.JournalBackend(record)
        with backend.operation():
            backend.append_logs([{"op_code": 4, "user_attrs": {"overrides": ["a=1"]}}] * 5)
        return True

    write()
    return record, Tried(
        record.journal_file.stat().st_size, lambda: len(record.journal().trials) == 5, write, "another search"
    )


@tries("SEARCH_BYTES")
def a_search(place: Place) -> Tried:
    return search_of(place)[1]


@tries("SEARCH_LINE_BYTES")
def a_line_of_a_search(place: Place) -> Tried:
    record, tried = search_of(place)
    longest = max(map(len, record.journal_file.read_bytes().splitlines()))
    return tried._replace(size=longest, words="give the keys fewer choices")


@tries("SEARCH_RUNGS")
def rungs_of_a_search(place: Place) -> Tried:
    record, _ = search_of(place)
    reached = {f"{RUNG}{number}": 1.0 for number in range(4)}
    with open(record.journal_file, "a") as file:
        file.write(json.dumps({"op_code": 9, "trial_id": 0, "system_attr": reached}) + "\n")
    return Tried(4, lambda: len(record.journal().trials[0].rungs) == 4)


@tries("SEARCH_CHOICES")
def choices(place: Place) -> Tried:
    return Tried(
        6, None, lambda: len(space_of(["a=0,1,2,3,4,5"])[0]["a"].choices) == 6, "a search takes at most 5 choices"
    )


# -- JSON


@tries("JSON_LEVELS")
def levels_of_a_config(place: Place) -> Tried:
    return Tried(
        30, *config_of(place, {"a": nested(28)})[:2], "nested more than 29 levels"
    )  # below the record and the config


@tries("JSON_LEVELS")
def levels_of_a_result(place: Place) -> Tried:
    return Tried(30, *result_of(place, {"a": nested(29)})[:2])


@tries("JSON_LEVELS")
def levels_of_facts(place: Place) -> Tried:
    return Tried(
        30, None, saved(place, extra={"a": nested(28)}), "extra .*nested more than 29 levels"
    )  # below the manifest and the facts


@tries("JSON_LEVELS")
def levels_of_the_identity(place: Place) -> Tried:
    return Tried(30, None, saved(place, identity={"a": nested(28)}), "identity .*nested more than 29 levels")


BIG = 10**30


@tries("JSON_INTEGERS")
def an_integer_of_a_config(place: Place) -> Tried:
    return Tried(BIG, *config_of(place, {"a": BIG, "b": -BIG})[:2], "an integer of more than")


@tries("JSON_INTEGERS")
def a_negative_integer_of_a_result(place: Place) -> Tried:
    return Tried(BIG, *result_of(place, {"a": -BIG})[:2])


@tries("JSON_INTEGERS")
def an_integer_of_facts(place: Place) -> Tried:
    return Tried(BIG, write=saved(place, extra={"a": BIG}))


@tries("JSON_INTEGERS")
def an_integer_of_a_state(place: Place) -> Tried:
    return Tried(BIG, write=saved(place, state={"a": -BIG}))


@tries("JSON_INTEGERS")
def an_integer_of_a_rank(place: Place) -> Tried:
    return Tried(BIG, write=saved(place, rank_state={"a": BIG}))


@tries("FIELD_INTEGERS")
def a_field_of_a_plan(place: Place) -> Tried:
    run, plan = Run.create(place.folder / "run"), replace(plan_of(), procs_per_node=BIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_bounds, "FIELD_INTEGERS", BIG + 1)
        run.write_record(plan, {}, {})

    def write() -> bool:
        run.write_record(plan, {}, {})
        return True

    return Tried(BIG, lambda: run.plan() == plan, write, "procs_per_node is an integer of more than 64 bits")


@tries("FIELD_INTEGERS")
def a_step(place: Place) -> Tried:
    return Tried(1 << 62, None, saved(place, step=1 << 62), "steps are whole numbers from 0 to")


# -- checkpoints


@tries("FACTS_BYTES")
def extra(place: Place) -> Tried:
    facts = {"a": "x" * 100}
    return Tried(
        len(safe_io.json_text({"extra": facts}, 1 << 20)), None, saved(place, extra=facts), "extra could not be"
    )


@tries("FACTS_BYTES")
def identity(place: Place) -> Tried:
    facts = {"a": "x" * 100}
    size = len(safe_io.json_text({"identity": facts}, 1 << 20))
    return Tried(size, None, saved(place, identity=facts), "identity could not be read again: it has")


@tries("FACTS_BYTES")
def metrics(place: Place) -> Tried:
    facts = {"accuracy": 0.5}
    size = len(safe_io.json_text({"metrics": facts}, 1 << 20))
    return Tried(size, None, lambda: state.facts(facts, "metrics") == facts, "metrics could not be read again: it has")


@tries("MANIFEST_BYTES")
def a_manifest(place: Place) -> Tried:
    saved(place)
    path = place.folder / "checkpoints-0" / checkpoints.name_of(1)
    manifest = checkpoints.read(path)
    return Tried(
        (path / "manifest.json").stat().st_size,
        lambda: checkpoints.read(path) == manifest,
        lambda: manifest.text() == (path / "manifest.json").read_text(),
        "manifest of 1 files could not be read again",
    )


# -- events and output


@tries("EVENT_BYTES")
def an_event(place: Place) -> Tried:
    path = place.folder / "events"
    event = Progress(time=1.0, step=1, total=2, values={"text": "x" * 100})

    def write() -> bool:
        path.unlink(missing_ok=True)
        event_files.append(path, event)
        return True

    def read() -> bool:
        found = [event_files.entry(event)]
        one_by_one, at_once = event_files.read_on(path, 0)[0], list(event_files.read(path))
        assert one_by_one == at_once
        assert (event_files.problems(path) == []) is (at_once == found)
        return at_once == found

    write()
    return Tried(path.stat().st_size - len("\n"), read, write)


def many_events(place: Place) -> tuple[Path, Callable[[], bool]]:
    path = place.folder / "events"
    lines = [json.dumps(event_files.entry(Progress(time=1.0, step=step, total=1000))) for step in range(1000)]
    path.write_text("".join(f"{line}\n" for line in lines))

    def read() -> bool:
        steps = [event["step"] for event in event_files.read(path)]
        assert (steps[0], steps[-1]) == (0, 999), "of more, a part that has both ends is read"
        return len(steps) == 1000

    return path, read


@tries("EVENTS_BYTES")
def events_of_a_size(place: Place) -> Tried:
    path, read = many_events(place)
    return Tried(path.stat().st_size, read)


@tries("EVENTS_BYTES")
def events_that_are_new(place: Place) -> Tried:
    path, _ = many_events(place)
    return Tried(path.stat().st_size, lambda: len(event_files.read_on(path, 0)[0]) == 1000)


@tries("EVENTS_LINES")
def events_of_a_number(place: Place) -> Tried:
    return Tried(1000, many_events(place)[1])


@tries("OUTPUT_LINE_BYTES")
def a_line(place: Place) -> Tried:
    place.patch.setattr(workers, "READ", 1)
    place.patch.setattr(printed, "BLOCK", 30)
    line, counted = b"x" * 100 + b"\n", iter(range(100))

    def write() -> bool:
        """Copies a line, and reads it by rank; a longer one becomes several."""
        (folder := place.folder / str(next(counted))).mkdir()
        files = Files(folder)
        files.write("11.out", line)
        files.forwarder.finish()
        for descriptor in files.copies:
            os.close(descriptor)
        pieces = printed.read(folder / "copy.out", 0, None, last=True)
        lines = [each for piece in pieces for each in printed.lines_of([11]).findall(piece)]
        assert b"".join(each.removeprefix(b"[11] ").rstrip() for each in lines) == line.rstrip()
        return lines == [b"[11] " + line]

    return Tried(len(b"[11] " + line), write=write)


# -- messages and answers


@tries("MESSAGE_BYTES")
def a_message(place: Place) -> Tried:
    ends = socket.socketpair()
    for end in ends:
        place.stack.callback(end.close)
    server, client = Channel(ends[0], b"secret", server=True), Channel(ends[1], b"secret", server=False)
    for each in (client, server, client):
        each.receive()
    message = {"text": "x" * 100}

    def write() -> bool:
        client.send(message)
        return True

    write()
    return Tried(len('{"text":""}') + 100, lambda: server.receive() == [message], write, "over the limit of")


@tries("ACCUSED")
def accused(place: Place) -> Tried:
    def write() -> bool:
        """Six ranks do not join: the fault names them, or as many as it may."""
        cluster = Cluster(3)
        cluster.members = [replace(each, ranks=2) for each in cluster.members]
        cluster.gather()
        cluster.hello(1, 2)
        cluster.tick()
        cluster.coordinator.watch(cluster.now)
        for _ in range(int(LAUNCH["rendezvous_timeout"]) + 2):
            for index in range(3):
                cluster.receive(index, "heartbeat", missing=[2 * index, 2 * index + 1])
            cluster.tick(1)
        assert cluster.coordinator.verdict is not None
        named = len(cluster.coordinator.verdict.failure.fault.accused)
        assert named == min(6, io_bounds.ACCUSED)
        return named == 6

    return Tried(6, write=write)


HOSTS = [f"node-{number * 7919 % 1000}.site" for number in range(100)]


@tries("HOSTS_BYTES")
def hosts(place: Place) -> Tried:
    def write() -> bool:
        """More are compressed."""
        assert hosts_in(variable(HOSTS)) == HOSTS
        return variable(HOSTS)["LAUNCHER_HOSTS"] == ",".join(HOSTS)

    return Tried(len(",".join(HOSTS)), write=write)


@tries("VARIABLE_BYTES")
def a_variable(place: Place) -> Tried:
    place.patch.setattr(io_bounds, "HOSTS_BYTES", 1)
    ((name, value),) = variable(HOSTS).items()
    return Tried(
        len(f"{name}={value}"), None, lambda: hosts_in(variable(HOSTS)) == HOSTS, "the names of 100 hosts take"
    )


@tries("QUERY_BYTES")
def an_answer(place: Place) -> Tried:
    return Tried(100, lambda: query("printf", "%0100d", "0", timeout=60, environment=os.environ).stdout == "0" * 100)


@tries("QRSH_LINE_BYTES")
def a_line_of_qrsh(place: Place) -> Tried:
    def write() -> bool:
        return qrsh.decode(qrsh.line_of("/request", {"A_TOKEN": "a" * 50}, [{}], "/started"))["tasks"] == [{}]

    size = len(qrsh.line_of("/request", {"A_TOKEN": "a" * 50}, [{}], "/started"))
    return Tried(size, None, write, "secret variables of the job are too large")


@tries("QACCT_ELEMENTS")
def a_question_to_qacct(place: Place) -> Tried:
    """More take a second command."""
    return Tried(4, write=lambda: len(accounted([f"6_{index}" for index in range(4)])) == 1)


@tries("CANCELLED_JOBS")
def a_cancellation(place: Place) -> Tried:
    sweep, site = make_sweep(place.folder, 5), Site(place.patch, Slurm, elements("100", 0, 5))

    def write() -> bool:
        """More take a second command."""
        control.cancel(sweep, range(4))
        assert [job for jobs in site.told for job in jobs] == [f"100_{index}" for index in range(4)]
        return len(site.told) == 1

    return Tried(4, write=write)

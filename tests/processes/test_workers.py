"""Ranks as processes: how they are started, what is known of their end, and that none is forgotten."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from launcher import processes
from launcher.agent import workers
from launcher.agent.workers import Fresh, LeftOver, StartError, WorkerExit, WorkerGroup
from launcher.rendezvous.rounds import Placement
from launcher.worker import shared_with_agent
from tests.launch import ROOT

Run = Callable[[Placement], Mapping[str, Any] | None]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[WorkerGroup]:
    made = WorkerGroup(tmp_path / "logs")
    yield made
    made.close()


def ranks(count: int, first: int = 0) -> list[Placement]:
    return [Placement(place, first + place, {"RANK": str(first + place)}) for place in range(count)]


def ends(group: WorkerGroup, run: Run, count: int = 1, **options: Any) -> list[WorkerExit]:
    """How ranks end that do this."""
    group.start(ranks(count), run, **options)
    group.open_gate()
    assert group.reap(30) == []
    return sorted(group.poll(), key=lambda each: each.place)


def raises(_: Placement) -> None:
    raise ValueError("the loss is a banana")


def children() -> set[int]:
    return processes.children()


def test_ranks_report_what_they_return(group: WorkerGroup) -> None:
    ended = ends(group, lambda me: {"rank": int(os.environ["RANK"]), "place": me.place, "path": Path("x")}, 3)
    assert [(each.place, each.rank, each.code, each.error) for each in ended] == [(n, n, 0, None) for n in range(3)]
    assert [each.returned for each in ended] == [{"rank": n, "place": n, "path": "x"} for n in range(3)]
    assert group.poll() == []  # each is told once


def test_ranks_do_not_draw_the_same_random_numbers(group: WorkerGroup) -> None:
    numpy.random.rand()  # the agent has loaded it, which importing numpy need not do
    ended = ends(group, lambda me: {"numpy": numpy.random.rand(), "python": random.random()}, 3)
    for name in ("numpy", "python"):
        assert len({each.returned[name] for each in ended if each.returned}) == 3


def test_an_exception_is_reported_from_the_users_own_frames_on(group: WorkerGroup, tmp_path: Path) -> None:
    (ended,) = ends(group, raises)
    assert ended.error is not None
    assert (ended.code, ended.returned) == (1, None)
    assert (ended.error.code, ended.error.type, ended.error.message) == ("raised", "ValueError", "the loss is a banana")
    lines = ended.error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith("in raises")
    assert lines[-1] == ended.error.line == "ValueError: the loss is a banana"


@pytest.mark.parametrize(
    ("run", "code", "returned"),
    [
        (lambda me: None, 0, {}),
        (lambda me: sys.exit(), 0, {}),
        (lambda me: sys.exit(0), 0, {}),
        (lambda me: sys.exit(75), 75, None),
        (lambda me: sys.exit(3), 3, None),
        (lambda me: os._exit(0), 0, None),  # which is not to have done its work
        (lambda me: os._exit(7), 7, None),
        (lambda me: os.kill(os.getpid(), signal.SIGKILL), -9, None),
    ],
)
def test_exits_without_an_error(group: WorkerGroup, run: Run, code: int, returned: dict[str, Any] | None) -> None:
    (ended,) = ends(group, run)
    assert (ended.code, ended.returned, ended.error) == (code, returned, None)


def aborts(_: Placement) -> None:
    sys.stderr.write(
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  ncclRemoteError: x\n"
    )
    sys.stderr.flush()
    faulthandler.disable()  # pytest's, which would print stacks among the tests' names
    os.abort()


def test_what_the_cpp_library_prints_of_a_rank_that_it_aborts_is_read(group: WorkerGroup) -> None:
    (ended,) = ends(group, aborts)
    assert ended.error is not None
    assert (ended.code, ended.error.lost_peer, ended.error.message) == (-6, True, "ncclRemoteError: x")


def test_a_rank_has_the_users_limit_of_open_files_and_its_agent_all_that_it_may(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(processes, "_users", None)
    most = len(os.listdir("/proc/self/fd")) + 24  # noqa: PTH208  fewer than the agent holds for its ranks
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

    def limit(_: Placement) -> dict[str, int]:
        with open(os.devnull):
            return {"limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}

    try:
        assert [processes.raise_limit() for _ in range(2)] == [hard, hard]
        ended = ends(group, limit, count=24)
        assert [each.returned for each in ended] == [{"limit": most}] * 24
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_server_that_fails_at_the_end_changes_no_exit_code(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fails)
        assert [ended.code for ended in ends(group, lambda me: None)] == [0]
        group.close()
    assert ends(group, lambda me: None)[0].code == 0  # it starts again


def test_words_for_sys_exit_are_reported(group: WorkerGroup) -> None:
    (ended,) = ends(group, lambda me: sys.exit("no such file: weights.pt"))
    assert ended.error is not None
    assert (ended.code, ended.error.code) == (1, "sys.exit")
    assert ended.error.line == "sys.exit('no such file: weights.pt')"


def test_what_is_registered_for_the_end_of_a_process_is_done_in_a_fork_too(group: WorkerGroup, tmp_path: Path) -> None:
    import atexit

    atexit.register(os.write, 1, b"the agent's own\n")

    def run(_: Placement) -> None:
        atexit.register(os.write, 1, b"at exit\n")
        threading.Thread(target=lambda: (time.sleep(0.01), os.write(1, b"a thread\n"))).start()

    ends(group, run)
    atexit.unregister(os.write)
    assert (tmp_path / "logs" / "rank-0.out").read_text() == "a thread\nat exit\n"


def test_300_megabytes_printed_at_once_are_copied_and_hold_up_no_other_rank(
    group: WorkerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prints(me: Placement) -> None:
        block = b"%079d\n" % me.rank * 12_500
        for _ in range(300 if me.rank == 0 else 0):
            os.write(1, block)
        os.write(1, b"the end of %d\n" % me.rank)

    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    real = workers.Forwarder
    monkeypatch.setattr(workers, "Forwarder", lambda: real(copy, copy))
    group.start(ranks(2), prints)
    group.open_gate()
    ended = 0
    while ended < 2:
        group.forward_output()
        ended += len(group.poll())
    group.close()
    os.close(copy)
    lines = (tmp_path / "copy").read_bytes().splitlines()
    assert b"[1] the end of 1" in lines
    assert lines[-2:].count(b"[0] the end of 0") == 1
    missing = [line for line in lines if b"is missing here" in line]
    assert missing or len(lines) == 300 * 12_500 + 2


def test_output_is_in_files_that_nobody_else_can_read(group: WorkerGroup, tmp_path: Path) -> None:
    def run(me: Placement) -> None:
        os.write(1, b"out %d\n" % me.rank)
        os.write(2, b"err\n")
        assert sys.stdin.read() == ""
        subprocess.run(["/bin/echo", "of a child"], check=True)

    ends(group, run, 2, round_number=3)
    logs = tmp_path / "logs"
    assert (logs / "rank-1.round-3.out").read_text() == "out 1\nof a child\n"
    assert (logs / "rank-1.round-3.err").read_text() == "err\n"
    assert {path.stat().st_mode & 0o777 for path in logs.iterdir()} == {0o600}
    assert logs.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("where", "lost"), [("/venv/torch/distributed/distributed_c10d.py", True), ("/me/client.py", False)]
)
def test_what_torchs_record_leaves_is_read_and_removed(
    group: WorkerGroup, tmp_path: Path, where: str, lost: bool
) -> None:
    text = "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1"
    trace = (
        f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n  File "{where}", line 9, in call\n'
    )
    told = {"message": f"RuntimeError: {text}", "extraInfo": {"py_callstack": trace, "timestamp": "1"}}

    def run(_: Placement) -> None:
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": told}))
        os._exit(1)

    (ended,) = ends(group, run)
    assert ended.error is not None
    assert (ended.error.type, ended.error.message, ended.error.lost_peer) == ("RuntimeError", text, lost)
    assert ended.error.traceback == trace
    group.close()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank-0.err", "rank-0.out"]


def test_a_rank_waits_at_the_gate(group: WorkerGroup) -> None:
    there, here = os.pipe()

    def run(_: Placement) -> None:
        agents = shared_with_agent.take()
        assert not {shared_with_agent.GATE, shared_with_agent.REPORT} & os.environ.keys()
        os.write(here, b"!")
        agents.wait(30)

    group.start(ranks(2), run)
    assert os.read(there, 1) + os.read(there, 1) == b"!!"
    assert group.poll() == []
    group.open_gate()
    group.open_gate()
    assert group.reap(30) == []
    assert [each.code for each in group.poll()] == [0, 0]
    os.close(there)
    os.close(here)


def test_a_rank_does_not_wait_for_ever(group: WorkerGroup) -> None:
    group.start(ranks(1), lambda me: shared_with_agent.take().wait(0.001))
    assert group.reap(30) == []
    (ended,) = group.poll()
    assert ended.error is not None
    assert ended.error.type == "GateError"


def test_ranks_keep_nothing_of_their_agent(group: WorkerGroup) -> None:
    mine, other = os.pipe()
    os.set_blocking(other, False)
    before = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(other)

    def run(_: Placement) -> dict[str, Any]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(mine)
        numbers = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
        found = {number.name: str(signal.getsignal(number)) for number in numbers}
        return {**found, "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "wakeup": signal.set_wakeup_fd(-1)}

    (ended,) = ends(group, run, close_in_child=[mine], ignore=[signal.SIGUSR1])
    signal.signal(signal.SIGTERM, before[0])
    signal.set_wakeup_fd(before[1])
    default, ignored = str(signal.SIG_DFL), str(signal.SIG_IGN)
    assert ended.returned == {"SIGTERM": default, "SIGUSR1": ignored, "SIGINT": default, "mask": 0, "wakeup": -1}
    os.close(mine)
    os.close(other)


def test_a_signal_reaches_one_rank(group: WorkerGroup) -> None:
    group.start(ranks(2), lambda me: time.sleep(60))
    group.signal(1, signal.SIGTERM)
    while not (ended := group.poll()):
        time.sleep(0.001)
    assert [(each.place, each.code) for each in ended] == [(1, -signal.SIGTERM)]
    group.signal(1, signal.SIGTERM)  # nobody is there any more
    group.kill()
    assert group.reap(30) == []
    assert [(each.place, each.code) for each in group.poll()] == [(0, -signal.SIGKILL)]


def test_a_rank_dies_with_its_agent(tmp_path: Path) -> None:
    there, here = os.pipe()
    agent = os.fork()
    if agent == 0:
        group = WorkerGroup(tmp_path)
        group.start(ranks(1), lambda me: time.sleep(60))
        os.write(here, str(group.pids()[0]).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(agent, 0)
    rank = int(os.read(there, 20))
    give_up = time.monotonic() + 30
    while processes.state(rank) not in ("", "Z"):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    os.close(there)
    os.close(here)


# -- ranks that do not end


def in_an_agent(folder: Path, supervise: Callable[[WorkerGroup], int]) -> int:
    """What a function returns in another process, which adopts what loses its parent; 1 after an error."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(Exception):
            processes.adopt()
            code = supervise(WorkerGroup(folder))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_a_rank_has_started_goes_with_it(tmp_path: Path) -> None:
    def supervise(group: WorkerGroup) -> int:
        group.start(ranks(1), lambda me: {"pid": subprocess.Popen(["setsid", "sleep", "600"]).pid} and os._exit(1))
        group.reap(30)
        group.close()
        return len(children())

    assert in_an_agent(tmp_path, supervise) == 0


def test_a_child_that_is_no_rank_is_left_to_who_waits_for_it(tmp_path: Path) -> None:
    def supervise(group: WorkerGroup) -> int:
        group.start(ranks(1), lambda me: time.sleep(600))
        group.open_gate()
        if (pid := os.fork()) == 0:
            os._exit(3)
        group.spared.add(pid)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        group.poll()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        group.close()
        return code

    assert in_an_agent(tmp_path, supervise) == 3


@pytest.mark.parametrize("command", ["true &", "setsid true &"])
def test_what_a_rank_leaves_to_its_agent_does_not_remain_a_zombie(tmp_path: Path, command: str) -> None:
    def starts(_: Placement) -> None:
        for _ in range(5):
            os.system(command)
        time.sleep(600)

    def supervise(group: WorkerGroup) -> int:
        group.start(ranks(1), starts)
        group.open_gate()
        give_up, most = time.monotonic() + 30, 0
        while time.monotonic() < give_up and not (most > 1 and children() == set(group.pids())):
            most = max(most, len(children()))
            time.sleep(0.05)
            if most > 1:
                group.poll()
        code = 0 if most > 1 and children() == set(group.pids()) else 2
        group.close()
        return code

    assert in_an_agent(tmp_path, supervise) == 0


def test_a_process_that_does_not_end_is_not_forgotten(group: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for a device: a signal does not end it, and waiting for it gives nothing."""
    group.start(ranks(2, first=6), lambda me: time.sleep(60))
    stuck, real = group.pids()[1], workers._exit_code
    monkeypatch.setattr(workers, "_exit_code", lambda pid: None if pid == stuck else real(pid))
    monkeypatch.setattr(processes, "state", lambda pid: "D")
    group.kill()
    while (left := group.reap(0.001)) != [stuck]:
        assert stuck in left
    assert [(each.place, each.code) for each in group.poll()] == [(0, -9)]
    group.close(timeout=0.0)
    assert group.still_there() == [LeftOver(7, stuck, "D")]
    assert f"rank 7 (process {stuck}, state D: it waits for a device" in str(group.still_there()[0])
    monkeypatch.undo()
    while group.still_there():
        time.sleep(0.001)
    assert [each.code for each in ends(group, lambda me: None, 2)] == [0, 0]


# -- when the kernel has nothing to give


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_fork_is_tried_again(group: WorkerGroup, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real, left = processes.fork, [2]

    def fork() -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number))
        return real()

    monkeypatch.setattr(processes, "fork", fork)
    assert [each.code for each in ends(group, lambda me: None, 2)] == [0, 0]


def test_where_no_process_is_left_those_that_were_started_are_killed(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, forked, before = processes.fork, [0], children()

    def fork() -> int:
        forked[0] += 1
        if forked[0] > 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real()

    monkeypatch.setattr(processes, "fork", fork)
    monkeypatch.setattr(processes, "NOT_NOW_SECONDS", 0.03)
    with pytest.raises(StartError) as failed:
        group.start(ranks(4, first=4), lambda me: time.sleep(60))
    assert (failed.value.rank, failed.value.number) == (6, errno.EAGAIN)
    assert children() == before
    monkeypatch.undo()
    assert [each.code for each in ends(group, lambda me: None)] == [0]


@pytest.mark.parametrize("free", [0, 1, 3, 12])
def test_where_no_descriptor_is_left_nothing_leaks(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    other = subprocess.Popen(["sleep", "600"])  # of the agent's, but no rank
    monkeypatch.setattr(processes, "NOT_NOW_SECONDS", 0.03)
    descriptors, before = len(os.listdir("/proc/self/fd")), children()  # noqa: PTH208
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
        while (lowest := os.dup(0)) <= highest:
            held.callback(os.close, lowest)  # no gap is left below
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, hard))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with pytest.raises(StartError) as failed:
            group.start(ranks(300), lambda me: time.sleep(60))
    assert other.poll() is None
    assert failed.value.number == errno.EMFILE
    assert (len(os.listdir("/proc/self/fd")), children()) == (descriptors, before)  # noqa: PTH208
    other.kill()
    other.wait()


def test_a_round_leaves_no_descriptor(group: WorkerGroup) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for number in range(2):
        ends(group, lambda me: None, 3, round_number=number)
        group.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


# -- a fork that is not safe


def test_beside_a_thread_ranks_get_an_interpreter_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LONE", 0.0)

    def fresh(me: Placement) -> Fresh:
        return Fresh(["bash", "-c", f"echo rank $RANK; read line <&$LAUNCHER_GATE; exit {me.place + 3}"], ())

    def never(_: Placement) -> None:
        raise AssertionError("forked")

    group, over = WorkerGroup(tmp_path, fresh=fresh), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        for number in range(2):
            assert [each.code for each in ends(group, never, 2, round_number=number)] == [3, 4]
            group.close()
    finally:
        over.set()
        thread.join()
    assert (tmp_path / "rank-1.out").read_text() == "rank 1\n"
    assert capfd.readouterr().err.count("each rank is started in an interpreter of its own") == 1


ALONE = """
import os, sys
from launcher import processes
print(repr(processes.unsafe_to_fork()))
import numpy  # whose OpenBLAS has threads from now on, and ends them before a fork
print(repr(processes.unsafe_to_fork()))
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(repr(processes.unsafe_to_fork()))
print(sorted({"torch", "omegaconf", "submitit"} & set(sys.modules)))
"""


def test_what_speaks_against_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["''", "''", "'has 2 threads'", "[]"], done.stderr


def mask_of_a_rank(group: WorkerGroup, cpus: tuple[int, ...]) -> object:
    group.start([Placement(0, 0, {}, cpus)], lambda _: {"mask": sorted(os.sched_getaffinity(0))})
    group.open_gate()
    assert group.reap(30) == []
    (ended,) = group.poll()
    assert ended.returned is not None
    return ended.returned["mask"]


def test_a_rank_stays_on_its_own_cpus_and_its_agent_does_not(group: WorkerGroup) -> None:
    before = os.sched_getaffinity(0)
    assert mask_of_a_rank(group, (max(before),)) == [max(before)]
    assert os.sched_getaffinity(0) == before


def test_a_rank_whose_cpus_are_gone_says_so_and_runs_on_what_is_left(group: WorkerGroup, tmp_path: Path) -> None:
    assert mask_of_a_rank(group, (4095,)) == sorted(os.sched_getaffinity(0))
    assert "rank 0 cannot be bound to the CPUs 4095, and runs unbound" in (tmp_path / "logs/rank-0.err").read_text()

"""A stop that one rank alone hears of ends all ranks at the same step, whatever it interrupted."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from launcher.worker import heartbeat, stop
from launcher.worker.heartbeat import Pulse, Sign
from launcher.worker.stop import Settings, StopFlag, StopVerdict
from launcher.worker.stop_agreement import Cause, Proposal, RankState, Want
from tests.unit.clock import Clock
from tests.unit.plans import run_settings
from tests.unit.workloads.test_training import env_of

pytestmark = pytest.mark.usefixtures("handlers")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([signal.SIGTERM], "asked to stop (rank 0 on here)"),
        ([signal.SIGINT], "asked to stop (rank 0 on here)"),
        ([signal.SIGUSR2], "the scheduler's warning signal (rank 0 on here)"),
        ([signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1], "asked to stop (rank 0 on here)"),
        ([signal.SIGTERM] * 3, "asked to stop (rank 0 on here)"),
    ],
)
def test_signals_set_a_flag_and_nothing_else(numbers: list[int], words: str) -> None:
    flag = StopFlag(env_of(), Settings())
    assert flag.boundary(1) == StopVerdict()
    for number in numbers:
        os.kill(os.getpid(), number)
    assert flag.boundary(2) == StopVerdict(words)
    assert flag.boundary(3) == StopVerdict(words)


def test_after_a_training_outside_of_a_run_signals_do_what_they_did_before(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    first = StopFlag(env_of(), Settings())
    first.close()
    second = StopFlag(env_of(), Settings())
    second.take_signals()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows has a handler of its own
    second.close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [before[0], signal.SIG_IGN]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    one, two = StopFlag(env_of(), Settings()), StopFlag(env_of(), Settings())  # both open at a time
    one.close()
    two.close()
    assert signal.getsignal(signal.SIGINT) == before[0]
    one, two = StopFlag(env_of(), Settings()), StopFlag(env_of(), Settings())
    two.close()
    assert signal.getsignal(signal.SIGINT) == one._on_signal
    one.close()
    assert signal.getsignal(signal.SIGINT) == before[0]
    of_a_run = StopFlag(env_of(), Settings(run_dir=tmp_path))  # in a child process of a rank, which has no agent's slot
    of_a_run.close()
    os.kill(os.getpid(), signal.SIGINT)  # launch.grace seconds are left for what follows


def test_the_deadline_leaves_time_for_the_saves_that_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, stop)
    flag = StopFlag(env_of(), run_settings(deadline=clock.now + 100, lead=10))
    clock.now += 85
    assert flag.boundary(1) == StopVerdict()
    flag.save_took(20)
    flag.save_took(1)
    assert flag.boundary(2) == StopVerdict("its time is nearly up")  # 2 x 20 s + 5 s
    clock.now -= 30.5
    assert flag.boundary(3) == StopVerdict()


def test_saves_that_are_too_long_for_the_attempt_are_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch, stop)
    flag = StopFlag(env_of(), run_settings(deadline=clock.now + 60, lead=10))
    flag.save_took(40)
    flag.save_took(41)
    assert capsys.readouterr().out.splitlines() == [
        "launcher: a save takes 40 s, too long for an attempt of 60 s: the last one may be cut off; raise `time`"
    ]
    clock.now += 25
    assert flag.boundary(1) == StopVerdict()  # half of the attempt is for work
    clock.now += 10
    assert flag.boundary(2).stop == "its time is nearly up"


def test_a_clock_that_is_set_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, stop)
    flag = StopFlag(env_of(), run_settings(deadline=clock.now + 100, lead=10))
    monkeypatch.setattr(stop.time, "time", lambda: 5e9)
    assert flag.boundary(1) == StopVerdict()


def test_files_ask_to_stop_and_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "FILES_INTERVAL", 0.0)
    flag = StopFlag(env_of(), Settings(run_dir=tmp_path))
    assert flag.boundary(1, save_due=True) == StopVerdict(save=True)
    (tmp_path / "save").touch()
    assert flag.boundary(2) == StopVerdict(save=True)
    assert not (tmp_path / "save").exists()
    assert flag.boundary(3) == StopVerdict()
    (tmp_path / "stop").touch()
    assert flag.boundary(4) == StopVerdict("asked to stop by its file `stop`")
    assert (tmp_path / "stop").exists()  # the job script must know as well


def test_the_agent_hears_that_the_rank_listens_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Pulse(2)
    monkeypatch.setattr(heartbeat, "_mine", shared.slot(1))
    flag = StopFlag(env_of(), Settings())
    flag.boundary(7)
    idle, mine = shared.signs()
    assert (idle.listens, idle.step, idle.beats) == (False, -1, 0)
    assert (mine.listens, mine.step, mine.beats) == (True, 7, 1)
    shared.clear()
    assert shared.signs()[1].listens is False


def with_agent(monkeypatch: pytest.MonkeyPatch, world_size: int = 2) -> Pulse:
    """This process is one of so many ranks, all of one agent."""
    shared = Pulse(1)
    shared.clear(world_size)
    monkeypatch.setattr(heartbeat, "_mine", shared.slot(0))
    return shared


def test_with_an_agent_no_group_is_made_and_the_agent_sees_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = with_agent(monkeypatch)
    flag = StopFlag(env_of(2, (0, 0), 2), Settings())  # a group could not be made here
    assert flag.boundary(1, save_due=True) == StopVerdict()
    os.kill(os.getpid(), signal.SIGTERM)  # seen in the middle of a step
    assert shared.stops()[0] == RankState(1, cause=Cause.TERM, save=True)
    shared.agent.show(Proposal(1, 2, Want(Cause.TERM, 1, save=True)), 1)
    assert flag.boundary(2) == StopVerdict("asked to stop (rank 1 on here)", save=True)
    assert replace(shared.stops()[0], step_time=0.0) == RankState(2, acted=1)
    os.kill(os.getpid(), signal.SIGTERM)  # while it saves
    assert shared.stops()[0].cause is Cause.NONE


def test_boundaries_are_counted_on_by_the_next_training_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = with_agent(monkeypatch)
    first = StopFlag(env_of(2, (0, 0), 2), Settings())
    first.boundary(1)
    first.close()
    assert shared.stops()[0] == RankState(1, closed=True)
    second = StopFlag(env_of(2, (0, 0), 2), Settings())
    second.boundary(1)
    assert shared.stops()[0] == RankState(2)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_agent_hears_that_a_training_is_over_until_the_next_step(
    monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    shared = with_agent(monkeypatch, world_size)
    flag = StopFlag(env_of(world_size, (0,) * world_size, world_size), Settings())
    flag.boundary(7)
    flag.close()
    heartbeat._mine.progress(1)  # type: ignore[union-attr]  # of what follows
    assert shared.signs() == [Sign(True, 7, 1, closed=True)]
    flag.boundary(8)
    assert shared.signs() == [Sign(True, 8, 2)]
    flag.leave()
    assert shared.signs() == [Sign(True, 8, 2)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_forked_process_of_a_rank_wants_nothing_and_can_be_terminated(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """`multiprocessing.Pool` ends its processes with SIGTERM, and waits for them."""
    shared = with_agent(monkeypatch)
    StopFlag(env_of(2, (0, 0), 2), Settings())
    if (pid := os.fork()) == 0:
        signal.raise_signal(number)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == (-signal.SIGTERM if number is signal.SIGTERM else 0)
    assert shared.stops()[0] == RankState()


def test_a_group_of_some_ranks_agrees_without_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = []
    monkeypatch.setattr(dist, "new_group", lambda backend, timeout: groups.append(backend))
    with_agent(monkeypatch, world_size=4)
    StopFlag(env_of(2, (0, 0), 2), Settings())
    assert groups == ["gloo"]


def test_a_deadline_is_told_a_step_ahead_where_agents_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, stop)
    shared = with_agent(monkeypatch)
    flag = StopFlag(env_of(2, (0, 0), 2), run_settings(deadline=clock.now + 100, lead=10))
    flag._step_time = 20.0
    clock.now += 69
    flag.boundary(1)
    assert shared.stops()[0].cause is Cause.NONE
    clock.now += 2
    flag._last = clock.now - 20
    flag.boundary(2)
    assert shared.stops()[0].cause is Cause.DEADLINE


def test_of_several_causes_one_is_told_by_all() -> None:
    flag = StopFlag(env_of(), Settings(deadline=0.0))
    os.kill(os.getpid(), signal.SIGTERM)
    assert flag.boundary(1) == StopVerdict("asked to stop (rank 0 on here)")

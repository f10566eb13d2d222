"""The lock that is a link: one process at a time, whatever kills the one that holds it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.errors import UnavailableError
from launcher.files import locks
from launcher.files.locks import Holder, dead
from tests.unit.clock import Clock
from tests.unit.faults import FileServer

ME = Holder("t", "boot-1", 7, 100)
_FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize(
    ("holder", "machine", "alive", "unchanged", "is_dead"),
    [
        (ME, "boot-1", True, 1e9, False),  # it is suspended, perhaps
        (ME, "boot-1", False, 0.0, True),
        (ME, "boot-2", False, 59.0, False),
        (ME, "boot-2", True, 59.0, False),  # a process of this machine has the same number
        (ME, "boot-2", False, 60.0, True),
        (None, "boot-1", False, 59.0, False),  # damaged
        (None, "boot-1", False, 60.0, True),
    ],
)
def test_when_a_lock_is_taken_over(
    holder: Holder | None, machine: str, alive: bool, unchanged: float, is_dead: bool
) -> None:
    assert dead(holder, machine, alive, unchanged) is is_dead


@pytest.mark.parametrize("text", ["", "a b c", "a b c d", "a b 1 2 3"])
def test_a_damaged_file_names_nobody(text: str) -> None:
    assert Holder.parse(text) is None


def test_a_holder_is_read_as_it_was_written() -> None:
    assert Holder.parse(str(Holder.here())) is not None
    assert Holder.parse(str(ME)) == ME


def test_the_lock_is_gone_afterwards_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError), locks.hold(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
        raise ValueError
    assert not list(tmp_path.iterdir())


def _hold_for_ever(path: Path, ready: multiprocessing.synchronize.Event) -> None:
    with locks.hold(path):
        ready.set()
        signal.pause()


def test_the_lock_of_a_killed_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    ready = _FORK.Event()
    process = _FORK.Process(target=_hold_for_ever, args=(tmp_path / "lock", ready))
    process.start()
    assert ready.wait(60)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with locks.hold(tmp_path / "lock"):
        pass
    assert not list(tmp_path.iterdir())


def test_another_machines_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "lock", Clock(monkeypatch, locks)
    path.write_text(str(Holder("t", "elsewhere", os.getpid(), 1)))
    with locks.hold(path, timeout=60):
        assert sum(clock.slept) >= 60
        assert path.read_text() != str(Holder("t", "elsewhere", os.getpid(), 1))


def test_a_lock_that_was_taken_over_is_not_released_by_its_former_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.hold(path):
        path.write_text(str(ME))
    assert path.read_text() == str(ME)


def test_a_living_holders_lock_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the lock after the dead holder's file had been looked at for the last time."""
    path = tmp_path / "lock"
    path.write_text(str(ME))
    looks = iter(["dead"])
    real = locks._holder
    monkeypatch.setattr(locks, "_holder", lambda each: next(looks, None) or real(each))
    locks._take_away(path, "dead")
    assert path.read_text() == str(ME)
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def _count(path: Path, times: int) -> None:
    for _ in range(times):
        with locks.hold(path / "lock"):
            number = int((path / "number").read_text())
            (path / "number").write_text(str(number + 1))


def test_of_several_processes_one_holds_the_lock(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    processes = [_FORK.Process(target=_count, args=(tmp_path, 50)) for _ in range(4)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert (tmp_path / "number").read_text() == "200"


def test_a_lock_that_could_not_be_released_does_not_stop_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FileServer(monkeypatch)
    with pytest.raises(UnavailableError), locks.hold(tmp_path / "lock"):
        server.fail("lock")
    server.recover()
    assert (tmp_path / "lock").exists()
    with locks.hold(tmp_path / "lock"):
        pass
    assert not list(tmp_path.iterdir())


def test_another_thread_of_the_process_waits_for_the_lock(tmp_path: Path) -> None:
    waited = threading.Event()

    def take() -> None:
        with locks.hold(tmp_path / "lock", waiting=waited.set):
            pass

    with ThreadPoolExecutor(1) as pool:
        with locks.hold(tmp_path / "lock"):
            other = pool.submit(take)
            assert waited.wait(60)
            assert not other.done()
        other.result(60)

"""The lock that is a link: one process at a time, whatever kills the one that holds it."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UnavailableError
from launcher.files import safe_io
from launcher.processes import Process
from launcher.runs import lease_and_locks as leases
from launcher.runs.lease_and_locks import Holder, HolderWatch, Lease, WithoutLinks, hold, is_dead, look, remove
from tests.unit.clock import Clock
from tests.unit.faults import FileServer

ME = Holder.here()
_FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize(
    ("ours", "alive", "unchanged", "dead"),
    [
        (True, None, 0.0, True),
        (True, True, 0.0, True),
        (False, False, 0.0, True),
        (False, True, 1e9, False),  # it is suspended, perhaps
        (False, None, 59.0, False),
        (False, None, 60.0, True),
    ],
)
def test_when_a_holder_is_dead(ours: bool, alive: bool | None, unchanged: float, dead: bool) -> None:
    assert is_dead(ours=ours, alive=alive, unchanged=unchanged, timeout=60) is dead


ENDED = Holder("t", ME.machine, ME.pid, ME.started + 1)  # an earlier process with the same id
ELSEWHERE = Holder("t", "boot-2", ME.pid, ME.started)


@pytest.mark.parametrize(
    ("other", "unchanged", "dead"),
    [
        (ME, 0.0, True),  # a lease that it failed to release: nothing of it holds this token
        (ENDED, 0.0, True),
        (Holder("t", ME.machine, os.getppid(), Process.of(os.getppid()).start), 1e9, False),
        (ELSEWHERE, 59.0, False),
        (ELSEWHERE, 60.0, True),
        (None, 59.0, False),  # damaged
        (None, 60.0, True),
    ],
)
def test_what_the_file_of_a_lease_says_of_its_holder(other: Holder | None, unchanged: float, dead: bool) -> None:
    assert ME.is_dead(other, unchanged, 60) is dead


def test_a_change_is_noticed_when_it_is_seen() -> None:
    watch = HolderWatch()
    expected = [
        ("a", 1, 0.0, 0.0, 0), ("a", 1, 9.0, 9.0, 0), ("a", 2, 15.0, 0.0, 1), ("a", 2, 24.0, 9.0, 1),
        ("a", 3, 25.0, 0.0, 2), ("b", 3, 26.0, 0.0, 0), ("b", 3, 30.0, 4.0, 0),
    ]  # fmt: skip
    for holder, sign, now, unchanged, beats in expected:
        watch.look(holder, sign, now)
        assert (watch.unchanged, watch.beats) == (unchanged, beats)
    watch.forget()
    assert watch.unchanged == 0
    watch.look("b", 3, 90.0)
    assert watch.unchanged == 0


@given(st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.floats(0, 100))))
def test_a_holder_is_unchanged_for_no_longer_than_it_was_seen_so(looks: list[tuple[int | None, float]]) -> None:
    """None: it could not be looked at."""
    watch, now, same, before = HolderWatch(), 0.0, 0.0, None
    for sign, seconds in looks:
        now += seconds
        if sign is None:
            watch.forget()
        else:
            watch.look("a", sign, now)
        same = same + seconds if sign is not None and sign == before else 0.0
        before = sign
        assert watch.unchanged == pytest.approx(same)


@pytest.mark.parametrize("text", ["", "a b c", "a b c d", "a b 1 2 3"])
def test_a_damaged_file_names_nobody(text: str) -> None:
    assert Holder.parse(text) is None


def test_a_holder_is_read_as_it_was_written() -> None:
    assert Holder.parse(str(Holder.here())) is not None
    assert Holder.parse(str(ME)) == ME


def test_the_lock_is_gone_afterwards_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError), hold(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
        raise ValueError
    assert not list(tmp_path.iterdir())


def _hold_for_ever(path: Path, ready: multiprocessing.synchronize.Event) -> None:
    with hold(path):
        ready.set()
        signal.pause()


def test_the_lock_of_a_killed_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    ready = _FORK.Event()
    process = _FORK.Process(target=_hold_for_ever, args=(tmp_path / "lock", ready))
    process.start()
    assert ready.wait(60)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with hold(tmp_path / "lock"):
        pass
    assert not list(tmp_path.iterdir())


def test_another_machines_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "lock", Clock(monkeypatch, leases)
    path.write_text(str(Holder("t", "elsewhere", os.getpid(), 1)))
    with hold(path, timeout=60):
        assert sum(clock.slept) >= 60
        assert path.read_text() != str(Holder("t", "elsewhere", os.getpid(), 1))


def test_a_lock_that_was_taken_over_is_not_released_by_its_former_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path):
        path.write_text(str(ME))
    assert path.read_text() == str(ME)


CALLS = ("open", "stat", "rename", "link", "unlink", "mkdir", "rmdir")


class Party:
    """A process that takes the lease in a folder, as a file of its own says."""

    def __init__(self, folder: Path, name: str) -> None:
        self.lease = Lease(folder / "lease", folder / f".{name}")
        self.lease.write(name)

    @property
    def holds(self) -> bool:
        seen = look(self.lease.path)
        return seen is not None and f".{seen.text}" == self.lease.own.name

    def link(self) -> Party:
        assert safe_io.link(self.lease.own, self.lease.path)
        return self


@contextlib.contextmanager
def suspended(moment: int, meanwhile: Callable[[], None]) -> Iterator[list[str]]:
    """Something happens before the system call with this number; yields the names of all that were made."""
    made: list[str] = []

    def before(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) - 1 == moment:
                with pytest.MonkeyPatch.context() as others:
                    for each, itself in reals.items():
                        others.setattr(os, each, itself)
                    meanwhile()
            return real(*arguments, **options)

        return call

    reals = {name: getattr(os, name) for name in CALLS}
    with pytest.MonkeyPatch.context() as patched:
        for name, real in reals.items():
            patched.setattr(os, name, before(name, real))
        yield made


@pytest.mark.parametrize("moment", range(12))
@pytest.mark.parametrize("how", ["dead", "released"])
def test_a_process_that_is_suspended_while_it_removes_a_lease_leaves_a_newer_one(
    tmp_path: Path, moment: int, how: str
) -> None:
    """It finds a dead holder, or releases its own lease; meanwhile another one takes the lease."""
    old, new = Party(tmp_path, "old").link(), Party(tmp_path, "new")
    seen = look(old.lease.path)
    assert seen is not None
    happened: list[bool] = []

    def meanwhile() -> None:
        happened.append(True)
        if old.holds:  # it is taken for dead by another one
            old.lease.path.unlink()
        new.link()

    with suspended(moment, meanwhile) as made:
        if how == "dead":
            remove(old.lease.path, lambda path: look(path) == seen)
        else:
            old.lease.release()
    assert made.count("rename") <= 1
    assert moment > 3 or happened
    assert (new.holds, old.holds) == (bool(happened), False)
    assert {each.name for each in tmp_path.iterdir()} <= {"lease", ".old", ".new"}


@pytest.mark.parametrize("moment", range(3))
def test_a_holder_that_was_taken_for_dead_and_shows_that_it_lives_keeps_the_lease(tmp_path: Path, moment: int) -> None:
    old = Party(tmp_path, "old").link()
    seen = look(old.lease.path)
    with suspended(moment, lambda: os.utime(old.lease.own, (1, 1))):
        remove(old.lease.path, lambda path: look(path) == seen)
    assert old.holds


def test_a_lease_that_cannot_be_looked_at_again_is_put_back(tmp_path: Path) -> None:
    old = Party(tmp_path, "old").link()
    answers = iter([True])

    def is_it(_: Path) -> bool:
        for answer in answers:
            return answer
        raise PermissionError(errno.EACCES, "Permission denied")

    remove(old.lease.path, is_it)
    assert old.holds
    assert {each.name for each in tmp_path.iterdir()} == {"lease", ".old"}


def _remove_suspended(path: Path) -> None:
    seen, rename = look(path), os.rename

    def stopped(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        rename(*arguments, **options)

    os.rename = stopped
    remove(path, lambda each: look(each) == seen)


def test_a_process_that_was_stopped_by_a_signal_leaves_a_newer_lease(tmp_path: Path) -> None:
    old, new = Party(tmp_path, "old").link(), Party(tmp_path, "new")
    process = _FORK.Process(target=_remove_suspended, args=(old.lease.path,))
    process.start()
    pid = process.pid or 0
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    old.lease.release()
    new.link()
    os.kill(pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 0
    assert new.holds
    assert {each.name for each in tmp_path.iterdir()} == {"lease", ".new"}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_no_hard_links_are_an_error_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:  # fmt: skip
    def no_links(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(WithoutLinks):
        Party(tmp_path, "new").lease.take(lambda *_: False, lambda: None, (1.0, 1.0))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    with pytest.raises(IsADirectoryError):
        Party(tmp_path, "new").lease.take(lambda *_: False, lambda: None, (1.0, 1.0))


def _count(path: Path, times: int) -> None:
    for _ in range(times):
        with hold(path / "lock"):
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
    with hold(tmp_path / "lock"):
        server.fail("lock")
    server.recover()
    assert (tmp_path / "lock").exists()
    with hold(tmp_path / "lock"):
        pass
    assert not list(tmp_path.iterdir())


def test_another_thread_of_the_process_waits_for_the_lock(tmp_path: Path) -> None:
    waited = threading.Event()

    def take() -> None:
        with hold(tmp_path / "lock", waiting=waited.set):
            pass

    with ThreadPoolExecutor(1) as pool:
        with hold(tmp_path / "lock"):
            other = pool.submit(take)
            assert waited.wait(60)
            assert not other.done()
        other.result(60)


# A folder that one run at a time uses


class Cluster(Clock):
    """Jobs whose leases have heartbeats while others wait, and this process in the job of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        super().__init__(monkeypatch, leases)
        self._set, self._folder, self.beating = monkeypatch.setenv, folder, list[Path]()

    def run(self, name: str, job: str) -> Path:
        """Goes on in a job of this run; returns its lease."""
        lease = self._folder / name / "lease"
        lease.parent.mkdir(exist_ok=True)
        lease.write_text(f"{job} 0 node1\n")
        for key, value in (("RUN_DIR", lease.parent), ("LEASE", lease), ("ATTEMPT", 0), ("JOB_ID", job)):
            self._set(f"LAUNCHER_{key}", str(value))
        return lease

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for lease in self.beating:
            os.utime(lease, (self.now, self.now))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    return Cluster(monkeypatch, tmp_path)


def test_a_run_that_is_alive_keeps_its_folder(cluster: Cluster, tmp_path: Path) -> None:
    cluster.beating = [cluster.run("a", "7")]
    leases.use_folder(tmp_path)
    leases.require_folder(tmp_path)
    cluster.run("b", "8")
    with pytest.raises(leases.LeaseTaken, match=r"is used by the run in .*/a, which is running \(job 7\)"):
        leases.use_folder(tmp_path)
    assert leases.other_user(tmp_path, tmp_path / "b") == str(tmp_path / "a")
    assert leases.other_user(tmp_path, tmp_path / "a") is None
    cluster.run("a", "9")  # a later attempt
    leases.use_folder(tmp_path)
    leases.require_folder(tmp_path)


def test_a_run_that_is_resumed_by_another_path_keeps_its_folder(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("a", "7")
    leases.use_folder(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    cluster.beating = [cluster.run("link", "9")]
    assert leases.other_user(tmp_path, tmp_path / "link") is None
    leases.use_folder(tmp_path)
    leases.require_folder(tmp_path)
    assert cluster.slept == []


@pytest.mark.parametrize("over", [True, False])
def test_the_folder_of_a_run_that_is_over_or_dead_is_taken_over(cluster: Cluster, tmp_path: Path, over: bool) -> None:
    lease = cluster.run("a", "7")
    leases.use_folder(tmp_path)
    if over:
        lease.unlink()
    cluster.run("b", "8")
    leases.use_folder(tmp_path)
    assert sum(cluster.slept) == pytest.approx(0 if over else leases.TIMEOUT)
    leases.require_folder(tmp_path)
    cluster.run("a", "7")  # its node was cut off
    with pytest.raises(leases.LeaseLost, match=r"is used by the run in .*/b now: this run writes nothing more there"):
        leases.require_folder(tmp_path)
    cluster.now += 2 * leases.SILENCE
    assert leases.other_user(tmp_path, tmp_path / "a") is None


def test_a_folder_is_not_free_because_it_is_unknown_who_uses_it(
    cluster: Cluster, server: FileServer, tmp_path: Path
) -> None:
    lease = cluster.run("a", "7")
    leases.use_folder(tmp_path)
    cluster.run("b", "8")
    for unreadable, number in ((leases.RUN_FILE, errno.EIO), (lease, errno.EIO), (lease, errno.EACCES)):
        server.fail(unreadable, number=number)
        with pytest.raises(UnavailableError):
            leases.use_folder(tmp_path)
        assert leases.other_user(tmp_path, tmp_path / "b") is None
        server.recover()
    server.fail(leases.RUN_FILE)
    with pytest.raises(UnavailableError):
        leases.require_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "/a/run", "\udcff\0"])
def test_a_damaged_file_keeps_no_run_from_a_folder(cluster: Cluster, tmp_path: Path, text: str) -> None:
    cluster.run("a", "7")
    (tmp_path / leases.RUN_FILE).write_bytes(os.fsencode(text))
    leases.require_folder(tmp_path)
    leases.use_folder(tmp_path)
    cluster.run("b", "8")
    with pytest.raises(leases.LeaseLost):
        leases.require_folder(tmp_path)


def test_outside_of_a_run_folders_have_no_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LAUNCHER_RUN_DIR", raising=False)
    leases.use_folder(tmp_path)
    leases.require_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []

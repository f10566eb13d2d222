"""Three outcomes of a read: what was read, what is wrong with it, and that nobody can tell."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from launcher.errors import RunError, UnavailableError
from launcher.files import retried_reads
from launcher.files.retried_reads import (
    IN_A_COMMAND,
    IN_A_JOB,
    Ok,
    Unavailable,
    Wrong,
    exists,
    list_names,
    read_bytes,
    unwrap,
)
from launcher.runs import lease_and_locks as locks
from tests.unit.faults import FOR_EVER, FileServer

PASSING = [errno.EIO, errno.ESTALE]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b'{"a": 1}')
    return path


def test_what_is_there_and_what_is_not(file: Path) -> None:
    assert read_bytes(file) == Ok(b'{"a": 1}')
    assert retried_reads.read_json(file) == Ok({"a": 1})
    assert exists(file) == Ok(True)
    assert list_names(file.parent) == Ok(["file"])
    for missing in (file.parent / "other", file / "below"):
        assert read_bytes(missing) == retried_reads.read_json(missing) == list_names(missing) == Ok(None)
        assert exists(missing) == Ok(False)


def test_what_is_not_what_it_should_be_is_wrong_at_once(file: Path, server: FileServer) -> None:
    circle = file.parent / "circle"
    circle.symlink_to(circle)
    file.write_bytes(b'{"a": ')
    for found in (read_bytes(file.parent), read_bytes(circle), retried_reads.read_json(file)):
        assert isinstance(found, Wrong)
        with pytest.raises(RunError):
            unwrap(found)
    assert exists(circle) == Ok(False)
    assert server.slept == []


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("times", [1, 2, 5])
def test_what_passes_is_waited_for(file: Path, server: FileServer, number: int, times: int) -> None:
    for read, value in ((read_bytes, b'{"a": 1}'), (exists, True)):
        server.fail(file, times, number)
        assert read(file) == Ok(value)
    assert len(server.slept) == 2 * times


def test_what_access_is_denied_to_is_told_with_what_to_do(file: Path, server: FileServer) -> None:
    server.fail(file, FOR_EVER, errno.EACCES)
    with pytest.raises(UnavailableError, match=r"\(EACCES\): have its permissions changed .*runs_dir=DIR"):
        unwrap(read_bytes(file))
    assert not server.slept


def test_what_cannot_be_made_is_not_told_as_what_cannot_be_read(file: Path, server: FileServer) -> None:
    server.fail(file, FOR_EVER, errno.EROFS)
    with (
        pytest.raises(UnavailableError, match=r"cannot be written: Read-only file system \(EROFS\)"),
        locks.try_acquire(file),
    ):
        pass


@pytest.mark.parametrize(("job", "seconds"), [(True, IN_A_JOB), (False, IN_A_COMMAND)])
@pytest.mark.parametrize("number", PASSING)
def test_what_does_not_pass_is_given_up(
    file: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, job: bool, seconds: float, number: int
) -> None:
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0") if job else monkeypatch.delenv("LAUNCHER_ATTEMPT", raising=False)
    server.fail(file, FOR_EVER, number)
    found = read_bytes(file)
    assert isinstance(found, Unavailable)
    assert (found.errno, found.reason.startswith(f"{file} cannot be read now")) == (number, True)
    assert seconds <= sum(server.slept) <= seconds + retried_reads.LONGEST
    with pytest.raises(UnavailableError, match=errno.errorcode[number]):
        unwrap(found)


def test_a_process_waits_once_and_not_for_each_file(file: Path, server: FileServer) -> None:
    server.fail(file)
    assert isinstance(read_bytes(file), Unavailable)
    before = len(server.slept)
    assert isinstance(exists(file), Unavailable)
    assert len(server.slept) == before
    assert read_bytes(file.parent / "other") == Ok(None)


def test_the_driver_of_a_job_waits_each_time(file: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retried_reads, "in_a_job", True)
    server.fail(file)
    for count in (1, 2):
        assert isinstance(read_bytes(file), Unavailable)
        assert sum(server.slept) >= count * IN_A_JOB


def test_who_looks_again_anyway_does_not_wait(file: Path, server: FileServer) -> None:
    server.fail(file)
    assert isinstance(exists(file, retry_seconds=0), Unavailable)
    assert server.slept == []


def test_what_we_may_not_read_does_not_pass_and_is_not_absent(file: Path, server: FileServer) -> None:
    server.fail(file, FOR_EVER, errno.EACCES)
    assert isinstance(exists(file), Unavailable)
    assert server.slept == []


def test_a_lock_of_which_nobody_can_tell_is_neither_free_nor_held(tmp_path: Path, server: FileServer) -> None:
    path = tmp_path / "lock"
    server.fail(path, 2)
    with locks.acquire(path):
        assert locks.is_locked(path)
        with locks.try_acquire(path) as ours:
            assert not ours
    assert not locks.is_locked(path)
    server.fail(path)
    with pytest.raises(UnavailableError), locks.try_acquire(path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def none(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with locks.acquire(tmp_path / "lock"), locks.try_acquire(tmp_path / "lock") as ours:
        assert ours


@pytest.mark.parametrize("number", PASSING)
def test_a_lock_is_not_done_without_for_an_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, number: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, "no answer")

    monkeypatch.setattr(locks.fcntl, "flock", fails)
    with pytest.raises(UnavailableError), locks.acquire(tmp_path / "lock"):
        pass
    assert server.slept

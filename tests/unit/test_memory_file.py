"""Files in memory, with and without memfd_create."""

from __future__ import annotations

import errno
import os

import pytest

from launcher import processes
from launcher.worker import heartbeat
from launcher.worker.hang_diagnosis import Stacks
from launcher.worker.heartbeat import Pulse


def unknown_to_the_kernel(_: str) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.fixture(params=["there", "not in this Python", "not in this kernel"])
def memfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.memfd_create as it is here, as in conda's and uv's Pythons, and as on an old kernel."""
    if request.param == "not in this Python":
        monkeypatch.delattr(os, "memfd_create")
    elif request.param == "not in this kernel":
        monkeypatch.setattr(os, "memfd_create", unknown_to_the_kernel)


@pytest.mark.usefixtures("memfd")
def test_a_file_in_memory_has_no_path_and_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = processes.memory_file("launcher-test")
    try:
        assert processes.shared_file("FILE", "launcher-test") is None
        monkeypatch.setenv("FILE", f"{os.getpid()}:{descriptor}:3")
        assert processes.shared_file("FILE", "launcher-test") == (descriptor, 3)
        assert processes.shared_file("FILE", "another") is None
        monkeypatch.setenv("FILE", f"{os.getppid()}:{descriptor}:3")  # of the parent, which this process inherited
        assert processes.shared_file("FILE", "launcher-test") is None
        assert not os.get_inheritable(descriptor)
        status = os.fstat(descriptor)
        assert status.st_mode & 0o077 == 0 or not status.st_nlink  # nobody else can open it
        os.ftruncate(descriptor, 8)
        os.pwrite(descriptor, b"12345678", 0)
        assert os.pread(descriptor, 8, 0) == b"12345678"
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("memfd")
def test_an_agent_shares_memory_with_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = Pulse(2)
    monkeypatch.setenv("LAUNCHER_PULSE", f"{os.getpid()}:{signs.share()}:1")
    monkeypatch.setattr(heartbeat, "_mine", None)
    slot = heartbeat.mine()
    assert slot is not None
    slot.beat(7)
    assert [sign.step for sign in signs.signs()] == [-1, 7]
    assert os.fstat(Stacks(1).file(0)).st_size == 0


def test_another_error_of_the_kernel_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(OSError, match="Too many"):
        processes.memory_file("launcher-test")

"""Ports on which leaders listen."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from launcher import processes
from launcher.rendezvous.rounds import RendezvousError, free_ports, listen

RANGE = (20000, 60000)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The errors of the next sockets; the others are made."""
    monkeypatch.setattr(processes.time, "sleep", lambda _: None)
    errors, make = list[int](), socket.create_server

    def create_server(*args: Any, **kwargs: Any) -> socket.socket:
        if errors:
            raise OSError(number := errors.pop(0), os.strerror(number))
        return make(*args, **kwargs)

    monkeypatch.setattr(socket, "create_server", create_server)
    return errors


def test_a_port_that_is_taken_is_left_out(failing: list[int]) -> None:
    failing += [errno.EADDRINUSE, errno.EACCES]
    ports = free_ports(RANGE)
    with listen(ports, "127.0.0.1") as found:
        assert found.getsockname()[1] not in ports[:2]


def test_a_descriptor_is_waited_for(failing: list[int]) -> None:
    failing += [errno.EMFILE, errno.ENFILE, errno.ENOMEM]
    ports = free_ports(RANGE)
    with listen(ports[:1], "127.0.0.1") as found:
        assert found.getsockname()[1] == ports[0]


def test_a_lasting_lack_of_descriptors_is_named(failing: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told as ports that are not free."""
    monkeypatch.setattr(processes, "NOT_NOW_SECONDS", 0.0)
    failing += [errno.EMFILE] * 99
    with pytest.raises(RendezvousError) as refused:
        listen(free_ports(RANGE), "127.0.0.1")
    assert "ulimit -n" in str(refused.value)

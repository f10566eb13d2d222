"""The address on which a port is opened: the one that a host's own name stands for, where it stands for one."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from launcher.rendezvous import rounds
from launcher.rendezvous.rounds import address_of


@pytest.mark.parametrize(("stands_for", "mine", "address"), [
    (["10.0.0.5"], ["10.0.0.5"], "10.0.0.5"),
    (["fd00::5"], ["fd00::5"], "fd00::5"),
    (["127.0.1.1"], ["127.0.1.1"], ""),  # Debian's /etc/hosts
    (["127.0.1.1", "10.0.0.5"], ["127.0.1.1", "10.0.0.5"], ""),
    (["10.0.0.5", "10.1.0.5"], ["10.0.0.5", "10.1.0.5"], ""),
    (["203.0.113.7"], ["10.0.0.5"], ""),  # an address that a router translates
    ([], ["10.0.0.5"], ""),
])  # fmt: skip
def test_a_port_is_opened_where_the_name_leads(
    stands_for: list[str], mine: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*_: Any, **__: Any) -> list[Any]:
        if not stands_for:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (each, 0)) for each in stands_for]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(rounds, "_is_mine", lambda each: each in mine)
    assert address_of("node1") == address


def test_this_machines_own_addresses_are_known() -> None:
    assert rounds._is_mine("127.0.0.1")
    assert not rounds._is_mine("203.0.113.7")  # of RFC 5737, for documentation

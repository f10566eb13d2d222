"""The ports and secrets of an attempt. Every agent derives them from the run's secret, so that none has to be sent."""

from __future__ import annotations

import hashlib
import random
import secrets
import socket
from collections.abc import Sequence

from launcher.failures.codes import FaultCode
from launcher.files.os_errors import explain
from launcher.processes import shortages
from launcher.rendezvous.members import RendezvousError
from launcher.runs.events import Fault

CANDIDATES = 16  # ports tried on the leader's host


def secret_of(shared: bytes, key: str) -> bytes:
    """Returns a secret derived from another one.

    shared: a longer-lived secret, such as the run's.
    key: what the new secret is for: the id of an attempt, or the index of a round.
    """
    return hashlib.sha256(b"launcher attempt\0" + shared + b"\0" + key.encode()).digest()


def candidate_ports(secret: bytes, port_range: tuple[int, int]) -> list[int]:
    """Returns the ports that a leader tries to listen on, in this order.

    Without the secret they cannot be predicted.
    """
    low, high = port_range
    seed = hashlib.sha256(b"launcher ports\0" + secret).digest()
    return random.Random(seed).sample(range(low, high + 1), min(CANDIDATES, high - low + 1))  # noqa: S311


def free_ports(port_range: tuple[int, int]) -> list[int]:
    """Returns random ports of the range (lowest, highest) to try, for a service that announces its port itself."""
    return candidate_ports(secrets.token_bytes(16), port_range)


def listen(ports: Sequence[int], address: str = "") -> socket.socket:
    """Returns a listening socket on the first free port.

    address: address of the interface; empty: all interfaces, IPv6 and IPv4 if the host has both.
    Raises RendezvousError: none of the ports is free, or this process may open no socket.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    problem = f"none of {len(ports)} ports is free (tried {', '.join(map(str, ports))}): set cluster.port_range"
    for port in ports:
        where = (address, port)
        try:
            return shortages.waited_out(
                lambda: socket.create_server(where, family=family, dualstack_ipv6=both, backlog=4096)  # noqa: B023
            )
        except OSError as error:
            if error.errno in shortages.ERRORS:
                problem = f"no port can be opened: {explain(error) or error}"
                break
    raise RendezvousError(Fault(code=FaultCode.REFUSED, host=socket.gethostname(), error=problem))

"""Another user of the cluster attacks a run of ours over the network: from a host outside of the job, and from its
nodes. Needs root, who can be both users, and `ip`."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from launcher.rendezvous.signed_channel import MAGIC
from tests.cluster.namespaces import HOSTS, Namespaces
from tests.cluster.test_partition import TEMPLATE, Cut
from tests.launch import PYTHON, Launcher
from tests.two_users import as_somebody_else

ANSWERS = 1.0  # seconds in which a service has answered
# torch/csrc/distributed/c10d/TCPStoreBackend.hpp: VALIDATE with its number, PING with ours
ASKS_A_STORE = b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d" + (7).to_bytes(4, "little")

Place = tuple[str, int]

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.backend("local", "network namespaces"),
]


class Evil:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


def listening() -> list[Place]:
    """Returns the address and port of each listening TCP socket in this network namespace, from /proc/net."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            address, state = row.split()[1], row.split()[3]
            if state == "0A":
                host, _, port = address.partition(":")
                four = bytes.fromhex(host)[-4:][::-1]
                found.append((socket.inet_ntoa(four) if any(four) else "0.0.0.0", int(port, 16)))
    return found


def attack(places: list[Place], words: list[bytes]) -> dict[Place, list[bytes]]:
    """Sends each text to each service while forty silent connections to it are open; returns the answers."""
    answers: dict[Place, list[bytes]] = {}
    for place in places:
        held = []
        for _ in range(40):
            with suppress(OSError):
                held.append(connected(place))
            if not held:
                break
        answers[place] = [answer(place, text) for text in words] if held else []
    return answers


def connected(place: Place) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(ANSWERS)
    connection.connect(place)
    return connection


def answer(place: Place, text: bytes) -> bytes:
    try:
        with connected(place) as connection:
            connection.sendall(text)
            return connection.recv(1 << 16)
    except OSError:
        return b""


def test_a_stranger_on_the_network_learns_nothing_and_hurts_nobody(tmp_path: Path, network: Namespaces) -> None:
    (tmp_path / "three.sh.j2").write_text(TEMPLATE.format(python=PYTHON, prefix=network.prefix))
    proof = Path(f"/tmp/{secrets.token_hex(8)}")
    words = [b"", ASKS_A_STORE, pickle.dumps(Evil(proof)), os.urandom(4096), b"GET / HTTP/1.0\r\n\r\n"]
    launcher = Launcher(tmp_path / "runs", {"COUNTING_STEPS": "1000000", "COUNTING_STEP_TIME": "0.05"})
    done = launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.counting:main", "nodes=3", "procs_per_node=1",
        "wait=false", "resume.how=never", f"cluster.template={tmp_path}/three.sh.j2",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = Cut(launcher, network)
    try:
        run.round(0)
        services = [as_somebody_else(listening, network.name(node)) for node in range(len(HOSTS))]
        assert any(host == "127.0.0.1" for host, _ in services[0]), "the ranks' store is behind its gate"

        outside = [(HOSTS[node], port) for node, found in enumerate(services) for _, port in found]
        beside = [(HOSTS[0] if host == "0.0.0.0" else host, port) for host, port in services[0]]
        for places, namespace in (outside, network.outsider), (beside, network.name(0)):
            answers = as_somebody_else(partial(attack, places, words), namespace)
            assert any(answers.values()), "somebody could be reached"
            for place, texts in answers.items():
                for text in texts:
                    assert not text or text.startswith(MAGIC), f"{place} answers {text!r} to a stranger"
        assert not proof.exists()

        steps = [*launcher.last().path.glob("attempts/*/rounds/*.json")]
        assert len(steps) == 1, "nobody has had to begin again"
        assert not run.events("fault") and not run.events("restart")
        assert not [*launcher.last().path.glob("attempts/*/exit_code")]
    finally:
        launcher("cancel", "latest")

"""A login node without a scheduler of its own, shared by the tests, and a machine from which each test reaches it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote.site import SSHD, Laptop, LoginNode, login_node


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    require_sshd()
    with login_node(tmp_path_factory.mktemp("site") / "node", {}) as started:
        yield started


@pytest.fixture
def laptop(tmp_path: Path, node: LoginNode) -> Iterator[Laptop]:
    made = Laptop(tmp_path / "laptop", node)
    yield made
    made.close()


def require_sshd() -> None:
    if SSHD is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no sshd: apt-get install openssh-server")


@pytest.fixture
def against(ran_against: Callable[[str, str], None]) -> None:
    ran_against("ssh", "OpenSSH's server on a loopback address")

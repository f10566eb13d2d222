from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.namespaces import Namespaces, problem


@pytest.fixture
def network() -> Iterator[Namespaces]:
    """Nodes in network namespaces; the test is skipped on machines where they cannot be created."""
    if reason := problem():
        pytest.skip(reason)
    with Namespaces() as network:
        yield network

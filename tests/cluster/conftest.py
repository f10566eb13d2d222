from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.namespaces import Namespaces, problem


@pytest.fixture
def network() -> Iterator[Namespaces]:
    """Network namespaces as hosts; the test is skipped where they cannot be made."""
    if reason := problem():
        pytest.skip(reason)
    with Namespaces() as network:
        yield network

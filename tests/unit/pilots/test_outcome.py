"""What becomes of a point whose process has ended."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.pilots.manager import outcome
from launcher.runs.claims import Kind


@pytest.mark.parametrize(
    ("code", "why", "kind"),
    [
        (0, {}, Kind.DONE),
        (0, {"stopping": True}, Kind.DONE),
        (0, {"cancelled": True}, Kind.DONE),
        (1, {}, Kind.FAILED),
        (-9, {}, Kind.FAILED),
        (93, {}, Kind.FATAL),
        (93, {"stopping": True}, Kind.FATAL),
        (75, {}, Kind.RELEASED),
        (75, {"stopping": True}, Kind.RELEASED),
        (75, {"stopped": True}, Kind.STOPPED),
        (75, {"cancelled": True, "stopping": True}, Kind.CANCELLED),
        (143, {"stopping": True}, Kind.RELEASED),
        (-9, {"stopping": True}, Kind.RELEASED),
        (143, {"cancelled": True}, Kind.CANCELLED),
        (143, {"pruned": True}, Kind.PRUNED),
        (75, {"spent": True}, Kind.FATAL),
        (1, {"spent": True}, Kind.FAILED),
    ],
)
def test_the_entry_of_a_point_that_has_ended(code: int, why: dict[str, Any], kind: Kind) -> None:
    assert outcome(code, **why) is kind

"""What becomes of a point whose process has ended."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.pilots.manager import outcome
from launcher.runs.point_claims import EntryKind


@pytest.mark.parametrize(
    ("code", "why", "kind"),
    [
        (0, {}, EntryKind.DONE),
        (0, {"stopping": True}, EntryKind.DONE),
        (0, {"cancelled": True}, EntryKind.DONE),
        (1, {}, EntryKind.FAILED),
        (-9, {}, EntryKind.FAILED),
        (93, {}, EntryKind.FATAL),
        (93, {"stopping": True}, EntryKind.FATAL),
        (75, {}, EntryKind.RELEASED),
        (75, {"stopping": True}, EntryKind.RELEASED),
        (75, {"stopped": True}, EntryKind.STOPPED),
        (75, {"cancelled": True, "stopping": True}, EntryKind.CANCELLED),
        (143, {"stopping": True}, EntryKind.RELEASED),
        (-9, {"stopping": True}, EntryKind.RELEASED),
        (143, {"cancelled": True}, EntryKind.CANCELLED),
        (143, {"pruned": True}, EntryKind.PRUNED),
        (75, {"spent": True}, EntryKind.FATAL),
        (1, {"spent": True}, EntryKind.FAILED),
    ],
)
def test_the_entry_of_a_point_that_has_ended(code: int, why: dict[str, Any], kind: EntryKind) -> None:
    assert outcome(code, **why) is kind

"""Converts what a trainer hands to its callbacks into what a run records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among `values`, including tensors of one element; reading one from a GPU waits for the GPU."""
    found = {}
    for name, value in values.items():
        one = getattr(value, "numel", None)
        if callable(one) and one() == 1:
            value = value.item()
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found


def leaves(stop: str | None, step: int, total: int) -> bool:
    """Whether to exit at this step boundary, after saving.

    | stop | step, total | result |
    |---|---|---|
    | None | any | no |
    | a stop reason | total unknown (0), or step < total | yes |
    | a stop reason | step >= total | no: only the trainer's cleanup is left, which another attempt would not do |
    """
    return stop is not None and not 0 < total <= step

"""What a trainer's callbacks are handed, as what a run is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among `values`, those in tensors of one element as well; reading one on a GPU waits for it."""
    found = {}
    for name, value in values.items():
        one = getattr(value, "numel", None)
        if callable(one) and one() == 1:
            value = value.item()
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found


def leaves(stop: str | None, step: int, total: int) -> bool:
    """Whether to leave at this boundary, once what was done is saved.

    | stop | step, total | leaves |
    |---|---|---|
    | none | any | no |
    | a cause | total unknown (0), or step < total | yes |
    | a cause | step >= total | no: what is left is the trainer's own end, and an attempt of its own would not do it |
    """
    return stop is not None and not 0 < total <= step

"""What both callbacks share: metrics from the values that a trainer passes, and whether to exit at a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers and the one-element tensors among `values`, as floats. A tensor on a GPU is waited for."""
    found = {}
    for name, value in values.items():
        one = getattr(value, "numel", None)
        if callable(one) and one() == 1:
            value = value.item()
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found


def leaves(stop: str | None, step: int, total: int) -> bool:
    """Returns whether the rank must exit after this step, once it has saved.

    | stop | step, total | result |
    |---|---|---|
    | None | any | no |
    | a stop reason | total unknown (0), or step < total | yes |
    | a stop reason | step >= total | no: only the trainer's cleanup is left, which another attempt would not do |

    Args:
        stop: why the attempt must end early; None: it need not.
        step: steps done.
        total: steps of the whole training; 0: unknown.
    """
    return stop is not None and not 0 < total <= step

"""What a submission asks for, told before it is made; and the question whether to make it, where that is much."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.errors import DECLINED, LauncherError
from launcher.spec.cost import Cost, number

if TYPE_CHECKING:
    from collections.abc import Sequence

YES = "--yes"
skip = False  # whether --yes was on the command line: Hydra has no way to hand it through


class Declined(LauncherError):
    """The user was asked whether to submit, and did not say yes."""

    exit_code = DECLINED


def without_yes(arguments: Sequence[str]) -> list[str]:
    """The arguments without --yes, whose being there is remembered."""
    global skip
    rest = [word for word in arguments if word != YES]
    skip = len(rest) < len(arguments)
    return rest


def tell_and_ask(lines: Sequence[str], cost: Cost, above: float | None) -> None:
    """Prints what is asked for, and asks where it is more than `above`; before anything is made.

    Args:
        lines: what is asked for.
        cost: the same in numbers.
        above: GPU-hours (without GPUs: node-hours) from which on a yes is needed; None: never.

    Raises:
        Declined: the answer was not yes.
    """
    for number_of, line in enumerate(lines):
        print(f"{'' if number_of else 'asks for':<11}{line}", flush=True)
    asked, unit = cost.counted
    if above is None or asked <= above or skip or not sys.stdin.isatty():
        return
    print(f"More than confirm_above={number(above)} {unit}. Submit? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was submitted (--yes submits without a question)")

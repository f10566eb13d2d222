"""What a submission asks for, told before it is made; and the question whether to make it, where that is much."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.errors import DECLINED, LauncherError
from launcher.spec.cost import Cost, number

if TYPE_CHECKING:
    from collections.abc import Sequence

YES = "--yes"


class Declined(LauncherError):
    """The user was asked whether to submit, and did not say yes."""

    exit_code = DECLINED


def tell_and_ask(lines: Sequence[str], cost: Cost, above: float | None, *, yes: bool) -> None:
    """Prints what is asked for, and asks where it is more than `above`; before anything is made.

    Args:
        lines: what is asked for.
        cost: the same in numbers.
        above: GPU-hours (without GPUs: node-hours) from which on a yes is needed; None: never.
        yes: it was given on the command line.

    Raises:
        Declined: the answer was not yes.
    """
    for number_of, line in enumerate(lines):
        print(f"{'' if number_of else 'asks for':<11}{line}", flush=True)
    asked, unit = cost.counted
    if above is None or asked <= above or yes or not sys.stdin.isatty():
        return
    print(f"More than confirm_above={number(above)} {unit}. Submit? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was submitted (--yes submits without a question)")

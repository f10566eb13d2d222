"""Prints the resources that a submission requests, and asks for confirmation if they exceed `confirm_above`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.errors import DECLINED, LauncherError
from launcher.spec.limits import Cost, number

if TYPE_CHECKING:
    from collections.abc import Sequence

YES = "--yes"


class Declined(LauncherError):
    """The user was asked for confirmation, and declined. Nothing was submitted."""

    exit_code = DECLINED


def confirm(lines: Sequence[str], cost: Cost, above: float | None, *, yes: bool) -> None:
    """Prints the requested resources, and asks the user for confirmation if they exceed `above`.

    If stdin is not a terminal, the submission counts as confirmed.
    above: GPU-hours (without GPUs: node-hours) above which confirmation is needed; None: never.
    Raises Declined: the user did not answer yes.
    """
    for number_of, line in enumerate(lines):
        print(f"{'' if number_of else 'requests':<11}{line}", flush=True)
    asked, unit = cost.counted
    if above is None or asked <= above or yes or not sys.stdin.isatty():
        return
    print(f"More than confirm_above={number(above)} {unit}. Submit? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was submitted (--yes submits without a question)")

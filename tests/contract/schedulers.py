"""Which schedulers a contract test is run with: it must pass with all; most are left to `make test-slow`."""

from __future__ import annotations

from functools import partial

import pytest

ALL = ("local", "slurm", "pbs", "sge", "third", "allocation")


def on(*names: str, ci: tuple[str, ...] = (), never: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Runs a test with these schedulers in `make test`, with those of `ci` in CI too; `never`: with none of these."""
    marks = {**dict.fromkeys(names, ()), **dict.fromkeys(ci, (pytest.mark.ci,))}
    params = [pytest.param(name, marks=marks.get(name, (pytest.mark.slow,))) for name in ALL if name not in never]
    return pytest.mark.parametrize("launcher", params, indirect=True)


detached = partial(on, never=("allocation",))  # a run there lives in the foreground of its shell, and ends with it
local = pytest.mark.parametrize("launcher", ["local"], indirect=True)  # what is nothing of a scheduler's

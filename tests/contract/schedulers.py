"""Which schedulers a contract test is run with: it must pass with all, and `make test` runs what differs among them."""

from __future__ import annotations

from functools import partial

import pytest

ALL = ("local", "slurm", "pbs", "sge", "third", "allocation")


def on(*names: str, never: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Runs a test with these schedulers in `make test`, and with all others but `never` in `make test-slow`."""
    params = [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in ALL if name not in never]
    return pytest.mark.parametrize("launcher", params, indirect=True)


detached = partial(on, never=("allocation",))  # a run there lives in the foreground of its shell, and ends with it
local = pytest.mark.parametrize("launcher", ["local"], indirect=True)  # what is nothing of a scheduler's

"""Reads the results of an earlier run, with which a benchmark is compared, on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workloads import results
from workloads.ranks import gather, raise_together

if TYPE_CHECKING:
    from launcher import Env


def read(path: str | None, env: Env) -> results.Results | None:
    """Returns the results of an earlier run on all ranks. Only rank 0 reads the file. All ranks must call it.

    path: results.json or the run directory; None: there is no baseline, and the result is None.
    Raises WorkloadError: the file does not exist, cannot be read, or has another format.
    """
    if path is None:
        return None
    found, problem = None, None
    if env.rank == 0:
        try:
            found = results.read(Path(path))
        except ValueError as error:
            problem = f"baseline={path}: {error}"
    raise_together(problem, env)
    return gather(found, env)[0]

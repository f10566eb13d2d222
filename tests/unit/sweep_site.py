"""Sweeps that are submitted to stand-ins for Slurm's commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.sweeps import submit as submit_sweep
from launcher.sweeps.prepare import RequestedPoint, prepare_sweep
from launcher.sweeps.submit import SubmittedSweep
from tests.unit.plans import make_config
from tests.unit.slurm_stand_in import SlurmStandIn

COMMAND = ("-m", "workload=work", "seed=...")


@dataclasses.dataclass
class Site:
    """A Slurm of stand-ins, and sweeps in a folder."""

    folder: Path
    slurm: SlurmStandIn

    def requested(self, points: Sequence[str], **keys: Any) -> list[RequestedPoint]:
        """Points whose overrides are `seed=1 nodes=2` and the like."""
        return [self._requested(point.split(), **keys) for point in points]

    def _requested(self, words: list[str], **keys: Any) -> RequestedPoint:
        own = {key: int(value) if value.isdecimal() else value for key, _, value in (w.partition("=") for w in words)}
        values = {key: value for key, value in own.items() if key in ("seed", "nodes", "time", "name")}
        cluster = {"check": False, "submit_timeout": 10, **keys.pop("cluster", {})}
        config = make_config(runs_dir=str(self.folder / "runs"), **{"cluster": cluster, **keys, **values})
        return RequestedPoint(tuple(words), config, {"seed": config.seed})

    def submit(self, points: Sequence[str], command: Sequence[str] = COMMAND, **keys: Any) -> SubmittedSweep:
        return submit_sweep.submit_sweep(prepare_sweep(self.requested(points, **keys), command))

    def refused(self, points: Sequence[str], command: Sequence[str] = COMMAND, **keys: Any) -> str:
        """Why they are refused; then nothing is written or submitted."""
        with pytest.raises(ConfigError) as caught:
            self.submit(points, command, **keys)
        assert not (self.folder / "runs").exists()
        assert self.slurm.calls() == 0
        return str(caught.value)


def seeds(count: int, more: str = "") -> list[str]:
    return [f"seed={seed} {more}".strip() for seed in range(count)]


def submitted_points(site: Site) -> list[int]:
    return sorted(point for job in site.slurm.jobs() for point in job.points)

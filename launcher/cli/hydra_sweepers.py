"""Connects Hydra sweepers that search (Optuna, Ax) with sweeps: their settings, and the objective of each point."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus

from launcher.cli.sweep_results import flat
from launcher.cli.text import cause
from launcher.config.hydra_text import key_of
from launcher.config.schema import BestIs, Config
from launcher.errors import ConfigError, LauncherError, near

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from launcher.monitoring.run_status import RunStatus

DIRECTIONS = {"maximize": BestIs.max, "minimize": BestIs.min}


class PointFailed(LauncherError):
    """A point has ended without a value of the objective."""


class PointReturn(JobReturn):
    """The result of a point, for Hydra. Its `return_value` raises the point's error without printing a line first."""

    @property  # type: ignore[misc]
    def return_value(self) -> Any:
        if isinstance(self._return_value, Exception):
            raise self._return_value
        return self._return_value


@dataclass(frozen=True)
class Search:
    """The settings of a Hydra sweeper that concern the sweep."""

    # `maximize` or `minimize` for each objective; empty: the sweeper has no such setting
    directions: tuple[str, ...] = ()
    trials: int | None = None  # total number of trials; None: the sweeper has no such setting
    workers: int | None = None  # number of trials that run at once; None: the sweeper has no such setting

    @classmethod
    def of(cls, sweeper: DictConfig) -> Search:
        """Reads the settings from `hydra.sweeper`. Raises ConfigError: a value cannot be used."""
        given = sweeper.get("direction") or ()
        several = [given] if isinstance(given, (str, Enum)) else list(given)
        directions = tuple(each.name if isinstance(each, Enum) else str(each) for each in several)
        for each in directions:
            if each not in DIRECTIONS:
                raise ConfigError(
                    f"hydra.sweeper.direction={each}: it must be maximize or minimize, or a list of both."
                    f"{near(each, DIRECTIONS)}"
                )
        for key in ("n_trials", "n_jobs"):
            if sweeper.get(key) is not None and sweeper[key] < 1:
                raise ConfigError(f"hydra.sweeper.{key}={sweeper[key]}: it must be 1 or more")
        return cls(directions, sweeper.get("n_trials"), sweeper.get("n_jobs"))

    def settle(self, config: Config, command: Sequence[str], sweep_id: str | None) -> Config:
        """Returns a point's config with the settings of `sweep` that the search needs.

        | key of `sweep` | value, unless the user gives one |
        |---|---|
        | best_is | max or min, by the sweeper's first direction |
        | parallelism | `workers` |
        | id | `sweep_id`, so that later points join the sweep of the first ones |

        sweep_id: the sweep's id; None: no point was submitted yet.
        Raises ConfigError: there is no objective, the numbers of objectives and directions differ, a setting
            contradicts the sweeper, or the command does not wait for the points.
        """
        sweep = config.sweep
        names = objectives(sweep.objective)
        if not names:
            raise ConfigError("the sweeper needs a value of each point: name a metric, sweep.objective=accuracy")
        if sweep.search is not None:
            raise ConfigError(
                f"sweep.search={sweep.search.value} and a sweeper that searches (hydra/sweeper) exclude each other: "
                "leave one of them out"
            )
        if config.wait is False or config.dry_run:
            raise ConfigError("the sweeper waits for the value of each point: leave wait=false and dry_run out")
        if self.directions and len(self.directions) != len(names):
            raise ConfigError(
                f"sweep.objective has {len(names)} and hydra.sweeper.direction {len(self.directions)}: give each "
                f"metric its own, hydra.sweeper.direction=[{','.join(['maximize'] * len(names))}]"
            )
        best_is = sweep.best_is
        if self.directions:
            best_is = DIRECTIONS[self.directions[0]]
            given = any(key_of(word) == "sweep.best_is" for word in command)
            if given and sweep.best_is is not best_is:
                raise ConfigError(
                    f"sweep.best_is={sweep.best_is.value} and hydra.sweeper.direction={self.directions[0]} contradict "
                    "each other: leave sweep.best_is out"
                )
        changed = dataclasses.replace(
            sweep, id=sweep_id or sweep.id, best_is=best_is, parallelism=sweep.parallelism or self.workers
        )
        return dataclasses.replace(config, sweep=changed)


def objectives(given: Any) -> tuple[str, ...]:
    """Returns the names of the metrics in `sweep.objective`, which is a name, a list of names, or None."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def values_of(metrics: Mapping[str, Any], names: Sequence[str], run: str) -> list[float]:
    """Returns the values of a point's objectives.

    Raises ConfigError: the point lacks one of the metrics. This ends the search, since later points would lack it, too.
    Raises PointFailed: a metric is not a number.
    """
    for name in names:
        if name not in metrics:
            raise ConfigError(
                f"sweep.objective={name}: {run} has no such metric.{near(name, metrics)} "
                f"It has {', '.join(metrics) or 'none'}"
            )
        if isinstance(metrics[name], bool) or not isinstance(metrics[name], (int, float)) or math.isnan(metrics[name]):
            raise PointFailed(f"{run}: {name} is {metrics[name]!r}, and no number")
    return [float(metrics[name]) for name in names]


def returned(seen: RunStatus, overrides: Sequence[str], names: Sequence[str]) -> JobReturn:
    """Returns the result of a point for Hydra's sweeper: the objective's value (for several, a list), or the error.

    Raises ConfigError: the point does not have one of the metrics.
    """
    status, value = JobStatus.COMPLETED, None  # type: tuple[JobStatus, Any]
    try:
        if seen.state.value != "done":
            raise PointFailed(f"{seen.run.id} {seen.state.value}: {cause(seen) or 'no cause is known'}")
        values = values_of(flat(seen.run.result() or {}), names, seen.run.id)
        value = values[0] if len(values) == 1 else values
    except PointFailed as error:
        status, value = JobStatus.FAILED, error
    return PointReturn(overrides=list(overrides), status=status, _return_value=value)

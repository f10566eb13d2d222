"""Makes Hydra's multirun (-m) submit a sweep, by the plug-ins `hydra/launcher=launcher` and `hydra/sweeper=launcher`,
which are the defaults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launcher import io_bounds
from launcher.errors import ConfigError


class PointLauncher(Launcher):
    """Hydra launcher that submits the points of a sweep to the cluster of their config."""

    def __init__(self, **_: Any) -> None:
        self.multirun: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if not hasattr(task_function, "multirun"):  # launcher/cli/submit.py, `Task`
            raise ConfigError("hydra/launcher=launcher submits runs of the launcher's own command, and no other app's")
        self.multirun = task_function.multirun(hydra_context.config_loader, config)

    def search(self, arguments: list[str]) -> Sequence[JobReturn]:
        """Submits a search (`sweep.search`). The arguments are overrides with the range or choices of each key."""
        returns: list[JobReturn] = self.multirun.search(arguments)
        return returns

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        returns: list[JobReturn] = self.multirun(job_overrides)  # they are all, so that the first one is 0
        return returns


class PointSweeper(BasicSweeper):
    """Hydra sweeper for a grid of choices, ranges and globs. Unlike BasicSweeper it does not compose the config of each
    point to validate it. With `sweep.search` it starts a search instead."""

    def sweep(self, arguments: list[str]) -> Any:
        from launcher.runs.sweep_directory import too_many  # here, since every Hydra app imports this module

        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        if self.config.sweep.search is not None:  # points are chosen while the sweep runs
            return self.launcher.search([*self._parse_config(), *arguments])  # type: ignore[attr-defined]
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        if wrong := next((each for each in overrides if each.is_interval_sweep()), None):
            word = str(wrong.input_line).lstrip("+")
            raise ConfigError(f"{word}: only a search takes an interval: add sweep.search=random, tpe or asha")
        number = math.prod({each.get_key_element(): _count(each) for each in overrides}.values())
        if why := too_many(number):  # before they are made
            raise ConfigError(f"{why}: divide it into several sweeps")
        if not number:
            empty = [str(each.input_line) for each in overrides if not _count(each)]
            raise ConfigError(f"{', '.join(empty)}: it has no values, so the sweep has no points")
        (points,) = self.split_arguments(overrides, None)
        return [self.launcher.launch(points, initial_job_idx=0)]


def _count(override: Override) -> int:
    # Returns how many values an override has; those of a long range are not made for that
    values = override.value()
    if not isinstance(values, RangeSweep):
        return sum(1 for _ in override.sweep_iterator()) if override.is_sweep_override() else 1
    try:
        start, stop, step = (Decimal(each or 0) for each in (values.start, values.stop, values.step))
        count = max(0, math.ceil((stop - start) / step))
    except (ArithmeticError, ValueError):
        words = "write range(START,STOP,STEP) with finite numbers, of which the last is not 0"
        raise ConfigError(f"{override.input_line}: {words}") from None
    # Hydra adds floats up, so that it may make one more or less
    return count if count > io_bounds.SWEEP_POINTS + 1 else sum(1 for _ in values.range())


_HERE = "hydra_plugins.launcher_sweep"
_SWEEPER = {"_target_": f"{_HERE}.PointSweeper", "max_batch_size": None, "params": None}
_STORE = ConfigStore.instance()
_STORE.store(group="hydra/launcher", name="launcher", node={"_target_": f"{_HERE}.PointLauncher"}, provider="launcher")
_STORE.store(group="hydra/sweeper", name="launcher", node=_SWEEPER, provider="launcher")

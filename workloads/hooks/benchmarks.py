"""The submission hook of the communication benchmarks (p2p, collective): checks names and sizes, finds a baseline."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import WorkloadHook
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.config.schema import P2P, Collective, Config, Workload
    from launcher.spec.plan import JobPlan


class Hook(WorkloadHook):
    def prepare(self, config: Config) -> tuple[Workload, tuple[str, ...]]:
        """Returns the workload with `baseline` replaced by the path of that run's results file, and no messages.

        Raises ConfigError: `baseline` has no results, or is a run of another workload.
        """
        if config.baseline is None:
            return config.workload, ()
        # Lazily: only a comparison needs it
        from workloads import results

        workload: Collective | P2P = config.workload  # type: ignore[assignment]  # those of conf/workload
        path = Path(str(workload.baseline))
        if path.is_dir():
            path /= results.JSON
        try:
            measured = results.read(path)
        except ValueError as error:
            raise ConfigError(f"baseline={config.baseline}: {error}") from None
        kind = type(workload).__name__.lower()
        if measured.workload != kind:
            raise ConfigError(
                f"baseline={config.baseline} is a run of workload={measured.workload}: choose one of workload={kind}"
            )
        return dataclasses.replace(workload, baseline=str(path)), ()

    def check(self, plan: JobPlan) -> None:
        # Lazily: 10 ms, and `launcher data` needs none of it
        from workloads.hooks import benchmark_checks

        benchmark_checks.check_names(plan)
        benchmark_checks.check_sweep(plan)

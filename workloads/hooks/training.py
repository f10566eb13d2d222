"""Checks the settings of ddp_mnist and fsdp_lm before a submission: their ranges, and the batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan

# Keys with a lower limit of 1, and of just above 0.
AT_LEAST_ONE = ("epochs", "micro_batch_size", "log_every", "threads")
ABOVE_ZERO = ("lr", "bucket_mb")


def check(plan: JobPlan) -> None:
    """Checks that the settings of ddp_mnist and fsdp_lm are in range, and that each rank gets a sample of each batch.

    A user's program may give these keys another meaning, so its config is not checked.

    Raises ConfigError: a setting (AT_LEAST_ONE, ABOVE_ZERO) is out of range, or there are more ranks than samples.
    """
    if not plan.workload.entry.startswith("workloads."):
        return
    for key, value in plan.workload.params.items():
        if key in AT_LEAST_ONE and value is not None and value < 1:
            raise ConfigError(f"workload.{key}={value}: it must be 1 or more")
        if key in ABOVE_ZERO and not 0 < value < float("inf"):
            raise ConfigError(f"workload.{key}={value:g}: it must be above 0")
    size = plan.workload.params.get("batch_size")
    if isinstance(size, int) and size < plan.world_size:
        raise ConfigError(
            f"workload.batch_size={size} leaves some of the {plan.world_size} ranks without a sample: set it to "
            f"{plan.world_size} or more, or use fewer ranks (nodes, procs_per_node)"
        )

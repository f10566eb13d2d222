"""The submission hooks of the workloads (`workload.hook`): they check and complete a config on the login node.

They do not import torch, which takes a second.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import WorkloadHook
from launcher.errors import ConfigError
from launcher.formatting import format_size
from workloads import datasets, keys, texts
from workloads.keys import check_group_ranks, members_of, parse_groups, parse_seconds, parse_sizes

if TYPE_CHECKING:
    from launcher.config.schema import P2P, Collective, Config, DDPMnist, FSDPLm, Workload
    from launcher.spec.plan import JobPlan


# -- The benchmarks


# Keys with one name or several: the word for such a name in errors, and the known names.
NAMED = {
    "op": ("operation", keys.OPERATIONS),
    "pattern": ("pattern", keys.PATTERNS),
}
# Keys with a single name, and the known names.
ONE_OF = {"dtype": keys.DTYPES, "redop": keys.REDOPS, "place": keys.PLACES}


def check_names(plan: JobPlan) -> None:
    """Checks the names, sizes and time budget in the workload's settings, before the job waits in a queue.

    Raises ConfigError: an operation, pattern, group, type or place is unknown, or a size or the budget is not valid.
    """
    for key, value in plan.workload.params.items():
        try:
            if key in ONE_OF:
                keys.choose_one(key, value, ONE_OF[key])
            elif key in NAMED:
                keys.choose(NAMED[key][0], value, NAMED[key][1])
            elif key == "sizes":
                parse_sizes(value)
            elif key == "groups":
                for kind in parse_groups(value):
                    check_group_ranks(kind, plan.world_size)
            elif key == "budget" and value is not None:
                parse_seconds(value)
        except ValueError as error:
            raise ConfigError(f"workload.{key}: {error}") from None


def check_sweep(plan: JobPlan) -> None:
    """Checks the numeric settings, pattern, roots and backend of p2p and collective, after `check_names`.

    Raises ConfigError: a setting is out of range, a size exceeds a node's memory, a pattern or a root does not fit the
        ranks, or the backend lacks an operation that was chosen by name.
    """
    params = plan.workload.params
    if params["iterations"] < 1 or params.get("warmup", 0) < 0:
        raise ConfigError(
            f"workload.iterations={params['iterations']}, workload.warmup={params.get('warmup', 0)}: at least 1 "
            "iteration, and 0 to warm up"
        )
    if not 0 < params["tolerance"] < 1:
        raise ConfigError(
            f"tolerance={params['tolerance']:g}: it is the part of a speed that may be lost, more than 0 and less "
            "than 1 (0.2)"
        )
    largest = max(parse_sizes(params["sizes"]))
    on_host = plan.workload.device == "cpu" or (plan.workload.device == "auto" and plan.gpus_per_node == 0)
    if on_host and plan.mem is not None and largest * plan.procs_per_node > plan.mem:
        raise ConfigError(
            f"workload.sizes: {format_size(largest)} on each of procs_per_node={plan.procs_per_node} is more than "
            f"mem={format_size(plan.mem)}: use smaller sizes or more memory"
        )
    if "op" in params:
        _check_operations(plan)
    if "pattern" in params:
        try:
            keys.check_patterns(params, [rank // plan.procs_per_node for rank in range(plan.world_size)])
        except ValueError as error:
            raise ConfigError(str(error)) from None


def _check_operations(plan: JobPlan) -> None:
    params = plan.workload.params
    operations = keys.choose("operation", params["op"], keys.OPERATIONS)
    kinds = parse_groups(params["groups"])
    node_of = [rank // plan.procs_per_node for rank in range(plan.world_size)]
    for kind in kinds:
        smallest = min(len(ranks) for ranks in members_of(kind, node_of))
        if not 0 <= params["root"] < smallest:
            has, can = ("1 rank", "0") if smallest == 1 else (f"{smallest} ranks", f"0 to {smallest - 1}")
            raise ConfigError(
                f"workload.root={params['root']}: the smallest group of {kind} has {has}, so a root is {can}"
            )
    if keys.chooses_all(params["op"]):  # operations that the backend lacks are left out
        return
    backend = plan.workload.backend
    if backend == "auto" and (plan.workload.device == "cpu" or plan.gpus_per_node == 0):
        backend = "gloo"
    for operation in operations:
        if not keys.places_of(operation, params["place"]):
            other = "in" if params["place"] == "out" else "out"
            raise ConfigError(
                f"workload.place={params['place']}: torch.distributed has {operation} only with place={other}: use "
                f"that, or both"
            )
        backends = keys.backends_for(operation, params["dtype"], params["redop"])
        if backend != "auto" and backend not in backends:
            of = f" with redop={params['redop']}" if operation in keys.REDUCING else ""
            raise ConfigError(
                f"workload.op={operation}: {backend} has no {operation} of {params['dtype']}{of}; "
                f"{', '.join(backends)} {'has' if len(backends) == 1 else 'have'} it (workload.backend)"
            )


class Benchmark(WorkloadHook):
    """The hook of p2p and collective: checks names and sizes, finds a baseline."""

    def prepare(self, config: Config) -> tuple[Workload, tuple[str, ...]]:
        """Returns the workload with `baseline` replaced by the path of that run's results file, and no messages.

        Raises ConfigError: `baseline` has no results, or is a run of another workload.
        """
        if config.baseline is None:
            return config.workload, ()
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
        check_names(plan)
        check_sweep(plan)


# -- The trainings


# Keys with a lower limit of 1, and of just above 0.
AT_LEAST_ONE = ("epochs", "micro_batch_size", "log_every", "threads")
ABOVE_ZERO = ("lr", "bucket_mb")


def check_training(plan: JobPlan) -> None:
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


class ImageTraining(WorkloadHook):
    """The hook of ddp_mnist: finds the data set; the data sets that `launcher data` lists."""

    def __init__(self) -> None:
        self._find = functools.cache(_found)

    def prepare(self, config: Config) -> tuple[DDPMnist, tuple[str, ...]]:
        workload: DDPMnist = config.workload  # type: ignore[assignment]  # that of conf/workload/ddp_mnist.yaml
        found = self._find(workload.dataset, workload.data_dir)
        chosen = dataclasses.replace(workload, dataset=found.name, data_dir=str(found.dir))
        return chosen, (f"data set: {found.name}, {found.how}",)

    def check(self, plan: JobPlan) -> None:
        check_training(plan)

    def data_sets(self) -> tuple[datasets.Dataset, ...]:
        return tuple(datasets.KNOWN.values())


def _found(name: str, folder: str | None) -> datasets.Found:
    try:
        return datasets.find(name, folder)
    except datasets.DatasetError as error:
        raise ConfigError(f"workload.dataset={name}: {error}") from None


class TextTraining(WorkloadHook):
    """The hook of fsdp_lm: finds the text."""

    def __init__(self) -> None:
        self._find = functools.cache(texts.find)

    def prepare(self, config: Config) -> tuple[FSDPLm, tuple[str, ...]]:
        workload: FSDPLm = config.workload  # type: ignore[assignment]  # that of conf/workload/fsdp_lm.yaml
        text = self._find(workload.text)
        texts.check(workload, text, config.train.invariant)
        return dataclasses.replace(workload, text=text.name), (f"text: {text.name}, {text.length:,} bytes",)

    def check(self, plan: JobPlan) -> None:
        check_training(plan)

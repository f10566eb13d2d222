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
from launcher.files.retried_reads import exists, unwrap
from launcher.formatting import format_size
from launcher.plan.build import OUR_CODE
from workloads import benchmark_keys, image_data, text_data
from workloads.benchmark_keys import members_of, parse_groups, parse_seconds, parse_sizes

if TYPE_CHECKING:
    from launcher.config.schema import P2P, Collective, Config, DDPMnist, FSDPLm, Workload
    from launcher.plan.plan import JobPlan


# -- The benchmarks


# Keys with one name or several: the word for such a name in errors, and the known names.
NAMED = {
    "op": ("operation", benchmark_keys.OPERATIONS),
    "pattern": ("pattern", benchmark_keys.PATTERNS),
}
# Keys with a single name, and the known names.
ONE_OF = {"dtype": benchmark_keys.DTYPES, "redop": benchmark_keys.REDOPS, "place": benchmark_keys.PLACES}


def check_names(plan: JobPlan) -> None:
    """Raises ConfigError if a name, a size or the time budget in the workload's settings is not valid."""
    for key, value in plan.workload.params.items():
        try:
            if key in ONE_OF:
                benchmark_keys.choose_one(key, value, ONE_OF[key])
            elif key in NAMED:
                benchmark_keys.choose(NAMED[key][0], value, NAMED[key][1])
            elif key == "sizes":
                parse_sizes(value)
            elif key == "groups":
                for kind in parse_groups(value):
                    members_of(kind, _node_of(plan))
            elif key == "budget" and value is not None:
                parse_seconds(value)
        except ValueError as error:
            raise ConfigError(f"workload.{key}: {error}") from None


def check_sweep(plan: JobPlan) -> None:
    """Raises ConfigError, after `check_names`, if a benchmark could not run with its numbers, ranks or backend."""
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
        if plan.workload.backend == "gloo" and not on_host:
            raise ConfigError(f"workload.backend=gloo: {benchmark_keys.GLOO_ON_GPU}")
        _check_patterns(plan)


def _check_patterns(plan: JobPlan) -> None:
    params, node_of = plan.workload.params, _node_of(plan)
    try:
        benchmark_keys.chosen_patterns(params, node_of)
        benchmark_keys.pair_of(params["pair"], node_of)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if params["window"] < 1:
        raise ConfigError(f"workload.window={params['window']}: it must be at least 1")
    if not 0 < params["slow"] < 1:
        raise ConfigError(f"workload.slow={params['slow']} is not a part of the median: write it as 0.7 or so")
    if not params["slow_latency"] > 1:
        raise ConfigError(
            f"workload.slow_latency={params['slow_latency']} is not a multiple of the median: write it as 3 or so"
        )


def _node_of(plan: JobPlan) -> list[int]:
    return [rank // plan.procs_per_node for rank in range(plan.world_size)]


def _check_operations(plan: JobPlan) -> None:
    params = plan.workload.params
    operations = benchmark_keys.choose("operation", params["op"], benchmark_keys.OPERATIONS)
    kinds = parse_groups(params["groups"])
    for kind in kinds:
        try:
            benchmark_keys.check_root(params["root"], kind, members_of(kind, _node_of(plan)))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if benchmark_keys.chooses_all(params["op"]):  # operations that the backend lacks are left out
        return
    backend = plan.workload.backend
    if backend == "auto" and (plan.workload.device == "cpu" or plan.gpus_per_node == 0):
        backend = "gloo"
    for operation in operations:
        if not benchmark_keys.places_of(operation, params["place"]):
            other = "in" if params["place"] == "out" else "out"
            raise ConfigError(
                f"workload.place={params['place']}: torch.distributed has {operation} only with place={other}: use "
                f"that, or both"
            )
        backends = benchmark_keys.backends_for(operation, params["dtype"], params["redop"])
        if backend != "auto" and backend not in backends:
            of = f" with redop={params['redop']}" if operation in benchmark_keys.REDUCING else ""
            raise ConfigError(
                f"workload.op={operation}: {backend} has no {operation} of {params['dtype']}{of}; "
                f"{', '.join(backends)} {'has' if len(backends) == 1 else 'have'} it (workload.backend)"
            )


class Benchmark(WorkloadHook):
    """The hook of p2p and collective: checks names and sizes, finds a baseline."""

    def prepare(self, config: Config) -> tuple[Workload, tuple[str, ...]]:
        if config.baseline is None:
            return config.workload, ()
        from workloads import benchmark_results

        workload: Collective | P2P = config.workload  # type: ignore[assignment]  # those of conf/workload
        path = Path(str(workload.baseline))
        if path.is_dir():
            path /= benchmark_results.JSON
        try:
            measured = benchmark_results.read(path)
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


def check_training(plan: JobPlan) -> None:
    """Raises ConfigError if some ranks of a training of ours would get no sample of a batch."""
    size = plan.workload.params.get("batch_size")
    if plan.workload.entry.startswith(OUR_CODE) and isinstance(size, int) and size < plan.world_size:
        raise ConfigError(
            f"workload.batch_size={size} leaves some of the {plan.world_size} ranks without a sample: set it to "
            f"{plan.world_size} or more, or use fewer ranks (nodes, procs_per_node)",
            key="workload.batch_size",
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

    def data_sets(self) -> tuple[image_data.Dataset, ...]:
        return tuple(image_data.KNOWN.values())


def _found(name: str, folder: str | None) -> image_data.Found:
    if folder is not None and not unwrap(exists(Path(folder).expanduser())):  # else it would train on `digits`
        raise ConfigError(f"workload.data_dir={folder} is not there: name a folder with data sets, or leave it out")
    try:
        return image_data.find(name, folder)
    except image_data.DatasetError as error:
        raise ConfigError(f"workload.dataset={name}: {error}") from None


class TextTraining(WorkloadHook):
    """The hook of fsdp_lm: finds the text."""

    def __init__(self) -> None:
        self._find = functools.cache(text_data.find)

    def prepare(self, config: Config) -> tuple[FSDPLm, tuple[str, ...]]:
        workload: FSDPLm = config.workload  # type: ignore[assignment]  # that of conf/workload/fsdp_lm.yaml
        text = self._find(workload.text)
        text_data.check(workload, text, config.train.invariant)
        return dataclasses.replace(workload, text=text.name), (f"text: {text.name}, {text.length:,} bytes",)

    def check(self, plan: JobPlan) -> None:
        check_training(plan)

"""What a workload refuses before it is submitted, with the key and the fix."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.keys import WORKLOADS
from launcher.config.schema import P2P, Backend, Collective, DDPMnist, FSDPLm, LaunchMode, Workload
from launcher.errors import ConfigError
from launcher.plan.workload_hook import load
from tests.launch import ROOT
from tests.unit.plans import hook_of, make_config, plan_of
from workloads.hooks import ImageTraining, check_names, check_sweep, check_training


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (P2P("p", "m:f", seed=0, pattern=["sned"]), r"workload\.pattern: .*sned.*send"),
        (P2P("p", "m:f", seed=0, sizes="lots"), r"workload\.sizes: 'lots' is not a size"),
        (Collective("c", "m:f", seed=0, sizes="1G:1M:2"), r"workload\.sizes: .* over the last: write 1M:1G:2"),
        (Collective("c", "m:f", seed=0, sizes=["1K", "0"]), r"workload\.sizes: '0' is zero"),
        (Collective("c", "m:f", seed=0, redop="men"), r"workload\.redop: 'men' is no redop.*Did you mean min"),
        (Collective("c", "m:f", seed=0, place="inn"), r"workload\.place: .*Did you mean in"),
        (Collective("c", "m:f", seed=0, budget="5"), r"workload\.budget: '5' is not a time: write it as 200ms"),
        (Collective("c", "m:f", seed=0, groups=["0-2"]), r"workload\.groups: '0-2': there is no rank 2.*ranks 0 to 1"),
        (P2P("p", "m:f", seed=0, dtype="flaot32"), r"workload\.dtype: .*flaot32.*float32"),
        (Collective("c", "m:f", seed=0, op="all_reduc"), r"workload\.op: .*all_reduc.*all_reduce"),
        (Collective("c", "m:f", seed=0, groups=["nod"]), r"workload\.groups: .*nod.*node"),
    ],
)
def test_names_that_a_workload_does_not_know_are_refused(workload: Workload, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_names(plan_of(workload=workload, nodes=2))


def collective(**keys: Any) -> Collective:
    return Collective(**{"name": "c", "entry": "m:f", "seed": 0, **keys})


@pytest.mark.parametrize(
    ("workload", "keys", "words"),
    [
        (collective(sizes="1M:1G:2"), {"mem": "1G", "procs_per_node": 2},
         "workload.sizes: 1G on each of procs_per_node=2 is more than mem=1G: use smaller sizes or more memory"),
        (P2P("p", "m:f", seed=0, sizes="2G"), {"mem": "1G"}, "workload.sizes: 2G on each of procs_per_node=1 is more"),
        (P2P("p", "m:f", seed=0, backend=Backend.gloo), {"gpus_per_node": 1},
         "workload.backend=gloo: gloo sends and receives no GPU memory: add workload.device=cpu"),
        (collective(iterations=0), {}, "workload.iterations=0, workload.warmup=1: at least 1 iteration"),
        (collective(tolerance=20), {}, "tolerance=20: it is the part of a speed that may be lost, more than 0"),
        (collective(root=2), {}, "workload.root=2: the smallest group of world has 2 ranks, so a root is 0 to 1"),
        (collective(root=1, groups=["world", "node"]), {}, "the smallest group of node has 1 rank, so a root is 0"),
        (collective(op="all_reduce", place="out"), {},
         "workload.place=out: torch.distributed has all_reduce only with place=in: use that, or both"),
        (collective(op=["all_gather", "send_recv"], place="in"), {}, "has send_recv only with place=out"),
        (collective(op="reduce", dtype="int8", redop="avg"), {},
         "workload.op=reduce: gloo has no reduce of int8 with redop=avg; nccl, xccl have it (workload.backend)"),
        (collective(op="reduce_scatter", backend=Backend.mpi), {"launch": {"mode": LaunchMode.tasks}},
         "mpi has no reduce_scatter of float32 with redop=sum; gloo, nccl, xccl have it"),
    ],
)  # fmt: skip
def test_benchmarks_that_could_not_run_are_refused(workload: Workload, keys: dict[str, Any], words: str) -> None:
    plan = plan_of(workload=workload, **{"nodes": 2, **keys})
    check_names(plan)
    with pytest.raises(ConfigError) as refusal:
        check_sweep(plan)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("workload", "keys"),
    [
        (collective(sizes="1G"), {"mem": "1G", "gpus_per_node": 1}),  # a GPU's memory is another one
        (collective(op="all", place="in", redop="avg", dtype="int8"), {}),  # what cannot be run is left out
        (collective(op="reduce", dtype="int8", redop="avg"), {"gpus_per_node": 1}),
        (collective(op="broadcast", dtype="int8", redop="avg"), {}),
        (collective(groups="0-1/2-3", root=1), {"procs_per_node": 2}),
    ],
)
def test_benchmarks_that_can_run_pass(workload: Workload, keys: dict[str, Any]) -> None:
    plan = plan_of(workload=workload, **{"nodes": 2, **keys})
    check_names(plan)
    check_sweep(plan)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_defaults_of_every_workload_pass(name: str) -> None:
    load(hook_of(name)).check(plan_of(workload=WORKLOADS[name]("w", "m:f", seed=0)))


def test_a_submission_needs_no_torch_for_a_hook() -> None:
    code = "import sys, workloads.hooks; assert not {'torch', 'hydra', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (DDPMnist("w", "workloads.ddp:main", seed=0, epochs=0), "workload.epochs=0: it must be 1 or more"),
        (DDPMnist("w", "workloads.ddp:main", seed=0, batch_size=-1), "workload.batch_size=-1: it must be 1 or more"),
        (DDPMnist("w", "workloads.ddp:main", seed=0, lr=-3.0), "workload.lr=-3: it must be a finite number above 0"),
        (DDPMnist("w", "workloads.ddp:main", seed=0, lr=0.0), "workload.lr=0: it must be a finite number above 0"),
        (
            DDPMnist("w", "workloads.ddp:main", seed=0, lr=math.inf),
            "workload.lr=inf: it must be a finite number above 0",
        ),
        (
            DDPMnist("w", "workloads.ddp:main", seed=0, lr=math.nan),
            "workload.lr=nan: it must be a finite number above 0",
        ),
        (
            DDPMnist("w", "workloads.ddp:main", seed=0, bucket_mb=0.0),
            "workload.bucket_mb=0: it must be a finite number above 0",
        ),
        (FSDPLm("w", "workloads.ddp:main", seed=0, steps=-1), "workload.steps=-1: it must be 1 or more"),
        (FSDPLm("w", "workloads.ddp:main", seed=0, clip=-1.0), "workload.clip=-1: it must be 0 or more"),
    ],
)
def test_numbers_with_which_no_training_could_start_are_refused(workload: DDPMnist | FSDPLm, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        plan_of(workload=workload)


@pytest.mark.parametrize("kind", [DDPMnist, FSDPLm])
def test_a_batch_has_a_sample_for_each_rank(kind: type[DDPMnist | FSDPLm]) -> None:
    workload = kind("w", "workloads.training:main", seed=0, batch_size=7)
    check_training(plan_of(workload=workload, nodes=7))
    with pytest.raises(ConfigError, match=r"batch_size=7 leaves some of the 8 ranks without a sample: set it to 8"):
        check_training(plan_of(workload=workload, nodes=2, procs_per_node=4))


def test_a_function_of_the_users_own_may_mean_something_else_by_the_keys_of_a_training() -> None:
    workload = DDPMnist("w", "mine:main", seed=0, batch_size=1, epochs=0, lr=0.0, log_every=0)
    check_training(plan_of(workload=workload, nodes=2))


def test_a_folder_of_data_sets_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Else it would train on the digits that are part of the launcher."""
    workload = DDPMnist("w", "workloads.ddp:main", seed=0, data_dir=str(tmp_path / "misspelt"))
    with pytest.raises(ConfigError, match=rf"workload.data_dir={tmp_path}/misspelt is not there: "):
        ImageTraining().prepare(make_config(workload=workload))
    digits, _ = ImageTraining().prepare(make_config(workload=dataclasses.replace(workload, data_dir=str(tmp_path))))
    assert digits.dataset == "digits"

"""Which GPU a rank sees, which device it computes on, and what it says when there is none."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launcher import errors
from launcher.config.schema import Device, Function, Launch, VisibleDevices, Workload
from launcher.schedulers import topology
from launcher.worker import devices, process_group
from launcher.worker.devices import Accelerators, BackendError, choose_device, visible_device_changes
from tests.unit.plans import plan_of

CUDA, HIP, ROCR, ZE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
AUTO, ONE, ALL = VisibleDevices.auto, VisibleDevices.one, VisibleDevices.all


@pytest.mark.parametrize(
    ("environ", "local_rank", "ranks", "gpus", "wanted", "own_code", "build", "changes"),
    [
        # who wants it
        ({}, 1, 4, 4, AUTO, False, "cuda", {CUDA: "1"}),
        ({}, 1, 4, 4, AUTO, True, "cuda", {}),
        ({}, 1, 4, 4, ONE, True, "cuda", {CUDA: "1"}),
        ({}, 1, 4, 4, ALL, False, "cuda", {}),
        ({}, 1, 4, 0, ONE, False, "cuda", {}),
        # the scheduler's list, in its own words
        ({CUDA: "4,5,6,7"}, 2, 4, 4, AUTO, False, "cuda", {CUDA: "6"}),
        ({CUDA: "GPU-8f2, GPU-77a"}, 1, 2, 2, AUTO, False, "cuda", {CUDA: "GPU-77a"}),
        ({CUDA: "MIG-1,MIG-2"}, 0, 2, 2, AUTO, False, "cuda", {CUDA: "MIG-1"}),
        ({CUDA: "0,1,2,3"}, 0, 1, 4, AUTO, False, "cuda", {CUDA: "0"}),
        # each task has its own, or there is none: nothing is changed
        ({CUDA: "3"}, 3, 4, 4, AUTO, False, "cuda", {}),
        ({CUDA: ""}, 0, 2, 2, AUTO, False, "cuda", {}),
        ({CUDA: "NoDevFiles"}, 0, 2, 2, ONE, False, "cuda", {}),
        ({CUDA: "0,-1,1"}, 0, 2, 2, AUTO, False, "cuda", {}),  # a driver stops at -1
        # too few for the ranks
        ({CUDA: "0,1"}, 1, 4, 2, AUTO, False, "cuda", {}),
        ({}, 3, 4, 2, AUTO, False, "cuda", {}),
        # other makers
        ({}, 1, 2, 2, AUTO, False, "hip", {HIP: "1"}),
        ({ROCR: "2,3"}, 1, 2, 2, AUTO, False, "hip", {ROCR: "3"}),
        ({ROCR: "2,3", HIP: "0,1"}, 1, 2, 2, AUTO, False, "hip", {HIP: "1"}),  # HIP counts within ROCR's
        ({ROCR: "2,3", CUDA: "0,1"}, 1, 2, 2, AUTO, False, "hip", {CUDA: "1"}),
        ({ROCR: "0,1", CUDA: "2,3", ZE: "0,1"}, 1, 2, 2, AUTO, False, "cuda", {CUDA: "3"}),  # Slurm may set them all
        ({}, 1, 2, 2, AUTO, False, "xpu", {ZE: "1"}),
        ({ZE: "0.0,0.1"}, 1, 2, 2, AUTO, False, "xpu", {ZE: "0.1"}),
        # our torch is for CPUs, and the program has another one
        ({}, 1, 2, 2, ONE, True, "", {}),
        ({CUDA: "4,5"}, 1, 2, 2, ONE, True, "", {CUDA: "5"}),
        ({ROCR: "4,5"}, 1, 2, 2, ONE, True, "", {ROCR: "5"}),
    ],
)
def test_what_a_rank_sees(
    environ: dict[str, str], local_rank: int, ranks: int, gpus: int, wanted: VisibleDevices, own_code: bool,
    build: str, changes: dict[str, str],
) -> None:  # fmt: skip
    before = dict(environ)
    found = visible_device_changes(
        environ, local_rank=local_rank, ranks=ranks, gpus_per_node=gpus, wanted=wanted, own_code=own_code, build=build
    )
    assert (found, environ) == (changes, before)


def test_ranks_of_one_node_see_gpus_of_their_own() -> None:
    for environ in ({}, {CUDA: "0,1,2,3"}, {CUDA: "MIG-a,MIG-b,MIG-c,MIG-d"}):
        seen = [
            visible_device_changes(
                environ, local_rank=local, ranks=4, gpus_per_node=4, wanted=ONE, own_code=False, build="cuda"
            )[CUDA]
            for local in range(4)
        ]
        assert len(set(seen)) == 4


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, {devices.ASKED: "2", CUDA: "7"}),
        ({"workload": Workload("w", "m:f", seed=0, device=Device.cpu)}, {devices.ASKED: "2"}),
        ({"workload": Function("w", "m:f", seed=0, target="m:f")}, {devices.ASKED: "2"}),
        ({"launch": {"visible_devices": ALL}}, {devices.ASKED: "2"}),
    ],
)
def test_the_variables_of_a_rank_come_from_the_plan(
    keys: dict[str, Any], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "torch_build", lambda: "cuda")
    environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", CUDA: "6,7"}
    assert devices.variables(plan_of(gpus_per_node=2, **keys), environ) == found


def test_the_key_is_kept_in_the_plan() -> None:
    assert plan_of().launch.visible_devices == Launch().visible_devices.value == "auto"
    assert plan_of(launch={"visible_devices": ONE}).launch.visible_devices == "one"


FOUR, ONLY, NONE = (
    Accelerators("cuda", 4, "2.13.0+cu126"),
    Accelerators("cuda", 1, "2.13.0+cu126"),
    Accelerators("cuda", 0, "2.13.0+cu126"),
)


@pytest.mark.parametrize(
    ("wanted", "asked", "seen", "local_rank", "ranks", "device"),
    [
        ("cpu", 4, FOUR, 0, 4, ("cpu", None)),
        ("auto", 0, NONE, 0, 1, ("cpu", None)),
        ("auto", 0, Accelerators("", 0, "2.13.0+cpu"), 0, 1, ("cpu", None)),
        ("auto", 0, FOUR, 2, 4, ("cuda", 2)),
        ("auto", 4, FOUR, 3, 4, ("cuda", 3)),
        ("cuda", 0, FOUR, 1, 4, ("cuda", 1)),
        ("auto", 4, ONLY, 3, 4, ("cuda", 0)),  # its own one alone, whatever its local rank
        ("auto", 2, Accelerators("xpu", 2, "2.13.0+xpu"), 1, 2, ("xpu", 1)),
        ("auto", 1, FOUR, 1, 2, ("cuda", 0)),  # no more GPUs than were asked for
    ],
)
def test_the_device_of_a_rank(
    wanted: str, asked: int, seen: Accelerators, local_rank: int, ranks: int, device: tuple[str, int | None]
) -> None:
    found = choose_device(wanted, asked, seen, rank=5, local_rank=local_rank, ranks=ranks, host="node1")
    assert found == device


@pytest.mark.parametrize(
    ("wanted", "asked", "seen", "words"),
    [
        ("auto", 2, Accelerators("", 0, "2.13.0+cpu"), ["gpus_per_node=2", "torch 2.13.0+cpu was built for CPUs only"]),
        ("cuda", 0, Accelerators("", 0, "2.13.0+cpu"), ["device=cuda asks for a GPU", "CPUs only"]),
        (
            "auto", 2, Accelerators("cuda", 0, "2.13.0+cu126", "CUDA_VISIBLE_DEVICES=", "No CUDA GPUs are available"),
            ["finds none with CUDA_VISIBLE_DEVICES=;", "the driver says: No CUDA GPUs are available"],
        ),
        ("cuda", 0, Accelerators("xpu", 2, "2.13.0+xpu"), ["device=cuda", "torch 2.13.0+xpu finds 2"]),
        ("auto", 4, FOUR, ["8 ranks on node1 with 4 GPUs", "procs_per_node=4"]),
        ("auto", 2, FOUR, ["8 ranks on node1 with 2 GPUs", "procs_per_node=2"]),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_by_name(wanted: str, asked: int, seen: Accelerators, words: list[str]) -> None:
    with pytest.raises(BackendError) as refused:
        choose_device(wanted, asked, seen, rank=5, local_rank=5, ranks=8, host="node1")
    assert all(word in str(refused.value) for word in [*words, "node1"]), refused.value
    assert refused.value.exit_code == errors.NO_RETRY


CPU_ONLY = Accelerators("", 0, "2.13.0+cpu")


@pytest.mark.parametrize(
    ("wanted", "asked", "seen", "other_torch", "environ", "files", "words"),
    [
        ("auto", 0, CPU_ONLY, False, {}, [], ""),
        ("cpu", 2, CPU_ONLY, False, {}, [], ""),
        ("auto", 2, FOUR, False, {}, [], ""),
        ("auto", 2, NONE, False, {}, ["/dev/nvidia0"], "torch 2.13.0+cu126 finds none"),
        ("cuda", 0, NONE, False, {}, [], "device=cuda asks for a GPU"),
        ("auto", 2, NONE, True, {}, ["/dev/nvidia0"], ""),  # its own torch may fit the driver
        ("auto", 2, NONE, True, {}, [], "sees no GPU: /dev has no nvidia[0-9]*, kfd"),
        ("auto", 2, CPU_ONLY, False, {}, ["/dev/kfd"], ""),  # it may compute with something else than torch
        (
            "auto",
            2,
            CPU_ONLY,
            False,
            {},
            [],
            "gpus_per_node=2 with device=auto asks for a GPU, and rank 5 on node1",
        ),
        ("auto", 2, CPU_ONLY, False, {CUDA: "GPU-a", "ZE_AFFINITY_MASK": ""}, [], ""),
        ("auto", 2, CPU_ONLY, False, {CUDA: ""}, ["/dev/nvidia0"], "sees no GPU: CUDA_VISIBLE_DEVICES="),
        ("auto", 2, CPU_ONLY, True, {CUDA: "", "ZE_AFFINITY_MASK": "-1"}, ["/dev/kfd"], "ES=, ZE_AFFINITY_MASK=-1"),
    ],
)
def test_own_code_that_wants_a_gpu_is_refused_where_none_is_visible(
    wanted: str, asked: int, seen: Accelerators, other_torch: bool, environ: dict[str, str], files: list[str],
    words: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(devices, "find_accelerators", lambda _: seen)
    monkeypatch.setattr(devices.hardware, "device_files", lambda: files)
    with pytest.raises(BackendError) if words else contextlib.nullcontext() as refused:
        devices.require_gpu(wanted, asked, environ, other_torch=other_torch, rank=5, host="node1")
    if refused is not None:
        assert words in str(refused.value)
        assert refused.value.exit_code == errors.NO_RETRY


class Driver:
    """Records what is asked of an accelerator that is not there."""

    def __init__(self, count: int, error: str = "") -> None:
        self.count, self.error, self.current = count, error, None

    def device_count(self) -> int:
        return self.count

    def init(self) -> None:
        raise RuntimeError(f"{self.error}\nmore")

    def set_device(self, device: torch.device) -> None:
        self.current = device


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    monkeypatch.setattr(torch, "cuda", driver)
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="12.6", hip=None))
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu126")
    return driver


@pytest.mark.parametrize(
    ("driver", "environ", "seen"),
    [
        (Driver(2), {}, ("cuda", 2, "CUDA_VISIBLE_DEVICES not set", "")),
        (
            Driver(0, "Found no NVIDIA driver"),
            {CUDA: "3"},
            ("cuda", 0, "CUDA_VISIBLE_DEVICES=3", "Found no NVIDIA dri"),
        ),
    ],
)
def test_what_a_process_sees(
    driver: Driver, environ: dict[str, str], seen: tuple[str, int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, driver)
    found = devices.find_accelerators(environ)
    assert (found.kind, found.count, found.mask, found.error[:19]) == seen


PLACE = topology.derive(
    {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node1",
        "MASTER_PORT": "1",
    },
    "node1",
    lambda path: "",
)  # fmt: skip


def test_a_rank_with_one_visible_gpu_makes_it_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = with_driver(monkeypatch, Driver(1))
    assert process_group._device("auto", PLACE, "node1") == driver.current == torch.device("cuda", 0)
    driver = with_driver(monkeypatch, Driver(4))
    assert process_group._device("auto", PLACE, "node1") == driver.current == torch.device("cuda", 3)


def test_gpus_that_were_asked_for_are_not_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, Driver(0, "No CUDA GPUs are available"))
    monkeypatch.delenv(devices.ASKED, raising=False)
    assert process_group._device("auto", PLACE, "node1") == torch.device("cpu")  # outside of a run
    monkeypatch.setenv(devices.ASKED, "4")
    with pytest.raises(BackendError, match=r"gpus_per_node=4 with device=auto .* rank 3 on node1 sees no GPU"):
        process_group._device("auto", PLACE, "node1")
    assert process_group._device("cpu", PLACE, "node1") == torch.device("cpu")


def test_the_backend_follows_the_device() -> None:
    assert process_group._backend("auto", torch.device("cpu")) == "gloo"
    with pytest.raises(BackendError, match="backend=ucc: it must be auto"):
        process_group._backend("ucc", torch.device("cpu"))


def test_a_rank_on_the_cpu_initialises_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it forks could not use one any more."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it asks CUDA"))
    assert process_group._backend("gloo", torch.device("cpu")) == "gloo"


def test_what_is_seen_is_a_value() -> None:
    assert dataclasses.replace(FOUR, count=1) == ONLY

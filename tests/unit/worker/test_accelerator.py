"""What a rank asks of its device is asked of torch's module for its kind: CUDA and ROCm, XPU, the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from launcher.agent import preflight_checks as checks
from launcher.checkpoint import resumable, saving
from launcher.schedulers import topology
from launcher.worker import devices, process_group
from launcher.worker.devices import BackendError
from tests.fakes import xpu
from tests.unit.plans import plan_of
from workloads import hardware_limits, measurement, training
from workloads.across_ranks import WorkloadError

CPU, XPU = torch.device("cpu"), torch.device("xpu", 1)
OLD = pytest.mark.parametrize("old", [False, True], ids=["newest torch", "torch 2.4"])


def test_the_cpu_is_no_accelerator() -> None:
    devices.synchronize(CPU)
    assert (devices.module(CPU), devices.name(CPU), devices.memory(CPU)) == (None, "", None)
    assert not devices.has_bfloat16(CPU)
    assert devices.of_backend("gloo") == CPU


@OLD
def test_an_xpu_is_asked_in_its_own_words_and_for_nothing_that_its_torch_lacks(
    monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    fake = xpu.install(monkeypatch, old=old)
    devices.synchronize(XPU)
    assert fake.calls == [("synchronize", XPU)]
    assert devices.name(XPU) == xpu.NAME
    assert devices.memory(XPU) == (None if old else (3 << 30, 64 << 30))
    assert devices.has_bfloat16(XPU) is not old
    assert training.autocast_dtype("auto", XPU) is (None if old else torch.bfloat16)
    if old:
        with pytest.raises(WorkloadError, match="this rank computes on Intel"):
            training.autocast_dtype("bfloat16", XPU)


@OLD
@pytest.mark.parametrize(("wanted", "found"), [("auto", XPU), ("xpu", XPU), ("cpu", CPU)])
def test_a_rank_has_the_xpu_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, old: bool, wanted: str, found: torch.device
) -> None:
    fake = xpu.install(monkeypatch, old=old)
    place = topology.derive({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                             "MASTER_ADDR": "node1", "MASTER_PORT": "1"}, "node1", lambda path: "")  # fmt: skip
    assert process_group._device(wanted, place, "node1") == found
    assert fake.calls == ([("set_device", XPU)] if found == XPU else [])
    with pytest.raises(BackendError, match=r"rank 1 on node1 sees no GPU: torch .* finds 2"):
        process_group._device("cuda", place, "node1")


def test_an_xpu_that_is_gone_is_named_with_the_drivers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    xpu.install(monkeypatch, devices=0)
    seen = devices.find_accelerators({"ZE_AFFINITY_MASK": "3"})
    assert (seen.kind, seen.count, seen.mask) == ("xpu", 0, "ZE_AFFINITY_MASK=3")
    assert "the driver says: No XPU devices are available." in seen.text


def test_the_backend_of_an_xpu_is_xccl_or_missing_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    xpu.install(monkeypatch)
    assert process_group._backend("auto", XPU) == process_group._backend("xccl", XPU) == "xccl"
    with pytest.raises(BackendError, match="backend=xccl sends what is on a GPU, and device=cpu: use gloo"):
        process_group._backend("xccl", CPU)
    assert devices.of_backend("xccl") == torch.device("xpu", 0)
    monkeypatch.setattr(dist, "get_backend", lambda group: "xccl")
    assert process_group._device_of(None) == torch.device("xpu", 0)
    xpu.install(monkeypatch, old=True)
    with pytest.raises(BackendError, match=r"backend=xccl: xccl needs an XPU and .*here you can use"):
        process_group._backend("auto", XPU)


def test_tiles_of_one_card_are_several_xpus(monkeypatch: pytest.MonkeyPatch) -> None:
    xpu.install(monkeypatch)
    one = torch.device("xpu", 0)

    def gpu(mask: dict[str, str], device: torch.device = one, host: str = "node1") -> str:
        return process_group.facts_of(0, host, device, "xccl", mask).gpu

    assert gpu({"ZE_AFFINITY_MASK": "4"}) == gpu({"ZE_AFFINITY_MASK": "4"})
    assert len({gpu({}), gpu({}, XPU), gpu({"ZE_AFFINITY_MASK": "4"}), gpu({"ZE_AFFINITY_MASK": "5"}),
                gpu({}, host="node2")}) == 5  # fmt: skip


def test_calls_are_timed_by_the_events_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = xpu.install(monkeypatch)
    took = measurement.time_on_device(
        lambda: fake.calls.append(("call",)), lambda: fake.calls.append(("barrier",)), 2, XPU
    )  # fmt: skip
    assert took == [0.002, 0.002]
    assert [each[0] for each in fake.calls] == ["barrier", "synchronize", "record", *["call", "record"] * 2,
                                                "synchronize"]  # fmt: skip


@pytest.mark.parametrize("initialized", [False, True])
def test_generators_of_an_xpu_are_seeded_kept_and_restored(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    fake = xpu.install(monkeypatch, initialized=initialized)
    devices.seed(7)
    assert fake.calls == ([("manual_seed", 7)] if initialized else [])
    fake.calls.clear()
    state = resumable.generators(XPU)
    assert state["xpu"].item() == 1
    resumable.restore_generators(state, XPU)
    assert fake.calls == [("set_rng_state", 1, XPU)]
    assert "xpu" not in resumable.generators(CPU)


@OLD
def test_a_preflight_takes_the_xpus_that_were_asked_for(monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    xpu.install(monkeypatch, old=old)
    assert checks.device(plan_of(gpus_per_node=2), 1) == XPU
    with pytest.raises(checks.CheckProblem) as raised:
        checks.device(plan_of(gpus_per_node=3), 1)
    assert raised.value.found.startswith("torch sees 2 GPUs, and gpus_per_node=3 asks for 3: see what")
    assert checks.compute(CPU) == "cpu"


@pytest.mark.parametrize(
    ("kind", "old", "pins"),
    [("cuda", True, True), ("xpu", False, True), ("xpu", True, False), ("cpu", False, False)],
)
def test_the_hosts_memory_is_pinned_where_torch_can(
    monkeypatch: pytest.MonkeyPatch, kind: str, old: bool, pins: bool
) -> None:
    xpu.install(monkeypatch, old=old)
    assert saving._pins(torch.device(kind)) is pins


def test_what_a_rank_can_allocate_is_its_xpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    xpu.install(monkeypatch)
    env = type("Env", (), {"device": XPU})()
    assert hardware_limits.available_memory(env) == 3 << 30

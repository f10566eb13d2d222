"""Which accelerator and network device a rank uses: masks of schedulers and containers, slices of MIG, devices gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.binding import hardware, masks
from launcher.binding.hardware import Node
from launcher.binding.masks import DeviceError
from tests.unit.binding import trees

UUID = "GPU-0000000{}-0000-0000-0000-000000000000"


def addresses(node: Node, environ: dict[str, str]) -> list[str]:
    return [gpu.name for gpu in masks.visible_gpus(node, environ)]


@pytest.mark.parametrize(
    ("mask", "buses"),
    [
        (None, "07 46 85 c7"),
        ("2,0", "85 07"),
        ("", ""),
        ("1,-1,2", "46"),  # the driver ignores what follows
        ("NoDevFiles", ""),
        (UUID.format(3), "c7"),
        ("GPU-00000001", "46"),
        (f"MIG-{UUID.format(2)}/7/0", "85"),
        (f"MIG-{UUID.format(2)}/7/0,MIG-{UUID.format(2)}/8/0", "85 85"),
    ],
)
def test_masks_of_nvidia(mask: str | None, buses: str) -> None:
    node = trees.read("polaris")
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert addresses(node, environ) == [f"0000:{bus}:00.0" for bus in buses.split()]


def test_masks_of_rocm_count_within_each_other() -> None:
    node = trees.read("lumi-g")
    environ = {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1"}
    assert addresses(node, environ) == ["0000:d6:00.0"]
    assert addresses(node, {**environ, "CUDA_VISIBLE_DEVICES": "2,3"}) == ["0000:d6:00.0"]  # HIP does not read it then
    both = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "7,6")
    assert addresses(node, both) == addresses(node, {"CUDA_VISIBLE_DEVICES": "7,6"})


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0.1,3.0", ["0000:18:00.0.1", "0001:18:00.0.0"]),
        ("2", ["0000:42:00.0.0"]),
    ],
)
def test_masks_of_level_zero_name_tiles(mask: str, names: list[str]) -> None:
    assert addresses(trees.read("aurora"), {"ZE_AFFINITY_MASK": mask}) == names


def test_tiles_are_no_devices_where_cards_are(tmp_path: Path) -> None:
    trees.build(tmp_path, trees.description("aurora"))
    assert len(hardware.read(tmp_path, {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}).gpus) == 6


def test_a_slice_of_mig_without_its_gpus_uuid_is_asked_of_nvidias_library(monkeypatch: pytest.MonkeyPatch) -> None:
    node = trees.read("polaris")
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-11111111-2222"}
    monkeypatch.setattr(hardware, "parent_of_slice", {"MIG-11111111-2222": "0000:85:00.0"}.get)
    assert [gpu.address for gpu in masks.visible_gpus(node, environ)] == ["0000:85:00.0"]
    monkeypatch.setattr(hardware, "parent_of_slice", lambda uuid: None)
    with pytest.raises(DeviceError) as refused:
        masks.visible_gpus(node, environ)
    assert str(refused.value) == (
        "CUDA_VISIBLE_DEVICES names MIG-11111111-2222, a MIG instance: only NVIDIA's library can tell which GPU it is "
        "on"
    )


def test_gpus_of_other_jobs_are_not_counted(tmp_path: Path) -> None:
    """A cgroup keeps this process from them, and CUDA_VISIBLE_DEVICES counts among the others."""
    trees.build(tmp_path, trees.description("polaris"))
    (tmp_path / "dev/nvidia0").unlink()
    assert addresses(hardware.read(tmp_path, {}), {"CUDA_VISIBLE_DEVICES": "0"}) == ["0000:46:00.0"]


def test_a_container_shows_its_own_gpus_in_proc_alone(tmp_path: Path) -> None:
    trees.build(tmp_path, trees.description("dgx-h100"))
    for address in ("0000:1b:00.0", "0000:43:00.0"):
        shutil.rmtree(tmp_path / "proc/driver/nvidia/gpus" / address)
    assert addresses(hardware.read(tmp_path, {}), {})[0] == "0000:52:00.0"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("0,0", "CUDA_VISIBLE_DEVICES=0,0 names 0 twice"),
        ("1,GPU-00000001-", "names one GPU as 1 and as GPU-00000001-"),
        ("0,4", "names GPU 4, and this process may use 4 GPUs here"),
        ("GPU-dead", "no GPU here is that: it is gone, or not this job's"),
        ("", "no accelerator is found in /sys or /proc"),
    ],
)
def test_what_is_not_there_or_twice_is_named(mask: str, words: str) -> None:
    with pytest.raises(DeviceError) as refused:
        masks.of_ranks(trees.read("polaris"), {"CUDA_VISIBLE_DEVICES": mask}, range(2), gpus=True)
    assert words in str(refused.value)


def test_models_that_differ_are_numbered_by_the_bus_only_if_cuda_is_told_so(tmp_path: Path) -> None:
    about = trees.description("polaris")
    about["gpus"][1][3] = "NVIDIA T4"
    trees.build(tmp_path, about)
    unbound = hardware.read(tmp_path, {}).unbound
    assert unbound is not None
    assert "GPUs of different models (NVIDIA A100-SXM4-40GB, NVIDIA T4), which CUDA" in unbound.text
    assert hardware.read(tmp_path, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).unbound is None


def test_each_rank_has_the_nic_that_its_site_pairs_with_its_gpu() -> None:
    node = trees.read("polaris")
    ranks = masks.of_ranks(node, {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, range(4), gpus=True, pairs=["hsn1", "hsn0"])
    assert [(rank.gpu.address[5:7], rank.nic.name) for rank in ranks if rank.gpu and rank.nic] == [
        ("c7", "mlx5_0"), ("85", "mlx5_1"), ("46", "mlx5_0"), ("07", "mlx5_1")
    ]  # fmt: skip


def test_a_nic_that_is_not_there_is_named() -> None:
    with pytest.raises(DeviceError) as refused:
        masks.of_ranks(trees.read("polaris"), {}, range(4), gpus=True, pairs=["hsn7"])
    assert str(refused.value) == "cluster.nics names hsn7, and there is mlx5_0, mlx5_1"


def test_nics_have_the_names_and_speeds_of_infiniband_and_of_interfaces() -> None:
    node = trees.read("miyabi-g")
    assert [(nic.name, nic.interface, nic.numa, nic.speed) for nic in node.nics] == [("mlx5_0", "ibP2s2", 0, 200)]


def test_a_nic_without_a_link_is_left_out(tmp_path: Path) -> None:
    trees.build(tmp_path, trees.description("perlmutter"))
    (tmp_path / "sys/class/net/hsn2/operstate").write_text("down\n")
    assert [nic.name for nic in hardware.read(tmp_path, {}).nics] == ["hsn0", "hsn1", "hsn3"]

"""Descriptions of nodes whose files say less than usual. Those of whole ones: test_masks.py, test_devices.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.binding import hardware
from launcher.binding.hardware import CPUS, Core, no_topology
from tests.unit.binding import trees


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dgx-a100", "2 sockets, 8 NUMA nodes, 128 cores of 2 threads, 8 NVIDIA A100-SXM4-40GB GPUs"),
        ("miyabi-g", "1 socket, 1 NUMA node, 72 cores, 1 NVIDIA GH200 120GB GPU"),
        ("no-smt", "2 sockets, 2 NUMA nodes, 56 cores"),
        ("aurora", "2 sockets, 2 NUMA nodes, 104 cores of 2 threads, 12 intel GPUs"),
    ],
)
def test_a_node_type_in_words(name: str, kind: str) -> None:
    assert trees.read(name).kind == kind


def test_a_kernel_of_another_age_has_other_names_for_the_same_lists(tmp_path: Path) -> None:
    trees.build(tmp_path, trees.description("polaris"))
    known = hardware.read(tmp_path, {})
    for path in {each.resolve() for each in tmp_path.glob("sys/devices/system/cpu/cpu*/topology")}:
        (path / "core_cpus_list").rename(path / "thread_siblings_list")
        (path / "package_cpus_list").rename(path / "core_siblings_list")
    assert hardware.read(tmp_path, {}) == known


def test_without_sysfs_nothing_is_known_and_that_is_told(tmp_path: Path) -> None:
    assert hardware.read(tmp_path, {}).unbound == no_topology(CPUS)


def test_without_the_folder_of_a_cores_neighbours_nothing_is_known_of_cores(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-3\n")
    node = hardware.read(tmp_path, {})
    assert (node.cores, node.unbound) == (
        (), no_topology(f"{CPUS}/cpu0/topology")
    )  # fmt: skip


def test_a_cpu_that_is_offline_is_no_thread_of_its_core(tmp_path: Path) -> None:
    about = trees.description("polaris")
    trees.build(tmp_path, about)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-31\n")  # SMT is switched off
    assert hardware.read(tmp_path, {}).cores[0] == Core((0,), 0, 0, 0)


def test_this_node_has_all_cpus_that_this_process_may_use() -> None:
    assert os.sched_getaffinity(0) <= {cpu for core in hardware.read().cores for cpu in core.cpus}

"""A plan that the site could never run is refused before the scheduler sees it, with the limit and the fix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.binding import hardware
from launcher.binding.hardware import Gpu, Node
from launcher.config.schema import Cluster, Device, Limits, Pool, Workload
from launcher.errors import ConfigError
from launcher.plan.limits import check_gpus, check_jobs, check_limits
from tests.unit.plans import make_cluster, plan_of

LIMITS = Limits(nodes=4, gpus_per_node=2, cpus_per_node=8, mem_per_node="16G", time="2h")


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"nodes": 4, "gpus_per_node": 2, "cpus_per_proc": 4, "mem": "16G", "time": "2h"},
        {"procs_per_node": 8},
    ],
)
def test_what_the_profile_allows_passes(keys: dict[str, Any]) -> None:
    check_limits(plan_of(**keys), Cluster(limits=LIMITS))


def test_a_profile_without_limits_allows_everything() -> None:
    check_limits(plan_of(nodes=9999, gpus_per_node=99, mem="9P", time="99d"), Cluster())


HERE = "the profile of cluster=here"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"nodes": 5}, f"nodes=5: {HERE} allows 4 (cluster.limits.nodes): use nodes=4 or less"),
        ({"gpus_per_node": 3}, f"gpus_per_node=3: {HERE} has 2 on a node (cluster.limits.gpus_per_node): "
                               "use gpus_per_node=2 or less"),
        ({"procs_per_node": 3, "cpus_per_proc": 3}, f"procs_per_node=3 x cpus_per_proc=3 is 9 CPUs, and {HERE} has 8 "
                                                    "on a node: lower one of the two"),
        ({"mem": "17G"}, f"mem=17G: {HERE} has 16G on a node: ask for less"),
        ({"time": "121m"}, f"time=02:01:00: {HERE} allows 02:00:00: use time=02:00:00 or less"),
    ],
)  # fmt: skip
def test_more_than_the_profile_allows_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_limits(plan_of(**keys), Cluster(limits=LIMITS))
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("key", "value"),
    [("time", "soon"), ("min_time", "soon"), ("mem_per_node", "lots"), ("time_by_nodes", {1: "soon"})],
)
def test_a_limit_that_cannot_be_read_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^cluster\.limits\.{key}: '(soon|lots)' is not"):
        check_limits(plan_of(), Cluster(limits=Limits(**{key: value})))


def test_a_limit_of_memory_without_a_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.limits\.mem_per_node: '16' has no unit: write 16G, or 16M"):
        check_limits(plan_of(), Cluster(limits=Limits(mem_per_node="16")))


# What a site asks for in other ways than as the most of something.
@pytest.mark.parametrize(
    ("limits", "keys", "words"),
    [
        (Limits(min_nodes=10), {"nodes": 2}, f"nodes=2: {HERE} wants 10 at least: use nodes=10"),
        (Limits(min_gpus_per_node=1), {}, f"gpus_per_node=0: {HERE} wants 1 at least: use gpus_per_node=1"),
        (Limits(min_time="5m"), {"time": "3m"}, f"time=00:03:00: {HERE} wants 00:05:00 at least: use time=00:05:00"),
        (
            Limits(gpus=32), {"nodes": 5, "gpus_per_node": 8},
            f"gpus_per_node=8 x nodes=5 is 40 GPUs, and {HERE} allows 32: lower one of the two",
        ),
        (
            Limits(cpus_per_gpu=20), {"gpus_per_node": 4, "cpus_per_proc": 14},
            f"procs_per_node=4 x cpus_per_proc=14 is 56 CPUs, and {HERE} wants 20 with each GPU: use cpus_per_proc=20",
        ),
        (
            Limits(node_hours=1.5), {"nodes": 4, "time": "30m"},
            f"nodes=4 x time=00:30:00 is 2 node-hours, and {HERE} allows 1.5: lower one of the two",
        ),
        (
            Limits(time_by_nodes={1: "2h", 92: "6h", 184: "12h"}), {"nodes": 2, "time": "3h"},
            f"time=03:00:00: {HERE} allows 02:00:00 to fewer than 92 nodes: use time=02:00:00 or less, or nodes=92",
        ),
        (
            Limits(time_by_nodes={1: "2h", 92: "6h"}), {"nodes": 92, "time": "7h"},
            f"time=07:00:00: {HERE} allows 06:00:00: use time=06:00:00 or less",
        ),
    ],
)  # fmt: skip
def test_what_a_site_wants_besides_is_compared_too(limits: Limits, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_limits(plan_of(**keys), Cluster(limits=limits))
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("limits", "keys"),
    [
        (Limits(time_by_nodes={1: "2h", 92: "6h"}), {"nodes": 92, "time": "6h"}),
        (Limits(time_by_nodes={10: "3h"}), {"nodes": 2, "time": "9h"}),  # min_nodes is another limit
        (Limits(cpus_per_gpu=20), {"procs_per_node": 1}),
        (Limits(node_hours=1.5), {"nodes": 2, "time": "45m"}),
    ],
)
def test_what_is_just_enough_passes(limits: Limits, keys: dict[str, Any]) -> None:
    check_limits(plan_of(**keys), Cluster(limits=limits))


@pytest.mark.parametrize(("scheduler", "key"), [("slurm", "partition"), ("slurm", "qos"), ("pbs", "queue")])
def test_the_limits_of_a_pool_count_for_its_jobs_alone(scheduler: str, key: str) -> None:
    pools = {"short": Pool(limits=Limits(time="30m"))}
    check_limits(plan_of(), Cluster(pools=pools))
    with pytest.raises(ConfigError, match="time=01:00:00: short of cluster=here allows 00:30:00: use time=00:30:00"):
        check_limits(plan_of(), make_cluster(scheduler, pools=pools, **{key: "short"}))


PER_USER = make_cluster(
    "pbs",
    name="polaris",
    queue="debug-scaling",
    limits=Limits(jobs=20),
    pools={"debug-scaling": Pool(limits=Limits(jobs=1))},
)


@pytest.mark.parametrize(
    ("more", "there"),
    [(1, {}), (1, {"": 19, "prod": 19})],
)
def test_a_user_may_have_as_many_jobs_as_the_profile_allows(more: int, there: dict[str, int]) -> None:
    check_jobs(PER_USER, more, there)


ONE = "debug-scaling of cluster=polaris takes 1 job of a user, waiting or running, and"


@pytest.mark.parametrize(
    ("more", "there", "words"),
    [
        (1, {"": 1, "debug-scaling": 1}, f"{ONE} you have 1: wait until it is over, or use another partition or queue"),
        (3, {}, f"{ONE} this would be 3: submit fewer, or use cluster=allocation"),
        (1, {"": 20}, "cluster=polaris takes 20 jobs of a user, waiting or running, and you have 20: wait until they "
                      "are over, or use another partition or queue"),
    ],
)  # fmt: skip
def test_more_jobs_than_a_user_may_have_are_refused(more: int, there: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_jobs(PER_USER, more, there)
    assert str(refusal.value) == words


TWO = (Gpu("0000:01:00.0"), Gpu("0000:02:00.0"))
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A function that chooses this machine's GPUs, its files of GPUs, and what NVIDIA's driver shows of them."""

    def choose(gpus: Sequence[Gpu], files: Sequence[str] = (), shown: str | None = None) -> None:
        if shown is not None:
            (tmp_path / shown).mkdir(parents=True)
        monkeypatch.setattr(hardware, "NVIDIA_GPUS", str(tmp_path / "gpus"))
        monkeypatch.setattr(hardware, "NVIDIA_SLICES", str(tmp_path / "capabilities"))
        monkeypatch.setattr(hardware, "read", lambda environ: Node(gpus=tuple(gpus)))
        monkeypatch.setattr(hardware, "device_files", lambda: files)
        monkeypatch.setattr(hardware, "parent_of_slice", lambda uuid: None)

    return choose


@pytest.mark.parametrize(
    ("gpus", "files", "mask", "asked", "device", "words"),
    [
        (TWO, ["/dev/nvidia0"], {}, 2, Device.auto, ""),
        (TWO, ["/dev/nvidia0"], {}, 8, Device.auto,
         "gpus_per_node=8: this machine has 2 GPUs that this shell may use: use gpus_per_node=2, or submit to a "
         "cluster (cluster=NAME); cluster.check=false leaves this check out"),
        (TWO, ["/dev/nvidia0"], {"CUDA_VISIBLE_DEVICES": "1"}, 2, Device.auto,
         "gpus_per_node=2: this machine has 1 GPU that"),
        (TWO, ["/dev/nvidia0"], {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, 3, Device.auto, ""),  # it cannot be known
        ((), [], {}, 1, Device.auto,
         "gpus_per_node=1: this machine has 0 GPUs that this shell may use: leave it out, to compute on the CPU, or"),
        ((), ["/dev/dxg"], {}, 1, Device.auto, ""),  # of WSL, which has no file for each GPU
        ((), [], {}, 8, Device.cpu, ""),
        ((), [], {}, 0, Device.auto, ""),
    ],
)  # fmt: skip
def test_more_gpus_than_this_machine_has_are_refused(
    gpus: tuple[Gpu, ...], files: list[str], mask: dict[str, str], asked: int, device: Device, words: str,
    machine: Machine,
) -> None:  # fmt: skip
    machine(gpus, files)
    workload = Workload("work", "my.module:main", device=device, seed=0)
    plan = plan_of(cluster={"scheduler": "local"}, gpus_per_node=asked, workload=workload)
    with pytest.raises(ConfigError) if words else contextlib.nullcontext() as refused:
        check_gpus(plan, mask)
    assert refused is None or str(refused.value).startswith(words)


@pytest.mark.parametrize(
    "keys",
    [
        {"cluster": {"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}}},
        {"cluster": {"environment": {"CUDA_VISIBLE_DEVICES": None}}},
        {"cluster": {"setup": ("unset CUDA_VISIBLE_DEVICES",)}},
    ],
)
def test_gpus_are_counted_as_ranks_may_see_them(keys: dict[str, Any], machine: Machine) -> None:
    machine(TWO, ["/dev/nvidia0"])
    plan = plan_of(gpus_per_node=2, cluster={"scheduler": "local", **keys["cluster"]})
    check_gpus(plan, {"CUDA_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize(("file", "gpus"), [("gpus/0000:01:00.0", ()), ("capabilities/gpu0/mig/gi1", TWO)])
def test_what_the_driver_of_gpus_may_show_later_is_not_refused(
    file: str, gpus: tuple[Gpu, ...], machine: Machine
) -> None:
    machine(gpus, shown=file)
    check_gpus(plan_of(gpus_per_node=7, cluster={"scheduler": "local"}), {})

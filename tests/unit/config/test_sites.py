"""The profiles of well-known sites in conf/cluster/: each renders, and has what the site's own documentation has."""

from __future__ import annotations

import copy
import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launcher.config import profiles
from launcher.config.compose import typed
from launcher.config.schema import Config, LaunchMode
from launcher.errors import ConfigError
from launcher.paths import resource
from launcher.plan.build import PlanFacts
from launcher.plan.limits import pools_of
from launcher.submission import render, resume
from launcher.submission.prepare import Inputs, planned, with_pool

FOLDER = resource("conf") / "cluster"
SITES = sorted({path.stem for path in FOLDER.glob("*.yaml")} - profiles.bases())
# What fills a node: GPUs, CPUs for each.
NODE = {
    "perlmutter": (4, 32), "lumi-g": (8, 7), "frontier": (8, 7), "roihu": (4, 72),
    "juwels-booster": (4, 12), "jupiter": (4, 72), "leonardo": (4, 8), "alps": (4, 72), "snellius": (4, 16),
    "marenostrum5": (4, 20),
    "polaris": (4, 16), "derecho": (4, 16), "casper": (4, 1), "aurora": (12, 8), "abci": (8, 12), "aspire2a": (8, 1),
    "aspire2a-plus": (8, 1), "gadi": (4, 12), "miyabi-g": (1, 72), "tsubame4": (4, 8),
}  # fmt: skip


@functools.cache
def profile(name: str) -> Config:
    """The config of a run there, as `cluster=NAME` composes it; nobody may change it."""
    resume.register()
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        return typed(compose("config", ["workload=collective", "runs_dir=/runs", f"cluster={name}"]))


def rendered(name: str, *, required: bool = True, launch: str = "agent", **keys: Any) -> render.RenderedScript:
    """A run's script, in which it is checked against the profile's limits, and what its driver is told."""
    config = copy.deepcopy(profile(name))
    config.launch.mode = LaunchMode(launch)
    for key in config.cluster.required if required else ():
        if "." not in key:
            setattr(config.cluster, key, "abc123")
    if required and name == "gadi":
        config.cluster.resources["storage"] = "scratch/abc123"
    if required and name == "miyabi-g":
        config.cluster.directives["W"] = ["group_list=abc123"]
    config = with_pool(replace(config, **keys))
    plan, _ = planned(config, PlanFacts("run-1", "/runs/run-1", "python3", None, "/home/me"), Inputs())
    return render.rendered(plan, token="t")


def script_of(name: str, **keys: Any) -> list[str]:
    return rendered(name, **keys).script.splitlines()


def full_node(name: str, nodes: int, **keys: Any) -> list[str]:
    gpus, cpus = NODE[name]
    return script_of(name, nodes=nodes, gpus_per_node=gpus, cpus_per_proc=cpus, **keys)


def job_of(name: str) -> dict[str, Any]:
    gpus, cpus = NODE[name]
    job: dict[str, Any] = json.loads(rendered(name, nodes=2, gpus_per_node=gpus, cpus_per_proc=cpus).job)
    return job


def test_every_profile_is_tested() -> None:
    assert set(SITES) == set(NODE)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", ["agent", "tasks"])
@pytest.mark.parametrize("name", SITES)
def test_a_profile_renders_for_whole_nodes(name: str, nodes: int, mode: str) -> None:
    lines = full_node(name, nodes, launch=mode)
    assert lines[0] == "#!/bin/bash"


@pytest.mark.parametrize("name", SITES)
def test_a_profile_renders_without_gpus_unless_the_site_wants_some(name: str) -> None:
    cluster = profile(name).cluster
    limits = [cluster.limits, *(pool.limits for pool in pools_of(cluster).values())]
    if any(limit.min_gpus_per_node for limit in limits):
        with pytest.raises(ConfigError, match=r"gpus_per_node=0: .* wants 1 at least: use gpus_per_node=1"):
            script_of(name)
    else:
        assert script_of(name)


# What an example in the site's own documentation asks for, with our way to ask for the same.
DOCUMENTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "perlmutter": (
        {"launch": "tasks", "time": "10m"},
        ["--constraint=gpu", "--account=abc123", "--qos=regular", "--nodes=2", "--ntasks-per-node=4",
         "--gpus-per-node=4", "--cpus-per-task=32", "--time=00:10:00"],
    ),
    "lumi-g": (
        {"launch": "tasks", "time": "36h"},
        ["--partition=standard-g", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--time=1-12:00:00",
         "--account=abc123", "--exclusive"],
    ),
    "frontier": (
        {"time": "5m"}, ["--account=abc123", "--time=00:05:00", "--partition=batch", "--nodes=2",
                      "--network=disable_rdzv_get"],
    ),
    "roihu": (
        {"launch": "tasks", "time": "30m"},
        ["--account=abc123", "--partition=gpularge", "--time=00:30:00", "--nodes=2", "--ntasks-per-node=4",
         "--cpus-per-task=72", "--gres=gpu:gh200:4"],
    ),
    "polaris": (
        {"time": "30m"},
        ["-l select=2:system=polaris", "-l place=scatter", "-l walltime=00:30:00", "-l filesystems=home:eagle",
         "-q debug", "-A abc123"],
    ),
    "derecho": (
        {"launch": "tasks"},
        ["-A abc123", "-q main", "-l walltime=01:00:00", "-l select=2:ncpus=64:mpiprocs=4:ngpus=4",
         "-l job_priority=regular"],
    ),
    "casper": (
        {"launch": "tasks", "mem": "40G"},  # 40GB, in KiB
        ["-A abc123", "-l select=2:ncpus=4:mpiprocs=4:ngpus=4:mem=41943040kb:gpu_type=v100", "-l walltime=01:00:00",
         "-q casper"],
    ),
    "juwels-booster": (
        {"launch": "tasks", "time": "5m"},
        ["--account=abc123", "--partition=booster", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4",
         "--time=00:05:00"],
    ),
    "jupiter": (
        {"time": "4h"}, ["--account=abc123", "--partition=booster", "--nodes=2", "--gres=gpu:4", "--time=04:00:00"],
    ),
    "leonardo": (
        {"launch": "tasks", "time": "2h"},
        ["--time=02:00:00", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=8", "--partition=boost_usr_prod",
         "--gres=gpu:4", "--account=abc123"],
    ),
    "alps": (
        {"launch": "tasks", "time": "30m"},
        ["--account=abc123", "--time=00:30:00", "--nodes=2", "--ntasks-per-node=4", "--partition=normal"],
    ),
    "snellius": (
        {"launch": "tasks", "time": "5m"},
        ["--time=00:05:00", "--partition=gpu_h100", "--nodes=2", "--gpus-per-node=4", "--ntasks-per-node=4"],
    ),
    "marenostrum5": (
        {"launch": "tasks", "time": "10m"},
        ["--ntasks-per-node=4", "--cpus-per-task=20", "--time=00:10:00", "--gres=gpu:4", "--qos=abc123",
         "--account=abc123"],
    ),
    "aurora": (
        {"time": "10m"},
        ["-l select=2", "-l place=scatter", "-l walltime=00:10:00", "-l filesystems=home:flare", "-q debug",
         "-A abc123"],
    ),
    "gadi": (
        {"mem": "128G", "time": "200s"},
        ["-l ncpus=96", "-l ngpus=8", f"-l mem={256 << 20}kb", "-q gpuvolta", "-P abc123", "-l storage=scratch/abc123"],
    ),
    "miyabi-g": (
        {"time": "30m"}, ["-q debug-g", "-l select=2:mpiprocs=1", "-W group_list=abc123", "-l walltime=00:30:00"],
    ),
    "abci": ({}, ["-v LAUNCHER_TOKEN=t,USE_SSH=1", "-q rt_HF", "-l select=2", "-l walltime=01:00:00", "-P abc123"]),
    "tsubame4": ({"time": "24h"}, ["#$ -l node_f=2", "#$ -l h_rt=24:00:00", "#qsub -g abc123"]),
    "aspire2a": ({"time": "24h"}, ["-l select=2:ngpus=8", "-l walltime=24:00:00", "-q ai", "-P abc123"]),
    "aspire2a-plus": ({"time": "24h"}, ["-l select=2:ngpus=8", "-l walltime=24:00:00", "-q normal", "-P abc123"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SITES)
def test_a_profile_asks_for_what_the_sites_own_example_asks_for(name: str) -> None:
    keys, wanted = DOCUMENTED[name]
    lines = [re.sub(r"^#(SBATCH|PBS) ", "", line) for line in full_node(name, 2, **keys) if line.startswith("#")]
    missing = [option for option in wanted if option not in lines]
    assert not missing, lines


# What the site's documentation starts tasks with, for one agent a node.
STARTED = {
    "frontier": "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=56 --unbuffered --wait=0 "
    "--kill-on-bad-exit=1 --gpus-per-node=8",
    "polaris": "mpiexec -n 2 --ppn 1 --depth=64 --cpu-bind depth",
    "derecho": "mpiexec --cpu-bind depth -n 2 -ppn 1 -d 64",
    "aurora": "mpiexec -n 2 -ppn 1 --depth=96 --cpu-bind depth",
}


@pytest.mark.parametrize("name", sorted(STARTED))
def test_a_profile_starts_tasks_as_the_site_does(name: str) -> None:
    assert STARTED[name] in " ".join(job_of(name)["start"])


@pytest.mark.parametrize(
    ("name", "variable"),
    [("lumi-g", "NCCL_SOCKET_IFNAME=hsn"), ("frontier", "NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3"),
     ("polaris", "NCCL_NET=AWS Libfabric"), ("polaris", "NCCL_CROSS_NIC=1"),
     ("alps", "NCCL_NET=AWS Libfabric"), ("alps", "NCCL_PROTO=^LL128"), ("aurora", "CCL_KVS_MODE=mpi")],
)  # fmt: skip
def test_a_profile_sets_the_variables_that_the_site_advises(name: str, variable: str) -> None:
    assert variable in [f"{key}={value}" for key, value in job_of(name)["environment"].items()]


@pytest.mark.parametrize("name", [name for name in SITES if OmegaConf.load(FOLDER / f"{name}.yaml").get("required")])
def test_a_profile_tells_what_is_wanted_of_each_user(name: str) -> None:
    first = re.escape(profile(name).cluster.required[0].partition("=")[0])
    with pytest.raises(ConfigError, match=rf"cluster.{first} is not set, and cluster={name} wants it: add ."):
        script_of(name, required=False)


@pytest.mark.parametrize("name", SITES)
def test_a_profile_names_its_sources(name: str) -> None:
    """Each value has a mark [N] or stands below a key that has one; each [N] is a source at the top of the file."""
    text = (FOLDER / f"{name}.yaml").read_text()
    sources = set(re.findall(r"^#   (\[\d\])", text, re.MULTILINE))
    assert sources
    assert "https://" in text
    assert set(re.findall(r"\[\d\]", text)) == sources, "every source is used, and every mark has one"


@pytest.mark.parametrize("name", SITES)
def test_the_limits_of_a_profile_count(name: str) -> None:
    gpus = NODE[name][0]
    limit = OmegaConf.load(FOLDER / f"{name}.yaml").limits.gpus_per_node
    assert limit >= gpus
    with pytest.raises(ConfigError, match=rf"gpus_per_node={limit + 1}: the profile of cluster={name} has {limit}"):
        script_of(name, gpus_per_node=limit + 1)


def test_sites_are_part_of_the_wheel() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert re.search(r'^conf = "launcher/conf"$', project, re.MULTILINE)

"""Every #SBATCH option comes from one key, and no option is said twice in different words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import LaunchMode, Resume, ResumeHow
from launcher.errors import ConfigError
from launcher.schedulers.slurm import script
from launcher.schedulers.slurm.scheduler import SlurmScheduler
from launcher.schedulers.slurm.script import FAMILIES, TAKEN, directives
from launcher.schedulers.slurm.settings import GpuDirective
from tests.unit.plans import bare_plan, plan_of

PLAIN = {
    "job-name": "job", "comment": "token", "nodes": 1, "ntasks-per-node": 1, "cpus-per-task": 1, "time": "01:00:00",
    "output": "/runs/run-1/output-%j.log", "open-mode": "append", "requeue": True, "signal": "USR2@120",
}  # fmt: skip


def test_a_plain_plan_asks_for_nothing_more_than_it_says() -> None:
    assert directives(plan_of(), "token") == PLAIN


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        *(({"cluster": {key: "x"}}, {key: "x"}) for key in
          ("partition", "account", "qos", "constraint", "reservation", "exclude")),
        ({"name": "other"}, {"job-name": "other"}),
        ({"nodes": 4}, {"nodes": 4}),
        ({"nodes": 4, "min_nodes": 2}, {"nodes": 4, "no-kill": True}),
        ({"time": "36h"}, {"time": "1-12:00:00"}),
        ({"resume": Resume(lead="5m")}, {"signal": "USR2@300"}),
        ({"mem": "16G"}, {"mem": "16777216K"}),
        ({"mem": "1025B"}, {"mem": "2K"}),  # never less than was asked for
        ({"procs_per_node": 4, "cpus_per_proc": 3}, {"cpus-per-task": 12}),
        ({"procs_per_node": 4, "cpus_per_proc": 3, "launch": {"mode": LaunchMode.tasks}},
         {"ntasks-per-node": 4, "cpus-per-task": 3}),
    ],
)  # fmt: skip
def test_each_key_is_one_option(keys: dict[str, Any], expected: dict[str, Any]) -> None:
    assert directives(plan_of(**keys), "token") == {**PLAIN, **expected}


def test_a_run_that_is_not_to_go_on_is_not_requeued() -> None:
    never = directives(plan_of(resume=Resume(how=ResumeHow.never)), "token")
    assert (never.get("requeue"), never["no-requeue"]) == (None, True)


def test_a_short_run_has_its_own_timer_alone() -> None:
    assert "signal" not in directives(plan_of(time="9m"), "token")  # Slurm's warning may be 60 s early


@pytest.mark.parametrize(
    ("dialect", "gpu_type", "expected"),
    [
        (GpuDirective.gres, None, {"gres": "gpu:2"}),
        (GpuDirective.gres, "a100", {"gres": "gpu:a100:2"}),
        (GpuDirective.gpus_per_node, None, {"gpus-per-node": "2"}),
        (GpuDirective.gpus_per_node, "a100", {"gpus-per-node": "a100:2"}),
        (GpuDirective.none, "a100", {}),
    ],
)
def test_gpus_are_asked_for_in_the_sites_dialect(
    dialect: GpuDirective, gpu_type: str | None, expected: dict[str, str]
) -> None:
    cluster = {"gpu_directive": dialect, "gpu_type": gpu_type}
    with_gpus = directives(plan_of(gpus_per_node=2, cluster=cluster), "token")
    assert with_gpus == {**PLAIN, "cpus-per-task": 2, **expected}
    assert directives(plan_of(cluster=cluster), "token") == PLAIN


@pytest.mark.parametrize(
    ("extra", "gone", "there"),
    [
        ({"gpus-per-task": "1"}, {"gres"}, {"gpus-per-task": "1", "mem": "1048576K"}),
        ({"gpus": "4"}, {"gres"}, {"gpus": "4"}),
        ({"gres": "gpu:v100:1,shard:2"}, set(), {"gres": "gpu:v100:1,shard:2"}),
        ({"gres": None}, {"gres"}, {}),
        ({"mem-per-cpu": "2G"}, {"mem"}, {"mem-per-cpu": "2G", "gres": "gpu:2"}),
        ({"mem_per_gpu": "2G"}, {"mem"}, {"mem-per-gpu": "2G"}),
        ({"mem": 0}, set(), {"mem": 0}),  # Slurm's: all there is
        ({"mem": None}, {"mem"}, {}),
        ({"exclusive": True, "requeue": False}, {"requeue"}, {"exclusive": True}),
        ({"nice": 5, "licenses": "a:1"}, set(), {"nice": 5, "licenses": "a:1"}),
    ],
)
def test_a_profiles_extra_option_replaces_ours_of_its_family(
    extra: dict[str, Any], gone: set[str], there: dict[str, Any]
) -> None:
    plan = plan_of(gpus_per_node=2, mem="1G", cluster={"partition": "gpu", "directives": extra})
    options = directives(plan, "token")
    assert not gone & options.keys()
    assert options.items() >= there.items()
    for family in FAMILIES:
        assert len(family & options.keys()) <= 1


@pytest.mark.parametrize("gpu_type", ["a:8,gpu:b", "a,gpu", "a b", "a=b", "a:8", "é"])
@pytest.mark.parametrize("dialect", [GpuDirective.gres, GpuDirective.gpus_per_node])
def test_a_type_of_gpu_asks_for_nothing_else(dialect: GpuDirective, gpu_type: str) -> None:
    plan = plan_of(gpus_per_node=1, cluster={"gpu_directive": dialect, "gpu_type": gpu_type})
    with pytest.raises(ConfigError, match=f"cluster.gpu_type={gpu_type}: a type of GPU has letters"):
        directives(plan, "token")


@pytest.mark.parametrize("option", ["outp", "open", "tim", "arr", "ntasks-per", "node"])
def test_the_beginning_of_an_option_is_that_option(option: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster.directives.{option} cannot be set"):
        directives(plan_of(cluster={"directives": {option: "x"}}), "token")


@pytest.mark.parametrize("option", TAKEN)
@pytest.mark.parametrize("value", ["x", None])
def test_what_makes_the_run_what_it_is_cannot_be_replaced(option: str, value: str | None) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.directives\.{option} cannot be set: ."):
        directives(plan_of(cluster={"directives": {option: value}}), "token")


def test_an_array_prints_to_a_folder_of_its_own() -> None:
    options = directives(plan_of(), "token", "0-9%2", "/runs/arrays")
    assert options == {**PLAIN, "array": "0-9%2", "output": "/runs/arrays/output-%A_%a.log"}


def test_a_percent_sign_in_a_folder_is_no_pattern() -> None:
    plan = bare_plan(run_dir="/100%j/x")
    assert directives(plan, "token")["output"] == "/100%%j/x/output-%j.log"
    assert directives(plan, "token", "0-1", "/50%/arrays")["output"] == "/50%%/arrays/output-%A_%a.log"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"nodes": 2},
         "--nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --unbuffered --wait=0 --kill-on-bad-exit=1"),
        ({"nodes": 2, "procs_per_node": 3, "cpus_per_proc": 2, "launch": {"mode": LaunchMode.tasks}},
         "--nodes=2 --ntasks=6 --ntasks-per-node=3 --cpus-per-task=2 --unbuffered --wait=0 --kill-on-bad-exit=1"),
        ({"nodes": 3, "min_nodes": 2},
         "--ntasks-per-node=1 --cpus-per-task=1 --unbuffered --wait=0 --kill-on-bad-exit=0 --no-kill"),
        ({"cluster": {"scheduler": "allocation", "srun_args": ["--mpi=none"]}},
         "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 --unbuffered --wait=0 --kill-on-bad-exit=1 "
         "--overlap --mpi=none"),
    ],
)  # fmt: skip
def test_srun_starts_the_tasks_of_the_plan(keys: dict[str, Any], expected: str) -> None:
    assert script.arguments(plan_of(**keys)) == expected.split()


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.integers(1, 8), st.sampled_from(LaunchMode))
def test_sbatch_and_srun_agree(nodes: int, least: int, procs: int, cpus: int, mode: LaunchMode) -> None:
    plan = plan_of(
        nodes=max(nodes, least),
        min_nodes=min(nodes, least),
        procs_per_node=procs,
        cpus_per_proc=cpus,
        launch={"mode": mode},
    )
    options, arguments = directives(plan, "token"), script.arguments(plan)
    for option in ("ntasks-per-node", "cpus-per-task"):
        assert f"--{option}={options[option]}" in arguments
    assert options["ntasks-per-node"] * options["cpus-per-task"] == procs * cpus
    assert ("no-kill" in options) == ("--no-kill" in arguments) == (plan.min_nodes < plan.nodes)


@pytest.mark.parametrize(
    ("hosts", "before", "override"),
    [
        ("node3", None, "cluster.exclude=node3"),
        ("node[3,7]", None, "\"cluster.exclude='node[3,7]'\""),
        ("node3", "node1", "\"cluster.exclude='node1,node3'\""),
    ],
)
def test_the_override_that_excludes_nodes_is_quoted_where_hydra_needs_it(
    hosts: str, before: str | None, override: str
) -> None:
    plan = plan_of(cluster={"scheduler": "slurm", "exclude": before})
    assert SlurmScheduler().without(hosts, plan.cluster.settings) == override

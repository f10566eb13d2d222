"""From a config to a plan: every good value has its field, every bad one an error that names the key and the fix."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from launcher.config.schema import (
    P2P,
    Backend,
    Checkpoint,
    Collective,
    DDPMnist,
    LaunchMode,
    Precision,
    Tracking,
    Workload,
)
from launcher.errors import BAD_INPUT, ConfigError
from launcher.plan.build import check_name
from launcher.plan.plan import keys_of
from launcher.schedulers.slurm import settings as slurm
from launcher.submission.prepare import make_plan
from tests.unit.plans import SITE, make_cluster, make_config, plan_of

GIB = 1024**3


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"nodes": 1, "min_nodes": 1, "procs_per_node": 1, "time": 3600, "mem": None,
              "cluster.scheduler": "slurm"}),
        ({"nodes": 3}, {"nodes": 3, "min_nodes": 3, "world_size": 3}),
        ({"nodes": 3, "min_nodes": 2}, {"min_nodes": 2, "world_size": 3}),
        ({"nodes": 2, "gpus_per_node": 4}, {"procs_per_node": 4, "world_size": 8, "tasks_per_node": 1}),
        ({"gpus_per_node": 4, "procs_per_node": 2}, {"procs_per_node": 2, "gpus_per_node": 4}),
        ({"workload": P2P("p2p", "m:f", seed=0, min_ranks=3)}, {"procs_per_node": 3}),
        ({"nodes": 2, "workload": P2P("p2p", "m:f", seed=0, min_ranks=3)}, {"procs_per_node": 2}),
        ({"procs_per_node": 2, "cpus_per_proc": 3}, {"cpus_per_node": 6}),
        ({"procs_per_node": 2, "launch": {"mode": LaunchMode.tasks}}, {"launch.mode": "tasks", "tasks_per_node": 2}),
        ({"mem": "16G", "time": "1:30:00"}, {"mem": 16 * GIB, "time": 5400}),
        ({"cluster": {"scheduler": "local"}}, {"cluster.scheduler": "local"}),
        ({"cluster": {"partition": "a,b", "qos": "q"}},
         {"cluster.partition": "a,b", "cluster.account": None, "cluster.qos": "q"}),
        ({"cluster": {"gpu_directive": slurm.GpuDirective.none}},
         {"cluster.gpu_directive": "none", "cluster.gpu_type": None}),
        ({"cluster": {"directives": {"mem_per_cpu": "1G", "gres": None, "exclusive": True, "nice": 5}}},
         {"cluster.directives": {"mem-per-cpu": "1G", "gres": None, "exclusive": True, "nice": 5}}),
        ({"cluster": {"environment": {"A": 1, "_B2": "x y", "C": None}}},
         {"cluster.environment": {"A": "1", "_B2": "x y", "C": None}}),
        ({"cluster": {"port_range": "1024-65535"}}, {"cluster.port_range": [1024, 65535]}),
        ({"cluster": {"setup": ["a\nb", "c\td"]}}, {"cluster.setup": ["a\nb", "c\td"]}),
        ({"cluster": {"srun_args": ["--mpi=none", "a b"]}}, {"cluster.srun_args": ["--mpi=none", "a b"]}),
        ({"workload": DDPMnist("n", "m:f", seed=1)},
         {"workload.kind": "DDPMnist", "workload.name": "n", "workload.backend": "auto"}),
        ({"launch": {"max_restarts": 1}}, {"checkpoint.memory": None}),  # auto
        ({"launch": {"max_restarts": 0}}, {"checkpoint.memory": 0}),
        ({"launch": {"max_restarts": 0}, "checkpoint": Checkpoint(memory="2")}, {"checkpoint.memory": 2}),
        ({"cluster": {"scheduler": "slurm"}}, {"queued": True}),
        ({"cluster": {"scheduler": "allocation"}}, {"queued": False}),
        ({"name": "a" * 64}, {"name": "a" * 64}),
        ({"name": "_a.b+c-d"}, {"name": "_a.b+c-d"}),
    ],
)  # fmt: skip
def test_good_values_become_fields(keys: dict[str, Any], expected: dict[str, Any]) -> None:
    plan = plan_of(**keys)
    keys_with_values = keys_of(plan)
    found = {name: keys_with_values[name] if name in keys_with_values else getattr(plan, name) for name in expected}
    assert found == expected


def test_the_workloads_keys_travel_as_plain_values() -> None:
    plan = plan_of(workload=DDPMnist("ddp", "m:f", seed=7, precision=Precision.bfloat16, lr=0.5))
    assert {key: plan.workload.params[key] for key in ("name", "seed", "precision", "lr", "sync")} == {
        "name": "ddp", "seed": 7, "precision": "bfloat16", "lr": 0.5, "sync": "ddp",
    }  # fmt: skip


def test_the_site_becomes_fields() -> None:
    site = replace(SITE, starter="pbsdsh")
    plan = plan_of(site)
    assert {f.name: getattr(plan, f.name) for f in fields(site)} == {
        f.name: getattr(site, f.name) for f in fields(site)
    }


@pytest.mark.parametrize(
    ("cluster", "starter"),
    [
        ({"scheduler": "slurm"}, "srun"),
        ({"scheduler": "pbs"}, "pbsdsh"),
        ({"scheduler": "pbs", "mpiexec": ["mpiexec"]}, "mpiexec"),
        ({"scheduler": "local"}, None),
    ],
)
def test_each_scheduler_has_what_starts_tasks(cluster: dict[str, Any], starter: str | None) -> None:
    assert plan_of(cluster=cluster).starter == starter


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"nodes": 0}, "nodes=0: it must be 1 or more"),
        ({"nodes": -1}, "nodes=-1: it must be 1 or more"),
        ({"nodes": 2**64}, "nodes=18446744073709551616: it is too large"),
        ({"spares": -1}, "spares=-1: it must be 0 or more"),
        ({"nodes": 1, "spares": 1}, "spares=1: with nodes=1 no node is left to lead a spare one when that is lost"),
        ({"min_nodes": 0}, "min_nodes=0: it must be 1 or more"),
        ({"workload": Collective(name="c", entry="m:f", seed=0, backend=Backend.mpi)}, "add launch=tasks"),
        ({"nodes": 2, "min_nodes": 3}, "min_nodes=3 is more than nodes=2: lower min_nodes or raise nodes"),
        ({"gpus_per_node": -1}, "gpus_per_node=-1: it must be 0 or more"),
        ({"procs_per_node": 0}, "procs_per_node=0: it must be 1 or more"),
        ({"cpus_per_proc": 0}, "cpus_per_proc=0: it must be 1 or more"),
        ({"seed": -1}, "seed=-1: it must be 0 or more"),
        ({"time": "25:99"}, "time: '25:99' has 99 seconds"),
        ({"time": "soon"}, "time: 'soon' is not a time: write it as"),
        ({"time": "0"}, "time: '0' is zero: give a longer time"),
        ({"mem": "16"}, "mem: '16' has no unit: write 16G, or 16M"),
        ({"mem": "1.5"}, "mem: '1.5' has no unit: write 1.5G, or 1.5M"),
        ({"mem": "lots"}, "mem: 'lots' is not a size: write it as"),
        ({"launch": {"timeout": 0}}, "launch.timeout=0: it must be 1 or more"),
        ({"launch": {"grace": 0}}, "launch.grace=0: it must be 1 or more"),
        ({"launch": {"rendezvous_timeout": -3}}, "launch.rendezvous_timeout=-3: it must be 1 or more"),
        ({"cluster": {"submit_timeout": 0}}, "cluster.submit_timeout=0: it must be 1 or more"),
        ({"cluster": {"port_range": "5"}}, "cluster.port_range='5' is not LOW-HIGH"),
        ({"cluster": {"port_range": "3000-2000"}}, "cluster.port_range='3000-2000' is not LOW-HIGH"),
        ({"cluster": {"port_range": "80-2000"}}, "with 1024 <= LOW < HIGH <= 65535"),
        ({"cluster": {"port_range": "2000-65536"}}, "with 1024 <= LOW < HIGH <= 65535"),
        ({"cluster": {"port_range": "a-b"}}, "cluster.port_range='a-b'"),
        ({"cluster": {"environment": {"A B": "1"}}}, "cluster.environment: 'A B' cannot be a variable's name"),
        *(({"cluster": {"environment": {"A": value}}}, f"cluster.environment.A: {value!r} is neither text nor a number")
          for value in (True, [1, 2], {"a": 1})),
        ({"cluster": {"rank_environment": {"A": False}}}, "cluster.rank_environment.A: False is neither text nor"),
        ({"cluster": {"environment": {"1A": "1"}}}, "cluster.environment: '1A'"),
        ({"cluster": {"environment": {"A=$(x)": "1"}}}, "cluster.environment: 'A=$(x)'"),
        ({"cluster": {"environment": {"A\n": "1"}}}, "cluster.environment: 'A\\n'"),
        ({"cluster": {"environment": {"": "1"}}}, "cluster.environment: ''"),
        ({"cluster": {"directives": {"-p": "x"}}}, "write `nodelist`, not `--nodelist`"),
        ({"cluster": {"directives": {"p": "x"}}}, "cluster.directives: 'p'"),
        ({"cluster": {"directives": {"mem 1": "x"}}}, "cluster.directives: 'mem 1'"),
        ({"cluster": {"directives": {"mem\n": "x"}}}, "cluster.directives: 'mem\\n'"),
        ({"cluster": {"directives": {"gres": ["a"]}}}, "cluster.directives.gres: ['a'] is neither text nor a number"),
        ({"procs_per_node": 1, "workload": P2P("p2p", "m:f", seed=0, min_ranks=2)},
         "workload=p2p needs 2 ranks and would get 1: add procs_per_node=2 or nodes=2"),
        ({"workload": Workload("w", "m", seed=0)}, "workload.entry='m' is not module:function"),
        ({"workload": Workload("w", "m:f(); x", seed=0)}, "workload.entry='m:f(); x'"),
        ({"workload": Workload("w", "/m.py:f", seed=0)}, "workload.entry='/m.py:f'"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_with_the_key_and_the_fix(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        plan_of(**keys)
    assert words in str(refusal.value)
    assert refusal.value.exit_code == BAD_INPUT


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a\nb", "a\n", "it's", '"a"', "$(id)", "`id`", "a;b", "a/b", "..", ".a", "-a", "+a", "größe", "名",
     "a" * 65, "a\x00", "a\x85"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["name", "run_id"])
def test_names_that_are_no_names_everywhere_are_refused(key: str, name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_name(key, name)
    assert f"{key}={name!r}" in str(refusal.value)
    assert "up to 64 letters, digits and _ - + ." in str(refusal.value)


def test_a_run_cannot_take_the_name_of_the_link_to_the_newest() -> None:
    with pytest.raises(ConfigError, match=r"run_id=latest: .* choose another"):
        check_name("run_id", "latest")
    with pytest.raises(ConfigError, match=r"sweep.id=latest: .*another id"):  # its folder would be that link's
        check_name("sweep.id", "latest")
    assert check_name("name", "latest") == "latest"


CONTROLS = [chr(code) for code in range(32) if chr(code) != "\t"] + ["\x7f", "\x85", "\u2028", "\u2029"]
OF_A_FORM = ("port_range", "scheduler")  # of these no other text is taken either
PROFILE = make_cluster("slurm")
TEXT_KEYS = [f.name for f in fields(PROFILE) if f.type in ("str", "str | None") and f.name not in OF_A_FORM]


def test_the_texts_of_a_profile_are_all_tested() -> None:
    assert {"name", "partition", "account", "interface", "host_suffix", "gpu_type"} <= set(TEXT_KEYS)


@pytest.mark.parametrize("key", TEXT_KEYS)
def test_control_characters_are_refused_in_every_text_of_a_profile(key: str) -> None:
    for char in CONTROLS[TEXT_KEYS.index(key) :: len(TEXT_KEYS)]:  # each of them in one key
        with pytest.raises(ConfigError) as refusal:
            plan_of(cluster={key: f"a{char}b"})
        assert f"contains the control character {char!r}: remove it" in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"cluster": {"directives": {"comment-x": "a\nb"}}}, "cluster.directives.comment-x="),
        ({"cluster": {"environment": {"A": "a\nb"}}}, "cluster.environment.A="),
        ({"cluster": {"srun_args": ["ok", "a\nb"]}}, "cluster.srun_args="),
        ({"cluster": {"setup": ["ok\nok", "a\rb"]}}, "cluster.setup="),
        ({"workload": Workload("a\nb", "m:f", seed=0)}, "workload.name="),
        ({"workload": DDPMnist("w", "m:f", seed=0, data_dir="a\nb")}, "workload.data_dir="),
        ({"workload": P2P("w", "m:f", seed=0, pattern=["a\nb"])}, "workload.pattern="),
        ({"workload": Collective("w", "m:f", seed=0, op={"x": ["a\nb"]})}, "workload.op.x="),
    ],
)
def test_control_characters_are_refused_wherever_they_hide(keys: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match="control character") as refusal:
        plan_of(**keys)
    assert str(refusal.value).startswith(path)


@pytest.mark.parametrize("field", ["run_dir", "python", "code_root", "workdir"])
def test_control_characters_are_refused_in_what_the_machine_adds(field: str) -> None:
    site = type(SITE)(**{**vars(SITE), field: "/a\nb"})
    with pytest.raises(ConfigError, match=rf"{field}=.*control character"):
        make_plan(make_config(), site)


def test_a_password_in_the_uri_of_a_tracker_is_refused_and_not_repeated() -> None:
    """The record, the report and the dry run show the key."""
    for url in (None, "http://host:5000", "file:///runs/a@b", "databricks://scope:prefix", "sqlite:////runs/m.db"):
        assert plan_of(tracking=Tracking(uri=url)).tracking.uri == url
    for url in ("https://me:hush@host:5000/x", "https://hush@host", "postgresql://me:hush@host/db"):
        with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_USERNAME") as refusal:
            plan_of(tracking=Tracking(uri=url))
        assert "hush" not in str(refusal.value)

"""Lines of a script for Grid Engine."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from launcher import io_bounds
from launcher.errors import ConfigError
from launcher.plan.plan import Cluster
from launcher.schedulers.base import QueryError
from launcher.schedulers.sge import qrsh, script
from launcher.schedulers.sge.client import SGE, QueueInstance
from launcher.schedulers.sge.scheduler import SGEScheduler
from launcher.schedulers.sge.settings import SGESettings
from tests.unit.plans import sge_plan

OF_CLUSTER = {field.name for field in (*dataclasses.fields(Cluster), *dataclasses.fields(SGESettings))} - {"name"}


def lines(array: str | None = None, **fields: Any) -> list[str]:
    """The lines of a plan; of `cluster` its keys are given as they are."""
    cluster = {name: fields.pop(name) for name in list(fields) if name in OF_CLUSTER}
    return script.lines(sge_plan(**fields, cluster=cluster), "launcher-0", array)


def test_elements_are_counted_from_one() -> None:
    found = lines("0-14%4")
    assert "-t 1-15" in found
    assert "-tc 4" in found
    assert "-o /runs/run-1/output-$JOB_ID_$TASK_ID.log" in found
    assert "-t 1-1" in lines("0-0")


def test_amounts_count_for_each_slot() -> None:
    fields = {"nodes": 2, "parallel_environment": "four", "slots": 4, "gpus_per_node": 8, "gpu_directive": "resource"}
    found = lines(**fields, gpu_resource="gpu", mem=64 << 30, mem_resource="h_vmem")
    assert [line for line in found if line.startswith(("-pe", "-l"))] == [
        "-pe four 8", "-l h_rt=01:00:00", "-l gpu=2", "-l h_vmem=16777216K",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="does not divide"):
        lines(**{**fields, "gpus_per_node": 6}, gpu_resource="gpu")
    with pytest.raises(ConfigError, match=r"cluster\.gpu_resource=gpu"):
        lines(**fields)
    with pytest.raises(ConfigError, match=r"cluster\.mem_resource=h_vmem"):
        lines(mem=1 << 30)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "1st"}, "with a letter or _ first"),
        ({"name": "a:b"}, "letters, digits"),
        ({"run_dir": "/my runs/a"}, "use another folder"),
        ({"run_dir": "/$HOME/a"}, "use another folder"),
        ({"run_dir": "/läufe/a"}, "use another folder"),
        ({"nodes": 2}, "set cluster.parallel_environment"),
        ({"slots": 2}, "cluster.slots=2"),
        ({"nodes": 2, "parallel_environment": "a b"}, "cannot be the name of a parallel environment"),
        ({"node_resource": "node_f", "parallel_environment": "mpi"}, "takes the place of cluster.parallel_environment"),
        ({"group": "a b"}, "cannot be the name of a group"),
        ({"group": "a\n#$ -P b"}, "cannot be the name of a group"),
        ({"queue": "a b"}, "cannot have blanks"),
        ({"queue": "a'b"}, "cannot have blanks, quotes"),
        ({"resources": {"a b": 1}}, "cannot be a resource"),
        ({"resources": {"h_rt": 1}}, "use time"),
        ({"directives": {"l": ["a=1", "b=2,s_rt=60"]}}, "-l b=2,s_rt=60: the wall time cannot be set there: use time"),
        ({"resources": {"a": "1,b=2"}}, "no blanks, quotes, commas"),
        ({"directives": {"N": "x"}}, "use name"),
        *(
            ({"directives": {name: value}}, f"the qsub option -{name} cannot be")
            for name, value in (("sync", "y"), ("verify", True), ("ac", "project=x"), ("sc", "a=1"), ("dc", "a"))
        ),
        ({"directives": {"pe": "x 2"}}, "use nodes and cluster.parallel_environment"),
        ({"directives": {"V": True}}, "the environment is handed on anyway"),
        ({"directives": {"M": "a b"}}, "cannot have blanks"),
    ],
)
def test_what_cannot_stand_in_a_line_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lines(**fields)
    assert told in str(caught.value)


def test_extra_options_are_added_and_replace_ours() -> None:
    found = lines(directives={"m": "abe", "l": ["fast=1", "a=2"], "notify": None, "r": "n", "R": True})
    assert found[-5:] == ["-m abe", "-l fast=1", "-l a=2", "-r n", "-R"]
    assert "-notify" not in found
    assert "-r y" not in found
    assert "-l h_rt=01:00:00" in found


def test_a_job_finds_the_cell_and_nothing_of_another_job() -> None:
    environ = {
        "SGE_ROOT": "/sge", "SGE_CELL": "c", "SGE_QMASTER_PORT": "1", "SGE_TASK_ID": "3", "JOB_ID": "7", "NSLOTS": "4",
        "PE_HOSTFILE": "/x", "TMPDIR": "/tmp/7", "OMP_NUM_THREADS": "4", "HOME": "/home/me",
    }  # fmt: skip
    assert SGEScheduler().inherited(environ).environment == {
        "SGE_ROOT": "/sge", "SGE_CELL": "c", "SGE_QMASTER_PORT": "1", "HOME": "/home/me",
    }  # fmt: skip
    assert SGEScheduler().inherited({"OMP_NUM_THREADS": "4"}).environment == {"OMP_NUM_THREADS": "4"}


def test_an_order_is_one_short_line_that_says_all() -> None:
    values = {"environment": {f"A_{number}": "ä" * 50 for number in range(2000)}, "odd": "\udcff\n"}
    line = qrsh.encode(values)
    assert line.count(b"\n") == 1
    assert len(line) < len(json.dumps(values)) / 10
    assert qrsh.decode(line) == values


def test_a_line_fits_into_the_pipe_or_the_largest_secrets_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"A_TOKEN": "a", "B_TOKEN": "b" * 500, "C_TOKEN": "c" * 90}
    line = qrsh.line_of("/request", hidden, [{}], "/started")
    assert qrsh.decode(line) == {"request": "/request", "secrets": hidden, "tasks": [{}], "started": "/started"}
    monkeypatch.setattr(io_bounds, "QRSH_LINE_BYTES", len(line) - 1)
    with pytest.raises(ConfigError, match="the largest are B_TOKEN, C_TOKEN, A_TOKEN"):
        qrsh.line_of("/request", hidden, [{}], "/started")


def test_tasks_on_a_host_that_does_not_answer_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = [QueueInstance("all.q", "n1", 1, 1, "d"), QueueInstance("all.q", "n2", 1, 1, "au")]
    monkeypatch.setattr(SGE, "instances", lambda _: instances)
    assert qrsh._on_lost_nodes(["n1", "n2"]) == [1]

    def denied(_: SGE) -> list[QueueInstance]:
        raise QueryError('qstat failed (exit 1): denied: host "n1" is neither submit nor admin host')

    monkeypatch.setattr(SGE, "instances", denied)
    assert qrsh._on_lost_nodes(["n1", "n2"]) == []


def test_a_node_tells_its_tasks_what_is_its_own() -> None:
    here = {
        "HOSTNAME": "node2",
        "CUDA_VISIBLE_DEVICES": "3",
        "TMPDIR": "/tmp/node2",
        "PATH": "/bin",
        "SGE_HGR_gpu": "3",
    }
    told = {"HOSTNAME": "node1", "CUDA_VISIBLE_DEVICES": "0", "PATH": "/opt/bin:/bin", "ROCR_VISIBLE_DEVICES": "1"}
    assert qrsh.environment(told, here) == {
        "HOSTNAME": "node2", "CUDA_VISIBLE_DEVICES": "3", "TMPDIR": "/tmp/node2", "PATH": "/opt/bin:/bin",
        "SGE_HGR_gpu": "3", "ROCR_VISIBLE_DEVICES": "1",
    }  # fmt: skip

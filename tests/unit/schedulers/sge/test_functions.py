"""What a function may ask Grid Engine for, and which executors submitit knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from submitit.core import plugins

from launcher.schedulers.pbs.executor import PBSExecutor
from launcher.schedulers.sge.executor import Parameters, SGEExecutor
from launcher.schedulers.sge.scheduler import SGEScheduler


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, ["-l h_rt=00:05:00", "-r y"]),
        ({"nodes": 2, "parallel_environment": "mpi"}, ["-pe mpi 2"]),
        ({"nodes": 2, "slots": 4, "parallel_environment": "mpi"}, ["-pe mpi 8"]),
        ({"cpus_per_task": 3, "tasks_per_node": 2, "parallel_environment": "smp"}, ["-pe smp 6"]),
        ({"ngpus": 2, "gpu_resource": "gpu"}, ["-l gpu=2"]),
        ({"mem": "1G", "mem_resource": "h_vmem"}, ["-l h_vmem=1048576K"]),
        ({"ngpus": 2, "gpu_resource": "gpu", "mem": "1G", "mem_resource": "free", "per_node": "gpu, free", "slots": 2,
          "parallel_environment": "smp"}, ["-l gpu=2", "-l free=1048576K"]),
        ({"resources": {"arch": "lx-amd64"}, "directives": {"m": "n", "l": "a=1"}},
         ["-l arch=lx-amd64", "-l a=1", "-m n"]),
        ({"rerunnable": False, "walltime": "1:00:00"}, ["-r n", "-l h_rt=01:00:00"]),
    ],
)  # fmt: skip
def test_a_script_asks_for_what_its_parameters_say(given: dict[str, Any], lines: list[str]) -> None:
    written = Parameters.of(given).directive_lines("/logs", "token", None)
    assert set(lines) <= set(written)
    assert {"-o /logs/$JOB_ID.OU", "-ac LAUNCHER_TOKEN=token", "-notify"} <= set(written)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queu": "all.q"}, "there is no parameter 'queu'. Did you mean queue?"),
        ({"nodes": 2}, "nodes=2: Grid Engine gives a job more than one slot by a parallel environment: set sge_par"),
        ({"cpus_per_task": 2}, "sge_slots=2: Grid Engine gives a job more than one slot by a parallel environment"),
        ({"cpus_per_task": 2, "slots": 2}, "cpus_per_task and slots exclude each other"),
        ({"slots": 0}, "slots=0: it must be a whole number of 1 or more"),
        ({"ngpus": 1}, "ngpus=1: name the site's resource for GPUs (gpu_resource=gpu)"),
        ({"mem": "1G"}, "mem: name the site's resource for memory (sge_mem_resource=h_vmem"),
        ({"directives": {"t": "1-3"}}, "the qsub option -t cannot be among the directives: the array is"),
        ({"directives": {"m x": "n"}}, "'m x' is not the name of a qsub option"),
        ({"directives": {"m": ""}}, "'m' has an empty text"),
        ({"resources": {"h_rt": 5}}, "h_rt=5 cannot be among the resources of the job"),
        ({"setup": "module load x"}, "setup='module load x': it must be a list"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Parameters.of(given)


@pytest.mark.parametrize("folder", ["/with blank", "/größe", "/it's", "/$HOME"])
def test_a_folder_that_qsub_does_not_take_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="use another folder"):
        Parameters.of({}, Path(folder))


def test_an_element_is_continued_by_a_plain_job_with_the_same_requests() -> None:
    asked = Parameters.of({"array_parallelism": 2, "parallel_environment": "smp"})
    array = "".join(f"#$ {line}\n" for line in asked.directive_lines("/logs", "token", "0-4%2"))
    plain, options = SGEScheduler().resubmission(array, "other", "7_3")
    kept = asked.directive_lines("/logs", "token", None)
    assert plain == "".join(f"#$ {line}\n" for line in kept)
    assert options == ("-v", "LAUNCHER_FIRST_JOB=7_3", "-ac", "LAUNCHER_TOKEN=other")


def test_submitit_knows_all_our_executors_from_one_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class EntryPoint:
        name, value = "executor", "launcher.schedulers.pbs.executor:PBSExecutor"

        def load(self) -> type[PBSExecutor]:
            return PBSExecutor

    cached = plugins._get_plugins, plugins.get_executors
    monkeypatch.setattr(plugins, "_iter_submitit_entrypoints", lambda: [EntryPoint()])
    for function in cached:
        function.cache_clear()
    found = plugins.get_executors()
    for function in cached:
        function.cache_clear()
    assert list(found) == ["slurm", "local", "debug", "pbs", "sge"]
    assert (found["pbs"], found["sge"]) == (PBSExecutor, SGEExecutor)

"""Ranks in a container: what is started, what of the host's environment comes along, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import containers, render
from launcher.config import DDPMnist, Env, Runtime, Scheduler
from launcher.errors import ConfigError
from launcher.inputs import Inputs
from launcher.node import container
from launcher.plan import JobPlan, make_plan
from launcher.runs import Run
from tests.launch import ROOT
from tests.unit.plans import SITE, make_config

STAND_IN = ROOT / "tests/apptainer"


def planned(folder: str = "/runs", *, site: Any = SITE, **keys: Any) -> JobPlan:
    env = keys.pop("env", {})
    site = dataclasses.replace(site, run_dir=f"{folder}/run-1", code_root="/code")
    config = make_config(env=Env(**{"container": "/images/torch.sif", **env}), runs_dir=folder, **keys)
    return make_plan(config, site)


def words_of(plan: JobPlan, runtime: str = "apptainer", **environ: str) -> list[str]:
    return container.command(plan, environ, runtime, lambda _: True)[0]


def test_apptainer_sees_the_folders_of_the_run_and_a_gpu_where_one_is_asked_for() -> None:
    workload = DDPMnist("w", "m:f", seed=0, data_dir="/data/mnist")
    plan = planned(env={"binds": ["/scratch:/s:ro"], "container_args": ["--no-home"]}, workload=workload)
    words = words_of(plan, TMPDIR="/local/7")
    assert words == [
        "apptainer", "exec", "--cleanenv", "--bind", "/runs", "--bind", "/home/me", "--bind", "/code",
        "--bind", "/data/mnist", "--bind", "/local/7", "--bind", "/scratch:/s:ro", "--pwd", "/home/me", "--no-home",
        "/images/torch.sif", "python3", "-u", "-m", "launcher.node", "/runs/run-1",
    ]  # fmt: skip
    assert "--nv" in words_of(planned(gpus_per_node=2))
    assert words_of(planned(), LAUNCHER_RUN_DIR="/runs/lr/7")[-1] == "/runs/lr/7"


def test_folders_that_a_node_does_not_have_are_not_bound() -> None:
    words, _ = container.command(planned(), {"TMPDIR": "/gone"}, "apptainer", lambda path: path != "/gone")
    assert "/gone" not in words


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        (["/a/b", "/a", "/ab", "/a"], ["/a", "/ab"]),
        (["/", "/x"], ["/x"]),
        (["/a/b/c", "/a/b", "/d"], ["/a/b", "/d"]),
    ],
)
def test_a_folder_within_another_is_seen_with_it(paths: list[str], kept: list[str]) -> None:
    assert container.outermost(paths) == kept


HOSTS = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE", "_CE_CONDA",
    "MODULEPATH", "LOADEDMODULES", "LMOD_CMD", "MODULESHOME", "MANPATH", "CPATH", "XDG_RUNTIME_DIR", "HOME", "SHELL",
    "APPTAINER_BIND", "HOSTNAME", "BASH_ENV", "LD_AUDIT", "PYTHONSTARTUP",
)  # fmt: skip
CARRIED = (
    "LAUNCHER_RUN_DIR", "SLURM_PROCID", "SLURM_JOB_ID", "PBS_JOBID", "PBS_NODEFILE", "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG", "MASTER_ADDR", "OMP_NUM_THREADS", "HF_TOKEN", "PYTHONUNBUFFERED", "TMPDIR", "PMI_RANK", "LANG",
)  # fmt: skip


def test_the_jobs_variables_come_along_and_those_of_the_hosts_programs_do_not() -> None:
    environ = {**dict.fromkeys(HOSTS, "host"), **dict.fromkeys(CARRIED, "job"), "BASH_FUNC_module%%": "() { :; }"}
    inside = container.carried({**environ, "PYTHONPATH": "/host"}, planned())
    assert inside == {**dict.fromkeys(CARRIED, "job"), "PYTHONPATH": "/code", "PYTHONNOUSERSITE": "1"}


def test_what_the_profile_sets_counts_inside_too() -> None:
    cluster = {"environment": {"LD_LIBRARY_PATH": "/mine", "PYTHONPATH": "/own", "API_TOKEN": "x"}}
    inside = container.carried({"LD_LIBRARY_PATH": "/mine", "API_TOKEN": "x"}, planned(cluster=cluster))
    assert inside == {
        "LD_LIBRARY_PATH": "/mine", "PYTHONPATH": "/code:/own", "API_TOKEN": "x", "PYTHONNOUSERSITE": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("runtime", "prefix"), [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_")])
def test_no_value_is_on_a_command_line(runtime: str, prefix: str) -> None:
    words, environ = container.command(planned(), {"HF_TOKEN": "se cret"}, runtime, lambda _: True)
    assert "se cret" not in " ".join(words)
    assert environ[f"{prefix}HF_TOKEN"] == "se cret"
    words, environ = container.command(planned(), {"HF_TOKEN": "se cret"}, "enroot", lambda _: True)
    assert "se cret" not in " ".join(words)
    assert words[:2] == ["enroot", "start"]
    assert words[(at := words.index("HF_TOKEN")) - 1 : at + 1] == ["--env", "HF_TOKEN"]
    assert environ["HF_TOKEN"] == "se cret"


def test_pyxis_is_told_by_srun() -> None:
    plan = planned(env={"container": "nvcr.io#nvidia/pytorch:25.01-py3", "container_runtime": Runtime.pyxis,
                        "binds": ["/a:/b:ro"], "python": "/opt/py"})  # fmt: skip
    assert containers.srun_options(plan) == [
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
        "--container-mounts=/runs:/runs,/home/me:/home/me,/code:/code,/a:/b:ro", "--container-workdir=/home/me",
    ]  # fmt: skip
    words = containers.node_command(plan)
    assert words[0] == "env"
    assert words[1:3] == ["-u", "LD_LIBRARY_PATH"]
    assert words[-6:] == ["PYTHONPATH=/code", "PYTHONNOUSERSITE=1", "/opt/py", "-u", "-m", "launcher.node"]
    assert "srun" in render.script(plan, token="t")


@pytest.mark.parametrize(
    ("env", "cluster", "told"),
    [
        ({"container": None, "binds": ["/a"]}, {}, r"env\.binds is for a container"),
        ({"activate": "/env"}, {}, r"env\.activate and env\.container: ranks run in one"),
        ({"binds": ["a:b"]}, {}, r"env\.binds: 'a:b' is not /SOURCE"),
        ({"container_runtime": Runtime.pyxis}, {"scheduler": Scheduler.pbs}, "pyxis is a plug-in of srun"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(env: dict[str, Any], cluster: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        planned(env=env, cluster=cluster)


def test_an_image_that_is_not_there_is_refused_where_its_place_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"there is no torch\.sif in {tmp_path}: make the image first"):
        containers.checked(Env(container=str(tmp_path / "torch.sif")))
    _, (note,) = containers.checked(Env(container=str(tmp_path / "gone/torch.sif")))
    assert "is not seen from here" in note
    (tmp_path / "torch.sif").touch()
    config, notes = Inputs().with_environment(make_config(env=Env(container=str(tmp_path / "torch.sif"))))
    assert (config.env.container, notes) == (str(tmp_path / "torch.sif"), ())
    assert "every node on its own" in containers.checked(Env(container="docker://pytorch/pytorch"))[1][0]


@pytest.mark.parametrize(
    ("keys", "has", "found"),
    [
        ({}, {"apptainer", "singularity"}, "apptainer"),
        ({}, {"singularity"}, "singularity"),
        ({"container": "/i.sqsh"}, {"enroot", "apptainer"}, "enroot"),
        ({"container_runtime": Runtime.singularity}, {"apptainer", "singularity"}, "singularity"),
        ({}, set(), None),
    ],
)
def test_the_runtime_is_what_the_node_has(keys: dict[str, Any], has: set[str], found: str | None) -> None:
    plan = planned(env=keys)

    def which(name: str) -> str | None:
        return name if name in has else None

    if found is None:
        with pytest.raises(container.ContainerError, match="no apptainer and no singularity on PATH"):
            container.runtime_of(plan, which)
    else:
        assert container.runtime_of(plan, which) == found


def started(plan: JobPlan, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a node of the plan's run does."""
    run = Run.create(Path(plan.run_dir))
    run.write_record(plan, {}, {})
    (run.path / "attempts/0/events").mkdir(parents=True)
    return subprocess.run(
        [sys.executable, "-m", "launcher.node.container", plan.run_dir], cwd=ROOT, capture_output=True, text=True,
        env={"PATH": f"{STAND_IN}:{os.environ['PATH']}", "LAUNCHER_RUN_DIR": plan.run_dir, "LAUNCHER_ATTEMPT": "0",
             "LD_LIBRARY_PATH": "/host", **environ}, timeout=60, check=False,
    )  # fmt: skip


def test_the_agent_is_started_inside(tmp_path: Path) -> None:
    """By the stand-in, which clears the environment as --cleanenv does; the python inside tells what it got."""
    inside = tmp_path / "python3"
    inside.write_text('#!/bin/bash\necho "$@"; echo "$PWD"; env | sort\n')
    inside.chmod(0o755)
    (tmp_path / "torch.sif").touch()
    (tmp_path / "work").mkdir()
    site = dataclasses.replace(SITE, workdir=str(tmp_path / "work"))
    env = {"container": str(tmp_path / "torch.sif"), "python": str(inside)}
    done = started(planned(str(tmp_path / "runs"), site=site, env=env), HF_TOKEN="it's $x")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"-u -m launcher.node {tmp_path}/runs/run-1", str(tmp_path / "work")]
    assert {"HF_TOKEN=it's $x", "LAUNCHER_ATTEMPT=0", "PYTHONPATH=/code"} <= set(lines)
    assert not any(line.startswith("LD_LIBRARY_PATH") for line in lines)


def test_a_node_without_the_image_is_named(tmp_path: Path) -> None:
    plan = planned(str(tmp_path / "runs"), env={"container": "/gone/torch.sif"})
    done = started(plan)
    assert done.returncode == 93
    host = os.uname().nodename
    assert f"launcher: {host}: there is no image /gone/torch.sif (env.container)" in done.stderr
    (event,) = Run(Path(plan.run_dir)).attempts()[0].events()
    assert (event["event"], event["host"]) == ("fault", host)

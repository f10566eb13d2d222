"""Ranks in a container: what is started, what of the host's environment comes along, and what is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.config.schema import DDPMnist, Env, Runtime
from launcher.environment import container_command
from launcher.errors import ConfigError, UnavailableError
from launcher.files.retried_reads import Ok, Unavailable
from launcher.paths import own_module
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.submission import render
from launcher.submission.prepare import Inputs, make_plan
from tests.launch import ROOT
from tests.unit.faults import FileServer
from tests.unit.plans import SITE, make_config, with_fields

STAND_IN = ROOT / "tests/apptainer"


def planned(folder: str = "/runs", *, site: Any = SITE, **keys: Any) -> JobPlan:
    env = keys.pop("env", {})
    site = dataclasses.replace(site, run_dir=f"{folder}/run-1", code_root="/code")
    config = make_config(env=Env(**{"container": "/images/torch.sif", **env}), runs_dir=folder, **keys)
    return make_plan(config, site)


PYXIS = {"container": "nvcr.io#nvidia/pytorch:25.01-py3", "container_runtime": Runtime.pyxis}


def words_of(plan: JobPlan, runtime: str = "apptainer", **environ: str) -> list[str]:
    return container_command.command(plan, environ, runtime, lambda _: True)[0]


def test_apptainer_sees_the_folders_of_the_run_and_a_gpu_where_one_is_asked_for() -> None:
    workload = DDPMnist("w", "m:f", seed=0, data_dir="/data/mnist")
    plan = planned(env={"binds": ["/scratch:/s:ro"], "container_args": ["--no-home"]}, workload=workload)
    words = words_of(plan, TMPDIR="/local/7")
    assert words == [
        "apptainer", "exec", "--cleanenv", "--bind", "/runs", "--bind", "/home/me", "--bind", "/code",
        "--bind", "/data/mnist", "--bind", "/local/7", "--bind", "/scratch:/s:ro", "--pwd", "/home/me", "--no-home",
        "/images/torch.sif", "sh", "-c", container_command.ENTER, "/home/me", "/code", "python3", "-u",
    ]  # fmt: skip
    assert "--nv" in words_of(planned(gpus_per_node=2))


def test_folders_that_a_node_does_not_have_are_not_bound() -> None:
    words, _ = container_command.command(planned(), {"TMPDIR": "/gone"}, "apptainer", lambda path: path != "/gone")
    assert "/gone" not in words


@pytest.mark.parametrize("env", [{}, PYXIS])
@pytest.mark.parametrize(("folder", "mark"), [("/runs,old", ","), ("/runs:old", ":")])
def test_folders_that_no_runtime_could_bind_are_refused(env: dict[str, Any], folder: str, mark: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"/runs{mark}old: a folder bound into env\.container has no .*choose another one"
    ):
        render.rendered(planned(folder, env=env), token="t")


def test_folders_that_ranks_would_make_are_made_before() -> None:
    # The latter is in a folder that is bound.
    elsewhere: dict[str, Any] = {"checkpoint": {"dir": "/ckpt/x"}, "tracking": {"dir": "/home/me/tb"}}
    assert container_command.folders_to_make(with_fields(planned(), **elsewhere)) == ["/ckpt/x"]
    assert container_command.folders_to_make(planned()) == []
    assert "mkdir -p" not in render.script(with_fields(planned(), **elsewhere), token="t")  # a node does it
    script = render.script(with_fields(planned(env=PYXIS), **elsewhere), token="t")
    assert "(umask 077 && mkdir -p /ckpt/x)\n" in script


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        (["/a/b", "/a", "/ab", "/a"], ["/a", "/ab"]),
        (["/", "/x"], ["/x"]),
        (["/a/b/c", "/a/b", "/d"], ["/a/b", "/d"]),
    ],
)
def test_a_folder_within_another_is_seen_with_it(paths: list[str], kept: list[str]) -> None:
    assert container_command.outermost(paths) == kept


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
    inside = container_command.passed_variables({**environ, "PYTHONPATH": "/host"}, planned())
    assert inside == dict.fromkeys(CARRIED, "job")


def test_what_the_profile_sets_counts_inside_too() -> None:
    cluster = {"environment": {"LD_LIBRARY_PATH": "/mine", "PYTHONPATH": "/own", "API_TOKEN": "x"}}
    environ = {"LD_LIBRARY_PATH": "/mine", "API_TOKEN": "x", "PYTHONPATH": "/host"}
    plan = planned(cluster=cluster)
    assert container_command.passed_variables(environ, plan) == {"LD_LIBRARY_PATH": "/mine", "API_TOKEN": "x"}
    assert "/code:/own" in words_of(plan, **environ)
    assert "LD_LIBRARY_PATH" not in container_command.before_srun(planned(cluster=cluster, env=PYXIS))


@pytest.mark.parametrize(("runtime", "prefix"), [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_")])
def test_no_value_is_on_a_command_line(runtime: str, prefix: str) -> None:
    words, environ = container_command.command(planned(), {"HF_TOKEN": "se cret"}, runtime, lambda _: True)
    assert "se cret" not in " ".join(words)
    assert environ[f"{prefix}HF_TOKEN"] == "se cret"
    words, environ = container_command.command(planned(), {"HF_TOKEN": "se cret"}, "enroot", lambda _: True)
    assert "se cret" not in " ".join(words)
    assert words[:2] == ["enroot", "start"]
    assert words[(at := words.index("HF_TOKEN")) - 1 : at + 1] == ["--env", "HF_TOKEN"]
    assert environ["HF_TOKEN"] == "se cret"


def test_pyxis_is_told_by_srun() -> None:
    plan = planned(env={**PYXIS, "binds": ["/a:/b:ro"], "python": "/opt/py"})
    assert container_command.srun_options(plan) == [
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
        "--container-mounts=/runs:/runs,/home/me:/home/me,/code:/code,/a:/b:ro", "--container-workdir=/home/me",
    ]  # fmt: skip
    words = ["sh", "-c", container_command.ENTER, "/home/me", "/code", "/opt/py", "-u", *own_module("launcher.agent")]
    assert container_command.node_command(plan) == words
    # Of the host: unset outside, for inside they may be the image's own.
    unset = " ".join(f"-u {name}" for name in container_command.BREAKING)
    assert f"env {unset} srun --nodes=1 " in " ".join(json.loads(render.rendered(plan, token="t").job)["start"])


def test_the_images_own_pythonpath_comes_behind_ours() -> None:
    words = [
        "sh",
        "-c",
        container_command.ENTER,
        "/",
        "/code:/own",
        "sh",
        "-c",
        'echo "$PWD $PYTHONPATH $PYTHONNOUSERSITE $0"',
        "x",
    ]
    for image, expected in (("/image", "/code:/own:/image"), ("", "/code:/own")):
        done = subprocess.run(words, env={"PYTHONPATH": image}, capture_output=True, text=True, check=True)
        assert done.stdout == f"/ {expected} 1 x\n"


@pytest.mark.parametrize(
    ("env", "cluster", "told"),
    [
        ({"container": None, "binds": ["/a"]}, {}, r"env\.binds is for a container"),
        ({"container": None, "python": "/opt/py"}, {}, r"env\.python is for a container"),
        ({"activate": "/env"}, {}, r"env\.activate and env\.container: ranks run in only one"),
        ({"binds": ["a:b"]}, {}, r"env\.binds: 'a:b' is not /SOURCE"),
        ({"container_runtime": Runtime.pyxis}, {"scheduler": "pbs"}, "pyxis is part of srun"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(env: dict[str, Any], cluster: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        planned(env=env, cluster=cluster)


def test_an_image_that_is_not_there_is_refused_where_its_place_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"there is no torch\.sif in {tmp_path}: make the image first"):
        container_command.checked_image(Env(container=str(tmp_path / "torch.sif")))
    _, (note,) = container_command.checked_image(Env(container=str(tmp_path / "gone/torch.sif")))
    assert "is not visible on this machine" in note
    (tmp_path / "torch.sif").touch()
    config, notes = Inputs().with_environment(make_config(env=Env(container=str(tmp_path / "torch.sif"))))
    assert (config.env.container, notes) == (str(tmp_path / "torch.sif"), ())
    assert "downloaded by each node" in container_command.checked_image(Env(container="docker://pytorch/pytorch"))[1][0]
    for runtime in (Runtime.pyxis, Runtime.enroot):  # there are names of containers, too
        assert container_command.checked_image(Env(container="pytorch", container_runtime=runtime)) == ("pytorch", ())


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
        with pytest.raises(container_command.ContainerError, match="no apptainer and no singularity on PATH"):
            container_command.runtime_of(plan, which)
    else:
        assert container_command.runtime_of(plan, which) == found


def started(plan: JobPlan, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a node of the plan's run does."""
    run = Run.create(Path(plan.run_dir))
    run.write_record(plan, {}, {})
    (run.path / "attempts/0/events").mkdir(parents=True)
    return subprocess.run(
        [sys.executable, "-m", "launcher.environment.container_command", plan.run_dir],
        cwd=ROOT, capture_output=True, text=True,
        env={"PATH": f"{STAND_IN}:{os.environ['PATH']}", "LAUNCHER_RUN_DIR": plan.run_dir, "LAUNCHER_ATTEMPT": "0",
             "LD_LIBRARY_PATH": "/host", **environ}, timeout=60, check=False,
    )  # fmt: skip


def in_image(tmp_path: Path, answer: str = "[[3, 12], []]", **keys: Any) -> JobPlan:
    """The plan of a run in an image whose Python answers what is asked of it, and else tells what it got."""
    inside = tmp_path / "python3"
    inside.write_text(
        f'#!/bin/bash\ncase "$*" in *find_spec*) echo \'{answer}\'; exit; esac\necho "$@"; echo "$PWD"; env | sort\n'
    )
    inside.chmod(0o755)
    (tmp_path / "torch.sif").touch()
    (tmp_path / "work").mkdir()
    site = dataclasses.replace(SITE, workdir=str(tmp_path / "work"))
    env = {"container": str(tmp_path / "torch.sif"), "python": str(inside)} | keys
    return planned(str(tmp_path / "runs"), site=site, env=env)


def test_the_agent_is_started_inside(tmp_path: Path) -> None:
    """By the stand-in, which clears the environment as --cleanenv does, and evaluates values as apptainer does."""
    plan = with_fields(in_image(tmp_path), checkpoint={"dir": f"{tmp_path}/checkpoints/run-1"})
    values = {"HF_TOKEN": "it's $x", "PASS": 'pa$$w"0r\\d`', "COMMAND": "$(echo was run)"}
    done = started(plan, **values)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        " ".join(["-u", *own_module("launcher.agent"), f"{tmp_path}/runs/run-1"]), str(tmp_path / "work"),
    ]  # fmt: skip
    assert {*(f"{name}={value}" for name, value in values.items()), "LAUNCHER_ATTEMPT=0"} <= set(lines)
    assert {"PYTHONPATH=/code", "PYTHONNOUSERSITE=1"} <= set(lines)
    assert not any(line.startswith("LD_LIBRARY_PATH") for line in lines)
    assert os.stat(plan.checkpoint.dir).st_mode & 0o777 == 0o700
    assert f"--bind {plan.checkpoint.dir} " in (tmp_path / "torch.sif.words").read_text()


@pytest.mark.parametrize(
    ("env", "answer", "told"),
    [
        ({"container": "/gone/torch.sif"}, "", r"there is no image /gone/torch\.sif \(env\.container\)"),
        (
            {"container": "docker://x/y"},
            "",
            r"apptainer starts no \S+ in docker://x/y .*: FATAL: +.*could not open image",
        ),
        (
            {"python": "/gone/python3"},
            "",
            r"apptainer starts no /gone/python3 in \S+torch\.sif .*: .*([Nn]ot found|No such file)",
        ),
        ({}, "no answer", r"apptainer starts no \S+python3 in \S+torch\.sif .*: exit code 0"),
        ({}, '[[3, 12], ["submitit"]]', r"the Python of \S+torch\.sif .* lacks submitit, which every run needs"),
        ({}, "[[3, 9], []]", r"the Python of \S+torch\.sif .* has Python 3\.9: "),
    ],
)
def test_what_ends_before_the_agent_has_begun_is_told_and_is_not_tried_again(
    tmp_path: Path, env: dict[str, Any], answer: str, told: str
) -> None:
    plan = in_image(tmp_path, answer, **env)
    done = started(plan)
    assert done.returncode == 93
    host = os.uname().nodename
    assert re.search(rf"^launcher: {host}: {told}", done.stderr, re.MULTILINE), done.stderr
    (attempt,) = Run(Path(plan.run_dir)).attempts()
    (event,) = attempt.events()
    assert (event["event"], event["host"]) == ("fault", host)
    assert (attempt.path / "exit_code").read_text() == "93\n"  # counts for more than how other nodes were ended then


@pytest.mark.parametrize("hidden", ["torch.sif", "work"])
def test_what_a_file_server_does_not_show_now_is_not_left_out_and_the_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    plan = in_image(tmp_path)
    Run.create(Path(plan.run_dir)).write_record(plan, {}, {})
    monkeypatch.setenv("PATH", str(STAND_IN), prepend=os.pathsep)
    monkeypatch.setattr(container_command, "require_agent", Mock(side_effect=container_command.ContainerError))
    FileServer(monkeypatch).fail(tmp_path / hidden)
    assert container_command.main(plan.run_dir) == 75
    assert f"{tmp_path / hidden} cannot be read now" in capsys.readouterr().err


def test_what_may_not_be_looked_at_is_not_there_and_what_cannot_be_looked_at_now_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [Unavailable("no", errno.EACCES), Unavailable("later", errno.ESTALE), Ok(True)]
    monkeypatch.setattr(container_command.retried_reads, "exists", lambda path: found.pop(0))
    assert not container_command._exists("/images/x.sif")
    with pytest.raises(UnavailableError):
        container_command._exists("/images/x.sif")
    assert container_command._exists("/images/x.sif")

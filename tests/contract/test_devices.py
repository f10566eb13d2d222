"""Missing GPUs, and ranks that differ, end a run with exit code 93."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher import errors
from launcher.agent.rank_watch import GPU_SECONDS_AT_LEAST
from tests.launch import ROOT, Launcher
from tests.markers import ci

DIFFERS = """\
import os
import torch
if os.environ["RANK"] == "1":
    torch.__version__ = "2.99"
from launcher import init
init(device="cpu")
"""


SHOWS = """\
import os
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], "of", os.environ["LAUNCHER_GPUS_PER_NODE"])
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """The launcher on this machine, without visible GPUs, where ranks find out what the submission would refuse."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return Launcher(tmp_path / "runs", hidden, ["cluster=local", "cluster.check=false"])


def test_a_run_that_asked_for_gpus_does_not_train_on_the_cpu(launcher: Launcher) -> None:
    result = launcher.run("workload=collective", "workload.op=barrier", "gpus_per_node=1", "procs_per_node=2")
    assert (result.code, result.fault["exit_code"]) == (errors.NO_RETRY, errors.NO_RETRY)
    assert "gpus_per_node=1 with device=auto asks for a GPU" in result.cause


@pytest.mark.parametrize("workload", ["program", "function"])
def test_code_of_the_user_that_asked_for_gpus_does_not_start_where_none_is_visible(
    launcher: Launcher, tmp_path: Path, workload: str
) -> None:
    (tmp_path / "train.py").write_text("def main(): print('trains on the CPU')\nif __name__ == '__main__': main()\n")
    what = [f"workload.script={tmp_path}/train.py"]
    if workload == "function":
        what = ["workload.target=train.main", "workload.init=false"]
    result = launcher.run(f"workload={workload}", *what, "gpus_per_node=1", PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert (result.code, result.fault["exit_code"]) == (errors.NO_RETRY, errors.NO_RETRY)
    assert "sees no GPU: CUDA_VISIBLE_DEVICES=" in result.cause
    assert "trains on the CPU" not in result.output


@pytest.mark.ci
def test_a_program_that_never_uses_its_gpus_is_told(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(f"import time\ntime.sleep({GPU_SECONDS_AT_LEAST + 3})\n")
    result = launcher.run(
        "workload=program",
        f"workload.script={tmp_path}/trains.py",
        "gpus_per_node=2",
        CUDA_VISIBLE_DEVICES="GPU-a,GPU-b",
    )
    assert result.code == 0, result.output
    words = "no GPU was used in"
    said = [launcher("status", "latest").stdout, launcher("post-mortem", "latest").stdout]
    assert all(words in " ".join(text.split()) for text in (result.output, *said)), said
    assert len(json.loads(launcher("post-mortem", "latest", "--json").stdout)["unused_gpus"]) == 1


@pytest.mark.ci
def test_ranks_that_differ_are_refused_on_every_one_of_them(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "differs.py").write_text(DIFFERS)
    result = launcher.run("workload=program", f"workload.script={tmp_path}/differs.py", "procs_per_node=2")
    assert (result.code, result.fault["exit_code"]) == (errors.NO_RETRY, errors.NO_RETRY)
    told = [(result.run.attempts()[-1].logs / f"rank-{rank}.err").read_text() for rank in range(2)]
    assert all("The ranks have different versions of torch" in text and "2.99 on rank 1" in text for text in told)


@pytest.mark.parametrize(("visible", "seen"), [ci("auto", ["GPU-a,GPU-b", "GPU-a,GPU-b"]), ("one", ["GPU-a", "GPU-b"])])
def test_a_program_sees_one_gpu_if_configured(
    launcher: Launcher, tmp_path: Path, visible: str, seen: list[str]
) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    result = launcher.run(
        "workload=program", f"workload.script={tmp_path}/shows.py", "gpus_per_node=2",
        f"launch.visible_devices={visible}", CUDA_VISIBLE_DEVICES="GPU-a,GPU-b",
    )  # fmt: skip
    assert result.code == 0, result.output
    told = [(result.run.attempts()[-1].logs / f"rank-{rank}.out").read_text() for rank in range(2)]
    assert told == [f"sees {each} of 2\n" for each in seen]

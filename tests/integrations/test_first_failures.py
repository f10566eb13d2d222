"""The first failure of a script that its author runs for the first time, and what `post-mortem` says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import ROOT, Launcher
from tests.markers import ci, slow

SCRIPTS = ROOT / "tests/examples/first_failures"
OPTION, FILE, MODULE, HANG, KILLED, EARLY = "option", "file", "module", "hang", "killed", "early"
NO_GPU = "no-gpu"


@dataclass(frozen=True)
class Truth:
    """What is true of a failure: the exit code of the run, its kind, the code and the rank (None: any)."""

    exit_code: int
    kind: str
    code: str
    rank: int | None = None


TRUTH = {
    OPTION: Truth(93, "config-error", "usage"),
    FILE: Truth(1, "file-missing", "raised"),
    MODULE: Truth(1, "import-error", "raised"),
    HANG: Truth(1, "hang", "hang", 1),
    KILLED: Truth(1, "killed", "signalled", 1),
    EARLY: Truth(1, "exited-early", "returned_early", 1),
    NO_GPU: Truth(93, "no-gpu", "no_retry"),
}
# For each failure the arguments of the script, keys of the run, and FAILS of tests/examples/first_failures/samples.py
ARGUMENTS = {OPTION: ["--foo"], FILE: ["--data", "/nowhere/tokens.pt"]}
OF_HYDRA = {OPTION: ["foo=1"], FILE: ["data=/nowhere/tokens.pt"]}
KEYS = {HANG: ["launch.idle_timeout=3"], NO_GPU: ["gpus_per_node=1", "cluster.check=false"]}
# What the script itself says, and the cause has
WORDS = {OPTION: "foo", FILE: "/nowhere/tokens.pt", MODULE: "tokens_of_nobody", NO_GPU: "sees no GPU"}

ROWS = [
    *(("torchrun", failure) for failure in TRUTH),
    ci("transformers", OPTION), slow("transformers", KILLED),
    slow("lightning", FILE), slow("lightning", KILLED),
    slow("accelerate", OPTION), slow("accelerate", EARLY),
    ci("hydra", OPTION), slow("hydra", FILE), slow("hydra", EARLY),
]  # fmt: skip


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "runs", {}, ["cluster=local"])


def post_mortem(launcher: Launcher, framework: str, failure: str) -> tuple[int, dict[str, Any]]:
    """Runs a script as a user does. Returns the exit code, and the verdict of `post-mortem`."""
    arguments = ARGUMENTS.get(failure, [])
    if framework == "hydra":  # which makes a folder for its outputs
        arguments = [*OF_HYDRA.get(failure, []), f"hydra.run.dir={launcher.runs_dir}/outputs"]
    ran = launcher(
        "run", str(SCRIPTS / f"with_{framework}.py"), "run_id=first", "wait=true", "launch.grace=1",
        "launch.max_restarts=0", "procs_per_node=2", *KEYS.get(failure, []), *launcher.overrides, "--", *arguments,
        FAILS=failure, CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    told = launcher("post-mortem", "first", "--json")
    assert told.returncode == 0, ran.stdout + ran.stderr + told.stderr
    verdict = json.loads(told.stdout)["verdict"]
    assert WORDS.get(failure, "") in verdict["cause"], ran.stdout + ran.stderr
    return ran.returncode, verdict


def check(launcher: Launcher, framework: str, failure: str) -> dict[str, Any]:
    """Compares what `post-mortem` says with the truth, and returns it."""
    exit_code, verdict = post_mortem(launcher, framework, failure)
    truth = TRUTH[failure]
    rank = verdict["rank"] if truth.rank is None else truth.rank
    told = exit_code, verdict["kind"], verdict["code"], verdict["rank"]
    assert told == (truth.exit_code, truth.kind, truth.code, rank), verdict
    return verdict


@pytest.mark.backend("local", "this machine")
@pytest.mark.parametrize(("framework", "failure"), ROWS)
def test_what_post_mortem_says_is_true(framework: str, failure: str, launcher: Launcher) -> None:
    check(launcher, framework, failure)


@pytest.mark.parametrize("failure", [slow(OPTION), ci(KILLED)])
def test_on_slurm_it_is_the_same(failure: str, slurm: SlurmCluster, tmp_path: Path) -> None:
    environment = {name: value for name, value in slurm.env().items() if name == "SLURM_CONF"}
    verdict = check(Launcher(tmp_path / "runs", environment, ["cluster=slurm", "nodes=2"]), "torchrun", failure)
    assert failure is OPTION or verdict["host"] == "node1"

"""What is said of a profile of the user's own that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli import submit
from launcher.errors import ConfigError

BASE = "defaults: [slurm, _self_]\nname: mine\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BASE + "partitoin: gpu\n", "mine.yaml, line 3: there is no key 'partitoin'. Did you mean partition"),
        (BASE + "limits: {node: 3}\n", "mine.yaml, line 3: there is no key 'limits.node'. Did you mean limits.nodes"),
        (BASE + "limits: {nodes: many}\n", "yaml, line 3: limits.nodes=many: it must be a whole number: most nodes"),
        (BASE + "check: perhaps\n", "mine.yaml, line 3: check=perhaps: it must be true or false"),
        (BASE + "setup: module load cuda\n", "mine.yaml, line 3: setup: it must be a list ([one, two])"),
        (BASE + "environment: [A]\n", "mine.yaml: a list is given where a section"),
        (BASE + "scheduler: slrum\n", "mine.yaml: cluster.scheduler=slrum: there is no such scheduler. Did you mean"),
        (BASE + "required: [acount]\n", "cluster.required: there is no key cluster.acount. Did you mean account?"),
        (BASE + "limits: {time: soon}\n", "cluster.limits of the profile of cluster=mine: 'soon' is not a time"),
        ("defaults: [slurmm, _self_]\n", "mine.yaml: there is no cluster/slurmm to start from. Did you mean slurm"),
        ("name: mine\npartition: gpu\n", "the profile of cluster=mine names no scheduler: begin its file with"),
        ("- slurm\n", "mine.yaml: it must have lines of the form KEY: VALUE"),
        (BASE + "x: [\n", "mine.yaml, line 4: this is not valid YAML:"),
        (BASE + "required: [account]\n", "cluster.account is not set, and cluster=mine wants it: add cluster.account="),
        (BASE + "required: ['directives.W=[\"group_list=ME\"]']\n",
         "wants it: add 'cluster.directives.W=[\"group_list=ME\"]', or set"),
        (BASE + "required: [environment.A]\nenvironment: {A: null}\n", "wants it: add cluster.environment.A=..., or"),
        (BASE + "port_range: 7\n", "mine.yaml, line 3: cluster.port_range='7' is not LOW-HIGH"),
        (BASE + "queue: gpu\n",
         "mine.yaml, line 3: cluster.queue is a key for pbs and sge, and the cluster is slurm: use cluster.partition"),
    ],
)  # fmt: skip
def test_a_wrong_profile_is_told_with_its_file_and_key(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_text(text)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    refused(["workload=collective", "cluster=mine", "dry_run=true", "cluster.check=false"], told)


def refused(arguments: list[str], told: str) -> None:
    """Bad input, which one line with these words explains."""
    with pytest.raises(ConfigError) as raised:
        submit.main(arguments)
    words = str(raised.value)
    assert told in words
    assert "Traceback" not in words
    assert len(words.strip().splitlines()) == 1, "one line"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cluster: slrum\n", "user.yaml, line 1: there is no cluster=slrum. Did you mean slurm?"),
        ("cluster.acount: me\n", "user.yaml, line 1: there is no key 'cluster.acount'. Did you mean cluster.account"),
        (
            "cluster: slurm\ncluster: {account: me}\n",
            "line 2: this is not valid YAML: found duplicate key cluster. Next to",
        ),
        ("# all\nnodes: two\n", "user.yaml, line 2: nodes=two: it must be a whole number"),
        ("launch.mode: both\n", "user.yaml, line 1: launch.mode=both: it is one of agent, tasks"),
        ("nodes: 0\n", "user.yaml, line 1: nodes=0: it must be 1 or more"),
        ("launch:\n  grace: 0\n", "user.yaml, line 2: launch.grace=0: it must be 1 or more"),
        ("time: 3x\n", "user.yaml, line 1: time: '3x' is not a time"),
        ("nodes: 2\nmin_nodes: 3\n", "user.yaml, line 2: min_nodes=3 is more than nodes=2"),
        ("track: nope\n", "user.yaml, line 1: track=nope: there is no such tracker."),
        ("nodes: 1\nspares: 1\n", "user.yaml, line 2: spares=1: with nodes=1 no node is left"),
        ("spares: 1\nlaunch.mode: tasks\n", "user.yaml, line 1: spares=1: with launch=tasks the scheduler starts all"),
    ],
)
def test_a_wrong_line_for_all_runs_is_told_with_its_file(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user.yaml").write_text(text)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    refused(["workload=collective", "dry_run=true", "cluster.check=false"], told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nodes=0"], "nodes=0: it must be 1 or more"),
        (["-m", "nodes=0", "seed=1,2"], "nodes=0: it must be 1 or more"),
        (["checkpoint={every: 1x}"], "checkpoint.every: '1x' is not a time"),
    ],
)
def test_a_file_is_not_named_for_what_was_typed(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user.yaml").write_text("nodes: 2\ncheckpoint: {every: 10m}\n")
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        submit.main(["workload=ddp_mnist", "dry_run=true", *words])
    assert told in str(raised.value)
    assert "user.yaml" not in str(raised.value)


@pytest.mark.parametrize("text", ["a: [\n", "a: 1\n---\nb: 2\n"])
def test_a_broken_profile_that_is_not_in_use_hides_no_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/broken.yaml").write_text(text)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    refused(["workload=collective", "+foo=1", "dry_run=true"], "there is no key 'foo'.")


def test_a_profile_that_there_is_not_is_told_with_near_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    words = "there is no cluster=perlmuter. Did you mean perlmutter? Known: abci, allocation, alps"
    refused(["workload=collective", "cluster=perlmuter"], words)

"""What is said of a profile of the user's own that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli import commands, submit
from launcher.errors import ConfigError

BASE = "defaults: [slurm, _self_]\nname: mine\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BASE + "partitoin: gpu\n", "mine.yaml, line 3: there is no key 'partitoin'. Did you mean partition"),
        (BASE + "limits: {node: 3}\n", "mine.yaml, line 3: there is no key 'limits.node'. Did you mean limits.nodes"),
        (BASE + "limits: {nodes: many}\n", "yaml, line 3: limits.nodes=many: it must be a whole number: most nodes"),
        (BASE + "check: perhaps\n", "mine.yaml, line 3: check=perhaps: it must be true or false"),
        (BASE + "check: 2\n", "mine.yaml, line 3: check=2: it must be true or false"),
        (BASE + "setup: module load cuda\n", "mine.yaml, line 3: setup: it must be a list ([one, two])"),
        (BASE + "environment: [A]\n", "mine.yaml, line 3: environment: it must be a section"),
        (BASE + "environment: {}\nsetup: {A: 1}\n", "mine.yaml, line 4: setup: it must be a list ([one, two])"),
        (BASE + "environment: ${oc.env:X}\nsetup: {A: 1}\n", "mine.yaml, line 4: setup: it must be a list"),
        (BASE + "environment: ${oc.env:HOME}\n",
         "mine.yaml, line 3: cluster.environment=${oc.env:HOME}: it must be a section ({NAME: VALUE})"),
        (BASE + "setup: ${.environment}\n", "mine.yaml, line 3: cluster.setup=${.environment}: it must be a list"),
        (BASE + "environment: []\n", "mine.yaml, line 3: environment: it must be a section ({NAME: VALUE})"),
        (BASE + "environment: 3\n", "mine.yaml, line 3: environment: it must be a section ({NAME: VALUE})"),
        (BASE + "pools: {a: 3}\n", "mine.yaml, line 3: pools.a: it must be a section ({NAME: VALUE})"),
        (BASE + "scheduler: slrum\n", "mine.yaml, line 3: cluster.scheduler=slrum: there is no such scheduler."),
        (BASE + "required: [acount]\n", "mine.yaml, line 3: cluster.required: there is no key cluster.acount."),
        (BASE + "limits: {time: soon}\n", "mine.yaml, line 3: cluster.limits.time: 'soon' is not a time"),
        ("defaults: [slurmm, _self_]\n", "mine.yaml: there is no cluster/slurmm to start from. Did you mean slurm"),
        ("defaults: [mine, _self_]\n", " starts from itself by its `defaults`: give it another name than "),
        ("name: mine\npartition: gpu\n", "the profile of cluster=mine names no scheduler: begin its file with"),
        ("- slurm\n", "mine.yaml: it, and each section in it, must have lines of the form KEY: VALUE"),
        (BASE + "directives: {nodes: 3}\n", "mine.yaml, line 3: cluster.directives.nodes cannot be set: use the key"),
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
        ("cluster: /scratch\n", "user.yaml, line 1: there is no cluster=/scratch. Known: abci, "),
        ("cluster.acount: me\n", "user.yaml, line 1: there is no key 'cluster.acount'. Did you mean cluster.account"),
        (
            "cluster: slurm\ncluster: {account: me}\n",
            "line 2: this is not valid YAML: found duplicate key cluster. Next to",
        ),
        ("nodes: 1\nnodes: 2\n", "line 2: this is not valid YAML: found duplicate key nodes"),
        ("nodes: 1\nresume: never\n", "user.yaml, line 2: resume: it is a section: set a key in it (resume.how, "),
        ("nodes: 1\nresume: ${oc.env:X}\n", "user.yaml, line 2: resume: it is a section: set a key in it (resume."),
        ("train: {}\nresume: never\n", "user.yaml, line 2: resume: it is a section: set a key in it (resume.how, "),
        (
            "cluster.environment: [A=1]\n",
            "user.yaml, line 1: cluster.environment: it must be a section ({NAME: VALUE})",
        ),
        ("cluster.setup: {A: 1}\n", "user.yaml, line 1: cluster.setup: it must be a list ([one, two])"),
        ("cluster.limits: {nodes: 0}\n", "user.yaml, line 1: cluster.limits.nodes=0: it must be 1 or more"),
        ("# all\nnodes: two\n", "user.yaml, line 2: nodes=two: it must be a whole number"),
        ("launch.mode: both\n", "user.yaml, line 1: launch.mode=both: it must be one of agent, tasks"),
        ("nodes: 0\n", "user.yaml, line 1: nodes=0: it must be 1 or more"),
        ("seed: -1\n", "user.yaml, line 1: seed=-1: it must be 0 or more"),
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
    ("content", "told"),
    [(b"# f\xfcr uns\n", "is no text in UTF-8: 'utf-8' codec can't decode byte 0xfc"),
     (b"5\n", "must have lines of the form KEY: VALUE")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["user", "cluster/slurm"])
def test_what_is_no_yaml_of_keys_is_told_with_its_file(
    name: str, content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / f"{name}.yaml").parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    refused(["workload=collective", "cluster=slurm", "dry_run=true"], f"{file} {told}")


def test_a_profile_of_another_encoding_is_shown_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_bytes(b"# f\xfcr uns\n" + BASE.encode())
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    assert commands.main(["site", "show", "mine"]) == 0
    assert "# f\ufffdr uns\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"not valid YAML: [\s\S]*mine\.yaml"):
        commands.main(["help", "cluster=mine"])


@pytest.mark.parametrize("name", ["user", "cluster/slurm"])
def test_what_is_no_file_is_refused_and_not_passed_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.yaml").mkdir(parents=True)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    with pytest.raises(IsADirectoryError, match=f"{name}.yaml"):
        submit.main(["workload=collective", "cluster=slurm", "dry_run=true"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nodes=0"], "nodes=0: it must be 1 or more"),
        (["-m", "nodes=0", "seed=1,2"], "nodes=0: it must be 1 or more"),
        (["checkpoint={every: 1x}"], "checkpoint.every: '1x' is not a time"),
        (["train.invariant=2"], "train.invariant=2: it must be true or false: bitwise the same weights"),
        (["-m", "train.invariant=0,'2'"], "train.invariant='2': it must be true or false"),
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


def test_profiles_that_start_from_each_other_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_text(BASE)
    (tmp_path / "cluster/slurm.yaml").write_text("defaults: [mine]\n")
    (tmp_path / "user.yaml").write_text("cluster: mine\n")
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    refused(["workload=collective", "dry_run=true"], f"a file in {tmp_path} starts from itself by its `defaults`")


def test_a_value_that_is_nested_too_deeply_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    word = f"workload.overrides={{a: {'[' * 120}{']' * 120}}}"
    refused(["workload=collective", word, "dry_run=true"], "a value is nested too deeply (lists or sections")


def test_a_profile_that_there_is_not_is_told_with_near_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    words = "there is no cluster=perlmuter. Did you mean perlmutter? Known: abci, allocation, alps"
    refused(["workload=collective", "cluster=perlmuter"], words)


SOUND, WRONG = "port_range: 2000-3000\n", "port_range: '5'\n"


@pytest.mark.parametrize(
    ("files", "words", "place"),
    [
        ({"mine": "defaults: [base, _self_]\n" + WRONG, "base": BASE + SOUND}, [], "cluster/mine.yaml, line 2: "),
        ({"mine": "defaults: [base, _self_]\n", "base": BASE + WRONG}, [], "cluster/base.yaml, line 3: "),
        ({"mine": "defaults: [base]\n" + SOUND, "base": BASE + WRONG}, ["cluster=base"], "cluster/base.yaml, line 3: "),
        ({"mine": "defaults: [slurm, _self_]\n" + WRONG}, [], "cluster/mine.yaml, line 2: "),
        # Another one has the last word, or may have it
        ({"mine": "defaults: [_self_, base]\n" + SOUND, "base": BASE + WRONG}, [], ""),
        ({"mine": "defaults: [base, more, _self_]\n", "base": BASE + SOUND, "more": WRONG}, [], ""),
        ({"mine": "# @package _global_\ndefaults: [base@cluster, _self_]\ncluster: {port_range: '5'}\n",
          "base": BASE + SOUND}, [], ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("typed", [True, False])
def test_the_profile_that_sets_a_wrong_value_last_is_named(
    files: dict[str, str], words: list[str], place: str, typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    for name, text in files.items():
        (tmp_path / f"cluster/{name}.yaml").write_text(text)
    (tmp_path / "user.yaml").write_text("nodes: 1\n" if typed else "cluster: mine\n")
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    start = f"{tmp_path}/{place}" if place else ""
    with pytest.raises(ConfigError) as raised:
        submit.main(["workload=collective", "dry_run=true", *(words or ["cluster=mine"] * typed)])
    assert str(raised.value).startswith(f"{start}cluster.port_range='5' is not LOW-HIGH")


def test_a_file_of_another_group_is_named_and_a_section_of_user_yaml_chooses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/mine.yaml").write_text("defaults: [agent, _self_]\ngrace: 0\n")
    (tmp_path / "user.yaml").write_text("launch: {max_restarts: 1}\n")
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    refused(["workload=collective", "dry_run=true", "launch=mine"], "launch/mine.yaml, line 2: launch.grace=0: it must")
    (tmp_path / "launch/agent.yaml").write_text("defaults: [/hydra/schema/launch@_here_, _self_]\ngrace: 0\n")
    with pytest.raises(ConfigError, match=r"^launch\.grace=0: it must"):  # which is chosen is not said in the file
        submit.main(["workload=collective", "dry_run=true"])


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("{}\n", ["workload=ddp_mnist", "workload.lr=many"], "lr=many: it must be a number: peak learning rate"),
        ("workload: ddp_mnist\n", ["workload.lr=many"], "workload.lr=many: it must be a number"),
        ("workload: ddp_mnist\nworkload.batch_size: many\n", [], "workload.batch_size=many: it must be a whole number"),
        ("workload: ddp_mnist\n", ["nodes=many"], "nodes=many: it must be a whole number: number of nodes"),
    ],
)
def test_a_meaning_is_told_only_where_the_key_has_no_other_one(
    text: str, words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user.yaml").write_text(text)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        submit.main([*words, "dry_run=true"])
    assert str(raised.value).endswith(told)


def test_a_key_of_some_workloads_in_user_yaml_is_told_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user.yaml").write_text("workload.lr: 0.1\n")
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    told = "user.yaml, line 1: there is no key 'workload.lr'. There is one with workload=ddp_mnist or fsdp_lm."
    refused(["dry_run=true"], told)


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("target: a.b:main", "[function, _self_]`"),
        ("lr: 0.1", "[ddp_mnist, _self_]`, or fsdp_lm"),
        ("foo: 1", "[program, _self_]`, or function"),
    ],
)
def test_a_workloads_file_that_starts_from_none_is_told_how_to_begin(
    line: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/mine.yaml").write_text(f"name: mine\n{line}\n")
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    key = line.partition(":")[0]
    told = f"line 2: the file starts from no workload that has a key {key!r}: begin it with `defaults: {start}"
    refused(["workload=mine", "dry_run=true"], told)

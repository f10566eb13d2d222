"""Each scheduler has keys of `cluster` of its own, which are loaded when it is chosen; another package's do too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from launcher import __main__
from launcher.cli import complete, key_help, submit
from launcher.config import keys, scheduler_table
from launcher.config.scheduler_table import OURS, SCHEDULERS, SETTINGS
from launcher.errors import ConfigError
from launcher.paths import PACKAGE
from launcher.plan.plan import as_dict, keys_of, plan_misfit, settings_of
from launcher.schedulers import registry
from tests.fakes.third_scheduler.settings import Priority, ThirdSettings
from tests.unit.plans import plan_of

THIRD = "tests.fakes.third_scheduler"
POINTS = [
    EntryPoint("third", f"{THIRD}.scheduler:ThirdScheduler", SCHEDULERS),
    EntryPoint("third", f"{THIRD}.settings:ThirdSettings", SETTINGS),
]
CACHES = (
    scheduler_table.entry_points_of, scheduler_table.settings_class, scheduler_table.cluster_class, keys.sections,
    registry.scheduler, key_help.sections,
)  # fmt: skip


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The third scheduler is installed, with the keys of its own."""
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [each for each in POINTS if each.group == group]
    )
    for each in CACHES:
        each.cache_clear()
    yield
    monkeypatch.undo()
    for each in CACHES:
        each.cache_clear()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile of the user's own, which is to be written."""
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "cluster").mkdir()
    return tmp_path / "cluster/mine.yaml"


HEAD = "defaults: [/hydra/schema/cluster/third@_here_, _self_]\nname: mine\nscheduler: third\n"


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as refused:
        submit.main(["workload=collective", "dry_run=true", "cluster.check=false", *words])
    return str(refused.value)


def test_a_scheduler_of_another_package_has_keys_of_its_own(
    third: None, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(f"{HEAD}lane: fast\n")
    assert submit.main(["workload=collective", "cluster=mine", "cluster.priority=high", "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert "mine, lane fast" in shown
    assert "#THIRD --lane fast\n#THIRD --priority high\n" in shown


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("", ["cluster.priority=urgent"], "cluster.priority=urgent: it must be one of low, high"),
        ("", ["cluster.max_wait=soon"], "cluster.max_wait: 'soon' is not a time"),
        ("", ["cluster.priorty=x"], "there is no key 'cluster.priorty'. Did you mean cluster.priority"),
        ("", ["cluster.partition=gpu"], "cluster.partition is a key for slurm, and the cluster is third: use "),
        ("", ["cluster=slurm", "cluster.lane=x"], "cluster.lane is a key for third, and the cluster is slurm: leave"),
        ("priorty: x\n", [], "mine.yaml, line 4: there is no key 'priorty'. Did you mean priority"),
        ("lnae: x\n", [], "mine.yaml, line 4: there is no key 'lnae'. Did you mean name or lane?"),
        ("qos: x\n", [], "mine.yaml, line 4: cluster.qos is a key for slurm, and the cluster is third: leave it out"),
    ],
)  # fmt: skip
def test_its_keys_are_checked_like_ours(third: None, mine: Path, text: str, words: list[str], told: str) -> None:
    mine.write_text(HEAD + text)
    assert told in refusal("cluster=mine", *words)


def test_help_and_completion_know_its_keys(third: None, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine.write_text(f"{HEAD}lane: fast\n")
    assert __main__.main(["help", "cluster.lane"]) == 0
    assert "lane of the queue" in capsys.readouterr().out
    assert __main__.main(["help", "cluster=mine"]) == 0
    shown = capsys.readouterr().out
    assert "cluster.lane=fast " in shown and "cluster.partition" not in shown
    assert complete.overrides("cluster.la", ["cluster=mine"]) == ["cluster.lane="]
    assert complete.overrides("cluster.priority=", ["cluster=mine"]) == [
        "cluster.priority=low",
        "cluster.priority=high",
    ]
    assert complete.overrides("cluster.la", ["cluster=slurm"]) == []


def test_its_settings_survive_the_record(third: None) -> None:
    plan = plan_of(cluster={"scheduler": "third", "lane": "fast", "priority": Priority.high})
    assert keys_of(plan)["cluster.priority"] == "high"
    values: Any = json.loads(json.dumps(as_dict(plan)))
    assert plan_misfit(values) is None
    assert settings_of(plan, ThirdSettings) == ThirdSettings("fast", Priority.high)
    values["cluster"]["settings"]["priority"] = "urgent"
    assert plan_misfit(values) == "plan.cluster.settings.priority is none of low, high"


def test_one_whose_settings_cannot_be_loaded_is_named(third: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("third", "no_such_module:Settings", SETTINGS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point if group == SETTINGS else POINTS[0]])
    with pytest.raises(
        ConfigError, match="scheduler=third: no_such_module:Settings, an entry point of another package"
    ):
        scheduler_table.cluster_class("third")


@pytest.mark.parametrize("name", OURS)
def test_the_keys_of_ours_are_in_their_folders(name: str) -> None:
    kind = scheduler_table.cluster_class(name)
    assert kind is not None
    assert scheduler_table.scheduler_of(kind) == name
    places = OURS[name]
    module, settings = (place.partition(":")[0] for place in (places.scheduler, places.settings))
    assert settings in (module, module.rpartition(".")[0] + ".settings")  # one that is a single file has them itself


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cluster=pbs", "cluster.exclude=node4"], "PBS cannot exclude nodes"),
        (["cluster=pbs", "cluster.gpu_type=a100"], "cluster.chunk"),
        (["cluster=pbs", "cluster.gpu_directive=gres"], "it must be one of ngpus, none"),
        (["cluster=slurm", "cluster.chunk.model=a100"], "use cluster.constraint"),
        (["cluster=slurm", "cluster.mpiexec=[mpiexec]"], "srun starts the tasks"),
        (
            ["cluster=slurm", "+cluster.queue=gpu"],
            "cluster.queue is a key for pbs and sge, and the cluster is slurm: use ",
        ),
        (
            ["cluster=slurm", "cluster.scheduler=pbs"],
            "cluster=slurm starts from the keys of another scheduler: begin its",
        ),
    ],
)
def test_a_key_of_another_scheduler_is_refused(mine: Path, words: list[str], told: str) -> None:
    assert told in refusal(*words)


@pytest.mark.parametrize("cluster", ["local", "allocation"])
def test_where_nothing_is_submitted_keys_of_others_are_ignored(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    (mine.parent.parent / "user.yaml").write_text("cluster: {gpu_directive: ngpus}\ncluster.qos: high\n")
    words = ["workload=collective", "dry_run=true", f"cluster={cluster}", "cluster.partition=gpu", "+cluster.chunk.a=1"]
    assert submit.main(words) == 0
    assert "gpu_directive" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["cluster=mine"]])
def test_but_no_other_keys_and_the_file_that_has_one_is_named(mine: Path, words: list[str]) -> None:
    path = mine if words else mine.parent.parent / "user.yaml"
    path.write_text("defaults: [local, _self_]\nname: mine\nqoss: high\n" if words else "cluster.qoss: high\n")
    line = 3 if words else 1
    assert refusal(*words).startswith(f"{path}, line {line}: there is no key 'cluster.qoss'. Did you mean cluster.qos")
    path.unlink()
    assert refusal("cluster.qoss=high").startswith("there is no key 'cluster.qoss'. Did you mean cluster.qos")


def test_only_the_chosen_schedulers_keys_are_loaded(mine: Path) -> None:
    program = (
        "import sys; from launcher.cli import submit; submit.main(sys.argv[1:]);"
        "print(*sorted(name for name in sys.modules if name.endswith('.settings')), file=sys.stderr)"
    )
    words = ["workload=collective", "cluster=slurm", "cluster.partition=gpu", "cluster.check=false", "dry_run=true"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == ["launcher.schedulers.slurm.settings"], done.stderr

"""The schema as Hydra gets it: every key explained, what people write read as they mean it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from launcher.config import keys as config_keys
from launcher.config import schema as config
from launcher.paths import resource
from launcher.submission import resume

KINDS = [value for value in vars(config).values() if dataclasses.is_dataclass(value)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_says_what_it_means(kind: type) -> None:
    keys = list(config_keys.keys_of(kind))
    assert [key.name for key in keys] == [field.name for field in dataclasses.fields(kind)]
    assert [key.name for key in keys if not key.doc.strip() or "type: ignore" in key.doc] == []


def test_every_key_has_its_full_name() -> None:
    names = config_keys.all_keys()
    assert {"nodes", "time", "cluster.partition", "cluster.limits.time", "launch.grace", "workload.lr"} <= set(names)


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DictConfig]]:
    """Composes the real conf/ with the user's own files and overrides."""
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    resolvers = {start: list(pairs) for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    resume.register()

    def run(*overrides: str, **files: str) -> DictConfig:
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        with initialize_config_dir(str(resource("conf")), version_base="1.3"):
            return compose("config", list(overrides))

    yield run
    GlobalHydra.instance().clear()
    yaml.SafeLoader.yaml_implicit_resolvers = resolvers


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1:30:00", "1:30:00"),
        ("01:30:00", "01:30:00"),
        ("90", "90"),
        ("90m", "90m"),
        ("1-12:00:00", "1-12:00:00"),
        ("10:30", "10:30"),
    ],
)
def test_a_wall_time_in_a_file_is_what_it_looks_like(
    composed: Callable[..., DictConfig], written: str, meant: str
) -> None:
    assert composed("workload=ddp_mnist", user=f"# @package _global_\ntime: {written}\n").time == meant
    assert composed("workload=ddp_mnist", f"time={written}").time == meant


def test_other_numbers_in_a_file_stay_numbers(composed: Callable[..., DictConfig]) -> None:
    read = composed(
        "workload=ddp_mnist", user="nodes: 3\nseed: 0x10\nworkload:\n  lr: 1e-3\ncluster:\n  environment: {A: -7}\n"
    )
    assert (read.nodes, read.seed, read.workload.lr, read.cluster.environment.A) == (3, 16, 1e-3, -7)


# The groups know nothing of each other, so a choice of one stands beside any of the others.
@pytest.mark.parametrize(
    ("workload", "cluster", "launch"),
    [*zip(config_keys.WORKLOADS, cycle(["local", "slurm", "pbs", "allocation"]), cycle(["agent", "tasks"]))],
)
def test_every_choice_composes_to_the_dataclasses(
    composed: Callable[..., DictConfig], workload: str, cluster: str, launch: str
) -> None:
    typed: Any = OmegaConf.to_object(composed(f"workload={workload}", f"cluster={cluster}", f"launch={launch}"))
    assert isinstance(typed, config.Config)
    assert type(typed.workload) is config_keys.WORKLOADS[workload]
    assert (typed.cluster.name, typed.launch.mode.value, typed.name) == (cluster, launch, workload)


def test_a_profile_of_the_users_own_starts_from_ours(composed: Callable[..., DictConfig]) -> None:
    profile = "defaults: [slurm, _self_]\nname: mine\npartition: gpu\nlimits: {time: 2:00:00}\n"
    read = composed("workload=p2p", "cluster=mine", cluster__mine=profile)
    assert (read.cluster.name, read.cluster.scheduler, read.cluster.partition) == (
        "mine",
        "slurm",
        "gpu",
    )
    assert read.cluster.limits.time == "2:00:00"


@pytest.mark.parametrize(
    ("text", "words", "values"),
    [
        ("cluster: slurm\n", [], {"cluster.name": "slurm"}),
        ("cluster: slurm\ncluster.account: me\n", [], {"cluster.name": "slurm", "cluster.account": "me"}),
        ("cluster.account: me\ncluster: slurm\n", [], {"cluster.name": "slurm", "cluster.account": "me"}),
        ("cluster: slurm\n", ["cluster=pbs"], {"cluster.name": "pbs"}),  # the command line has the last word
        ("cluster.account: me\n", ["cluster.account=you"], {"cluster.account": "you"}),
        ("cluster: mine\n", [], {"cluster.name": "mine", "cluster.limits.nodes": 4, "cluster.limits.time": "2h"}),
        ("workload: ddp_mnist\nworkload.lr: 0.5\n", [], {"workload.name": "ddp_mnist", "workload.lr": 0.5}),
        ("workload: ddp_mnist\n", ["workload=p2p"], {"workload.name": "p2p"}),
        ("launch: tasks\nenv: default\n", [], {"launch.mode": config.LaunchMode.tasks}),
        ("cluster: {account: me}\ncluster.qos: high\n", [], {"cluster.account": "me", "cluster.qos": "high"}),
        ("defaults: [{override /cluster: pbs}]\nenv: default\n", [], {"cluster.name": "pbs"}),
        ("name: run-${seed}\nnodes: 2\n", ["seed=3"], {"name": "run-3", "nodes": 2}),
        ("time: 1:30:00\n# cluster: pbs\n", [], {"time": "1:30:00", "cluster.name": "local"}),
        ("cluster: slurm\ncluster.account: 0123\n", [], {"cluster.account": "0123"}),
        ("", [], {"cluster.name": "local"}),
    ],
)  # fmt: skip
def test_lines_for_all_runs_may_be_written_as_on_the_command_line(
    composed: Callable[..., DictConfig], text: str, words: list[str], values: dict[str, object]
) -> None:
    mine = "defaults: [slurm, _self_]\nname: mine\nlimits.nodes: 4\nlimits.time: 2h\n"
    read = composed(*words, user=text, cluster__mine=mine)
    assert {key: OmegaConf.select(read, key) for key in values} == values


def test_the_runs_directory_comes_from_the_environment(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    assert composed("workload=p2p").runs_dir == str(tmp_path / "runs")

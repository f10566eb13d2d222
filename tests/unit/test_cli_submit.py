"""What cannot be composed is explained in the launcher's words, with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.cli import schema
from launcher.cli.submit import explain
from launcher.paths import resource


@pytest.fixture(autouse=True)
def hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    resolvers = {start: list(pairs) for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    schema.register()
    yield
    GlobalHydra.instance().clear()
    yaml.SafeLoader.yaml_implicit_resolvers = resolvers


def explained(*arguments: str) -> str:
    try:
        with initialize_config_dir(str(resource("conf")), version_base="1.3"):
            OmegaConf.to_object(compose("config", list(arguments)))
    except (HydraException, OmegaConfBaseException) as error:
        return explain(error, list(arguments))
    raise AssertionError("it composed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["workload=ddp_mnits"],
            "there is no workload=ddp_mnits. Did you mean ddp_mnist? Known: collective, ddp_mnist, fsdp_lm, function, "
            "p2p, program",
        ),
        (["workload=zzz"], "there is no workload=zzz. Known: collective, ddp_mnist, fsdp_lm, function, p2p, program"),
        (["workload=p2p", "cluster=slrum"], "there is no cluster=slrum. Did you mean slurm?"),
        (["workload=p2p", "launch=task"], "there is no launch=task. Did you mean tasks?"),
        (["workload=p2p", "node=2"], "there is no key 'node'. Did you mean nodes"),
        (
            ["workload=p2p", "cluster.partitoin=x"],
            "there is no key 'cluster.partitoin'. Did you mean cluster.partition",
        ),
        (["workload=ddp_mnist", "workload.batchsize=8"], "Did you mean workload.batch_size"),
        (["workload=p2p", "zzz=2"], "there is no key 'zzz'. `python -m launcher --help` lists all"),
        (["workload=p2p", "stauts"], "'stauts' is neither a command nor KEY=VALUE"),
        (["workload=p2p", "cluster.exclude=node[3,7]"], "quote it: 'cluster.exclude=\"node[3,7]\"'"),
        (["workload=p2p", "name=a,b"], "'name=[a,b]' for a list, 'name=\"a,b\"' for a text, or add -m for a sweep"),
        (["workload=p2p", "nodes=two"], "nodes=two: Value 'two' of type 'str' could not be converted to Integer"),
        (
            ["workload=p2p", "launch.mode=both"],
            "launch.mode=both: Invalid value 'both', expected one of [agent, tasks]",
        ),
    ],
)
def test_the_error_names_what_was_typed_and_what_was_meant(arguments: list[str], words: str) -> None:
    assert words in explained(*arguments)


@pytest.mark.parametrize("key", ["cluster.environment.A", "cluster.directives.licenses"])
def test_keys_that_are_the_users_own_need_a_plus(key: str) -> None:
    assert f"+{key}=" in explained("workload=p2p", f"{key}=1")

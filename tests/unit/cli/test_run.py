"""`run SCRIPT`: which overrides it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.cli import submit
from launcher.cli.run import name_of, overrides
from launcher.errors import ConfigError
from launcher.spec.build import check_name


@pytest.mark.parametrize(
    ("script", "module", "given", "meant"),
    [
        ("train.py", False, [], ["name='train'", "workload=program", "workload.script='train.py'"]),
        (
            "a b/it's.py",
            False,
            ["nodes=2"],
            ["name='it_s'", "workload=program", "workload.script='a b/it\\'s.py'", "nodes=2"],
        ),
        ("pkg.train", True, [], ["name='train'", "workload=program", "workload.module='pkg.train'"]),
        ("t.py", False, ["name=x", "~wait"], ["workload=program", "workload.script='t.py'", "name=x", "~wait"]),
        ("t.py", False, ["workload=mine"], ["name='t'", "workload.script='t.py'", "workload=mine"]),
    ],
)
def test_a_script_is_a_run_of_its_name(script: str, module: bool, given: Sequence[str], meant: Sequence[str]) -> None:
    assert overrides(script, given, module=module) == meant


def test_a_script_in_a_folder_of_hydras_is_no_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("lr=0.1,exp=1/train.py")
    with pytest.raises(ConfigError, match="name the script before its KEY=VALUE"):
        overrides(str(script), [])
    script.parent.mkdir()
    script.touch()
    assert overrides(str(script), ["nodes=2"]) == [
        "name='train'", "workload=program", f"workload.script='{script}'", "nodes=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("./dir/train.v2.py", "train.v2"),
        ("run", "run"),
        ("my train.py", "my_train"),
        ("-x.py", "x"),
        (".hidden", "hidden"),
        ("..py", "program"),
        ("ü.py", "_"),
        ("7.py", "7"),
        ("x" * 80 + ".py", "x" * 64),
    ],
)
def test_the_name_is_one_that_every_system_takes(script: str, name: str) -> None:
    assert check_name("name", name_of(script)) == name


@pytest.mark.parametrize("option", ["-m", "--multirun", "--yes"])
@pytest.mark.parametrize("behind", [(), ("--", "-m", "run")])
def test_options_stand_in_front_of_the_command_as_well(
    option: str, behind: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(submit, "main", lambda words: asked.append(words) or 0)
    for words in ([option, "run"], ["run", option]):
        assert main([*words, "train.py", "seed=1,2", *behind]) == 0
    assert asked[0] == asked[1]
    assert f"--{option.removeprefix('--').replace('-m', 'multirun')}" in asked[0]

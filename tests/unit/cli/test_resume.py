"""`resume` finds its run again in whatever folder it is: the record is data, and no config."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from launcher.cli import hydra_setup, resume, submit
from launcher.runs.directory import Run

NAMES = [
    "plain", "${oc.env:HOME}", "${HOME}", "$HOME", "a\\b", "a\\\\b", "a\\", "\\${x}", "\\\\${x}", "it's", "\"so\"",
    "a,b", "[a]", "{a: b}", "a=b", "a b", "'${oc.env:HOME}'", "${launcher.runs_dir:}", "é", "\\'", "null",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_resumed_where_it_is(tmp_path: Path, name: str) -> None:
    hydra_setup.register()
    run = Run(tmp_path / name / "run-1")
    config = submit.compose_run(["workload=p2p", *resume._place(run)])
    assert config is not None
    assert submit.typed(config).runs_dir == str(tmp_path / name)
    assert OmegaConf.to_container(config, resolve=True)["runs_dir"] == str(tmp_path / name)  # type: ignore[index, call-overload]

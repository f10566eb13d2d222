"""What a #SBATCH line says reaches a real Slurm byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.submission import render
from tests.cluster.slurm_cluster import SlurmCluster
from tests.unit.plans import bare_plan


@pytest.mark.parametrize(
    "text",
    ["two  words", "it's", '"quoted"', "$(touch pwned)`touch pwned`", "a;b & c | d > e", "a # b", "a\\b", "\\", "'\\'",
     "\\' --uid=0", "#", "--nodes=4", "größe"],
)  # fmt: skip
def test_a_value_of_a_directive_arrives_as_it_is(slurm: SlurmCluster, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "100%j"
    folder.mkdir()
    plan = bare_plan(name=text, run_dir=str(folder), nodes=1, cluster={"directives": {"hold": True}})
    script = tmp_path / "script.sh"
    script.write_text(render.script(plan, token=text))
    job = slurm.run("sbatch", "--parsable", str(script)).strip()
    try:
        shown = slurm.run("scontrol", "show", "job", job).splitlines()
    finally:
        slurm.run("scancel", job)
    assert shown[0] == f"JobId={job} JobName={text}"
    assert f"   Comment={text}" in [line.removesuffix(" ") for line in shown]
    assert any(line.strip().startswith("NumNodes=1-1 ") for line in shown)  # no other option got in

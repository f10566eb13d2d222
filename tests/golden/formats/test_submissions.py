"""What the product writes into run directories and sweeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.golden.formats.conftest import FACTS, Site, base_of
from tests.golden.golden import FORMATS, check, rows


def one_line(match: re.Match[str]) -> str:
    """Returns an innermost list or object of JSON as one line, if it is short."""
    line = json.dumps(json.loads(match[0]))
    return line if len(line) < 240 else match[0]


def frozen(site: Site, path: Path) -> None:
    """Compares a file of a run or a sweep with its golden file, with placeholders for what differs between machines."""
    text = path.read_text()
    for pattern, placeholder in (
        (r'"pid": \d+, "start": \d+', '"pid": 1234, "start": 5678'),
        (r"/secrets/[0-9a-f]{16}", "/secrets/of-a-folder"),
    ):
        text = re.sub(pattern, placeholder, site.neutral(text))
    if path.name == "record.json":
        value = json.loads(text)
        value |= {key: f"<{key}>" for key in FACTS if key in value}
        text = json.dumps(rows(value, base_of(FORMATS / "written" / path.relative_to(site.runs))), indent=1) + "\n"
    if path.suffix == ".json":
        text = re.sub(r"(?<=: )[\[{][^\[\]{}]*[\]}]", one_line, text)
    check(f"formats/written/{site.neutral(str(path.relative_to(site.runs)))}", text)


def test_a_run_of_this_machine(site: Site) -> None:
    """The first one: other records are compared with this one."""
    (site.folder / "bin/bash").unlink()
    (site.folder / "bin/bash").symlink_to("/bin/true")
    site.submit("workload=p2p", "procs_per_node=2", "run_id=local")
    frozen(site, site.runs / "local/record.json")
    frozen(site, site.runs / "local/journal.jsonl")


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_a_run_that_is_handed_over(site: Site, scheduler: str) -> None:
    site.answer(scheduler, "submission")
    site.submit(
        "workload=p2p", f"cluster={scheduler}", "cluster.check=false", "nodes=2", "procs_per_node=2",
        f"run_id={scheduler}",
    )  # fmt: skip
    frozen(site, site.runs / scheduler / "record.json")
    frozen(site, site.runs / scheduler / "journal.jsonl")


def test_a_chain_of_jobs(site: Site) -> None:
    site.answer("slurm", "submission")
    site.submit(
        "workload=p2p", "cluster=slurm", "cluster.check=false", "nodes=2", "resume.how=chain", "resume.max_attempts=3",
        "run_id=chain",
    )  # fmt: skip
    frozen(site, site.runs / "chain/journal.jsonl")


def test_a_race_of_jobs(site: Site) -> None:
    site.answer("slurm", "submission")
    site.submit(
        "workload=p2p", "cluster=slurm", "cluster.check=false", "nodes=2", "run_id=race",
        "cluster.race=[partition=a,partition=b time=5m]",
    )  # fmt: skip
    frozen(site, site.runs / "race/journal.jsonl")
    frozen(site, site.runs / "race/1-job.json")


def test_a_run_that_the_user_submits(site: Site) -> None:
    site.answer("slurm")
    site.submit("workload=p2p", "cluster=slurm", "cluster.check=false", "nodes=2", "submit=false", "run_id=by-hand")
    frozen(site, site.runs / "by-hand/journal.jsonl")


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_a_sweep_that_is_handed_over(site: Site, scheduler: str) -> None:
    site.answer(scheduler, "submission")
    name = f"sweep-{scheduler}"
    site.submit(
        "-m", "workload=p2p", "nodes=2", "seed=1,2", f"cluster={scheduler}", "cluster.check=false", f"sweep.id={name}"
    )
    for path in sorted((site.runs / name).rglob("*.json*")):
        frozen(site, path)
    names = sorted(str(path.relative_to(site.runs)) for path in (site.runs / name).rglob("*") if path.is_file())
    check(f"formats/written/{name}/files.txt", site.neutral("".join(f"{each}\n" for each in names)))

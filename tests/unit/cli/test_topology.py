"""A node's CPUs and devices, and what each rank gets of them, as tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.binding import masks
from launcher.binding.masks import parse
from launcher.cli import commands
from launcher.cli.topology import devices_of, node_tables
from launcher.errors import ConfigError, RunError
from launcher.runs import event_files
from launcher.runs.events import Bound, BoundRank
from launcher.runs.history import bindings_event
from tests.unit.binding import trees
from tests.unit.cli.test_commands import make


def told(name: str, bind: str = "auto", host: str = "node1", first: int = 0) -> tuple[Bound, dict[str, list[str]]]:
    node, allowed = trees.read(name), trees.allowed(trees.description(name))
    near = masks.of_ranks(node, {}, range(len(node.gpus) or 4), gpus=bool(node.gpus))
    found = masks.bind(node, allowed, near, parse(bind))
    event = bindings_event(host, node, allowed, found.ranks, unbound=found.unbound, first_rank=first)
    return event, devices_of(node)


POLARIS = """\
node1: 1 socket, 4 NUMA nodes, 32 cores of 2 threads, 4 NVIDIA A100-SXM4-40GB
  GPUs
  the job may use CPUs 0-63

  NUMA  CPUS         GPUS AND NICS
  0     0-7,32-39    0000:c7:00.0,mlx5_0
  1     8-15,40-47   0000:85:00.0
  2     16-23,48-55  0000:46:00.0,mlx5_1
  3     24-31,56-63  0000:07:00.0

  RANK  CORES  CPUS         NUMA  GPU           NIC
  0     8      24-31,56-63  3     0000:07:00.0  -
  1     8      16-23,48-55  2     0000:46:00.0  mlx5_1
  2     8      8-15,40-47   1     0000:85:00.0  -
  3     8      0-7,32-39    0     0000:c7:00.0  mlx5_0"""


def test_the_tables_of_a_node() -> None:
    bound, beside = told("polaris")
    assert "\n".join(node_tables([bound], beside)) == POLARIS


def test_alike_nodes_are_shown_once() -> None:
    both = [told("polaris")[0], told("polaris", host="node2", first=4)[0]]
    shown = node_tables(both)
    assert shown[0].startswith("node1, node2: 1 socket")
    assert shown[-1] == "  local 0 is ranks 0,4"
    assert sum("GPUS AND NICS" in line for line in shown) == 1
    many = [told("polaris", host=f"node{number}", first=4 * number)[0] for number in range(20)]
    assert node_tables(many)[-1] == "  local 0 is ranks 0,4,8,12,16,20 and 14 more"


def test_nodes_that_differ_are_named_and_shown_each() -> None:
    both = [told("polaris")[0], told("perlmutter", host="node2", first=4)[0]]
    shown = node_tables(both)
    assert shown[0].startswith("the nodes differ: 1 socket, 4 NUMA nodes, 32 cores")
    assert sum("GPUS AND NICS" in line for line in shown) == 2


@pytest.mark.parametrize("bind", ["auto", "none", "numa"])
@pytest.mark.parametrize("name", trees.NAMES)
def test_every_known_node_fits_the_terminal(name: str, bind: str) -> None:
    bound, beside = told(name, bind)
    assert max(len(line) for line in node_tables([bound], beside)) <= 80


def test_this_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["topology", "--ranks", "1"]) == 0
    assert "  RANK  CORES  CPUS" in capsys.readouterr().out


def test_a_binding_that_does_not_fit_this_node_is_bad_input() -> None:
    with pytest.raises(ConfigError, match=r"launch\.bind has 1 list of CPUs, and this node 2 ranks"):
        commands.main(["topology", "--bind", "map:0", "--ranks", "2"])


@pytest.mark.parametrize("option", [("--ranks", "2"), ("--bind", "core")])
def test_what_is_about_this_node_is_refused_with_a_run(tmp_path: Path, option: tuple[str, str]) -> None:
    make(tmp_path, code=0)
    with pytest.raises(ConfigError, match="leave them out, or RUN"):
        commands.main(["topology", "a", *option, "--runs-dir", str(tmp_path / "runs")])


def test_the_ranks_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, code=0)
    where = ["topology", "a", "--runs-dir", str(tmp_path / "runs")]
    with pytest.raises(RunError, match="a has started no ranks yet"):
        commands.main(where)
    path = run.attempts()[-1].events_file("node-0")
    event_files.append(path, told("polaris")[0])
    assert commands.main(where) == 0
    assert "  2     8      8-15,40-47   1     0000:85:00.0  -" in capsys.readouterr().out


def test_a_long_list_of_cpus_is_cut_between_them() -> None:
    cpus = [f"{first}-{first + 2}" for first in range(0, 1024, 4)]
    lines = node_tables([Bound(host="n", ranks=(BoundRank(0, "0", 1, "0"),), node="k", allowed=",".join(cpus))])
    assert max(map(len, lines)) <= 80
    words = [line[23:].rstrip(",").split(",") for line in lines[1 : lines.index("")]]
    assert [each for line in words for each in line] == cpus

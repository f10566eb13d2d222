"""What a run's events tell of the CPUs of its ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from launcher.binding import masks
from launcher.binding.masks import RankDevices, parse
from launcher.runs import event_files
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Bound, Finished, Met, values
from launcher.runs.history import bindings_event, differing_bindings, latest_bindings
from tests.unit.binding.test_masks import flat


def bound(host: str = "node1", *, first: int = 0, round_number: int = 0, cores: int = 8) -> Bound:
    node = flat(cores, numas=2)
    found = masks.bind(node, range(cores), [RankDevices(), RankDevices()], parse("auto"))
    return bindings_event(host, node, range(cores), found.ranks, first_rank=first, round_number=round_number)


def test_an_event_has_the_node_and_each_rank() -> None:
    told = bound(first=2)
    assert (told.node, told.numas, told.allowed) == ("1 socket, 2 NUMA nodes, 8 cores", {"0": "0-3", "1": "4-7"}, "0-7")
    assert [(rank.rank, rank.cpus, rank.cores, rank.numa) for rank in told.ranks] == [
        (2, "0-3", 4, "0"), (3, "4-7", 4, "1")
    ]  # fmt: skip


def test_the_last_round_counts_in_the_order_of_ranks() -> None:
    told = [bound("node2", first=2), bound("node1"), bound("node2", round_number=1)]
    entries = [{"event": "bound", **values(each)} for each in told]
    assert [each.host for each in latest_bindings(entries)] == ["node2"]
    assert [each.host for each in latest_bindings(entries[:2])] == ["node1", "node2"]
    assert latest_bindings([]) == []


def test_only_who_wants_them_reads_them(tmp_path: Path) -> None:
    """Those of 4,096 nodes take seconds."""
    attempt = Attempt(Run(tmp_path), 0)
    file = attempt.events_file("node-0")
    file.parent.mkdir(parents=True)
    for each in (Met(ranks=2, members=1), bound(), Finished()):
        event_files.append(file, each)
    assert [each["event"] for each in attempt.latest_events()] == ["met", "finished"]
    assert latest_bindings(attempt.latest_events(bindings=True)) == latest_bindings(attempt.events()) != []


def test_nodes_of_several_types_are_named() -> None:
    alike = [bound("node1"), bound("node2")]
    assert differing_bindings(alike) == ""
    assert differing_bindings([*alike, bound("node3", cores=4)]) == (
        "the nodes differ: 1 socket, 2 NUMA nodes, 8 cores on node1, node2; 1 socket, 2 NUMA nodes, 4 cores on node3"
    )
    unknown = dataclasses.replace(bound("node4"), node="")
    assert differing_bindings([*alike, unknown]).endswith("; unknown on node4")

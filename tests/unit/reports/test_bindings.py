"""Where ranks ran, on a run's page."""

from __future__ import annotations

import dataclasses

from launcher.failures.codes import Unbound
from launcher.reports.collect import RunData
from launcher.reports.page import ranks_section
from launcher.runs.events import Bound, values
from tests.unit.plans import plan_of
from tests.unit.runs.test_bindings import bound

FEW_CORES = Unbound("2 ranks and 1 core")


def page(*bindings: Bound) -> RunData:
    told = tuple({"event": "bound", "time": 1.0, **values(each)} for each in bindings)
    return RunData("a", "", "done", None, plan_of(), {}, attempts=((0, told), (1, ())))


def test_each_rank_has_a_row() -> None:
    section = ranks_section(page(bound(), bound("node2", first=2)))
    assert section is not None
    assert section.tables[0].rows[2] == ("2", "node2", "4", "0-3", "0", "-", "-")
    assert section.note == ""


def test_why_nothing_is_bound_and_how_nodes_differ_is_told() -> None:
    section = ranks_section(
        page(
            bound(),
            dataclasses.replace(bound("node2", cores=4), unbound=Unbound("2 ranks and 1 core")),
        )
    )
    assert section is not None
    assert "the nodes differ" in section.note
    assert "ranks on node2 are not bound to cores: 2 ranks and 1 core." in section.note


def test_of_thousands_of_nodes_that_are_not_bound_some_are_named() -> None:
    one = dataclasses.replace(bound(), unbound=Unbound("launch.bind=none"))
    several = [dataclasses.replace(one, host=f"n{number}") for number in range(4096)]
    section = ranks_section(page(*several))
    assert section is not None
    assert section.note.endswith("n9 and 4086 more are not bound to cores: launch.bind=none.")
    assert len(section.note) < 200


def test_a_run_without_any_has_no_section() -> None:
    assert ranks_section(page()) is None

"""`why` and `doctor` on PBS."""

from __future__ import annotations

import json
from typing import Any

from tests.launch import Launcher

RUN = ("workload=collective", "workload.entry=tests.chaos.faults:fine")


def why(launcher: Launcher) -> dict[str, Any]:
    done = launcher("why", "latest", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_that_cannot_start_says_why_and_what_would_fit(launcher: Launcher) -> None:
    assert launcher.submit(*RUN, "nodes=3", "cluster.check=false").returncode == 0
    launcher.until(lambda: why(launcher)["code"], "the scheduler has looked at it")
    found = why(launcher)
    assert "can never start: it asks for more nodes than there are" in found["why"]
    assert found["options"][0]["overrides"] == ["nodes=2"]
    assert launcher("cancel", "latest").returncode == 0
    assert launcher("resume", "latest", "nodes=2").returncode == 0
    launcher.until(lambda: why(launcher)["state"] in ("running", "done"), "what was said is true: it starts")


def test_a_held_run_says_how_to_let_it_go(launcher: Launcher) -> None:
    assert launcher.submit(*RUN, "+cluster.directives.h=true").returncode == 0
    found = why(launcher)
    assert found["why"] == "it is held by you"
    assert found["do"].startswith("`qrls ")
    assert found["tried"] == []


def test_doctor_tells_queues_and_history(launcher: Launcher) -> None:
    done = launcher("doctor", "--cluster", "pbs", "--json")
    found = {(row["about"], row["says"]) for row in json.loads(done.stdout)["findings"]}
    for about, words in (("queue", "this profile's"), ("reachable", "answered in"), ("history", "PBS ")):
        assert any(each == about and words in says for each, says in found), found
    assert done.returncode == 0, done.stdout

"""Why a job waits, from what a real Son of Grid Engine 8.1.9 said of such jobs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcher.schedulers.pending import Why
from launcher.schedulers.sge.client import QueueInstance
from launcher.schedulers.sge.pending import in_words, instance_lines, lines_of, messages_of, of_all, of_job
from tests.unit.plans import sge_plan

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> ElementTree.Element:
    return ElementTree.fromstring((RECORDED / name).read_text())


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ('cannot run in PE "nodes" because it only offers 2 slots', Why.ROOM, "environment nodes has 2 slots"),
        ('Job 34 cannot run in PE "nodes" because it only offers 2 slots', Why.ROOM, "environment nodes has 2 slots"),
        ('(-l gpu=5) cannot run at host "node1" because it offers only hc:gpu=2.000000', Why.ROOM,
         "node1 offers only hc:gpu=2.000000"),
        ('queue instance "all.q@node1" dropped because it is disabled', Why.ROOM, "all.q@node1 is disabled"),
        ("All queues dropped because of overload or full", Why.ROOM, "no queue takes it"),
        ("not all array tasks may be started due to 'max_aj_instances'", Why.THROTTLED, "as many elements"),
        ("Job is in hold state", Why.HELD, "it is held"),
        ("Job is in error state", Why.HELD, "its start has failed"),
        ("execution time not reached", Why.WAITS, "it was asked to begin later"),
        ('cannot run on host "node1" until clean up of a previous run has finished', Why.ROOM, "and may never"),
        ('cannot run because it exceeds limit "me/////" in rule "most/1"', Why.LIMIT, "rule most/1"),
        ("the moon is full", Why.UNKNOWN, "Grid Engine says: the moon is full"),
    ],
)  # fmt: skip
def test_messages_in_words(message: str, kind: Why, words: str) -> None:
    found = in_words(message)
    assert found.kind is kind
    assert words in found.words


def test_what_holds_for_the_job_comes_before_what_one_host_says() -> None:
    disabled = [f'queue instance "all.q@node{number}" dropped because it is disabled' for number in range(5)]
    assert of_all([*disabled, "Job is in hold state"], never=False).words == "it is held"
    found = of_all(disabled, never=False)
    assert found.words.endswith("; and 2 more")
    assert not found.never


def test_what_could_never_run_is_told_apart() -> None:
    messages = messages_of(recorded("qstat-j-wait.xml"))
    found = of_all(messages, never=True)
    assert found.words.startswith("it can never start: node1 offers only hc:gpu=2.000000")
    assert found.never
    assert of_all([], never=True).never
    assert "schedd_job_info" in of_all([], never=False).do


def test_the_jobs_own_record_tells_why_its_start_failed_and_whom_it_waits_for() -> None:
    failed = of_job(recorded("qstat-j-error.xml"))
    assert failed is not None
    assert failed.words == 'its start has failed: can\'t open output file "/nonexistent/x": No such file or directory'
    assert "qmod -cj {job}" in failed.do
    waits = of_job(recorded("qstat-j-depends.xml"))
    assert waits is not None
    assert (waits.kind, waits.words) == (Why.WAITS, "it waits for other jobs: 33")
    assert of_job(recorded("qstat-j-wait.xml")) is None


def test_queue_instances_that_take_no_jobs_are_named() -> None:
    instances = [QueueInstance("all.q", "node1", 0, 8, "d"), QueueInstance("all.q", "node2", 8, 8)]
    instances.append(QueueInstance("b", "n", 0, 1))
    assert instance_lines(instances, sge_plan(cluster={"queue": "all.q"})) == (
        "2 queue instances: 0 with a free slot", "all.q@node1 takes no jobs: it is disabled",
    )  # fmt: skip
    assert instance_lines([], sge_plan()) == ()


def test_only_messages_are_taken_from_a_verification() -> None:
    text = 'Job 34 cannot run in PE "nodes" because it only offers 2 slots\nverification: no suitable queues\n'
    assert lines_of(text) == ['Job 34 cannot run in PE "nodes" because it only offers 2 slots']

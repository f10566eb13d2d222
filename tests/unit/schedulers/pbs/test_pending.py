"""Why a job of PBS waits: comments in words, nodes as pbsnodes lists them, and sizes that would fit now."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.plan.plan import JobPlan
from launcher.schedulers.base import QueryError
from launcher.schedulers.pbs import client, pending
from launcher.schedulers.pbs.client import PBS, PBSNode
from launcher.schedulers.pbs.pending import in_words
from launcher.schedulers.pbs.settings import GpuDirective
from launcher.schedulers.pending import Waiting, Why
from tests.unit.plans import plan_of

GIB = 1024**3
# What the scheduler of OpenPBS 23.06 writes, with names filled in.
COMMENTS = [
    "Insufficient amount of resource: ncpus (R: 500 A: 16 T: 16)", "Insufficient amount of resource: ngpus ",
    "Insufficient amount of queue resource: ncpus (R: 4 A: 2 T: 8)", "Insufficient amount of server resource: mem ",
    "Not enough free nodes available", "Not enough total nodes available",
    "Not enough of the right type of nodes are available", "No available resources on nodes",
    "host set h1 has too few free resources", "can't fit in the largest placement set, and can't span psets",
    "Node ineligible because job requested pack placement and won't fit on node",
    "Job is requesting an exclusive node and node is in use", "Node is in an ineligible state: offline",
    "Node is of an ineligible type: x", "Node has reached job run limit", "Node has reached user run limit",
    "Specified host does not exist: n9", "Job would interfere with a confirmed reservation",
    "Job would conflict with reservation or top job", "Job would interfere with a top job",
    "Job would break strict sorted order", "Can't preempt enough work to run job", "Queue not started.",
    "Queue not an execution queue.", "Number of concurrent running subjobs limit reached",
    "Queue workq job limit has been reached.", "Server job limit has been reached.",
    "User has reached server running job limit.", "User has reached queue workq running job limit.",
    "Group has reached server running limit.", "Group has reached queue workq running limit.",
    "Project has reached server running limit.", "Project has reached queue workq's running limit.",
    "Queue workq job limit reached for user me", "Server job limit reached for project p",
    "Queue workq per-user limit reached on resource ncpus", "Server per-group limit reached on resource mem",
    "would exceed user me's limit on resource ncpus in complex",
    "would exceed project p's limit on resource ngpus in queue workq",
    "would exceed overall limit on resource ncpus in queue workq",
    "would exceed overall limit on resource mem in complex",
    "Dedicated time conflict", "Job would cross dedicated time boundary", "Job will run in primetime only",
    "Job will cross into nonprimetime", "Job has zero shares for fairshare",
    "Job is under job_sort_formula threshold value", "Cannot provision, provisioning disabled on server",
    "Provision conflict with existing job/reservation", "Job held by me on Sat Nov 21",
]  # fmt: skip

# Recorded, without the lines that nothing is read of.
NODES = """\
pbs-n1
     Mom = pbs-n1
     ntype = PBS
     state = free
     pcpus = 2
     resources_available.arch = linux
     resources_available.mem = 24684092kb
     resources_available.ncpus = 8
     resources_available.ngpus = 2
     resources_available.vnode = pbs-n1
     resources_assigned.mem = 1048576kb
     resources_assigned.ncpus = 3
     resources_assigned.ngpus = 0
     resv_enable = True
     last_state_change_time = Sat Nov 21 00:47:56 2026

pbs-n2
     Mom = pbs-n2
     state = down,offline
     comment = node down: communication closed
     resources_available.ncpus = 8
"""


@pytest.mark.parametrize("prefix", ["Not Running: ", "Can Never Run: "])
def test_every_comment_of_the_scheduler_has_words(prefix: str) -> None:
    found = {comment: in_words(prefix + comment) for comment in COMMENTS}
    assert [comment for comment, each in found.items() if each.kind is Why.UNKNOWN or "{" in each.words] == []
    never = prefix == "Can Never Run: "
    told = {comment: (each.words.startswith("it can never start"), each.never) for comment, each in found.items()}
    assert {comment: each for comment, each in told.items() if each != (never, never)} == {}


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("Not Running: Insufficient amount of resource: ngpus ", "too little of ngpus is free"),
        ("Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 16 T: 16)",
         "it asks for 500, 16 is free, 16 is there"),
        ("Not Running: would exceed user me's limit on resource ncpus in queue workq",
         "user me would have more of ncpus than queue workq allows"),
        ("Not Running: User has reached queue workq running job limit.",
         "as many of your jobs run as queue workq lets run at once"),
        ("Not Running: Server job limit has been reached.", "at once in the server"),
        ("", "PBS has not looked at it yet"),
        ("Not Running: Something new", "PBS says: Something new"),
        ("Can Never Run: Something new", "it can never start; PBS says: Something new"),
    ],
)  # fmt: skip
def test_names_and_amounts_are_in_the_words(comment: str, words: str) -> None:
    assert words in in_words(comment).words


@pytest.mark.parametrize(
    ("record", "words", "do"),
    [
        ({"job_state": "H", "Hold_Types": "u"}, "it is held by you", "qrls"),
        ({"job_state": "H", "Hold_Types": "so"}, "by an operator", "support"),
        ({"job_state": "H", "Hold_Types": "s", "depend": "afterok:1.srv"}, "waits for other jobs: afterok:1.srv", ""),
        ({"job_state": "W", "Execution_Time": "Sat Nov 21 23:59:00 2026"}, "begin at Sat Nov 21 23:59", ""),
        ({"job_state": "T"}, "another queue", ""),
        ({"job_state": "Q"}, "too few nodes", "others end"),
    ],
)
def test_the_reason_is_in_the_state_or_in_the_comment(record: dict[str, str], words: str, do: str) -> None:
    found = pending.explain_state(record, "Not Running: Not enough free nodes available")
    assert words in found.words
    assert do in found.do


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        ({"job_state": "B", "array_state_count": "Queued:2 Running:1 Exiting:0 Expired:0", "max_run_subjobs": "1"},
         Why.THROTTLED),
        ({"job_state": "B", "array_state_count": "Queued:2 Running:1 Exiting:0 Expired:0", "max_run_subjobs": "2"},
         Why.ROOM),
        ({"job_state": "B", "array_state_count": "Queued:2 Running:1 Exiting:0 Expired:0"}, Why.ROOM),
        ({"job_state": "H", "Hold_Types": "u"}, Why.HELD),
        ({"job_state": "Q"}, Why.ROOM),
    ],
)  # fmt: skip
def test_an_element_of_an_array_waits_for_the_others(array: dict[str, str], kind: Why) -> None:
    """Its own record has no comment, and that of an array that has begun says only that."""
    assert pending.explain_array(array, "Not Running: Not enough free nodes available").kind is kind


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        ("Not Running: Insufficient amount of resource: ngpus ", {"gpus_per_node": 3},
         "it can never start: gpus_per_node=3: the nodes of this PBS have at most 2: use gpus_per_node=2 or less"),
        ("Not Running: Insufficient amount of resource: ngpus ", {"gpus_per_node": 2}, "too little of ngpus is free"),
        ("Not Running: Insufficient amount of resource: ncpus ", {"cpus_per_proc": 20}, "it can never start: "
         "procs_per_node=1 x cpus_per_proc=20 = 20 CPUs: the nodes of this PBS have at most 8: use fewer of either, 8 "
         "CPUs in all"),
    ],
)  # fmt: skip
def test_what_no_node_has_never_starts_whatever_pbs_says(
    monkeypatch: pytest.MonkeyPatch, text: str, keys: dict[str, Any], words: str
) -> None:
    """PBS compares with all nodes together, and calls the rest `Not Running` for ever."""
    nodes = client.parse_nodes(f"{NODES}     resources_available.ngpus = 2\n")
    monkeypatch.setattr(Recorded, "nodes", lambda _: nodes)
    plan = plan_of(cluster={"scheduler": "pbs", "gpu_directive": GpuDirective.ngpus}, **keys)
    record = {"job_state": "Q", "comment": text, "queue": "workq"}
    found = pending.explain(Waiting("run-1", "7.pbs-srv", plan, "launcher"), Recorded(record))
    never = words.startswith("it can never start")
    assert found.facts.meaning == words
    assert (found.do == pending.CHANGE, bool(found.limits)) == (never, never)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        # A runs_dir that the nodes do not see, on OpenPBS 23.06.06.
        ({"job_state": "H", "Hold_Types": "s", "run_count": "21", "Exit_status": "-3",
          "comment": "job held, too many failed attempts to run"}, "PBS has tried 21 times to start it, and no node "
         "could: most likely they do not see /runs/a, where its output goes"),
        ({"job_state": "Q", "run_count": "4", "Exit_status": "-3"}, "PBS has tried 4 times"),
        ({"job_state": "Q", "run_count": "1", "Exit_status": "-11"}, ""),  # preempted
        ({"job_state": "R", "run_count": "22", "Exit_status": "-3"}, ""),
    ],
)  # fmt: skip
def test_a_folder_that_nodes_do_not_see_is_named(record: dict[str, str], told: str) -> None:
    found = pending.not_startable(record, dataclasses.replace(pbs_plan(), run_dir="/runs/a"), "7.pbs-srv")
    assert (found.words if found else "").startswith(told)
    assert (found is None) == (not told)


def test_nodes_that_have_opened_the_output_see_its_folder(tmp_path: Path) -> None:
    """A prologue that exits with 2, on OpenPBS 23.06.06."""
    (tmp_path / "46.pbs-srv.OU").write_text("prologue: scratch is not mounted\n" * 21)
    record = {
        "job_state": "H", "Hold_Types": "s", "run_count": "21", "Exit_status": "-3",
        "Output_Path": f"login:{tmp_path}/", "comment": "job held, too many failed attempts to run",
    }  # fmt: skip
    found = pending.not_startable(record, pbs_plan(), "46.pbs-srv")
    assert found is not None
    assert "do not see" not in found.words
    assert found.words.endswith(f"what it prints is in {tmp_path}/46.pbs-srv.OU")


def test_nodes_are_read_from_pbsnodes() -> None:
    first, second = client.parse_nodes(NODES)
    assert (first.name, first.state, first.broken) == ("pbs-n1", "free", False)
    assert first.free == {"mem": 23635516 * 1024, "ncpus": 5, "ngpus": 2}
    assert first.others["arch"] == "linux"
    assert (second.broken, second.comment) == (True, "node down: communication closed")


def test_a_chunk_may_use_all_vnodes_of_a_host_that_work() -> None:
    shown = "     state = {}\n     resources_available.host = n1\n     resources_available.ncpus = 32\n"
    shown += "     resources_assigned.ncpus = 4\n"
    vnodes = [f"n1[{number}]\n{shown.format(state)}" for number, state in enumerate(["offline", "free", "job-busy"])]
    plain = "n2\n     state = free\n     resources_available.ncpus = 8\n"
    first, second = client.parse_nodes("".join(vnodes) + plain)
    assert (first.name, first.broken, first.has, first.free) == ("n1[0]", False, {"ncpus": 96}, {"ncpus": 56})
    assert (second.name, second.has) == ("n2", {"ncpus": 8})
    assert pending.fitting([first, second], {"ncpus": 50}) == [first]
    (down,) = client.parse_nodes("".join(vnodes[:1]) * 2)
    assert (down.broken, down.free) == (True, {})


@pytest.mark.parametrize(
    ("record", "starts"),
    [
        ({}, None),
        ({"estimated": {"start_time": "1795296899"}}, 1795296899.0),
        ({"estimated": {"exec_vnode": "(n1:ncpus=1)"}}, None),
        ({"estimated": {"start_time": "Sat Nov 21 22:00:00 2026"}},
         time.mktime((2026, 11, 21, 22, 0, 0, 0, 0, -1))),
        ({"estimated": {"start_time": "0"}}, None),
    ],
)  # fmt: skip
def test_the_estimate_of_a_site_that_makes_one_is_read(record: Mapping[str, Any], starts: float | None) -> None:
    assert pending.estimate(record) == starts


def node(name: str, *, cpus: int = 8, gpus: int = 2, mem: int = 16, state: str = "free", **others: str) -> PBSNode:
    amounts = {"ncpus": cpus, "ngpus": gpus, "mem": mem * GIB}
    return PBSNode(name, state, amounts, amounts, others=others)


def pbs_plan(**keys: Any) -> JobPlan:
    cluster = {"scheduler": "pbs", **keys.pop("cluster", {})}
    return plan_of(cluster=cluster, **keys)


@pytest.mark.parametrize(
    ("keys", "nodes", "offered"),
    [
        # it fits: something else holds it back
        ({"nodes": 2, "cpus_per_proc": 4}, [node("a"), node("b")], []),
        ({"nodes": 2, "cpus_per_proc": 4}, [node("a"), node("b", cpus=2)], ["cpus_per_proc=2", "nodes=1"]),
        ({"nodes": 2, "cpus_per_proc": 4}, [node("a"), node("b", state="down")], ["nodes=1"]),
        ({"nodes": 2, "cpus_per_proc": 9}, [node("a"), node("b")], ["cpus_per_proc=8"]),
        ({"nodes": 4, "min_nodes": 3}, [node("a"), node("b")], []),
        ({"nodes": 1, "mem": "20G"}, [node("a")], ["mem=16G"]),
        ({"nodes": 1, "gpus_per_node": 4}, [node("a")], ["gpus_per_node=2"]),
        ({"nodes": 1, "procs_per_node": 8, "cpus_per_proc": 1}, [node("a", cpus=3)],
         ["procs_per_node=3 cpus_per_proc=1"]),
        ({"nodes": 2, "procs_per_node": 2, "cpus_per_proc": 4}, [node("a", cpus=5), node("b", cpus=6)],
         ["cpus_per_proc=2"]),
        # a resource by name, in the node's own spelling or not there at all
        ({"nodes": 2, "cluster": {"chunk": {"gpu_model": "a100"}}}, [node("a", gpu_model="A100"), node("b")],
         ["nodes=1"]),
        ({"nodes": 1, "cluster": {"chunk": {"gpu_model": "a100"}}}, [node("a")], []),
        ({"nodes": 1, "cluster": {"chunk": {"mpiprocs": 4, "mem": "4gb"}}}, [node("a")], []),
        ({"nodes": 1, "cluster": {"chunk": {"mem": "20gb"}}}, [node("a")], []),
        ({"nodes": 1}, [], []),
    ],
)  # fmt: skip
def test_sizes_that_would_fit_now_are_offered_from_the_smallest_change_on(
    keys: dict[str, Any], nodes: list[PBSNode], offered: list[str]
) -> None:
    found = pending.options(pbs_plan(**keys), nodes, 100.0)
    assert found[0].overrides == ()
    assert [" ".join(each.overrides) for each in found[1:]] == offered


class Recorded(PBS):
    """Answers from records; what is missing does not answer."""

    def __init__(self, record: dict[str, Any], queue: dict[str, Any] | None = None) -> None:
        super().__init__(1)
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_queue", queue)

    def record(self, job_id: str) -> dict[str, Any]:
        return self._record

    def nodes(self) -> list[PBSNode]:
        return [node("a"), dataclasses.replace(node("b"), free=node("b", cpus=2).free)]

    def queue_facts(self, name: str) -> client.QueueFacts | None:
        if self._queue is None:
            raise QueryError("qstat did not answer within 1 s")
        return client.queue_facts(name, self._queue)

    def server(self) -> tuple[str, dict[str, Any]]:
        return "pbs-srv", {"max_run": "[u:PBS_GENERIC=5]"}


def explained(comment: str, queue: dict[str, Any] | None = None) -> pending.Explanation:
    record = {"job_state": "Q", "comment": comment, "queue": "workq"}
    resources = Recorded(record, queue)
    plan = pbs_plan(nodes=2, cpus_per_proc=4)
    return pending.explain(Waiting("run-1", "7.pbs-srv", plan, "launcher"), resources)


def test_a_job_without_room_is_offered_what_fits() -> None:
    found = explained("Not Running: Not enough free nodes available", {"started": "True"})
    assert found.commands[1] == "launcher resume run-1 cpus_per_proc=2"
    assert found.nodes == ("2 nodes: 1 has room for a chunk of it now",)
    assert found.limits == ()


def test_a_run_that_may_lose_nodes_waits_for_all_of_them_when_it_is_queued_again() -> None:
    """After node_fail_requeue, on OpenPBS 23.06.06."""
    record = {"job_state": "Q", "run_count": "1", "Exit_status": "-20", "queue": "workq",
              "comment": "Not Running: Not enough free nodes available"}  # fmt: skip
    plan = pbs_plan(nodes=2, min_nodes=1, cpus_per_proc=4)
    found = pending.explain(Waiting("run-1", "7.pbs-srv", plan, "launcher"), Recorded(record))
    assert "PBS waits for all 2 nodes to start it again, whatever min_nodes says" in found.notes
    assert found.commands[1] == "launcher resume run-1 cpus_per_proc=2"


def test_a_limit_is_told_with_its_value_and_where_it_is_set() -> None:
    queue = {"started": "False", "max_run": "[u:PBS_GENERIC=1]", "resources_max": {"ncpus": "8"}}
    found = explained("Not Running: User has reached queue workq running job limit.", queue)
    assert found.limits == (
        "queue workq: started = False", "queue workq: max_run = [u:PBS_GENERIC=1]",
        "queue workq: resources_max.ncpus = 8", "server pbs-srv: max_run = [u:PBS_GENERIC=5]",
    )  # fmt: skip


def test_what_is_not_answered_is_said() -> None:
    found = explained("Not Running: Not enough free nodes available")
    assert "not answered: qstat did not answer within 1 s" in found.notes
    assert found.options


def test_nothing_is_said_of_a_queue_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """PBS has forgotten the job, and all nodes belong to queues."""
    nodes = [dataclasses.replace(node(name), queue="workq") for name in ("a", "b")]
    monkeypatch.setattr(Recorded, "nodes", lambda _: nodes)
    found = pending.explain(Waiting("run-1", "7.pbs-srv", pbs_plan(nodes=2), "launcher"), Recorded({}))
    assert "never" not in found.facts.meaning
    assert not [note for note in found.notes if "not answered" in note]


def test_a_point_that_its_arrays_throttle_holds_back_is_told_so() -> None:
    record = {"job_state": "B", "array_state_count": "Queued:2 Running:1 Exiting:0 Expired:0", "max_run_subjobs": "1"}
    found = pending.explain(Waiting("lr-1/2", "7.pbs-srv_2", pbs_plan(), "launcher"), Recorded(record))
    assert (found.why, found.tried) == (Why.THROTTLED, ())
    assert found.limits == ("its array: 1 element at once (max_run_subjobs, sweep.parallelism)",)

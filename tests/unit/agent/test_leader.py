"""What the leader decides: one verdict for all about the first failure of a round, and a new round or the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.agent import policy
from launcher.agent.failure_detector import LEAVE_TIMEOUT, STACKS, AgentState
from launcher.agent.leader import Coordinator
from launcher.agent.policy import History, NextStep, RoundEnd, RoundFailure, RoundVerdict, judge, may_be_cut_off
from launcher.failures.codes import FaultCode
from launcher.files.json_types import as_json, from_json
from launcher.plan.plan import PILOT_ENTRY, JobPlan
from launcher.rendezvous.rounds import Arrivals, Member
from launcher.rendezvous.signed_channel import encode
from launcher.runs import event_files
from launcher.runs.events import Accused, Fault, Place
from launcher.worker.hang_diagnosis import Blamed
from tests.unit.plans import bare_plan

HEARTBEAT = 10.0
LAUNCH = {
    "rendezvous_timeout": 60, "start_timeout": 300, "idle_timeout": 900, "hang_timeout": 30, "heartbeat": HEARTBEAT,
    "max_restarts": 3,
}  # fmt: skip
EVERYBODY = object()


def plan_for(size: int = 3, least: int = 2, most: int | None = None, **fields: Any) -> JobPlan:
    return bare_plan(**{
        "nodes": size, "min_nodes": least, "spares": 0 if most is None else size - most, "launch": LAUNCH, **fields
    })  # fmt: skip


class Cluster:
    """A coordinator, its agents, and what it has sent to each of them."""

    def __init__(self, size: int = 3, *, least: int = 2, most: int | None = None, **workload: Any) -> None:
        self.size, self.now = size, 100.0
        self.members = [Member(index, index, f"node{index}", 1) for index in range(size)]
        self.claims: list[tuple[int, list[int]]] = []
        self.against: Fault | None = None
        self.blamed = blamed(1)
        self.reports: list[Mapping[str, Any]] = []
        self.sent: list[tuple[int, dict[str, Any]]] = []
        places = [Place(host=f"node{index}", node=index) for index in range(size)]
        self.coordinator = Coordinator(
            plan_for(size, least, most, workload=workload),
            Path("/run/logs"), places, self.members[0],
            claim=self._claim, listen=lambda _: 29500, blame=self._blame,
        )  # fmt: skip

    def _claim(self, number: int, members: Iterable[Member]) -> Fault | None:
        if self.against is None:
            self.claims.append((number, [member.index for member in members]))
        return self.against

    def _blame(self, reports: Iterable[Mapping[str, Any]]) -> Blamed:
        self.reports = list(reports)
        return self.blamed

    def collect(self) -> None:
        for indices, message in self.coordinator.take_outbox():
            if message["type"] == "verdict":  # in one level
                message = {**message["verdict"]["failure"], **message["verdict"], "type": "verdict"}
            self.sent += [(index, dict(message)) for index in indices]

    def take(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """What was sent of this type since the last look, and to whom."""
        self.collect()
        found = [(index, message) for index, message in self.sent if message["type"] == kind]
        self.sent = [(index, message) for index, message in self.sent if message["type"] != kind]
        return found

    def one(self, kind: str, to: Any = EVERYBODY) -> dict[str, Any]:
        """The one message of this type that all of these were sent, each once."""
        found = self.take(kind)
        wanted = range(self.size) if to is EVERYBODY else to
        assert sorted(index for index, _ in found) == sorted(wanted), found
        assert all(message == found[0][1] for _, message in found)
        return found[0][1]

    def none(self, *kinds: str) -> None:
        for kind in kinds:
            assert self.take(kind) == []

    def receive(self, index: int, kind: str, /, **values: Any) -> None:
        self.coordinator.receive(index, {"type": kind, **values}, self.now)

    def lose(self, index: int) -> None:
        self.coordinator.disconnected(index, self.now)

    def tick(self, after: float = 0.0) -> None:
        self.now += after
        self.coordinator.tick(self.now)

    def wait(self, seconds: float, beats: Iterable[int] = (), pace: float = 1.0, **status: Any) -> None:
        """Time passes, in which these agents send heartbeats."""
        beats = list(beats)
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + pace)
            for index in beats:
                self.receive(index, "heartbeat", **status)
            self.coordinator.tick(self.now)

    def hello(self, *indices: int) -> None:
        for index in indices:
            self.receive(index, "hello", member=astuple(self.members[index]))

    def gather(self, history: History | None = None, wanted: Iterable[int] | None = None) -> None:
        wanted = range(self.size) if wanted is None else wanted
        self.coordinator.gather(history or History(), list(wanted), 60, self.now)

    def begin(self, *, resumable: bool = True, step: int = 5, joined: bool = True) -> Cluster:
        """Round 0 runs with all agents."""
        self.gather()
        self.hello(*range(1, self.size))
        self.tick()
        self.one("begin")
        self.coordinator.watch(self.now)
        for index in range(self.size):
            self.receive(index, "heartbeat", step=step, resumable=resumable, joined=joined)
        return self

    def fail(self, index: int, kind: str = "raised", /, **values: Any) -> None:
        self.receive(index, "failure", failure=failure(index, kind, **values))


def blamed(*ranks: int, does: str = "is in no collective", step: int | None = 7) -> Blamed:
    return Blamed(tuple(Accused(host=f"node{rank}", rank=rank) for rank in ranks), does, step=step)


def failed(
    index: int, kind: str, *, step: int = 5, lost: Iterable[int] = (), listens: bool = True, **values: Any
) -> RoundFailure:
    fault = Fault(code=FaultCode.SIGNALLED, rank=index, host=f"node{index}", node=index, step=step)
    return RoundFailure(RoundEnd(kind), fault, index, listens, tuple(lost), **values)


def failure(index: int, kind: str, **values: Any) -> dict[str, Any]:
    return failed(index, kind, **values).message()["failure"]


def stop_of(index: int) -> dict[str, Any]:
    """What an agent sends when it gets SIGTERM."""
    return {"reason": "signal", "host": f"node{index}", "signal": "SIGTERM"}


# -- a round begins


def test_a_round_begins_when_all_have_come_and_everybody_is_told_the_same() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1)
    cluster.tick()
    cluster.none("begin")
    cluster.hello(2)
    cluster.tick()
    begin = cluster.one("begin")
    assert [Member(*row).index for row in begin["members"]] == [0, 1, 2]
    assert (begin["round"], begin["port"], History(**begin["history"])) == (0, 29500, History())
    assert cluster.claims == [(0, [0, 1, 2])]


def test_those_that_came_before_the_leader_was_ready_are_in() -> None:
    cluster = Cluster()
    cluster.hello(2, 1)
    cluster.gather()
    cluster.one("begin")


def test_who_is_missing_in_the_end_is_named_to_all_that_came() -> None:
    cluster = Cluster(least=3)
    cluster.gather()
    cluster.hello(2)
    cluster.wait(59.9)
    cluster.none("refused")
    cluster.tick(0.1)
    refused = cluster.one("refused", [0, 2])
    assert refused["fault"] == {
        "code": "rendezvous_timeout", "host": "node0", "node": 0, "accused": [{"host": "node1", "node": 1}],
        "message": "node1 (node 1) did not reach node0 (node 0) in time: 2 of 3 arrived",
    }  # fmt: skip
    assert cluster.claims == []


def test_fewer_begin_when_time_is_up_and_they_are_enough() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(2)
    cluster.wait(60)
    assert [Member(*row).index for row in cluster.one("begin", [0, 2])["members"]] == [0, 2]


def test_who_came_and_left_again_before_the_first_round_is_waited_for() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1)
    cluster.lose(1)
    cluster.hello(2)
    cluster.tick()
    cluster.none("begin")
    cluster.hello(1)
    cluster.tick()
    cluster.one("begin")


def test_a_round_that_others_have_begun_is_refused() -> None:
    """The other half of a partitioned cluster was first."""
    cluster = Cluster()
    cluster.against = Fault(code=FaultCode.LATE, host="node0")
    cluster.gather()
    cluster.hello(1, 2)
    cluster.tick()
    assert cluster.one("refused")["fault"] == {"code": "late", "host": "node0"}
    cluster.none("begin")


def test_one_that_ends_between_begin_and_the_start_of_ranks_is_lost() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1, 2)
    cluster.tick()
    cluster.lose(2)
    cluster.none("verdict")
    cluster.coordinator.watch(cluster.now)
    verdict = cluster.one("verdict")
    fault = verdict["fault"]
    assert (verdict["lost"], fault["code"]) == ([2], "node_ended")


# -- the first failure


@pytest.mark.parametrize(
    ("kind", "values", "then", "exit_code"),
    [
        ("killed", {}, "restart", 1),
        ("lost peer", {}, "restart", 1),
        ("raised", {}, "restart", 1),  # step 5 is progress
        ("raised", {"step": -1}, "fail", 1),
        ("raised", {"listens": False}, "fail", 1),
        ("no retry", {}, "no retry", 93),
        ("left", {}, "resume", 75),
        ("killed", {"lost": [1, 2]}, "resume", 75),  # too few are left
        ("killed", {"listens": False, "exit_code": 143}, "fail", 143),
    ],
)
def test_what_is_done_about_a_failure(kind: str, values: dict[str, Any], then: str, exit_code: int) -> None:
    cluster = Cluster().begin()
    cluster.fail(1, kind, **values)
    verdict = cluster.one("verdict")
    assert (verdict["then"], verdict["exit_code"], verdict["fault"]["rank"]) == (then, exit_code, 1)
    assert History(**verdict["history"]).round == (1 if then == "restart" else 0)


@pytest.mark.parametrize(
    ("kind", "values", "saved", "then", "looks"),
    [
        ("raised", {"step": -1}, True, "restart", 1),  # a program that has saved something got further
        ("raised", {"step": -1}, None, "restart", 1),  # unknown: it may have
        ("raised", {"step": -1}, False, "fail", 1),
        ("killed", {"step": 5}, True, "restart", 0),  # the step says it
        ("raised", {"step": -1, "listens": False}, True, "fail", 0),
        ("no retry", {"step": -1}, True, "no retry", 0),
        ("left", {"step": -1}, True, "resume", 0),
    ],
)
def test_the_leader_alone_looks_what_a_program_has_saved_and_only_if_the_verdict_depends_on_it(
    kind: str, values: dict[str, Any], saved: bool | None, then: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int | None] = []
    monkeypatch.setattr(policy, "has_saved", lambda _, since: looked.append(since) or saved)  # type: ignore[func-returns-value]
    cluster = Cluster().begin()
    cluster.coordinator.began = 7
    cluster.fail(1, kind, **values)
    assert (cluster.one("verdict")["then"], looked) == (then, [7] * looks)


@pytest.mark.parametrize(("saved", "end"), [(None, "resume"), (False, "fail")])
def test_a_program_is_not_given_up_because_its_saves_cannot_be_seen(
    saved: bool | None, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "has_saved", lambda *_: saved)
    history, found = History(), []
    while not found or found[-1] == "restart":
        verdict = judge(failed(1, "killed", step=-1), history, plan_for(), stopping=False, members=3)
        found.append(verdict.then.value)
        history = verdict.history
    assert found == ["restart"] * 3 + [end]


@pytest.mark.parametrize(
    ("places", "steps", "then"),
    [
        (["save"] * 4, [-1] * 4, ["restart"] * 3 + ["fail"]),
        (["save", "load"] * 4, [-1] * 8, ["restart"] * 8),
        (["save"] * 8, list(range(8)), ["restart"] * 8),
        (["load", *["save"] * 3], [-1] * 4, ["restart"] * 4),
    ],
    ids=["one place", "two places", "further each time", "another error first"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["raised", "hung"])
def test_a_new_file_is_no_progress_for_ever_if_each_round_ends_at_the_same_place(
    kind: str, places: list[str], steps: list[int], then: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "has_saved", lambda *_: True)
    history, found = History(), []
    for place, step in zip(places, steps, strict=True):
        verdict = judge(failed(1, kind, step=step, place=place), history, plan_for(), stopping=False, members=3)
        found.append(verdict.then.value)
        history = verdict.history
    assert found == then
    got_no_further = "3 restarts got no further (launch.max_restarts=3)" in verdict.failure.fault.message
    assert got_no_further is (then[-1] == "fail")


def test_ranks_that_are_independent_go_on_when_a_node_is_lost_and_end_without_it() -> None:
    cluster = Cluster(4, least=2, entry=PILOT_ENTRY).begin()
    cluster.lose(2)
    cluster.wait(HEARTBEAT * 2, beats=[0, 1])  # node3 is silent
    cluster.none("verdict")
    reported = [message["resized"] for _, message in cluster.take("resized")]
    assert [(each["members"], [place["host"] for place in each["without"]]) for each in reported] == [
        (3, ["node2"]), (2, ["node3"])
    ]  # fmt: skip
    for index in (0, 1):
        cluster.receive(index, "ended")
    cluster.one("over", [0, 1])


def test_ranks_that_are_independent_start_again_when_one_fails_and_end_when_too_few_nodes_are_left() -> None:
    cluster = Cluster(least=2, entry=PILOT_ENTRY).begin()
    cluster.lose(2)
    cluster.fail(1, "killed")
    assert cluster.one("verdict")["then"] == "restart"
    cluster = Cluster(least=2, entry=PILOT_ENTRY).begin()
    cluster.lose(2)
    cluster.lose(1)
    assert cluster.one("verdict")["then"] == "resume"


def test_the_first_failure_of_a_round_wins() -> None:
    cluster = Cluster().begin()
    cluster.fail(2, "killed")
    cluster.fail(1, "lost peer")
    cluster.fail(0, "raised")
    cluster.lose(1)
    cluster.wait(HEARTBEAT * 3)
    assert cluster.one("verdict")["fault"]["rank"] == 2


def test_a_failure_of_no_member_of_the_round_is_nothing() -> None:
    cluster = Cluster(4, least=2)
    cluster.gather(wanted=[0, 1, 2])
    cluster.hello(1, 2)
    cluster.tick()
    cluster.coordinator.watch(cluster.now)
    cluster.hello(3)
    cluster.receive(3, "failure", failure=failure(3, "raised"))
    cluster.none("verdict")


def test_a_stop_request_makes_a_failure_resumable() -> None:
    cluster = Cluster().begin()
    cluster.receive(1, "stop", level="stop", stop=stop_of(1))
    cluster.fail(2, "killed")
    assert cluster.one("verdict")["then"] == "resume"


def test_restarts_that_bring_nothing_end_and_say_how_many_they_were() -> None:
    history = History(round=1, best=5, tried=1)
    plan = plan_for(launch={**LAUNCH, "max_restarts": 1})
    verdict = judge(failed(1, "killed"), history, plan, stopping=False, members=3)
    assert (verdict.then, verdict.history) == (NextStep.FAIL, history)
    assert verdict.failure.fault.message.endswith("; 1 restart got no further (launch.max_restarts=1)")


@pytest.mark.parametrize("kind", ["killed", "left", "regroup", "lost node"])
def test_a_verdict_arrives_as_it_was_sent(kind: str) -> None:
    verdict = judge(failed(1, kind, lost=[2]), History(), plan_for(), stopping=False, members=3)
    assert from_json(json.loads(json.dumps(as_json(verdict, defaults=False))), RoundVerdict) == verdict


# -- lost agents


def test_a_connection_that_is_closed_is_a_lost_node_at_once() -> None:
    cluster = Cluster().begin()
    cluster.lose(2)
    verdict = cluster.one("verdict")
    assert (verdict["kind"], verdict["lost"], verdict["then"]) == ("lost node", [2], "restart")
    assert verdict["fault"]["code"] == "node_ended"


def test_an_agent_that_is_silent_for_a_heartbeat_is_lost() -> None:
    cluster = Cluster().begin()
    cluster.wait(HEARTBEAT, beats=[1])
    cluster.none("verdict")
    cluster.wait(1.0, beats=[1])
    verdict = cluster.one("verdict")
    assert verdict["lost"] == [2]
    assert (verdict["fault"]["code"], verdict["fault"]["seconds"]) == ("node_silent", 10)


def test_all_that_are_silent_are_lost_together() -> None:
    cluster = Cluster(4).begin()
    cluster.wait(HEARTBEAT + 1, beats=[1])
    verdict = cluster.one("verdict")
    assert (verdict["lost"], verdict["then"]) == ([2, 3], "restart")


def test_any_message_is_a_sign_of_life() -> None:
    cluster = Cluster().begin()
    for _ in range(5):
        cluster.wait(HEARTBEAT - 1, beats=[1])
        cluster.receive(2, "report", key="k", value=1)
    cluster.none("verdict")


def test_the_leader_does_not_take_its_own_absence_for_theirs() -> None:
    """It was stopped, or stood in a call to a file server: their heartbeats are in the sockets, unread."""
    cluster = Cluster().begin()
    cluster.tick(HEARTBEAT * 5)
    cluster.none("verdict")
    cluster.wait(HEARTBEAT + 1, beats=[1])
    assert cluster.one("verdict")["lost"] == [2]


@pytest.mark.parametrize("first", ["tick", "message"])
def test_the_leaders_own_absence_extends_what_it_waits_for(first: str) -> None:
    """What the others have sent meanwhile is read after it, in any order."""

    def absent(cluster: Cluster, sender: int) -> None:
        cluster.now += 100
        if first == "message":
            cluster.receive(sender, "heartbeat")
        cluster.tick()

    cluster = Cluster()
    cluster.gather()
    cluster.hello(1)
    absent(cluster, 1)
    cluster.none("begin")
    cluster.hello(2)
    cluster.tick()
    cluster.one("begin")
    cluster = Cluster().begin(resumable=False)
    leaving(cluster, 0)
    cluster.now += 100
    leaving(cluster, 1)
    cluster.none("verdict")
    leaving(cluster, 2)
    assert cluster.one("verdict")["fault"]["code"] == "stopped_early"
    cluster = Cluster().begin()
    cluster.receive(1, "silent", ranks=[1])
    absent(cluster, 2)
    cluster.none("verdict")
    cluster.wait(STACKS, beats=[1, 2])
    assert cluster.one("verdict")["fault"]["code"] == "hang"


def test_the_leader_itself_is_never_lost_to_itself() -> None:
    cluster = Cluster().begin()
    cluster.wait(HEARTBEAT * 3, beats=[1, 2])
    cluster.none("verdict")


def test_nobody_is_lost_while_ranks_are_being_started() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1, 2)
    cluster.tick()
    cluster.wait(HEARTBEAT * 3)
    cluster.coordinator.watch(cluster.now)
    cluster.wait(HEARTBEAT)
    cluster.none("verdict")


# -- ranks that do not get on


def test_ranks_that_do_not_join_are_named_with_their_hosts() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1, 2)
    cluster.tick()
    cluster.coordinator.watch(cluster.now)
    for _ in range(60):
        cluster.none("verdict")
        cluster.receive(0, "heartbeat", joined=True)
        cluster.receive(1, "heartbeat", missing=[1])
        cluster.receive(2, "heartbeat", missing=[2, 5])
        cluster.tick(1.0)
    fault = cluster.one("verdict")["fault"]
    assert (fault["code"], fault["seconds"]) == ("not_joined", 60)
    assert fault["accused"] == [
        {"host": "node1", "rank": 1}, {"host": "node2", "rank": 2}, {"host": "node2", "rank": 5},
    ]  # fmt: skip


def test_ranks_that_have_all_come_and_wait_for_each_other_have_a_timeout_of_their_own() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1, 2)
    cluster.tick()
    cluster.coordinator.watch(cluster.now)
    cluster.wait(200, beats=[0, 1, 2], missing=[])
    cluster.none("verdict")


def test_no_first_step_in_time_after_joining_is_a_hang() -> None:
    cluster = Cluster().begin(step=-1)
    cluster.wait(302, beats=[0, 1, 2])
    cluster.one("hang")
    for index in range(3):
        cluster.receive(index, "stacks", reports=[{"rank": index}])
    cluster.tick()
    verdict = cluster.one("verdict")
    assert verdict["kind"] == "hung"
    fault = verdict["fault"]
    assert (fault["code"], fault["accused"]) == ("hang", [{"host": "node1", "rank": 1}])
    assert (fault["limit"], fault["seconds"]) == ("launch.start_timeout", 300)
    assert fault["message"] == (
        "rank 1 on node1 is in no collective: no first step within 300 s of joining (launch.start_timeout) after step "
        "7; the stacks of all ranks are in /run/logs"
    )


@pytest.mark.parametrize("changes", [{"step": 0}, {"resumable": False}])
def test_a_first_step_or_ranks_that_tell_no_steps_have_no_limit_for_it(changes: dict[str, Any]) -> None:
    cluster = Cluster().begin(**{"step": -1, **changes})
    cluster.wait(400, beats=[0, 1, 2])
    cluster.none("hang", "verdict")


def test_a_training_that_is_over_before_its_first_step_has_no_limit_for_it() -> None:
    cluster = Cluster().begin(step=-1)  # it was restored at its end
    cluster.wait(400, beats=[0, 1, 2], closed=True)
    cluster.none("hang", "verdict")


def test_no_sign_of_life_of_any_rank_is_a_hang() -> None:
    cluster = Cluster().begin(resumable=False)
    cluster.wait(3, beats=[0, 1, 2], idle=901)
    cluster.one("hang")


def test_one_rank_that_lives_is_enough() -> None:
    cluster = Cluster().begin()
    cluster.receive(1, "heartbeat", idle=0.0)
    cluster.wait(1, beats=[0, 2], idle=901)
    cluster.none("hang")


def test_an_agent_whose_ranks_have_ended_does_not_hide_a_hang_of_the_others() -> None:
    cluster = Cluster().begin()
    cluster.receive(1, "ended")
    cluster.wait(1, beats=[0, 2], idle=901)
    cluster.one("hang")


def test_silent_ranks_stacks_and_blame() -> None:
    cluster = Cluster().begin()
    cluster.receive(2, "silent", ranks=[4, 5])
    cluster.receive(1, "silent", ranks=[2])
    cluster.one("hang")
    cluster.receive(0, "stacks", reports=[{"rank": 0}])
    cluster.receive(1, "stacks", reports=[{"rank": 2}, {"rank": 3}])
    cluster.tick()
    cluster.none("verdict")
    cluster.receive(2, "stacks", reports=[{"rank": 4}, {"rank": 5}])
    cluster.tick()
    verdict = cluster.one("verdict")
    assert sorted(report["rank"] for report in cluster.reports) == [0, 2, 3, 4, 5]
    fault = verdict["fault"]
    assert (verdict["kind"], fault["rank"], verdict["then"]) == ("hung", 1, "restart")
    assert (fault["limit"], fault["seconds"]) == ("launch.hang_timeout", 30)
    assert "no step for 30 s (launch.hang_timeout) after step 7;" in fault["message"]


def hang(cluster: Cluster, at: str, does: str = "is in no collective") -> dict[str, Any]:
    """Rank 1 hangs; returns the verdict. `at`: the newest frame of its stack."""
    cluster.blamed = Blamed((Accused(host="node1", rank=1),), does, step=5, frame=at)
    cluster.receive(1, "silent", ranks=[1])
    for index in range(3):
        cluster.receive(index, "stacks", reports=[])
    cluster.tick()
    return cluster.one("verdict")


@pytest.mark.parametrize(
    ("second", "step", "then"),
    [
        (("train.py",), 5, "fail"), (("data.py",), 5, "restart"), (("train.py",), 6, "restart"),
        (("train.py", "is stopped (state T)"), 5, "restart"),
    ],
    ids=["the same place", "another place", "the same place, further on", "the same place, for another reason"],
)  # fmt: skip
def test_ranks_that_hang_at_the_same_place_again_are_given_up(second: tuple[str, ...], step: int, then: str) -> None:
    cluster = Cluster().begin()
    first = hang(cluster, "train.py")
    assert first["then"] == "restart"
    cluster.gather(History(**first["history"]))
    for index in (1, 2):
        cluster.receive(index, "ready", round=1)
    cluster.tick()
    cluster.one("begin")
    cluster.coordinator.watch(cluster.now)
    for index in range(3):
        cluster.receive(index, "heartbeat", step=step, resumable=True, joined=True)
    verdict = hang(cluster, *second)
    assert verdict["then"] == then
    assert verdict["fault"]["message"].endswith("after a restart they hung there again") is (then == "fail")


def test_a_rank_that_has_exited_with_0_while_the_others_wait_for_it_is_the_failure() -> None:
    cluster = Cluster().begin()
    cluster.blamed = blamed(1, does="", step=3)
    cluster.receive(2, "silent", ranks=[2])
    for index in range(3):
        cluster.receive(index, "stacks", reports=[])
    cluster.tick()
    verdict = cluster.one("verdict")
    assert (verdict["then"], verdict["fault"]["code"], verdict["fault"]["rank"]) == ("fail", "returned_early", 1)
    assert verdict["fault"]["message"].startswith(
        "rank 1 on node1 exited with code 0 while all others still needed it: no step for 30 s (launch.hang_timeout)"
    )


def test_stacks_that_do_not_come_in_time_are_done_without() -> None:
    cluster = Cluster().begin()
    cluster.blamed = blamed(does="is silent, as are all others", step=None)
    cluster.receive(2, "silent", ranks=[4])
    cluster.wait(STACKS, beats=[1, 2])
    verdict = cluster.one("verdict")
    fault = verdict["fault"]
    assert fault["accused"] == [{"host": "node2", "rank": 4}]
    assert fault["message"].startswith("rank 4 on node2 is silent, as are all others: no step for 30 s")
    assert " after step 5;" in fault["message"]


def test_a_failure_while_stacks_are_awaited_comes_first() -> None:
    cluster = Cluster().begin()
    cluster.receive(2, "silent", ranks=[4])
    cluster.fail(1, "killed")
    cluster.wait(STACKS + 1, beats=[1, 2])
    assert cluster.one("verdict")["fault"]["rank"] == 1


# -- ranks that exit with 0


def lost_peer(cluster: Cluster, index: int) -> dict[str, Any]:
    """The rank of an agent loses its peer; returns the verdict."""
    cluster.fail(index, "lost peer")
    return cluster.one("verdict")


def test_a_rank_that_exits_with_0_before_another_loses_its_peer_is_the_failure_and_no_retry_helps() -> None:
    cluster = Cluster().begin()
    cluster.receive(2, "heartbeat", step=5, resumable=True, joined=True, done=[2])
    cluster.receive(1, "heartbeat", step=5, resumable=True, joined=True, done=[1])
    cluster.none("verdict")
    verdict = lost_peer(cluster, 0)
    assert (verdict["kind"], verdict["then"], verdict["exit_code"]) == ("raised", "fail", 1)
    fault = from_json(verdict["fault"], Fault)
    assert (fault.code, fault.rank, fault.host, fault.node) == (FaultCode.RETURNED_EARLY, 2, "node2", 2)
    assert [each.rank for each in fault.accused] == [2, 1]
    assert fault.message == (
        "rank 2 on node2 and 1 other rank exited with code 0 while rank 0 on node0 still needed them"
    )
    assert verdict["member"] == 0  # which writes the event


def test_ranks_that_only_end_at_different_times_are_no_failure() -> None:
    cluster = Cluster().begin()
    cluster.receive(2, "heartbeat", step=5, resumable=True, joined=True, done=[2])
    cluster.receive(2, "ended")
    cluster.wait(100, beats=[0, 1, 2])
    cluster.none("verdict")
    cluster.receive(1, "ended")
    cluster.receive(0, "ended")
    assert cluster.one("over")["final"] is True


def test_ranks_that_exit_with_0_after_a_stop_request_have_done_what_they_were_asked() -> None:
    cluster = Cluster().begin()
    cluster.receive(1, "stop", level="stop", stop=stop_of(1))
    cluster.receive(2, "heartbeat", step=5, resumable=True, joined=True, done=[2])
    verdict = lost_peer(cluster, 0)
    assert (verdict["kind"], verdict["then"]) == ("lost peer", "resume")


@pytest.mark.parametrize("kind", ["killed", "raised", "lost node"])
def test_a_failure_that_explains_itself_is_not_blamed_on_ranks_that_have_exited(kind: str) -> None:
    cluster = Cluster().begin()
    cluster.receive(2, "heartbeat", step=5, resumable=True, joined=True, done=[2])
    cluster.fail(1, kind)
    assert cluster.one("verdict")["kind"] == kind


# -- stop requests of ranks that cannot resume


def leaving(cluster: Cluster, *indices: int) -> None:
    for index in indices:
        cluster.receive(index, "stop", level="stop", stop=stop_of(index))
        cluster.receive(index, "leaving", signal=15)


def test_all_that_leave_end_with_the_signal_of_the_first() -> None:
    cluster = Cluster().begin(resumable=False)
    leaving(cluster, 1, 0)
    cluster.none("verdict")
    leaving(cluster, 2)
    verdict = cluster.one("verdict")
    assert (verdict["then"], verdict["exit_code"]) == ("fail", 143)
    fault = verdict["fault"]
    assert (fault["code"], fault["host"], fault["signal"]) == ("stopped_early", "node1", "SIGTERM")
    assert "accused" not in fault


@pytest.mark.parametrize(("must_join", "code"), [(True, 75), (False, 143)])
def test_ranks_that_are_asked_to_stop_before_they_have_joined_have_lost_nothing(must_join: bool, code: int) -> None:
    cluster = Cluster(params={"init": must_join}).begin(resumable=False, joined=False)
    leaving(cluster, 0, 1, 2)
    assert cluster.one("verdict")["exit_code"] == code


def test_a_run_with_a_checkpoint_goes_on_if_it_is_asked_to_stop_before_its_ranks_can_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a preemption while they start: they had ended with 143, and so the run."""
    monkeypatch.setattr(policy, "has_checkpoint", lambda _: True)
    cluster = Cluster().begin(resumable=False)
    leaving(cluster, 0, 1, 2)
    verdict = cluster.one("verdict")
    assert (verdict["then"], verdict["exit_code"], verdict["fault"]["code"]) == ("resume", 75, "stopped_early")


def test_hosts_that_are_silent_while_the_others_leave_are_named() -> None:
    """A node that dies makes the scheduler end the others: it is the cause, and the stop request is not."""
    cluster = Cluster().begin(resumable=False)
    leaving(cluster, 0, 1)
    cluster.wait(LEAVE_TIMEOUT, pace=0.25)
    verdict = cluster.one("verdict")
    assert verdict["exit_code"] == 143
    fault = verdict["fault"]
    assert (fault["code"], fault["accused"]) == ("node_ended", [{"host": "node2"}])
    assert fault["message"].endswith("; then node0 was asked to stop by SIGTERM")


def test_a_host_whose_ranks_still_save_is_not_named_as_lost() -> None:
    """Ranks begin to look for stop requests at slightly different times."""
    cluster = Cluster().begin(resumable=False)
    cluster.receive(2, "heartbeat", resumable=True)
    leaving(cluster, 0, 1)
    cluster.wait(LEAVE_TIMEOUT, pace=0.25)
    fault = cluster.one("verdict")["fault"]
    assert (fault["code"], fault["host"]) == ("stopped_early", "node0")


def test_one_that_is_lost_while_the_others_leave_is_not_waited_for() -> None:
    cluster = Cluster().begin(resumable=False)
    leaving(cluster, 0, 1)
    cluster.lose(2)
    cluster.tick()
    fault = cluster.one("verdict")["fault"]
    assert (fault["code"], fault["accused"]) == ("node_ended", [{"host": "node2"}])


def test_a_stop_request_is_passed_on_once_and_a_warning_too() -> None:
    cluster = Cluster().begin()
    for index in range(3):
        cluster.receive(index, "stop", level="warning", stop=stop_of(index))
        cluster.receive(index, "stop", level="stop", stop=stop_of(index))
    assert cluster.one("warning")["stop"] == stop_of(0)
    assert cluster.one("stop")["stop"] == stop_of(0)


# -- the end of a round


def test_over_is_said_when_nobody_runs_any_more() -> None:
    cluster = Cluster().begin()
    cluster.receive(1, "ended")
    cluster.receive(0, "ended")
    cluster.none("over")
    cluster.receive(2, "ended")
    assert cluster.one("over") == {"type": "over", "final": True}
    cluster.receive(2, "ended")
    cluster.lose(2)
    cluster.none("over", "verdict")


def test_over_does_not_wait_for_the_lost() -> None:
    cluster = Cluster().begin()
    cluster.fail(1, "left", listens=True)
    cluster.one("verdict")
    cluster.receive(1, "ended")
    cluster.receive(0, "ended")
    cluster.lose(2)
    assert cluster.one("over", [0, 1])["final"] is True


def test_members_that_wait_hear_of_the_end() -> None:
    cluster = Cluster(4, least=2)
    cluster.gather(wanted=[0, 1, 2])
    cluster.hello(1, 2)
    cluster.tick()
    cluster.coordinator.watch(cluster.now)
    cluster.hello(3)
    for index in range(3):
        cluster.receive(index, "ended")
    cluster.one("over", [0, 1, 2, 3])


# -- members that come back, and the next round


def came_back() -> Cluster:
    """Round 1 runs without agent 2, which has connected again."""
    cluster = Cluster().begin()
    cluster.lose(2)
    history = History(**cluster.one("verdict")["history"])
    cluster.receive(1, "ready", round=1)
    cluster.gather(history, [0, 1])
    cluster.one("begin", [0, 1])
    cluster.coordinator.watch(cluster.now)
    cluster.hello(2)
    return cluster


def test_a_round_that_got_somewhere_makes_room_for_who_came_back() -> None:
    cluster = came_back()
    cluster.wait(1, beats=[0, 1], step=5, resumable=True, joined=True)
    cluster.none("regroup")  # no further than before: nothing was saved that it could continue from
    cluster.wait(1, beats=[0, 1], step=6, resumable=True, joined=True)
    assert cluster.one("regroup", [0, 1])["back"] == [{"host": "node2", "node": 2, "task": None}]
    cluster.wait(5, beats=[0, 1], step=7)
    cluster.none("regroup")


def test_a_node_that_is_lost_again_and_again_ends_rounds_less_and_less_often() -> None:
    """As with a bad cable: each time it comes and goes the others save, start again, and start again without it."""
    cluster, step, waited = Cluster(least=1).begin(), 5, []
    for number in range(1, 12):
        cluster.lose(2)
        history = History(**cluster.one("verdict", [0, 1, 2] if number == 1 else EVERYBODY)["history"])
        cluster.receive(1, "ready", round=history.round)
        cluster.gather(history, [0, 1])
        cluster.one("begin", [0, 1])
        cluster.coordinator.watch(cluster.now)
        cluster.hello(2)
        before, step = cluster.now, step + 1
        while not (regroup := cluster.take("regroup")):
            cluster.wait(1, beats=[0, 1, 2], step=step, resumable=True, joined=True)
        waited.append(round((cluster.now - before - 1) / HEARTBEAT))
        assert sorted(index for index, _ in regroup) == [0, 1]
        cluster.fail(0, "regroup", step=step)
        history = History(**cluster.one("verdict", [0, 1])["history"])
        cluster.receive(1, "ready", round=history.round)
        cluster.gather(history, [0, 1])
        cluster.one("begin")
        cluster.coordinator.watch(cluster.now)
        for index in range(3):
            cluster.receive(index, "heartbeat", step=step, resumable=True, joined=True)
    assert waited == [0, 1, 3, 7, 15, 31, 63, 127, 127, 127, 127]


def test_there_is_no_regrouping_while_the_attempt_ends() -> None:
    cluster = came_back()
    cluster.receive(1, "stop", level="stop", stop={"reason": "time_limit"})
    cluster.wait(1, beats=[0, 1], step=6, resumable=True, joined=True)
    cluster.none("regroup")


def test_who_came_back_and_left_again_is_not_waited_for() -> None:
    cluster = came_back()
    cluster.lose(2)
    cluster.wait(1, beats=[0, 1], step=6, resumable=True)
    cluster.none("regroup", "verdict")


def test_who_came_back_takes_part_in_the_next_round() -> None:
    cluster = came_back()
    cluster.fail(0, "regroup", step=6)
    verdict = cluster.one("verdict", [0, 1])
    assert (verdict["then"], History(**verdict["history"]).tried) == ("restart", 0)
    cluster.receive(1, "ready", round=2)
    cluster.gather(History(**verdict["history"]), [0, 1])
    assert [Member(*row).index for row in cluster.one("begin")["members"]] == [0, 1, 2]
    assert cluster.coordinator.waiting == []


def test_one_that_is_lost_after_the_verdict_is_not_waited_for() -> None:
    """A switch goes down with several nodes: their connections do not all end in the same moment."""
    cluster = Cluster(4).begin()
    cluster.lose(3)
    history = History(**cluster.one("verdict")["history"])
    cluster.lose(2)
    cluster.receive(1, "ready", round=1)
    cluster.gather(history, [0, 1, 2])  # that agent 2 is gone as well, the verdict could not say
    assert [Member(*row).index for row in cluster.one("begin", [0, 1])["members"]] == [0, 1]


def test_what_the_ranks_of_any_agent_had_done_when_they_ended_is_what_the_attempt_has_reached() -> None:
    cluster = Cluster(4).begin(step=90)
    cluster.lose(3)
    history = History(**cluster.one("verdict")["history"])
    assert history.best == 90  # by the last heartbeats
    cluster.receive(1, "ready", round=1, step=105)
    cluster.receive(2, "ready", round=1, step=104)
    cluster.gather(history, [0, 1, 2])
    assert cluster.one("begin", [0, 1, 2])["history"]["best"] == 105


def test_one_that_is_lost_while_the_next_round_gathers_is_not_waited_for() -> None:
    cluster = Cluster(4).begin()
    cluster.lose(3)
    history = History(**cluster.one("verdict")["history"])
    cluster.gather(history, [0, 1, 2])
    cluster.receive(1, "ready", round=1)
    cluster.tick()
    cluster.none("begin")
    cluster.lose(2)
    cluster.tick()
    cluster.one("begin", [0, 1])


def test_one_whose_ranks_do_not_end_in_time_is_named() -> None:
    cluster = Cluster(least=3).begin()
    cluster.fail(1, "killed")
    history = History(**cluster.one("verdict")["history"])
    cluster.receive(1, "ready", round=1)
    cluster.gather(history, [0, 1, 2])
    cluster.wait(60)
    fault = cluster.one("refused", [0, 1])["fault"]
    assert (fault["code"], fault["accused"]) == ("rendezvous_timeout", [{"host": "node2", "node": 2}])


def test_a_verdict_of_the_round_before_does_not_end_the_next_one() -> None:
    cluster = came_back()
    cluster.fail(1, "killed")
    assert cluster.one("verdict", [0, 1])["fault"]["rank"] == 1


# -- what no order of events may break


EVENTS = st.one_of(
    st.tuples(st.just("failure"), st.integers(0, 4), st.sampled_from(["raised", "killed", "left", "no retry"])),
    st.tuples(st.just("ended"), st.integers(0, 4), st.none()),
    st.tuples(st.just("lose"), st.integers(1, 4), st.none()),
    st.tuples(st.just("hello"), st.integers(1, 4), st.none()),
    st.tuples(st.just("heartbeat"), st.integers(0, 4), st.integers(-1, 20)),
    st.tuples(st.just("silent"), st.integers(0, 4), st.none()),
    st.tuples(st.just("stop"), st.integers(0, 4), st.sampled_from(["stop", "warning"])),
    st.tuples(st.just("leaving"), st.integers(0, 4), st.none()),
    st.tuples(st.just("stacks"), st.integers(0, 4), st.none()),
    st.tuples(st.just("ready"), st.integers(0, 4), st.none()),
    st.tuples(st.just("wait"), st.integers(0, 40), st.none()),
    st.tuples(st.just("unheard of"), st.integers(0, 4), st.none()),
)


def happen(cluster: Cluster, event: tuple[str, int, Any], connected: set[int]) -> None:
    kind, number, value = event
    if kind == "wait":
        cluster.wait(number, beats=sorted(connected))
    elif kind == "lose":
        connected.discard(number)
        cluster.lose(number)
    elif kind == "hello":
        if number not in connected:
            connected.add(number)
            cluster.hello(number)
    elif number in connected:
        values: dict[str, dict[str, Any]] = {
            "failure": {"failure": failure(number, value)} if kind == "failure" else {},
            "heartbeat": {"step": value, "resumable": True},
            "silent": {"ranks": [number]}, "stop": {"level": value, "stop": stop_of(number)}, "leaving": {"signal": 15},
            "stacks": {"reports": []}, "ready": {"round": 1},
        }  # fmt: skip
        cluster.receive(number, kind, **values.get(kind, {}))


@given(st.lists(EVENTS, max_size=25))
@settings(max_examples=4 * settings().max_examples)
def test_whatever_happens_there_is_one_verdict_and_then_over_or_a_new_round(
    events: list[tuple[str, int, Any]],
) -> None:
    cluster = Cluster(5, least=1).begin()
    connected = set(range(5))
    for event in events:
        happen(cluster, event, connected)
    for index in sorted(connected):  # all answer: their ranks have ended
        cluster.receive(index, "ended")
    cluster.wait(HEARTBEAT * 2, beats=sorted(connected))
    verdicts = [message for _, message in cluster.take("verdict")]
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert len(verdicts) <= 5
    over = cluster.take("over")
    assert len({index for index, _ in over}) == len(over), "nobody is told twice"
    assert 0 in {index for index, _ in over}
    if verdicts and verdicts[0]["then"] == "restart":
        history = History(**verdicts[0]["history"])
        left = [index for index in range(5) if index not in verdicts[0].get("lost", ())]
        cluster.gather(history, left)
        for index in sorted(connected & set(left)):
            cluster.receive(index, "ready", round=1)
        cluster.tick()
        begun = cluster.take("begin")
        assert {index for index, _ in begun} >= connected & set(left)
        assert cluster.claims[-1][0] == 1


@given(st.lists(EVENTS, max_size=40), st.lists(EVENTS, max_size=40))
def test_no_round_has_two_verdicts(first: list[Any], second: list[Any]) -> None:
    cluster = Cluster(5, least=1).begin()
    connected = set(range(5))
    for happened in (first, second):
        for event in happened:
            happen(cluster, event, connected)
        verdicts = cluster.take("verdict")
        assert len({str(verdict) for _, verdict in verdicts}) <= 1
        assert len({index for index, _ in verdicts}) == len(verdicts)
        if not verdicts or verdicts[0][1]["then"] != "restart":
            return
        cluster.gather(History(**verdicts[0][1]["history"]), [])
        for index in sorted(connected - set(verdicts[0][1].get("lost", ())) - {0}):
            cluster.receive(index, "ready", round=1)
        cluster.wait(61)
        cluster.coordinator.watch(cluster.now)


# -- a thousand agents


@pytest.mark.parametrize(
    ("kind", "then", "lost", "perhaps"),
    [
        ("lost node", "resume", [1, 2], True),
        ("lost node", "fail", [1, 2], True),
        ("lost node", "resume", [1], False),
        ("lost node", "restart", [1, 2], False),
        ("killed", "resume", [], False),
        ("hung", "fail", [], False),
    ],
)
def test_a_side_that_is_too_small_may_be_the_one_that_is_cut_off(
    kind: str, then: str, lost: list[int], perhaps: bool
) -> None:
    verdict = RoundVerdict(failed(0, kind, lost=lost), NextStep(then), 1, History())
    assert may_be_cut_off(verdict, least=2) is perhaps


def test_messages_are_linear_in_agents() -> None:
    """One to and at most two from each agent for all that happens once."""
    size = 1000
    cluster = Cluster(size, least=2)
    cluster.gather()
    cluster.hello(*range(1, size))
    cluster.tick()
    cluster.one("begin")
    cluster.coordinator.watch(cluster.now)
    for index in range(size):
        cluster.receive(index, "heartbeat", step=5, resumable=True, joined=True)
    cluster.collect()
    assert cluster.sent == [], "a heartbeat is answered by none"
    cluster.receive(7, "stop", level="warning", stop=stop_of(7))
    cluster.receive(8, "stop", level="warning", stop=stop_of(8))
    assert len(cluster.take("warning")) == size
    cluster.lose(999)
    for index in range(size - 1):  # all others notice, and report it
        cluster.fail(index, "lost peer")
    verdict = cluster.take("verdict")
    assert len(verdict) == size
    history = History(**verdict[0][1]["history"])
    cluster.gather(history, range(size - 1))
    for index in range(1, size - 1):
        cluster.receive(index, "ready", round=1)
    cluster.tick()
    assert len(cluster.take("begin")) == size - 1
    cluster.coordinator.watch(cluster.now)
    for index in range(size - 1):
        cluster.receive(index, "ended")
    assert len(cluster.take("over")) == size - 1
    cluster.collect()
    assert cluster.sent == []


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_node_is_in_the_record_and_not_the_leader_that_tells_of_it(lost: int) -> None:
    cluster = Cluster().begin()
    cluster.lose(lost)
    verdict = cluster.one("verdict")
    fault = verdict["fault"]
    assert (verdict["kind"], fault["host"], fault["node"]) == ("lost node", f"node{lost}", lost)
    assert verdict["member"] == 0  # which reports it
    assert (fault["code"], fault["accused"]) == ("node_ended", [{"host": f"node{lost}"}])


def test_a_silent_node_is_in_the_record() -> None:
    cluster = Cluster().begin()
    cluster.wait(2 * HEARTBEAT, beats=[1])
    verdict = cluster.one("verdict")
    fault = verdict["fault"]
    assert (verdict["kind"], fault["host"], fault["node"], verdict["member"]) == ("lost node", "node2", 2, 0)
    assert (fault["code"], fault["accused"]) == ("node_silent", [{"host": "node2"}])


@pytest.mark.parametrize(("rank", "node"), [(0, 0), (1, 1), (2, 2), (None, 0)])
def test_the_node_of_the_rank_that_hangs_is_in_the_record(rank: int | None, node: int) -> None:
    cluster = Cluster().begin()
    cluster.blamed = blamed(*([] if rank is None else [rank]))
    cluster.receive(1, "silent", ranks=[1])
    for index in range(3):
        cluster.receive(index, "stacks", reports=[])
    cluster.tick()
    verdict = cluster.one("verdict")
    fault = verdict["fault"]
    assert (verdict["kind"], fault.get("rank"), fault["host"], fault["node"]) == ("hung", rank, f"node{node}", node)
    accused = [{"host": "node1", "rank": 1}] if rank is None else [{"host": f"node{node}", "rank": rank}]
    assert (fault["code"], fault["limit"], fault["accused"]) == ("hang", "launch.hang_timeout", accused)


def test_where_other_nodes_are_saving_the_run_can_be_resumed() -> None:
    """Ranks of two nodes do not listen yet when they are stopped; those of the third do."""
    cluster = Cluster().begin(resumable=False)
    cluster.receive(2, "heartbeat", step=5, resumable=True, joined=True)
    cluster.receive(0, "stop", level="stop", stop=stop_of(0))
    leaving(cluster, 0, 1)
    cluster.tick()
    verdict = cluster.one("verdict")
    assert (verdict["then"], verdict["exit_code"]) == ("resume", 75)


def test_a_leader_that_is_stopped_tells_those_that_wait_for_a_round() -> None:
    cluster = Cluster()
    cluster.gather()
    cluster.hello(1)
    fault = Fault(code=FaultCode.STOPPED_EARLY, host="node0", signal="SIGTERM")
    cluster.coordinator.refuse_waiting(fault)
    refused = {"type": "refused", "fault": {"code": "stopped_early", "host": "node0", "signal": "SIGTERM"}}
    assert cluster.take("refused") == [(1, refused)]
    cluster = Cluster().begin()
    cluster.coordinator.refuse_waiting(fault)  # its ranks run: a verdict ends them
    cluster.none("refused")


# -- thousands of agents


def looks_per_message(size: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """How often the state of any agent is read for each message of a round, up to its end after a stop request."""
    cluster, looks, get = Cluster(size).begin(resumable=False), 0, AgentState.__getattribute__

    def counted(agent: AgentState, name: str) -> Any:
        nonlocal looks
        looks += 1
        return get(agent, name)

    with monkeypatch.context() as patch:
        patch.setattr(AgentState, "__getattribute__", counted)
        for kind, values in (("heartbeat", {}), ("leaving", {"signal": 15}), ("ended", {})):
            for index in range(size):
                cluster.receive(index, kind, **values)
                cluster.tick(1.0 / size)
                cluster.coordinator.take_outbox()
    assert cluster.coordinator.verdict is not None
    return looks / (3 * size)


def test_the_work_per_message_does_not_grow_with_the_number_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_per_message(1000, monkeypatch) < 1.5 * looks_per_message(100, monkeypatch)


def test_messages_and_events_about_32768_ranks_are_within_their_bounds() -> None:
    cluster = Cluster(4096)
    cluster.members = [Member(i, i, f"a-long-name-of-node{i}.site.example", 8, 0, "10.100.100.100", "10.100.100.101")
                       for i in range(4096)]  # fmt: skip
    cluster.gather()
    cluster.hello(*range(1, 4096))
    cluster.tick()
    (begin,) = [message for _, message in cluster.coordinator.take_outbox() if message["type"] == "begin"]
    assert len(encode(begin)) < io_bounds.MESSAGE_BYTES / 8  # with launch=tasks each rank has an agent
    cluster.coordinator.watch(cluster.now)
    for _ in range(16):
        for index in range(4096):
            cluster.receive(index, "heartbeat", missing=list(range(8 * index, 8 * index + 8)))
        cluster.tick(0.4 * HEARTBEAT)
    assert cluster.coordinator.verdict is not None
    fault = cluster.coordinator.verdict.failure.fault
    assert (fault.code, len(fault.accused)) == (FaultCode.NOT_JOINED, io_bounds.ACCUSED)
    assert len(json.dumps(event_files.entry(fault))) < io_bounds.EVENT_BYTES
    places = [
        Place(host=f"a-long-name-of-node{task // 8}.site.example", node=task // 8, task=task) for task in range(32768)
    ]
    missing = Arrivals(places, 0, len(places), set(range(len(places))), 0.0).problem()
    assert missing is not None
    assert "and 32758 more did not reach" in missing.message
    assert len(json.dumps(event_files.entry(missing))) < io_bounds.EVENT_BYTES


# -- spare nodes


def test_a_spare_waits_takes_the_place_of_a_lost_node_and_no_round_ends_for_it() -> None:
    cluster = Cluster(4, least=3, most=3)
    cluster.gather()
    cluster.hello(1, 2, 3)
    cluster.tick()
    begin = cluster.one("begin", to=[0, 1, 2])
    assert begin["spares"] == [3]
    cluster.one("spare", to=[3])
    cluster.coordinator.watch(cluster.now)
    for index in range(3):
        cluster.receive(index, "heartbeat", step=5, resumable=True, joined=True)
    cluster.tick(1.0)
    cluster.none("regroup")  # it waits for a loss only
    cluster.lose(1)
    assert cluster.one("verdict", to=[0, 1, 2])["then"] == NextStep.RESTART.value  # three are left, with the spare
    cluster.receive(2, "ready", round=1)
    cluster.coordinator.gather(cluster.coordinator.history, [0, 2], 60, cluster.now, [0, 1, 2])
    cluster.tick()
    begin = cluster.one("begin", to=[0, 3, 2])
    assert [Member(*row).index for row in begin["members"]] == [0, 3, 2]
    assert begin["spares"] == []


def test_without_a_spare_that_is_left_the_attempt_ends() -> None:
    cluster = spares_at_work()
    cluster.lose(3)  # the spare itself: nobody notices
    cluster.none("verdict")
    cluster.lose(1)
    assert cluster.one("verdict", to=[0, 1, 2])["then"] == NextStep.RESUME.value


def test_a_round_with_too_few_nodes_takes_one_that_comes_back() -> None:
    cluster = Cluster(4, least=2, most=3)
    cluster.gather(wanted=[0, 1])
    cluster.hello(1)
    cluster.tick()
    cluster.one("begin", to=[0, 1])
    cluster.coordinator.watch(cluster.now)
    cluster.hello(2)
    for index in range(2):
        cluster.receive(index, "heartbeat", step=5, resumable=True, joined=True)
    cluster.tick(1.0)
    assert cluster.one("regroup", to=[0, 1])["back"] == [{"host": "node2", "node": 2, "task": None}]


def spares_at_work() -> Cluster:
    """Three agents run a round, and a fourth one is spare."""
    cluster = Cluster(4, least=3, most=3)
    cluster.gather()
    cluster.hello(1, 2, 3)
    cluster.tick()
    cluster.coordinator.watch(cluster.now)
    for index in range(3):
        cluster.receive(index, "heartbeat", step=5, resumable=True, joined=True)
    cluster.collect()
    cluster.sent.clear()
    return cluster


def test_a_spare_that_has_sent_nothing_for_a_while_is_not_counted_on() -> None:
    cluster = spares_at_work()
    cluster.wait(HEARTBEAT / 2, beats=(0, 1, 2), resumable=True, joined=True, step=6)
    assert cluster.coordinator.waiting == [3]
    cluster.lose(1)
    assert cluster.one("verdict", to=[0, 1, 2])["then"] == NextStep.RESUME.value


@pytest.mark.parametrize("held_up", [0.1, 0.2, 0.25, 0.45])  # of launch.heartbeat
def test_a_spare_is_counted_on_by_a_leader_that_was_held_up(held_up: float) -> None:
    """It writes files and starts ranks meanwhile, and reads that a node has ended before what a spare one has sent."""
    cluster = spares_at_work()
    cluster.wait(HEARTBEAT / 10, beats=(0, 1, 2), resumable=True, joined=True, step=6)
    cluster.now += held_up * HEARTBEAT
    cluster.lose(1)
    assert cluster.one("verdict", to=[0, 1, 2])["then"] == NextStep.RESTART.value


def test_a_spare_that_is_silent_is_left_out_until_it_speaks_again() -> None:
    cluster = spares_at_work()
    cluster.wait(1.5 * HEARTBEAT, beats=(0, 1, 2), resumable=True, joined=True, step=6)
    assert cluster.coordinator.waiting == []
    assert cluster.one("spares", to=[0, 1, 2])["indices"] == []
    cluster.receive(3, "heartbeat")
    assert cluster.coordinator.waiting == [3]
    cluster.lose(1)
    assert cluster.one("verdict", to=[0, 1, 2])["then"] == NextStep.RESTART.value


def test_a_spare_that_speaks_only_while_a_round_is_gathered_takes_part() -> None:
    cluster = spares_at_work()
    cluster.lose(1)
    cluster.receive(2, "ready", round=1)
    cluster.wait(HEARTBEAT / 2, beats=(0, 2))
    cluster.coordinator.gather(cluster.coordinator.history, [0, 2], 60, cluster.now, [0, 1, 2])
    cluster.none("begin")  # it is waited for
    cluster.receive(3, "heartbeat")
    cluster.tick()
    cluster.one("begin", to=[0, 3, 2])


def test_spares_that_come_or_go_during_a_preflight_are_told_when_the_ranks_start() -> None:
    cluster = Cluster(5, least=2, most=3)
    cluster.gather()
    cluster.hello(1, 2, 3)
    cluster.wait(61)
    assert cluster.one("begin", to=[0, 1, 2])["spares"] == [3]
    cluster.one("spare", to=[3])
    cluster.lose(3)
    cluster.hello(4)
    cluster.none("spare", "spares")
    assert cluster.coordinator.spares() == [4]
    cluster.coordinator.watch(cluster.now)
    cluster.one("spare", to=[4])
    assert cluster.one("spares", to=[0, 1, 2])["indices"] == [4]


def test_members_know_which_spares_there_are_now() -> None:
    cluster = spares_at_work()
    cluster.lose(3)
    assert cluster.one("spares", to=[0, 1, 2])["indices"] == []
    cluster.hello(3)
    cluster.one("spare", to=[3])
    assert cluster.one("spares", to=[0, 1, 2])["indices"] == [3]

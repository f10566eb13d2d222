"""What agents report of a failure, and what the leading agent decides about it for all. Pure.

An agent sends a RoundFailure to the leader, which makes a Verdict of it and sends that to all agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from launcher.agent.restart_policy import History, Kind, Then, decide
from launcher.failures import text
from launcher.runs import event_json
from launcher.runs.events import Fault, Restart, Stop


@dataclass(frozen=True)
class RoundFailure:
    """A failure that ends a round.

    Attributes:
        kind: the kind, for the restart policy.
        fault: its description.
        member: index of the agent that reports it to the user.
        listens: whether the rank can resume; of a lost node: whether any rank can.
        lost: indices of members that are gone.
        saved: whether a program has saved something in this round.
        stop: why ranks have left to resume later; None: they have not.
        exit_code: exit code of the attempt, if this failure ends it; None: the one of the decision.
    """

    kind: Kind
    fault: Fault
    member: int
    listens: bool
    lost: tuple[int, ...] = ()
    saved: bool = False
    stop: Stop | None = None
    exit_code: int | None = None

    @property
    def step(self) -> int:
        """Steps of the run that were done; -1: none."""
        return -1 if self.fault.step is None else self.fault.step

    def fields(self) -> dict[str, Any]:
        """Returns the failure as JSON types, the fields of a message `failure`."""
        return {
            "kind": self.kind.value, "fault": event_json.values(self.fault), "member": self.member,
            "listens": self.listens, "lost": list(self.lost), "saved": self.saved,
            "stop": event_json.values(self.stop) if self.stop else None, "exit_code": self.exit_code,
        }  # fmt: skip

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> RoundFailure:
        """Returns the failure of a message that contains its `fields`."""
        stop = message["stop"]
        return cls(
            Kind(message["kind"]), event_json.from_values(Fault, message["fault"]), int(message["member"]),
            bool(message["listens"]), tuple(message["lost"]), bool(message["saved"]),
            None if stop is None else event_json.from_values(Stop, stop), message["exit_code"],
        )  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What all agents do about the first failure of a round.

    Attributes:
        failure: the failure.
        then: what follows.
        exit_code: exit code of the attempt, if it ends.
        history: the rounds so far; after a restart, at the start of the next round.
    """

    failure: RoundFailure
    then: Then
    exit_code: int
    history: History

    @property
    def restarts(self) -> bool:
        return self.then is Then.RESTART

    @property
    def saves(self) -> bool:
        """Whether ranks get the time to save and leave."""
        return self.failure.kind in (Kind.LEFT, Kind.REGROUP)

    @property
    def event(self) -> Fault | Stop:
        """The event of a verdict that ends the attempt."""
        stop, step = self.failure.stop, self.failure.step
        if stop is not None:
            return replace(stop, step=step) if step >= 0 else stop
        return replace(self.failure.fault, ends_with=self.exit_code)

    def restart(self, world_size: int) -> Restart:
        """Returns the event of a verdict after which the ranks restart.

        Args:
            world_size: world size of the round that is over.
        """
        values = event_json.values(self.failure.fault)
        return event_json.from_values(Restart, {**values, "round": self.history.round, "world_size": world_size})

    def message(self) -> dict[str, Any]:
        """Returns the message `verdict`."""
        return {
            "type": "verdict", **self.failure.fields(), "then": self.then.value, "ends_with": self.exit_code,
            "history": asdict(self.history),
        }  # fmt: skip

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Verdict:
        """Returns the verdict of a `message`."""
        failure = RoundFailure.of(message)
        return cls(failure, Then(message["then"]), int(message["ends_with"]), History(**message["history"]))


def judge(
    failure: RoundFailure, history: History, *, stopping: bool, members: int, least: int, max_restarts: int
) -> Verdict:
    """Returns what all agents do about a failure. Pure.

    Args:
        failure: the first failure of the round.
        history: the rounds before.
        stopping: whether the agents were asked to stop.
        members: number of agents in the round.
        least: number of agents with which the run can continue.
        max_restarts: launch.max_restarts.
    """
    further = max(failure.step, history.best + 1) if failure.saved else failure.step
    then = decide(
        failure.kind,
        history,
        further,
        listens=failure.listens,
        stopping=stopping,
        enough=members - len(failure.lost) >= least,
        max_restarts=max_restarts,
    )
    if then is Then.RESTART:
        history = history.after(further, counts=failure.kind is not Kind.REGROUP)
    elif then is Then.FAIL and failure.kind is not Kind.RAISED and history.tried:
        given_up = replace(failure.fault, restarts=history.tried, max_restarts=max_restarts)
        failure = replace(failure, fault=given_up)
    return Verdict(failure, then, failure.exit_code or then.exit_code, history)


def may_be_cut_off(verdict: Verdict, least: int) -> bool:
    """Returns whether the lost members may continue without those who decided so: a partition looks the same from both
    sides. Pure.

    | kind | then | lost members | |
    |---|---|---|---|
    | lost node | the attempt ends: too few are left | enough for a round without us | perhaps |
    | lost node | the attempt ends | fewer | no |
    | any | the ranks restart | any | no: the folder `rounds` decides which side continues |
    | another | any | any | no: the members of the round have exchanged messages |
    """
    return not verdict.restarts and verdict.failure.kind is Kind.LOST_NODE and len(verdict.failure.lost) >= least


def describe(event: Fault | Stop) -> str:
    """Returns why an attempt ended, as text."""
    return f"stopped: {text.of_stop(event)}" if isinstance(event, Stop) else text.of_fault(event)

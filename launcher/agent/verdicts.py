"""The failure that an agent reports to the leader (RoundFailure), and the leader's decision for all (Verdict)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from launcher.agent.restart_policy import History, Kind, Then, decide
from launcher.failures import text
from launcher.failures.codes import FaultCode
from launcher.runs import events
from launcher.runs.events import Accused, Fault, Restart, Stop


@dataclass(frozen=True)
class RoundFailure:
    """A failure that ends a round."""

    kind: Kind  # the kind, for the restart policy
    fault: Fault  # the fault with its code
    member: int  # member index of the agent that reports the failure to the user
    listens: bool  # whether the failed rank can resume; of a lost node: whether any rank can
    lost: tuple[int, ...] = ()  # member indices of the agents that are gone
    stop: Stop | None = None  # why ranks have exited with code 75, to resume later; None: they have not
    # exit code of the attempt, if this failure ends it; None: `Then.exit_code` of the verdict
    exit_code: int | None = None
    place: str = ""  # where the ranks hang, to be compared with other rounds; empty: they do not

    @property
    def step(self) -> int:
        """Step of the run that the round reached; -1: none."""
        return -1 if self.fault.step is None else self.fault.step

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a message `failure` or `verdict`, as JSON types."""
        return {
            "kind": self.kind.value, "fault": events.values(self.fault), "member": self.member,
            "listens": self.listens, "lost": list(self.lost),
            "stop": events.values(self.stop) if self.stop else None, "exit_code": self.exit_code,
            "place": self.place,
        }  # fmt: skip

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> RoundFailure:
        """Returns the failure that a message describes; the inverse of `fields`."""
        stop = message["stop"]
        return cls(
            Kind(message["kind"]), events.from_values(Fault, message["fault"]), int(message["member"]),
            bool(message["listens"]), tuple(message["lost"]),
            None if stop is None else events.from_values(Stop, stop), message["exit_code"], message["place"],
        )  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The leader's decision about the first failure of a round, which all agents carry out."""

    failure: RoundFailure  # the failure
    then: Then  # what follows
    exit_code: int  # exit code of the attempt, if the attempt ends
    history: History  # the rounds so far; if the ranks restart, as at the start of the next round

    @property
    def restarts(self) -> bool:
        return self.then is Then.RESTART

    @property
    def saves(self) -> bool:
        """Whether the ranks get time to save and exit."""
        return self.failure.kind in (Kind.LEFT, Kind.REGROUP)

    @property
    def event(self) -> Fault | Stop:
        """The event to write if this verdict ends the attempt."""
        stop, step = self.failure.stop, self.failure.step
        if stop is not None:
            return replace(stop, step=step) if step >= 0 else stop
        return replace(self.failure.fault, ends_with=self.exit_code)

    def restart(self, world_size: int) -> Restart:
        """Returns the event to write if the ranks restart after this verdict."""
        values = events.values(self.failure.fault)
        return events.from_values(Restart, {**values, "round": self.history.round, "world_size": world_size})

    def message(self) -> dict[str, Any]:
        """Returns the verdict as a message `verdict` to the agents, in JSON types."""
        return {
            "type": "verdict", **self.failure.fields(), "then": self.then.value, "ends_with": self.exit_code,
            "history": asdict(self.history),
        }  # fmt: skip

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Verdict:
        """Returns the verdict that a message describes; the inverse of `message`."""
        failure = RoundFailure.of(message)
        return cls(failure, Then(message["then"]), int(message["ends_with"]), History(**message["history"]))


def early_exit(failure: RoundFailure, done: Sequence[Accused], *, asked: bool) -> RoundFailure:
    """Returns the failure that caused a given one: ranks that had exited with 0 too early, or itself.

    | failure | ranks that have exited with 0 | a stop request | result |
    |---|---|---|---|
    | a rank lost a peer | some | no | RETURNED_EARLY of these ranks; a retry would fail as well |
    | a rank lost a peer | some | yes: they may have saved | the failure |
    | a rank lost a peer | none | any | the failure |
    | any other | any | any | the failure: it explains itself |

    failure: the first failure of the round.
    done: the ranks that have exited with 0, in the order of their exits.
    asked: whether ranks were asked to stop.
    """
    lost = failure.fault
    if failure.kind is not Kind.LOST_PEER or asked or not done:
        return failure
    needed_by = None if lost.rank is None else Accused(host=lost.host, rank=lost.rank)
    fault = Fault(
        code=FaultCode.RETURNED_EARLY, host=done[0].host, node=done[0].node, rank=done[0].rank, exit_code=0,
        step=lost.step, accused=tuple(done), needed_by=needed_by,
    )  # fmt: skip
    return replace(failure, kind=Kind.RAISED, fault=fault, listens=False)


def judge(
    failure: RoundFailure,
    history: History,
    *,
    stopping: bool,
    members: int,
    least: int,
    max_restarts: int,
    saved: Callable[[], bool | None] = lambda: False,
) -> Verdict:
    """Returns the verdict on a failure, by the restart policy.

    failure: the first failure of the round.
    stopping: whether the agents were asked to stop.
    least: minimum number of agents with which the run can continue.
    saved: returns whether a program has saved something in this round, and None if that is unknown. Called only if the
        verdict depends on it.
    """
    steps, counts = failure.step > history.best, failure.listens and failure.kind not in (Kind.NO_RETRY, Kind.LEFT)
    progress = saved() if counts and not steps else steps
    further = max(failure.step, history.best + 1) if progress else failure.step
    again = failure.place != "" and failure.place == history.hung
    then = decide(
        failure.kind,
        history,
        progress,
        listens=failure.listens,
        stopping=stopping,
        enough=members - len(failure.lost) >= least,
        max_restarts=max_restarts,
        again=again,
    )
    if then is Then.RESTART:
        history = history.after(further, counts=failure.kind is not Kind.REGROUP, hung=failure.place)
    elif then is Then.FAIL and failure.kind is not Kind.RAISED and history.tried:
        given_up = replace(failure.fault, restarts=history.tried, max_restarts=max_restarts, repeated=again)
        failure = replace(failure, fault=given_up)
    return Verdict(failure, then, failure.exit_code or then.exit_code, history)


def may_be_cut_off(verdict: Verdict, least: int) -> bool:
    """Returns whether the lost members may be alive and continue without this agent, after a network partition.

    | kind | then | lost members | result |
    |---|---|---|---|
    | lost node | the attempt ends | enough for a round of their own | True |
    | lost node | the attempt ends | fewer | False |
    | any | the ranks restart | any | False: the directory `rounds` decides which side continues |
    | another | any | any | False: the members of the round have exchanged messages |

    least: minimum number of agents with which the run can continue.
    """
    return not verdict.restarts and verdict.failure.kind is Kind.LOST_NODE and len(verdict.failure.lost) >= least


def describe(event: Fault | Stop) -> str:
    """Returns why an attempt ended, as text for the user."""
    return f"stopped: {text.of_stop(event)}" if isinstance(event, Stop) else text.of_fault(event)

"""Decides what follows a failure: the ranks restart from the last checkpoint, or the attempt ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from launcher import errors


class Kind(str, Enum):
    """The kind of failure that ended a round."""

    KILLED = "killed"  # a rank, by a signal
    LOST_PEER = "lost peer"  # a rank failed because another one was gone
    HUNG = "hung"  # a rank did no step for too long
    RAISED = "raised"  # a rank raised an exception, or exited with any other code or before its work was done
    NO_RETRY = "no retry"  # a rank exited with code 93
    LEFT = "left"  # ranks exited with code 75, by themselves or after a stop request
    LOST_NODE = "lost node"  # an agent is gone
    REGROUP = "regroup"  # ranks exited with code 75 because a node came back


class Then(str, Enum):
    """What follows a failure."""

    RESTART = "restart"  # the ranks restart in the next round of this attempt
    FAIL = "fail"  # the attempt ends as failed
    RESUME = "resume"  # the attempt ends, and the run continues in another attempt
    NO_RETRY = "no retry"  # the attempt ends as failed, and a retry would fail, too

    @property
    def exit_code(self) -> int:
        return {Then.RESUME: errors.RESUME, Then.NO_RETRY: errors.NO_RETRY}.get(self, errors.FAILED)


@dataclass(frozen=True)
class History:
    """The rounds of an attempt so far. A round lasts from the fork of the ranks to their end."""

    round: int = 0  # index of the current round, from 0
    best: int = -1  # highest step of the run at the end of any earlier round; -1: none
    tried: int = 0  # number of restarts in a row without progress
    listened: bool = False  # whether ranks of an earlier round could resume: they listened for stop requests
    hung: str = ""  # where the last round hung (`RoundFailure.place`); empty: it did not

    def after(self, step: int, *, counts: bool = True, hung: str = "") -> History:
        """Returns the history at the start of the next round.

        counts: whether this restart counts towards max_restarts.
        hung: where this round hung; empty: it did not.
        """
        further = step > self.best
        return replace(
            self,
            round=self.round + 1,
            best=max(step, self.best),
            tried=(0 if further else self.tried) + counts,
            listened=True,
            hung=hung,
        )


def decide(
    kind: Kind,
    history: History,
    progress: bool | None,
    *,
    listens: bool,
    stopping: bool,
    enough: bool,
    max_restarts: int,
    again: bool = False,
) -> Then:
    """Returns what follows a failure. The first row that applies decides.

    | condition | then |
    |---|---|
    | exit code 93 (NO_RETRY) | no retry |
    | ranks exited with code 75 by themselves or after a stop request (LEFT) | resume |
    | ranks exited with code 75 because a node came back (REGROUP); enough nodes, no stop request | restart |
    | the rank cannot resume, or has reported that its error is final | fail |
    | an error of the program (RAISED) in a round without progress | fail: it would happen again |
    | a stop request | resume |
    | too few nodes are left | resume |
    | a hang at the same place as that of the round before (`again`), without progress | fail: it would happen again |
    | the round made progress, or fewer than max_restarts in a row did not | restart, unless max_restarts is 0 |
    | it is unknown whether the round made progress; max_restarts is not 0 | resume |
    | otherwise | fail |

    progress: whether this round got further than all earlier rounds; None: unknown.
    listens: whether the failed rank can resume: it saves and exits on a stop request. Of a lost node: any rank.
    stopping: whether the agents have got a stop request.
    enough: whether at least min_nodes are left.
    max_restarts: maximum number of restarts in a row without progress; 0: no restart after a failure.
    again: whether the ranks hung where they had hung in the round before.
    """
    if kind is Kind.NO_RETRY:
        return Then.NO_RETRY
    if kind is Kind.LEFT:
        return Then.RESUME
    if kind is Kind.REGROUP and enough and not stopping:
        return Then.RESTART
    if not listens:
        return Then.FAIL
    if kind is Kind.RAISED and progress is False:
        return Then.FAIL
    if stopping or not enough:
        return Then.RESUME
    if again and progress is False:
        return Then.FAIL
    if max_restarts and (progress or history.tried < max_restarts):
        return Then.RESTART
    return Then.RESUME if max_restarts and progress is None else Then.FAIL

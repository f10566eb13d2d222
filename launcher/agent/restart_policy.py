"""What is done about a fault: the ranks start again from the last checkpoint, or the attempt ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from launcher import errors


class Kind(str, Enum):
    """What happened."""

    KILLED = "killed"  # a rank, by a signal
    LOST_PEER = "lost peer"  # a rank failed because another one was gone
    HUNG = "hung"  # a rank did no step for too long
    RAISED = "raised"  # a rank raised an exception, or left with an exit code of its own or before its work was done
    NO_RETRY = "no retry"  # a rank left with exit code 93
    LEFT = "left"  # ranks left with exit code 75, by themselves
    LOST_NODE = "lost node"  # an agent is gone
    REGROUP = "regroup"  # ranks left with exit code 75 because a node came back


class Then(str, Enum):
    """What is done about it."""

    RESTART = "restart"  # the next round, in place
    FAIL = "fail"
    RESUME = "resume"  # the attempt ends and the run goes on in another one
    NO_RETRY = "no retry"

    @property
    def exit_code(self) -> int:
        return {Then.RESUME: errors.RESUME, Then.NO_RETRY: errors.NO_RETRY}.get(self, errors.FAILED)


@dataclass(frozen=True)
class History:
    """The rounds of an attempt so far. A round is one life of its ranks, from their fork to their end.

    Attributes:
        round: number of the round that runs, from 0.
        best: most steps of the run that were done at the end of any earlier round; -1: none.
        tried: restarts in a row that got no further.
        first: cause of the first of them.
        listened: the ranks of an earlier round could resume.
    """

    round: int = 0
    best: int = -1
    tried: int = 0
    first: str = ""
    listened: bool = False

    def after(self, cause: str, step: int, *, counts: bool = True) -> History:
        """The history when the next round begins.

        Args:
            cause: why this one ended.
            step: steps of the run that were done in this round.
            counts: the restart is one of those that max_restarts limits.
        """
        further = step > self.best
        return replace(
            self,
            round=self.round + 1,
            best=max(step, self.best),
            tried=(0 if further else self.tried) + counts,
            first=cause if further or not self.tried else self.first,
            listened=True,
        )


def decide(
    kind: Kind, history: History, step: int, *, listens: bool, stopping: bool, enough: bool, max_restarts: int
) -> Then:
    """What is done. Pure; the first line that fits counts.

    | what is seen | then |
    |---|---|
    | exit code 93 | the attempt ends with it |
    | ranks left with exit code 75 | resume; but a new round if they were asked to because a node came back |
    | the rank cannot resume, or says that its error is final | fail |
    | an error of the program in a round without progress | fail: it would come again |
    | told to stop | resume |
    | too few nodes are left | resume |
    | the round made progress, or fewer than max_restarts in a row did not | restart, unless max_restarts is 0 |
    | otherwise | fail |

    Args:
        kind: what happened.
        history: the rounds before.
        step: steps of the run that were done in this round; progress is more than in all rounds before.
        listens: the rank saves and leaves when it is told to stop, so it can resume; of a lost node, any rank.
        stopping: the agent was told to stop.
        enough: at least min_nodes are left.
        max_restarts: restarts in a row that may bring no progress; 0: none at all after a fault.
    """
    if kind is Kind.NO_RETRY:
        return Then.NO_RETRY
    if kind is Kind.LEFT:
        return Then.RESUME
    if kind is Kind.REGROUP and enough and not stopping:
        return Then.RESTART
    if not listens:
        return Then.FAIL
    progress = step > history.best
    if kind is Kind.RAISED and not progress:
        return Then.FAIL
    if stopping or not enough:
        return Then.RESUME
    if max_restarts and (progress or history.tried < max_restarts):
        return Then.RESTART
    return Then.FAIL

"""How all ranks stop, or save, after the same step: agreed on through their agents, without a collective. Pure.

Ranks count the calls of `Stop.boundary` in their process, and all call it equally often. So "boundary 120" is the same
point of the program on every rank, also where a step has several boundaries (evaluations).

1. A rank that wants something (to stop, to save) writes it into the memory that it shares with its agent.
2. Its agent sends `want` to the leading agent, with the highest boundary that any of its ranks has come to.
3. The leader proposes one boundary for all, `at`: the highest that it knows of and some more, so that ranks need not
   wait there. It sends `propose` to all agents, and each writes the proposal into the memory of its ranks.
4. A rank looks at its next boundary. If it is not beyond `at`, it accepts, and from then on does not go beyond `at`
   before it knows how the proposal ends. If it is beyond `at` already, it refuses.
5. An agent sends `agree` once: when all of its ranks have accepted, or when one has refused. A rank that was at the
   boundary `at` before it saw the proposal, and so does not answer there, has refused. One that has ended before `at`,
   or will come to no boundary any more (`Stop.close`), counts as one that has accepted.
6. When all agents have accepted, the leader sends `commit`: all ranks act at the boundary `at`. After a refusal it
   proposes a later boundary instead, with twice the margin; ranks that wait for the old one go on.

| message | from | says |
|---|---|---|
| `want` | agent | what its ranks want: `cause`, `rank`, `save`; their `boundary`, and seconds of a step: `step_time` |
| `propose` | leader | `number`, boundary `at`, and what to do there: `cause`, `rank`, `save` |
| `agree` | agent | whether its ranks have `accepted` the proposal `number`; the highest `boundary` of them |
| `commit` | leader | the proposal `number` is to be carried out |

Why all act at the same boundary: a proposal is carried out only if no rank has refused it, so every rank has accepted
it at `at` or before, and waits there for the commit if that has not come yet.

Why nobody waits for ever: a rank that waits at `at` has done all that comes before it, so every rank gets as far as
`at`, or closes. It accepts there or before; or it went on from there before it saw the proposal, and may be in a
collective with those that wait. Its agent sees by its boundary that it has, and refuses in its name. A rank that hangs
before is found by its silence.

Why nothing that is wanted is lost: the leader keeps what was wanted until a proposal that contains it is carried out.
An agent does not send what an open proposal contains. It shows its ranks the next proposal only when all of them have
acted upon the last one that is to be carried out; what a rank wants after that is new.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

ROUND_TRIP = 0.05  # seconds from a proposal to its commit, which ranks spend with steps
MOST_AHEAD = 16  # boundaries between the highest known one and the first that is proposed; steps may become longer

Message = Mapping[str, Any]


class Cause(IntEnum):
    """Why to stop; of several the highest is given as the reason."""

    NONE = 0
    DEADLINE = 1
    WARNING = 2
    FILE = 3
    TERM = 4


@dataclass(frozen=True)
class Want:
    """What one or several ranks want to be done at a boundary.

    Attributes:
        cause: why to stop; NONE: no stop.
        rank: that has this cause; of several the lowest. 0 where there is no cause.
        save: a save.
    """

    cause: Cause = Cause.NONE
    rank: int = 0
    save: bool = False

    def __bool__(self) -> bool:
        return self.cause is not Cause.NONE or self.save

    def without(self, served: Want) -> Want:
        """What is left to do when something has been done. Any stop is as good as any other."""
        stop = self.cause if served.cause is Cause.NONE else Cause.NONE
        return Want(stop, self.rank if stop else 0, self.save and not served.save)


def joined(wants: Iterable[Want]) -> Want:
    """All of them in one."""
    wants = list(wants)
    cause = max((want.cause for want in wants), default=Cause.NONE)
    rank = min(want.rank for want in wants if want.cause is cause) if cause else 0
    return Want(cause, rank, any(want.save for want in wants))


@dataclass(frozen=True)
class Proposal:
    """What all ranks are to do at one boundary, if all agree.

    Attributes:
        number: of the proposal, from 1.
        at: the boundary.
        want: what is to be done there.
    """

    number: int
    at: int
    want: Want


@dataclass(frozen=True)
class RankState:
    """What a rank tells its agent.

    Attributes:
        boundary: how many boundaries it has come to.
        closed: it comes to no more, unless it says so again.
        cause, save: what it wants.
        acted: number of the last proposal that it has carried out.
        answered: number of the last proposal that it has answered.
        accepted: the answer.
        step_time: seconds of a step; 0: not known yet.
    """

    boundary: int = 0
    closed: bool = False
    cause: Cause = Cause.NONE
    save: bool = False
    acted: int = 0
    answered: int = 0
    accepted: bool = False
    step_time: float = 0.0


# -- a rank


class Then(Enum):
    """What a rank does at a boundary."""

    GO_ON = "go on"
    REFUSE = "refuse"  # and go on
    ACCEPT = "accept"  # and go on
    WAIT = "wait"  # having accepted, until the proposal is committed or replaced
    ACT = "act"


def decide(boundary: int, acted: int, proposal: Proposal | None, committed: int) -> Then:
    """What a rank does at a boundary. Pure.

    | proposal | its boundary | then |
    |---|---|---|
    | there is none, or the rank has acted upon it | | go on |
    | any other | passed | refuse |
    | any other | still to come | accept |
    | any other | this one | wait; once it is committed, act |

    Args:
        boundary: at which the rank is.
        acted: number of the last proposal that it has carried out.
        proposal: the newest.
        committed: number of the last proposal that was committed.
    """
    if proposal is None or proposal.number == acted:
        return Then.GO_ON
    if proposal.at < boundary:
        return Then.REFUSE
    if proposal.at > boundary:
        return Then.ACCEPT
    return Then.ACT if committed == proposal.number else Then.WAIT


# -- an agent


def answer(rank: RankState, proposal: Proposal) -> bool | None:
    """Whether a rank accepts a proposal that it was shown; None: it has yet to come to a boundary. Pure.

    | it has answered | its boundary | accepts |
    |---|---|---|
    | yes | | as it says |
    | no | before the proposed one | not known yet |
    | no | the proposed one, or beyond | no: it was there before it was shown the proposal |
    """
    if rank.answered == proposal.number:
        return rank.accepted
    return False if rank.boundary >= proposal.at else None


class AgentSide:
    """One agent in one round: between its ranks and the leader.

    Attributes:
        proposal, committed: what the ranks are to be shown after each `look`.
    """

    def __init__(self, first_rank: int) -> None:
        """
        Args:
            first_rank: the lowest of this agent's.
        """
        self.proposal: Proposal | None = None
        self.committed = 0
        self._first_rank = first_rank
        self._answered = 0
        self._next: deque[Message] = deque()  # what the leader has sent and the ranks have not been shown
        self._sent = Want()

    @property
    def waits(self) -> bool:
        """Whether something is to be done as soon as the ranks have come to their next boundary."""
        return bool(self._next) or (self.proposal is not None and self._answered != self.proposal.number)

    def receive(self, message: Message) -> None:
        """The leader has sent `propose` or `commit`."""
        self._next.append(message)

    def look(self, ranks: Sequence[RankState], ended: Collection[int] = ()) -> list[Message]:
        """Takes in what the ranks have written; what is to be sent to the leader.

        Args:
            ranks: each of this agent's, in order.
            ended: places of those whose process has ended.
        """
        here = {place: rank for place, rank in enumerate(ranks) if place not in ended and not rank.closed}
        highest = max((rank.boundary for rank in ranks), default=0)
        # The ranks were shown the proposal after the last look. A rank that was closed then and is closed now will see
        # it before its next boundary, if it comes to one.
        messages = self._answer(ranks, here, highest)
        while self._next and self._may_show(self._next[0], here):
            self._show(self._next.popleft())
        wants = self._wants(here)
        if wants and wants != self._sent:
            times = [rank.step_time for rank in here.values() if rank.step_time > 0]
            step_time = min(times, default=0.0)
            messages.append({"type": "want", **_fields(wants), "boundary": highest, "step_time": step_time})
        self._sent = wants
        return messages

    def _answer(self, ranks: Sequence[RankState], here: Collection[int], highest: int) -> list[Message]:
        proposal = self.proposal
        if proposal is None or self._answered == proposal.number:
            return []
        answers = [answer(rank, proposal) for rank in ranks]
        accepted = False not in answers
        if accepted and any(answers[place] is None for place in here):
            return []
        self._answered = proposal.number
        return [{"type": "agree", "number": proposal.number, "accepted": accepted, "boundary": highest}]

    def _may_show(self, message: Message, here: Mapping[int, RankState]) -> bool:
        """A proposal must not take the place of one that is to be carried out and has not been, on every rank."""
        current = self.proposal
        if message["type"] == "commit" or current is None or self.committed != current.number:
            return True
        return all(rank.acted == current.number for rank in here.values())

    def _show(self, message: Message) -> None:
        if message["type"] == "commit":
            self.committed = int(message["number"])
        else:
            self.proposal = Proposal(int(message["number"]), int(message["at"]), want_of(message))

    def _wants(self, here: Mapping[int, RankState]) -> Want:
        """What the ranks want and no proposal contains that they have yet to carry out."""
        current = self.proposal
        wants = []
        for place, rank in here.items():
            want = Want(rank.cause, self._first_rank + place if rank.cause else 0, rank.save)
            if current is not None and rank.acted != current.number:
                want = want.without(current.want)
            for message in self._next:
                want = want.without(want_of(message)) if message["type"] == "propose" else want
            wants.append(want)
        return joined(wants)


# -- the leader


class LeaderSide:
    """The leading agent in one round. Each method returns what is to be sent to all agents of the round."""

    def __init__(self, agents: Iterable[int]) -> None:
        """
        Args:
            agents: all of the round.
        """
        self._wants = {index: Want() for index in agents}
        self._awaited = set(self._wants)  # agents whose ranks may still come to a boundary
        self._accepted: set[int] = set()
        self._open: Proposal | None = None
        self._number = 0
        self._highest = 0  # boundary that any rank is known to have come to, or was to act at
        self._step_time = 0.0
        self._margin = 1

    def receive(self, index: int, message: Message) -> list[Message]:
        """An agent has sent `want` or `agree`."""
        self._highest = max(self._highest, int(message["boundary"]))
        if message["type"] == "want":
            self._wants[index] = want_of(message)
            self._step_time = float(message["step_time"])
            return self._begin() if self._open is None else []
        if self._open is None or message["number"] != self._open.number:
            return []
        if not message["accepted"]:
            self._margin *= 2
            return self._propose(joined([self._open.want, *self._wants.values()]))
        self._accepted.add(index)
        return self._finish()

    def leave(self, index: int) -> list[Message]:
        """No rank of this agent will come to a boundary any more."""
        self._awaited.discard(index)
        self._wants.pop(index, None)
        return self._finish()

    def _begin(self) -> list[Message]:
        """Proposes what is wanted, if anything is."""
        wanted = joined(self._wants.values())
        self._margin = margin(self._step_time)
        return self._propose(wanted) if wanted else []

    def _propose(self, want: Want) -> list[Message]:
        self._number += 1
        self._highest += self._margin
        self._open, self._accepted = Proposal(self._number, self._highest, want), set()
        return [{"type": "propose", "number": self._number, "at": self._highest, **_fields(want)}]

    def _finish(self) -> list[Message]:
        done = self._open
        if done is None or not self._awaited <= self._accepted:
            return []
        self._open = None
        self._wants = {index: want.without(done.want) for index, want in self._wants.items()}
        return [{"type": "commit", "number": done.number}, *self._begin()]


def margin(step_time: float) -> int:
    """Boundaries from the highest one that is known to the one that is proposed. Pure.

    Ranks spend ROUND_TRIP with as many steps as it takes. Where one step takes longer than that, the next boundary is
    proposed, and the ranks wait there a little: that is sooner than one more step.

    Args:
        step_time: seconds; 0: not known.
    """
    return max(1, min(math.ceil(ROUND_TRIP / step_time), MOST_AHEAD)) if step_time > 0 else 1


def want_of(message: Message) -> Want:
    """What a message says is wanted."""
    return Want(Cause(int(message["cause"])), int(message["rank"]), bool(message["save"]))


def _fields(want: Want) -> dict[str, Any]:
    return {"cause": int(want.cause), "rank": want.rank, "save": want.save}

"""The agreement of all ranks on the step after which they stop or save: through their agents, without a collective.

Ranks and their agent share words in memory (see `heartbeat`). These are aligned and of 8 bytes, each written by one
side only and in one piece, so that no read is torn. Values that belong together share a word, or are in words that
carry the same proposal number.

| word of the agent | bits, from the highest |
|---|---|
| 0 | number of ranks of all agents |
| 1 | number of the proposal (24), boundary at which to act (40) |
| 2 | the same number (24), cause (3), save (1), rank (36) |
| 3 | number of the last committed proposal |

| word of a rank | bits, from the highest |
|---|---|
| 0 | number of boundaries that it has reached |
| 1 | number of the last proposal that it has carried out (24); from the lowest bit: save (1), cause (3), closed (1) |
| 2 | number of the last proposal that it has answered (24); lowest bit: accepted (1) |
| 3 | nanoseconds of a step |
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum, IntEnum
from typing import Any

WORD = 8  # bytes
AGENT = RANK = 4 * WORD  # bytes of the agent's words, and of a rank's words
_NUMBER, _RANK = 40, 36  # position of the lowest bit of a proposal's number; number of bits of a rank
_BOUNDARIES = (1 << _NUMBER) - 1
_RANKS = (1 << _RANK) - 1

# Each rank counts its calls of `StopFlag.boundary`. Until a rank ends or closes (`StopFlag.leave`), it makes the same
# calls as all others, so "boundary 120" is the same point of the program on every rank.
#
# 1. A rank that wants to stop or to save writes this into the memory that it shares with its agent.
# 2. Its agent sends `want` to the leading agent, with the highest boundary that any of its ranks has reached.
# 3. The leader proposes one boundary for all ranks, `at`: the highest boundary that it knows of plus a margin, so that
#    ranks need not wait there. It numbers the proposal, and sends it as `propose` to all agents. Each agent writes the
#    proposal into the memory of its ranks.
# 4. A rank reads the proposal at its next boundary. If that boundary is not beyond `at`, the rank accepts, and does not
#    pass `at` before it knows the outcome of the proposal. If the boundary is beyond `at`, the rank refuses.
# 5. An agent sends `agree` once: when all of its ranks have accepted, or when one has refused. A rank that had reached
#    `at` before it saw the proposal, and so does not answer there, counts as refusing. A rank that has ended or closed
#    before `at` counts as accepting.
# 6. When all agents have accepted, the leader sends `commit`: all ranks act at the boundary `at`. After a refusal it
#    proposes a later boundary instead, with twice the margin; ranks that wait at the old boundary continue.
#
# | message | from | content |
# |---|---|---|
# | `want` | agent | what its ranks want: `cause`, `rank`, `save`; their highest `boundary`; `step_time` in seconds |
# | `propose` | leader | `number` of the proposal, boundary `at`, and what to do there: `cause`, `rank`, `save` |
# | `agree` | agent | whether its ranks have `accepted` the proposal `number`; their highest `boundary` |
# | `commit` | leader | `number` of the proposal that all ranks are to carry out |
#
# Why all ranks act at the same boundary: a proposal is committed only if no rank has refused it. So every rank that
# reaches `at` has accepted, and waits there for the commit.
#
# Why there is no deadlock: a rank that waits at `at` has done everything before it, so every other rank reaches `at`,
# or closes. It accepts by then; or it has passed `at` before it saw the proposal, which its agent sees from its
# boundary, and refuses for it. A rank that hangs before `at` is found by the detection of hangs.
#
# Why no request is lost: the leader keeps what ranks want until a proposal that contains it is committed. An agent does
# not send again what an open proposal contains. It shows its ranks the next proposal only when all of them have acted
# on the last committed one, so what a rank wants after acting is a new request.


ROUND_TRIP = 0.05  # seconds from a proposal to its commit, during which ranks continue
MOST_AHEAD = 16  # most boundaries from the highest known one to the first proposed one; steps may become longer

Message = Mapping[str, Any]


class Cause(IntEnum):
    """Cause of a stop, from the least to the most important: of several causes the highest becomes the stop reason."""

    NONE = 0
    DEADLINE = 1
    WARNING = 2
    FILE = 3
    TERM = 4


@dataclass(frozen=True)
class Want:
    """What one or several ranks want to do at a boundary. False in a condition if they want nothing."""

    cause: Cause = Cause.NONE  # cause of the stop; NONE: no stop
    rank: int = 0  # the lowest rank with this cause; 0 if the cause is NONE
    save: bool = False  # whether to save

    def __bool__(self) -> bool:
        return self.cause is not Cause.NONE or self.save

    def without(self, served: Want) -> Want:
        """Returns what is left to do after the ranks have done `served`. A stop for any cause satisfies all causes."""
        stop = self.cause if served.cause is Cause.NONE else Cause.NONE
        return Want(stop, self.rank if stop else 0, self.save and not served.save)


def joined(wants: Iterable[Want]) -> Want:
    """Returns several wants as one: the highest cause with its lowest rank, and a save if any has one."""
    wants = list(wants)
    cause = max((want.cause for want in wants), default=Cause.NONE)
    rank = min(want.rank for want in wants if want.cause is cause) if cause else 0
    return Want(cause, rank, any(want.save for want in wants))


@dataclass(frozen=True)
class Proposal:
    number: int  # number of the proposal in this round, from 1
    at: int  # the boundary, as a count of calls of `StopFlag.boundary`
    want: Want  # what to do at the boundary


@dataclass(frozen=True)
class RankState:
    boundary: int = 0  # number of boundaries that the rank has reached
    closed: bool = False  # whether the rank has no more boundaries. cause, save: what the rank wants
    cause: Cause = Cause.NONE
    save: bool = False
    acted: int = 0  # number of the last proposal that the rank has carried out; 0: none
    answered: int = 0  # number of the last one that it has answered, and whether it has accepted that
    accepted: bool = False
    step_time: float = 0.0  # seconds of a step; 0 if unknown


class BoundaryAction(Enum):
    CONTINUE = "continue"
    REFUSE = "refuse"  # and continue
    ACCEPT = "accept"  # and continue
    WAIT = "wait"  # accept the proposal, and wait until it is committed or replaced
    ACT = "act"  # carry out the proposal


def decide(boundary: int, acted: int, proposal: Proposal | None, committed: int) -> BoundaryAction:
    """Returns what a rank does at a boundary.

    | newest proposal | its boundary | result |
    |---|---|---|
    | none, or the rank has carried it out | | continue |
    | any other | before this boundary | refuse |
    | any other | after this boundary | accept |
    | any other | this boundary | act if the proposal is committed, else wait |
    """
    if proposal is None or proposal.number == acted:
        return BoundaryAction.CONTINUE
    if proposal.at < boundary:
        return BoundaryAction.REFUSE
    if proposal.at > boundary:
        return BoundaryAction.ACCEPT
    return BoundaryAction.ACT if committed == proposal.number else BoundaryAction.WAIT


def answer(rank: RankState, proposal: Proposal) -> bool | None:
    """Returns whether a rank accepts the proposal that its agent has shown it; None: the rank may still answer."""
    if rank.answered == proposal.number:
        return rank.accepted
    return False if rank.boundary >= proposal.at else None  # it got there before it was shown the proposal


class AgentSide:
    """The agreement in one agent, during one round: between its ranks and the leader."""

    def __init__(self, first_rank: int) -> None:
        self.proposal: Proposal | None = None  # to be shown to the ranks after each `look`, as `committed`
        self.committed = 0  # number of a proposal; 0: none
        self._first_rank = first_rank
        self._answered = 0
        self._next: deque[Message] = deque()  # messages of the leader that were not shown to the ranks yet
        self._sent = Want()

    @property
    def waits(self) -> bool:
        """Whether the agent must call `look` again soon."""
        return bool(self._next) or (self.proposal is not None and self._answered != self.proposal.number)

    def receive(self, message: Message) -> None:
        """Queues a `propose` or `commit` message of the leader, which the next call of `look` handles."""
        self._next.append(message)

    def look(self, ranks: Sequence[RankState], ended: Collection[int] = ()) -> list[Message]:
        """Returns the `want` and `agree` messages to the leader; ended: local indices of ranks without a process."""
        here = {place: rank for place, rank in enumerate(ranks) if place not in ended and not rank.closed}
        highest = max((rank.boundary for rank in ranks), default=0)
        # The ranks were shown the proposal after the last look. A rank that is closed will see it before its next
        # boundary, if it reopens.
        messages = self._answer(ranks, here, highest)
        while self._next and self._may_show(self._next[0], here):
            self._show(self._next.popleft())
        wants = self._wants(here)
        if wants and wants != self._sent:
            times = [rank.step_time for rank in here.values() if rank.step_time > 0]
            step_time = min(times, default=0.0)
            messages.append({"type": "want", **asdict(wants), "boundary": highest, "step_time": step_time})
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
        # A new proposal must not replace a committed one before all ranks have carried that out
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


class LeaderSide:
    """The agreement in the leading agent, during one round. Methods return messages to send to all agents."""

    def __init__(self, agents: Iterable[int]) -> None:
        self._wants = {index: Want() for index in agents}
        self._awaited = set(self._wants)  # agents whose ranks may still have boundaries
        self._accepted: set[int] = set()
        self._open: Proposal | None = None
        self._number = 0
        self._highest = 0  # highest boundary that any rank has reached, or that was proposed
        self._step_time = 0.0
        self._margin = 1

    def receive(self, index: int, message: Message) -> list[Message]:
        """Handles an agent's `want` or `agree`, by the module's table; returns what to send to all agents."""
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
        """Records that no rank of an agent will reach another boundary; returns what to send to all agents."""
        self._awaited.discard(index)
        self._wants.pop(index, None)
        return self._finish()

    def _begin(self) -> list[Message]:
        wanted = joined(self._wants.values())
        self._margin = margin(self._step_time)
        return self._propose(wanted) if wanted else []

    def _propose(self, want: Want) -> list[Message]:
        self._number += 1
        self._highest += self._margin
        self._open, self._accepted = Proposal(self._number, self._highest, want), set()
        return [{"type": "propose", "number": self._number, "at": self._highest, **asdict(want)}]

    def _finish(self) -> list[Message]:
        done = self._open
        if done is None or not self._awaited <= self._accepted:
            return []
        self._open = None
        self._wants = {index: want.without(done.want) for index, want in self._wants.items()}
        return [{"type": "commit", "number": done.number}, *self._begin()]


def margin(step_time: float) -> int:
    """Returns how many boundaries after the highest known one to propose: as many as ranks reach during ROUND_TRIP."""
    return max(1, min(math.ceil(ROUND_TRIP / step_time), MOST_AHEAD)) if step_time > 0 else 1


def want_of(message: Message) -> Want:
    return Want(Cause(int(message["cause"])), int(message["rank"]), bool(message["save"]))


class AgentWords:
    """The memory words that an agent writes (`clear`, `show`) and its ranks read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._words = memoryview(memory)[:AGENT].cast("Q")

    def clear(self, world_size: int) -> None:
        for index, word in enumerate((world_size, 0, 0, 0)):
            self._words[index] = word

    @property
    def world_size(self) -> int:
        """Number of ranks of all agents; 0 if they do not agree on stops through their agents."""
        return self._words[0]

    def show(self, proposal: Proposal | None, committed: int) -> None:
        """Shows the newest proposal to stop or save, if any, and the number (0: none) of the last committed one."""
        if proposal is not None:
            number, want = proposal.number << _NUMBER, proposal.want
            self._words[2] = number | want.cause << _RANK + 1 | want.save << _RANK | want.rank
            self._words[1] = number | proposal.at
        self._words[3] = committed

    def proposal(self) -> tuple[Proposal | None, int] | None:
        """Returns what `show` was given; None: it is being written, read again."""
        committed, first, second = self._words[3], self._words[1], self._words[2]
        number = first >> _NUMBER
        if second >> _NUMBER != number:
            return None
        if number == 0:
            return None, committed
        cause = Cause(second >> _RANK + 1 & 7)
        want = Want(cause, second & _RANKS, bool(second >> _RANK & 1))
        return Proposal(number, first & _BOUNDARIES, want), committed


class RankWords:
    """The memory words in which a rank shows its agent its state."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._words = memoryview(memory)[offset : offset + RANK].cast("Q")

    def write(self, state: RankState) -> None:
        words = self._words
        words[0] = state.boundary
        words[1] = state.acted << _NUMBER | state.closed << 4 | state.cause << 1 | state.save
        words[2] = state.answered << _NUMBER | state.accepted
        words[3] = int(state.step_time * 1e9)

    def read(self) -> RankState:
        boundary, wanted, answer, step_time = self._words
        return RankState(
            boundary=boundary, closed=bool(wanted >> 4 & 1), cause=Cause(wanted >> 1 & 7), save=bool(wanted & 1),
            acted=wanted >> _NUMBER, answered=answer >> _NUMBER, accepted=bool(answer & 1), step_time=step_time / 1e9,
        )  # fmt: skip

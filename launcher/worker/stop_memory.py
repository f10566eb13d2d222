"""Layout of the memory that ranks and their agent share for the agreement on stops (`launcher.worker.stop_agreement`).

All fields are aligned words of 8 bytes, each written by one side only and in one piece, so that no read is torn. Values
that belong together share a word, or are in words that carry the same proposal number.

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

import mmap

from launcher.worker.stop_agreement import Cause, Proposal, RankState, Want

WORD = 8  # bytes
AGENT = RANK = 4 * WORD  # bytes of the agent's words, and of a rank's words
_NUMBER, _RANK = 40, 36  # position of the lowest bit of a proposal's number; number of bits of a rank
_BOUNDARIES = (1 << _NUMBER) - 1
_RANKS = (1 << _RANK) - 1


class AgentWords:
    """The memory words that an agent writes and its ranks read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._words = memoryview(memory)[:AGENT].cast("Q")

    def clear(self, world_size: int = 0) -> None:
        """For the agent: resets all words, the first to `world_size`."""
        for index, word in enumerate((0, 0, 0, 0)):
            self._words[index] = word
        self._words[0] = world_size

    @property
    def world_size(self) -> int:
        """Number of ranks of all agents; 0 if they do not agree on stops through their agents."""
        return self._words[0]

    def show(self, proposal: Proposal | None, committed: int) -> None:
        """For the agent: shows its ranks the newest proposal (None: none yet), and the last committed one's number."""
        if proposal is not None:
            number, want = proposal.number << _NUMBER, proposal.want
            self._words[2] = number | want.cause << _RANK + 1 | want.save << _RANK | want.rank
            self._words[1] = number | proposal.at
        self._words[3] = committed

    def proposal(self) -> tuple[Proposal | None, int] | None:
        """For a rank: reads the newest proposal (None if there was none yet) and the number of the last committed one.

        Returns None instead of both if the agent was just writing: read again.
        """
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
    """The memory words that a rank writes and its agent reads."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        """offset: position of these words in it, in bytes."""
        self._words = memoryview(memory)[offset : offset + RANK].cast("Q")

    def write(self, state: RankState) -> None:
        """For the rank: shows the agent its state."""
        words = self._words
        words[0] = state.boundary
        words[1] = state.acted << _NUMBER | state.closed << 4 | state.cause << 1 | state.save
        words[2] = state.answered << _NUMBER | state.accepted
        words[3] = int(state.step_time * 1e9)

    def read(self) -> RankState:
        """For the agent: returns the last state that the rank has written."""
        boundary, wanted, answer, step_time = self._words
        return RankState(
            boundary=boundary,
            closed=bool(wanted >> 4 & 1),
            cause=Cause(wanted >> 1 & 7),
            save=bool(wanted & 1),
            acted=wanted >> _NUMBER,
            answered=answer >> _NUMBER,
            accepted=bool(answer & 1),
            step_time=step_time / 1e9,
        )

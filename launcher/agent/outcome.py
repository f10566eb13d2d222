"""How a round or an attempt ends for one agent, as types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.agent.restart_policy import History
from launcher.agent.verdicts import describe
from launcher.runs.events import Fault, Stop


class AttemptFailed(Exception):
    """The attempt ended before its work was done. The text of the exception is the cause, for the user.

    event: the cause.
    exit_code: exit code of the agent, from which the job script decides whether the run continues.
    ours: whether this agent saw the cause first, so that it is the one that prints it.
    decides: whether the exit code is also the attempt's. False for an agent that the others may continue without.
    suspended: an event that is not written yet, because the lost members may be continuing without this agent (see
        `verdicts.may_be_cut_off`); to be written if they do not. None: no such event.
    """

    def __init__(
        self, event: Fault | Stop, exit_code: int = errors.FAILED, *, ours: bool = True, decides: bool = False,
        suspended: Fault | None = None,
    ) -> None:  # fmt: skip
        super().__init__(describe(event))
        self.event = event
        self.exit_code = exit_code
        self.ours = ours
        self.decides = decides
        self.suspended = suspended


@dataclass(frozen=True)
class Done:
    """All ranks have done their work."""

    metrics: dict[str, Any]  # metrics that the first rank of this agent has returned


@dataclass(frozen=True)
class NextRound:
    """The ranks restart in a new round."""

    history: History  # the rounds so far; `history.round` is the index of the new round
    lost: tuple[int, ...] = ()  # member indices of the agents that are gone

"""How a round of an agent's ranks, or its attempt, ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.agent.restart_policy import History
from launcher.agent.verdicts import describe
from launcher.runs.events import Fault, Stop


class AttemptFailed(Exception):
    """The attempt ended early. Its text is the cause, for the user.

    Attributes:
        event: the cause.
        exit_code: what the job script decides by.
        ours: whether this agent saw it first, and so is the one that prints it.
        decides: whether the exit code is that of the attempt. That of an agent without a rendezvous is not: the others
            may continue.
        suspended: set if the lost members may continue without this agent (see `verdicts.may_be_cut_off`): the event
            to write if they do not.
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
    """All ranks have done their work.

    Attributes:
        metrics: metrics of the first rank of this agent.
    """

    metrics: dict[str, Any]


@dataclass(frozen=True)
class NextRound:
    """The ranks restart.

    Attributes:
        history: the rounds so far, at the start of the next one.
        lost: indices of members that are gone.
    """

    history: History
    lost: tuple[int, ...] = ()

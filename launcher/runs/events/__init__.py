"""The kinds of events, one dataclass each. Files are written from these classes, and checked against them when read.

An event is invalid if a required field is missing or has another type (`event_file.problems`). Unknown fields, codes
and kinds, of a newer version, are valid. Code that reads many events uses the dicts (`progress`, `pace`); code that
acts on a single one uses its class (`every`, `first`, `last`). A file is read with the kinds of all modules, so this
package imports them all:

- `journal`: submissions and cancellations, in the journals of runs and sweeps
- `attempts`: what the script, the agents and the ranks of an attempt report
- `failures`: faults, stops, and how the run continues
- `slot_managers`: points that run in pilots
- `reading`: the first, the last or all events of a kind
"""

from __future__ import annotations

from launcher.runs.events.attempts import (
    AttachRequest,
    Awaited,
    Bound,
    BoundRank,
    Breakpoint,
    CheckEnded,
    ConditionsMet,
    Continued,
    Ended,
    Evaluated,
    Finding,
    Finished,
    Met,
    NodeChecked,
    Pace,
    PassedOver,
    Place,
    Preflighted,
    Progress,
    Resized,
    Saved,
    SaveFailed,
    SlowRank,
    Started,
)
from launcher.runs.events.failures import (
    Accused,
    AgentCount,
    BlockedCollective,
    Continues,
    Fault,
    Hang,
    HostSignal,
    PreflightFailure,
    Restart,
    SetupFailed,
    StartLimit,
    Stays,
    Stop,
    Stopped,
    StopRequested,
)
from launcher.runs.events.journal import CancelFailed, Cancelled, ProcessStarted, Pruned, Refused, Submitted, Submitting
from launcher.runs.events.reading import as_kind, every, first, first_fault, last
from launcher.runs.events.slot_managers import (
    GroupBroken,
    ManagerBegan,
    ManagerEnded,
    ManagerIdle,
    NodeLeftOut,
    PartEnded,
    PointBegan,
    PointEnded,
)

__all__ = [
    "Accused",
    "AgentCount",
    "AttachRequest",
    "Awaited",
    "BlockedCollective",
    "Bound",
    "BoundRank",
    "Breakpoint",
    "CancelFailed",
    "Cancelled",
    "CheckEnded",
    "ConditionsMet",
    "Continued",
    "Continues",
    "Ended",
    "Evaluated",
    "Fault",
    "Finding",
    "Finished",
    "GroupBroken",
    "Hang",
    "HostSignal",
    "ManagerBegan",
    "ManagerEnded",
    "ManagerIdle",
    "Met",
    "NodeChecked",
    "NodeLeftOut",
    "Pace",
    "PartEnded",
    "PassedOver",
    "Place",
    "PointBegan",
    "PointEnded",
    "PreflightFailure",
    "Preflighted",
    "ProcessStarted",
    "Progress",
    "Pruned",
    "Refused",
    "Resized",
    "Restart",
    "SaveFailed",
    "Saved",
    "SetupFailed",
    "SlowRank",
    "StartLimit",
    "Started",
    "Stays",
    "Stop",
    "StopRequested",
    "Stopped",
    "Submitted",
    "Submitting",
    "as_kind",
    "every",
    "first",
    "first_fault",
    "last",
]

"""The kinds of events, one dataclass each. Event files are written from these classes, and checked against them.

An event is invalid if a required field is missing or has another type (`event_file.problems`). Unknown fields, codes
and kinds, which a newer version may have written, are valid. Events are read as dicts; `every`, `first` and `last`
convert those of one kind to its class, and code that reads many events (`progress`, `pace`) uses the dicts. This
package imports all its modules, because any file may contain any kind:

- `journal`: submissions and cancellations, in the journals of runs and sweeps
- `attempts`: events of an attempt's script, agents and ranks: rendezvous, progress, checkpoints, binding
- `preflights`: events of a preflight: the observations of its checks, bad nodes, the result
- `failures`: faults, restarts and stops of an attempt, and how the run continues
- `slot_managers`: events of slot managers, which run points in pilots
- `reading`: finds the first, the last or all events of a kind
"""

from __future__ import annotations

from launcher.runs.events.attempts import (
    AttachRequest,
    Awaited,
    Bound,
    BoundRank,
    Breakpoint,
    ConditionsMet,
    Continued,
    Ended,
    Evaluated,
    Finished,
    GpusUnused,
    Met,
    Pace,
    PassedOver,
    Place,
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
from launcher.runs.events.preflights import CheckEnded, Fabric, Finding, Mismatch, NodeChecked, Observation, Preflighted
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
    "Fabric",
    "Fault",
    "Finding",
    "Finished",
    "GpusUnused",
    "GroupBroken",
    "Hang",
    "HostSignal",
    "ManagerBegan",
    "ManagerEnded",
    "ManagerIdle",
    "Met",
    "Mismatch",
    "NodeChecked",
    "NodeLeftOut",
    "Observation",
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

"""Explains the messages of Grid Engine about a pending job. Pure.

The messages are those of Son of Grid Engine 8.1.9 (msg_schedd.h); older and Univa's have the same or more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The kind of a reason: it decides what else is looked at, and whether a change of the run could help."""

    ROOM = "room"  # too little is free, or what is free does not fit
    LIMIT = "limit"  # a quota, or a limit of the site
    WAITS = "waits"
    THROTTLED = "throttled"  # as many elements of its array run as may
    HELD = "held"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reason:
    """A reason in words; `{job}` in `do` stands for the job's id. `never`: it cannot start as it is."""

    kind: Kind
    words: str
    do: str = ""
    never: bool = False


CHANGE = "cancel it, and resume it with less, or in another queue"
ENDS = "it starts when others end"
# Patterns of whole messages, from those that hold for the whole job to those of one queue on one host.
TABLE: tuple[tuple[str, Kind, str, str], ...] = (
    (r"Job is in error state", Kind.HELD, "its start has failed", "`qmod -cj {job}` lets it be tried once more"),
    (r"Job is in hold state", Kind.HELD, "it is held", "`qrls {job}` lets it go on"),
    (r"job dropped because of job dependencies", Kind.WAITS, "it waits for other jobs",
     "it starts when they have ended"),
    (r"execution time not reached", Kind.WAITS, "it was asked to begin later", ""),
    (r"not all array tasks may be started due to 'max_aj_instances'", Kind.THROTTLED,
     "as many elements of its array run as may run at once (sweep.parallelism, or max_aj_instances of the site)",
     "it starts when one of them ends"),
    (r"job dropped because of user limitations", Kind.LIMIT, "as many of your jobs run as may run at once (maxujobs)",
     "it starts when one of them ends"),
    (r'.*cannot run because it exceeds limit "(?P<who>[^"]*)" in rule "(?P<what>[^"]*)"', Kind.LIMIT,
     "a resource quota is used up: rule {what}", "it starts when jobs that count in it end; `qquota` shows them"),
    (r'cannot run in PE "(?P<what>[^"]*)" because it only offers (?P<more>\d+) slots', Kind.ROOM,
     "parallel environment {what} has {more} slots for it", ENDS),
    (r'.*cannot run at host "(?P<what>[^"]*)" because it offers only (?P<more>.*)', Kind.ROOM,
     "{what} offers only {more}", ENDS),
    (r'.*cannot run in queue "(?P<what>[^"]*)" because it offers only (?P<more>.*)', Kind.ROOM,
     "queue {what} offers only {more}", ENDS),
    (r'.*cannot run (globally )?because (it offers only )?(?P<more>.*)', Kind.ROOM, "it cannot run: {more}", ENDS),
    (r'cannot run on host "(?P<what>[^"]*)" until clean up of an? previous run has finished', Kind.ROOM,
     "{what} has not reported the end of its earlier run, and may never",
     "cancel it, and resume it: a new job does not wait for that"),
    (r'queue instance "(?P<what>[^"]*)" dropped because it is (?P<more>.*)', Kind.ROOM, "{what} is {more}", ""),
    (r"All queues dropped because of overload or full", Kind.ROOM, "all queues are full", ENDS),
    (r'has no permission for (cluster queue|queue|host|parallel environment) "?(?P<what>[^"]*)"?', Kind.LIMIT,
     "you may not use {what}", "use another queue (cluster.queue)"),
    (r'cannot run in (cluster )?queue "?(?P<what>[^" ]*)"? because (?P<more>.*)', Kind.ROOM, "{what}: {more}", ""),
)  # fmt: skip
# Reasons of the whole job come before those of one host.
RANK = {Kind.HELD: 0, Kind.WAITS: 1, Kind.THROTTLED: 2, Kind.LIMIT: 3, Kind.ROOM: 4, Kind.UNKNOWN: 5}


def in_words(message: str) -> Reason:
    """Explains one message; an unknown one is returned as it is."""
    plain = re.sub(r"^Job \d+ (\(-l [^)]*\) )?", "", " ".join(message.split()))
    for pattern, kind, words, do in TABLE:
        if match := re.fullmatch(pattern, plain):
            names = {key: value or "" for key, value in match.groupdict().items()}
            return Reason(kind, words.format_map({"what": "", "more": "", **names}), do)
    return Reason(Kind.UNKNOWN, f"Grid Engine says: {plain}")


def of_all(messages: Sequence[str], *, never: bool) -> Reason:
    """Returns the reason why a job is pending, from all messages about it.

    Args:
        messages: of the scheduler.
        never: not even with all else gone it could run (qalter -w v).
    """
    found = sorted(map(in_words, messages), key=lambda each: RANK[each.kind])
    if not found:
        words = "no queue may run it" if never else "Grid Engine has not looked at it yet, or tells no reasons here"
        do = CHANGE if never else "ask again in a minute; a site may have turned reasons off (schedd_job_info)"
        return Reason(Kind.ROOM, f"it can never start: {words}" if never else words, do, never)
    first = found[0]
    same = list(dict.fromkeys(each.words for each in found if each.kind is first.kind))
    words = "; ".join(same[:3]) + (f"; and {len(same) - 3} more" if len(same) > 3 else "")
    if never and first.kind in (Kind.ROOM, Kind.LIMIT, Kind.UNKNOWN):
        return Reason(first.kind, f"it can never start: {words}", CHANGE, never=True)
    return Reason(first.kind, words, next((each.do for each in found if each.kind is first.kind and each.do), ""))

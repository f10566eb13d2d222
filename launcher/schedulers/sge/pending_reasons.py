"""Explains Grid Engine's messages about pending jobs.

The messages are those of Son of Grid Engine 8.1.9 (msg_schedd.h); older versions and Univa's have the same or more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.schedulers.explanation import Why


@dataclass(frozen=True)
class Reason:
    """An explained pending reason."""

    kind: Why  # kind of the reason
    words: str  # meaning of the reason, as text
    do: str = ""  # what the user can do; `{job}` stands for the job's id
    never: bool = False  # whether the unchanged job can never start


CHANGE = "cancel it, and resume it with less, or in another queue"
ENDS = "it starts when others end"
# Patterns that match a whole message, with kind, words and advice. Messages about the whole job come first.
TABLE: tuple[tuple[str, Why, str, str], ...] = (
    (r"Job is in error state", Why.HELD, "its start has failed", "`qmod -cj {job}` lets it be tried once more"),
    (r"Job is in hold state", Why.HELD, "it is held", "`qrls {job}` lets it go on"),
    (r"job dropped because of job dependencies", Why.WAITS, "it waits for other jobs",
     "it starts when they have ended"),
    (r"execution time not reached", Why.WAITS, "it was asked to begin later", ""),
    (r"not all array tasks may be started due to 'max_aj_instances'", Why.THROTTLED,
     "as many elements of its array run as may run at once (sweep.parallelism, or max_aj_instances of the site)",
     "it starts when one of them ends"),
    (r"job dropped because of user limitations", Why.LIMIT, "as many of your jobs run as may run at once (maxujobs)",
     "it starts when one of them ends"),
    (r'.*cannot run because it exceeds limit "(?P<who>[^"]*)" in rule "(?P<what>[^"]*)"', Why.LIMIT,
     "a resource quota is used up: rule {what}", "it starts when jobs that count in it end; `qquota` shows them"),
    (r'cannot run in PE "(?P<what>[^"]*)" because it only offers (?P<more>\d+) slots', Why.ROOM,
     "parallel environment {what} has {more} slots for it", ENDS),
    (r'.*cannot run at host "(?P<what>[^"]*)" because it offers only (?P<more>.*)', Why.ROOM,
     "{what} offers only {more}", ENDS),
    (r'.*cannot run in queue "(?P<what>[^"]*)" because it offers only (?P<more>.*)', Why.ROOM,
     "queue {what} offers only {more}", ENDS),
    (r'.*cannot run (globally )?because (it offers only )?(?P<more>.*)', Why.ROOM, "it cannot run: {more}", ENDS),
    (r'cannot run on host "(?P<what>[^"]*)" until clean up of an? previous run has finished', Why.ROOM,
     "{what} has not reported the end of its earlier run, and may never",
     "cancel it, and resume it: a new job does not wait for that"),
    (r'queue instance "(?P<what>[^"]*)" dropped because it is (?P<more>.*)', Why.ROOM, "{what} is {more}", ""),
    (r"All queues dropped because of overload or full", Why.ROOM, "all queues are full", ENDS),
    (r'has no permission for (cluster queue|queue|host|parallel environment) "?(?P<what>[^"]*)"?', Why.LIMIT,
     "you may not use {what}", "use another queue (cluster.queue)"),
    (r'cannot run in (cluster )?queue "?(?P<what>[^" ]*)"? because (?P<more>.*)', Why.ROOM, "{what}: {more}", ""),
)  # fmt: skip
# Reasons of the whole job come before those of one host.
RANK = {Why.HELD: 0, Why.WAITS: 1, Why.THROTTLED: 2, Why.LIMIT: 3, Why.ROOM: 4, Why.UNKNOWN: 5}


def in_words(message: str) -> Reason:
    """Explains one message; an unknown one is quoted."""
    plain = re.sub(r"^Job \d+ (\(-l [^)]*\) )?", "", " ".join(message.split()))
    for pattern, kind, words, do in TABLE:
        if match := re.fullmatch(pattern, plain):
            names = {key: value or "" for key, value in match.groupdict().items()}
            return Reason(kind, words.format_map({"what": "", "more": "", **names}), do)
    return Reason(Why.UNKNOWN, f"Grid Engine says: {plain}")


def of_all(messages: Sequence[str], *, never: bool) -> Reason:
    """Explains why a job is pending from all messages about it, by those with the lowest RANK.

    Args:
        messages: the scheduler's messages; empty: Grid Engine gives none.
        never: whether the job could not run even without any other job (qalter -w v).
    """
    found = sorted(map(in_words, messages), key=lambda each: RANK[each.kind])
    if not found:
        words = "no queue may run it" if never else "Grid Engine has not looked at it yet, or tells no reasons here"
        do = CHANGE if never else "ask again in a minute; a site may have turned reasons off (schedd_job_info)"
        return Reason(Why.ROOM, f"it can never start: {words}" if never else words, do, never)
    first = found[0]
    same = list(dict.fromkeys(each.words for each in found if each.kind is first.kind))
    words = "; ".join(same[:3]) + (f"; and {len(same) - 3} more" if len(same) > 3 else "")
    if never and first.kind in (Why.ROOM, Why.LIMIT, Why.UNKNOWN):
        return Reason(first.kind, f"it can never start: {words}", CHANGE, never=True)
    return Reason(first.kind, words, next((each.do for each in found if each.kind is first.kind and each.do), ""))

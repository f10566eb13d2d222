"""Why a Grid Engine job is pending."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from launcher.formatting import plural
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers.pending import Answers, Explanation, Reason, Waiting, Why, explained, find_reason, first_lines
from launcher.schedulers.sge.client import QUEUE_STATES, SGE, QueueInstance, array_of, jobs_of, native_id
from launcher.schedulers.sge.settings import SGESettings

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


# -- Explains Grid Engine's messages about pending jobs
# The messages are those of Son of Grid Engine 8.1.9 (msg_schedd.h); older versions and Univa's have the same or more.


CHANGE = "cancel it, and resume it with less, or in another queue"
ENDS = "it starts when others end"
# Patterns that match a whole message. Messages about the whole job come first.
TABLE: tuple[tuple[str, Reason], ...] = (
    (r"Job is in error state", Reason(Why.HELD, "its start has failed", "`qmod -cj {job}` lets it be tried once more")),
    (r"Job is in hold state", Reason(Why.HELD, "it is held", "`qrls {job}` lets it go on")),
    (r"job dropped because of job dependencies", Reason(Why.WAITS, "it waits for other jobs",
     "it starts when they have ended")),
    (r"execution time not reached", Reason(Why.WAITS, "it was asked to begin later", "")),
    (r"not all array tasks may be started due to 'max_aj_instances'", Reason(Why.THROTTLED,
     "as many elements of its array run as may run at once (sweep.parallelism, or max_aj_instances of the site)",
     "it starts when one of them ends")),
    (r"job dropped because of user limitations", Reason(Why.LIMIT,
     "as many of your jobs run as may run at once (maxujobs)", "it starts when one of them ends")),
    (r'.*cannot run because it exceeds limit "(?P<who>[^"]*)" in rule "(?P<what>[^"]*)"', Reason(Why.LIMIT,
     "a resource quota is used up: rule {what}", "it starts when jobs that count in it end; `qquota` shows them")),
    (r'cannot run in PE "(?P<what>[^"]*)" because it only offers (?P<more>\d+) slots', Reason(Why.ROOM,
     "parallel environment {what} has {more} slots for it", ENDS)),
    (r'.*cannot run at host "(?P<what>[^"]*)" because it offers only (?P<more>.*)', Reason(Why.ROOM,
     "{what} offers only {more}", ENDS)),
    (r'.*cannot run in queue "(?P<what>[^"]*)" because it offers only (?P<more>.*)', Reason(Why.ROOM,
     "queue {what} offers only {more}", ENDS)),
    (r'.*cannot run (globally )?because (it offers only )?(?P<more>.*)', Reason(Why.ROOM,
     "it cannot run: {more}", ENDS)),
    (r'cannot run on host "(?P<what>[^"]*)" until clean up of an? previous run has finished', Reason(Why.ROOM,
     "{what} has not reported the end of its earlier run, and may never",
     "cancel it, and resume it: a new job does not wait for that")),
    (r'queue instance "(?P<what>[^"]*)" dropped because it is (?P<more>.*)', Reason(Why.ROOM, "{what} is {more}", "")),
    (r"All queues dropped because of overload or full", Reason(Why.ROOM, "no queue takes it", "wait until one does")),
    (r'has no permission for (cluster queue|queue|host|parallel environment) "?(?P<what>[^"]*)"?', Reason(Why.LIMIT,
     "you may not use {what}", "use another queue (cluster.queue)")),
    (r'cannot run in (cluster )?queue "?(?P<what>[^" ]*)"? because (?P<more>.*)', Reason(Why.ROOM, "{what}: {more}")),
)  # fmt: skip
# Reasons of the whole job come before those of one host.
RANK = {Why.HELD: 0, Why.WAITS: 1, Why.THROTTLED: 2, Why.LIMIT: 3, Why.ROOM: 4, Why.UNKNOWN: 5}


def in_words(message: str) -> Reason:
    plain = re.sub(r"^Job \d+ (\(-l [^)]*\) )?", "", " ".join(message.split()))
    return find_reason(TABLE, plain) or Reason(Why.UNKNOWN, f"Grid Engine says: {plain}")


def of_all(messages: Sequence[str], *, never: bool) -> Reason:
    """Explains a pending job by its messages of the lowest RANK; never: it could not run alone (qalter -w v)."""
    found = sorted(map(in_words, messages), key=lambda each: RANK[each.kind])
    if not found:
        words = "no queue may run it" if never else "Grid Engine has not looked at it yet, or tells no reasons here"
        do = CHANGE if never else "ask again in a minute; a site may have turned reasons off (schedd_job_info)"
        return Reason(Why.ROOM, f"it can never start: {words}" if never else words, do, never=never)
    first = found[0]
    same = list(dict.fromkeys(each.words for each in found if each.kind is first.kind))
    words = "; ".join(same[:3]) + (f"; and {len(same) - 3} more" if len(same) > 3 else "")
    if never and first.kind in (Why.ROOM, Why.LIMIT, Why.UNKNOWN):
        return Reason(first.kind, f"it can never start: {words}", CHANGE, never=True)
    return Reason(first.kind, words, next((each.do for each in found if each.kind is first.kind and each.do), ""))


def explain(waiting: Waiting, sge: SGE) -> Explanation:
    """Explains why a pending job does not start; raises QueryError for the job's own query, else notes it."""
    answers, array = Answers(), array_of(waiting.job)
    root = sge.details(array)
    messages = [] if root is None else messages_of(root)
    verified, never = answers.get(lambda: sge.verified(array), ("", False))
    reason = of_job(root) if root is not None else None
    reason = reason or of_all(messages or lines_of(verified), never=never)
    instances: list[QueueInstance] = answers.get(sge.instances, [])
    return replace(
        explained(waiting, reason, native_id(waiting.job)),
        code="; ".join(messages[:3]),
        nodes=instance_lines(instances, waiting.plan) if reason.kind in (Why.ROOM, Why.LIMIT, Why.UNKNOWN) else (),
        notes=tuple(answers.notes),
    )


def messages_of(root: Element) -> list[str]:
    return list(dict.fromkeys(each.text or "" for each in root.iter("MES_message") if each.text))


def of_job(root: Element) -> Reason | None:
    """Explains a failed start or dependencies in the output of `qstat -xml -j`; None if it has neither."""
    for job in jobs_of(root):
        if errors := [each.text or "" for each in job.iter("QIM_message")]:
            words = re.sub(r"^\S+ \S+ \[\d+:\d+\]: (error: )?", "", " ".join(errors[-1].split()))
            do = "correct that, then `qmod -cj {job}` lets Grid Engine try it once more"
            return Reason(Why.HELD, f"its start has failed: {words}", do)
        if jobs := [each.text or "" for each in job.iterfind("JB_jid_predecessor_list/*/JRE_job_number")]:
            return Reason(Why.WAITS, f"it waits for other jobs: {', '.join(jobs)}", "it starts when they have ended")
    return None


def lines_of(verified: str) -> list[str]:
    return [line for line in verified.splitlines() if line.strip() and not line.startswith("verification:")]


def instance_lines(instances: list[QueueInstance], plan: JobPlan) -> tuple[str, ...]:
    """Returns the line `4 queue instances: 2 with a free slot`, then one per instance that takes no jobs."""
    wanted = settings_of(plan, SGESettings).queue_names
    mine = [each for each in instances if not wanted or any(fnmatchcase(each.queue, name) for name in wanted)]
    if not mine:
        return ()
    free = sum(each.used < each.total and not each.broken for each in mine)
    broken = [each for each in mine if each.broken]
    line = f"{plural(len(mine), 'queue instance')}: {free} with a free slot"
    lines = []
    for each in broken:
        why = ", ".join(dict.fromkeys(QUEUE_STATES[letter] for letter in each.state if letter in QUEUE_STATES))
        lines.append(f"{each.queue}@{each.host} takes no jobs: {why}")
    return (line, *first_lines(lines, "qstat -f"))

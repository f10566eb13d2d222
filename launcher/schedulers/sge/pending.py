"""Explains why a Grid Engine job is pending, with at most four queries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.schedulers.explanation import Explanation, Facts, Waiting, Why
from launcher.schedulers.queries import QueryError
from launcher.schedulers.sge.commands import array_of, jobs_of, sge_id
from launcher.schedulers.sge.pending_reasons import Reason, of_all
from launcher.schedulers.sge.resource_queries import QUEUE_STATES, QueueInstance, ResourceQueries
from launcher.schedulers.sge.settings import SGESettings
from launcher.spec.plan import JobPlan, settings_of

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def explain(waiting: Waiting, resources: ResourceQueries) -> Explanation:
    """Explains why a pending job does not start.

    Raises:
        QueryError: the query of the job itself failed. Failures of other queries become notes.
    """
    root, notes = resources.sge.details(array_of(waiting.job)), []
    messages = [] if root is None else messages_of(root)
    verified, never = "", False
    try:
        verified, never = resources.verified(array_of(waiting.job))
    except QueryError as error:
        notes.append(f"not answered: {error}")
    reason = of_job(root) if root is not None else None
    reason = reason or of_all(messages or lines_of(verified), never=never)
    instances: list[QueueInstance] = []
    try:
        instances = resources.instances()
    except QueryError as error:
        notes.append(f"not answered: {error}")
    return Explanation(
        run=waiting.run,
        state="queued",
        why=reason.kind,
        facts=Facts(meaning=reason.words),
        job=waiting.job,
        code="; ".join(messages[:3]),
        do=reason.do.replace("{job}", sge_id(waiting.job)),
        nodes=instance_lines(instances, waiting.plan) if reason.kind in (Why.ROOM, Why.LIMIT, Why.UNKNOWN) else (),
        notes=tuple(notes),
    )


def messages_of(root: Element) -> list[str]:
    """Returns the scheduler's messages about a job from the output of `qstat -xml -j`, each once."""
    return list(dict.fromkeys(each.text or "" for each in root.iter("MES_message") if each.text))


def of_job(root: Element) -> Reason | None:
    """Explains a failed start or dependencies in the output of `qstat -xml -j`; None if it has neither."""
    for job in jobs_of(root):
        errors = [each.text or "" for each in job.iter("QIM_message")]
        if errors:
            words = re.sub(r"^\S+ \S+ \[\d+:\d+\]: (error: )?", "", " ".join(errors[-1].split()))
            do = "correct that, then `qmod -cj {job}` lets Grid Engine try it once more"
            return Reason(Why.HELD, f"its start has failed: {words}", do)
        if jobs := [each.text or "" for each in job.iterfind("JB_jid_predecessor_list/*/JRE_job_number")]:
            return Reason(Why.WAITS, f"it waits for other jobs: {', '.join(jobs)}", "it starts when they have ended")
    return None


def lines_of(verified: str) -> list[str]:
    """Returns the messages in the output of `qalter -w v`."""
    return [line for line in verified.splitlines() if line.strip() and not line.startswith("verification:")]


def instance_lines(instances: list[QueueInstance], plan: JobPlan) -> tuple[str, ...]:
    """Returns the line `4 queue instances: 2 with a free slot`, then one per instance that takes no jobs."""
    named = settings_of(plan, SGESettings).queue
    wanted = {name.partition("@")[0] for name in named.split(",")} if named else None
    mine = [each for each in instances if wanted is None or each.queue in wanted]
    if not mine:
        return ()
    free = sum(each.used < each.total and not each.broken for each in mine)
    broken = [each for each in mine if each.broken]
    found = [f"{len(mine)} queue instance{'' if len(mine) == 1 else 's'}: {free} with a free slot"]
    for each in broken[:10]:
        why = ", ".join(dict.fromkeys(QUEUE_STATES[letter] for letter in each.state if letter in QUEUE_STATES))
        found.append(f"{each.queue}@{each.host} takes no jobs: {why}")
    return (*found, *([f"... and {len(broken) - 10} more; `qstat -f` lists them"] if len(broken) > 10 else []))

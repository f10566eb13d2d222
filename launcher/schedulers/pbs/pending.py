"""Explains why a PBS job is pending, with at most five queries."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.schedulers.explanation import Explanation, Facts, Waiting, Why, commands
from launcher.schedulers.pbs import limits, resource_queries, suggestions
from launcher.schedulers.pbs.commands import array_of, pbs_id
from launcher.schedulers.pbs.pending_reasons import CHANGE, Comment, held, in_words
from launcher.schedulers.pbs.resource_queries import Node, QueueFacts, ResourceQueries
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.queries import QueryError
from launcher.spec.plan import JobPlan, settings_of

RETRY = "-3"  # Exit_status of a job that MoM failed to start, and that PBS will start again (job.h, JOB_EXEC_RETRY)


def explain(waiting: Waiting, resources: ResourceQueries) -> Explanation:
    """Explains why a pending job does not start, and suggests sizes with which it would fit on the free nodes.

    Raises:
        QueryError: the query of the job itself failed. Failures of other queries become notes.
    """
    plan, job_id = waiting.plan, waiting.job
    record = resources.pbs.record(job_id) or {}
    text = str(record.get("comment", ""))
    comment, now, notes = explain_state(record, text), time.time(), []
    if not text and (array_id := array_of(job_id)) != pbs_id(job_id):  # a pending subjob has no comment of its own
        array = resources.pbs.record(array_id) or {}
        text = str(array.get("comment", ""))
        comment = explain_array(array, text)
        record = {**record, "max_run_subjobs": array.get("max_run_subjobs", "")}
    comment = not_startable(record, plan) or comment
    nodes: list[Node] = []
    queue = server = None
    try:
        nodes = resources.nodes()
        queue, server = (
            resources.queue(str(record.get("queue", settings_of(plan, PBSSettings).queue or ""))),
            resources.server(),
        )
    except QueryError as error:
        notes.append(f"not answered: {error}")
    if not comment.never and comment.kind is Why.ROOM:
        comment = for_ever(comment, plan, nodes, str(record.get("queue", "")))
    tried = suggestions.options(plan, nodes, now, fixed_nodes=waiting.fixed_nodes) if nodes else ()
    better = tried[1:] if comment.kind in (Why.ROOM, Why.LIMIT) else ()
    if better:
        notes.append("what fits now is computed from pbsnodes: jobs in front of it may come first")
    if comment.kind is Why.ROOM and tried and tried[0].starts is not None:
        notes.append("enough nodes are free for it now: the scheduler may keep them for another job, or start it soon")
    if plan.min_nodes < plan.nodes and "run_count" in record:
        notes.append(f"PBS waits for all {plan.nodes} nodes to start it again, whatever min_nodes says")
    return Explanation(
        run=waiting.run,
        state="queued",
        why=comment.kind,
        facts=Facts(meaning=comment.words),
        job=job_id,
        code=text,
        do=comment.do.replace("{job}", pbs_id(job_id)),
        starts=resource_queries.estimate(record),
        limits=_throttle(record, comment) + limits_of(comment, queue, server),
        nodes=node_lines(nodes, plan) if comment.kind not in (Why.WAITS, Why.THROTTLED, Why.HELD) else (),
        options=better,
        tried=tried if better else (),
        commands=commands(waiting, better),
        notes=tuple(notes),
    )


def explain_state(record: Mapping[str, Any], comment: str) -> Comment:
    """Explains why a job is pending.

    | job_state | explained |
    |---|---|
    | H, with dependencies | the dependency |
    | H | the kind of the hold |
    | W | the requested start time |
    | T | PBS moves the job to another queue |
    | any other | the scheduler's comment |

    Args:
        record: the job's record.
        comment: the scheduler's comment.
    """
    letter = str(record.get("job_state", ""))
    if letter == "H":
        if depend := str(record.get("depend", "")):
            return Comment(
                Why.WAITS,
                f"it waits for other jobs: {depend}",
                "it starts by itself when they have ended and its dependency is satisfied",
            )
        if found := held(str(record.get("Hold_Types", ""))):
            return Comment(Why.HELD, *found)
    if letter == "W":
        return Comment(Why.WAITS, f"it was asked to begin at {record.get('Execution_Time', 'a later time')}", "")
    if letter == "T":
        return Comment(Why.WAITS, "it is on its way to another queue", "ask again in a minute")
    return in_words(comment)


def not_startable(record: Mapping[str, Any], plan: JobPlan) -> Comment | None:
    """Explains that PBS could not start a job, since MoM cannot open the job's output; None: PBS has not failed.

    Args:
        record: attributes of the job, as qstat prints them.
        plan: plan of the run, for the text.
    """
    if record.get("Exit_status") != RETRY or record.get("job_state") not in ("H", "Q"):
        return None
    return Comment(
        Why.HELD,
        f"PBS has tried {record.get('run_count', 'several')} times to start it, and no node could: most likely they do "
        f"not see {plan.run_dir}, where its output goes",
        "cancel it, and submit it again with a runs_dir that all nodes share",
    )


def for_ever(comment: Comment, plan: JobPlan, nodes: Sequence[Node], queue: str) -> Comment:
    """Returns the reason if the job can never start on its queue's nodes, else `comment`.

    PBS itself reports this only if all nodes of the site together have too little.

    Args:
        comment: PBS's reason why the job is pending.
        plan: plan of the run.
        nodes: vnodes of the site.
        queue: name of the job's queue.
    """
    problem = limits.never(plan, resource_queries.hosts_of(nodes, plan, queue))
    if problem is None:
        return comment
    return Comment(comment.kind, f"it can never start: {problem}", CHANGE, never=True)


def explain_array(array: Mapping[str, Any], comment: str) -> Comment:
    """Explains why a subjob is pending.

    | the array | explained |
    |---|---|
    | has started, and runs max_run_subjobs subjobs | this limit |
    | has started | too little is free |
    | has not started | why the array is pending |

    Args:
        array: record of the array.
        comment: the scheduler's comment on the array.
    """
    if array.get("job_state") != "B":
        return explain_state(array, comment)
    running = re.search(r"Running:(\d+)", str(array.get("array_state_count", "")))
    most = str(array.get("max_run_subjobs", ""))
    if running and most.isdecimal() and int(running[1]) >= int(most):
        return in_words("Not Running: Number of concurrent running subjobs limit reached")
    return Comment(
        Why.ROOM, "other elements of its array run, and too little is free for it", "it starts when one ends"
    )


def _throttle(record: Mapping[str, Any], comment: Comment) -> tuple[str, ...]:
    most = record.get("max_run_subjobs")
    if comment.kind is not Why.THROTTLED or not most:
        return ()
    return (f"its array: {most} element{'' if str(most) == '1' else 's'} at once (max_run_subjobs, sweep.parallelism)",)


def limits_of(comment: Comment, queue: QueueFacts | None, server: QueueFacts | None) -> tuple[str, ...]:
    """Returns a line for each limit that may keep the job pending, with its value and where it is set.

    Args:
        comment: PBS's reason why the job is pending.
        queue: attributes of the job's queue; None: not known.
        server: attributes of the server; None: not known.
    """
    found = []
    if queue is not None and not queue.started:
        found.append(f"queue {queue.name}: started = False")
    if comment.kind is Why.LIMIT or comment.never:
        for where, facts in (("queue", queue), ("server", server)):
            if facts is not None:
                most = {f"resources_max.{key}": value for key, value in facts.most.items()}
                found += [f"{where} {facts.name}: {key} = {value}" for key, value in {**facts.limits, **most}.items()]
    return tuple(found)


def node_lines(nodes: Sequence[Node], plan: JobPlan) -> tuple[str, ...]:
    """Returns the line `4 nodes: 1 has room for a chunk of it now, 1 takes no jobs`, then one per broken node."""
    if not nodes:
        return ()
    broken = [node for node in nodes if node.broken]
    room = len(suggestions.fitting(nodes, suggestions.chunk_of(plan)))
    parts = [f"{room} {'has' if room == 1 else 'have'} room for a chunk of it now"]
    parts += [f"{len(broken)} {'takes' if len(broken) == 1 else 'take'} no jobs"] if broken else []
    lines = [f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}: {', '.join(parts)}"]
    lines += [f"{node.name} is {node.state}" + (f": {node.comment}" if node.comment else "") for node in broken[:10]]
    if len(broken) > 10:
        lines.append(f"... and {len(broken) - 10} more; `pbsnodes -l` lists them")
    return tuple(lines)

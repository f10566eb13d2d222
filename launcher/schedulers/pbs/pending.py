"""Why a PBS job is pending."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.files.retried_reads import Ok, exists
from launcher.formatting import format_size, plural
from launcher.plan.plan import JobPlan, settings_of
from launcher.schedulers import pending
from launcher.schedulers.pbs import limits, script
from launcher.schedulers.pbs.client import PBS, PBSNode, QueueFacts, amount, array_of, native_id, queue_facts
from launcher.schedulers.pbs.settings import PBSSettings
from launcher.schedulers.pending import Answers, Explanation, Option, Reason, Waiting, Why

# -- Explains PBS's comments on pending jobs
# The comments are those of OpenPBS 23.06 (scheduler/job_info.cpp, fctt; server/job_func.c for holds). Older PBS Pro has
# the same comments or fewer. Comments have the prefix `Not Running: ` or `Can Never Run: `.


CHANGE = "cancel it, and resume it with less"
TABLE: tuple[tuple[str, Reason], ...] = (
    (r"Insufficient amount of (?P<of>queue|server) resource: (?P<what>\S+)(?P<more>.*)", Reason(Why.LIMIT,
     "too little of {what} is left of what the {of} may give{more}", until="enough is given back")),
    (r"Insufficient amount of resource: (?P<what>\S+)(?P<more>.*)", Reason(Why.ROOM,
     "too little of {what} is free{more}", until="enough is given back")),
    (r"Not enough free nodes available", Reason(Why.ROOM, "too few nodes are free for all of its chunks at once",
     until="others end")),
    (r"Not enough total nodes available", Reason(Why.ROOM, "it asks for more nodes than there are",
     CHANGE + " (nodes)")),
    (r"Not enough of the right type of nodes (are )?available|No available resources on nodes", Reason(Why.ROOM,
     "too few nodes of the kind that it asks for are free", until="others end")),
    (r"Too few free resources|.* set .* has too few free resources.*|can't fit in the largest placement set.*",
     Reason(Why.ROOM, "no group of nodes (placement set) has room for it", "fewer nodes may fit into one")),
    (r"Node ineligible because job requested pack placement.*", Reason(Why.ROOM,
     "it wants to be on one node (place=pack), and no node has room for all of it", "cluster.place=scatter may help")),
    (r".* is requesting an exclusive node and node is in use", Reason(Why.ROOM,
     "it wants nodes for itself (place=excl), and they are in use", until="others end")),
    (r"Node is in an ineligible state: (?P<what>.*)", Reason(Why.ROOM, "nodes that it could use are {what}")),
    (r"Node is of an ineligible type: (?P<what>.*)", Reason(Why.ROOM, "nodes are of another type ({what})")),
    (r"Node has reached (?P<what>job|user|group) run limit", Reason(Why.ROOM,
     "nodes have as many jobs as they may run ({what} limit)", until="others end")),
    (r"Specified (?P<what>\S+) does not exist: (?P<more>.*)", Reason(Why.ROOM, "there is no {what} {more}",
     "cancel it, and resume it without that (cluster.chunk)")),
    (r"Job would (conflict|interfere) with (a confirmed )?(reservation|reservation or top job)", Reason(Why.ROOM,
     "it would not end before a reservation (or a job in front of it) needs the nodes",
     "a shorter time may end before it; `pbs_rstat -f` lists reservations")),
    (r"Job would interfere with a top job", Reason(Why.ROOM,
     "it would delay jobs that are in front of it in the queue", "a shorter or smaller one may fit before them")),
    (r"Job would break strict sorted order", Reason(Why.ROOM,
     "the site starts jobs strictly in order, and one in front of it waits", "wait, or use another queue")),
    (r"Can't preempt enough work to run job", Reason(Why.ROOM, "not even preempting others would make room for it")),
    (r"Queue not started\.?", Reason(Why.LIMIT, "its queue takes jobs and starts none (started = False)",
     "wait until the site starts it, or use another queue")),
    (r"Queue not an execution queue\.?", Reason(Why.LIMIT, "its queue only hands jobs on, and none has taken it",
     "use an execution queue: `qstat -Q` shows their types")),
    (r"Number of concurrent running subjobs limit reached", Reason(Why.THROTTLED,
     "as many elements of its array run as may run at once (max_run_subjobs)", until="one of them ends")),
    (r"(Queue (?P<queue>\S+?)|Server) job limit (has been )?reached\.?", Reason(Why.LIMIT,
     "as many jobs run as may run at once in {where}", until="one of them ends")),
    (r"(User|Group|Project) has reached (server|queue (?P<queue>\S+?)('s)?) (running )?(job )?(running )?limit\.?",
     Reason(Why.LIMIT, "as many of your jobs run as {where} lets run at once", until="one of them ends")),
    (r"(Queue (?P<queue>\S+)|Server) job limit reached for (user|group|project) (?P<what>\S+)", Reason(Why.LIMIT,
     "as many jobs of {what} run as {where} lets run at once", until="one of them ends")),
    (r"(Queue (?P<queue>\S+)|Server) per-(user|group|project) limit reached on resource (?P<what>\S+)",
     Reason(Why.LIMIT, "your running jobs have all of {what} that {where} gives one user, group or project",
     "a smaller one may fit", until="one of them ends")),
    (r"would exceed (?P<who>(user|group|project) \S+?)'s limit on resource (?P<what>\S+) in "
     r"(complex|queue (?P<queue>\S+))", Reason(Why.LIMIT,
     "with it, {who} would have more of {what} than {where} allows", "a smaller one may fit",
     until="others of them end")),
    (r"would exceed overall limit on resource (?P<what>\S+) in (complex|queue (?P<queue>\S+))", Reason(Why.LIMIT,
     "with it, all jobs together would have more of {what} than {where} allows", until="others end")),
    (r"(Dedicated time conflict|Job would cross dedicated time boundary).*", Reason(Why.ROOM,
     "it would reach into dedicated time (a maintenance window)", "a shorter time may end before it")),
    (r"Job will run in (?P<what>(non)?primetime) only", Reason(Why.WAITS, "its queue runs jobs in {what} only")),
    (r"Job will cross into (?P<what>\S+)", Reason(Why.WAITS, "it would still run when {what} begins",
     "a shorter time may end before it")),
    (r"Job has zero shares for fairshare", Reason(Why.HELD, "you have no share of this site",
     "ask the site's support")),
    (r"Job is under job_sort_formula threshold value", Reason(Why.WAITS,
     "its priority is below what the site starts")),
    (r"Cannot provision.*|Provision.*", Reason(Why.WAITS, "its nodes would have to be provisioned, and cannot be")),
    (r"PBS Error: (?P<what>.*)", Reason(Why.UNKNOWN, "PBS could not start it: {what}",
     "it tries again; ask the site's support if that stays so")),
    (r"Draining system to allow .*", Reason(Why.ROOM, "the scheduler keeps nodes free for a job that waits long")),
    (r"(Job held|job held|Held).*", Reason(Why.HELD, "it is held", "`qrls {job}` lets it go on")),
)  # fmt: skip

# Letters of Hold_Types (qhold(1B)).
HOLDS = {
    "u": ("it is held by you", "`qrls {job}` lets it go on"),
    "o": ("it is held by an operator", "ask the site's support"),
    "s": ("it is held by the system: a dependency, or it could not be started twenty times",
          "the site's managers can release it (qrls -h s {job})"),
    "p": ("its password is not valid any more", "submit it again"),
}  # fmt: skip


def in_words(text: str) -> Reason:
    plain = " ".join(text.split())
    never = plain.startswith("Can Never Run")
    reason = re.sub(r"^(Not Running|Can Never Run): ?", "", plain).strip()
    if not reason:
        return Reason(Why.ROOM, "PBS has not looked at it yet", "ask again in a minute")
    if found := pending.find_reason(TABLE, reason, _named):
        if never:
            do = CHANGE if found.until else found.do
            return Reason(found.kind, f"it can never start: {found.words}", do, never=True)
        starts = f"it starts when {found.until}" if found.until else ""
        return replace(found, do="; ".join(part for part in (starts, found.do) if part))
    words = f"PBS says: {reason}"
    return Reason(Why.UNKNOWN, f"it can never start; {words}" if never else words, never=never)


def _named(groups: dict[str, str]) -> dict[str, str]:
    where = f"queue {groups['queue']}" if groups.get("queue") else "the server"
    return {**groups, "where": where, "more": _amounts(groups.get("more", ""))}


def _amounts(text: str) -> str:
    if match := re.fullmatch(r"\(R: (\S+) A: (\S+) T: (\S+)\)", text):
        return f" (it asks for {match[1]}, {match[2]} is free, {match[3]} is there)"
    return f" {text}" if text else ""


RETRY = "-3"  # Exit_status of a job that MoM failed to start, and that PBS will start again (job.h, JOB_EXEC_RETRY)


def explain(waiting: Waiting, pbs: PBS) -> Explanation:
    """Explains why a pending job does not start, and what would fit now; raises QueryError for the job's own query."""
    plan, job_id = waiting.plan, waiting.job
    record = pbs.record(job_id) or {}
    text = str(record.get("comment", ""))
    comment, now, answers = explain_state(record, text), time.time(), Answers()
    if not text and (array_id := array_of(job_id)) != native_id(job_id):  # a pending subjob has no comment of its own
        array = pbs.record(array_id) or {}
        text = str(array.get("comment", ""))
        comment = explain_array(array, text)
        record = {**record, "max_run_subjobs": array.get("max_run_subjobs", "")}
    comment = not_startable(record, plan, native_id(job_id)) or comment
    nodes: list[PBSNode] = answers.get(pbs.nodes, [])
    own = record.get("queue") or settings_of(plan, PBSSettings).queue
    queue = answers.get(lambda: pbs.queue_facts(own), None) if own else None
    server = answers.get(lambda: queue_facts(*pbs.server()), None)
    hosts = limits.node_groups(nodes, plan, record.get("queue"))
    # PBS says so of the whole site only
    if not comment.never and comment.kind is Why.ROOM and (problem := limits.never(plan, hosts)):
        comment = Reason(comment.kind, f"it can never start: {problem}", CHANGE, never=True)
    tried = options(plan, nodes, now, fixed_nodes=waiting.fixed_nodes) if nodes else ()
    better = tried[1:] if comment.kind in (Why.ROOM, Why.LIMIT) else ()
    if better:
        answers.notes.append("what fits now is computed from pbsnodes: jobs in front of it may come first")
    if comment.kind is Why.ROOM and tried and tried[0].starts is not None:
        answers.notes.append(
            "enough nodes are free for it now: the scheduler may keep them for another job, or start it soon"
        )
    if plan.min_nodes < plan.nodes and "run_count" in record:
        answers.notes.append(f"PBS waits for all {plan.nodes} nodes to start it again, whatever min_nodes says")
    return replace(
        pending.explained(waiting, comment, native_id(job_id)),
        code=text,
        starts=estimate(record),
        limits=_throttle(record, comment) + limits_of(comment, queue, server),
        nodes=node_lines(nodes, plan) if comment.kind not in (Why.WAITS, Why.THROTTLED, Why.HELD) else (),
        options=better,
        tried=tried if better else (),
        commands=pending.commands(waiting, better),
        notes=tuple(answers.notes),
    )


def explain_state(record: Mapping[str, Any], comment: str) -> Reason:
    """Explains why a job is pending.

    | job_state | explained |
    |---|---|
    | H, with dependencies | the dependency |
    | H | the kind of the hold |
    | W | the requested start time |
    | T | PBS moves the job to another queue |
    | any other | the scheduler's comment |
    """
    letter = str(record.get("job_state", ""))
    if letter == "H":
        if depend := str(record.get("depend", "")):
            do = "it starts by itself when they have ended and its dependency is satisfied"
            return Reason(Why.WAITS, f"it waits for other jobs: {depend}", do)
        types = str(record.get("Hold_Types", ""))
        if found := next((words for letter, words in HOLDS.items() if letter in types), None):
            return Reason(Why.HELD, *found)
    if letter == "W":
        return Reason(Why.WAITS, f"it was asked to begin at {record.get('Execution_Time', 'a later time')}", "")
    if letter == "T":
        return Reason(Why.WAITS, "it is on its way to another queue", "ask again in a minute")
    return in_words(comment)


def not_startable(record: Mapping[str, Any], plan: JobPlan, job_id: str) -> Reason | None:
    """Explains that no MoM could open the job's output, or that a prologue fails; None: PBS has not failed."""
    if record.get("Exit_status") != RETRY or record.get("job_state") not in ("H", "Q"):
        return None
    tried = f"PBS has tried {record.get('run_count', 'several')} times to start it, and no node could"
    output = str(record.get("Output_Path", "")).partition(":")[2]
    if output and exists(f"{output}{job_id}.OU", retry_seconds=0) == Ok(True):
        prints = f"a program of the site (prologue) fails there; what it prints is in {output}{job_id}.OU"
        return Reason(Why.HELD, f"{tried}: {prints}", "tell your site; cancel it, and submit it again")
    return Reason(
        Why.HELD,
        f"{tried}: most likely they do not see {plan.run_dir}, where its output goes",
        "cancel it, and submit it again with a runs_dir that all nodes share",
    )


def explain_array(array: Mapping[str, Any], comment: str) -> Reason:
    """Explains why a subjob is pending.

    | the array | explained |
    |---|---|
    | has started, and runs max_run_subjobs subjobs | this limit |
    | has started | too little is free |
    | has not started | why the array is pending |
    """
    if array.get("job_state") != "B":
        return explain_state(array, comment)
    running = re.search(r"Running:(\d+)", str(array.get("array_state_count", "")))
    most = str(array.get("max_run_subjobs", ""))
    if running and most.isdecimal() and int(running[1]) >= int(most):
        return in_words("Not Running: Number of concurrent running subjobs limit reached")
    return Reason(Why.ROOM, "other elements of its array run, and too little is free for it", "it starts when one ends")


def _throttle(record: Mapping[str, Any], comment: Reason) -> tuple[str, ...]:
    most = record.get("max_run_subjobs")
    if comment.kind is not Why.THROTTLED or not most:
        return ()
    return (f"its array: {most} element{'' if str(most) == '1' else 's'} at once (max_run_subjobs, sweep.parallelism)",)


def limits_of(comment: Reason, queue: QueueFacts | None, server: QueueFacts | None) -> tuple[str, ...]:
    found = []
    if queue is not None and not queue.started:
        found.append(f"queue {queue.name}: started = False")
    if comment.kind is Why.LIMIT or comment.never:
        for where, facts in (("queue", queue), ("server", server)):
            if facts is not None:
                found += [f"{where} {facts.name}: {key} = {value}" for key, value in facts.limits.items()]
    return tuple(found)


def node_lines(nodes: Sequence[PBSNode], plan: JobPlan) -> tuple[str, ...]:
    """Returns the line `4 nodes: 1 has room for a chunk of it now, 1 takes no jobs`, then one per broken node."""
    if not nodes:
        return ()
    broken = [node for node in nodes if node.broken]
    room = len(fitting(nodes, chunk_of(plan)))
    line = f"{plural(len(nodes), 'node')}: {room} {'has' if room == 1 else 'have'} room for a chunk of it now"
    line += f", {len(broken)} {'takes' if len(broken) == 1 else 'take'} no jobs" if broken else ""
    named = [f"{node.name} is {node.state}" + (f": {node.comment}" if node.comment else "") for node in broken]
    return (line, *pending.first_lines(named, "pbsnodes -l"))


def estimate(record: Mapping[str, Any]) -> float | None:
    estimated = record.get("estimated")
    text = str(estimated.get("start_time", "") if isinstance(estimated, Mapping) else "")
    text = text or str(record.get("estimated.start_time", ""))
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


def chunk_of(plan: JobPlan) -> dict[str, int | str]:
    """Returns what a node must have free, by resource: an amount (memory in bytes), or a text."""
    chunk = {**script.chunk_of(plan), **settings_of(plan, PBSSettings).chunk}
    for not_of_a_node in ("mpiprocs", "ompthreads"):
        chunk.pop(not_of_a_node, None)
    texts = {key: str(value) for key, value in chunk.items() if value is not None}
    return {key: text if (number := amount(text)) is None else number for key, text in texts.items()}


def fitting(nodes: Sequence[PBSNode], chunk: Mapping[str, int | str]) -> list[PBSNode]:
    """Returns the working nodes that have the chunk free. A resource that a node does not report counts as 0."""

    def has(node: PBSNode, resource: str, wanted: int | str) -> bool:
        if isinstance(wanted, int):
            return node.free.get(resource, 0) >= wanted
        return node.others.get(resource, "").lower() == wanted.lower()

    return [node for node in nodes if not node.broken and all(has(node, *each) for each in chunk.items())]


def most_on_each(nodes: Sequence[PBSNode], chunk: Mapping[str, int | str], wanted: int, resource: str) -> int:
    """Returns how much of a resource each of `wanted` nodes has free, beside the chunk's others; 0: too few nodes."""
    rest = {key: value for key, value in chunk.items() if key != resource}
    free = sorted((node.free.get(resource, 0) for node in fitting(nodes, rest)), reverse=True)
    return free[wanted - 1] if len(free) >= wanted else 0


def options(plan: JobPlan, nodes: Sequence[PBSNode], now: float, *, fixed_nodes: bool = False) -> tuple[Option, ...]:
    """Returns an option for the unchanged run, and smaller requests that would fit now (the start of what fits).

    | the run | smaller requests |
    |---|---|
    | fits now | none: it is pending for another reason |
    | fits with less memory, fewer CPUs or GPUs on each node | the largest amount that is free |
    | fits on fewer nodes | that number of nodes, if min_nodes (not with fixed_nodes) and the workload allow it |
    """
    chunk = chunk_of(plan)
    free = len(fitting(nodes, chunk))
    asked = Option((), now if free >= plan.nodes else None, f"{free} of {plan.nodes} nodes have room for it now")
    if free >= plan.nodes:
        return (asked,)
    found = []
    for resource in ("mem", "ncpus", "ngpus"):
        if resource in settings_of(plan, PBSSettings).chunk:  # it overrides the config key
            continue
        most = most_on_each(nodes, chunk, plan.nodes, resource)
        if 0 < most < int(chunk.get(resource, 0)):
            found += _less(plan, resource, most, now)
    if pending.may_offer_fewer_nodes(plan, free, fixed=fixed_nodes):
        note = f"{plural(free * plan.procs_per_node, 'rank')} instead of {plan.world_size}"
        found.append(Option((f"nodes={free}",), now, note))
    return (asked, *found)


def _less(plan: JobPlan, resource: str, most: int, now: float) -> list[Option]:
    if resource == "mem":
        mem = most // 1024**2 * 1024**2
        return [Option((f"mem={format_size(mem)}",), now, "less memory on each node")] if mem else []
    ranks = f"{plural(plan.nodes * most, 'rank')} instead of {plan.world_size}"
    if resource == "ngpus":
        return [Option((f"gpus_per_node={most}",), now, ranks)] if plan.procs_per_node == plan.gpus_per_node else []
    if (each := most // plan.procs_per_node) >= 1 and each < plan.cpus_per_proc:
        return [Option((f"cpus_per_proc={each}",), now, "slower, if the ranks use their CPUs")]
    if plan.gpus_per_node or not most or most >= plan.procs_per_node:
        return []
    return [Option((f"procs_per_node={most}", "cpus_per_proc=1"), now, ranks)]

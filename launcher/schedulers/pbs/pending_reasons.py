"""Explains PBS's comments on pending jobs.

The comments are those of OpenPBS 23.06 (scheduler/job_info.cpp, fctt; server/job_func.c for holds). Older PBS Pro has
the same comments or fewer. Comments have the prefix `Not Running: ` or `Can Never Run: `.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from launcher.schedulers.explanation import Why


@dataclass(frozen=True)
class Comment:
    """An explained comment of PBS's scheduler."""

    kind: Why  # kind of the pending reason
    words: str  # meaning of the comment, as text
    do: str = ""  # what the user can do; `{job}` stands for the job's id
    until: str = ""  # event after which the job starts (`others end`); empty: none
    never: bool = False  # whether the unchanged job can never start


CHANGE = "cancel it, and resume it with less"
# Patterns that match a whole comment without its prefix; the first match applies. Their groups fill the text's fields.
TABLE: tuple[tuple[str, Comment], ...] = (
    (r"Insufficient amount of (?P<of>queue|server) resource: (?P<what>\S+)(?P<more>.*)", Comment(Why.LIMIT,
     "too little of {what} is left of what the {of} may give{more}", until="enough is given back")),
    (r"Insufficient amount of resource: (?P<what>\S+)(?P<more>.*)", Comment(Why.ROOM,
     "too little of {what} is free{more}", until="enough is given back")),
    (r"Not enough free nodes available", Comment(Why.ROOM, "too few nodes are free for all of its chunks at once",
     until="others end")),
    (r"Not enough total nodes available", Comment(Why.ROOM, "it asks for more nodes than there are",
     CHANGE + " (nodes)")),
    (r"Not enough of the right type of nodes (are )?available|No available resources on nodes", Comment(Why.ROOM,
     "too few nodes of the kind that it asks for are free", until="others end")),
    (r"Too few free resources|.* set .* has too few free resources.*|can't fit in the largest placement set.*",
     Comment(Why.ROOM, "no group of nodes (placement set) has room for it", "fewer nodes may fit into one")),
    (r"Node ineligible because job requested pack placement.*", Comment(Why.ROOM,
     "it wants to be on one node (place=pack), and no node has room for all of it", "cluster.place=scatter may help")),
    (r".* is requesting an exclusive node and node is in use", Comment(Why.ROOM,
     "it wants nodes for itself (place=excl), and they are in use", until="others end")),
    (r"Node is in an ineligible state: (?P<what>.*)", Comment(Why.ROOM, "nodes that it could use are {what}")),
    (r"Node is of an ineligible type: (?P<what>.*)", Comment(Why.ROOM, "nodes are of another type ({what})")),
    (r"Node has reached (?P<what>job|user|group) run limit", Comment(Why.ROOM,
     "nodes have as many jobs as they may run ({what} limit)", until="others end")),
    (r"Specified (?P<what>\S+) does not exist: (?P<more>.*)", Comment(Why.ROOM, "there is no {what} {more}",
     "cancel it, and resume it without that (cluster.chunk)")),
    (r"Job would (conflict|interfere) with (a confirmed )?(reservation|reservation or top job)", Comment(Why.ROOM,
     "it would not end before a reservation (or a job in front of it) needs the nodes",
     "a shorter time may end before it; `pbs_rstat -f` lists reservations")),
    (r"Job would interfere with a top job", Comment(Why.ROOM,
     "it would delay jobs that are in front of it in the queue", "a shorter or smaller one may fit before them")),
    (r"Job would break strict sorted order", Comment(Why.ROOM,
     "the site starts jobs strictly in order, and one in front of it waits", "wait, or use another queue")),
    (r"Can't preempt enough work to run job", Comment(Why.ROOM, "not even preempting others would make room for it")),
    (r"Queue not started\.?", Comment(Why.LIMIT, "its queue takes jobs and starts none (started = False)",
     "wait until the site starts it, or use another queue")),
    (r"Queue not an execution queue\.?", Comment(Why.LIMIT, "its queue only hands jobs on, and none has taken it",
     "use an execution queue: `qstat -Q` shows their types")),
    (r"Number of concurrent running subjobs limit reached", Comment(Why.THROTTLED,
     "as many elements of its array run as may run at once (max_run_subjobs)", until="one of them ends")),
    (r"(Queue (?P<queue>\S+?)|Server) job limit (has been )?reached\.?", Comment(Why.LIMIT,
     "as many jobs run as may run at once in {where}", until="one of them ends")),
    (r"(User|Group|Project) has reached (server|queue (?P<queue>\S+?)('s)?) (running )?(job )?(running )?limit\.?",
     Comment(Why.LIMIT, "as many of your jobs run as {where} lets run at once", until="one of them ends")),
    (r"(Queue (?P<queue>\S+)|Server) job limit reached for (user|group|project) (?P<what>\S+)", Comment(Why.LIMIT,
     "as many jobs of {what} run as {where} lets run at once", until="one of them ends")),
    (r"(Queue (?P<queue>\S+)|Server) per-(user|group|project) limit reached on resource (?P<what>\S+)",
     Comment(Why.LIMIT, "your running jobs have all of {what} that {where} gives one user, group or project",
     "a smaller one may fit", until="one of them ends")),
    (r"would exceed (?P<who>(user|group|project) \S+?)'s limit on resource (?P<what>\S+) in "
     r"(complex|queue (?P<queue>\S+))", Comment(Why.LIMIT,
     "with it, {who} would have more of {what} than {where} allows", "a smaller one may fit",
     until="others of them end")),
    (r"would exceed overall limit on resource (?P<what>\S+) in (complex|queue (?P<queue>\S+))", Comment(Why.LIMIT,
     "with it, all jobs together would have more of {what} than {where} allows", until="others end")),
    (r"(Dedicated time conflict|Job would cross dedicated time boundary).*", Comment(Why.ROOM,
     "it would reach into dedicated time (a maintenance window)", "a shorter time may end before it")),
    (r"Job will run in (?P<what>(non)?primetime) only", Comment(Why.WAITS, "its queue runs jobs in {what} only")),
    (r"Job will cross into (?P<what>\S+)", Comment(Why.WAITS, "it would still run when {what} begins",
     "a shorter time may end before it")),
    (r"Job has zero shares for fairshare", Comment(Why.HELD, "you have no share of this site",
     "ask the site's support")),
    (r"Job is under job_sort_formula threshold value", Comment(Why.WAITS,
     "its priority is below what the site starts")),
    (r"Cannot provision.*|Provision.*", Comment(Why.WAITS, "its nodes would have to be provisioned, and cannot be")),
    (r"PBS Error: (?P<what>.*)", Comment(Why.UNKNOWN, "PBS could not start it: {what}",
     "it tries again; ask the site's support if that stays so")),
    (r"Draining system to allow .*", Comment(Why.ROOM, "the scheduler keeps nodes free for a job that waits long")),
    (r"(Job held|job held|Held).*", Comment(Why.HELD, "it is held", "`qrls {job}` lets it go on")),
)  # fmt: skip

# Letters of Hold_Types (qhold(1B)).
HOLDS = {
    "u": ("it is held by you", "`qrls {job}` lets it go on"),
    "o": ("it is held by an operator", "ask the site's support"),
    "s": ("it is held by the system: a dependency, or it could not be started twenty times",
          "the site's managers can release it (qrls -h s {job})"),
    "p": ("its password is not valid any more", "submit it again"),
}  # fmt: skip


def in_words(text: str) -> Comment:
    """Explains a comment of PBS's scheduler; an unknown one is quoted."""
    plain = " ".join(text.split())
    never = plain.startswith("Can Never Run")
    reason = re.sub(r"^(Not Running|Can Never Run): ?", "", plain).strip()
    if not reason:
        return Comment(Why.ROOM, "PBS has not looked at it yet", "ask again in a minute")
    for pattern, comment in TABLE:
        if match := re.fullmatch(pattern, reason):
            names = {key: (value or "").strip() for key, value in match.groupdict().items()}
            names["where"] = f"queue {names['queue']}" if names.get("queue") else "the server"
            names["more"] = _amounts(names.get("more", ""))
            words = comment.words.format_map({"what": "", "of": "", "who": "", **names})
            if never:
                do = CHANGE if comment.until else comment.do
                return Comment(comment.kind, f"it can never start: {words}", do, never=True)
            starts = f"it starts when {comment.until}" if comment.until else ""
            return replace(comment, words=words, do="; ".join(part for part in (starts, comment.do) if part))
    words = f"PBS says: {reason}"
    return Comment(Why.UNKNOWN, f"it can never start; {words}" if never else words, never=never)


def _amounts(text: str) -> str:
    if match := re.fullmatch(r"\(R: (\S+) A: (\S+) T: (\S+)\)", text):
        return f" (it asks for {match[1]}, {match[2]} is free, {match[3]} is there)"
    return f" {text}" if text else ""


def held(types: str) -> tuple[str, str] | None:
    """Explains the letters of Hold_Types; returns the meaning and what to do, or None if the job is not held."""
    return next((words for letter, words in HOLDS.items() if letter in types), None)

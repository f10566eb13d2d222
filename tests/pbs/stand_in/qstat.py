"""The command qstat: selects jobs, queues or the server, and a format for them (OpenPBS 23.06.06, cmds/qstat.c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.pbs.stand_in import errors, layout
from tests.pbs.stand_in.arguments import SERVER, getopt, job_id
from tests.pbs.stand_in.errors import PbsError
from tests.pbs.stand_in.jobs import Attribute, Job, attributes
from tests.pbs.stand_in.layout import Record
from tests.pbs.stand_in.server import Outage, Queue, Server

VERSION = "23.06.06"
OPTIONS = "ainpqrstwxu:fGHJMQEBW:T1F:D:"
CONFLICT = "qstat: conflicting options.\n"
USAGE = """\
usage: 
qstat [-f] [-J] [-p] [-t] [-x] [-E] [-F format | -w] [-D delim] [ job_identifier... | destination... ]
qstat [-a|-i|-r|-H|-T] [-J] [-t] [-u user] [-n] [-s] [-G|-M] [-1] [-w]
\t[ job_identifier... | destination... ]
qstat -Q [-f] [-F format] [-D delim] [ destination... ]
qstat -q [-G|-M] [ destination... ]
qstat -B [-f] [-F format] [-D delim] [ server_name... ]
qstat --version
"""  # noqa: W291  it has that blank
STATES = {"i": "EHQTW", "r": "RS", "H": "MFX"}


@dataclass
class Asked:
    """The options of a qstat.

    Attributes:
        letters: the letters of all options.
        users: the users of -u.
        json: whether the format is JSON (-F json).
    """

    letters: frozenset[str]
    users: tuple[str, ...]
    json: bool

    @property
    def full(self) -> bool:
        return "f" in self.letters

    @property
    def history(self) -> bool:
        return bool(self.letters & {"x", "H"})

    @property
    def selecting(self) -> bool:
        """Whether the server selects the jobs (pbs_selstat); then -t shows elements without their array."""
        return bool(self.users or self.letters & {"i", "r", "H", "J"})

    @property
    def alternate(self) -> bool:
        alternate = bool(self.letters & set("airHsnGMT1") or self.users)
        return alternate and not ({"w", "f"} <= self.letters)


@dataclass
class Answer:
    """The standard output, standard error and exit status of a command."""

    out: str = ""
    err: str = ""
    status: int = 0


@dataclass
class _Printing:
    """The answer of a qstat while its operands are processed one by one.

    Attributes:
        asked: the options.
        answer: the output so far.
        records: the records so far, for JSON.
        answered: whether the server answered with records.
        head: whether the next table needs its headings.
    """

    asked: Asked
    answer: Answer = field(default_factory=Answer)
    records: list[Record] = field(default_factory=list)
    answered: bool = False
    head: bool = True

    def fail(self, text: str, status: int) -> None:
        self.answer.err += f"{text}\n"
        self.answer.status = status


def qstat(server: Server, argv: Sequence[str], outage: Outage | None) -> Answer:
    """Executes qstat.

    Args:
        server: the server; the caller holds its lock.
        argv: the arguments.
        outage: why the server cannot be reached; None: it can.
    """
    found = getopt("qstat", OPTIONS, argv)
    letters = frozenset(letter for letter, _ in found.pairs)
    formats = [value.lower() for letter, value in found.pairs if letter == "F"]
    users = tuple(name for letter, value in found.pairs if letter == "u" for name in value.split(","))
    asked = Asked(letters, users, formats[-1:] == ["json"])
    wrong = "".join(f"{line}\n" for line in found.complaints) + _conflicts(asked, formats)
    if wrong or found.complaints or any(one not in ("default", "json") for one in formats):
        return Answer(err=wrong + USAGE, status=2)
    printing = _Printing(asked)
    section = "Queue" if "Q" in letters else "Server" if "B" in letters else "Jobs"
    for operand in found.rest or [""]:
        if outage:
            printing.fail(outage.text("qstat"), 255)
        elif section == "Queue":
            _queues(server, operand, printing)
        elif section == "Server":
            _show(printing, [(SERVER, server_attributes(server))], "Server")
        else:
            _jobs(server, operand, printing)
    if asked.json:
        printing.answer.out = layout.json_document(
            outage.server if outage else SERVER, VERSION, section, printing.records, asked=printing.answered
        )  # fmt: skip
    return printing.answer


def _conflicts(asked: Asked, formats: Sequence[str]) -> str:
    one_of = sum(letter in asked.letters for letter in "airqH")
    alternate = bool(asked.letters & set("airHsnGMTq1") or asked.users)
    made = CONFLICT * (bool(asked.letters & {"B", "Q"}) and (alternate or {"B", "Q"} <= asked.letters))
    made += CONFLICT * (one_of > 1) + CONFLICT * ({"G", "M"} <= asked.letters)
    made += CONFLICT * (formats[-1:] not in ([], ["default"]) and not asked.full)
    made += CONFLICT * ("1" in asked.letters and not asked.letters & {"n", "s"})
    if "w" in asked.letters and asked.json:
        made += "qstat: option w cannot be used with -F\n"
    return made


def _jobs(server: Server, operand: str, printing: _Printing) -> None:
    asked = printing.asked
    try:
        if operand[:1].isdigit():
            name = job_id(operand)
            if name is None:
                printing.fail(f"qstat: illegally formed job identifier: {operand}", 1)
                return
            found = _of_id(server, name, asked)
        else:
            name = operand
            if name and name not in server.queues:
                printing.fail(f"qstat: Unknown queue destination {name}", 170)
                return
            found = _of_all(server, name, asked)
    except PbsError as error:
        if error.code == errors.FINISHED:
            text = f"qstat: {name} Job has finished, use -x or -H to obtain historical job information"
            printing.fail(text, error.exit_status)
        else:
            printing.fail(f"qstat: {error.text} {name}", 0 if error.code == errors.NO_HISTORY else error.exit_status)
        return
    if found:
        _show(printing, [(job.id, attributes(job)) for job in found], "Job Id")


def _of_id(server: Server, name: str, asked: Asked) -> list[Job]:
    """Returns the jobs for an id. Options that select jobs, such as -u, are ignored, as by the real qstat."""
    if asked.history and not server.settings.history:
        raise errors.no_history()
    jobs = server.find(name)
    if not asked.history and any(job.state == "F" for job in jobs):
        raise errors.finished()
    return [one for job in jobs for one in ([job, *job.subjobs.values()] if "t" in asked.letters else [job])]


def _of_all(server: Server, queue: str, asked: Asked) -> list[Job]:
    """Returns the jobs that the options select, in a queue or (empty) in all queues."""
    if asked.history and not server.settings.history:
        raise errors.no_history()
    found: list[Job] = []
    for job in server.live(history=asked.history):
        if (asked.users and job.submission.owner not in asked.users) or queue not in ("", job.submission.queue):
            continue
        if "J" in asked.letters and not job.is_array:
            continue
        elements = list(job.subjobs.values()) if "t" in asked.letters else []
        found += elements if elements and asked.selecting else [job, *elements]
    if states := "".join(STATES[letter] for letter in STATES if letter in asked.letters):
        found = [job for job in found if job.state in states]
    return found


def _queues(server: Server, operand: str, printing: _Printing) -> None:
    if operand and operand not in server.queues:
        printing.fail(f"qstat: Unknown queue {operand}", 170)
        return
    queues = [server.queues[operand]] if operand else list(server.queues.values())
    _show(printing, [(queue.name, queue_attributes(server, queue)) for queue in queues], "Queue")


def _show(printing: _Printing, records: list[Record], title: str) -> None:
    asked, head = printing.asked, printing.head
    printing.records += records
    printing.answered = True
    if asked.json:
        return
    printing.head = False
    if asked.alternate:
        made = layout.alternate(
            SERVER, records, wide="w" in asked.letters, head=head, comments="s" in asked.letters,
            nodes="n" in asked.letters, one_line="1" in asked.letters,
        )  # fmt: skip
    elif asked.full:
        made = "".join(layout.full(title, record) for record in records)
    elif title == "Job Id":
        made = layout.table(records, wide="w" in asked.letters, head=head)
    else:
        made = (layout.queue_table if title == "Queue" else layout.server_table)(records, head=head)
    printing.answer.out += made


# -- queues and the server


def queue_attributes(server: Server, queue: Queue) -> list[Attribute]:
    jobs = [job for job in server.live(history=True) if job.submission.queue == queue.name]
    return [
        ("queue_type", None, "Route" if queue.routes else "Execution"), ("total_jobs", None, str(len(jobs))),
        ("state_count", None, _state_count(jobs)),
        *(("resources_max", name, value) for name, value in queue.most.items()),
        *(("resources_min", name, value) for name, value in queue.least.items()),
        *([("max_queued", None, f"[u:PBS_GENERIC={queue.jobs}]")] if queue.jobs is not None else ()),
        *([("from_route_only", None, "True")] if queue.inner else ()),
        *([("route_destinations", None, ",".join(queue.routes))] if queue.routes else ()),
        ("enabled", None, str(queue.enabled)), ("started", None, "True"),
    ]  # fmt: skip


def server_attributes(server: Server) -> list[Attribute]:
    jobs = server.live(history=True)
    settings = server.settings
    rest = {
        "default_queue": settings.default_queue, "log_events": "511", "mailer": "/usr/sbin/sendmail",
        "mail_from": "adm",
        "query_other_jobs": "True", "resources_default.ncpus": "1", "default_chunk.ncpus": "1",
        "scheduler_iteration": "10", "flatuid": "True", "resv_enable": "True", "node_fail_requeue": "310",
        "max_array_size": str(settings.max_array_size), "pbs_license_min": "0", "pbs_license_max": "2147483647",
        "pbs_license_linger_time": "31536000",
        "license_count": "Avail_Global:1000000 Avail_Local:1000000 Used:0 High_Use:0", "pbs_version": VERSION,
        "eligible_time_enable": "False", "job_history_enable": str(settings.history),
        "max_concurrent_provision": "5", "power_provisioning": "False", "max_job_sequence_id": "9999999",
    }  # fmt: skip
    return [
        ("server_state", None, "Active"), ("server_host", None, SERVER),
        ("scheduling", None, str(not settings.frozen)), ("total_jobs", None, str(len(jobs))),
        ("state_count", None, _state_count(jobs)),
        *((name.partition(".")[0], name.partition(".")[2] or None, value) for name, value in rest.items()),
    ]  # fmt: skip


def _state_count(jobs: Sequence[Job]) -> str:
    words = {"Transit": "T", "Queued": "Q", "Held": "H", "Waiting": "W", "Running": "R", "Exiting": "E", "Begun": "B"}
    return "".join(f"{word}:{sum(job.state == letter for job in jobs)} " for word, letter in words.items())

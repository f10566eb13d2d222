"""Executes qdel, qsig, qselect, qrerun, qhold, qrls, qalter and pbsnodes (OpenPBS 23.06.06, cmds/)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence

from tests.pbs.stand_in import errors, resources
from tests.pbs.stand_in.arguments import Options, equals_pairs, getopt, job_id
from tests.pbs.stand_in.errors import PbsError
from tests.pbs.stand_in.qstat import VERSION, Answer, qstat
from tests.pbs.stand_in.qsub import dependencies
from tests.pbs.stand_in.server import Outage, Server

USAGES = {
    "qdel": "usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...\n\tqdel --version\n",
    "qsig": "usage: qsig [-s signal] job_identifier...\n       qsig --version\n",
    "qrerun": "usage: qrerun [-W force] job_identifier...\n       qrerun --version\n",
    "qhold": "usage: qhold [-h hold_list] job_identifier...\n       qhold --version\n",
    "qrls": "usage: qrls [-h hold_list] job_identifier...\n       qrls --version\n",
    "qalter": (
        "usage: qalter [-a date_time] [-A account_string] [-c interval] [-e path]\n"
        "\t[-h hold_list] [-j y|n] [-k keep] [-l resource_list]\n"
        "\t[-m mail_options] [-M user_list] [-N jobname] [-o path] [-p priority]\n"
        "\t[-R o|e|oe] [-r y|n] [-S path] [-u user_list] [-W dependency_list]\n"
        "\t[-P project_name] job_identifier...\n       qalter --version\n"
    ),
    "qselect": (
        "usage: qselect [-a [op]date_time] [-A account_string] [-c [op]interval]\n"
        "\t[-h hold_list] [-H] [-J] [-l resource_list] [-N name] [-p [op]priority]\n"
        "\t[-q destination] [-r y|n] [-s states] [-t subopt[op]date_time] [-T] [-P project_name]\n"
        "\t[-x] [-u user_name]\n       qselect --version\n"
    ),
    "pbsnodes": "usage:\n\tpbsnodes -a [-v] [-S[j][L]] [-F dsv|json] [-D delim]\n",
}
OPTIONS = {
    "qdel": "W:x", "qsig": "s:", "qrerun": "W:", "qhold": "h:-:", "qrls": "h:",
    "qalter": "a:A:c:e:h:j:k:l:m:M:N:o:p:r:R:S:u:W:P:", "qselect": "a:A:c:h:HJl:N:p:q:r:s:t:Tu:xP:",
    "pbsnodes": "aClvSjLF:D:Hrod",
}  # fmt: skip


def run(name: str, server: Server, argv: Sequence[str], environ: Mapping[str, str]) -> Answer:
    """Executes a command other than qsub and pbsdsh.

    Args:
        name: the command.
        server: the server; the caller holds its lock.
        argv: the arguments.
        environ: the environment of the command.
    """
    if list(argv) == ["--version"]:
        return Answer(f"pbs_version = {VERSION}\n")
    outage = server.outage(environ)
    if name == "qstat":
        return qstat(server, argv, outage)
    found = getopt(name, OPTIONS[name], argv)
    if found.complaints or (name == "qselect" and found.rest) or not (found.rest or name in ("qselect", "pbsnodes")):
        return Answer(err="".join(f"{line}\n" for line in found.complaints) + USAGES[name], status=2)
    if name == "qdel":
        return _qdel(server, found, outage)
    if outage and not found.rest:
        return Answer(err=f"{outage.text(name)}\n", status=outage.code % 256)
    if name == "qselect":
        return _qselect(server, found)
    if name == "pbsnodes":
        return Answer(_nodes(server))
    return _each(name, server, found, outage)


def _qdel(server: Server, found: Options, outage: Outage | None) -> Answer:
    """Executes qdel: deletes the jobs in one request. An error for one id does not prevent the deletion of others."""
    answer, options = Answer(), dict(found.pairs)
    wish = options.get("W", "0")
    if wish != "force" and not wish.startswith("suppress_email=") and not wish.isdecimal():
        return Answer(err=f"qdel: illegal -W value\n{USAGES['qdel']}", status=2)
    good = []
    for word in found.rest:
        if job_id(word):
            good.append(word)
        else:
            answer.err += f"qdel: illegally formed job identifier: {word}\n"
            answer.status = 1
    if good and outage:
        text = f"{answer.err}{outage.words}\nCouldn't connect to cluster: {outage.server}\n"
        return Answer(err=text, status=outage.code % 256)
    unknown = False
    for word in good:
        try:
            who = f"{server.user}@{socket.gethostname()}"
            server.delete(job_id(word) or "", who, force=wish == "force", with_history="x" in options)
        except PbsError as error:
            # Only the first of several unknown ids is reported. (If others are known, the real server may crash.)
            if not (unknown and error.code == errors.UNKNOWN_JOB):
                answer.err += f"qdel: {error.text} {word}\n"
            unknown = unknown or error.code == errors.UNKNOWN_JOB
            answer.status = error.exit_status
    return answer


def _each(name: str, server: Server, found: Options, outage: Outage | None) -> Answer:
    """Executes a command that sends a request for each job id: qsig, qrerun, qhold, qrls, qalter."""
    answer = Answer()
    try:
        act = _action(name, server, found)
    except (ValueError, PbsError) as error:
        return Answer(err=f"{error}\n{USAGES[name]}", status=2)
    for word in found.rest:
        full = job_id(word)
        if full is None:
            answer.err += f"{name}: illegally formed job identifier: {word}\n"
            answer.status = 1
        elif outage:
            answer.err += f"{outage.text(name)}\n"
            answer.status = outage.code % 256
        else:
            try:
                act(full)
            except PbsError as error:
                answer.err += f"{name}: {error.text}" + (f" {full}\n" if error.code != errors.FINISHED else "\n")
                answer.status = error.exit_status
    return answer


def _action(name: str, server: Server, found: Options) -> Callable[[str], None]:
    """Returns the function that carries out a command for one job id."""
    options = dict(found.pairs)
    if name == "qsig":
        return lambda job: server.signal(job, options.get("s", "SIGTERM"))
    if name == "qhold":
        return server.hold
    if name == "qrls":
        return lambda job: server.hold(job, release=True)
    if name == "qalter":
        return _alteration(server, found)

    def refuse(job: str) -> None:
        server.find(job)
        raise errors.permission()

    return refuse


def _alteration(server: Server, found: Options) -> Callable[[str], None]:
    """Returns the function that changes a job by its id, as the options of qalter say."""
    name: str | None = None
    asked: dict[str, str] = {}
    most: int | None = None
    depend: str | None = None
    for letter, value in found.pairs:
        if letter == "N":
            name = value
        elif letter == "l":
            asked |= dict(resources.resource_pairs(value))
        elif letter == "W":
            pairs = dict(equals_pairs(value))
            limit, depend = pairs.get("max_run_subjobs"), dependencies(pairs.get("depend", "")) or depend
            most = int(limit) if limit else most
        else:
            raise ValueError(f"qalter: illegal -{letter} value")
    resources.check_values(asked)
    return lambda job: server.alter(job, name=name, asked=asked, max_run_subjobs=most, depend=depend)


def _qselect(server: Server, found: Options) -> Answer:
    """Executes qselect: prints the ids of matching jobs, one in a line; with -T, elements instead of their array."""
    options = dict(found.pairs)
    history = "x" in options or "H" in options
    if history and not server.settings.history:
        return Answer(err="qselect: PBS is not configured to maintain job history\n")
    made = ""
    for job in server.live(history=history):
        asked = job.submission
        wanted = {"u": asked.owner, "N": asked.name, "q": asked.queue, "A": asked.account, "P": asked.project}
        states = options.get("s", "") + "FM" * ("H" in options)
        if "J" in options and not job.is_array:
            continue
        if all(wanted[letter] in value.split(",") for letter, value in found.pairs if letter in wanted):
            ones = list(job.subjobs.values()) if "T" in options and job.is_array else [job]
            made += "".join(f"{one.id}\n" for one in ones if not states or one.state in states)
    return Answer(made)


def _nodes(server: Server) -> str:
    """Returns the output of `pbsnodes -a`."""
    made = ""
    for node in server.nodes():
        state = "down" if node.host in server.lost else "free" if node.free["ncpus"] else "job-busy"
        lines = {
            "Mom": node.host, "Port": "15002", "pbs_version": VERSION, "ntype": "PBS",
            "state": state, "pcpus": "2",
            "resources_available.arch": "linux", "resources_available.host": node.host,
            "resources_available.mem": f"{node.total['mem']}kb",
            "resources_available.ncpus": str(node.total["ncpus"]),
        }  # fmt: skip
        if "ngpus" in server.settings.resources:
            lines["resources_available.ngpus"] = str(node.total["ngpus"])
        lines |= {
            "resources_available.vnode": node.host,
            "resources_assigned.mem": f"{node.total['mem'] - node.free['mem']}kb",
            "resources_assigned.ncpus": str(node.total["ncpus"] - node.free["ncpus"]),
        }  # fmt: skip
        if "ngpus" in server.settings.resources:
            lines["resources_assigned.ngpus"] = str(node.total["ngpus"] - node.free["ngpus"])
        lines |= {"resv_enable": "True", "sharing": "default_shared", "license": "l",
                  "last_state_change_time": time.ctime()}  # fmt: skip
        made += f"{node.host}\n" + "".join(f"     {name} = {value}\n" for name, value in lines.items()) + "\n"
    return made

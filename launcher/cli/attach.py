"""`attach`: beside a rank of a running job: a shell, the stacks of all ranks, or the debugger where one waits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from launcher.cli.options import RUN, add_runs_dir, find, whole_number
from launcher.errors import RunError
from launcher.own_module import own_module

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from launcher.monitoring.live import Seen
    from launcher.runs.directory import Attempt


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument(
        "--rank", type=whole_number, metavar="R",
        help="this rank (default: 0; stacks: all; debugger: the one that waits)",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--shell", action="store_const", const="shell", dest="what",
        help="a shell on the rank's node, in its folder and environment (default at a terminal)",
    )  # fmt: skip
    what.add_argument(
        "--stack", action="store_const", const="stack", dest="what",
        help="where every rank is, as Python stacks; they go on (default elsewhere)",
    )  # fmt: skip
    what.add_argument(
        "--debug", action="store_const", const="debug", dest="what",
        help="the prompt of the rank that waits at breakpoint(); submit with debug.rank=0",
    )  # fmt: skip
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Get beside a rank of RUN, which must be running: a shell, the stacks of all ranks, or its debugger."""
    from launcher.files.ownership import require_own
    from launcher.monitoring.live import Live, look  # not for --help

    found = find(arguments.name, arguments.runs_dir)
    require_own(found.path, "attach to it")
    seen = look(found, Live())
    attempt = _running(seen)
    members = _members(attempt.events())
    _require_rank(seen, members, arguments.rank)
    what = arguments.what or ("shell" if sys.stdin.isatty() else "stack")
    if what == "stack":
        return _stack(attempt, members, arguments.rank)
    if what == "debug":
        return _debug(seen, attempt, members, arguments.rank)
    return _shell(seen, attempt, members, arguments.rank or 0)


def _running(seen: Seen) -> Attempt:
    """The attempt that runs.

    Raises:
        RunError: none does.
    """
    from launcher.monitoring.state import RunState

    id, attempts = seen.run.id, seen.run.attempts()
    if seen.state.over:
        raise RunError(
            f"{id} is {seen.state.value}, so there is no rank to attach to: `logs {id}` shows what it has printed"
        )
    if seen.state is RunState.QUEUED or not attempts or seen.story.ended is not None:
        raise RunError(f"{id} is {seen.state.value}: its ranks have not started yet")
    return attempts[-1]


def _members(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the agents of the newest round have told of it, one event each; its number of agents is in each. Pure."""
    met = [event for event in events if event["event"] == "met"]
    newest = max((event.get("round", 0) for event in met), default=0)
    return [event for event in met if event.get("round", 0) == newest]


def _require_rank(seen: Seen, members: Sequence[Mapping[str, Any]], rank: int | None) -> None:
    from launcher.attach import requests

    if not members or not requests.listens(seen.run.attempts()[-1]):
        raise RunError(f"the agents of {seen.run.id} have not met yet: try again in a moment")
    ranks = members[0]["ranks"]
    if rank is not None and rank >= ranks:
        raise RunError(f"{seen.run.id} has no rank {rank}: its ranks are 0 to {ranks - 1}")


# -- stacks


def _stack(attempt: Attempt, members: Sequence[Mapping[str, Any]], rank: int | None) -> int:
    from launcher.attach import requests
    from launcher.attach.reach import ANSWERS_WITHIN, until
    from launcher.runs import stacks

    count = members[0]["members"]
    folder = requests.ask(attempt, requests.STACKS, count)
    until(lambda: len(requests.answers(folder)) >= count or None)
    answers = requests.answers(folder)
    reports = [report for answer in answers.values() for report in answer if rank in (None, report["rank"])]
    for number, group in enumerate(stacks.group(reports)):
        print("\n".join(["", *stacks.lines(group)] if number else stacks.lines(group)))
    requests.answer(folder / "stacks.txt", "\n".join(f"rank {each['rank']}\n{each['stack']}" for each in reports))
    print(f"\nall threads of each: {folder}/stacks.txt")
    if len(answers) == count:
        return 0
    hosts = {report["host"] for answer in answers.values() for report in answer}
    silent = sorted({str(event["host"]) for event in members} - hosts)
    print(
        f"launcher: {count - len(answers)} of {count} agents did not answer within {ANSWERS_WITHIN:g} s"
        + (f": {', '.join(silent)}" if silent else ""),
        file=sys.stderr,
    )
    return 1


# -- a shell


def _shell(seen: Seen, attempt: Attempt, members: Sequence[Mapping[str, Any]], rank: int) -> int:
    import os
    import socket
    import subprocess

    from launcher.attach import reach, requests
    from launcher.files.os_errors import NOT_ON_PATH

    count = members[0]["members"]
    folder = requests.ask(attempt, requests.RANK, count, rank=rank)
    place = reach.until(lambda: next(iter(requests.answers(folder)), None))
    if place is None:
        raise RunError(f"the agent of rank {rank} does not answer within {reach.ANSWERS_WITHIN:g} s")
    file, told = folder / f"member-{place}", requests.answers(folder)[place]
    way = reach.way(told["host"], told["job"], socket.gethostname())
    if way is reach.Way.NETWORK:
        from launcher.attach.terminal import sit_at

        question = {"mode": "shell", "term": os.environ.get("TERM")}
        return sit_at(reach.enter(seen.plan, attempt, told["host"], rank, count, **question))
    command = [sys.executable, *own_module("launcher.attach.beside"), "shell", str(file)]
    if way is reach.Way.SRUN:
        words = ("shell", str(file))
        command = reach.srun(seen.plan, told["host"], told["job"], *words, terminal=sys.stdin.isatty())
    try:
        return subprocess.run(command, env=reach.srun_environment(seen.plan, os.environ), check=False).returncode
    except NOT_ON_PATH:
        raise RunError("srun is not on this machine's PATH: attach from a login node of the cluster") from None


# -- the debugger


def waiting(events: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The breakpoints at which ranks wait, by rank, in the events of an attempt. Pure."""
    found: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "breakpoint":
            found[int(event["rank"])] = event
        elif event["event"] == "continued":
            found.pop(int(event["rank"]), None)
        elif event["event"] == "restart":  # those that waited are gone
            found.clear()
    return found


def _debug(seen: Seen, attempt: Attempt, members: Sequence[Mapping[str, Any]], rank: int | None) -> int:
    import os
    import socket

    from launcher.attach import reach
    from launcher.attach.prompt import talk

    at = _where(seen, waiting(attempt.events()), rank)
    rank, host, job = int(at["rank"]), str(at["host"]), at.get("job")
    way = reach.way(host, job, socket.gethostname())
    if way is reach.Way.SRUN:
        command = reach.srun(seen.plan, host, str(job), "relay", at["socket"], terminal=False)
        line = reach.over_srun(command, reach.srun_environment(seen.plan, os.environ))
    elif way is reach.Way.HERE:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(at["socket"])
        except OSError as error:
            raise RunError(
                f"rank {rank} does not listen at {at['socket']} any more ({error.strerror}): it has ended"
            ) from None
        line = reach.over_socket(connection)
    else:
        question = {"mode": "debug", "socket": at["socket"]}
        line = reach.over_socket(reach.enter(seen.plan, attempt, host, rank, members[0]["members"], **question))
    try:
        code = talk(line, rank)
    finally:
        line.close()
    if code and way is reach.Way.SRUN:
        print(f"launcher: that was srun --overlap, of Slurm 20.11 or newer, to {host}", file=sys.stderr)
    return code


def _where(seen: Seen, at: Mapping[int, Mapping[str, Any]], rank: int | None) -> Mapping[str, Any]:
    """The breakpoint that is meant.

    Raises:
        RunError: none is, or several are.
    """
    id, waits = seen.run.id, "; ".join(f"rank {each} in {event['where']}" for each, event in sorted(at.items()))
    if not seen.plan.debugs:
        raise RunError(f"{id} passes over breakpoint(): submit it with debug.rank=0 (a list of ranks, or all)")
    if rank is not None and rank in at:
        return at[rank]
    if rank is None and len(at) == 1:
        return next(iter(at.values()))
    if at:
        which = "several ranks wait" if rank is None else f"rank {rank} does not wait at a breakpoint"
        raise RunError(f"{which}: choose with --rank ({waits})")
    ranks = ", ".join(map(str, seen.plan.debug_ranks[:8])) + (", ..." if len(seen.plan.debug_ranks) > 8 else "")
    raise RunError(
        f"no rank of {id} waits at a breakpoint now (debug.rank: {ranks}); `attach {id} --stack` shows where they are"
    )

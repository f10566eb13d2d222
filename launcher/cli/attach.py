"""`attach`: a shell on the node of a rank, the stacks of all ranks, or the debugger of a rank at a breakpoint."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.attach import connect, node_session
from launcher.attach.connect import REPLY_TIMEOUT, connect_terminal, run_prompt, wait_until
from launcher.cli.progress import at_breakpoints
from launcher.errors import RunError
from launcher.files.ownership import require_own
from launcher.files.shared_files import NOT_ON_PATH
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus, status_of
from launcher.runs import health
from launcher.runs.directory import Attempt
from launcher.runs.events import Breakpoint, Met, every
from launcher.runs.lookup import find


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    require_own(found.path, "attach to it")
    seen = status_of(found, JobMonitor())
    attempt = _running(seen)
    members = _members(attempt.latest_events())
    _require_rank(seen, members, arguments.rank)
    what = arguments.what or ("shell" if sys.stdin.isatty() else "stack")
    if what == "stack":
        return _stack(attempt, members, arguments.rank)
    if what == "debug":
        return _debug(seen, attempt, members, arguments.rank)
    return _shell(seen, attempt, members, arguments.rank or 0)


def _running(seen: RunStatus) -> Attempt:
    id, attempts = seen.run.id, seen.run.attempts()
    if seen.state.over:
        gone = f"{id} is {seen.state.value}, so there is no rank to attach to"
        raise RunError(f"{gone}: `logs {id}` shows what it has printed")
    if seen.state is RunState.QUEUED or not attempts or seen.history.ended is not None:
        raise RunError(f"{id} is {seen.state.value}: its ranks have not started yet")
    return attempts[-1]


def _members(events: Sequence[Mapping[str, Any]]) -> list[Met]:
    # Every `met` event has the number of agents
    met = every(events, Met)
    newest = max((event.round for event in met), default=0)
    return [event for event in met if event.round == newest]


def _require_rank(seen: RunStatus, members: Sequence[Met], rank: int | None) -> None:
    if not members or not node_session.is_listening(seen.run.attempts()[-1]):
        raise RunError(f"{seen.run.id} has not finished its rendezvous yet: try again in a moment")
    ranks = members[0].ranks
    if rank is not None and rank >= ranks:
        raise RunError(f"{seen.run.id} has no rank {rank}: its ranks are 0 to {ranks - 1}")


def _stack(attempt: Attempt, members: Sequence[Met], rank: int | None) -> int:
    count = members[0].members
    folder = node_session.send(attempt, node_session.STACKS, count)
    wait_until(lambda: len(node_session.replies(folder)) >= count or None)
    replies = node_session.replies(folder)
    reports = [report for reply in replies.values() for report in reply if rank in (None, report["rank"])]
    for number, group in enumerate(health.group_stacks(reports)):
        print("\n".join(["", *health.stack_lines(group)] if number else health.stack_lines(group)))
    whole = "\n".join(f"rank {each['rank']}\n{each['stack']}" for each in reports)
    node_session.write_reply(folder / "stacks.txt", whole)
    print(f"\nall threads of each: {folder}/stacks.txt")
    if len(replies) == count:
        return 0
    silent = sorted({event.host for event in members} - {each["host"] for reply in replies.values() for each in reply})
    late = f"{count - len(replies)} of {count} agents did not answer within {REPLY_TIMEOUT:g} s"
    print(f"launcher: {late}" + (f": {', '.join(silent)}" if silent else ""), file=sys.stderr)
    return 1


def _shell(seen: RunStatus, attempt: Attempt, members: Sequence[Met], rank: int) -> int:
    count = members[0].members
    folder = node_session.send(attempt, node_session.RANK, count, rank=rank)
    place = connect.wait_until(lambda: next(iter(node_session.replies(folder)), None))
    if place is None:
        raise RunError(f"the agent of rank {rank} does not answer within {connect.REPLY_TIMEOUT:g} s")
    file, location = folder / f"member-{place}", node_session.replies(folder)[place]
    host, job = location["host"], location["job"]
    access = connect.access(seen.plan, host, job, socket.gethostname())
    if access is None:
        term = os.environ.get("TERM")
        return connect_terminal(connect.over_network(seen.plan, attempt, host, rank, count, mode="shell", term=term))
    command = access.command("shell", str(file), terminal=sys.stdin.isatty())
    try:
        return subprocess.run(command, env=access.environment(os.environ), check=False).returncode
    except NOT_ON_PATH:
        raise connect.not_on_path(command) from None


def _debug(seen: RunStatus, attempt: Attempt, members: Sequence[Met], rank: int | None) -> int:
    at = _choose(seen, at_breakpoints(attempt.latest_events()), rank)
    rank, host, job = at.rank, at.host, at.job
    access = connect.access(seen.plan, host, job, socket.gethostname())
    if access is not None:
        command = access.command("relay", at.socket, terminal=False)
        debugger = connect.over_process(command, access.environment(os.environ))
    else:
        count = members[0].members
        channel = connect.over_network(seen.plan, attempt, host, rank, count, mode="debug", socket=at.socket)
        debugger = connect.over_channel(channel)
    try:
        code = run_prompt(debugger, rank)
    finally:
        debugger.close()
    if code and access is not None and access.scheduler is not None:
        print(f"launcher: that was {access.scheduler.step_requirement}, to {host}", file=sys.stderr)
    return code


def _choose(seen: RunStatus, at: Mapping[int, Breakpoint], rank: int | None) -> Breakpoint:
    id, waits = seen.run.id, "; ".join(f"rank {each} in {event.where}" for each, event in sorted(at.items()))
    if not seen.plan.debugs:
        raise RunError(f"{id} ignores breakpoint(): submit it with debug.rank=0 (or a list of ranks, or all)")
    if rank is not None and rank in at:
        return at[rank]
    if rank is None and len(at) == 1:
        return next(iter(at.values()))
    if at:
        which = "several ranks wait" if rank is None else f"rank {rank} does not wait at a breakpoint"
        raise RunError(f"{which}: choose with --rank ({waits})")
    ranks = ", ".join(map(str, seen.plan.debug.ranks[:8])) + (", ..." if len(seen.plan.debug.ranks) > 8 else "")
    raise RunError(
        f"no rank of {id} waits at a breakpoint now (debug.rank: {ranks}); `attach {id} --stack` shows where they are"
    )

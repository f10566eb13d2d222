"""What a forked rank does: find its place, make the process group, call the workload."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from enum import Enum
from multiprocessing.synchronize import Event
from typing import Any, get_type_hints

from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from launcher import config as schema
from launcher import errors
from launcher.node import debug, pulse, watchdog
from launcher.node.events import Events, current_attempt
from launcher.node.rendezvous import Member
from launcher.plan import JobPlan
from launcher.post_mortem.symptoms import LOST_PEER

SYMPTOM_DELAY = 2.0  # seconds
AGENTS_OWN = ("LAUNCHER_TASK", "LAUNCHER_TASKS", "LAUNCHER_NODE")  # the agent's place, not the rank's


def run_rank(
    plan: JobPlan, members: Sequence[Member], index: int,
    signs: pulse.Pulse, stacks: watchdog.Stacks, agent: int, round_number: int, gate: Event,
) -> dict[str, Any]:  # fmt: skip
    """Runs the workload in this process, whose RANK the agent has set.

    Args:
        plan: the run.
        members: the agents that met.
        index: which of them forked this rank.
        signs: where the ranks of that agent tell that they live.
        stacks: where they write their stacks when they hang.
        agent: its process id.
        round_number: how often ranks of this attempt were started before.
        gate: opens when the store may be used.

    Returns:
        The workload's metrics.
    """
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # nobody would watch it any more; torch's SIGINT may be a training's stop
    if os.getppid() != agent:
        os._exit(errors.FAILED)
    local = int(os.environ["LOCAL_RANK"])
    pulse.take(signs.slot(local))
    watchdog.serve(stacks.file(local))
    # The agent's handlers are not this process's. Ranks that start again can resume: what tells them to stop before
    # they listen must not look like a crash, and is handed on by the agent when they do.
    default = signal.SIG_IGN if round_number else signal.SIG_DFL
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, default)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # a warning, and for those that listen only
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(place_variables(members, index, local))
    os.environ["LAUNCHER_CHECKPOINT_DIR"] = plan.checkpoint_dir
    if plan.own_code:
        os.makedirs(plan.checkpoint_dir, mode=0o700, exist_ok=True)
    for variable in AGENTS_OWN:
        os.environ.pop(variable, None)

    try:
        with debug.install(**debug.wanted(plan)):
            if plan.kind == "Program":
                from launcher.node import program

                gate.wait(plan.rendezvous_timeout)
                attempt = int(os.environ["LAUNCHER_ATTEMPT"])
                return program.main(plan, signs, stacks, local, attempt, round_number)
            return _run_workload(plan, gate)
    except SystemExit as leave:
        if isinstance(leave.code, str):
            raise RuntimeError(f"sys.exit({leave.code!r})").with_traceback(leave.__traceback__) from None
        if leave.code:
            raise
        return {}
    except Exception as error:
        if isinstance(error, errors.LauncherError) and error.exit_code == errors.RESUME:
            sys.exit(end_attempt(error))
        if final(error) and (slot := pulse.mine()) is not None:
            slot.give_up()
        if LOST_PEER.search(str(error)):
            print(f"lost another rank: {error}", file=sys.stderr)
            time.sleep(SYMPTOM_DELAY)
        else:
            frames = error.__traceback__ and error.__traceback__.tb_next
            traceback.print_exception(type(error), error, frames and frames.tb_next)
        raise


def end_attempt(error: errors.LauncherError) -> int:
    """Says why this attempt ends although a later one may go on; the exit code."""
    print(f"launcher: {error}", file=sys.stderr, flush=True)
    if os.environ.get("RANK", "0") == "0":
        Events(current_attempt(), "stop")("stop", cause=str(error), code=error.code)
    return error.exit_code


def final(error: Exception) -> bool:
    """Whether it would come again, wherever the work is taken up: a workload or the launcher itself said no. Pure."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, errors.LauncherError) or "WorkloadError" in names


def _run_workload(plan: JobPlan, gate: Event) -> dict[str, Any]:
    from launcher.node import process_group

    module, _, function = plan.entry.partition(":")
    workload = getattr(importlib.import_module(module), function)
    gate.wait(plan.rendezvous_timeout)
    joining, collective = plan.rendezvous_timeout, plan.timeout
    if plan.debugs:  # for a rank that stands at a breakpoint the others wait as long as it takes
        joining = collective = int(debug.FOREVER)
    env = None
    if plan.params.get("init", True):  # a function may make its own
        env = process_group.init(plan.backend, plan.device, rendezvous_timeout=joining, timeout=collective)
    metrics = workload(workload_config(plan), env) or {}
    process_group.report(**metrics)
    process_group.close()
    return dict(metrics)


def place_variables(members: Sequence[Member], index: int, local: int) -> dict[str, str]:
    """torchrun's variables for one rank. Pure.

    The elastic agent sets them for its own ranks only; with launch=tasks a node has several agents.
    """
    me = members[index]
    nodes = list(dict.fromkeys(member.node_rank for member in members))
    on_node = [member for member in members if member.node_rank == me.node_rank]
    hosts = {member.node_rank: member.host for member in members}
    node = str(nodes.index(me.node_rank))
    return {
        "LOCAL_RANK": str(sum(member.ranks for member in on_node if member.index < me.index) + local),
        "LOCAL_WORLD_SIZE": str(sum(member.ranks for member in on_node)),
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "LAUNCHER_HOSTS": ",".join(hosts[number] for number in nodes),
    }


def workload_config(plan: JobPlan) -> schema.Workload:
    """The workload's keys as the dataclass of its schema."""
    kind = getattr(schema, plan.kind)
    hints = get_type_hints(kind)
    values = {
        name: hints[name](value) if isinstance(hints[name], type) and issubclass(hints[name], Enum) else value
        for name, value in plan.params.items()
    }
    return kind(**values)

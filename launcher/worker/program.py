"""A rank that is the user's own program: a script written for torchrun, a module, or any executable file.

A forked rank becomes it by `exec`, so that it is what torchrun would have started: a Python of its own, with the same
process id, output files and place in the job. It finds torchrun's variables and the launcher's:

| variable | says |
|---|---|
| `LAUNCHER_CHECKPOINT_DIR` | where it may save: the same folder in every attempt |
| `LAUNCHER_ATTEMPT`, `LAUNCHER_ROUND` | how often the run, and within this attempt its ranks, were started before |
| `LAUNCHER_RESTART` | 1 when either is more than 0, else 0 |
| `LAUNCHER_PULSE` | where `launcher.progress` tells the agent how far it is |
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from launcher.failures.symptoms import LOST_PEER
from launcher.spec.arguments import runs_as_it_is
from launcher.spec.arguments import words as words_of
from launcher.spec.plan import JobPlan
from launcher.worker import debugger, handover, script


@dataclass(frozen=True)
class Shared:
    """Descriptors of what this process shares with its agent, and its place among that agent's ranks.

    Attributes:
        pulse: memory with the signs of life of all ranks of the agent.
        stacks: file for this rank's stacks.
        report: file for how this rank ends.
        place: of this rank.
    """

    pulse: int
    stacks: int
    report: int
    place: int


def main(plan: JobPlan, shared: Shared, attempt: int, lives: int) -> dict[str, Any]:
    """Makes this process the program, or runs it here if that is wanted.

    Args:
        plan: the run.
        shared: what this process shares with its agent.
        attempt: number of this attempt.
        lives: how often ranks of this attempt were started before.

    Raises:
        OSError: it cannot be started.
    """
    os.environ.update(variables(plan, os.environ, attempt, lives))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if plan.workload.params["fork"]:
        return _here(plan.workload.params)
    return _become(plan, shared)


def _become(plan: JobPlan, shared: Shared) -> NoReturn:
    words = command(plan.workload.params, sys.executable, executable=_is_executable(plan.workload.params["script"]))
    descriptors = [shared.pulse, shared.stacks, shared.report]
    os.environ["LAUNCHER_PULSE"] = f"{os.getpid()}:{shared.pulse}:{shared.place}"
    settings: dict[str, Any] = {
        "stacks": shared.stacks, "report": shared.report, "descriptors": descriptors,
        "lost_peer": LOST_PEER.pattern, "delay": handover.SYMPTOM_DELAY,
        "debug": {"launcher": str(Path(script.__file__).parents[2]), **debugger.wanted(plan)},
    }  # fmt: skip
    os.environ["LAUNCHER_PROGRAM"] = json.dumps(settings)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # it asks for stacks, and no program but a Python has any
    os.setpgid(0, 0)  # what a scheduler tells all processes of a task comes once, from the agent
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], words, os.environ)  # noqa: S606  a list of words needs no shell


def command(params: Mapping[str, Any], python: str, *, executable: bool) -> list[str]:
    """What a rank executes. Pure.

    Args:
        params: the workload's keys.
        python: interpreter where the workload names none.
        executable: its script is to be run as it is.
    """
    words = words_of(params["args"])
    if params["module"] is None and executable:
        return [os.path.abspath(os.path.expanduser(params["script"])), *words]
    kind = ("module", params["module"]) if params["module"] else ("script", os.path.expanduser(params["script"]))
    return [os.path.expanduser(params["python"] or python), "-u", script.__file__, *kind, *words]


def variables(plan: JobPlan, environ: Mapping[str, str], attempt: int, lives: int) -> dict[str, str]:
    """What the program finds in its environment besides its place. Pure.

    As under torchrun, ranks that share a node do not each take all of its CPUs.
    """
    found = {
        "LAUNCHER_RESTART": str(int(attempt > 0 or lives > 0)),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.launch.max_restarts),
    }
    if not environ.get("OMP_NUM_THREADS") and plan.cpus_per_node > 1:
        found["OMP_NUM_THREADS"] = str(plan.cpus_per_proc)
    return found


def _is_executable(path: str | None) -> bool:
    return path is not None and runs_as_it_is(Path(path).expanduser())


def _here(params: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a Python program in this forked rank, which has torch loaded already."""
    words = words_of(params["args"])
    if params["module"]:
        script.run_module(params["module"], words)
    else:
        script.run_script(os.path.expanduser(params["script"]), words)
    return {}

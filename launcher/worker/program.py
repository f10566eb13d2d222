"""A rank that is the user's own program: a script written for torchrun, a module, or any executable file.

A forked rank executes (execve) the program, so that the program gets what torchrun would give it, such as a new Python
interpreter. The process id, the output files and the rank stay the same. The environment contains torchrun's variables
and these:

| variable | value |
|---|---|
| `LAUNCHER_CHECKPOINT_DIR` | folder for the program's checkpoints, the same in every attempt |
| `LAUNCHER_ATTEMPT`, `LAUNCHER_ROUND` | how often the run, and its ranks within this attempt, were started before |
| `LAUNCHER_RESTART` | 1 if either is more than 0, else 0 |
| `LAUNCHER_PULSE` | where `launcher.progress` sends its heartbeats; see `heartbeat.mine` |
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
from launcher.spec import build
from launcher.spec.build import words as words_of
from launcher.spec.plan import JobPlan
from launcher.worker import debugger, rank_report, script


@dataclass(frozen=True)
class Shared:
    """Descriptors that a rank shares with its agent, and its index among the agent's ranks."""

    pulse: int  # descriptor of the memory with the heartbeats of all ranks of the agent
    stacks: int  # descriptor of the file for this rank's stacks
    report: int  # descriptor of the file for the report of how this rank ends; see `rank_report`
    memory: int  # descriptor of the file for copies of the state; -1: there is none
    place: int  # index of this rank among the agent's ranks


def main(plan: JobPlan, shared: Shared, attempt: int, lives: int) -> dict[str, Any]:
    """Replaces this process by the program, or with `workload.fork` runs it here; raises OSError."""
    os.environ.update(variables(plan, os.environ, attempt, lives))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if plan.workload.params["fork"]:
        return _run_here(plan.workload.params)
    return _execute(plan, shared)


def _execute(plan: JobPlan, shared: Shared) -> NoReturn:
    words = command(plan.workload.params, sys.executable, executable=is_executable(plan.workload.params["script"]))
    descriptors = [each for each in (shared.pulse, shared.stacks, shared.report, shared.memory) if each >= 0]
    os.environ["LAUNCHER_PULSE"] = f"{os.getpid()}:{shared.pulse}:{shared.place}"
    settings: dict[str, Any] = {
        "stacks": shared.stacks, "report": shared.report, "descriptors": descriptors,
        "lost_peer": LOST_PEER.pattern, "delay": rank_report.SYMPTOM_DELAY,
        "debug": {"launcher": str(Path(script.__file__).parents[2]), **debugger.install_arguments(plan)},
    }  # fmt: skip
    os.environ["LAUNCHER_PROGRAM"] = json.dumps(settings)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # it requests stacks; script.py handles it, others must survive it
    os.setpgid(0, 0)  # a scheduler's signal to all processes of a task then arrives once, through the agent
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], words, os.environ)  # noqa: S606  a list of words needs no shell


def command(params: Mapping[str, Any], python: str, *, executable: bool) -> list[str]:
    """Returns the command line that a rank executes; executable: the script itself, without an interpreter."""
    words = words_of(params["args"])
    if params["module"] is None and executable:
        return [os.path.abspath(os.path.expanduser(params["script"])), *words]
    kind = ("module", params["module"]) if params["module"] else ("script", os.path.expanduser(params["script"]))
    return [os.path.expanduser(params["python"] or python), "-u", script.__file__, *kind, *words]


def variables(plan: JobPlan, environ: Mapping[str, str], attempt: int, lives: int) -> dict[str, str]:
    """Returns the program's environment variables besides those of its rank.

    Like torchrun, this limits OpenMP's threads, so that ranks that share a node do not each use all CPUs. A value of
    OMP_NUM_THREADS that the user has set stays.
    """
    found = {
        "LAUNCHER_RESTART": str(int(attempt > 0 or lives > 0)),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.launch.max_restarts),
    }
    if not environ.get("OMP_NUM_THREADS") and plan.cpus_per_node > 1:
        found["OMP_NUM_THREADS"] = str(plan.cpus_per_proc)
    return found


def is_executable(path: str | None) -> bool:
    """Returns whether the script of a program is executed directly, without an interpreter of ours."""
    return path is not None and build.is_executable(Path(path).expanduser())


def _run_here(params: Mapping[str, Any]) -> dict[str, Any]:
    words = words_of(params["args"])
    if params["module"]:
        script.run_module(params["module"], words)
    else:
        script.run_script(os.path.expanduser(params["script"]), words)
    return {}

"""A rank that is the user's own program: a script written for torchrun, a module, or any executable file.

A forked rank becomes it by `exec`, so that it is what torchrun would have started: a Python of its own, with the same
process id, output files and place in the job. It finds torchrun's variables and the launcher's:

| variable | says |
|---|---|
| `LAUNCHER_CHECKPOINT_DIR` | where it may save: the same folder in every attempt |
| `LAUNCHER_ATTEMPT`, `LAUNCHER_ROUND` | how often the run, and within this attempt its ranks, were started before |
| `LAUNCHER_RESTART` | 1 when either is more than 0, else 0 |
| `LAUNCHER_PULSE` | where `launcher.node` tells the agent how far it is |
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from launcher.node import debug, pulse, script, watchdog
from launcher.node.arguments import runs_as_it_is
from launcher.node.arguments import words as words_of
from launcher.plan import JobPlan
from launcher.post_mortem.symptoms import LOST_PEER

PATIENCE = 2.0  # seconds that a survivor waits before it fails, so that the rank that it lost is heard first


def main(
    plan: JobPlan, signs: pulse.Pulse, stacks: watchdog.Stacks, local: int, attempt: int, lives: int
) -> dict[str, Any]:
    """Makes this process the program, or runs it here if that is wanted.

    Args:
        plan: the run.
        signs, stacks: what this process shares with its agent.
        local: its place among that agent's ranks.
        attempt: number of this attempt.
        lives: how often ranks of this attempt were started before.

    Raises:
        OSError: it cannot be started.
    """
    os.environ.update(variables(plan, os.environ, attempt, lives))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if plan.params["fork"]:
        return _here(plan.params)
    return _become(plan, signs, stacks, local)


def _become(plan: JobPlan, signs: pulse.Pulse, stacks: watchdog.Stacks, local: int) -> NoReturn:
    words = command(plan.params, sys.executable, executable=_is_executable(plan.params["script"]))
    place, file = signs.share(), stacks.file(local)
    shared = [place, file]
    os.environ["LAUNCHER_PULSE"] = f"{os.getpid()}:{place}:{local}"
    told = {"stacks": file, "descriptors": shared, "symptoms": LOST_PEER.pattern, "patience": PATIENCE}
    told["debug"] = {"launcher": str(Path(script.__file__).parents[2]), **debug.wanted(plan)}
    os.environ["LAUNCHER_PROGRAM"] = json.dumps(told)
    for descriptor in (*shared, _sentinel()):
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
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
    }
    if not environ.get("OMP_NUM_THREADS") and plan.cpus_per_node > 1:
        found["OMP_NUM_THREADS"] = str(plan.cpus_per_proc)
    return found


def _is_executable(path: str | None) -> bool:
    return path is not None and runs_as_it_is(Path(path).expanduser())


def _sentinel() -> int:
    """The end of multiprocessing's pipe by which the agent hears of this process's end; `exec` would close it.

    It is a local variable of `multiprocessing.popen_fork.Popen._launch`, which called all this.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_launch" and "child_w" in frame.f_locals:
            return int(frame.f_locals["child_w"])
        frame = frame.f_back
    raise RuntimeError("this process was not forked by multiprocessing")


def _here(params: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a Python program in this forked rank, which has torch loaded already."""
    atexit._clear()  # the agent's
    multiprocessing.set_start_method(None, force=True)  # multiprocessing has set it for its child
    words = words_of(params["args"])
    try:
        if params["module"]:
            script.run_module(params["module"], words)
        else:
            script.run_script(os.path.expanduser(params["script"]), words)
    finally:
        atexit._run_exitfuncs()  # which a forked process leaves out
    return {}

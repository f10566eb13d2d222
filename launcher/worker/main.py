"""The main function of a rank: prepares the process, and calls the workload or executes the user's program.

The agent forks a process for each rank, and calls `run_rank` in it. If the agent cannot fork safely, it starts the rank
in a new interpreter:

    python -m launcher.worker.main '{"place": 0, "lives": 0, "files": {"pulse_file": 5, "stacks_file": 6, ...}}'
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import mmap
import os
import signal
import socket
import sys
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from launcher import errors
from launcher.config import schema
from launcher.failures.codes import StopReason
from launcher.files import run_files
from launcher.own_module import own_module
from launcher.runs.directory import require_private
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Stop
from launcher.spec.plan import JobPlan
from launcher.worker import debugger, devices, hangs, heartbeat, nccl_report, program, rank_report, script

AGENTS_OWN = ("LAUNCHER_TASK", "LAUNCHER_TASKS", "LAUNCHER_NODE")  # the agent's variables, wrong in its ranks: removed


def run_rank(
    plan: JobPlan, place: int, *, pulse_file: int, stacks_file: int, memory_file: int, lives: int
) -> dict[str, Any]:
    """Runs the workload in this process. The agent has set the rank's environment.

    place: index of this rank among its agent's; lives: how often the attempt's ranks were started before.
    pulse_file, stacks_file, memory_file: descriptors of `Pulse.share`, `Stacks.file`, `rank_report.make_memory`.
    Raises SystemExit: a file cannot be read now, so that the attempt ends with exit code 75.
    """
    faulthandler.enable(file=2, all_threads=True)  # a segmentation fault leaves its stacks in the log
    agents = rank_report.take()
    slot = heartbeat.RankSlot(mmap.mmap(pulse_file, 0), place)
    heartbeat.take(slot)
    hangs.serve(stacks_file)
    rank_report.share_memory(memory_file, place)
    os.umask(plan.umask)
    devices.limit_threads(os.environ)
    os.environ.update(devices.variables(plan, os.environ))
    os.environ["LAUNCHER_CHECKPOINT_DIR"] = plan.checkpoint.dir
    if plan.own_code:
        _require_gpu(plan)
    for variable in AGENTS_OWN:
        os.environ.pop(variable, None)
    try:
        if plan.own_code:
            make_checkpoint_folder(Path(plan.checkpoint.dir))
        with debugger.install(**debugger.install_arguments(plan)):
            if plan.workload.kind == "Program":
                agents.wait(plan.launch.rendezvous_timeout)
                attempt = int(os.environ["LAUNCHER_ATTEMPT"])
                shared = program.Shared(pulse_file, stacks_file, agents.report, memory_file, place)
                return program.main(plan, shared, attempt, lives)
            return _run_workload(plan, agents)
    except Exception as error:
        if isinstance(error, errors.LauncherError) and error.exit_code == errors.RESUME:
            sys.exit(end_attempt(error))
        if final(error):
            slot.give_up()
        raise


def _require_gpu(plan: JobPlan) -> None:
    workload = plan.workload
    is_program = workload.kind == "Program"
    if not is_program and workload.params.get("init", True):
        return  # `process_group.init` refuses it
    other = is_program and (workload.params["python"] is not None or program.is_executable(workload.params["script"]))
    devices.require_gpu(
        workload.device, plan.gpus_per_node, os.environ, other_torch=other, rank=int(os.environ["RANK"]),
        host=socket.gethostname(),
    )  # fmt: skip


def make_checkpoint_folder(path: Path) -> None:
    """Makes the folder in which a user's own code saves. What it loads from there may be executed: pickles.

    Raises RunError (others could write to it) or OSError.
    """
    run_files.make_folder(path)
    try:
        require_private(path)
    except errors.UnavailableError:
        raise
    except errors.RunError as error:
        raise errors.RunError(f"checkpoint.dir={path}: {error}") from None


def ignored_signals(lives: int) -> tuple[signal.Signals, ...]:
    """Returns the signals that a rank ignores until it installs handlers (`StopFlag`).

    Warning signals are only for ranks that check for stops. Restarted ranks also ignore stop signals at first: they can
    resume, so ending them must not look like a crash. The agent repeats the signal once they check for stops.
    """
    return (signal.SIGUSR1, signal.SIGUSR2, *((signal.SIGTERM, signal.SIGINT) if lives else ()))


def end_attempt(error: errors.LauncherError) -> int:
    """Prints an error that ends this attempt but not the run; rank 0 also records it as an event."""
    print(f"launcher: {error}", file=sys.stderr, flush=True)
    if os.environ.get("RANK", "0") == "0":
        reason = StopReason.UNREADABLE if error.code == errors.UNAVAILABLE else StopReason.UNKNOWN
        Events(current_attempt(), "stop")(Stop(reason=reason, error=str(error)))
    return error.exit_code


def final(error: Exception) -> bool:
    """Returns whether a retry would fail too: a workload or the launcher has refused what was asked for."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(script.FINAL) and script.NOT_FINAL not in names


def _run_workload(plan: JobPlan, agents: rank_report.AgentChannels) -> dict[str, Any]:
    from launcher.worker import process_group

    module, _, function = plan.workload.entry.partition(":")
    if plan.own_code or module.partition(".")[0] != "workloads":
        sys.path.insert(0, os.getcwd())  # for the imports of the user's code; see `own_module`
    workload = getattr(importlib.import_module(module), function)
    agents.wait(plan.launch.rendezvous_timeout)
    joining, collective = plan.launch.rendezvous_timeout, plan.launch.timeout
    if plan.debugs:  # the other ranks wait as long as a rank is at a breakpoint
        joining = collective = int(debugger.FOREVER)
    if plan.workload.kind == "Collective":
        os.environ.update(nccl_report.log_variables(os.environ, nccl_log(plan, int(os.environ["RANK"]))))
    env = None
    try:
        if plan.workload.params.get("init", True):  # otherwise the function makes its own process group
            env = process_group.init(
                plan.workload.backend, plan.workload.device, rendezvous_timeout=joining, timeout=collective
            )
        metrics = workload(workload_config(plan), env) or {}
        process_group.report(**metrics)
        process_group.close()
    except BaseException:
        atexit.unregister(process_group.close)  # it might wait for ranks that have ended
        raise
    return dict(metrics)


def nccl_log(plan: JobPlan, rank: int) -> Path:
    """Returns the path of a rank's NCCL log in this attempt."""
    return Path(plan.run_dir, "attempts", os.environ["LAUNCHER_ATTEMPT"], "logs", nccl_report.log_name(rank))


def workload_config(plan: JobPlan) -> schema.Workload:
    """Returns the workload's settings as the dataclass that the config schema has for its kind."""
    kind = getattr(schema, plan.workload.kind)
    hints = get_type_hints(kind)
    values = {
        name: hints[name](value) if isinstance(hints[name], type) and issubclass(hints[name], Enum) else value
        for name, value in plan.workload.params.items()
    }
    return kind(**values)


def fresh_command(place: int, *, lives: int, **files: int) -> list[str]:
    """Returns the command that starts a rank in a new interpreter, which must inherit the files (`run_rank`)."""
    arguments = {"place": place, "lives": lives, "files": files}
    return [sys.executable, *own_module("launcher.worker.main"), json.dumps(arguments)]


def main(arguments: str) -> int:
    """Runs a rank that `fresh_command` started, with its last argument (JSON); returns the exit code."""
    given = json.loads(arguments)
    report = int(os.environ[rank_report.REPORT])
    for descriptor in (*given["files"].values(), report, int(os.environ[rank_report.GATE])):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def run() -> dict[str, Any]:
        attempt = current_attempt()
        assert attempt is not None, "an agent has started this"
        return run_rank(attempt.run.plan(), given["place"], **given["files"], lives=given["lives"])

    return rank_report.run_and_report(run, report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

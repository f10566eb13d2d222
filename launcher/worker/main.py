"""The main function of a rank: prepares the process, and calls the workload or executes the user's program.

The agent forks a process for each rank, and calls `run_rank` in it; if it cannot fork safely, in a new interpreter
(`fresh_command`). The user's own program (a script written for torchrun, a module, or any executable file) is executed
(execve), so that it gets what torchrun would give it. Its environment contains torchrun's variables and these:

| variable | value |
|---|---|
| `LAUNCHER_CHECKPOINT_DIR` | folder for the program's checkpoints, the same in every attempt |
| `LAUNCHER_ATTEMPT`, `LAUNCHER_ROUND` | how often the run, and its ranks within this attempt, were started before |
| `LAUNCHER_RESTART` | 1 if either is more than 0, else 0 |
| `LAUNCHER_PULSE` | where `launcher.progress` sends its heartbeats; see `heartbeat.mine` |
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
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from launcher import errors
from launcher.config import schema
from launcher.environment import programs
from launcher.environment.programs import words as words_of
from launcher.failures.codes import StopReason
from launcher.failures.known_errors import LOST_PEER
from launcher.files import safe_io
from launcher.paths import own_module
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Events, current_attempt, require_private
from launcher.runs.events import Stop
from launcher.worker import debugger, devices, hang_diagnosis, heartbeat, shared_with_agent, user_script

AGENTS_OWN = ("LAUNCHER_TASK", "LAUNCHER_TASKS", "LAUNCHER_NODE")  # the agent's variables, wrong in its ranks: removed


def run_rank(
    plan: JobPlan, place: int, *, pulse_file: int, stacks_file: int, memory_file: int, lives: int
) -> dict[str, Any]:
    """Runs the workload in this process. Raises SystemExit (75): a file cannot be read now.

    place: index of this rank among its agent's; lives: how often the attempt's ranks were started before.
    pulse_file, stacks_file, memory_file: descriptors of `Pulse.share`, `Stacks.file`, `make_memory` or -1.
    """
    faulthandler.enable(file=2, all_threads=True)  # a segmentation fault leaves its stacks in the log
    agents = shared_with_agent.take()
    slot = heartbeat.RankSlot(mmap.mmap(pulse_file, 0), place)
    heartbeat.take(slot)
    hang_diagnosis.serve(stacks_file)
    shared_with_agent.share_memory(memory_file, place)
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
                os.environ["LAUNCHER_PULSE"] = f"{os.getpid()}:{pulse_file}:{place}"
                return _run_program(plan, stacks_file, agents.report, [pulse_file, memory_file], lives)
            return _run_workload(plan, agents)
    except Exception as error:
        if isinstance(error, errors.LauncherError) and error.exit_code == errors.RESUME:
            sys.exit(end_attempt(error))
        if user_script.is_final(error):
            slot.give_up()
        raise


def _require_gpu(plan: JobPlan) -> None:
    workload = plan.workload
    is_program = workload.kind == "Program"
    if not is_program and workload.params.get("init", True):
        return  # `process_group.init` refuses it
    other = is_program and (workload.params["python"] is not None or is_executable(workload.params["script"]))
    devices.require_gpu(
        workload.device, plan.gpus_per_node, os.environ, other_torch=other, rank=int(os.environ["RANK"]),
        host=socket.gethostname(),
    )  # fmt: skip


def make_checkpoint_folder(path: Path) -> None:
    """Makes the folder in which a user's own code saves; RunError: it cannot, or others could write to it (pickles)."""
    try:
        safe_io.make_folder(path)
        require_private(path)
    except errors.UnavailableError:
        raise
    except errors.RunError as error:
        raise errors.RunError(f"checkpoint.dir={path}: {error}") from None
    except OSError as error:
        if errors.is_transient(error):
            raise
        raise errors.RunError(
            f"checkpoint.dir={path}: the folder cannot be made ({error.strerror}): set it to one that you can write to "
            "and that all nodes share"
        ) from None


def ignored_signals(lives: int) -> tuple[signal.Signals, ...]:
    """Returns the signals that a rank ignores until it installs handlers (`StopFlag`).

    Restarted ranks, which can resume, ignore stop signals too: the agent repeats them once they check for stops.
    """
    return (signal.SIGUSR1, signal.SIGUSR2, *((signal.SIGTERM, signal.SIGINT) if lives else ()))


def end_attempt(error: errors.LauncherError) -> int:
    """Prints an error that ends this attempt but not the run; rank 0 also records it as an event."""
    print(f"launcher: {error}", file=sys.stderr, flush=True)
    if os.environ.get("RANK", "0") == "0":
        reason = StopReason.UNREADABLE if error.code == errors.UNAVAILABLE else StopReason.UNKNOWN
        Events(current_attempt(), "stop")(Stop(reason=reason, error=str(error)))
    return error.exit_code


def _run_workload(plan: JobPlan, agents: shared_with_agent.AgentChannels) -> dict[str, Any]:
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
        log = devices.nccl_log_name(int(os.environ["RANK"]))
        folder = Path(plan.run_dir, "attempts", os.environ["LAUNCHER_ATTEMPT"], "logs")
        os.environ.update(devices.nccl_log_variables(os.environ, folder / log))
    env = None
    try:
        if plan.workload.params.get("init", True):  # otherwise the function makes its own process group
            env = process_group.init(
                plan.workload.backend, plan.workload.device, rendezvous_timeout=joining, timeout=collective
            )
        metrics = workload(workload_config(plan), env) or {}
        process_group.reporter().report(metrics)
        process_group.close()
    except BaseException:
        atexit.unregister(process_group.close)  # it might wait for ranks that have ended
        raise
    return dict(metrics)


def workload_config(plan: JobPlan) -> schema.Workload:
    """Returns the workload's settings as the dataclass that the config schema has for its kind."""
    kind = getattr(schema, plan.workload.kind)
    hints = get_type_hints(kind)
    values = {
        name: hints[name](value) if isinstance(hints[name], type) and issubclass(hints[name], Enum) else value
        for name, value in plan.workload.params.items()
    }
    return kind(**values)


def _run_program(plan: JobPlan, stacks: int, report: int, others: list[int], lives: int) -> dict[str, Any]:
    # stacks, report, others: descriptors that the program keeps; see `run_rank`
    params = plan.workload.params
    os.environ.update(variables(plan, os.environ, int(os.environ["LAUNCHER_ATTEMPT"]), lives))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if not params["fork"]:
        _execute(plan, stacks, report, others)
    words = words_of(params["args"])
    if params["module"]:
        user_script.run_module(params["module"], words)
    else:
        user_script.run_script(os.path.expanduser(params["script"]), words)
    return {}


def _execute(plan: JobPlan, stacks: int, report: int, others: list[int]) -> NoReturn:
    params = plan.workload.params
    words = command(params, sys.executable, executable=is_executable(params["script"]))
    descriptors = [each for each in (stacks, report, *others) if each >= 0]
    settings: dict[str, Any] = {
        "stacks": stacks, "report": report, "descriptors": descriptors,
        "lost_peer": LOST_PEER.pattern, "delay": shared_with_agent.SYMPTOM_DELAY,
        "debug": {"launcher": str(Path(user_script.__file__).parents[2]), **debugger.install_arguments(plan)},
    }  # fmt: skip
    os.environ["LAUNCHER_PROGRAM"] = json.dumps(settings)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # it requests stacks; user_script handles it, others must survive it
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
    return [os.path.expanduser(params["python"] or python), "-u", user_script.__file__, *kind, *words]


def variables(plan: JobPlan, environ: Mapping[str, str], attempt: int, lives: int) -> dict[str, str]:
    """Returns the program's variables besides those of its rank. Like torchrun, it limits OpenMP's threads."""
    found = {
        "LAUNCHER_RESTART": str(int(attempt > 0 or lives > 0)),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.launch.max_restarts),
    }
    if not environ.get("OMP_NUM_THREADS") and plan.cpus_per_node > 1:
        found["OMP_NUM_THREADS"] = str(plan.cpus_per_proc)
    return found


def is_executable(path: str | None) -> bool:
    return path is not None and programs.is_executable(Path(path).expanduser())


def fresh_command(place: int, *, lives: int, **files: int) -> list[str]:
    """Returns the command that starts a rank in a new interpreter, which must inherit the files (`run_rank`)."""
    arguments = {"place": place, "lives": lives, "files": files}
    return [sys.executable, *own_module("launcher.worker.main"), json.dumps(arguments)]


def main(arguments: str) -> int:
    """Runs a rank that `fresh_command` started, with its last argument (JSON); returns the exit code."""
    given = json.loads(arguments)
    report = int(os.environ[shared_with_agent.REPORT])
    for descriptor in (*given["files"].values(), report, int(os.environ[shared_with_agent.GATE])):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def run() -> dict[str, Any]:
        attempt = current_attempt()
        assert attempt is not None, "an agent has started this"
        return run_rank(attempt.run.plan(), given["place"], **given["files"], lives=given["lives"])

    return shared_with_agent.run_and_report(run, report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

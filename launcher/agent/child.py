"""Runs a rank in a process forked from the agent: resets inherited signals, files, limits and CPUs; runs its work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from launcher import errors
from launcher.formatting import ranges
from launcher.processes import groups, limits
from launcher.rendezvous.rounds import Placement
from launcher.worker import rank_report

# Signals that an agent ignores at times. Signals that were ignored when the agent started (nohup), or that Python
# ignores, stay ignored in ranks.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)

Run = Callable[[Placement], "Mapping[str, Any] | None"]


@dataclass(frozen=True)
class Fresh:
    """How to start a rank in a new interpreter; see `launcher.worker.main.fresh_command`."""

    command: Sequence[str]  # argv of the interpreter
    descriptors: Sequence[int]  # file descriptors that the interpreter inherits


def run_child(
    placement: Placement, run: Run, fresh: Fresh | None, agent: int, *,
    keep: tuple[int, int, int, int, Path], mask: set[Any], ignore: Collection[signal.Signals],
    close: Sequence[int],
) -> NoReturn:  # fmt: skip
    """Runs a rank in the forked child, and exits with the rank's exit code.

    fresh: how to start the rank in a new interpreter instead of calling `run`; None: call `run`.
    agent: process id of the agent; the rank dies with it.
    keep: descriptors for stdout, stderr, the report and the gate, and the path of the error file.
    """
    code = errors.FAILED
    try:
        groups.die_with_parent(agent)
        _reset_signals(ignore)
        out, err, report, gate, error_file = keep
        _take_streams(out, err)
        for descriptor in {*close, out, err} - {0, 1, 2}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        limits.restore_limit()  # now that the agent's own files, which may be more, are closed
        _take_cpus(placement)
        os.environ.update(placement.environment)
        os.environ.update({
            "TORCHELASTIC_ERROR_FILE": str(error_file), rank_report.GATE: str(gate), rank_report.REPORT: str(report)
        })  # fmt: skip
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if fresh is not None:
            for descriptor in (gate, report, *fresh.descriptors):
                os.set_inheritable(descriptor, True)
            os.execvpe(fresh.command[0], list(fresh.command), os.environ)  # noqa: S606  an argv list needs no shell
        rank_report.begin_process()
        code = rank_report.run_and_report(partial(run, placement), report)
    except BaseException:
        traceback.print_exc()
    finally:
        rank_report.end_process(code)
    raise AssertionError("it has ended")


def _reset_signals(ignore: Collection[signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in ignore:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)) or number in _AGENTS:
            signal.signal(number, signal.SIG_DFL)


def _take_cpus(placement: Placement) -> None:
    # If the job has lost them in the meantime, the rank runs unbound
    try:
        if placement.cpus:
            os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        who = f"rank {placement.rank}"
        problem = f"{who} cannot be bound to the CPUs {ranges(placement.cpus)}, and runs unbound: {error}"
        print(f"launcher: {problem}", file=sys.stderr, flush=True)


def _take_streams(out: int, err: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)  # makes it inheritable by child processes
    if nothing > 2:
        os.close(nothing)
    # Line buffering keeps the output of a rank that is killed.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115

"""The list of all benchmarks; runs each in its own process, and makes the table of their results."""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.measure import Result

# Each module benchmarks.NAME has a function `results()`; these are its arguments with --short.
BENCHMARKS: Mapping[str, Mapping[str, Any]] = {
    "login_node": {"repeats": 1},
    "sub_commands": {"repeats": 1},
    "job_start": {"repeats": 1},
    "start_up": {"repeats": 1},
    "scale": {"repeats": 1},
    "training_input": {"repeats": 1, "images": 1280},
    "checkpoint": {"large": 5_000_000, "small": 1_000_000, "repeats": 1},
    "stop": {"world_size": 2, "steps": 3, "repeats": 1},
    "invariant": {"repeats": 1, "batch_size": 16},
    "restart": {"kills": 2, "trials": 1},
    "redone": {"kills": 3, "sizes": (1_000_000,), "steps": 20, "names": ("ddp_mnist",), "copies": 7, "pairs": 5},
    "race": {"races": 2},
    "remote": {"repeats": 1},
    "preflight": {"repeats": 1},
    "binding": {"repeats": 1, "steps": 11},
    "rendezvous": {"agents": 8, "clients": 2, "rest": 0.5},
    "pbs": {"repeats": 1, "batch": 2, "many": 5},
    "fabric": {"scale": 0},
    "sweep": {"points": 25, "elements": 2, "repeats": 1},
    "pilots": {"points": 8, "seconds": 4, "listed": 200, "elements": 2, "repeats": 1},
    "search": {"values": 2, "epochs": 6},
    "logs": {"repeats": 1, "size": 1 << 22},
    "status": {"live": 3, "finished": 3, "repeats": 1},
}
LIMIT = 3600.0  # timeout of a benchmark, in seconds
CLEANS_UP = 60.0  # seconds in which a benchmark must stop its processes after that


@dataclass(frozen=True)
class Failed:
    """A benchmark without results.

    Attributes:
        name: name of the benchmark.
        reason: why it failed, in one line.
    """

    name: str
    reason: str


def results(name: str, short: bool) -> list[Result]:
    """Runs a benchmark in this process and returns its results. `short`: with the arguments for --short."""
    found: list[Result] = importlib.import_module(f"benchmarks.{name}").results(**BENCHMARKS[name] if short else {})
    return found


def checked(found: list[Result]) -> list[Result]:
    """Returns the results of a benchmark if they are complete.

    Raises:
        RuntimeError: there are no results, or a value is infinite or NaN.
    """
    if not found:
        raise RuntimeError("it gives no results")
    if wrong := [result.claim for result in found if not math.isfinite(result.value)]:
        raise RuntimeError(f"it gives no number for: {', '.join(wrong)}")
    return found


def measure(name: str, call: Callable[[], list[Result]], limit: float = LIMIT) -> list[Result] | Failed:
    """Runs a benchmark in its own process; returns its results, or why it failed. It prints a traceback to stderr.

    Args:
        name: name of the benchmark.
        call: returns the results; it is pickled, so it must be a function of a module.
        limit: seconds after which the process is interrupted and the benchmark has failed.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(name, call, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            return Failed(name, f"it did not end within {limit:g} s")
        outcome: list[Result] | Failed = ours.recv()
        process.join(CLEANS_UP)
        return outcome
    except EOFError:
        process.join()
        return Failed(name, f"its process ended with exit code {process.exitcode}")
    finally:
        _end(process)


def _send(name: str, call: Callable[[], list[Result]], pipe: Connection) -> None:
    outcome: list[Result] | Failed
    try:
        outcome = checked(call())
    except Exception as error:
        traceback.print_exc()
        outcome = Failed(name, one_line(error))
    pipe.send(outcome)


def _end(process: BaseProcess) -> None:
    """Interrupts a process, so that it stops its own processes; kills it after CLEANS_UP seconds."""
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGINT)
        process.join(CLEANS_UP)
        process.kill()
        process.join()


def one_line(error: Exception) -> str:
    """Returns the type of an error, and the first and the last line of its text, which may contain a traceback.
    Pure."""
    first, *more = str(error).strip().splitlines() or [""]
    return " ".join([f"{type(error).__name__}: {first}", *more[-1:]])


def table(outcomes: Sequence[Result | Failed], short: bool) -> str:
    """Returns the table with the columns claim, ratio, target, met. A failed benchmark has its reason in the last."""
    rows = [("claim", "ratio", "target", "met")]
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            rows.append((f"benchmarks.{outcome.name}", "failed", "", outcome.reason))
        elif short:
            rows.append((*outcome.shown[:2], "", "not judged"))
        else:
            rows.append(outcome.shown)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(" | ".join([*map(str.ljust, row, widths), row[3]]) for row in rows)


def exit_status(outcomes: Sequence[Result | Failed], short: bool) -> int:
    """Returns 1 if a benchmark failed, or if it missed its target and `short` is False; else 0. Pure."""
    return int(any(isinstance(outcome, Failed) or not (short or outcome.met) for outcome in outcomes))

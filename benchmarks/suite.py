"""Which benchmarks there are, each run in a process of its own, and the table of what came of them."""

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

# Each has a function `results()`; these are its arguments in the short form.
BENCHMARKS: Mapping[str, Mapping[str, Any]] = {
    "login_node": {"repeats": 1},
    "sub_commands": {"repeats": 1},
    "start_up": {"repeats": 1, "warmup": 0},
    "scale": {"repeats": 1},
    "training_input": {"repeats": 1, "images": 1280},
    "checkpoint": {"large": 5_000_000, "small": 1_000_000, "repeats": 1},
    "stop": {"world_size": 2, "steps": 3, "repeats": 1},
    "invariant": {"repeats": 1, "batch_size": 16},
    "restart": {"kills": 2, "trials": 1},
    "preflight": {"repeats": 1, "warmup": 0},
    "binding": {"repeats": 1, "warmup": 0, "steps": 11},
    "rendezvous": {"agents": 8, "clients": 2, "rest": 0.5},
    "pbs": {"repeats": 1, "batch": 2, "many": 5},
    "fabric": {"scale": 0},
    "sweep": {"points": 25, "elements": 4, "repeats": 1},
    "pilots": {"points": 20, "seconds": 8, "listed": 200, "elements": 4, "repeats": 1},
    "search": {"values": 2, "epochs": 20},
    "logs": {"repeats": 1, "size": 1 << 22},
    "status": {"live": 3, "finished": 3, "repeats": 1},
}
LIMIT = 3600.0  # seconds after which a benchmark has failed
CLEANS_UP = 60.0  # seconds it then has for ending what it started


@dataclass(frozen=True)
class Failed:
    """A benchmark that gave no numbers, and why, in one line."""

    name: str
    reason: str


def results(name: str, short: bool) -> list[Result]:
    """What one benchmark measures, in this process."""
    found: list[Result] = importlib.import_module(f"benchmarks.{name}").results(**BENCHMARKS[name] if short else {})
    return found


def checked(found: list[Result]) -> list[Result]:
    """The results, if they are some.

    Raises:
        RuntimeError: there are none, or one is no number.
    """
    if not found:
        raise RuntimeError("it gives no results")
    if wrong := [result.claim for result in found if not math.isfinite(result.value)]:
        raise RuntimeError(f"it gives no number for: {', '.join(wrong)}")
    return found


def measure(name: str, call: Callable[[], list[Result]], limit: float = LIMIT) -> list[Result] | Failed:
    """What a benchmark gives in a process of its own, whatever becomes of that; its traceback goes to stderr.

    Args:
        name: of the benchmark.
        call: gives its results; a function of a module, for it is pickled.
        limit: seconds until it is interrupted, and has failed.
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
    """Interrupts a process, so that it ends what it started, and kills it if it goes on."""
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGINT)
        process.join(CLEANS_UP)
        process.kill()
        process.join()


def one_line(error: Exception) -> str:
    """The type of an error, and the first and the last line of its text, which may hold another's traceback. Pure."""
    first, *more = str(error).strip().splitlines() or [""]
    return " ".join([f"{type(error).__name__}: {first}", *more[-1:]])


def table(outcomes: Sequence[Result | Failed], short: bool) -> str:
    """claim | ratio | target | met, or the reason why there is no ratio."""
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
    """1 if a benchmark failed, or if a target that counts was missed. Pure."""
    return int(any(isinstance(outcome, Failed) or not (short or outcome.met) for outcome in outcomes))

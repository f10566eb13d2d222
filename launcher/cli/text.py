"""Plain text that several commands print."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from launcher.config import Scheduler
from launcher.runs import Run
from launcher.state import RunState
from launcher.units import format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.live import Seen
    from launcher.plan import JobPlan


def program() -> str:
    """How this program was called, for commands that the user may copy."""
    name = os.path.basename(sys.argv[0])
    return name if name == "launcher" else "python -m launcher"


def print_columns(lines: Sequence[tuple[str, ...]]) -> None:
    """Lines of as many columns each, the first one their heads; nothing is cut."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def plan_table(plan: JobPlan) -> str:
    """The plan in two columns."""
    ranks = f"{plan.world_size} ({plan.procs_per_node} on each of {plan.nodes} nodes)"
    rows = [
        ("run", plan.run_id),
        ("directory", plan.run_dir),
        ("cluster", plan.cluster + (f", partition {plan.partition}" if plan.partition else "")
                    + (f", queue {plan.queue}" if plan.queue else "")),
        ("workload", f"{plan.workload} ({plan.entry})"),
        ("ranks", ranks + (f", at least {plan.min_nodes} nodes" if plan.min_nodes < plan.nodes else "")),
        ("started by", "one agent per node" if plan.launch == "agent" else "the scheduler, one task per rank"),
        ("each node", f"{plan.cpus_per_node} CPUs, {plan.gpus_per_node} GPUs, "
                      f"{format_size(plan.mem) if plan.mem else 'default'} memory"),
        ("time", format_time(plan.time)),
        ("backend", plan.backend),
        *((f"workload.{key}", str(value)) for key, value in plan.params.items()
          if key not in ("name", "entry", "min_ranks", "backend", "device", "seed")),
    ]  # fmt: skip
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([*(f"{name:<{width}}{value}" for name, value in rows), ""])


# Words of schedulers for an end that no rank can know of.
TELLING = {"TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}


def cause(seen: Seen) -> str | None:
    """Why the run is not going on, in a line or two."""
    stop, stays, fault = seen.story.last("stop"), seen.story.last("stays"), seen.story.fault
    if stays is not None and stays["what"] == "given_up":
        return f"given up: {stays['why']}"
    if seen.state is RunState.STOPPED and stop is not None:
        where = f" at step {stop['step']}" if "step" in stop else ""
        return f"{stop['cause']}{where}" + (f"; {stays['why']}" if stays and stays["why"] != stop["cause"] else "")
    if fault is None:
        if seen.state is RunState.FAILED:
            code = f" (exit code {seen.story.ended})" if seen.story.ended is not None else ""
            words = [f"no rank said why{code}", seen.word, _last_line(seen.run)]
            return "; ".join(word for word in words if word)
        return seen.word or None
    if fault["event"] == "setup_failed":
        line = seen.plan.setup[fault["line"] - 1]
        return f"set-up line {fault['line']} of cluster={seen.plan.cluster} failed on {fault['host']}: {line}"
    told = str(fault["cause"])
    # Who was told to stop was told by the scheduler, which may know why.
    scheduler = "PBS" if seen.plan.scheduler == Scheduler.pbs.value else "Slurm"
    return f"{told}; {scheduler} says {seen.word}" if seen.word.partition(" ")[0] in TELLING else told


def _last_line(run: Run) -> str:
    """The last thing that the run printed."""
    printed = [line for path in run.outputs()[-1:] for line in path.read_text(errors="replace").splitlines()]
    return f"its last words: {printed[-1].strip()}" if printed else ""


def outcome(seen: Seen) -> str:
    """How a run ended, for the user who waited for it."""
    lines = []
    if seen.state is RunState.DONE:
        metrics = seen.run.result() or {}
        lines.append(f"{seen.run.id} is done")
        width = max(map(len, metrics), default=0)
        for key, value in metrics.items():
            lines.append(f"  {key:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
    else:
        fault = seen.story.fault or {}
        if trace := fault.get("traceback"):
            lines += [f"Traceback of rank {fault['rank']}:", trace.rstrip(), ""]
        lines.append(f"{seen.run.id} {seen.state.value}" + (f": {why}" if (why := cause(seen)) else ""))
    lines.append(f"  everything is in {seen.run.path}")
    return "\n".join(lines)

"""What several commands print: tables, the plan, why and how a run ended; the question before a costly submission."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from launcher.config.overrides import element
from launcher.errors import DECLINED, LauncherError
from launcher.errors import program as program
from launcher.formatting import clean, cut, flat, format_size, format_time, number, one_line, plural, ranges
from launcher.runs import directory
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Fault

if TYPE_CHECKING:
    from launcher.monitoring.run_status import RunStatus
    from launcher.monitoring.sweep_status import PointStatus
    from launcher.plan.plan import JobPlan
    from launcher.runs.sweep_directory import Sweep

LONGEST_CELL = 24  # characters of a value in a table of points
LONGEST_METRIC = 200  # characters of a value; result.json has all of it


def terminal_width() -> int:
    return shutil.get_terminal_size((80, 24)).columns or 80  # 0: Python 3.10, of a terminal that tells none


def at_blanks(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def table(
    rows: Sequence[Sequence[str]], *, wraps: int | None = None, wrap: Callable[[str, int], list[str]] = at_blanks,
    indent: int = 0,
) -> list[str]:  # fmt: skip
    """Returns the lines of a table, the headings first. No cell is shortened.

    wraps: column whose cells are wrapped (to 20 characters, if need be) so that a line fits the terminal; None: none.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = _widths(cells)
    if wraps is not None:
        room = terminal_width() - indent - sum(widths) + widths[wraps] - 2 * (len(widths) - 1)
        widths[wraps] = min(widths[wraps], max(room, 20))
    lines = []
    for row in cells:
        parts = [wrap(cell, widths[column]) if column == wraps else [cell] for column, cell in enumerate(row)]
        for line in zip_longest(*parts, fillvalue=""):
            lines.append((" " * indent + "  ".join(map(str.ljust, line, widths))).rstrip())
    return lines


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(one_line(cell)) for cell in column) for column in zip(*rows, strict=True)]


def fitting(rows: Sequence[Sequence[str]], optional: Sequence[int]) -> list[int]:
    """Returns the columns of a table that fit the terminal; optional: those that may be left out, the best first."""
    widths = [each + 2 for each in _widths(rows)]
    shown = set(range(len(widths))).difference(optional)
    room = terminal_width() + 2 - sum(widths[column] for column in shown)
    for column in optional:
        if widths[column] <= room:
            room -= widths[column]
            shown.add(column)
    return sorted(shown)


def labelled(label: str, text: str, *, column: int = 11) -> list[str]:
    """Wraps a text into lines that start in this column, the first one behind a label. Long words are not broken."""
    return textwrap.wrap(
        clean(text), terminal_width(), initial_indent=f"{label:<{column}}", subsequent_indent=" " * column,
        break_long_words=False, break_on_hyphens=False,
    ) or [label]  # fmt: skip


def under(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [("" if place else label, line) for place, line in enumerate(lines)]


def print_under(label: str, lines: Iterable[str]) -> None:
    for head, line in under(label, lines):
        print(f"{head:<11}{line}", flush=True)


def print_columns(rows: Sequence[Sequence[str]], *, wraps: int | None = None) -> None:
    print(*table(rows, wraps=wraps), sep="\n")


def json_text(value: Any) -> str:
    """Returns a value as JSON for programs; a number that is not finite, for which JSON has no word, is null."""
    text = json.dumps(value, indent=1, default=str)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _: None), indent=1)
    return text


def print_unreadable(run: Run) -> None:
    for line in directory.problems(run):
        print(f"unreadable: {line}")


def plan_table(plan: JobPlan) -> str:
    from launcher.plan import limits

    pools = [f"{key} {name}" for key, name in limits.pools_by_key(plan).items()]
    working = plan.nodes - plan.spares
    where = f"{plan.procs_per_node} on each of {working} nodes" if working > 1 else "on 1 node"
    ranks = f"{plan.world_size} ({where})"
    rows = [
        ("run", plan.run_id),
        ("directory", plan.run_dir),
        ("cluster", ", ".join([plan.cluster.name, *pools])),
        *(("after", each.replace(":", ": ", 1)) for each in plan.after),
        ("workload", f"{plan.workload.name} ({plan.workload.entry})"),
        ("ranks", ranks + (f", at least {plural(plan.min_nodes, 'node')}" if plan.min_nodes < working else "")),
        *([("spares", plural(plan.spares, "node"))] if plan.spares else []),
        *([("code", f"a copy of {plan.code.repository}, in {plan.code.snapshot}")] if plan.code.snapshot else []),
        *((name, value) for name, value in (
            ("template", plan.cluster.template), ("python", plan.env.activate), ("archive", plan.env.archive),
            ("container", plan.env.container and f"{plan.env.container} ({plan.env.container_runtime})"),
            ("secrets", ", ".join(plan.secret_variables)),
        ) if value),
        ("started by", "one agent per node" if plan.launch.mode == "agent" else "the scheduler, one task per rank"),
        *under("bound to", bound_to(plan)),
        ("each node", f"{plural(plan.cpus_per_node, 'CPU')}, {plural(plan.gpus_per_node, 'GPU')}, "
                      f"{format_size(plan.mem) if plan.mem else 'default'} memory"),
        ("time", format_time(plan.time)),
        *under("requests", limits.lines([plan]) if plan.queued else ()),
        ("backend", plan.workload.backend),
        *((f"workload.{key}", value if isinstance(value, str) else element(value))
          for key, value in plan.workload.params.items()
          if key not in ("name", "entry", "min_ranks", "backend", "device", "seed", "hook") and value != {}),
    ]  # fmt: skip
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([*(f"{name:<{width}}{value}" for name, value in rows), ""])


def bound_to(plan: JobPlan) -> list[str]:
    """Returns lines about the CPUs to which ranks will be bound."""
    from launcher.binding import masks

    asked = masks.parse(plan.launch.bind)
    if plan.procs_per_node == 1 and asked.kind == masks.AUTO:
        return []
    if asked.kind == masks.MAP:
        lists = asked.lists[: plan.procs_per_node]
        return [f"CPUs {ranges(cpus)}: local rank {place}" for place, cpus in enumerate(lists)]
    if asked.kind == masks.NONE or (asked.kind == masks.AUTO and plan.launch.mode == "tasks"):
        return ["nothing" if asked.kind == masks.NONE else "what the scheduler binds each task to"]
    gpus = plan.gpus_per_node > 0 and plan.workload.device != "cpu"
    which = "next to its GPU" if gpus else "of its part"
    return [f"cores {which} (launch.bind={plan.launch.bind}), decided on each node"]


def cause(seen: RunStatus) -> str | None:
    return ending(seen)[0]


def ending(seen: RunStatus) -> tuple[str | None, dict[str, str | None]]:
    """Returns why a run ended: as text (None: not known), and as codes, by name, as in `post-mortem --json`.

    Of a run that is queued again it is the end of its last attempt.
    """
    from launcher.diagnose.verdict import classify, evidence_of, evidence_of_attempt

    if seen.state.value == "queued" and seen.history.attempt is not None:
        attempt = Attempt(seen.run, seen.history.attempt)
        evidence = evidence_of_attempt(seen, attempt, None, None, seen.history.events)
    else:
        evidence = evidence_of(seen)
    found = classify(evidence)
    return None if found.cause is None else clean(found.cause), {"kind": found.kind.value, **evidence.codes}


def cause_of_point(each: PointStatus) -> str | None:
    """Returns why a point ended without success (but by the user) or waits; None: not known, or running."""
    if each.seen is None or each.state == "running":
        return None
    if each.state == "cancelled" and each.seen.history.cancelled:
        return None  # the user knows
    return cause(each.seen) if each.over else each.seen.job.text or None


def no_pilot(sweep: Sweep) -> str:
    """Returns what to do about a search that may choose more points, although none of its pilots runs."""
    packing = sweep.manifest().packing
    pilots = packing.pilots if packing else 1
    return f"no pilot runs, and more points may be chosen\nnext  {program()} sweep throttle {sweep.id} {pilots}"


def metric_text(value: Any) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else cut(str(value), LONGEST_CELL)


def outcome(seen: RunStatus, *, printed: bool = False) -> str:
    """Returns the text that ends a command which has followed a run: its metrics, or its traceback and cause.

    printed: whether the command has printed the run's output, whose end the traceback of a single rank is.
    """
    lines = []
    if seen.state.value == "done":
        metrics = flat(seen.run.result() or {})
        lines.append(f"{seen.run.id} is done")
        width = max(map(len, metrics), default=0)
        for key, value in metrics.items():
            shown = f"{value:.6g}" if isinstance(value, float) else cut(one_line(str(value)), LONGEST_METRIC)
            lines.append(f"  {one_line(key):<{width}}  {shown}")
    else:
        fault = seen.history.fault
        if isinstance(fault, Fault) and fault.traceback and not (printed and seen.plan.world_size == 1):
            lines += [f"Traceback of rank {fault.rank}:", clean(fault.traceback.rstrip()), ""]
        lines.append(f"{seen.run.id} {seen.state.value}" + (f": {why}" if (why := cause(seen)) else ""))
    if seen.state.value in ("failed", "lost"):
        lines.append(f"  more: {program()} post-mortem {seen.run.id}")
    lines.append(f"  everything is in {seen.run.path}")
    return "\n".join(lines)


class Declined(LauncherError):
    exit_code = DECLINED


def confirm(plans: Sequence[JobPlan], above: float | None, *, yes: bool) -> None:
    """Prints the requested resources, and asks for confirmation at a terminal; raises Declined.

    above: GPU-hours (without GPUs: node-hours) above which confirmation is needed; None: never.
    """
    from launcher.plan import limits

    print_under("requests", limits.lines(plans))
    asked, unit = limits.of_plans(plans).counted
    if above is None or asked <= above or yes or sys.stdin is None or not sys.stdin.isatty():
        return
    print(f"More than confirm_above={number(above)} {unit}. Submit? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was submitted (--yes submits without a question)")


def print_commands(commands: Sequence[str], following: str) -> None:
    """Prints commands with which the user submits jobs, alone to stdout; `following`: the command that shows them."""
    told = f"run this in a shell with the same environment, once; then `{program()} {following}`"
    print(f"launcher: nothing is submitted yet: {told}", file=sys.stderr, flush=True)
    print("\n".join(commands))

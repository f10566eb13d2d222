"""The sections of the report of a run, and of the comparison of several runs."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from launcher import __version__
from launcher.failures import text
from launcher.formatting import clean, long_size
from launcher.monitoring.sweep import LIVE
from launcher.redaction import HIDDEN, is_secret, public
from launcher.reports.collect import RunData, finite, positive
from launcher.reports.fabric import fabric_section
from launcher.reports.page import (
    POINTS,
    CodeBlock,
    Figure,
    Named,
    Page,
    Section,
    Table,
    axis,
    change_text,
    clock,
    colour,
    legend,
    line,
    span_text,
    timeline_figure,
    training_figures,
    value_text,
)
from launcher.runs.events import Ended, Fault, Met, Progress, Started, Stop, every, last
from launcher.runs.health import differing_bindings, latest_bindings
from launcher.spec import build

# -- Makes the figure of step times: how long each rank computed for a step, without waiting for other ranks


MOST_LINES = 8  # at most so many ranks have a line of their own

Event = Mapping[str, Any]
Points = list[tuple[float, float]]  # (time in seconds since the epoch, seconds of a step)


def _by_rank(events: Sequence[Event]) -> dict[int, Points]:
    found: dict[int, Points] = {}
    for event in events:
        time, first, seconds = event.get("time"), event.get("rank"), event.get("seconds")
        if not isinstance(time, int | float) or not isinstance(first, int) or not isinstance(seconds, list):
            continue
        for rank, value in enumerate(seconds, first):
            if isinstance(value, int | float) and value > 0:
                found.setdefault(rank, []).append((float(time), float(value)))
    return found


def pace_figure(attempts: Sequence[Sequence[Event]]) -> Figure | None:
    """Returns a figure of the slowest ranks' step times and the median, from each attempt's `pace` events."""
    measured = [_by_rank(events) for events in attempts]
    everything: dict[int, Points] = {}
    for paces in measured:
        for rank, points in paces.items():
            everything.setdefault(rank, []).extend(points)
    if not everything:
        return None
    medians = {rank: statistics.median(value for _, value in points) for rank, points in everything.items()}
    shown = sorted(sorted(medians, key=lambda rank: -medians[rank])[:MOST_LINES])
    traces = []
    if len(everything) > len(shown):
        times: dict[int, list[float]] = {}
        for points in everything.values():
            for time, value in points:
                times.setdefault(round(time / 10), []).append(value)  # agents report within seconds of each other
        middle = [(10.0 * slot, statistics.median(values)) for slot, values in sorted(times.items())]
        traces.append(_line("median of all ranks", middle, "--muted", "dash"))
    for place, rank in enumerate(shown):
        gaps: list[tuple[float | None, float | None]] = []
        for paces in measured:  # no line from one attempt to the next
            gaps += [*paces.get(rank, []), (None, None)]
        traces.append(_line(f"rank {rank}", gaps[:-1], colour(place), "solid"))
    layout = {
        "xaxis": axis(type="date", nticks=6),
        "yaxis": axis(tickformat="~s", ticksuffix="s", rangemode="tozero"),
        "hovermode": "x unified",
        "showlegend": True,
    }
    more = len(everything) - len(shown)
    caption = f"The slowest {len(shown)} of {len(everything)} ranks." if more else ""
    return Figure("Time for a step, without waiting for others", traces, layout, caption, wide=True)


def _line(name: str, points: Sequence[tuple[float | None, float | None]], shade: str, dash: str) -> dict[str, Any]:
    stride = max(1, len(points) * (MOST_LINES + 1) // POINTS)
    kept = points[::stride]
    times = [None if time is None else clock(time) for time, _ in kept]
    return line(name, times, [value for _, value in kept], shade, dash=dash, hovertemplate="%{y:.3s}s")


# -- Makes the sections of a page about one run, and the facts above them


PROGRAM = "python -m launcher"
MOST_MOMENTS = 200  # the last events that the timeline's table lists
LONGEST = 24  # characters of a value in a table of several runs
MOST_RANKS = 512  # at most so many ranks are listed with their cores


def single(run: RunData) -> list[Section]:
    """Returns the sections of a page about one run, in order. The output of a failed run comes early."""
    failed = run.state in ("failed", "lost", "cancelled", "stopped")
    output = output_section(run, folded=not failed)
    sections = [
        notes_section([run]),
        traceback_section(run),
        output if failed else None,
        timeline_section(run),
        training_section([run]),
        ranks_section(run),
        fabric_section([run]),
        result_section(run),
        checkpoints_section(run),
        tracking_section(run),
        None if failed else output,
        config_section(run),
        environment_section(run),
    ]
    return [section for section in sections if section is not None]


# -- the head


def facts(run: RunData) -> list[tuple[str, str]]:
    """Returns (name, value) of the main facts about a run: cluster, size, times, attempts, step."""
    plan, history = run.plan, run.timeline
    cluster = plan.get("cluster", {})
    where = str(cluster.get("name", "-"))
    for key in ("partition", "queue", "qos"):
        where += f", {key} {run.cluster_settings[key]}" if run.cluster_settings.get(key) else ""
    nodes, procs = plan.get("nodes"), plan.get("procs_per_node")
    pairs = [("cluster", where), ("nodes", value_text(nodes))]
    if isinstance(nodes, int) and isinstance(procs, int):
        pairs.append(("ranks", f"{nodes * procs}"))
    if history.begin is not None and history.end is not None:
        pairs.append(("begun", local_time(history.begin)))
        pairs.append(("so far" if run.state in LIVE else "took", span_text(history.end - history.begin)))
        if (waited := history.total("queued")) >= 1:
            pairs.append(("waited", span_text(waited)))
    if len(run.attempts) > 1:
        pairs.append(("attempts", str(len(run.attempts))))
    if (reached := progress(run)) is not None:
        pairs.append(("step", f"{reached[0]:,}" + (f" of {reached[1]:,}" if reached[1] > 0 else "")))
    return pairs


def progress(run: RunData) -> tuple[int, int] | None:
    """Returns the last reported step and the total number of steps (0 or less: not known); None: no step reported."""
    newest = (last(events, Progress) for _, events in reversed(run.attempts))
    return next(((int(each.step), int(each.total)) for each in newest if each is not None), None)


def command(run: RunData) -> CodeBlock:
    """Returns the command that submitted the run, to copy. The values of secrets are hidden."""
    return CodeBlock("submitted with", build.command(PROGRAM, run.overrides))


def local_time(time: float) -> str:
    """Returns seconds since the epoch as local time with its time zone (`31 Jan 2026 12:00:00 CET`)."""
    return datetime.fromtimestamp(time).astimezone().strftime("%-d %b %Y %H:%M:%S %Z")


def made(run: RunData) -> str:
    return f"made {local_time(run.seen)} by launcher {__version__} from {run.path}"


# -- sections of one run


def notes_section(runs: Sequence[RunData]) -> Section | None:
    """Returns the section that lists what could not be read; None: everything could."""
    rows = [(run.id, note) for run in runs for note in run.notes]
    return Section("Could not be read", tables=[Table(("run", "what"), rows, frozenset({0, 1}))]) if rows else None


def timeline_section(run: RunData, name: str = "") -> Section | None:
    """Returns the section with the timeline, attempts and events, or None; name: on a page about several runs."""
    history = run.timeline
    if not history.spans:
        return None
    begin = history.begin or 0.0
    moments = [moment for moment in history.moments if moment.kind != "checkpoint"][-MOST_MOMENTS:]
    events = [(f"+{span_text(moment.time - begin)}", str(moment.attempt), moment.text) for moment in moments]
    tables = []
    if len(run.attempts) > 1:
        heads = ("attempt", "ranks", "step", "waited", "ran", "ended", "job")
        rows = [_attempt_row(run, number, entries) for number, entries in run.attempts]
        tables.append(Table(heads, rows, frozenset({0, 5, 6})))
    if events:
        tables.append(Table(("after", "attempt", "what happened"), events, frozenset({2}), summary="Events"))
    title = "Timeline" + (f" of {name}" if name else "")
    return Section(title, figures=[timeline_figure(history)], tables=tables, folded=bool(name))


def _attempt_row(run: RunData, number: int, events: Sequence[Event]) -> tuple[str, ...]:
    spans = [span for span in run.timeline.spans if span.attempt == number]
    waited = sum(span.end - span.begin for span in spans if span.what == "queued")
    ran = sum(span.end - span.begin for span in spans if span.what != "queued")
    ended, why = last(events, Ended), last(events, Fault) or last(events, Stop)
    met, progress, started = last(events, Met), last(events, Progress), last(events, Started)
    how = str(ended.code) if ended else "-"
    if how != "0" and why is not None:
        how += f": {text.of_fault(why) if isinstance(why, Fault) else text.of_stop(why)}"
    return (
        str(number), value_text(met and met.ranks), value_text(progress and progress.step), span_text(waited),
        span_text(ran), how, started.job if started else "-",
    )  # fmt: skip


def traceback_section(run: RunData) -> Section | None:
    """Returns the section with the traceback of the rank that failed first in the last attempt; None: there is none."""
    fault = next((event for _, events in run.attempts[-1:] for event in every(events, Fault)), None)
    trace = fault.traceback if fault and run.state == "failed" else None
    if not fault or not trace or "\n" not in trace.strip():  # a single line is the cause, which is shown above
        return None
    rank = "?" if fault.rank is None else fault.rank
    return Section(f"Traceback of rank {rank}", log=clean(trace).strip().split("\n"))


def training_section(runs: Sequence[RunData]) -> Section | None:
    named: Named = [(run.id, run.curves) for run in runs]
    figures = training_figures(named)
    return Section("Training", legend=legend(named), figures=figures) if figures else None


def ranks_section(run: RunData) -> Section | None:
    """Returns the section with the ranks' step times, problems with nodes, and bound cores; None: there are none."""
    figure = pace_figure(run.paces)
    bound = next((found for _, events in reversed(run.attempts) if (found := latest_bindings(events))), [])
    unbound = {f"ranks on {each.host} are not bound to cores: {each.unbound.words}": None
               for each in bound if each.unbound}  # fmt: skip
    notes = [*run.health, *filter(None, [differing_bindings(bound), *unbound])]
    if figure is None and not notes and not bound:
        return None
    rows = [
        (str(rank.rank), each.host, str(rank.cores), rank.cpus, rank.numa, rank.gpu or "-", rank.nic or "-")
        for each in bound
        for rank in each.ranks
    ][:MOST_RANKS]
    heads = ("rank", "host", "cores", "CPUs", "NUMA nodes", "GPU", "NIC")
    return Section(
        "Ranks", " ".join(f"{line}." for line in notes), figures=[figure] if figure else [],
        tables=[Table(heads, rows, frozenset({1, 3, 5, 6}), summary="Where ranks run")] if rows else [],
    )  # fmt: skip


def result_section(run: RunData) -> Section | None:
    if not run.result:
        return None
    found = ((str(key), value, finite(value)) for key, value in run.result.items())
    rows = [(key, value_text(value if number is None else number)) for key, value, number in found]
    return Section("Result", tables=[Table(("metric", "value"), rows, frozenset({0, 1}))], folded=len(rows) > 25)


def checkpoints_section(run: RunData) -> Section | None:
    if not run.checkpoints:
        return None
    metrics = list(dict.fromkeys(name for each in run.checkpoints for name in each.metrics))
    rows = [
        (
            f"{each.step:,}", local_time(each.time), long_size(each.size), str(each.world_size), str(each.attempt),
            *(value_text(each.metrics.get(name)) for name in metrics),
        )
        for each in run.checkpoints
    ]  # fmt: skip
    heads = ("step", "saved", "size", "ranks", "attempt", *metrics)
    return Section("Checkpoints", tables=[Table(heads, rows, frozenset())])


def tracking_section(run: RunData) -> Section | None:
    """Returns the section with the command that sends offline data to W&B; None: the run has no offline data."""
    if not run.offline:
        return None
    code = CodeBlock("send with", shlex.join(("wandb", "sync", *run.offline)))
    return Section("Weights & Biases", "Written offline. On a machine that reaches the server:", codes=[code])


def output_section(run: RunData, *, folded: bool) -> Section | None:
    if not run.log:
        return None
    return Section("Last lines of output", log=run.log, folded=folded)


def flat_values(values: Any, prefix: str = "") -> dict[str, Any]:
    """Returns nested values by dotted key (`a.b.c`), below a prefix; those of secrets are replaced."""
    if not isinstance(values, dict) or not values:
        name = prefix.rpartition(".")[2]
        if isinstance(values, str):
            return {prefix: public(name, values)}
        return {prefix: HIDDEN if values is not None and is_secret(name) else values}
    return {
        key: each
        for name, inner in values.items()
        for key, each in flat_values(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def config_section(run: RunData) -> Section | None:
    values = flat_values(dict(run.config))
    chosen = {override.lstrip("+~").partition("=")[0] for override in run.overrides}
    rows = [(key, value_text(value)) for key, value in values.items()]
    marks = {number: "chosen" for number, (key, _) in enumerate(rows) if key in chosen}
    table = Table(("key", "value"), rows, frozenset({0, 1}), marks)
    return Section("Configuration", tables=[table], folded=True) if rows else None


def environment_section(run: RunData, name: str = "") -> Section:
    """Returns the section with versions, hosts and folders; name: on a page about several runs."""
    record, plan = run.record, run.plan
    pairs = {key: record.get(key) for key in ("launcher", "python", "hydra", "submitit", "host", "commit")}
    met = next((event for _, events in run.attempts for event in every(events, Met)), None)
    pairs |= {"torch": met and met.torch, "interface": met and met.interface}
    known = run.fabric.conditions if run.fabric else {}
    pairs |= {key: known[key] for key in ("backend", "backend_version", "device", "device_name") if known.get(key)}
    pairs |= {"hosts": ", ".join(map(str, known["hosts"]))} if known.get("hosts") else {}
    pairs |= {f"environment: {key}": value for key, value in dict(known.get("environment") or {}).items()}
    pairs |= {"working directory": plan.get("workdir"), "directory": run.path}
    rows = [(key, HIDDEN if is_secret(key) else value_text(value)) for key, value in pairs.items() if value is not None]
    title = "Environment" + (f" of {name}" if name else "")
    return Section(title, tables=[Table(("what", "value"), rows, frozenset({0, 1}))], folded=True)


# -- Makes the page about one run, or about several runs side by side


NOT_COMPARED = {"run_id", "runs_dir", "name", "dry_run", "submit", "wait", "baseline"}


def comparison_page(runs: Sequence[RunData], baseline: RunData | None = None) -> Page:
    """Returns the page about one run, or several beside the baseline (None: the first of them)."""
    everything = [*runs, *([baseline] if baseline is not None and baseline.id not in {run.id for run in runs} else [])]
    first = everything[0]
    against = baseline or (first if len(everything) > 1 else None)
    if len(everything) == 1:
        return Page(
            first.id,
            f"Run of {first.plan.get('workload', {}).get('name', '?')}",
            first.state,
            first.cause or "",
            facts(first),
            [command(first)],
            single(first),
            made(first),
        )
    found = [
        notes_section(everything),
        runs_section(everything),
        training_section(everything),
        metrics_section(everything, against),
        fabric_section(everything, against),
        config_differences(everything),
        *(timeline_section(run, run.id) for run in everything),
        *(environment_section(run, run.id) for run in everything),
    ]
    return Page(
        f"{first.id} and {everything[1].id}" if len(everything) == 2 else f"{len(everything)} runs",
        "Runs side by side",
        "",
        f"compared with {against.id}" if against else "",
        (),
        (),
        [section for section in found if section is not None],
        made(first),
    )


def runs_section(runs: Sequence[RunData]) -> Section:
    """Returns the section with a row of facts for each run: state, size, time, step, overrides."""
    names = list(dict.fromkeys(name for run in runs for name, _ in facts(run) if name not in ("begun", "waited")))
    rows = [
        (run.id, run.state, *(dict(facts(run)).get(name, "-") for name in names), " ".join(run.overrides))
        for run in runs
    ]
    heads = ("run", "state", *names, "overrides")
    return Section("Runs", tables=[Table(heads, rows, frozenset({0, 1, 2, len(names) + 2}))])


def metrics_section(runs: Sequence[RunData], against: RunData | None) -> Section | None:
    """Returns the section with runs' metrics, in percent of the baseline's changes; None: no run has any."""
    names = list(dict.fromkeys(str(name) for run in runs for name in run.result or ()))
    if not names:
        return None
    rows = []
    for name in names:
        before = positive((against.result or {}).get(name)) if against else None
        cells = []
        for run in runs:
            value = (run.result or {}).get(name)
            text, now = value_text(value), positive(value)
            text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
            if run is not against and now and before and now != before:
                text += f" ({change_text(now, before)})"
            cells.append(text)
        rows.append((name, *cells))
    return Section("Results", tables=[Table(("metric", *(run.id for run in runs)), rows)], folded=len(rows) > 40)


def config_differences(runs: Sequence[RunData]) -> Section | None:
    """Returns the section with the config keys that differ between runs; None: no key differs."""
    values = [flat_values(dict(run.config)) for run in runs]
    keys = [key for key in dict.fromkeys(key for each in values for key in each) if key not in NOT_COMPARED]
    rows = [
        (key, *(value_text(each.get(key)) for each in values))
        for key in keys
        if len({str(each.get(key)) for each in values}) > 1
    ]
    if not rows:
        return None
    table = Table(("key", *(run.id for run in runs)), rows, frozenset(range(len(runs) + 1)))
    return Section("Configuration that differs", tables=[table])

"""What the pages of a run and of a sweep show: their sections, tables and figures; and their HTML."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__
from launcher.errors import LauncherError, program
from launcher.failures import messages
from launcher.files import safe_io
from launcher.formatting import clean, flat, long_size, plural, si
from launcher.monitoring.sweep_status import LIVE
from launcher.plan import build, limits
from launcher.redaction import HIDDEN, is_secret, public
from launcher.reports import collect
from launcher.reports.collect import MEASURES, MOST_CURVES, RunData, SweepPoint, measured
from launcher.reports.figures import (
    Figure,
    Named,
    fabric_figures,
    legend,
    span_text,
    timeline_figure,
    training_figures,
    value_text,
)
from launcher.runs.events import Ended, Fault, Met, Progress, Started, Stop, every, last
from launcher.runs.history import differing_bindings, first_fault, latest_bindings
from launcher.runs.sweep_directory import SearchSettings, canonical, differing, label, values_of
from launcher.schedulers import registry
from launcher.search.progress import SearchProgress, described, rung_lines

if TYPE_CHECKING:
    from jinja2 import Template

# -- The data types that a page consists of: Page, Section, Table, Code. page.html.j2 renders them


@dataclass(frozen=True)
class Table:
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: frozenset[int] = frozenset({0})  # numbers (from 0) of the columns that are aligned left, since they are text
    marks: dict[int, str] | None = None  # style of highlighted rows (`good`, `bad` or `chosen`), by number from 0
    summary: str = ""  # on which to click to open the table; empty: the table is always open


@dataclass(frozen=True)
class Section:
    """A section of a page. Its contents are shown in this order: note, codes, legend, figures, tables, log."""

    title: str
    note: str = ""  # text below the heading
    codes: Sequence[tuple[str, str]] = ()  # (label, text) of what is to be copied, such as a command
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    log: Sequence[str] = ()  # lines of output or of a traceback
    folded: bool = False  # whether the section is closed at first
    legend: Sequence[tuple[str, str]] = ()  # (colour, name) of each run, for all figures of the section

    @property
    def id(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Page:
    title: str  # the document's title and first heading
    kind: str  # what the page is about (`Sweep`), shown above that heading
    state: str  # the run's; empty for a sweep
    cause: str  # a line below the heading: why the run ended, or the states of a sweep's points
    facts: Sequence[tuple[str, str]]  # names and values
    codes: Sequence[tuple[str, str]]  # as of a section
    sections: Sequence[Section]
    made: str  # when, by which version of the launcher, and from which directory


# -- Makes the sections of a page about one run, and the facts above them


MOST_MOMENTS = 200  # the last events that the timeline's table lists
MOST_RANKS = 512  # at most so many ranks are listed with their cores


def single(run: RunData) -> list[Section]:
    """Returns the sections of a page about one run. The output of a failed run comes early."""
    failed = run.state in ("failed", "lost", "cancelled", "stopped")
    output = output_section(run, folded=not failed)
    sections = [
        notes_section(run),
        traceback_section(run),
        output if failed else None,
        timeline_section(run),
        training_section(run),
        ranks_section(run),
        fabric_section(run),
        result_section(run),
        checkpoints_section(run),
        tracking_section(run),
        None if failed else output,
        config_section(run),
        environment_section(run),
    ]
    return [section for section in sections if section is not None]


def run_page(run: RunData) -> Page:
    kind = f"Run of {run.plan.workload.name}"
    codes = [("submitted with", build.command(program(), run.overrides))]
    return Page(run.id, kind, run.state, run.cause or "", facts(run), codes, single(run), made(run.path, run.seen))


def facts(run: RunData) -> list[tuple[str, str]]:
    plan, history = run.plan, run.timeline
    pools = [f"{key} {name}" for key, name in limits.pools_by_key(plan).items()]
    pairs = [
        ("cluster", ", ".join([plan.cluster.name, *pools])),
        ("nodes", str(plan.nodes)),
        ("ranks", str(plan.world_size)),
    ]
    if history.begin is not None and history.end is not None:
        pairs.append(("begun", local_time(history.begin)))
        pairs.append(("so far" if run.state in LIVE else "took", span_text(history.end - history.begin)))
        if (waited := history.total("queued")) >= 1:
            pairs.append(("waited", span_text(waited)))
    if len(run.attempts) > 1:
        pairs.append(("attempts", str(len(run.attempts))))
    reports = (last(events, Progress) for _, events in reversed(run.attempts))
    if (newest := next(filter(None, reports), None)) is not None:
        pairs.append(("step", f"{int(newest.step):,}" + (f" of {int(newest.total):,}" if newest.total > 0 else "")))
    return pairs


def local_time(time: float) -> str:
    """Returns seconds since the epoch as local time with its time zone (`31 Jan 2026 12:00:00 CET`)."""
    return datetime.fromtimestamp(time).astimezone().strftime("%-d %b %Y %H:%M:%S %Z")


def _shown(which: str, most: int, number: int) -> str:
    return f" (the {which} {most} of {number:,})" if number > most else ""


def made(path: str, seen: float) -> str:
    return f"made {local_time(seen)} by launcher {__version__} from {path}"


def notes_section(run: RunData) -> Section | None:
    rows = [(note,) for note in run.notes]
    return Section("Could not be read", tables=[Table(("what",), rows, frozenset({0}))]) if rows else None


def timeline_section(run: RunData) -> Section | None:
    history = run.timeline
    if not history.spans:
        return None
    begin = history.begin or 0.0
    moments = [moment for moment in history.moments if moment.kind != "checkpoint"]
    events = [
        (f"+{span_text(moment.time - begin)}", str(moment.attempt), moment.text) for moment in moments[-MOST_MOMENTS:]
    ]
    tables = []
    if len(run.attempts) > 1:
        heads = ("attempt", "ranks", "step", "waited", "ran", "ended", "job")
        rows = [_attempt_row(run, number, entries) for number, entries in run.attempts]
        tables.append(Table(heads, rows, frozenset({0, 5, 6})))
    if events:
        summary = f"Events{_shown('last', MOST_MOMENTS, len(moments))}"
        tables.append(Table(("after", "attempt", "what happened"), events, frozenset({2}), summary=summary))
    return Section("Timeline", figures=[timeline_figure(history)], tables=tables)


def _attempt_row(run: RunData, number: int, events: Sequence[collect.Entry]) -> tuple[str, ...]:
    spans = [span for span in run.timeline.spans if span.attempt == number]
    waited = sum(span.end - span.begin for span in spans if span.what == "queued")
    ran = sum(span.end - span.begin for span in spans if span.what != "queued")
    ended, fault, stop = last(events, Ended), first_fault(events), last(events, Stop)
    met, progress, started = last(events, Met), last(events, Progress), last(events, Started)
    how = str(ended.code) if ended else "-"
    if how != "0" and fault is not None:
        how += f": {messages.of_fault(fault) if isinstance(fault, Fault) else fault.message}"
    elif how != "0" and stop is not None:
        how += f": {messages.of_stop(stop)}"
    return (
        str(number), value_text(met and met.ranks), value_text(progress and progress.step), span_text(waited),
        span_text(ran), how, started.job if started else "-",
    )  # fmt: skip


def traceback_section(run: RunData) -> Section | None:
    fault = next((event for _, events in run.attempts[-1:] for event in every(events, Fault)), None)
    trace = fault.traceback if fault and run.state == "failed" else None
    if not fault or not trace or "\n" not in trace.strip():  # a single line is the cause, which is shown above
        return None
    rank = "?" if fault.rank is None else fault.rank
    return Section(f"Traceback of rank {rank}", log=clean(trace).strip().split("\n"))


def training_section(run: RunData) -> Section | None:
    figures, left = training_figures([(run.id, run.curves)])
    return Section("Training", left, figures=figures) if figures else None


def ranks_section(run: RunData) -> Section | None:
    bound = next((found for _, events in reversed(run.attempts) if (found := latest_bindings(events))), [])
    unbound: dict[str, list[str]] = {}
    for each in bound:
        if each.unbound:
            unbound.setdefault(each.unbound.text, []).append(each.host)
    notes = [*run.health, *filter(None, [differing_bindings(bound)])]
    notes += [f"ranks on {messages.first_of(hosts)} are not bound to cores: {why}" for why, hosts in unbound.items()]
    if not notes and not bound:
        return None
    rows = [
        (str(rank.rank), each.host, str(rank.cores), rank.cpus, rank.numa, rank.gpu or "-", rank.nic or "-")
        for each in bound
        for rank in each.ranks
    ]
    summary = f"Where ranks run{_shown('first', MOST_RANKS, len(rows))}"
    heads = ("rank", "host", "cores", "CPUs", "NUMA nodes", "GPU", "NIC")
    return Section(
        "Ranks", " ".join(f"{line}." for line in notes),
        tables=[Table(heads, rows[:MOST_RANKS], frozenset({1, 3, 5, 6}), summary=summary)] if rows else [],
    )  # fmt: skip


def result_section(run: RunData) -> Section | None:
    if not run.result:
        return None
    found = ((key, value, collect.finite(value)) for key, value in run.result.items())
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
    if not run.offline:
        return None
    code = ("send with", shlex.join(("wandb", "sync", *run.offline)))
    return Section("Weights & Biases", "Written offline. On a machine that reaches the server:", codes=[code])


def output_section(run: RunData, *, folded: bool) -> Section | None:
    return Section("Last lines of output", log=run.log, folded=folded) if run.log else None


def config_section(run: RunData) -> Section | None:
    chosen = {override.lstrip("+~").partition("=")[0] for override in run.overrides}
    rows = [(key, value_text(value)) for key, value in flat(public("", dict(run.config))).items()]
    marks = {number: "chosen" for number, (key, _) in enumerate(rows) if key in chosen}
    table = Table(("key", "value"), rows, frozenset({0, 1}), marks)
    return Section("Configuration", tables=[table], folded=True) if rows else None


def environment_section(run: RunData) -> Section:
    pairs = {key: run.record.get(key) for key in ("launcher", "python", "hydra", "submitit", "host", "commit")}
    met = next((event for _, events in run.attempts for event in every(events, Met)), None)
    pairs |= {"torch": met and met.torch, "interface": met and met.interface}
    known = run.fabric.conditions if run.fabric else {}
    pairs |= {key: known[key] for key in ("backend", "backend_version", "device", "device_name") if known.get(key)}
    pairs |= {"hosts": ", ".join(map(str, known["hosts"]))} if known.get("hosts") else {}
    pairs |= {f"environment: {key}": value for key, value in dict(known.get("environment") or {}).items()}
    pairs |= {"working directory": run.plan.workdir, "directory": run.path}
    rows = [(key, HIDDEN if is_secret(key) else value_text(value)) for key, value in pairs.items() if value is not None]
    return Section("Environment", tables=[Table(("what", "value"), rows, frozenset({0, 1}))], folded=True)


# -- Makes the section about a benchmark: conditions, figures, slow pairs, all numbers


MOST_ROWS = 1000  # of each table
HEADS = ("operation", "group", "ranks", "size", "type", "redop", "place", "median", "min", "p99", "latency", "algbw",
         "busbw", "bandwidth", "of roof", "wrong", "not measured")  # fmt: skip
# The columns with what a row says, and its key there.
WORDS = {"group": "group", "ranks": "ranks", "type": "dtype", "redop": "redop", "place": "place",
         "not measured": "missing"}  # fmt: skip


def fabric_section(run: RunData) -> Section | None:
    results = run.fabric
    if results is None or not (results.rows or results.matrix):
        return None
    tables: list[Table] = []
    codes = []
    if results.matrix is not None:
        tables.append(slow_table(results.matrix))
        if override := _exclude(run, str(results.matrix.get("exclude") or "")):
            codes.append(("exclude the suspected nodes with", override))
    tables.append(rows_table(results.rows, results.roofs()))
    note = conditions(results.conditions)
    if results.roof.get("how"):
        note += f" Roof: {results.roof['how']}."
    if not results.complete:
        note += f" Not complete{': ' + results.reason if results.reason else ''}."
    return Section("Fabric", note, codes, fabric_figures(results), [table for table in tables if table.rows])


def _exclude(run: RunData, hosts: str) -> str:
    cluster = run.plan.cluster
    known = hosts and cluster.scheduler in registry.names()
    return registry.scheduler(cluster.scheduler).without(hosts, cluster.settings) if known else ""


def conditions(known: Mapping[str, Any]) -> str:
    """Returns a benchmark's conditions: `4 ranks on 2 nodes, gloo over eth0; 20 iterations after 5 of warm-up.`"""
    parts = [f"{plural(known.get('world_size', '?'), 'rank')} on {plural(known.get('nodes', '?'), 'node')}"]
    backend = str(known.get("backend", "?")) + (f" {known['backend_version']}" if known.get("backend_version") else "")
    parts.append(backend + (f" over {known['interface']}" if known.get("interface") else ""))
    parts += [str(known["device_name"])] if known.get("device_name") else []
    text = ", ".join(parts)
    return f"{text}; {known.get('iterations', '?')} iterations after {known.get('warmup', '?')} of warm-up."


def rows_table(rows: Sequence[collect.Row], roofs: Mapping[str, float]) -> Table:
    """Returns the table of all measurements without empty columns; roofs: upper limits in bytes/s, by name."""
    roof = roofs.get("socket") or roofs.get("memory")

    def cells(row: collect.Row) -> dict[str, str]:
        words = {head: str(row.get(key) or "") for head, key in WORDS.items()}
        words |= {part: _measure(collect.seconds_of(row, part), "s") for part in ("median", "min", "p99")}
        words |= {each: _measure(measured(row, each), MEASURES[each][1]) for each in MEASURES if each != "time"}
        speed = measured(row, "busbw") or measured(row, "bandwidth")
        return words | {
            "operation": collect.operation(row), "size": collect.size_word(row),
            "wrong": "" if row.get("wrong") is None else str(row["wrong"]),
            "place": words["place"] + (" async" if row.get("async") else ""),
            "of roof": f"{100 * speed / roof:.0f} %" if speed and roof else "",
        }  # fmt: skip

    shown = rows[:MOST_ROWS]
    found = [cells(row) for row in shown]
    kept = [head for head in HEADS if any(each[head] for each in found)]
    text = [tuple(each[head] for head in kept) for each in found]
    left = frozenset(at for at, head in enumerate(kept) if head == "operation" or (head in WORDS and head != "ranks"))
    marks = {number: "bad" for number, row in enumerate(shown) if row.get("wrong") or row.get("missing")}
    return Table(tuple(kept), text, left, marks, f"All numbers{_shown('first', MOST_ROWS, len(rows))}")


def slow_table(matrix: Mapping[str, Any]) -> Table:
    rows = [
        (
            f"{each.get('a', '?')} - {each.get('b', '?')}", si(each.get("bandwidth"), "B/s"),
            si(each.get("latency"), "s"), f"{each['ratio']:.2f}" if each.get("ratio") else "-",
            str(each.get("against", "")),
        )
        for each in (matrix.get("slow") or ())[:MOST_ROWS]
    ]  # fmt: skip
    count = int(collect.positive(matrix.get("slow_pairs")) or len(rows))
    summary = f"the {len(rows):,} slowest of {count:,} slow pairs" if count > len(rows) else ""
    return Table(
        ("slow pair", "bandwidth", "latency", "of normal", "against"), rows, frozenset({0, 4}),
        dict.fromkeys(range(len(rows)), "bad"), summary,
    )  # fmt: skip


def _measure(value: float | None, unit: str) -> str:
    return "" if value is None else si(value, unit)


# -- Makes the page of a sweep: best point, table of all points, training curves


FIRST_ROWS = 40  # rows of the table that is always open; a longer one with all rows is folded
MOST_POINTS = 10_000  # rows of that table: of 100,000 points, the page would have 30 MB
MOST_METRICS = 8  # columns of the table, in addition to the objective


def sweep_page(
    name: str, points: Sequence[SweepPoint], objective: Sequence[str] = (), best_is: str = "max", path: str = "",
    seen: float = 0.0, search: tuple[SearchSettings, SearchProgress] | None = None,
) -> Page:  # fmt: skip
    """Returns the page about a sweep.

    objective: metrics; the first one determines the order of points. best_is: `max` or `min`, of the first.
    seen: when the points were read. search: settings and progress of a search (sweep.search).
    """
    goal = objective[0] if objective else None
    keys = differing([point.overrides for point in points])
    ranked = collect.by_objective(points, goal, best_is)
    states = [point.state for point in points]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    facts = [("points", str(len(points))), ("keys", ", ".join(map(_short, keys)) or "-")]
    codes: list[tuple[str, str]] = []
    best = ranked[0] if ranked and goal is not None and ranked[0].metric(goal) is not None else None
    if best is not None and goal is not None:
        facts += [("best point", f"{best.name}: {label(best.overrides, keys)}"), (goal, value_text(best.metric(goal)))]
        codes.append(("repeat the best point with", build.command(program(), canonical(best.overrides))))
    sections = [_points_section(ranked, keys, objective, best)]
    if search is not None:
        sections.insert(0, search_section(*search))
    named: Named = [
        (label(each.overrides, keys) or each.name, each.curves) for each in ranked if each.result is not None
    ]  # fmt: skip
    figures, left = training_figures(named[:MOST_CURVES])
    if figures:
        best_of = f"The best {MOST_CURVES} of {len(named)} points." if len(named) > MOST_CURVES else ""
        note = f"{best_of} {left}".strip()
        sections.append(Section("Training", note, legend=legend(named[:MOST_CURVES]), figures=figures))
    return Page(name, "Sweep", "", counted, facts, codes, sections, made(path, seen))


def search_section(settings: SearchSettings, found: SearchProgress) -> Section:
    head, *rungs = rung_lines(found.rungs) or [()]
    tables = [Table(tuple(map(str.lower, head)), rungs)] if rungs else []
    note = " ".join(f"{text[0].upper()}{text[1:]}." for text in described(settings, found))
    return Section("Search", note, tables=tables)


def _points_section(
    ranked: Sequence[SweepPoint], keys: Sequence[str], objective: Sequence[str], best: SweepPoint | None
) -> Section:
    results = [point.result for point in ranked if point.result is not None]
    others = [key for key in dict.fromkeys(str(key) for each in results for key in each) if key not in objective]
    values_of_key = {key: {collect.finite(each.get(key)) for each in results} - {None} for key in others}
    numbers = [key for key, values in values_of_key.items() if len(values) > 1 or (values and len(results) == 1)]
    numbers = numbers[:MOST_METRICS]
    metrics = [*objective, *numbers]
    rows = []
    for point in ranked:
        values, result = values_of(point.overrides, keys), point.result or {}
        rows.append((
            point.name, point.state, *(values.get(key, "-") for key in keys),
            *(value_text(result.get(key)) for key in metrics),
        ))  # fmt: skip
    marks = {place: "good" for place, point in enumerate(ranked) if point is best}
    marks |= {place: "bad" for place, row in enumerate(rows) if row[1] in ("failed", "lost")}
    left, heads = frozenset(range(1, 2 + len(keys))), ("point", "state", *map(_short, keys), *metrics)
    shown = [Table(heads, rows[:FIRST_ROWS], left, marks)]
    if len(rows) > FIRST_ROWS:
        which = f"All {len(rows)}" if len(rows) <= MOST_POINTS else f"The first {MOST_POINTS} of {len(rows)}"
        more = "" if len(rows) <= MOST_POINTS else "; `sweep results --csv FILE` writes all"
        shown.append(Table(heads, rows[:MOST_POINTS], left, marks, f"{which} points{more}"))
    unknown = ""
    if objective and best is None:
        lacks = f"has a number named {objective[0]}" if any(row[1] == "done" for row in rows) else "is done yet"
        unknown = f"No point {lacks}."
    which = f" ({', '.join(numbers)})" if numbers else ""
    note = unknown or ("" if objective else f"To have points compared, sweep with sweep.objective=METRIC{which}.")
    return Section("Points", note, tables=shown)


def _short(key: str) -> str:
    return key.removeprefix("workload.")


# -- Renders a page as one HTML file that contains plotly's JavaScript, and writes it

HERE = Path(__file__).resolve().parent


def render(page: Page) -> str:
    """Returns a page as HTML; raises LauncherError: plotly is not installed.

    jinja2 escapes all text. The figures are JSON in which `<`, `>` and `&` are written as \\u003c and so on, so that
    nothing in them can close the script element. Scripts run only with the page's nonce, and the content security
    policy forbids every request (https://www.w3.org/TR/CSP3/). Lone surrogates, which UTF-8 cannot encode, become
    question marks.
    """
    figures: list[Figure] = []

    def place(figure: Figure) -> int:
        figures.append(figure)
        return len(figures) - 1

    text = _template().render(
        page=page, place=place, figures=figures, nonce=secrets.token_urlsafe(16), plotly=packed_plotly
    )
    return text.encode(errors="replace").decode()


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure_json"] = lambda figure: {
        "data": figure.traces, "layout": {**figure.layout, "height": figure.height},
    }  # fmt: skip
    environment.globals["breakable"] = lambda text: Markup("<wbr>").join(re.split(r"(?<=\.)|(?=_)", text))
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2")


def packed_plotly() -> str:
    """Returns the installed plotly.min.js as base64 of gzip, a third of its size; raises LauncherError."""
    found = importlib.util.find_spec("plotly")  # not imported, which would take a second
    path = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if path is None or not path.is_file():
        raise LauncherError("the report page needs plotly, which is not installed here: pip install 'plotly>=6'")
    return _packed(path)


@lru_cache(maxsize=1)
def _packed(path: Path) -> str:
    return base64.b64encode(gzip.compress(path.read_bytes(), 6, mtime=0)).decode()


def write(path: Path, text: str) -> None:
    """Writes a page atomically, for the user alone; raises LauncherError."""
    try:
        safe_io.replace(path, text.encode(), sync=False)
    except OSError as error:
        why = f"{path} cannot be written ({error.strerror}): choose another place with --output FILE"
        raise LauncherError(why) from None

"""Makes the page about one run, or about several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.reports import words
from launcher.reports.collect import RunData
from launcher.reports.fabric import positive
from launcher.reports.fabric_page import fabric_section
from launcher.reports.page import Page, Section, Table
from launcher.reports.sections import (
    command,
    environment_section,
    facts,
    made,
    notes_section,
    single,
    timeline_section,
    training_section,
)  # fmt: skip

NOT_COMPARED = {"run_id", "runs_dir", "name", "dry_run", "wait", "baseline"}


def page(runs: Sequence[RunData], baseline: RunData | None = None) -> Page:
    """Returns the page about one run, or about several runs side by side.

    baseline: the run with which the others are compared; None: the first of several runs.
    """
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
    return Page(
        f"{first.id} and {everything[1].id}" if len(everything) == 2 else f"{len(everything)} runs",
        "Runs side by side",
        "",
        f"compared with {against.id}" if against else "",
        (),
        (),
        [section for section in several(everything, against) if section is not None],
        made(first),
    )


def several(runs: Sequence[RunData], against: RunData | None) -> list[Section | None]:
    """Returns the sections of a page about several runs, in order; None stands for an empty section.

    against: the baseline; None: nothing is compared.
    """
    return [
        notes_section(runs),
        runs_section(runs),
        training_section(runs),
        metrics_section(runs, against),
        fabric_section(runs, against),
        config_differences(runs),
        *(timeline_section(run, run.id) for run in runs),
        *(environment_section(run, run.id) for run in runs),
    ]


def runs_section(runs: Sequence[RunData]) -> Section:
    """Returns the section with a row of facts for each run: state, size, time, step, overrides."""
    names = list(dict.fromkeys(name for run in runs for name, _ in facts(run) if name not in ("begun", "waited")))
    rows = [
        (run.id, run.state, *(dict(facts(run)).get(name, "-") for name in names), " ".join(run.overrides))
        for run in runs
    ]
    return Section(
        "Runs", tables=[Table(("run", "state", *names, "overrides"), rows, frozenset({0, 1, 2, len(names) + 2}))]
    )


def metrics_section(runs: Sequence[RunData], against: RunData | None) -> Section | None:
    """Returns the section with each run's metrics, and their changes in percent from the baseline's.

    None: no run has metrics.

    against: the baseline; None: the metrics are shown without changes.
    """
    names = list(dict.fromkeys(str(name) for run in runs for name in run.result or ()))
    if not names:
        return None
    rows = []
    for name in names:
        before = positive((against.result or {}).get(name)) if against else None
        cells = []
        for run in runs:
            value = (run.result or {}).get(name)
            text, now = words.short(words.value(value)), positive(value)
            if run is not against and now and before and now != before:
                text += f" ({words.change(now, before)})"
            cells.append(text)
        rows.append((name, *cells))
    return Section("Results", tables=[Table(("metric", *(run.id for run in runs)), rows)], folded=len(rows) > 40)


def config_differences(runs: Sequence[RunData]) -> Section | None:
    """Returns the section with the config keys that differ between runs; None: no key differs."""
    values = [words.flat(dict(run.config)) for run in runs]
    keys = [key for key in dict.fromkeys(key for each in values for key in each) if key not in NOT_COMPARED]
    rows = [
        (key, *(words.value(each.get(key)) for each in values))
        for key in keys
        if len({str(each.get(key)) for each in values}) > 1
    ]
    if not rows:
        return None
    table = Table(("key", *(run.id for run in runs)), rows, frozenset(range(len(runs) + 1)))
    return Section("Configuration that differs", tables=[table])

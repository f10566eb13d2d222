"""The report page without a browser: what is collected, what is drawn, what is escaped."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import commands
from launcher.errors import LauncherError, RunError
from launcher.formatting import clean, si
from launcher.monitoring.run_status import JobMonitor, status_of
from launcher.paths import PACKAGE
from launcher.redaction import redact_override
from launcher.reports import page
from launcher.reports.collect import Curve, RunData, collect, curves, parse, size_curves, thin
from launcher.reports.figures import Figure, plain_text, span_text
from launcher.reports.page import Page
from launcher.runs.directory import Run
from tests.report.examples import BEGIN, at, collective_results, make_run, p2p_results, trained, write_events
from tests.unit.plans import with_fields

MATRIX = {"hosts": ["a"], "bandwidth": [[1]], "latency": [[1]]}
HOSTILE = "</script><script>alert(1)</script><img src=x>"


def data_of(run: Run, cause: str | None = None) -> RunData:
    """The run as the page gets it; one without attempts is made one that is done."""
    if not run.attempts():
        write_events(run.path / "attempts" / "0" / "events" / "script.jsonl", at(2, "started"), at(9, "ended", code=0))
    return collect(status_of(run, JobMonitor()), cause)


def figures_of(shown: Page) -> list[Figure]:
    return [figure for section in shown.sections for figure in section.figures]


def text_of(shown: Page) -> str:
    """All words of the page but those in its figures."""
    cells = [cell for each in shown.sections for table in each.tables for row in table.rows for cell in row]
    other = [text for each in shown.sections for text in (each.title, each.note, *each.log)]
    return "\n".join([*cells, *other, *(value for _, value in shown.facts), *(text for _, text in shown.codes)])


# -- curves


def progress(*points: tuple[int, float]) -> list[dict[str, Any]]:
    return [
        {"event": "progress", "time": 0.0, "step": step, "total": 9, "values": {"loss": value}}
        for step, value in points
    ]


def test_what_was_done_again_counts_once() -> None:
    before, after = progress((1, 5.0), (2, 4.0), (3, 3.0), (4, 2.5)), progress((3, 3.5), (4, 2.0))
    assert curves([before, after]) == [Curve("loss", (1, 2, 3, 4), (5.0, 4.0, 3.5, 2.0), (((3, 4), (3.0, 2.5)),))]


def test_the_same_step_told_twice_is_not_repeated_work() -> None:
    assert curves([progress((1, 5.0), (2, 4.0), (2, 3.0))]) == [Curve("loss", (1, 2), (5.0, 3.0))]


def test_numbers_alone_are_curves() -> None:
    values = {"epoch": 1, "note": "x", "good": True, "bad": float("nan")}
    assert curves([[{"event": "progress", "step": 1, "total": 2, "values": values}, at(1, "met")]]) == []


def test_a_thin_curve_keeps_its_ends() -> None:
    curve = thin(Curve("loss", tuple(range(1001)), tuple(map(float, range(1001)))), 100)
    assert (curve.steps[0], curve.steps[-1]) == (0, 1000)
    assert len(curve.steps) == len(curve.values) <= 101


# -- fabric


def test_lines_are_told_apart_by_what_differs() -> None:
    found = size_curves(parse(collective_results(ops=("all_reduce", "broadcast"))).rows, "busbw")
    assert [(line.op, line.kind) for line in found] == [
        ("all_reduce", "out of place"), ("all_reduce", "in place"), ("broadcast", "out of place"),
        ("broadcast", "in place"),
    ]  # fmt: skip
    assert all(line.sizes == tuple(sorted(line.sizes)) for line in found)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (7, "it has no rows"),
        ({"rows": []}, "has format None, and this launcher reads format 1"),
        ({"rows": [], "format": 2}, "has format 2"),
        ({"rows": [], "format": 1, "matrix": {"hosts": ["a"], "bandwidth": [[1, 2]], "latency": [[1]]}}, "its matrix"),
        ({"rows": [], "format": 1, "matrix": {"hosts": ["a"], "bandwidth": [["x"]], "latency": [[1]]}}, "its matrix"),
        ({"rows": [], "format": 1, "matrix": {**MATRIX, "slow": 5}}, "slow is not a list"),
        ({"rows": [], "format": 1, "matrix": {**MATRIX, "slow": [1]}}, "is not an object"),
        ({"rows": [], "format": 1, "matrix": {**MATRIX, "slow": [{"ratio": "x"}]}}, "ratio is not a number"),
    ],
)
def test_results_that_cannot_be_shown_are_told(tmp_path: Path, values: Any, told: str) -> None:
    with pytest.raises(RunError, match=told):
        parse(values)
    assert told in text_of(page.run_page(data_of(make_run(tmp_path, results=values))))


def test_half_written_results_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "results.json").write_text('{"format": 1, "ro')
    assert "results.json cannot be read" in text_of(page.run_page(data_of(run)))


# -- words


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (si(12.34e-6, "s"), "12.3 µs"), (si(0.25, "s"), "250 ms"), (si(3000, "s"), "3000 s"), (si(None, "s"), "-"),
        (si(1.234e9, "B/s"), "1.23 GB/s"), (si(999, "B/s"), "999 B/s"), (si(999.9e6, "B/s"), "1 GB/s"),
        (span_text(0.04), "0.0s"), (span_text(59.6), "1m"), (span_text(200), "3m20s"), (span_text(90000), "25h"),
        (clean("\x1b[31mred\x1b[0m\x07"), "red"), (plain_text("<b>&"), "&lt;b&gt;&amp;"),
    ],
)  # fmt: skip
def test_numbers_in_words(told: str, expected: str) -> None:
    assert told == expected


def test_a_key_can_break_at_its_dots_and_underscores(tmp_path: Path) -> None:
    html = page.render(page.run_page(data_of(make_run(tmp_path, config={"launch": {"hang_timeout": 600, "<b>": 1}}))))
    assert '<td class="left">launch.<wbr>hang<wbr>_timeout</td>' in html
    assert "launch.<wbr>&lt;b&gt;</td>" in html


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    secret = "hf_abcdef"
    url = f"https://me:{secret}@host/x"
    config: dict[str, Any] = {
        "cluster": {"environment": {"HF_TOKEN": secret, "OMP_NUM_THREADS": "2", "MLFLOW_TRACKING_URI": url}},
        "tracking": {"uri": url},
        "workload": {
            "args": ["--token", secret],
            "urls": [url, "https://host/y"],
            "credentials": {"user": "me", "pass": secret},
        },
    }
    given = [f"+cluster.environment.HF_TOKEN={secret}", f"tracking.uri={url}", "nodes=2"]
    given += [f"workload.args=['--hub_key','{secret}']", f"workload.flags={{hub_key: {secret}}}"]
    run = make_run(tmp_path, config=config, overrides=given)
    html = page.render(page.run_page(data_of(run))).replace("<wbr>", "")
    assert secret not in html
    assert "cluster.environment.HF_TOKEN" in html
    assert "OMP_NUM_THREADS" in html
    assert "https://host/y" in html


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("workload.max_tokens=512", "workload.max_tokens=512"),
        ("workload.script=train_tokens.py", "workload.script=train_tokens.py"),
        ("workload.flags.hub_token=x", "workload.flags.hub_token=(not shown)"),
        ("workload.flags.api-key=x", "workload.flags.api-key=(not shown)"),
        ("workload.flags.basic-auth=x", "workload.flags.basic-auth=(not shown)"),
        ("+cluster.environment.HF_TOKEN=x", "+cluster.environment.HF_TOKEN=(not shown)"),
        ("my.token.value=x", "my.token.value=(not shown)"),
        ("workload.args=['--token','x']", "workload.args=(not shown)"),
        ("tracking.uri=https://me:x@host/y", "tracking.uri=https://(not shown)@host"),
    ],
)
def test_what_a_command_shows_of_an_override(override: str, shown: str) -> None:
    assert redact_override(override) == shown


# -- the page


class Elements(HTMLParser):
    """The elements of a page, and the contents of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str | None] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] = self.scripts[-1][0], self.scripts[-1][1] + data


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run in which every text that can be is hostile."""
    results = p2p_results()
    results["matrix"].update(hosts=[HOSTILE] * 6, exclude=HOSTILE, slow=[{"a": HOSTILE, "b": HOSTILE, "ratio": 0.2}])
    results["conditions"] = dict.fromkeys(results["conditions"], HOSTILE) | {"environment": {HOSTILE: HOSTILE}}
    results["roof"]["how"] = results["reason"] = HOSTILE
    for row in results["rows"]:
        row.update(pattern=HOSTILE, dtype=HOSTILE)
    config, overrides = {HOSTILE: HOSTILE}, [f"a={HOSTILE}"]
    run = trained(tmp_path_factory.mktemp("runs"), words=HOSTILE, results=results, config=config, overrides=overrides)
    run.write_result({HOSTILE: HOSTILE})
    write_events(
        run.path / "attempts" / "1" / "events" / "rank-0.jsonl",
        *({"time": BEGIN, "event": "progress", "step": step, "total": 9, "values": {HOSTILE: 1.0}} for step in (1, 2)),
        at(150, "fault", error=HOSTILE, host=HOSTILE),
    )
    return page.render(page.run_page(data_of(run, HOSTILE)))


def test_nothing_in_a_run_becomes_html(hostile: str) -> None:
    elements = Elements(hostile)
    assert "img" not in elements.tags
    assert elements.tags.count("script") == 3
    assert HOSTILE not in hostile
    policy = re.search(r"script-src 'nonce-([\w-]{20,})'", hostile)
    assert policy is not None
    assert all(attributes["nonce"] == policy[1] for attributes, _ in elements.scripts)


def test_plotly_is_given_no_html_either(hostile: str) -> None:
    _, text = Elements(hostile).scripts[0]
    assert json.loads(text)
    assert "<" not in text
    assert "\\u003c" not in re.sub(r"\\u003c/?extra\\u003e", "", text)


def test_the_page_holds_the_installed_plotly(hostile: str) -> None:
    attributes, text = Elements(hostile).scripts[1]
    assert attributes["type"] == "text/plain"
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(text))[:200]


def test_no_address_of_another_machine_is_loaded(hostile: str) -> None:
    assert Elements(hostile).addresses == ["data:,"]
    sheet = (page.HERE / "page.css").read_text()
    assert "url(" not in sheet
    assert "@import" not in sheet


def test_each_page_has_a_nonce_of_its_own(tmp_path: Path) -> None:
    shown = page.run_page(data_of(make_run(tmp_path)))
    nonces = {re.search(r"'nonce-([\w-]+)'", page.render(shown))[1] for _ in range(2)}  # type: ignore[index]
    assert len(nonces) == 2


def test_no_override_is_shown_for_a_scheduler_that_cannot_exclude_nodes(tmp_path: Path) -> None:
    data = data_of(trained(tmp_path, results=p2p_results()))
    plan = with_fields(data.plan, cluster={"scheduler": "pbs"})
    shown = page.run_page(dataclasses.replace(data, plan=plan))
    assert [text for section in shown.sections for _, text in section.codes if "exclude" in text] == []


def test_the_partition_is_shown_and_excluded_nodes_stay_excluded(tmp_path: Path) -> None:
    data = data_of(trained(tmp_path, results=p2p_results()))
    settings = {"partition": "gpu", "qos": "long", "exclude": "node9"}
    shown = page.run_page(dataclasses.replace(data, plan=with_fields(data.plan, cluster=settings)))
    assert ", partition gpu, qos long" in text_of(shown)
    assert "\"cluster.exclude='node9,node4'\"" in [text for section in shown.sections for _, text in section.codes]


def test_spare_nodes_have_no_ranks(tmp_path: Path) -> None:
    data = data_of(trained(tmp_path))
    plan = with_fields(data.plan, nodes=3, spares=1, procs_per_node=4)
    shown = page.run_page(dataclasses.replace(data, plan=plan))
    assert {("nodes", "3"), ("ranks", "8")} <= set(shown.facts)


def test_metrics_without_a_figure_are_named(tmp_path: Path) -> None:
    found = tuple(Curve(f"m{number}", (1, 2), (0.5, 0.7)) for number in range(14))
    shown = page.run_page(dataclasses.replace(data_of(trained(tmp_path)), curves=found))
    section = next(each for each in shown.sections if each.title == "Training")
    assert (len(section.figures), section.note) == (12, "Without a figure: m12, m13.")


def test_a_training_has_its_curves_and_a_benchmark_its_matrices(tmp_path: Path) -> None:
    shown = page.run_page(data_of(trained(tmp_path, results=p2p_results())))
    titles = [figure.title for figure in figures_of(shown)]
    assert titles == [
        "", "Loss", "Accuracy", "Throughput (images_per_s)", "Learning rate (lr)", "Bandwidth", "Latency (pingpong)",
        "Bandwidth of pairs with 1 MiB, GB/s", "Latency of pairs, µs",
    ]  # fmt: skip
    told = text_of(shown)
    assert "cluster.exclude=node4" in [text for section in shown.sections for _, text in section.codes]
    for words_of in ("75: its time is nearly up", "node4 - node1", "0.28", "[1] hello", "workload.lr"):
        assert words_of in told


def test_the_head_tells_the_state_and_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path, overrides=["workload=ddp_mnist", "name=a b"])
    events = at(2, "started", job="7"), at(9, "ended", code=1)
    write_events(run.path / "attempts" / "0" / "events" / "script.jsonl", *events)
    shown = page.run_page(data_of(run, "rank 1 on node2: ValueError: no"))
    assert (shown.state, shown.cause) == ("failed", "rank 1 on node2: ValueError: no")
    assert shown.codes[0][1] == "python -m launcher workload=ddp_mnist 'name=a b'"
    assert ("took", "7.0s") in shown.facts


def test_a_failed_run_shows_its_traceback_and_its_last_lines_first(tmp_path: Path) -> None:
    run = trained(tmp_path)
    fault = at(180, "fault", rank=3, error="ValueError: no", traceback="Traceback:\n  line 1\nValueError: no\n")
    events = run.path / "attempts" / "1" / "events"
    write_events(events / "node-1.jsonl", fault)
    write_events(events / "script.jsonl", at(120, "started", job="8"), at(191, "ended", code=1))
    first, second = page.run_page(data_of(run)).sections[:2]
    assert (first.title, first.log) == ("Traceback of rank 3", ["Traceback:", "  line 1", "ValueError: no"])
    assert (second.title, second.folded) == ("Last lines of output", False)


def test_a_page_of_much_stays_below_its_limit(tmp_path: Path) -> None:
    run = trained(tmp_path, results=p2p_results(nodes=300))
    values = ({"loss": step / 7, "lr": step / 9, "speed": step / 3} for step in range(1, 20_000))
    points = [at(step, "progress", step=step, total=9, **each) for step, each in enumerate(values)]
    write_events(run.path / "attempts" / "1" / "events" / "rank-0.jsonl", *points)
    (run.path / "output-7.log").write_text("x" * 3_000_000 + "\n" + "a line\n" * 10_000)
    assert len(page.render(page.run_page(data_of(run))).encode()) < 5_000_000


def test_every_key_of_a_figure_is_one_that_plotly_knows(tmp_path: Path) -> None:
    objects = pytest.importorskip("plotly.graph_objects")
    first = trained(tmp_path, results=p2p_results())
    runs = [data_of(first), data_of(trained(tmp_path, "other", results=p2p_results(nodes=200)))]
    sweep = data_of(make_run(tmp_path, "sweep", results=collective_results()))
    shown = [page.run_page(each) for each in (*runs, sweep)]
    found = [figure for each in shown for figure in figures_of(each)]
    assert len(found) > 20
    for figure in found:
        text = re.sub(r'"--[a-z0-9-]+"', '"#123456"', json.dumps([figure.traces, figure.layout]))
        traces, layout = json.loads(text)
        objects.Figure(data=traces, layout=layout)  # raises ValueError


def test_each_colour_is_one_of_the_style_sheet_in_light_and_dark(tmp_path: Path) -> None:
    light, dark = (page.HERE / "page.css").read_text().split("@media (prefers-color-scheme: dark)")
    shown = page.run_page(data_of(trained(tmp_path, results=p2p_results())))
    used = set(re.findall(r'"(--[a-z0-9-]+)"', json.dumps([[each.traces, each.layout] for each in figures_of(shown)])))
    assert {"--running", "--series-1", "--heat-bad", "--muted"} <= used
    for sheet in (light, dark):
        assert used <= set(re.findall(r"(--[a-z0-9-]+):", sheet))


# -- the command


def test_the_page_is_for_the_user_alone_and_replaces_an_older_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = data_of(make_run(tmp_path))
    for _ in range(2):
        assert commands.main(["report", "run-1", "--runs-dir", str(tmp_path)]) == 0
    path = Path(run.path) / "report.html"
    assert capsys.readouterr().out.startswith(f"wrote {path} (")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [each.name for each in path.parent.glob(".report*")] == []


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    data_of(make_run(tmp_path))
    with pytest.raises(LauncherError, match="choose another place with --output"):
        commands.main(["report", "run-1", "--runs-dir", str(tmp_path), "-o", str(tmp_path / "no" / "page.html")])


def test_without_plotly_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LauncherError, match="pip install 'plotly>=6'"):
        page.packed_plotly()


def test_the_command_loads_neither_torch_nor_hydra_nor_plotly(tmp_path: Path) -> None:
    data_of(make_run(tmp_path))
    code = (
        "import sys; from launcher.cli.commands import main\n"
        f"assert main(['report', 'run-1', '--runs-dir', {str(tmp_path)!r}]) == 0\n"
        "print([name for name in ('torch', 'hydra', 'submitit', 'plotly', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# -- trackers


def test_what_wandb_wrote_offline_comes_with_the_command_that_sends_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a run")
    assert not data_of(run).offline
    for name in ("offline-run-20261122_2-x", "offline-run-20261122_1-x", "run-20261122_3-x"):
        (run.path / "wandb" / name).mkdir(parents=True)
    [code] = [text for each in page.run_page(data_of(run)).sections for _, text in each.codes if "wandb" in text]
    first, second = (f"'{run.path}/wandb/offline-run-20261122_{number}-x'" for number in (1, 2))
    assert code == f"wandb sync {first} {second}"


def test_a_table_that_is_cut_says_of_how_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_MOMENTS", 2)
    monkeypatch.setattr(page, "MOST_RANKS", 1)
    run = trained(tmp_path)
    ranks = [{"rank": rank, "cpus": "0", "cores": 1, "numa": "0"} for rank in range(1200)]
    events = run.path / "attempts" / "1" / "events" / "node-7.jsonl"
    write_events(events, at(121, "bound", host="node1", ranks=ranks))
    tables = [table for section in page.run_page(data_of(run)).sections for table in section.tables]
    shown = {table.summary: len(table.rows) for table in tables}
    assert shown["Where ranks run (the first 1 of 1,200)"] == 1
    assert shown["Events (the last 2 of 4)"] == 2


def test_an_attempt_shows_the_first_failure_and_not_what_followed(tmp_path: Path) -> None:
    run = trained(tmp_path)
    events = run.path / "attempts" / "1" / "events"
    lines = [at(150, "fault", code="raised", rank=1, host="node1", error="ValueError: no")]
    lines += [at(151, "fault", code="not_reached", host="node2", error="gone")]
    write_events(events / "node-1.jsonl", *lines)
    write_events(events / "script.jsonl", at(120, "started", job="7"), at(191, "ended", code=1))
    text = text_of(page.run_page(data_of(run)))
    assert "1: rank 1 on node1: ValueError: no" in text
    setup = [at(3, "started"), at(4, "setup_failed", line=1, host="node1"), at(5, "ended", code=1)]
    write_events(run.path / "attempts" / "2" / "events" / "script.jsonl", *setup)
    assert "1: a set-up line failed" in text_of(page.run_page(data_of(run)))

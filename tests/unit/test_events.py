"""What rank 0 tells of its progress, and how often."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from workload_ranks import run_ranks

from launcher import event_file
from launcher.config import DDPMnist, FSDPLm
from launcher.node import events
from launcher.node.events import FIRST, INTERVAL, Events, Reporter
from launcher.runs import Attempt, Run


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = Attempt(Run(tmp_path), 0)
    attempt.events_file("rank-0").parent.mkdir(parents=True)
    return attempt


def steps(attempt: Attempt, event: str) -> list[int]:
    return [each["step"] for each in event_file.read(attempt.events_file("rank-0")) if each["event"] == event]


@pytest.mark.parametrize("event", ["progress", "evaluated"])
def test_the_first_are_all_kept_and_then_two_a_second(
    attempt: Attempt, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(events.time, "monotonic", lambda: now)
    reporter = Reporter(attempt, 0)

    def tell(step: int) -> None:
        if event == "progress":
            reporter.progress(step, 10_000, loss=1.0)
        else:
            reporter.evaluated(step, accuracy=0.5)

    for step in range(1, FIRST + 10):
        tell(step)
    assert steps(attempt, event) == list(range(1, FIRST + 1))
    now += INTERVAL
    tell(100)
    tell(101)
    assert steps(attempt, event)[FIRST:] == [100]


def test_the_last_step_is_always_told(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    reporter = Reporter(attempt, 0)
    for step in range(1, FIRST + 11):
        reporter.progress(step, FIRST + 10)
    assert steps(attempt, "progress") == [*range(1, FIRST + 1), FIRST + 10]


def test_other_ranks_tell_nothing(attempt: Attempt) -> None:
    reporter = Reporter(attempt, 1)
    reporter.progress(1, 2)
    reporter.evaluated(1, accuracy=0.5)
    reporter.report(accuracy=0.5)
    assert not attempt.events_file("rank-0").exists()
    assert attempt.run.result() is None


def in_events(config: Any, env: Any) -> dict[str, Any]:
    """Trains, and returns the names of the numbers that rank 0 told, by event."""
    import launcher.node
    from workloads import ddp, fsdp

    told: dict[str, list[str]] = {}
    launcher.node.progress = lambda step, total, **values: told.update(progress=sorted(values))
    launcher.node.evaluated = lambda step, **values: told.update(evaluated=sorted(values))
    (ddp if isinstance(config, DDPMnist) else fsdp).main(config, env)
    return told


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            DDPMnist("ddp_mnist", "", seed=0, dataset="digits", threads=1, epochs=1),
            {"progress": ["epoch", "images_per_s", "loss", "lr"], "evaluated": ["accuracy", "test_loss"]},
        ),
        (
            FSDPLm("fsdp_lm", "", seed=0, layers=1, heads=2, width=8, context=8, steps=2, sample=0, threads=1),
            {"progress": ["loss", "lr", "tokens_per_s"], "evaluated": ["perplexity", "val_loss"]},
        ),
    ],
    ids=["ddp_mnist", "fsdp_lm"],
)
def test_trainings_tell_the_numbers_that_the_report_draws(config: Any, told: dict[str, list[str]]) -> None:
    assert run_ranks(in_events, config, 1)[0].metrics == told


def test_an_error_that_passes_does_not_silence_a_writer_for_ever(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = event_file.append
    failing = [True, True, False, True, False]

    def append(path: Path, event: str, **values: Any) -> None:
        if failing.pop(0):
            raise OSError(24, "Too many open files")
        write(path, event, **values)

    monkeypatch.setattr(event_file, "append", append)
    writer = Events(attempt, "rank-0")
    for step in range(5):
        writer("saved", step=step)
    assert steps(attempt, "saved") == [2, 4]
    assert capsys.readouterr().out.count("Too many open files") == 2  # once for each time that it began

"""A training that is stopped or killed goes on as if nothing had happened, or says what differs."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from launcher.checkpoint import resumable
from launcher.checkpoint.collectives import SavesFail
from launcher.checkpoint.folder import CheckpointFolder
from launcher.checkpoint.format import CheckpointError, Misfit, read
from launcher.checkpoint.loading import Loaded, read_contents
from launcher.checkpoint.resumable import (
    Resumable,
    changes,
    generators,
    key,
    restore_generators,
    save_interval,
    seed_generators,
)
from launcher.checkpoint.saving import Copying
from launcher.errors import ConfigError
from launcher.worker import heartbeat, shared_with_agent
from launcher.worker.heartbeat import Pulse
from tests.unit.plans import run_settings
from tests.unit.workloads.test_training import env_of

pytestmark = pytest.mark.usefixtures("handlers")


# The parts


@pytest.mark.parametrize(
    ("blocked", "whole", "seconds"),
    [
        (0, 0, 30),  # not measured
        (0.001, 0.001, 10),  # next to nothing
        (0.5, 0.5, 60),
        (0.02, 1.2, 31.5),  # most of it in the background
        (2, 100, 590),  # 12 s of cost are 2 % of 590 s
        (60, 60, 3000),
        (0.0, 3000, 15000),
    ],
)
def test_saves_are_as_frequent_as_they_may_be(blocked: float, whole: float, seconds: float) -> None:
    assert save_interval(blocked, whole) == pytest.approx(seconds, rel=0.01)


def test_a_save_never_costs_more_than_its_share_of_the_time() -> None:
    for exponent in range(-6, 8):
        whole = 4.0**exponent
        for blocked in (0.0, whole / 10, whole):
            interval = save_interval(blocked, whole)
            assert blocked / interval <= resumable.SHARE
            assert interval >= max(resumable.LEAST, 2 * whole)
            assert interval <= resumable.MOST or whole / resumable.SHARE > resumable.MOST


def test_changes_are_named() -> None:
    saved = {"torch": "2.13.0", "threads": 1, "device": "CPU"}
    assert changes(saved, saved, invariant=False) == {}
    assert [*changes(saved, {"torch": "2.13.1", "threads": 1, "sync": "ddp"}, invariant=False)] == [
        "torch 2.13.0 -> 2.13.1", "device CPU -> None", "sync None -> ddp",
    ]  # fmt: skip
    both = {"world size": 2}, {"world size": 3}
    for invariant, follows in ((True, "bitwise equal"), (False, "in another order")):
        assert follows in changes(*both, invariant=invariant)["world size 2 -> 3"]


def test_a_key_depends_on_its_parts_alone() -> None:
    assert key(0, 1, 2) == 4908529878518941816  # in every process and version
    assert len({key(seed, step, leaf) for seed in range(5) for step in range(5) for leaf in range(5)}) == 125
    assert key(1, 11) != key(11, 1)


def draw() -> list[float]:
    return [random.random(), float(torch.rand(())), float(torch.randn(())), float(numpy.random.standard_normal())]


def test_generators_are_put_back() -> None:
    cpu = torch.device("cpu")
    seed_generators(1, 2)
    first = draw()
    state = generators(cpu)
    second, third = draw(), draw()
    assert second != first
    restore_generators(state, cpu)
    assert [draw(), draw()] == [second, third]
    seed_generators(1, 2)
    assert draw() == first


# A training of one number


def counting(folder: Path | None, **run: Any) -> tuple[Resumable, torch.Tensor]:
    number = torch.zeros(1)
    it = Resumable(
        {"number": number}, identity={"kind": "number"}, env=env_of(), run=run_settings(checkpoint_dir=folder, **run)
    )
    return it, number


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def test_outside_of_a_run_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    it, _ = counting(None)
    assert it.load() == 0
    it.boundary(1)
    it.evaluated(1, {"accuracy": 1.0})
    it.finish(1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_saves_come_at_just_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    it, number = counting(tmp_path, every_steps=3, keep=9, background=False)
    assert it.load() == 0
    for step in range(1, 8):
        number += 1
        it.boundary(step)
        it.boundary(step)  # an evaluation
    assert saved(tmp_path) == [3, 6]
    it.finish(7)
    assert saved(tmp_path) == [3, 6, 7]
    it, number = counting(tmp_path)
    assert (it.load(), number.item()) == (7, 7)
    it.close()


def test_saves_come_when_their_time_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(resumable.time, "monotonic", lambda: clock[0])
    it, _ = counting(tmp_path, every=60.0, keep=9, background=False)
    for step in range(1, 10):
        clock[0] += 25
        it.boundary(step)
    assert saved(tmp_path) == [3, 6, 9]
    it.close()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Makes this process a rank of an agent with memory for copies; returns the settings of their trainings."""
    file = shared_with_agent.make_memory()
    monkeypatch.setenv(shared_with_agent.MEMORY, f"{os.getpid()}:{file}:0")
    yield {"memory": 1, "keep": 9, "background": False, "run_dir": Path("nowhere")}
    os.close(file)


def restarted(folder: Path, **run: Any) -> tuple[int, Resumable, torch.Tensor]:
    os.environ["LAUNCHER_ROUND"] = str(int(os.environ.get("LAUNCHER_ROUND", "0")) + 1)
    it, number = counting(folder, **run)
    return it.load(), it, number


def end_round(it: Resumable) -> None:
    assert it._checkpointer is not None
    it._checkpointer.close()  # waits for the copies


def test_who_changes_tensors_without_an_optimizer_can_wait_for_their_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, finish = threading.Event(), Copying.finish
    monkeypatch.setattr(Copying, "finish", lambda *of: (go.wait(10), finish(*of))[1])
    number = torch.zeros(1 << 19)  # of 2 MiB
    it = Resumable({"number": number}, env=env_of(), run=run_settings(checkpoint_dir=tmp_path, every_steps=1))
    it.boundary(1)
    threading.Timer(0.2, go.set).start()
    it.staged()
    number += 1
    it.close()
    it = Resumable({"number": number}, env=env_of(), run=run_settings(checkpoint_dir=tmp_path))
    assert it.load() == 1
    it.close()
    assert not number.any()


@pytest.mark.parametrize(
    ("ahead", "after_rounds"),
    [
        # at first nothing is on disk, so that the first restart saves; then each minute
        (0, [[6], [6], [6, 18], [6, 18], [6, 18, 30], [6, 18, 30]]),
        # it is not known when the last save was, so that each restart saves
        (3600, [[6], [6, 11], [6, 11, 16], [6, 11, 16, 21], [6, 11, 16, 21, 26], [6, 11, 16, 21, 26, 31]]),
    ],
    ids=["the clocks agree", "the clock of the node that saved is fast"],
)
def test_what_only_memory_had_is_saved_when_it_would_have_been_without_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: dict[str, Any], ahead: float,
    after_rounds: list[list[int]],
) -> None:  # fmt: skip
    now, describe = [0.0], CheckpointFolder.describe
    monkeypatch.setenv("LAUNCHER_ROUND", "0")
    monkeypatch.setattr(resumable.time, "monotonic", lambda: 5000 + now[0])
    monkeypatch.setattr(resumable.time, "time", lambda: 1.7e9 + now[0])
    monkeypatch.setattr(CheckpointFolder, "describe", lambda *of: replace(describe(*of), time=1.7e9 + now[0] + ahead))
    found = []
    for _ in range(7):  # a rank dies every 25 seconds
        step, it, _ = restarted(tmp_path, every=60.0, **memory)
        for _ in range(5):
            now[0] += 5
            step += 1
            it.boundary(step)
        end_round(it)
        found.append(saved(tmp_path))
    assert found[1:] == after_rounds


def test_a_save_that_a_failure_prevented_is_made_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: dict[str, Any]
) -> None:
    monkeypatch.setenv("LAUNCHER_ROUND", "0")
    _, it, _ = restarted(tmp_path, every_steps=4, **memory)
    for step in range(1, 6):
        it.boundary(step)
    end_round(it)
    shutil.rmtree(tmp_path / "step-000000004")
    step, it, _ = restarted(tmp_path, every_steps=4, **memory)
    assert step == 5
    for step in range(6, 9):
        it.boundary(step)
    assert saved(tmp_path) == [6, 8]
    end_round(it)


@pytest.mark.parametrize(
    ("save", "last", "begun", "best"),
    [
        ("is published", 4, 4, [1, 2]),
        ("fails", 4, 4, [1]),  # nothing is done again for it, as without the death
        ("is cut off", 4, 1, [1, 2]),
        ("is cut off", 2, 1, [1, 2]),
    ],
)
def test_a_best_checkpoint_whose_save_a_death_cut_off_is_made_again(
    tmp_path: Path,
    memory: dict[str, Any],
    save: str,
    last: int,
    begun: int,
    best: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dies = threading.Event()

    def fence() -> None:
        if save != "fails":
            dies.wait(10)
        if save != "is published":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    def train(it: Resumable, first: int, last: int) -> None:
        for step in range(first, last):
            if step + 1 == 2:
                it.evaluated(2, {"loss": 0.1})
                assert it._checkpointer is not None
                if it._checkpointer._save is not None and save == "fails":
                    it._checkpointer._save.join()
            it.boundary(step + 1)

    monkeypatch.setenv("LAUNCHER_ROUND", "0")
    _, it, _ = restarted(tmp_path, best="loss", best_is="min", **memory | {"background": True})
    it.evaluated(1, {"loss": 0.5})
    assert it._checkpointer is not None
    it._checkpointer.wait()
    it._checkpointer._writer.fence = fence
    train(it, 0, last)
    dies.set()
    end_round(it)
    step, it, _ = restarted(tmp_path, best="loss", best_is="min", **memory)
    assert step == begun
    said = "the best one, of step 2, was not saved before ranks died" in capsys.readouterr().out
    assert said == (save == "is cut off")
    train(it, step, 4)
    assert saved(tmp_path) == best
    end_round(it)


def test_a_save_that_fails_at_a_stop_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, _ = counting(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as leave:
        it.boundary(1)
    assert leave.value.code == 75
    assert saved(tmp_path) == []


def test_metrics_may_be_tensors(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, every_steps=1, background=False)
    accuracy = torch.tensor(0.5)
    it.evaluated(1, {"accuracy": accuracy, "f1": numpy.float32(0.25)})
    accuracy.zero_()
    it.boundary(1)
    assert read(tmp_path / "step-000000001").metrics == {"accuracy": 0.5, "f1": 0.25}
    it.finish(1)


def test_who_finishes_is_watched_no_more_and_who_stops_still_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Pulse(1)
    monkeypatch.setattr(heartbeat, "_mine", shared.slot(0))
    it, _ = counting(tmp_path)
    it.finish(1)
    assert shared.signs()[0].closed
    it, _ = counting(tmp_path)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        it.boundary(2)
    assert shared.signs()[0].listens and not shared.signs()[0].closed


def test_the_best_is_saved_when_it_is_found_and_by_no_other_name(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    for step, loss in enumerate((0.5, 0.2, 0.3), 1):
        it.evaluated(step, {"loss": loss})
    assert max(saved(tmp_path)) == 2
    it.finish(3)
    assert saved(tmp_path) == [2, 3]
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    it.load()
    it.evaluated(4, {"loss": 0.25})  # not better than the best of the attempt before
    assert saved(tmp_path) == [2, 3]
    with pytest.raises(
        ConfigError, match=r"checkpoint\.best=loss: it is not among the metrics of this training: accuracy, f1"
    ):
        it.evaluated(4, {"accuracy": 0.25, "f1": 0.1})
    it.close()


def test_another_metric_is_not_compared_with_the_best_value_of_the_one_before(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    it.evaluated(1, {"loss": 1.4, "perplexity": 4.1})
    it.finish(2)
    it, _ = counting(tmp_path, best="perplexity", best_is="min", keep=1, background=False)
    it.load()
    it.evaluated(3, {"loss": 1.3, "perplexity": 4.0})
    it.evaluated(4, {"loss": 1.2, "perplexity": 4.5})
    assert max(saved(tmp_path)) == 3
    it.close()


def test_a_best_value_whose_save_has_failed_does_not_count(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1)
    it.evaluated(1, {"loss": 0.5})
    assert it._checkpointer is not None
    it._checkpointer.wait()
    failures = [OSError(errno.EDQUOT, "Disk quota exceeded")]

    def full() -> None:
        if failures:
            raise failures.pop()

    it._checkpointer._writer.fence = full
    it.evaluated(2, {"loss": 0.1})
    it._checkpointer.wait()
    assert saved(tmp_path) == [1]
    it.evaluated(3, {"loss": 0.2})  # worse than a model that nobody has
    it._checkpointer.wait()
    it.evaluated(4, {"loss": 0.3})
    it._checkpointer.wait()
    assert saved(tmp_path) == [3]
    it.close()


@pytest.mark.parametrize(
    ("value", "best", "best_is", "yes"),
    [
        (0.5, None, "max", True),
        (0.5, 0.4, "max", True),
        (0.5, 0.5, "max", False),
        (0.5, 0.4, "min", False),
        (0.3, 0.4, "min", True),
        (math.nan, None, "max", False),
        (math.inf, None, "min", False),
        (0.1, math.nan, "max", True),  # saved by an older launcher
        (math.nan, 0.1, "min", False),
    ],
)
def test_which_metric_is_better(value: float, best: float | None, best_is: str, yes: bool) -> None:
    assert resumable.better(value, best, best_is) is yes


def test_a_first_metric_that_is_no_number_does_not_stay_the_best(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1, background=False)
    it.evaluated(1, {"loss": math.nan})
    assert saved(tmp_path) == []
    it.evaluated(2, {"loss": 0.5})
    it.evaluated(3, {"loss": 0.7})
    assert saved(tmp_path) == [2]
    it.close()


# What users give


class Words:
    """A data loader with a state of its own."""

    def __init__(self) -> None:
        self.next, self.order = 0, torch.arange(9)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.order = state["next"], state["order"]


class Parts:
    """All that may belong to a training."""

    def __init__(self, seed: int) -> None:
        seed_generators(seed)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.words, self.counts = Words(), {"epoch": 0, "best": {"loss": math.inf}, "seen": [], "sum": torch.zeros(2)}
        self.generators = (torch.Generator().manual_seed(seed), random.Random(seed), numpy.random.default_rng(seed))
        torchs, pythons, numpys = self.generators
        self.state: dict[str, Any] = {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "counts": self.counts,
            "torch": torchs, "epoch": 0,
        }  # fmt: skip
        self.rank_state: dict[str, Any] = {
            "words": self.words, "mine": {"python": pythons, "numpy": numpys, "x": torch.zeros(1)}
        }  # fmt: skip

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 3)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.state["epoch"] += 1
        self.words.next += 1
        self.words.order = self.words.order[1:]
        self.counts["best"]["loss"] = min(self.counts["best"]["loss"], loss.item())
        self.counts["seen"].append(random.random() + self.generators[1].random() + float(self.generators[2].random()))
        self.counts["sum"] += torch.rand(2, generator=self.generators[0])
        self.rank_state["mine"]["x"] += numpy.random.random()

    def all(self) -> str:
        torch.set_printoptions(precision=17)
        shown = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "counts": self.counts,
            "scheduler": self.scheduler.state_dict(), "words": self.words.state_dict(), "epoch": self.state["epoch"],
            "x": self.rank_state["mine"]["x"], "next": [draw(), [float(torch.rand(1, generator=self.generators[0])),
            self.generators[1].random(), self.generators[2].random()]],
        }  # fmt: skip
        torch.set_printoptions(profile="default")
        return repr(shown)


def training(parts: Parts, folder: Any, **options: Any) -> Resumable:
    return Resumable(parts.state, parts.rank_state, folder=folder, **options)


def test_a_training_goes_on_as_if_it_had_not_been_stopped_outside_of_a_run(tmp_path: Path) -> None:
    undisturbed = Parts(1)
    for _ in range(6):
        undisturbed.step()
    expected = undisturbed.all()
    first = Parts(1)
    it = training(first, str(tmp_path / "checkpoints"))
    assert it.load() == 0
    with pytest.raises(SystemExit) as leave:
        for step in range(6):
            first.step()
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            it.boundary(step + 1)
    assert leave.value.code == 75
    second = Parts(2)
    counts = second.counts["best"]
    it = training(second, tmp_path / "checkpoints")
    assert it.load() == 4 and second.counts["best"] is counts
    for step in range(4, 6):
        second.step()
        it.boundary(step + 1)
    it.finish(6)
    assert second.all() == expected


def test_steps_between_saves_may_be_given(tmp_path: Path) -> None:
    parts = Parts(1)
    it = training(parts, tmp_path / "checkpoints", every_steps=2)
    for step in range(5):
        parts.step()
        it.boundary(step + 1)
    it.close()
    assert saved(tmp_path / "checkpoints") == [2, 4]


def test_without_a_folder_nothing_happens_outside_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts, before = Parts(1), signal.getsignal(signal.SIGTERM)
    it = training(parts, None)
    assert it.load() == 0
    it.boundary(1)
    it.finish(2)
    assert list(tmp_path.iterdir()) == [] and signal.getsignal(signal.SIGTERM) is before


def finished(folder: Path) -> Parts:
    parts = Parts(1)
    parts.step()
    it = training(parts, folder)
    it.finish(1)
    return parts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda parts: parts.state.pop("scheduler"), "scheduler: in the checkpoint, not in the state"),
        (lambda parts: parts.state.update(more=Words()), "more: not in the checkpoint"),
        (lambda parts: parts.state.pop("torch"), "torch: in the checkpoint, not in the state"),
        (lambda parts: parts.rank_state.pop("words"), "has words, mine of each rank, and `rank_state` is mine now"),
        (lambda parts: parts.rank_state.update(more=Words()), "and `rank_state` is words, mine, more now"),
        (lambda parts: parts.rank_state["mine"].update(more=Words()), r"give the same, or .*load\(only=\[...\]\)"),
    ],
)
def test_what_cannot_be_restored_is_refused_by_name(tmp_path: Path, change: Any, words: str) -> None:
    finished(tmp_path / "checkpoints")
    parts = Parts(2)
    change(parts)
    it, before = training(parts, tmp_path / "checkpoints"), repr(parts.model.state_dict())
    with pytest.raises(Misfit, match=words):
        it.load()
    it.close()
    assert repr(parts.model.state_dict()) == before, "a training that goes on nevertheless has its own weights"


def test_a_training_that_was_done_already_is_not_saved_again(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    finished(folder)
    before = [path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()]
    it = training(Parts(2), folder)
    it.finish(it.load())
    after = [path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()]
    assert after == before, "a program whose files are new has made progress, and starts again after an error"
    it = training(Parts(2), folder)
    assert it.load(only=["model", "words"]) == 1
    it.finish(1)
    assert [path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()] == before


@pytest.mark.parametrize("how", ["finish", "stop", "a better metric"])
def test_what_was_loaded_in_part_does_not_take_the_place_of_the_whole(tmp_path: Path, how: str) -> None:
    """An evaluation has the model alone: the training's optimizer would be lost."""
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1)
    it._state["optimizer"] = {"rate": torch.ones(1)}
    it.evaluated(1, {"loss": 2.0})
    it.close()
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1)
    assert it.load(only=["number"]) == 1
    if how == "a better metric":
        it.evaluated(1, {"loss": 1.0})
        it.close()
    elif how == "stop":
        with pytest.raises(SystemExit):
            it._leave(1, "asked to stop")
    else:
        it.finish(1)
    (kept,) = tmp_path.glob("*step-*")
    assert "optimizer.rate" in read_contents(kept, read(kept)).kinds


def test_a_stop_right_after_a_load_leaves_the_metrics_of_the_best_checkpoint(tmp_path: Path) -> None:
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1)
    it.evaluated(1, {"loss": 2.0})
    it.close()
    it, _ = counting(tmp_path, best="loss", best_is="min", keep=1)
    assert it.load() == 1
    with pytest.raises(SystemExit):
        it._leave(1, "asked to stop")
    assert read(tmp_path / "step-000000001").metrics == {"loss": 2.0}


def test_a_tensor_that_a_rank_has_for_itself_is_filled_in_place(tmp_path: Path) -> None:
    for begins, hidden in ((True, torch.full((3,), 2.0)), (False, torch.zeros(3))):
        it = Resumable(
            {"number": torch.zeros(1)}, {"rnn": {"hidden": hidden}}, env=env_of(),
            run=run_settings(checkpoint_dir=tmp_path),
        )  # fmt: skip
        assert it.load() == (0 if begins else 1)
        assert hidden.tolist() == [2.0] * 3
        it.finish(1)


def test_a_counter_in_the_state_of_an_object_stays_one(tmp_path: Path) -> None:
    """As torch's MultiStepLR has, which a list of schedulers is saved with."""

    def made() -> torch.optim.lr_scheduler.SequentialLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(1.0))  # type: ignore[arg-type]
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2])
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, steps], [2])

    for begins in (True, False):
        scheduler = made()
        it = Resumable({"scheduler": scheduler}, env=env_of(), run=run_settings(checkpoint_dir=tmp_path))
        assert it.load() == (0 if begins else 1)
        assert scheduler._schedulers[1].milestones == Counter({2: 1})
        assert type(scheduler._schedulers[1].milestones) is Counter
        it.finish(1)


@pytest.mark.parametrize("kind", [numpy.random.PCG64, numpy.random.Philox, numpy.random.MT19937, numpy.random.SFC64])
def test_each_of_numpys_generators_goes_on(tmp_path: Path, kind: Any) -> None:
    drawn = []
    for seed in (1, 2):
        generator = numpy.random.Generator(kind(seed))
        it = Resumable({"numpy": generator}, env=env_of(), run=run_settings(checkpoint_dir=tmp_path))
        if it.load() == 0:
            generator.random(7)
        it.finish(1)
        drawn.append(generator.random(3).tolist())
    assert drawn[0] == drawn[1]


def test_a_save_that_fails_ends_no_training_also_without_a_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, _ = counting(tmp_path, every_steps=1, background=False, max_failures=3)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        it.boundary(1)
        it.boundary(2)
        it.boundary(3)
        with pytest.raises(SavesFail):
            it.boundary(4)


def test_a_model_without_memory_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    it = Resumable({"model": model}, env=env_of(), run=run_settings(checkpoint_dir=tmp_path))
    with pytest.raises(CheckpointError, match=r"model\.weight is on the meta device"):
        it.load()
    it.close()


def test_a_part_of_a_training_can_be_restored(tmp_path: Path) -> None:
    done, parts = finished(tmp_path / "checkpoints"), Parts(2)
    before = draw()
    seed_generators(2)
    it = training(parts, tmp_path / "checkpoints")
    Parts(2)
    with pytest.raises(ValueError, match=r"only=\['words'\]: name something of `state` too"):
        it.load(only=["words"])
    assert it.load(only=["model", "words"]) == 1
    assert draw() == before and parts.words.next == 1 and parts.state["epoch"] == 0
    assert (
        repr(parts.model.state_dict()) == repr(done.model.state_dict()) and parts.optimizer.state_dict()["state"] == {}
    )
    it.close()


@pytest.mark.parametrize(
    ("ranks", "why"),
    [(1, "since it has no state of single ranks"), (2, "since 2 ranks saved it")],
)
def test_the_state_of_each_rank_that_is_not_there_is_refused_with_the_reason(
    tmp_path: Path, ranks: int, why: str
) -> None:
    it = training(Parts(1), tmp_path / "checkpoints")
    with pytest.raises(Misfit, match=f"words of each rank cannot be restored, {why}"):
        it._require_fit(Loaded(1, tmp_path, {}, {}, None, ranks, {}), {"words": Words()}, whole=True)
    it.close()


@pytest.mark.parametrize("whole", [True, False])
def test_generators_are_seeded_anew_only_if_all_is_restored(tmp_path: Path, whole: bool) -> None:
    it = training(Parts(1), tmp_path / "checkpoints")
    before = generators(torch.device("cpu"))
    expected = draw()
    restore_generators(before, torch.device("cpu"))
    it._restore(Loaded(1, tmp_path, {}, {}, None, 2, {}), {}, whole=whole)
    assert (draw() == expected) == (not whole)
    it.close()


def test_what_has_no_state_is_refused_before_a_step_is_done(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rank_state: loader is a DataLoader: give an object with state_dict"):
        Resumable({}, {"loader": loader}, folder=tmp_path / "checkpoints")
    it = Resumable({"loader": loader}, folder=tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"loader is a torch\..*DataLoader.*or objects with state_dict"):
        it.load()
    it.close()


def test_ranks_without_a_process_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(ConfigError, match=r"this is rank 1, and there is no process group: call launcher\.init\(\)"):
        Resumable({}, folder=tmp_path / "checkpoints")

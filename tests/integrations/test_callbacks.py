"""What the callbacks do besides stopping: which checkpoint is the last, and nothing outside of a run."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from launcher.integrations import trainers
from launcher.runs import event_files
from launcher.runs.directory import Attempt, Run
from launcher.worker import process_group, stop
from launcher.worker.tracking import Reporter
from tests import warm_python
from tests.launch import ROOT

FRAMEWORKS = ("lightning", "transformers")


def trainer_of(save: Callable[[Path], None]) -> SimpleNamespace:
    """Lightning's, on the CPU, which saves so."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(strategy=strategy, is_global_zero=True, save_checkpoint=save)


@pytest.fixture
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "CHECKPOINT", replace(trainers.CHECKPOINT, read_timeout=0))


@pytest.mark.usefixtures("no_second_try")
def test_the_newest_checkpoint_that_is_whole_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.integrations.transformers import last_checkpoint

    assert last_checkpoint(tmp_path) is None
    for moment, (step, state) in enumerate(((120, "{}"), (20, "{}"), (100, "{}"), (110, '{"cut'), (140, None))):
        folder = tmp_path / f"checkpoint-{step}"  # the training has gone back after step 120
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
            os.utime(folder / "trainer_state.json", (moment, moment))
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")
    assert last_checkpoint() is None
    monkeypatch.setenv("LAUNCHER_CHECKPOINT_DIR", str(tmp_path))
    assert last_checkpoint() == str(tmp_path / "checkpoint-100")


@pytest.mark.usefixtures("no_second_try")
def test_of_lightnings_checkpoints_the_last_saved_counts(tmp_path: Path) -> None:
    from launcher.integrations.lightning import last_checkpoint

    assert last_checkpoint(tmp_path) is None
    for moment, name in enumerate(("epoch=3.ckpt", "launcher-step-000000007.ckpt", ".launcher-step-000000009.ckpt")):
        archive(tmp_path / name, moment)
    whole = (tmp_path / "epoch=3.ckpt").read_bytes()
    for name, size in (("last.ckpt", 500), ("short.ckpt", 12), ("empty.ckpt", 0)):  # cut short
        (tmp_path / name).write_bytes(whole[:size])
    assert last_checkpoint(tmp_path) == str(tmp_path / "launcher-step-000000007.ckpt")


@pytest.mark.usefixtures("no_second_try")
def test_of_lightnings_checkpoints_that_are_folders_only_whole_ones_count(tmp_path: Path) -> None:
    from launcher.integrations.lightning import last_checkpoint

    for name, last in (("of-fsdp.ckpt", "meta.pt"), ("of-deepspeed.ckpt", "latest")):
        folder = tmp_path / name
        (folder / "checkpoint").mkdir(parents=True)
        (folder / ".metadata").write_text("shards")
        assert last_checkpoint(tmp_path) != str(folder)  # it is being saved, or removed
        if last == "meta.pt":
            archive(folder / last, 5)
            cut = (folder / last).read_bytes()[:500]
        else:
            (folder / last).write_text("checkpoint")
        assert last_checkpoint(tmp_path) == str(folder)
    (tmp_path / "of-deepspeed.ckpt/latest").unlink()
    assert last_checkpoint(tmp_path) == str(tmp_path / "of-fsdp.ckpt")
    (tmp_path / "of-fsdp.ckpt/meta.pt").write_bytes(cut)
    assert last_checkpoint(tmp_path) is None


def folder_of_fsdp(path: Path, moment: int) -> None:
    path.mkdir()
    (path / "__0_0.distcp").write_text("a shard")
    archive(path / "meta.pt", moment)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_checkpoints_that_were_saved_last_are_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training has gone back: the checkpoint of a stop is not the one with the highest step."""
    from launcher.integrations.lightning import LauncherCallback, last_checkpoint

    write = archive if kind == "file" else folder_of_fsdp
    monkeypatch.setattr(stop, "listen", lambda: SimpleNamespace(save_took=lambda _: None))
    moments = iter(range(9))
    trainer = trainer_of(lambda path: write(path, next(moments)))
    callback = LauncherCallback(tmp_path)
    for step in (7000, 8000, 9000):
        callback._save(trainer, step)
    write(tmp_path / ".launcher-step-000009500.ckpt", 9)  # left by a save that was killed
    write(tmp_path / "epoch=3.ckpt", 0)
    for step, kept in ((4000, (9000, 4000)), (4000, (9000, 4000)), (4500, (4000, 4500))):
        callback._save(trainer, step)
        ours = {f"launcher-step-{each:09d}.ckpt" for each in kept}
        assert {path.name for path in tmp_path.iterdir()} == {*ours, "epoch=3.ckpt"}
        assert last_checkpoint(tmp_path) == str(tmp_path / f"launcher-step-{step:09d}.ckpt")


def test_a_removal_that_is_cut_short_leaves_nothing_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.integrations import lightning

    def killed(path: Path) -> None:
        (path / "__0_0.distcp").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    moments = iter(range(9))
    trainer = trainer_of(lambda path: folder_of_fsdp(path, next(moments)))
    monkeypatch.setattr(stop, "listen", lambda: SimpleNamespace(save_took=lambda _: None))
    callback = lightning.LauncherCallback(tmp_path, keep=1)
    callback._save(trainer, 100)
    with pytest.raises(KeyboardInterrupt):
        callback._save(trainer, 200)
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["launcher-step-000000200.ckpt"]


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [300]), (1, [300]), (2, [200, 300]), (3, [100, 200, 300]), (9, [100, 200, 300])]
)
def test_as_many_checkpoints_are_kept_as_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, left: list[int]
) -> None:
    from launcher.integrations import lightning

    moments = iter(range(9))
    monkeypatch.setattr(stop, "listen", lambda: SimpleNamespace(save_took=lambda _: None))
    callback = lightning.LauncherCallback(tmp_path, keep=keep)
    for step in (100, 200, 300):
        callback._save(trainer_of(lambda path: archive(path, next(moments))), step)
    assert sorted(lightning.step_of(path) for path in tmp_path.glob("*.ckpt")) == left


def archive(path: Path, moment: int) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", "x" * 1000)
    os.utime(path, (moment, moment))


# In a process of its own: the frameworks leave a process group and variables behind.
OUTSIDE = """
import importlib, signal, sys

example = importlib.import_module(f"tests.examples.with_{sys.argv[1]}")
before = signal.getsignal(signal.SIGTERM)
undisturbed = example.train(1, 0, [], None)
assert example.train(1, 0, [example.LauncherCallback()], example.last_checkpoint()) == undisturbed
assert signal.getsignal(signal.SIGTERM) == before
"""


@pytest.mark.ci
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_outside_of_a_run_the_callback_changes_nothing(framework: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    ended = subprocess.run(
        [warm_python.python(), "-c", OUTSIDE, framework], cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert not [path for path in tmp_path.rglob("*") if "step" in path.name]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_metric_may_have_any_name(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning itself looks for a metric `step`, for the horizontal axis of its loggers."""
    (tmp_path / "attempts/0/events").mkdir(parents=True)
    attempt = Attempt(Run(tmp_path), 0)
    reporter = Reporter(attempt, 0)
    reporter._tracking = None
    monkeypatch.setattr(process_group, "_reporter", reporter)
    monkeypatch.setattr(stop, "boundary", lambda step: stop.StopVerdict())
    monkeypatch.setattr(stop, "listen", lambda: SimpleNamespace(close=lambda: None))
    callback = importlib.import_module(f"launcher.integrations.{framework}").LauncherCallback()
    callback._inside = True
    metrics = {name: torch.tensor(0.5) for name in ("self", "step", "total", "steps")}
    if framework == "lightning":
        trainer = SimpleNamespace(
            global_step=7, log_every_n_steps=1, callback_metrics=metrics, is_last_batch=True, sanity_checking=False
        )
        callback.on_train_batch_end(trainer, None, None, None, 0)
        callback.on_validation_end(trainer, None)
        callback.on_train_end(trainer, None)
    else:
        state = SimpleNamespace(global_step=7, max_steps=9)
        callback.on_log(None, state, None, logs=metrics)
        callback.on_evaluate(None, state, None, metrics={f"eval_{name}": each for name, each in metrics.items()})
        callback.on_train_end(None, state, None)
    told = [(each["step"], each["values"]) for each in event_files.read(attempt.events_file("rank-0"))]
    assert told == [(7, dict.fromkeys(metrics, 0.5))] * 2
    assert {name.removeprefix("eval_") for name in attempt.run.result() or ()} == metrics.keys()


def test_the_time_between_two_saves_is_not_that_of_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """With save_strategy=epoch, the Trainer decides to save after the end of the last step."""
    from transformers import TrainerControl, TrainerState

    from launcher.integrations.transformers import LauncherCallback

    took: list[float] = []
    monkeypatch.setattr(stop, "listen", lambda: SimpleNamespace(save_took=took.append))
    monkeypatch.setattr(stop, "boundary", lambda step: stop.StopVerdict(None, save=step == 1))
    monkeypatch.setattr(process_group, "report_progress", lambda *_: None)
    callback, state, control = LauncherCallback(), TrainerState(max_steps=9), TrainerControl()
    callback._inside = True
    for step in range(1, 4):
        state.global_step = step
        callback.on_step_end(None, state, control)
        control.should_save = control.should_save or step == 3
        if control.should_save:
            callback.on_save(None, state, control)
            control.should_save = False
    assert len(took) == 1


def test_at_the_end_of_a_training_its_steps_are_watched_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.integrations import lightning, transformers
    from launcher.worker import heartbeat, stop

    shared = heartbeat.Pulse(1)
    monkeypatch.setattr(heartbeat, "_mine", shared.slot(0))
    monkeypatch.setattr(stop.StopFlag, "take_signals", lambda self: None)
    monkeypatch.setattr(stop, "_stop", stop.StopFlag(process_group.here(), stop.Settings()))
    of_lightning, of_transformers = lightning.LauncherCallback(), transformers.LauncherCallback()
    of_lightning._inside = of_transformers._inside = True
    ends = (
        lambda: of_lightning.teardown(None, None, "fit"),
        lambda: of_transformers.on_train_end(None, SimpleNamespace(global_step=7), None),
    )
    for end in ends:
        stop.listen().boundary(7)
        of_lightning.teardown(None, None, "test")
        assert not shared.signs()[0].closed
        end()
        assert shared.signs()[0].closed


def test_what_ranks_measure_themselves_does_not_make_their_copies_differ() -> None:
    """Otherwise each rank would copy all of the model, and nothing could be loaded at another number of ranks."""
    import numpy as np
    from transformers import TrainerControl, TrainerState

    from launcher.checkpoint.memory_copies import Kept
    from launcher.integrations.transformers import STATE, LauncherCallback, files_of

    model = torch.nn.Linear(2, 1)
    training = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    states = []
    for rank in (0, 1):
        state = TrainerState(global_step=7, is_world_process_zero=rank == 0, is_local_process_zero=rank == 0)
        state.log_history = [{"loss": np.float32(0.5), "step": 5}, {"eval_loss": 1.0, "eval_runtime": rank + 0.1}]
        state.stateful_callbacks = {"OfRank0": {"args": {}}} if rank == 0 else {}  # as after a save
        callback = LauncherCallback()
        states.append(callback._state(state, TrainerControl(), training))
        state.log_history.append({"loss": 0.25, "step": 7})
        states.append(callback._state(state, TrainerControl(), training))
    first, longer, *others = ({name: each for name, each in one.items() if isinstance(each, str)} for one in states)
    assert [first, longer] == others
    written = io.BytesIO()
    files_of(Kept(7, states[1], None, True, 0))[STATE](written)
    restored = json.loads(written.getvalue())
    assert restored["global_step"] == 7 and restored["log_history"][1:] == [
        {"eval_loss": 1.0},
        {"loss": 0.25, "step": 7},
    ]
    assert [*restored["stateful_callbacks"]] == ["TrainerControl"]

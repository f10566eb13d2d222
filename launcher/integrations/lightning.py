"""A callback for Lightning's Trainer: reports steps and metrics, saves before the attempt ends, and resumes later.

from launcher.integrations.lightning import LauncherCallback, last_checkpoint

trainer = L.Trainer(max_epochs=10, strategy="ddp", callbacks=[LauncherCallback()])
trainer.fit(model, data, ckpt_path=last_checkpoint())
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from launcher import errors
from launcher.checkpoint.resumable import generators, restore_generators
from launcher.integrations import trainers
from launcher.integrations.trainers import TrainerMemory, checkpoint_dir, copied, memory_of
from launcher.runs.directory import current_attempt
from launcher.worker import heartbeat, process_group, stop

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities import rank_zero_warn
except ImportError as error:
    try:  # the same under its earlier name
        from pytorch_lightning import Callback
        from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
        from pytorch_lightning.utilities import rank_zero_warn
    except ImportError:
        raise trainers.missing("lightning", error) from error

__all__ = ["LauncherCallback", "checkpoint_dir", "last_checkpoint"]

COPY = "copy.ckpt"  # a copy in memory
OURS = "launcher-step-"  # prefix of this callback's checkpoints
LAST_FILES = "meta.pt", "latest"  # which Lightning writes after the shards of FSDP, and DeepSpeed after its own
TAG = b"checkpoint"  # what DeepSpeed then writes


def last_checkpoint(folder: str | os.PathLike[str] | None = None) -> str | None:
    """Returns the path of the newest checkpoint, by this callback or a ModelCheckpoint, for `fit(ckpt_path=...)`.

    None: there is none, or `folder` (a ModelCheckpoint's `dirpath`; None: `checkpoint_dir()`) is None outside of a run.
    All ranks must call it: rank 0 chooses. If ranks were started again in this attempt, it may be a copy in memory
    (checkpoint.memory), and they have a process group afterwards, which Lightning uses. Raises CannotRead.
    """
    if folder is None and "LAUNCHER_CHECKPOINT_DIR" not in os.environ:
        return None
    folder = Path(checkpoint_dir() if folder is None else folder)
    found = trainers.newest(folder, r"[^.].*\.ckpt", LAST_FILES, _is_whole)
    files: trainers.FilesOf = lambda kept: {COPY: partial(torch.save, kept.state)}  # noqa: E731
    if (memory := copied(folder, lambda: None if found is None else step_of(found), files)) is not None:
        return str(memory / COPY)
    return None if found is None else str(found)


def _is_whole(last: BinaryIO) -> bool:
    return last.read(len(TAG)) == TAG or zipfile.is_zipfile(last)


def step_of(checkpoint: Path) -> int:
    """Returns the step of a checkpoint on disk; a very high one if it is a folder, or has none."""
    if number := re.fullmatch(rf"{OURS}(\d+)\.ckpt", checkpoint.name):
        return int(number[1])
    if checkpoint.is_file():
        # Lightning unpickles the file, too, and this reads no tensor
        step = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=False).get("global_step")
        if isinstance(step, int):
            return step
    return sys.maxsize - 1


class LauncherCallback(Callback):
    """Reports to the run how far the training is; saves and exits when the attempt is to end.

    - `status` shows the step. The loss and logged metrics (every `log_every_n_steps`), and the metrics of validations
      and tests, become curves on the report page and in trackers. The last validation or test is the run's result.
    - When the attempt must end (time limit, signal, RUN/stop), all ranks save a Lightning checkpoint after the same
      step and exit with code 75. A validation that is due at that step is skipped.
    - After `touch RUN/save` all ranks save and continue.
    - With checkpoint.memory, copies of the checkpoint are made in memory (strategies `ddp` and single device).
    - A training that resumes in the middle of an epoch skips the batches of that epoch that are done, unless its
      loaders have a state_dict. It restores the random number generators of each rank.

    Outside of a run it does nothing.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, keep: int = 2) -> None:
        """
        Args:
            folder: directory for this callback's checkpoints, and of its copies in memory; None: `checkpoint_dir()`.
            keep: how many of this callback's checkpoints to keep: those that were saved last.
        """
        self._inside = current_attempt() is not None
        self._folder, self._keep = Path(checkpoint_dir() if folder is None else folder), keep
        self._step = self._total = 0
        self._evaluation: dict[str, float] = {}
        self._before: Mapping[str, Any] = {}  # metrics before a validation
        self._not_training: set[str] = set()  # names of metrics from validations
        self._generators: list[Any] = []  # each rank's random number state: to be saved, or from the last checkpoint
        self._memory: TrainerMemory | None = None
        self._deferred = False  # whether the copy of this step is made later, since more belongs to the step

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._inside:  # after all others, whose states are saved: a new list, since Lightning goes through this one
            trainer.callbacks = [each for each in trainer.callbacks if each is not self] + [self]

    # -- training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self._inside:
            return
        stop.listen().take_signals()  # after Lightning's own handlers, so that they do not replace these
        self._step, self._total = trainer.global_step, total_steps(trainer)
        self._memory = memory_of(self._folder, partial(obstacle_to_copies, trainer))
        if trainer.fit_loop.restarting:
            of_all = len(self._generators) == trainer.world_size
            then = self._generators[trainer.global_rank] if of_all else None
            if self._memory is not None and self._memory.given is not None:
                then = self._memory.given.rank_state
            if then is not None and not isinstance(then["python"], Mapping):
                rank_zero_warn("another version of the launcher has saved the random generators: they start anew")
                then = None
            resume_data(trainer, then)
        self._generators = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if not self._inside or step == self._step:  # gradients are being accumulated: no checkpoint is possible
            return
        self._step = step
        every = trainer.log_every_n_steps
        logged = self._logged(trainer, outputs) if every and step % every == 0 else {}
        process_group.report_progress(step, self._total, logged)
        verdict = stop.boundary(step)
        if verdict.save or verdict.stop is not None:
            self._save(trainer, step)
        if trainers.leaves(verdict.stop, step, self._total):
            raise SystemExit(errors.RESUME)
        if self._memory is not None:
            self._memory.loaded()
        self._deferred = trainer.is_last_batch or validates(trainer)
        if not self._deferred:
            self._copy(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._deferred:
            self._copy(trainer)

    def _copy(self, trainer: Any) -> None:
        self._deferred = False
        if self._memory is not None and self._memory.due(trainer.global_step):
            connector = trainer._checkpoint_connector  # private: save_checkpoint writes to files alone
            dump, device = partial(connector.dump_checkpoint, weights_only=False), trainer.strategy.root_device
            self._memory.keep(trainer.global_step, dump, generators(device))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._inside:
            process_group.reporter().report({"steps": trainer.global_step, **self._evaluation})

    def _logged(self, trainer: Any, outputs: Any) -> dict[str, float]:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        logged = {name: each for name, each in trainer.callback_metrics.items() if name not in self._not_training}
        return trainers.numbers({"loss": loss, **logged})

    # -- checkpoints

    def _save(self, trainer: Any, step: int) -> None:
        # Collective
        began, path = time.monotonic(), self._folder / f"{OURS}{step:09d}.ckpt"
        hidden = path.with_name(f".{path.name}")
        self._generators = all_generators(trainer.strategy.root_device)
        with heartbeat.alive():
            trainer.save_checkpoint(hidden)  # has a barrier at its end
        self._generators = []
        if trainer.is_global_zero:
            _hide(path)
            hidden.replace(path)
            with suppress(OSError):  # the next save tries again
                self._remove_old(path)
        stop.listen().save_took(time.monotonic() - began)

    def _remove_old(self, saved: Path) -> None:
        ours = self._folder.glob(f"{OURS}*.ckpt")
        newest_first = sorted(ours, key=lambda path: trainers.completed(path, LAST_FILES)[0], reverse=True)
        for path in newest_first[self._keep :]:
            if path != saved:
                _hide(path)
        for path in self._folder.glob(f".{OURS}*"):  # also what saves and removals that were killed have left
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def state_dict(self) -> dict[str, Any]:
        return {"generators": self._generators} if self._generators else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generators = state_dict.get("generators", [])

    # -- evaluations

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._before = dict(trainer.callback_metrics)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self._inside and (slot := heartbeat.mine()) is not None:
            slot.beat()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._inside or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics.items()
        new = {name: value for name, value in metrics if value is not self._before.get(name)}
        self._not_training |= set(new)
        self._evaluation.update(trainers.numbers(new))
        process_group.reporter().evaluated(trainer.global_step, trainers.numbers(new))
        if self._deferred and not trainer.is_last_batch:
            self._copy(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._memory is not None:  # an error has ended the training, or there was nothing left to do
            self._memory.release()
        if self._inside and stage == "fit":
            stop.listen().close()

    on_test_start, on_test_batch_end, on_test_end = on_validation_start, on_validation_batch_end, on_validation_end


def obstacle_to_copies(trainer: Any) -> str:
    """Returns why a training can have no copies in memory; empty: it can."""
    kind = type(trainer.strategy)
    if any(hasattr(each, "consolidate_state_dict") for each in trainer.optimizers):
        return "the state of an optimizer is divided over the ranks"
    return "" if kind in (DDPStrategy, SingleDeviceStrategy) else f"the strategy is {kind.__name__}, and not ddp"


def validates(trainer: Any) -> bool:
    """Returns whether a validation follows this training batch; the same on all ranks."""
    loop: Any = trainer.fit_loop
    check = getattr(loop.epoch_loop, "_should_check_val_fx", None)  # private, and there is no public way
    by_time = getattr(trainer, "_val_check_time_interval", None) is not None  # which ranks do not know alike
    return check is not None and not by_time and bool(check(loop._data_fetcher))


def total_steps(trainer: Any) -> int:
    if len(trainer.optimizers) > 1:  # global_step counts the steps of all of them, and their ratio is unknown
        return 0
    total = trainer.estimated_stepping_batches
    return int(total) if 0 < total < float("inf") else 0


def resume_data(trainer: Any, generators_then: Mapping[str, Any] | None) -> None:
    """Restores the position in the data (of loaders without a state_dict) and the random number generators.

    generators_then: as `generators` returned it on this rank; None: another callback, or another number of ranks, has
    saved the checkpoint.
    """
    loop = trainer.fit_loop
    done = loop.epoch_loop.batch_progress.current.processed
    skipped = done if done < loop.max_batches else 0  # otherwise it was saved at the end of an epoch
    fetcher: Any = getattr(loop, "_data_fetcher", None)  # private, and there is no public way
    loaders = fetcher.combined_loader.flattened if hasattr(fetcher, "combined_loader") else []
    moves = bool(loaders) and not all(hasattr(each, "state_dict") for each in loaders)
    if not loaders and skipped:
        rank_zero_warn("this version of Lightning is not known: the epoch's data start anew, and not all are used")
    for loader in loaders if moves else ():
        batches: Any = getattr(loader, "batch_sampler", None)
        sampler: Any
        for sampler in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(loop.epoch_progress.current.processed)
    if moves and skipped:
        with heartbeat.alive():
            iter(fetcher)
            for _ in range(skipped):
                next(fetcher)
        fetcher.fetched -= skipped  # Lightning adds them again
    if generators_then is not None:
        restore_generators(generators_then, trainer.strategy.root_device)
    if moves and not skipped:
        iter(fetcher)  # as each epoch begins; after restoring the generators, since it draws a seed for the workers


def all_generators(device: torch.device) -> list[Any]:
    """Returns each rank's random number state, in types that torch.load(weights_only=True) accepts. Collective."""
    mine = generators(device)
    return process_group.all_gather(mine) if dist.is_initialized() and dist.get_world_size() > 1 else [mine]


def _hide(path: Path) -> None:
    # Nobody finds half a checkpoint if its removal is killed
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".{path.name}-{os.urandom(4).hex()}"))

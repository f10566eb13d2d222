"""A callback for Hugging Face's Trainer: reports steps and metrics, saves before the attempt ends, and resumes later.

from launcher.integrations.transformers import LauncherCallback, checkpoint_dir, last_checkpoint

trainer = Trainer(model, TrainingArguments(checkpoint_dir()), train_dataset=data, callbacks=[LauncherCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint())
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
import torch.distributed as dist

from launcher import errors
from launcher.checkpoint.memory_copies import Kept
from launcher.files.safe_io import python_number
from launcher.integrations import trainers
from launcher.integrations.trainers import TrainerMemory, checkpoint_dir, copied, memory_of
from launcher.runs.directory import current_attempt
from launcher.torch_compat import DTensor
from launcher.worker import heartbeat, process_group, stop

try:
    from accelerate.state import AcceleratorState
    from transformers import TrainerCallback
except ImportError as error:
    raise trainers.missing("transformers", error) from error

__all__ = ["LauncherCallback", "checkpoint_dir", "last_checkpoint"]

STATE = "trainer_state.json"  # the Trainer writes it last
MODEL = "pytorch_model.bin"
# The files of a checkpoint of the Trainer, and the argument of callbacks, or attribute of the optimizer, that has it
OBJECTS = {"optimizer.pt": "optimizer", "scheduler.pt": "lr_scheduler", "scaler.pt": "scaler"}
LOG = "log_history"  # of a copy: the part of STATE that grows
MEASURED = ("_runtime", "_per_second")  # suffixes of logged values that each rank measures
NOT_METRICS = ("epoch", "_runtime", "_per_second", "_time")  # suffixes of logged values that are no metrics


def last_checkpoint(folder: str | os.PathLike[str] | None = None) -> str | None:
    """Returns the path of the Trainer's newest complete checkpoint, for `train(resume_from_checkpoint=...)`.

    None: there is none, or `folder` (the Trainer's output_dir; None: `checkpoint_dir()`) is None outside of a run.
    All ranks must call it: rank 0 chooses. If ranks were started again in this attempt, it may be a copy in memory
    (checkpoint.memory), and they have a process group afterwards, which the Trainer uses. Raises CannotRead.
    """
    if folder is None and "LAUNCHER_CHECKPOINT_DIR" not in os.environ:
        return None
    folder = Path(checkpoint_dir() if folder is None else folder)
    found = trainers.newest(folder, r"checkpoint-\d+", [STATE], _is_whole)
    on_disk = None if found is None else int(found.name.rpartition("-")[2])
    if (memory := copied(folder, lambda: on_disk, files_of, own_file_of)) is not None:
        return str(memory)
    return None if found is None else str(found)


def _is_whole(state: BinaryIO) -> bool:
    try:
        json.load(state)
    except ValueError:  # an attempt was killed while it saved
        return False
    return True


class LauncherCallback(TrainerCallback):
    """Reports to the run how far the training is; saves and exits when the attempt is to end.

    - `status` shows the step. The metrics that the Trainer logs, also those of evaluations, become curves on the report
      page and in trackers. The last evaluation is the run's result.
    - When the attempt must end (time limit, signal, RUN/stop), all ranks save a checkpoint of the Trainer after the
      same step and exit with code 75. An evaluation that is due at that step is skipped.
    - After `touch RUN/save` all ranks save and continue.
    - With checkpoint.memory, copies of the checkpoint are made in memory (not with FSDP, DeepSpeed).

    Outside of a run it does nothing.
    """

    def __init__(self) -> None:
        self._inside = current_attempt() is not None
        self._due = self._leaves = False  # whether to save a checkpoint, and whether to exit after it
        self._saving = ExitStack()  # open while the Trainer saves
        self._began = 0.0
        self._evaluation: dict[str, float] = {}
        self._memory: TrainerMemory | None = None
        self._stepped = False  # whether a step is done, and no copy was made after it
        self._callbacks: Mapping[str, Any] = {}  # the states of other callbacks at the beginning
        self._log: list[str] = []  # entries of the Trainer's log, as JSON

    def on_train_begin(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        if self._inside:
            stop.listen().take_signals()
            self._callbacks, self._stepped, self._log = dict(state.stateful_callbacks), False, []
            self._memory = memory_of(Path(args.output_dir), partial(obstacle_to_copies, training["model"]))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        self._copy(state, control, training)

    def on_step_begin(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        self._saving.close()
        self._copy(state, control, training)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if not self._inside:
            return control
        step, total = state.global_step, state.max_steps
        if not control.should_log:  # otherwise on_log reports the step with the metrics
            process_group.report_progress(step, total, {})
        verdict = stop.boundary(step)
        self._leaves = trainers.leaves(verdict.stop, step, total)
        if self._leaves:  # an evaluation may take longer than the time that is left
            control.should_evaluate, control.should_training_stop = False, True
        self._due = self._due or verdict.save or verdict.stop is not None
        control.should_save = control.should_save or self._due
        if control.should_save:
            self._began = time.monotonic() if not control.should_evaluate else 0.0
            self._saving.enter_context(heartbeat.alive())
        if self._memory is not None:
            self._memory.loaded()
        self._stepped = True
        return control

    def _copy(self, state: Any, control: Any, training: Mapping[str, Any]) -> None:
        # When the next step begins: an evaluation, its best value and the scheduler's step belong to the last one
        if self._memory is not None and self._stepped and self._memory.due(state.global_step):
            self._memory.keep(state.global_step, lambda: self._state(state, control, training), own_generators())
        self._stepped = False

    def _state(self, state: Any, control: Any, training: Mapping[str, Any]) -> dict[str, Any]:
        # The same on all ranks: what they measure themselves is left out of the log
        for entry in state.log_history[len(self._log) :]:
            alike = {name: value for name, value in entry.items() if not name.endswith(MEASURED)}
            self._log.append(json.dumps(alike, default=python_number))
        others = {**self._callbacks, type(control).__name__: control.state()}
        trainer = {**vars(state), "stateful_callbacks": others, "is_local_process_zero": True}
        trainer |= {"is_world_process_zero": True, "log_history": []}
        kept: dict[str, Any] = {
            STATE: json.dumps(trainer, default=python_number), LOG: f"[{', '.join(self._log)}]",
            MODEL: training["model"].state_dict(),
        }  # fmt: skip
        for name, of in OBJECTS.items():
            item = training[of] if of in training else getattr(training["optimizer"], of, None)
            if item is not None:
                kept[name] = item.state_dict()
        return kept

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saving.close()
        self._due = False
        if self._inside and self._began:
            stop.listen().save_took(time.monotonic() - self._began)
        self._began = 0.0  # the next save may follow an evaluation, or the end of an epoch
        if self._leaves:
            raise SystemExit(errors.RESUME)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._inside and (slot := heartbeat.mine()) is not None:
            slot.beat()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        metrics = {name: value for name, value in (logs or {}).items() if not name.startswith(("eval_", "train_"))}
        if self._inside and metrics:
            process_group.report_progress(state.global_step, state.max_steps, trainers.numbers(metrics))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        if self._inside:
            results = {name: each for name, each in (metrics or {}).items() if not name.endswith(NOT_METRICS)}
            self._evaluation = trainers.numbers(results)
            plain_names = {name.removeprefix("eval_"): each for name, each in self._evaluation.items()}
            process_group.reporter().evaluated(state.global_step, plain_names)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saving.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._inside:
            stop.listen().close()
            process_group.reporter().report({"steps": state.global_step, **self._evaluation})


def obstacle_to_copies(model: Any) -> str:
    """Returns why a training can have no copies in memory; empty: it can."""
    kind = AcceleratorState().distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        return f"the training uses {kind}"
    if any(isinstance(each, DTensor) for each in model.parameters()):
        return "the model is divided over the ranks"
    return ""


def own_generators() -> dict[str, Any]:
    """Returns the state of this process's random number generators, as the Trainer saves it."""
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    found = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state_all() if dist.is_initialized() else torch.cuda.get_rng_state()
    return found


def files_of(kept: Kept) -> dict[str, Callable[[BinaryIO], object]]:
    """Returns what writes each file of a checkpoint of the Trainer, from a copy that `LauncherCallback` has made."""
    parts = dict(kept.state)
    state = {**json.loads(parts.pop(STATE)), "log_history": json.loads(parts.pop(LOG))}
    files: dict[str, Callable[[BinaryIO], object]] = {name: partial(torch.save, part) for name, part in parts.items()}
    return {**files, STATE: lambda file: file.write(json.dumps(state).encode())}


def own_file_of(kept: Kept) -> dict[str, Callable[[BinaryIO], object]]:
    rank = f"_{os.environ['RANK']}" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    return {} if kept.rank_state is None else {f"rng_state{rank}.pth": partial(torch.save, kept.rank_state)}

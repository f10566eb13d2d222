"""Makes any training loop resumable: loads the newest checkpoint, saves when due, and stops all ranks at the same step.

    resumable = Resumable(env, state=..., position=..., identity=...)
    loaded = resumable.load(optimizer)          # before the first step
    for step in ...:
        ...
        resumable.boundary(step + 1)            # after each step, and several times during a long evaluation
    resumable.finish(step + 1)                  # the last checkpoint

In a process without a run, and so without a checkpoint directory, its methods do nothing.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from launcher.checkpoint.checkpointer import Checkpointer, Loaded
from launcher.checkpoint.format import SaveFailed
from launcher.errors import RESUME
from launcher.runs import lease
from launcher.worker import accelerator
from launcher.worker.settings import Settings, settings
from launcher.worker.step_timing import Pace
from launcher.worker.stop import Stop
from workloads.ranks import WorkloadError, say

if TYPE_CHECKING:
    from launcher import Env

BETWEEN_FAULTS = 3600.0  # assumed seconds between two interruptions
FIRST = 30.0  # seconds until the first save, by which the cost of a save is measured
LEAST, MOST = 10.0, 600.0  # least and most seconds between two saves
SHARE = 0.02  # largest share of the training time that saves may take
BACKGROUND = 0.1  # seconds by which one second of writing in the background delays training


def save_interval(blocked: float, whole: float, restart: float = 0.0) -> float:
    """Returns the seconds between two saves that minimise the time for saving and for repeating lost steps. Pure.

    Young's formula with Daly's correction: sqrt(2 c (M + R)), where c is the cost of a save, M the time between two
    interruptions (BETWEEN_FAULTS) and R the time of a restart (J. T. Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", 2006, equation 20 without its last, negligible term).

    | a save | interval |
    |---|---|
    | has not been measured | FIRST |
    | costs little | the formula's, from LEAST to MOST |
    | costs more than SHARE of MOST | so long that saves take SHARE of the time |

    The interval is at least twice `whole`.

    Args:
        blocked: seconds for which a save blocks training.
        whole: seconds from the start of a save until the checkpoint is published. Of these, a second after the first
            `blocked` ones costs only BACKGROUND seconds.
        restart: seconds from an interruption to the next step.
    """
    if whole <= 0:
        return FIRST
    cost = blocked + BACKGROUND * max(0.0, whole - blocked)
    best = math.sqrt(2 * cost * (BETWEEN_FAULTS + restart))
    return max(min(max(best, LEAST), MOST), cost / SHARE, 2 * whole)


def better(value: float, best: float | None, best_is: str) -> bool:
    """Returns whether a metric is better than the best one so far. Pure.

    | value | best | result |
    |---|---|---|
    | not finite | any | False: no later value would be better than NaN |
    | finite | None, or not finite | True |
    | finite | finite | whether the value is greater (best_is=max) or less (best_is=min) |
    """
    if not math.isfinite(value):
        return False
    if best is None or not math.isfinite(best):
        return True
    return value > best if best_is == "max" else value < best


def key(*parts: object) -> int:
    """Returns a 63-bit seed that depends only on the text of the parts. (hash() also depends on the process.)"""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seed_generators(*parts: object) -> None:
    """Seeds this rank's random generators (Python, torch, its GPU, numpy if loaded) with `key(*parts)`."""
    seed = key(*parts)
    random.seed(seed)
    # torch.manual_seed() takes 0.2 ms, since it records a traceback for each kind of device that is missing.
    torch.default_generator.manual_seed(seed)
    accelerator.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


def generators(device: torch.device) -> dict[str, Any]:
    """Returns the state of all of this rank's random generators, as tensors and numbers."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if (devices := accelerator.module(device)) is not None:
        state[device.type] = devices.get_rng_state(device)
    if numpy := sys.modules.get("numpy"):
        name, words, position, has_gauss, gauss = numpy.random.get_state()
        words = torch.tensor(words.tolist(), dtype=torch.int64)
        state["numpy"] = {"name": name, "words": words, "position": position, "has": has_gauss, "gauss": gauss}
    return state


def restore_generators(state: Mapping[str, Any], device: torch.device) -> None:
    """Restores this rank's random generators from a `state` that `generators` has returned."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    if (devices := accelerator.module(device)) is not None and device.type in state:
        devices.set_rng_state(state[device.type], device)
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        saved = state["numpy"]
        words = numpy.array(saved["words"].tolist(), dtype=numpy.uint32)
        numpy.random.set_state((saved["name"], words, saved["position"], saved["has"], saved["gauss"]))


def conditions(env: Env) -> dict[str, Any]:
    """Returns facts about torch and the device that may change only the last bits of a result."""
    device = accelerator.name(env.device) or f"CPU {torch.backends.cpu.get_cpu_capability()}"
    return {"torch": torch.__version__, "device": device, "threads": torch.get_num_threads()}


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a text such as `threads 1 -> 2` for each value that differs between two dicts. Pure."""
    names = dict.fromkeys([*saved, *now])
    return [f"{name} {saved.get(name)} -> {now.get(name)}" for name in names if saved.get(name) != now.get(name)]


def materialize(optimizer: torch.optim.Optimizer) -> None:
    """Creates the tensors of an optimizer's state before its first step, so that a checkpoint can be loaded into them.

    Does a step with zero gradients and a learning rate of zero. Call `optimizer.state.clear()` afterwards if no
    checkpoint is loaded.
    """
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


class Resumable:
    """Checkpoints and stops of one training. All ranks create one, and call its methods in the same order."""

    def __init__(
        self,
        env: Env,
        *,
        state: Callable[[], Mapping[str, Any]],
        position: Callable[[], Mapping[str, Any]],
        identity: Mapping[str, Any],
        unlike: Mapping[str, Any] | None = None,
        seed: int = 0,
        run: Settings | None = None,
    ) -> None:
        """
        Args:
            env: this rank.
            state: returns the current tensors (not copies) in nested dicts. A save reads them, `load` fills them.
            position: returns the position of the training in JSON types, such as epoch and sums of losses. All ranks
                call it just before a save.
            identity: facts that must be equal in a checkpoint that is loaded: model, data, batch size, total steps.
                train.invariant and its number of micro-batches are added.
            unlike: facts that may change the last bits of a result, in addition to those of `conditions`.
            seed: the run's seed, from which the generators of a rank without a saved state are seeded.
            run: settings of the run; None: those of the run that this process belongs to.

        Raises:
            CheckpointError: the checkpoint directory cannot be used.
        """
        self.run = settings() if run is None else run
        self.pace: Pace[Any] = Pace(env.device)  # measures step times, from which slow ranks are found
        self._env, self._state, self._position, self._seed = env, state, position, seed
        self._conditions = {"world size": env.world_size, **conditions(env), **(unlike or {})}
        self._checkpointer: Checkpointer | None = None
        self._stop: Stop | None = None
        self._metrics: tuple[int, dict[str, float]] | None = None  # a number of steps, and the metrics after them
        self._best: float | None = None
        self._blocked = self._restart = 0.0  # seconds
        self._began = self._last_save = time.monotonic()
        self._saved_step = 0
        if self.run.checkpoint_dir is None:
            return
        invariant: dict[str, Any] = {"train.invariant": self.run.train.invariant}
        if self.run.train.invariant:
            invariant["train.micro_batches"] = self.run.train.micro_batches
        keys = self.run.checkpoint
        self._checkpointer = Checkpointer(
            self.run.checkpoint_dir, env, identity={**identity, **invariant}, keep=keys.keep, best=keys.best,
            best_is=keys.best_is, background=keys.background, verify=keys.verify,
            attempt=self.run.attempt, fence=lease.require, read_timeout=keys.read_timeout,
            start_over=keys.start_over, timeout=keys.timeout,
            max_failures=keys.max_failures, check_replicas=keys.check_replicas,
        )  # fmt: skip
        self._stop = Stop(env, self.run)

    def load(self, *optimizers: torch.optim.Optimizer) -> Loaded | None:
        """Loads the newest valid checkpoint into `state`, and restores the generators. All ranks must call it.

        Args:
            optimizers: the optimizers in `state`; their state gets its tensors here, before their first step.

        Returns:
            The checkpoint's step and other values: `extra["position"]` is what `position` returned at the save. None:
            there is no checkpoint, and the training starts from the beginning.

        Raises:
            Misfit: the checkpoint is of another training; the text lists the differences.
            WorkloadError: resume.strict is set, and the result could differ from that of an undisturbed run.
        """
        if self._checkpointer is None:
            return None
        for optimizer in optimizers:
            materialize(optimizer)
        loaded = self._checkpointer.load(self._state())
        if loaded is None:
            for optimizer in optimizers:
                optimizer.state.clear()
            return None
        self._compare(loaded)
        if loaded.rank_state is not None:
            restore_generators(loaded.rank_state, self._env.device)
        else:
            seed_generators(self._seed, loaded.step, self._env.rank)
        self._best = loaded.extra["best"]
        self._saved_step = loaded.step
        self._restart, self._last_save = time.monotonic() - self._began, time.monotonic()
        return loaded

    def boundary(self, step: int) -> None:
        """Saves if a save is due or requested; saves and exits if a stop is requested. All ranks must call it.

        Args:
            step: number of steps of the run that are done.

        Raises:
            SystemExit: with code 75: a stop was requested, and the state is saved.
            CheckpointError: another attempt owns the run now.
        """
        self._boundary(step)
        self.pace.begin()

    def _boundary(self, step: int) -> None:
        if self._checkpointer is None or self._stop is None:
            return
        verdict = self._stop.boundary(step, save_due=self._is_due(self._checkpointer, self._stop))
        if verdict.stop is not None:
            self._leave(step, verdict.stop)
        steps = self.run.checkpoint.every_steps  # ranks need no agreement on this
        if (verdict.save or (steps is not None and step % steps == 0)) and step != self._saved_step:
            self._save(step)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of the model after `step` steps. If the metric that checkpoint.best names is better than
        ever before, saves a checkpoint. All ranks must call it with equal metrics.

        Raises:
            WorkloadError: checkpoint.best is not one of the metrics.
        """
        name = self.run.checkpoint.best
        self._metrics = step, dict(metrics)
        if self._checkpointer is None or name is None:
            return
        if name not in metrics:
            raise WorkloadError(f"checkpoint.best={name}: this training measures {', '.join(metrics)}")
        value = float(metrics[name])
        if better(value, self._best, self.run.checkpoint.best_is):
            self._best = value
            self._save(step)

    def finish(self, step: int) -> None:
        """Saves the final state, waits until it is on disk, and calls `close`. All ranks must call it.

        Raises:
            SaveFailed: the state could not be saved.
        """
        if self._checkpointer is not None:
            self._save(step, wait=True)
        self.close()

    def close(self) -> None:
        """Waits for saves in the background and frees all resources. All ranks must call it."""
        if self._stop is not None:
            self._stop.close()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._stop = self._checkpointer = None

    def _is_due(self, checkpointer: Checkpointer, stop: Stop) -> bool:
        """Returns whether a save is due by time. Only rank 0 decides; the other ranks return False."""
        stop.save_took(checkpointer.cost)
        if self._env.rank != 0 or self.run.checkpoint.every_steps is not None:
            return False
        wanted: float | None = self.run.checkpoint.every
        if wanted is None:
            wanted = save_interval(self._blocked, checkpointer.cost, self._restart)
        return time.monotonic() - self._last_save >= wanted

    def _save(self, step: int, wait: bool = False) -> None:
        assert self._checkpointer is not None
        known = self._metrics
        extra = {"position": dict(self._position()), "conditions": self._conditions, "best": self._best}
        seconds = self._checkpointer.save(
            step, self._state(), rank_state=generators(self._env.device), extra=extra,
            metrics=known[1] if known is not None and known[0] == step else {}, wait=wait,
        )  # fmt: skip
        self._blocked = max(self._blocked, seconds)
        self._saved_step, self._last_save = step, time.monotonic()

    def _leave(self, step: int, cause: str) -> None:
        began = time.monotonic()
        try:
            self._save(step, wait=True)
            how = f"saved in {time.monotonic() - began:.2f} s"
        except SaveFailed:  # logged already; an earlier checkpoint is better than none
            how = "not saved"
        if self._env.rank == 0:
            say(f"stopped after step {step}: {cause}; {how}")
        self.close()
        sys.exit(RESUME)

    def _compare(self, loaded: Loaded) -> None:
        """Prints on rank 0 which checkpoint the training continues from, and which conditions have changed.

        Raises:
            WorkloadError: resume.strict is set, and the result could differ from that of an undisturbed run.
        """
        saved = dict(loaded.extra["conditions"])
        now = dict(self._conditions)
        same_bits: list[str] = []
        if self.run.train.invariant:
            same_bits = changes({"world size": saved.pop("world size")}, {"world size": now.pop("world size")})
        changed = changes(saved, now)
        if changed and self.run.resume.strict:
            raise WorkloadError(
                f"resume.strict=true refuses {loaded.path}: the result could differ from that of an undisturbed run, "
                f"because of {', '.join(changed)}. Continue as before, or set resume.strict=false"
            )
        if self._env.rank == 0:
            say(f"continues after step {loaded.step} ({loaded.path.name}, saved by {ranks(loaded.world_size)})")
            for change in same_bits:
                say(f"{change}: the weights stay bitwise equal (train.invariant=true)")
            for change in changed:
                say(f"{change}: {_consequence(change)}")


def ranks(number: int) -> str:
    """Returns `1 rank`, `3 ranks`."""
    return f"{number} rank{'' if number == 1 else 's'}"


def _consequence(change: str) -> str:
    if not change.startswith("world size"):
        return "weights may differ in the last bits from those of an undisturbed run"
    return (
        "same batches, order and learning rate; sums are taken in another order, so weights may differ in the last "
        "bits, and ranks draw other random numbers; train.invariant=true keeps them equal"
    )

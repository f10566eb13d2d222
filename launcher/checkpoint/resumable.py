"""Makes any training loop resumable: loads the newest checkpoint, saves when due, and stops all ranks at the same step.

training = Resumable({"model": model, "optimizer": optimizer, "scheduler": scheduler}, {"loader": loader})
for step in range(training.load(), steps):
    ...
    training.boundary(step + 1)     # after each step, and several times during a long evaluation
training.finish(steps)              # the last checkpoint
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.checkpointer import Checkpointer, Loaded
from launcher.checkpoint.format import CheckpointError, Misfit, SaveFailed
from launcher.checkpoint.loading import give, objects_in, stateful
from launcher.checkpoint.state import found_in, merge
from launcher.errors import RESUME, ConfigError
from launcher.files.safe_io import python_numbers
from launcher.formatting import brief, plural
from launcher.runs import lease_and_locks
from launcher.runs.history import PRIOR
from launcher.worker import devices as accelerator
from launcher.worker import process_group
from launcher.worker.process_group import Env
from launcher.worker.stop import Settings, StopFlag, settings

FIRST = 30.0  # seconds until the first save, by which the cost of a save is measured
LEAST, MOST = 10.0, 600.0  # least and most seconds between two saves
SHARE = 0.02  # largest share of the training time that saves may take
SAME_BITS = "the weights stay bitwise equal (train.invariant=true)"
BACKGROUND = 0.1  # seconds by which one second of writing in the background delays training


def save_interval(blocked: float, whole: float, restart: float = 0.0, between: float = PRIOR) -> float:
    """Returns the seconds between two saves that minimise the time for saving and for repeating lost steps.

    Young's formula with Daly's correction: sqrt(2 c (M + R)), where c is the cost of a save, M the time between two
    interruptions and R that of a restart (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", 2006, equation 20 without its last term).

    | a save | interval, at least twice `whole` |
    |---|---|
    | has not been measured | FIRST |
    | costs little | the formula's, from LEAST to MOST |
    | costs more than SHARE of MOST | so long that saves take SHARE of the time |

    blocked, whole: seconds for which a save blocks training, and until its checkpoint is published.
    """
    if whole <= 0:
        return FIRST
    cost = blocked + BACKGROUND * max(0.0, whole - blocked)
    best = math.sqrt(2 * cost * (between + restart))
    return max(min(max(best, LEAST), MOST), cost / SHARE, 2 * whole)


def better(value: float, best: float | None, best_is: str) -> bool:
    """Returns whether a metric is better than the best one so far; what is not finite never is, else NaN would stay."""
    if best is None or not math.isfinite(best) or not math.isfinite(value):
        return math.isfinite(value)
    return value > best if best_is == "max" else value < best


def key(*parts: object) -> int:
    """Returns a 63-bit seed that depends only on the text of the parts. (hash() also depends on the process.)"""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator_of(*parts: object) -> torch.Generator:
    """Returns a generator on the CPU whose numbers depend only on the text of the parts."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


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
    torch.set_rng_state(state["torch"].cpu())  # Lightning may have moved it
    if (devices := accelerator.module(device)) is not None and device.type in state:
        devices.set_rng_state(state[device.type].cpu(), device)
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        saved = state["numpy"]
        words = numpy.array(saved["words"].tolist(), dtype=numpy.uint32)
        numpy.random.set_state((saved["name"], words, saved["position"], saved["has"], saved["gauss"]))


def changes(saved: Mapping[str, Any], now: Mapping[str, Any], *, invariant: bool) -> dict[str, str]:
    """Returns what differs between two dicts of conditions, such as `threads 1 -> 2`, each with what follows."""
    found = {}
    for name in dict.fromkeys([*saved, *now]):
        follows = "weights may differ in the last bits from those of an undisturbed run"
        if name == "world size":
            follows = (
                "sums are taken in another order, so weights may differ in the last bits, and ranks draw other random "
                "numbers"
            )
            follows = SAME_BITS if invariant else follows
        if saved.get(name) != now.get(name):
            found[f"{name} {saved.get(name)} -> {now.get(name)}"] = follows
    return found


class Resumable:
    """Checkpoints and stops of one training. All ranks create one, and call its methods in the same order."""

    def __init__(
        self, state: dict[str, Any], rank_state: Mapping[str, Any] | None = None, *,
        identity: Mapping[str, Any] | None = None, folder: str | os.PathLike[str] | None = None,
        every_steps: int | None = None, seed: int = 0, env: Env | None = None,
        unlike: Mapping[str, Any] | None = None, run: Settings | None = None,
    ) -> None:  # fmt: skip
        """Takes everything that makes up the training, once. Nothing is read before `load`.

        Args:
            state: what all ranks have in common, or what DTensors divide: objects with `state_dict` and
                `load_state_dict` (model, optimizer, scheduler, GradScaler, averages, sampler), generators of random
                numbers, tensors, and dicts of numbers, text and lists for all that the loop counts itself.
            rank_state: what each rank has for itself, in the same types: its data loader. It is restored at the same
                number of ranks only. Torch's, Python's and numpy's default generators need not be given.
            identity: facts (JSON types) that must be equal in a checkpoint that is loaded: data, batch size. In a run,
                train.invariant and its number of micro-batches are added.
            folder: directory for the checkpoints outside of a run. None: there nothing is saved, and no signal caught.
            every_steps: steps between two saves outside of a run; None: see docs/checkpoints-and-restarts.md.
            seed: seed for the default generators if another number of ranks has saved the checkpoint.
            env: this rank; None: the position in the process group that exists.
            unlike: facts that may change the last bits of a result, in addition to torch, device and threads.
            run: settings of the run; None: those of the run that this process belongs to.

        Raises CheckpointError (the folder cannot be used), ConfigError (there are several ranks, and no process group
        yet) or TypeError (an object of `rank_state` has no state).
        """
        self.run = settings() if run is None else run
        if folder is not None and self.run.run_dir is None:
            own = replace(self.run.checkpoint, dir=os.path.abspath(folder), every_steps=every_steps)
            self.run = replace(self.run, checkpoint=own)
        self._reports_steps = env is None  # workloads report their own
        env = process_group.here() if env is None else env
        self._env, self._state, self._rank_state, self._seed = env, state, dict(rank_state or {}), seed
        for name, item in self._rank_state.items():
            if not isinstance(item, dict) and stateful(item) is None:
                raise TypeError(
                    f"rank_state: {name} is a {type(item).__name__}: give an object with state_dict and "
                    "load_state_dict, a generator of random numbers, or a dict"
                )
        self._conditions = {  # may change only the last bits of a result
            "world size": env.world_size, "torch": torch.__version__,
            "device": accelerator.name(env.device) or f"CPU {torch.backends.cpu.get_cpu_capability()}",
            "threads": torch.get_num_threads(), **(unlike or {}),
        }  # fmt: skip
        self._checkpointer: Checkpointer | None = None
        self._stop: StopFlag | None = None
        self._metrics: tuple[int, dict[str, float]] | None = None  # a number of steps, and the metrics after them
        # the best value of the metric checkpoint.best in what is published; step and value of the save which has begun
        # last
        self._best: float | None = None
        self._saving: tuple[int, float] | None = None
        self._blocked = self._restart = 0.0  # seconds
        self._began = self._last_save = time.monotonic()
        self._saved_step, self._told = 0, False
        # step that was loaded, if nothing was saved since and the checkpoint on disk has at least as much as the state
        self._as_loaded, self._partial = -1, False
        if self.run.checkpoint_dir is None:
            return
        if env.world_size == 1 and env.rank > 0:
            raise ConfigError(
                f"this is rank {env.rank}, and there is no process group: call launcher.init() or "
                "torch.distributed.init_process_group() before Resumable(), so that the ranks save together"
            )
        invariant: dict[str, Any] = {"train.invariant": self.run.train.invariant}
        if self.run.train.invariant:
            invariant["train.micro_batches"] = self.run.train.micro_batches
        keys = self.run.checkpoint
        self._checkpointer = Checkpointer(
            self.run.checkpoint_dir, env, identity={**(identity or {}), **invariant}, keep=keys.keep, best=keys.best,
            best_is=keys.best_is, background=keys.background, verify=keys.verify,
            attempt=self.run.attempt, fence=lease_and_locks.require, read_timeout=keys.read_timeout,
            start_over=keys.start_over, timeout=keys.timeout,
            max_failures=keys.max_failures, check_replicas=keys.check_replicas,
            memory=keys.memory if self.run.run_dir else 0, peers=keys.peers,
        )  # fmt: skip
        self._stop = StopFlag(env, self.run)

    def load(self, only: Sequence[str] = ()) -> int:
        """Restores the newest valid checkpoint: `state`, `rank_state` and the generators. All ranks must call it.

        Objects get all of their state; in dicts, tensors are filled and other values replaced.

        Returns the number of steps that are done; 0: there is no checkpoint, and the training starts anew.
        only: names in `state` and `rank_state` of what is restored; empty: everything. What is left out is logged.

        Raises:
            Misfit: the checkpoint is of another training, or not all of it can be restored (the text lists the
                differences), or resume.strict is set, and the result could differ. Nothing was changed.
            CheckpointError: on any rank, an object does not take its state. All else may be loaded.
        """
        if self._checkpointer is None:
            return 0
        of_rank = {name: item for name, item in self._rank_state.items() if not only or name in only}
        if only and not set(only) - of_rank.keys():
            raise ValueError(f"only={list(only)}: name something of `state` too")
        loaded = self._checkpointer.load(
            self._state, only=[name for name in only if name not in of_rank],
            accept=lambda found: self._require_fit(found, of_rank, whole=not only),
            then=lambda found: self._restore(found, of_rank, whole=not only),
        )  # fmt: skip
        if loaded is None:
            return 0
        if self._env.rank == 0:
            self._say_where_it_continues(loaded)
        self._best = loaded.extra.get("best_values", {}).get(self.run.checkpoint.best)
        self._metrics = loaded.step, dict(loaded.metrics)
        self._saved_step, self._last_save = loaded.step, time.monotonic()
        self._partial = bool(only)
        self._as_loaded = -1 if loaded.path is None and not only else loaded.step
        self._restart = self._last_save - self._began
        if loaded.path is None:  # what has been done since the last save is not on disk yet
            disk = loaded.on_disk
            self._saved_step = 0 if disk is None else disk.step
            since = math.inf if disk is None else time.time() - disk.time
            self._last_save -= since if since >= 0 else math.inf  # another node's clock may be ahead
        return loaded.step

    def _require_fit(self, loaded: Loaded, wanted: Mapping[str, Any], *, whole: bool) -> None:
        best, disk = loaded.extra.get("best_saving"), loaded.on_disk
        if loaded.path is None and best is not None and (disk is None or disk.step < best):
            raise CheckpointError(f"the best one, of step {best}, was not saved before ranks died")
        changed = [change for change, follows in self._changes(loaded).items() if follows != SAME_BITS]
        if changed and self.run.resume.strict:
            raise Misfit(
                f"resume.strict=true refuses {_where(loaded)}: the result could differ from that of an undisturbed "
                f"run, because of {', '.join(changed)}. Continue as before, or set resume.strict=false"
            )
        if loaded.rank_state is None:
            if wanted:
                why = "it has no state of single ranks: "
                if loaded.world_size != self._env.world_size:
                    why = (
                        f"{plural(loaded.world_size, 'rank')} saved it, and there are {self._env.world_size} now: "
                        "continue at that size, give what fits any number of ranks to `state`, or "
                    )
                raise Misfit(
                    f"{_where(loaded)}: {', '.join(wanted)} of each rank cannot be restored, since {why}leave it out: "
                    "load(only=[...])"
                )
            return
        saved = loaded.rank_state.get("state", {})
        lacking = [path for path in objects_in(wanted) if found_in(saved, path) is None]
        if lacking or (whole and saved.keys() - wanted.keys()):
            raise Misfit(
                f"{_where(loaded)} has {', '.join(saved) or 'nothing'} of each rank, and `rank_state` is "
                f"{', '.join(wanted) or 'empty'} now: give the same, or name what is to be loaded: load(only=[...])"
            )

    def _restore(self, loaded: Loaded, wanted: Mapping[str, Any], *, whole: bool) -> None:
        _update(self._state, merge(self._state, loaded.values))
        if loaded.rank_state is None:
            if whole:
                seed_generators(self._seed, loaded.step, self._env.rank)
            return
        saved = loaded.rank_state.get("state", {})
        for path, item in objects_in(wanted).items():
            give(path, item, found_in(saved, path))
        _update(self._rank_state, {name: saved[name] for name in wanted if name in saved})
        if whole:
            restore_generators(loaded.rank_state["generators"], self._env.device)

    def boundary(self, step: int) -> None:
        """Saves if a save is due or requested; saves and exits if a stop is requested. All ranks must call it.

        step: number of steps of the run that are done.
        Raises SystemExit (75: a stop was requested, and the state is saved) or CheckpointError (another attempt owns
        the run now).
        """
        if self._reports_steps and self._env.rank == 0:
            process_group.report_step(step)
        if self._checkpointer is not None and self._stop is not None:
            verdict = self._stop.boundary(step, save_due=self._is_due(self._checkpointer, self._stop))
            if verdict.stop is not None:
                self._leave(step, verdict.stop)
            steps = self.run.checkpoint.every_steps  # ranks need no agreement on this
            due = steps is not None and step - step % steps > self._saved_step
            if (verdict.save or due) and step != self._saved_step:
                self._save(step)
            if self._checkpointer.keeps(step):
                own = self._own(step)
                saving = self._saving if self._checkpointer.is_saving() else None  # one that failed is not made again
                own["extra"]["best_saving"] = None if saving is None else saving[0]
                self._checkpointer.keep(step, self._state, **own)

    def staged(self) -> None:
        """Waits until the state may change. Call it before anything but an optimizer of torch.optim changes tensors."""
        if self._checkpointer is not None:
            self._checkpointer.staged()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of the model after `step` steps. If the metric that checkpoint.best names is better than
        ever before, saves a checkpoint. All ranks must call it with equal metrics, before `boundary(step)`: who
        continues after that boundary does not evaluate again. Raises ConfigError without it.
        """
        name = self.run.checkpoint.best
        self._metrics = step, python_numbers(metrics)
        if self._checkpointer is None or name is None:
            return
        if name not in metrics:
            raise ConfigError(
                f"checkpoint.best={name}: it is not among the metrics of this training: {', '.join(metrics)}"
            )
        value, best_is = float(metrics[name]), self.run.checkpoint.best_is
        if self._saving is not None and better(value, self._best, best_is):
            self._settle()
        # What was loaded in part would take the place of what has all of the training
        if better(value, self._best, best_is) and not (self._partial and step == self._as_loaded):
            self._save(step, best=value)

    def finish(self, step: int) -> None:
        """Saves the final state, waits until it is on disk, and calls `close`; raises SaveFailed. All ranks call it."""
        if self._checkpointer is not None and step != self._as_loaded:  # else a new file would look like progress
            self._save(step, wait=True)
        self.close()

    def close(self) -> None:
        """Waits for saves in the background and frees all resources. All ranks must call it."""
        if self._stop is not None:
            self._stop.close()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._stop = self._checkpointer = None

    def _is_due(self, checkpointer: Checkpointer, stop: StopFlag) -> bool:
        # Only rank 0 decides; the other ranks return False
        stop.save_took(checkpointer.cost)
        if self._env.rank != 0 or self.run.checkpoint.every_steps is not None:
            return False
        wanted: float | None = self.run.checkpoint.every
        if wanted is None:
            between = self.run.failures.between(self.run.nodes)
            wanted = save_interval(self._blocked, checkpointer.cost, self._restart, between)
            if checkpointer.cost and not self._told:
                self._told = True
                print(self._assumption(wanted, between, checkpointer.cost), flush=True)
        return time.monotonic() - self._last_save >= wanted

    def _assumption(self, interval: float, between: float, cost: float) -> str:
        seen = self.run.failures
        hours = f"{plural(seen.failures, 'failure')} in {seen.node_seconds / 3600:,.1f} node-hours so far"
        return (
            f"saves every {brief(interval)}: a save takes {cost:.2g} s, and one failure in {brief(between)} is "
            f"expected ({hours if seen.node_seconds else 'no experience on this cluster yet'})"
        )

    def _settle(self) -> None:
        # A save in the background may fail: its value counts when it is published
        assert self._checkpointer is not None
        best, self._saving = self._saving, None
        if self._checkpointer.settle() and best is not None:
            self._best = best[1]

    def _save(self, step: int, wait: bool = False, best: float | None = None) -> None:
        assert self._checkpointer is not None
        began = time.monotonic()
        self._settle()
        self._saving = None if best is None else (step, best)
        self._checkpointer.save(step, self._state, **self._own(step, best), wait=wait)
        self._saved_step, self._last_save, self._as_loaded = step, time.monotonic(), -1
        self._blocked = max(self._blocked, self._last_save - began)

    def _own(self, step: int, best: float | None = None) -> dict[str, Any]:
        known, name = self._metrics, self.run.checkpoint.best
        best = self._best if best is None else best
        return {
            "rank_state": {"state": self._rank_state, "generators": generators(self._env.device)},
            "extra": {"conditions": self._conditions, "best_values": {} if best is None else {name: best}},
            "metrics": known[1] if known is not None and known[0] == step else {},
        }

    def _leave(self, step: int, cause: str) -> None:
        began = time.monotonic()
        try:
            if step == self._as_loaded:
                how = "as it was loaded"
            else:
                self._save(step, wait=True)
                how = f"saved in {time.monotonic() - began:.2f} s"
        except SaveFailed:  # logged already; an earlier checkpoint is better than none
            how = "not saved"
        if self._env.rank == 0:
            print(f"stopped after step {step}: {cause}; {how}", flush=True)
        if self._stop is not None:
            self._stop.leave()  # its watch goes on until it has exited
            self._stop = None
        self.close()
        sys.exit(RESUME)

    def _changes(self, loaded: Loaded) -> dict[str, str]:
        saved = loaded.extra.get("conditions", self._conditions)
        return changes(saved, self._conditions, invariant=self.run.train.invariant)

    def _say_where_it_continues(self, loaded: Loaded) -> None:
        where = _where(loaded).rpartition("/")[2]
        lines = [f"continues after step {loaded.step} ({where}, saved by {plural(loaded.world_size, 'rank')})"]
        lines += [f"{change}: {follows}" for change, follows in self._changes(loaded).items()]
        print("\n".join(lines), flush=True)


def _where(loaded: Loaded) -> str:
    return "copies in memory" if loaded.path is None else str(loaded.path)


def _update(into: dict[Any, Any], new: Mapping[Any, Any]) -> None:
    for key, value in new.items():
        if stateful(into.get(key)) is not None:
            continue
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            _update(old, value)
        elif isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and old.shape == value.shape:
            if old is not value:
                with torch.no_grad():
                    old.copy_(value)
        else:
            into[key] = value


# -- Which samples each rank takes at each step


class GlobalBatchSampler:
    """Chooses the samples of each step as a pure function of (seed, epoch, step), whatever the world size.

    An epoch is a new permutation of all samples, cut into global batches of `batch_size`. The last samples, fewer than
    `batch_size`, are not used in that epoch. Each rank takes a contiguous share of each global batch; the sizes of
    shares differ by at most one sample.

    With `micro_batches` the global batch is cut into that many micro-batches, and each rank takes whole ones. Their
    sizes differ by at most one sample and do not depend on the world size.

    Attributes:
        steps_per_epoch: number of global batches in an epoch.
        sizes: number of samples of each of this rank's micro-batches; without micro-batches, of its whole share.

    Raises:
        ValueError: the data set is smaller than one batch, the batch has fewer samples than there are ranks or
            micro-batches, or there are fewer micro-batches than ranks.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int, rank: int, world_size: int,
        device: torch.device | str = "cpu", micro_batches: int | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        if batch_size < world_size:
            raise ValueError(
                f"workload.batch_size={batch_size} leaves some of the {world_size} ranks without a sample: "
                f"set it to {world_size} or more"
            )
        if micro_batches is not None and not world_size <= micro_batches <= batch_size:
            raise ValueError(
                f"train.micro_batches={micro_batches} must be from {world_size} (the number of ranks) to {batch_size} "
                "(workload.batch_size). A run keeps it for its whole life: the weights depend on it"
            )
        if size < batch_size:
            raise ValueError(
                f"the training set has {size} samples, fewer than workload.batch_size={batch_size}: "
                f"set it to {size} or less"
            )
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.rank, self.world_size, self.device = rank, world_size, device
        self.micro_batches = micro_batches
        self.steps_per_epoch = size // batch_size
        parts = world_size if micro_batches is None else micro_batches
        first, last = (rank, rank + 1) if micro_batches is None else share(micro_batches, rank, world_size)
        bounds = [share(batch_size, part, parts) for part in range(first, last)]
        self._first, self._last = bounds[0][0], bounds[-1][1]
        self.sizes = [end - begin for begin, end in bounds]
        self._order: tuple[int, Tensor] | None = None

    @property
    def weight(self) -> float:
        """Factor by which to multiply the sum of this rank's per-sample losses.

        The mean of the ranks' gradients then equals the gradient of the mean loss over the global batch, even if shares
        differ in size: mean_r(W / B x sum_r) = sum / B, with world size W and batch size B.
        """
        return self.world_size / self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Returns the indices of all samples in the order of an epoch, int64 [size]."""
        if self._order is None or self._order[0] != epoch:
            # Always drawn on the CPU: a GPU's generator draws another permutation for the same seed.
            order = torch.randperm(self.size, generator=generator_of(self.seed, epoch))
            self._order = epoch, order.to(self.device)
        return self._order[1]

    def global_batch(self, epoch: int, step: int) -> Tensor:
        """Returns the indices of all ranks' samples at a step of an epoch, int64 [batch_size]; raises IndexError."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} is not one of the {self.steps_per_epoch} steps of an epoch")
        return self.order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]

    def batch(self, epoch: int, step: int) -> Tensor:
        """Returns the indices of this rank's samples at a step of an epoch, int64 [sum of `sizes`]."""
        return self.global_batch(epoch, step)[self._first : self._last]

    def batches(self, epoch: int, step: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Yields (step, indices of this rank's samples) for each step of the epoch from `step` on."""
        for following in range(step, self.steps_per_epoch):
            yield following, self.batch(epoch, following)

    def locate(self, global_step: int) -> tuple[int, int]:
        """Returns (epoch, step within the epoch) of the step that follows the first `global_step` steps of the run."""
        return divmod(global_step, self.steps_per_epoch)


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Returns a rank's share of `count` items as a half-open range (first, end). Shares differ by at most one item."""
    return count * rank // world_size, count * (rank + 1) // world_size

"""`Checkpointer`: saves the checkpoints of a training in the background, and loads them at any number of ranks.

`saving` has the steps of a save, `format` the files. torch.distributed.checkpoint writes large or sharded state; each
tensor that is the same on all ranks is written by one of them. Small state is one file, written by rank 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import memory_format
from launcher.checkpoint.collectives import Peers, SavesFail, one_line
from launcher.checkpoint.folder import CheckpointFolder, Retention
from launcher.checkpoint.format import MEMORY, CheckpointError, Damaged, Manifest, Misfit, SaveFailed
from launcher.checkpoint.loading import Contents, Loaded, LoadTarget, Opened, refuse, report_restored
from launcher.checkpoint.memory_copies import MemoryCheckpoints
from launcher.checkpoint.saving import Final, Save, Staging, Writer
from launcher.checkpoint.state import facts, fill_overlap, local_part, merge, step_number
from launcher.formatting import log_line
from launcher.runs import events
from launcher.runs.directory import Events, current_attempt
from launcher.worker import devices, heartbeat
from launcher.worker.process_group import Env

__all__ = ["Checkpointer", "Loaded", "merge"]


class Checkpointer:
    """Saves and loads the checkpoints in one folder. All ranks make one, and call its methods in the same order."""

    def __init__(
        self, folder: str | os.PathLike[str], env: Env, *, identity: Mapping[str, Any], keep: int = 2,
        best: str | None = None, best_is: str = "max", background: bool = True, verify: bool = True, attempt: int = 0,
        fence: Callable[[], None] | None = None, read_timeout: float = 300.0, start_over: bool = False,
        timeout: float = 3600.0, max_failures: int = 5, check_replicas: bool = True, memory: int | None = 0,
        peers: bool = True,
    ) -> None:  # fmt: skip
        """Makes the folder, and removes incomplete checkpoints of killed saves, of this attempt and earlier ones.

        Args:
            folder: directory for the checkpoints; nobody else may be able to write to it.
            env: this rank's position in the job.
            identity: facts (JSON types) that must be equal for a checkpoint to fit: the model's shape, the optimizer,
                the data set.
            attempt: index of this attempt, from 0.
            fence: is called on rank 0 before a checkpoint is published; raises if another attempt owns the run now.
            memory: steps between two copies in memory (`keep`); None: as often as they cost at most 1 % of the time;
                0: none. This and the others are the keys of `checkpoint` in docs/config.md; times in seconds.

        Raises CheckpointError (the folder cannot be made or written to, others can write to it, or another run saves
        there) or CannotRead.
        """
        if keep < 1 or best_is not in ("max", "min"):
            raise ValueError(f"keep={keep}, best_is={best_is!r}: keep at least 1; best_is is max or min")
        self.folder = Path(folder)
        self.cost = 0.0  # longest time from the call of a save until it was published, in seconds
        self._identity = facts(identity, "identity")
        self._folder = CheckpointFolder(self.folder, attempt, Retention(keep, best, best_is), read_timeout)
        self._read_timeout, self._start_over = read_timeout, start_over
        # With MPI there is no store through which to make another group, and two threads must not share one group.
        own_group = env.world_size > 1 and env.backend != "mpi"
        self._background = background and (own_group or env.world_size == 1)
        self._peers = Peers(env.rank, env.world_size, timeout, own_group=own_group)
        self._verify, self._first = verify, env.rank == 0
        self._check_replicas, self._compared = check_replicas, False
        self._max_failures, self._failures, self._why = max_failures, 0, ""
        self._threads = min(8, devices.cores(os.environ, env.local_world_size))
        self._events = Events(current_attempt() if self._first else None, "checkpoint")
        self._writer = Writer(
            self._folder, self._peers, self._identity, check_replicas, fence or (lambda: None), self._events
        )
        self._staging = Staging()
        self._save: Save | None = None
        self._final: str | None = None  # why all later saves would fail
        self._memory: MemoryCheckpoints | None = None
        if memory != 0 and env.backend != "mpi":
            training = json.dumps([str(self.folder), self._identity], sort_keys=True)
            lineage = hashlib.sha256(training.encode()).hexdigest()[:32]
            self._memory = MemoryCheckpoints(env, lineage, memory, peers=peers, timeout=timeout, check=check_replicas)
        # Ranks that continue after a failure have no time to spare: the group of saves is made at the first one
        self._loads = self._peers.open() if self._memory is None else self._memory.group
        self._hook = register_optimizer_step_pre_hook(_before_optimizers(self))
        with heartbeat.alive():
            self._loads.on_first(self._folder.prepare)

    # -- saving

    def save(
        self, step: int, state: Mapping[str, Any], *, rank_state: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None, metrics: Mapping[str, float] | None = None, wait: bool = False,
    ) -> float:  # fmt: skip
        """Saves the current state. All ranks must call it with the same step.

        With `background`, large tensors may still be being copied when this returns: call `staged` before any of them
        changes. (The step() of every torch.optim optimizer calls it.) Tensors of up to 1 MiB, for example of a batch
        norm, are copied before this returns, up to 16 MiB in total. A failed save is logged, and does not end the
        training, except with `wait`, or after `max_failures` failures in a row. Earlier checkpoints stay.

        Args:
            step: steps of the run that are done.
            state: nested dicts of tensors, DTensors, numbers, text, and objects with `state_dict` and
                `load_state_dict` (models, optimizers, schedulers). What several ranks have under one name must be the
                same on all of them. A name may exist on some ranks only.
            rank_state: state of this rank alone (random number generators, a data loader), of the same types.
            extra: small facts in JSON types (the sample cursor, the epoch).
            metrics: metrics of the current model, by name.
            wait: whether to return only when the checkpoint is published.

        Returns the seconds for which training was blocked. Raises SaveFailed (this save failed, and `wait` is set),
        SavesFail (the last `max_failures` saves failed), or CheckpointError: an earlier save failed
        for good, since another attempt owned the run, or the state could not be saved.
        """
        began = time.perf_counter()
        step = step_number(step)
        self.settle()
        still = wait or not self._background
        save = Save(step, began=began, compare=self._check_replicas and not self._compared)
        with heartbeat.alive():
            self._peers.open()
        with save.keeps_faults():
            content = save.take(state, rank_state, extra or {}, metrics or {})
            save.copying = self._staging.start(content.tensors, still=still)
        self._save = save
        if still:
            with heartbeat.alive():
                failure = self._run(save)
            self._save = None
            if failure is not None and wait:
                raise failure
        else:
            save.run(partial(self._run, save), "checkpoint")
        return time.perf_counter() - began

    def keep(
        self, step: int, state: Mapping[str, Any], *, rank_state: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None, metrics: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Copies the current state into the memory of the nodes, if a copy is due; arguments: as of `save`.

        All ranks call it after each step, and `staged` before tensors change. A copy that fails is logged.
        """
        if self._memory is not None and self._memory.due(step):
            self._memory.keep(step_number(step), state, rank_state, extra or {}, metrics or {})

    def keeps(self, step: int) -> bool:
        """Returns whether `keep` would make a copy; the same on all ranks."""
        return self._memory is not None and self._memory.due(step)

    def staged(self) -> float:
        """Waits until `save` and `keep` have copied the state, so that it may change; returns the seconds waited."""
        kept = 0.0 if self._memory is None else self._memory.staged()
        return kept + (0.0 if self._save is None else self._save.staged())

    def wait(self) -> None:
        """Waits until the last save has ended, and old checkpoints are removed; CheckpointError as of `save`."""
        self._wait_for_save()
        with heartbeat.alive():
            self._folder.wait()

    def is_saving(self) -> bool:
        """Returns whether the last save is under way on this rank; else it is published on disk, or has failed."""
        return self._save is not None and self._save.is_alive()

    def _wait_for_save(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.join()
        if self._final is not None:
            raise CheckpointError(self._final)

    def close(self) -> None:
        """Waits for the last save, and releases memory and the process group; raises like `wait`."""
        try:
            self.wait()
        finally:
            self._hook.remove()
            if self._memory is not None:
                self._memory.close()
            self._staging.forget_all_but(())
            self._peers.close()

    def _run(self, save: Save) -> SaveFailed | None:
        # Runs a save, logs and returns its failure, and records its end for the other ranks; never raises
        failed: Exception | None = None
        try:
            self.cost = max(self.cost, self._writer.write(save))
        except Exception as error:
            failed = error
        finally:
            save.release()
        # If the group failed, `settle` finds out what happened on other ranks
        broken = failed is not None and not isinstance(failed, CheckpointError)
        published = failed is None or (broken and save.published)
        self._peers.record_end(published=published, broken=broken)
        if failed is None or published:
            return None
        self._why, final = one_line(failed), isinstance(failed, Final)
        message = f"the checkpoint of step {save.step} was not saved: {self._why}"
        self._final = message if final else None
        if self._first or broken:
            log_line(message if self._first else f"rank {self._peers.rank}: {message}", sys.stdout)
        if self._first:
            name = type(failed).__name__
            self._events(events.SaveFailure(step=save.step, exception=name, error=self._why, final=final))
        return SaveFailed(message)

    def settle(self) -> bool:
        """Waits until the last save has ended on all ranks, which all call this; raises like the next `save`.

        Returns whether it was published; False as well if an earlier call has told.
        """
        self._wait_for_save()
        with heartbeat.alive():
            last = self._peers.last_result()
        if last is None:
            return False
        self._compared = self._compared or last
        self._failures = 0 if last else self._failures + 1
        if self._max_failures and self._failures >= self._max_failures:
            raise SavesFail(
                f"the last {self._failures} saves failed (checkpoint.max_failures={self._max_failures}); "
                f"the last one: {self._why or 'on another rank'}"
            )
        return last

    # -- loading

    def load(
        self, state: Mapping[str, Any], *, only: Sequence[str] = (), accept: Callable[[Loaded], None] = lambda _: None,
        then: Callable[[Loaded], None] = lambda _: None,
    ) -> Loaded | None:  # fmt: skip
        """Restores the newest checkpoint or copy in memory, all of it, into `state`; each rank reads what it needs.

        A checkpoint that is torn, truncated, changed or not ours is logged, renamed and kept, and an older one is used.

        Args:
            state: as for `save`. Objects with `state_dict` and `load_state_dict` get what their state_dict returned at
                the save; an optimizer need not have done a step. In dicts there must be a tensor wherever the
                checkpoint has one, of the same type and shape, which is filled; values other than tensors are
                returned (`Loaded.values`).
            only: dotted names (`model`, `nested.optimizer`) of what is loaded; empty: everything. Nothing else changes,
                and what is left out is logged.
            accept: is called on each rank with what will be returned, before anything changes; an error that it raises
                on any rank refuses the checkpoint on all.
            then: the same once the objects are restored; its error is raised on all ranks, too.

        Returns what the checkpoint has besides tensors. None if there is no checkpoint; also if none is sound and
        `start_over` is set.

        Raises:
            Misfit: the checkpoint is sound, and of another model or configuration, or has something that `state` lacks
                (the text lists the differences), or is of a newer format. Nothing was changed.
            CannotRead: the folder or a checkpoint could not be read for `read_timeout` seconds.
            CheckpointError: others can write to the folder; or there are checkpoints and none is sound; or an object
                does not take its state, and part of the state may be loaded.
        """
        self.wait()
        self.settle()
        with heartbeat.alive():
            if self._memory is not None:
                self._memory.wait()
            self._loads.open()
            targets: list[LoadTarget] = []

            def names() -> Collection[str]:
                targets.append(LoadTarget(state, only, accept, then))
                return targets[0].tensors

            everyone = self._names(names)
            targets[0].everyone = everyone
            return self._load(targets[0])

    def _load(self, wanted: LoadTarget) -> Loaded | None:
        left: list[tuple[Path, Manifest]] = []  # on rank 0

        def begin() -> list[str]:
            known, wrong = self._folder.known()
            left.extend(known)
            return [self._pass_over(path, [why]) for path, why in wrong.items()]

        def choose() -> tuple[Path, Manifest, list[str]] | None:
            if not left:
                return None
            path, manifest = left.pop(0)
            problems = checkpoints.wrong_sizes(path, manifest, self._read_timeout)
            if not problems:
                refuse(path, checkpoints.differences(manifest.identity, self._identity))
            return path, manifest, problems

        began = time.perf_counter()
        wanted.passed_over += self._loads.on_first(begin)
        while (chosen := self._loads.on_first(choose)) is not None:
            path, manifest, problems = chosen
            newest = None if problems else manifest
            if (loaded := self._from_memory(wanted, manifest.step + 1, newest)) is not None:
                self._folder.continue_from(manifest)
                return loaded
            problems = problems or self._damages(path, manifest)
            if not problems:
                opened = Opened(path, manifest, wanted, self._loads, self._read_timeout)
                problems, loaded = self._fill(opened, wanted)
                if loaded is not None:
                    self._loads.on_all(opened.restore)
                    if wanted.only and self._first:
                        only = ", ".join(wanted.only)
                        log_line(f"only {only} loaded from {path.name}: all else is left out", sys.stdout)
                    self._folder.continue_from(manifest)
                    if self._memory is not None:
                        self._memory.keep_only(None)
                    report_restored(self._loads.rank, loaded.step, began, memory=False)
                    return loaded
                if self._verify and manifest.torch != torch.__version__:
                    raise Misfit(
                        f"{path} is as it was written (its checksums are right), and torch {torch.__version__} cannot "
                        f"read it: use torch {manifest.torch}, which wrote it ({'; '.join(problems)})"
                    )
            wanted.passed_over.append(self._loads.on_first(partial(self._pass_over, path, problems, manifest)))
        loaded = self._from_memory(wanted, 0)
        if loaded is None:
            self._loads.on_first(partial(self._require_nothing_lost, wanted))
        return loaded

    def _from_memory(self, wanted: LoadTarget, least: int, newest: Manifest | None = None) -> Loaded | None:
        # Returns None if there are no sound copies of the step `least` or a later one. newest: on disk
        memory, began = self._memory, time.perf_counter()
        if memory is None:
            return None

        def fill(source: memory_format.Source) -> tuple[Opened, Loaded]:
            opened = InMemory(memory, source, wanted, newest)
            problems, loaded = self._fill(opened, wanted)
            if loaded is None:
                raise CheckpointError("; ".join(problems))
            return opened, loaded

        if (found := memory.load(least, fill, whole=not wanted.only)) is None:
            return None
        source, (opened, loaded) = found
        self._loads.on_all(opened.restore)
        report_restored(self._loads.rank, loaded.step, began, memory=True, received=source.moved)
        memory.share(loaded.step)
        return loaded

    def _fill(self, opened: Opened, wanted: LoadTarget) -> tuple[list[str], Loaded | None]:
        # Returns what is wrong with it, or what `load` returns once the objects are restored; raises Misfit
        def names() -> list[str]:
            opened.open()
            return [*opened.tensors, *wanted.roots]

        def accept() -> None:
            opened.require_fit(fills)
            wanted.accept(loaded)

        try:
            fills = self._names(names)
        except Damaged as error:
            return [str(error)], None
        loaded = opened.loaded()
        self._loads.on_all(accept)
        wanted.changed = True
        problems = self._problems(opened.read)
        return problems, None if problems else loaded

    def _names(self, names: Callable[[], Collection[str]]) -> set[str]:
        # Returns the names of all ranks; an error on one rank is raised on all
        own: list[str] = []

        def digest() -> bytes:
            own.extend(names())
            return hashlib.sha256("\n".join(sorted(own)).encode()).digest()

        digests = self._loads.on_all(digest)
        if len(set(digests)) == 1:
            return set(own)
        first = digests.index(digests[self._loads.rank]) == self._loads.rank  # of those with the same names one sends
        return set().union(*self._loads.on_all(lambda: own if first else []))

    def _pass_over(self, path: Path, problems: list[str], manifest: Manifest | None = None) -> str:
        line = f"{path.name}: {'; '.join(problems)}"
        done = self._folder.quarantine(path, problems, manifest)
        log_line(f"a checkpoint cannot be used: {line}; {done}", sys.stdout)
        step = manifest.step if manifest else checkpoints.step_of(path.name)
        self._events(events.PassedOver(checkpoint=path.name, step=step, problems=tuple(problems)))
        return line

    def _require_nothing_lost(self, wanted: LoadTarget) -> None:
        aside = [path.name for path in checkpoints.quarantined(self.folder)]
        if not wanted.changed and (self._start_over or not (wanted.passed_over or aside)):
            return
        raise CheckpointError(
            f"no checkpoint in {self.folder} is sound:\n"
            + "".join(f"  {line}\n" for line in wanted.passed_over)
            + "".join(f"  quarantined: {name}\n" for name in aside)
            + "`checkpoint verify` shows what is wrong with each. To start from the beginning nevertheless set "
            "checkpoint.start_over=true, or another checkpoint.dir"
        )

    def _damages(self, path: Path, manifest: Manifest) -> list[str]:
        if not self._verify:
            return []
        rank, world_size = self._loads.rank, self._loads.world_size

        def look() -> list[str]:
            mine = checkpoints.shares(checkpoints.blocks(manifest), world_size)[rank]
            return checkpoints.wrong_checksums(path, mine, self._threads, self._read_timeout)

        return self._problems(look)

    def _problems(self, look: Callable[[], list[str]]) -> list[str]:
        try:
            return [problem for found in self._loads.on_all(look) for problem in found]
        except Damaged as error:
            return [str(error)]


def _before_optimizers(checkpointer: Checkpointer) -> Callable[..., None]:
    known = weakref.ref(checkpointer)

    def hook(*_: object) -> None:
        if (alive := known()) is not None:
            alive.staged()

    return hook


class InMemory(Opened):
    """What `MemoryCheckpoints.fetch` has brought, while it is loaded."""

    def __init__(
        self, memory: MemoryCheckpoints, source: memory_format.Source, wanted: LoadTarget, newest: Manifest | None
    ) -> None:  # fmt: skip
        manifest = Manifest(source.step, MEMORY, source.world_size, 0, {}, {}, {}, {})
        super().__init__(Path(f"memory of step {source.step}"), manifest, wanted, memory.group, 0.0)
        self._memory, self._source, self._newest = memory, source, newest
        self._index: dict[str, Any] = {}
        self._there: dict[str, Tensor] = {}  # the tensors of the copy in this agent's memory

    def open(self) -> None:
        source = self._source
        same = source.world_size == self._peers.world_size
        if same or source.mode == memory_format.WHOLE:
            self._index, self._there, self.rank_state = self._memory.opened(source)
        else:
            self._index = self._memory.first_index(source)
        self._manifest = replace(self._manifest, extra=self._index["extra"], metrics=self._index["metrics"])
        kinds = {name: (dtype, shape) for name, (_, dtype, _, shape, _) in self._index["where"].items()}
        index = self._index
        self._choose(Contents(index["paths"], index["values"], index["lists"], kinds))

    def loaded(self) -> Loaded:
        return replace(super().loaded(), on_disk=self._newest)

    def read(self) -> list[str]:
        source = self._source
        with torch.no_grad():
            error: Exception | None = None
            filled: dict[str, set[tuple[int, ...]]] = {name: set() for name in self.tensors}
            left = {name: local_part(tensor).numel() for name, tensor in self.tensors.items()}

            def take(index: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
                for name, (_, _, _, _, offset) in index["where"].items():
                    if name in filled and offset not in filled[name]:
                        filled[name].add(offset)
                        left[name] -= fill_overlap(self.tensors[name], tensors[name], offset)

            if source.mode == memory_format.WHOLE or source.world_size == self._peers.world_size:
                take(self._index, self._there)
            else:
                for body, header in self._memory.pieces(source):
                    try:
                        index = memory_format.index_of(body, header)
                        take(index, memory_format.tensors_in(body, index))
                    except Exception as failed:  # the other ranks wait for this one's next pieces
                        error = error or failed
            if error is not None:
                raise error
        return [f"{name} is incomplete" for name, count in left.items() if count]

"""Checkpoints of a training: saved in the background, published atomically, loaded at any number of ranks.

A save runs in a thread, while training continues, in these steps:

    1. the ranks agree on what to save, and rank 0 makes a temporary folder
       (rank 0 starts to write small state even before they agree)
    2. each rank copies what it will write (`staged` waits for this)
    3. each rank writes its files, with checksums, and waits until they are on disk
    4. rank 0 writes the manifest, calls the fence, renames the folder, and removes old checkpoints
    5. all ranks get the result; see saving.py

format.py describes the format. torch.distributed.checkpoint writes large or sharded state; each tensor that is the same
on all ranks is written by one of them. Small state without sharded tensors is one file, written by rank 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from launcher.checkpoint import files
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.agreement import Peers, SavesFail
from launcher.checkpoint.folder import CheckpointFolder, Retention
from launcher.checkpoint.format import CheckpointError, Damaged, Manifest, Misfit, SaveFailed
from launcher.checkpoint.loading import Loaded, LoadTarget, Opened
from launcher.checkpoint.memory import InMemory, MemoryCheckpoints
from launcher.checkpoint.saving import Save, SaveOutcome, Writer
from launcher.checkpoint.staging import Staging
from launcher.checkpoint.state import facts, merge, step_number
from launcher.formatting import log_line
from launcher.runs import events
from launcher.runs.event_writer import Events, current_attempt
from launcher.worker import devices, heartbeat, rank_report
from launcher.worker.process_group import Env

__all__ = ["Checkpointer", "Loaded", "merge"]


class Checkpointer:
    """Saves and loads the checkpoints in one folder. All ranks make one, and call its methods in the same order.

    Attributes:
        folder: the folder of the checkpoints.
        cost: longest time so far from the call of a save until its checkpoint was published, in seconds.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        env: Env,
        *,
        identity: Mapping[str, Any],
        keep: int = 2,
        best: str | None = None,
        best_is: str = "max",
        background: bool = True,
        verify: bool = True,
        attempt: int = 0,
        fence: Callable[[], None] | None = None,
        read_timeout: float = 300.0,
        start_over: bool = False,
        timeout: float = 3600.0,
        max_failures: int = 5,
        check_replicas: bool = True,
        memory: int | None = 0,
        peers: bool = True,
    ) -> None:
        """Makes the folder, and removes incomplete checkpoints of killed saves, of this attempt and earlier ones.

        Args:
            folder: directory for the checkpoints; nobody else may be able to write to it.
            env: this rank's position in the job.
            identity: facts (JSON types) that must be equal for a checkpoint to fit: the model's shape, the optimizer,
                the data set. A checkpoint with other facts is refused, with an error that lists the differences.
            keep: how many of the newest sound checkpoints to keep; 1 or more.
            best: name of a metric; the checkpoint with its best value is kept as well. None: no metric counts.
            best_is: which value of the metric is the best: `max` or `min`.
            background: whether to write while training continues.
            verify: whether to compare checksums when loading.
            attempt: index of this attempt, from 0.
            fence: function that is called on rank 0 before a checkpoint is published. It must raise if another attempt
                owns the run now.
            read_timeout: seconds for which a failing read is retried.
            start_over: whether to start from the beginning, instead of raising, if all checkpoints are damaged.
            timeout: seconds to wait for the slowest rank in a save or a load.
            max_failures: how many saves in a row may fail before SavesFail is raised; 0: any number.
            check_replicas: whether to compare, at the first save, the tensors that ranks have under the same name, and
                to refuse differences.
            memory: steps between two copies in the memory of the nodes (`keep`), from which ranks that start again in
                the same attempt continue; None: as often as they cost at most 1 % of the time; 0: none.
            peers: whether what only one rank has is copied to the next node too.

        Raises:
            CheckpointError: the folder cannot be made or written to, or others can write to it.
            CannotRead: the file system has a transient error.
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
        self._writer = Writer(self._folder, self._peers, self._identity, fence, self._events)
        self._staging = Staging()
        self._save: Save | None = None
        self._final: str | None = None  # why all later saves would fail
        self._memory: MemoryCheckpoints | None = None
        if memory != 0 and env.backend != "mpi":
            lineage = hashlib.sha256(
                json.dumps([str(self.folder), self._identity], sort_keys=True).encode()
            ).hexdigest()
            self._memory = MemoryCheckpoints(
                env, lineage[:32], memory, peers=peers, timeout=timeout, check=check_replicas
            )
        self._hook = register_optimizer_step_pre_hook(_before_optimizers(self))
        self._peers.on_first(self._folder.prepare)

    # -- saving

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        rank_state: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        wait: bool = False,
    ) -> float:
        """Saves the current state. All ranks must call it with the same step.

        With `background`, large tensors may still be being copied when this returns: call `staged` before any of them
        changes. (The step() of every torch.optim optimizer calls it.) Tensors of up to 1 MiB, for example of a batch
        norm, are copied before this returns, up to 16 MiB in total.

        A failed save is logged (with all ranks that failed, and as the event `save_failed`). It does not end the
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

        Returns:
            Seconds for which training was blocked.

        Raises:
            SaveFailed: this save failed, and `wait` was set or `background` is off.
            SavesFail: the last `max_failures` saves failed.
            CheckpointError: an earlier save failed for good: another attempt owned the run, or the state could not be
                saved.
        """
        began = time.perf_counter()
        step = step_number(step)
        self._wait_for_save()
        self._settle()
        still = wait or not self._background
        compare = self._check_replicas and not self._compared
        save = Save(step, began=began, compare=compare, check_values=self._check_replicas)
        with save.keeps_faults():
            content = save.take(state, rank_state, extra or {}, metrics or {})
            save.copying = self._staging.start(content.tensors, still=still)
        self._save = save
        if still:
            with heartbeat.alive():
                self._run(save)
            self._save = None
            if save.failure is not None:
                raise save.failure
        else:
            save.run(partial(self._run, save), "checkpoint")
        return time.perf_counter() - began

    def keep(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        rank_state: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Copies the current state into the memory of the nodes, if a copy is due; arguments: as of `save`.

        All ranks call it after each step, and `staged` before tensors change. An error ends the copies, and is logged.
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
        """Waits until the last save is published or has failed, and old checkpoints are removed.

        Raises:
            CheckpointError: a save has failed for good: another attempt owns the run, or the state cannot be saved.
                Other failures are only logged.
        """
        self._wait_for_save()
        with heartbeat.alive():
            self._folder.wait()

    def _wait_for_save(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.join()
        if self._final is not None:
            raise CheckpointError(self._final)

    def on_all(self, function: Callable[[], None]) -> None:
        """Calls a function on each rank; errors of any ranks are raised as one CheckpointError on all."""
        self._peers.on_all(function)

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

    def _run(self, save: Save) -> None:
        # Runs a save, logs and records its failure, and records its end for the other ranks; never raises
        broken = False
        try:
            outcome = self._writer.write(save)
        except Exception as error:  # the group failed: `last_result` finds out what happened on other ranks
            broken = True
            outcome = SaveOutcome()
            if not save.published:
                outcome = SaveOutcome(failure=files.one_line(error), exception=type(error).__name__)
        finally:
            save.release()
        if outcome.failure is None:
            self.cost = max(self.cost, outcome.seconds)
        else:
            message = f"the checkpoint of step {save.step} was not saved: {outcome.failure}"
            save.failure = SaveFailed(message)
            self._why = outcome.failure
            if outcome.final:
                self._final = message
            if self._first or broken:
                log_line(message if self._first else f"rank {self._peers.rank}: {message}", sys.stdout)
            if self._first:
                self._events(
                    events.SaveFailure(
                        step=save.step, exception=outcome.exception, error=outcome.failure, final=outcome.final
                    )
                )  # fmt: skip
        self._peers.record_end(published=outcome.failure is None, broken=broken)

    def _settle(self) -> None:
        with heartbeat.alive():
            last = self._peers.last_result()
        if last is None:
            return
        self._compared = self._compared or last.published
        self._failures = 0 if last.published else self._failures + 1
        if self._max_failures and self._failures >= self._max_failures:
            raise SavesFail(
                f"the last {self._failures} saves failed (checkpoint.max_failures={self._max_failures}); "
                f"the last one: {self._why or 'on another rank'}"
            )

    # -- loading

    def load(
        self,
        state: Mapping[str, Any],
        *,
        strict: bool = False,
        only: Sequence[str] = (),
        accept: Callable[[Loaded], None] = lambda _: None,
    ) -> Loaded | None:
        """Restores the newest checkpoint or copy in memory, all of it, into `state`; each rank reads what it needs.

        | the checkpoint | result |
        |---|---|
        | is torn, truncated, changed or not ours | logged (event `passed_over`), renamed, kept; an older one is used |
        | cannot be read now | retried for `read_timeout` seconds, then CannotRead |
        | is sound but does not fit | Misfit, since the user must decide whether to do without it |

        Args:
            state: as for `save`. Objects with `state_dict` and `load_state_dict` get what their state_dict returned at
                the save; an optimizer need not have done a step. In dicts there must be a tensor wherever the
                checkpoint has one, of the same type and shape, which is filled; values other than tensors are
                returned (`Loaded.values`).
            strict: whether to refuse a checkpoint of another world size or torch version, since results could differ.
            only: dotted names (`model`, `nested.optimizer`) of what is loaded; empty: everything. Nothing else changes,
                and what is left out is logged.
            accept: is called on each rank with what will be returned, before anything changes; an error that it raises
                on any rank refuses the checkpoint on all.

        Returns:
            What the checkpoint has besides tensors. None if there is no checkpoint; also if none is sound and
            `start_over` is set.

        Raises:
            Misfit: the checkpoint is of another model or configuration, or has something that `state` lacks (the text
                lists the differences), or is of a newer format. Nothing was changed.
            CannotRead: the folder or a checkpoint cannot be read now.
            CheckpointError: others can write to the folder; or there are checkpoints and none is sound; or an object
                does not take its state, and part of the state may be loaded.
        """
        self.wait()
        self._settle()
        with heartbeat.alive():
            if self._memory is not None:
                self._memory.wait()
            wanted, fault = None, None
            try:
                wanted = LoadTarget(state, only)
            except Exception as error:  # the other ranks must not wait for this one
                fault = error
            try:
                everyone = self._names(lambda: _tensors_of(wanted, fault))
            except CheckpointError as error:
                raise error from fault
            assert wanted is not None
            return self._load(wanted, everyone, strict, accept)

    def _load(
        self, wanted: LoadTarget, everyone: Collection[str], strict: bool, accept: Callable[[Loaded], None]
    ) -> Loaded | None:  # fmt: skip
        passed_over: list[str] = []
        left: list[tuple[Path, Manifest]] = []  # on rank 0
        changed = False  # whether some tensors of the state may have changed

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
                if manifest.kind != checkpoints.DCP:  # those have no identity
                    files.refuse(path, checkpoints.differences(manifest.identity, self._identity))
                if strict:
                    files.refuse(path, self._doubts(manifest))
            return path, manifest, problems

        began = time.perf_counter()
        passed_over += self._peers.on_first(begin)
        while True:
            chosen = self._peers.on_first(choose)
            if self._memory is not None and self._memory.loads and not strict:
                least = 0 if chosen is None else chosen[1].step + 1
                found, filled = self._from_memory(self._memory, wanted, everyone, least, accept, passed_over)
                changed = changed or filled
                if found is not None:
                    if chosen is not None:
                        self._folder.continue_from(chosen[1])
                    return found
            if chosen is None:
                break
            path, manifest, problems = chosen
            opened = Opened(path, manifest, wanted, everyone, self._peers, self._read_timeout)
            problems = problems or self._damages(path, manifest)
            if not problems:
                problems, loaded = self._open(opened, wanted, accept, passed_over)
                if loaded is not None:
                    changed = True
                    problems = self._problems(opened.read)
                if problems and self._verify and manifest.torch != torch.__version__:
                    raise Misfit(
                        f"{path} is as it was written (its checksums are right), and torch {torch.__version__} cannot "
                        f"read it: use torch {manifest.torch}, which wrote it ({'; '.join(problems)})"
                    )
            if not problems:
                assert loaded is not None
                self._peers.on_all(opened.restore)
                if wanted.only and self._first:
                    log_line(f"only {', '.join(wanted.only)} loaded from {path.name}: all else is left out", sys.stdout)
                self._folder.continue_from(manifest)
                if self._memory is not None:
                    self._memory.keep_only(None)
                self._report_restored(loaded, began)
                return loaded
            passed_over.append(self._peers.on_first(partial(self._pass_over, path, problems, manifest)))
        self._peers.on_first(partial(self._require_nothing_lost, passed_over, changed))
        return None

    def _from_memory(
        self, memory: MemoryCheckpoints, wanted: LoadTarget, everyone: Collection[str], least: int,
        accept: Callable[[Loaded], None], passed_over: list[str],
    ) -> tuple[Loaded | None, bool]:  # fmt: skip
        # Returns None if there are no sound copies of the step `least` or a later one; and whether tensors may have
        # changed nevertheless
        began, changed = time.perf_counter(), False
        while True:
            source, problems = memory.find(least)
            memory.report(problems)
            if source is None:
                return None, changed
            if problems := memory.fetch(source):
                memory.report(problems, source.step)
                continue
            opened = InMemory(memory, source, wanted, everyone)
            try:
                problems, loaded = self._open(opened, wanted, accept, passed_over)
                if loaded is not None:
                    changed = True
                    problems = self._problems(opened.read)
            except CheckpointError as error:  # the same on all ranks; the disk may be of use
                problems = [str(error)]
            if not problems:
                assert loaded is not None
                self._peers.on_all(opened.restore)
                memory.keep_only(source)
                self._report_restored(loaded, began, received=source.moved)
                return loaded, changed
            memory.report(problems, source.step)
            memory.reject(source)

    def _report_restored(self, loaded: Loaded, began: float, *, received: int = 0) -> None:
        self._events(
            events.Restored(
                step=loaded.step, memory=loaded.path is None, redone=rank_report.redone(loaded.step),
                seconds=round(time.perf_counter() - began, 4), received=received,
            )
        )  # fmt: skip

    def _open(
        self, opened: Opened, wanted: LoadTarget, accept: Callable[[Loaded], None], passed_over: Sequence[str]
    ) -> tuple[list[str], Loaded | None]:
        # Returns what is wrong with it, or what `load` returns once its tensors are read; raises Misfit
        def names() -> list[str]:
            opened.open()
            return [*opened.tensors, *wanted.roots]

        try:
            fills = self._names(names)
        except Damaged as error:
            return [str(error)], None
        loaded = opened.loaded(passed_over)
        self._peers.on_all(partial(_accept, opened, fills, loaded, accept))
        return [], loaded

    def _names(self, names: Callable[[], Collection[str]]) -> set[str]:
        # Returns the names of all ranks; an error on one rank is raised on all
        own: list[str] = []

        def digest() -> bytes:
            own.extend(names())
            return hashlib.sha256("\n".join(sorted(own)).encode()).digest()

        digests = self._peers.on_all(digest)
        if len(set(digests)) == 1:
            return set(own)
        first = (
            digests.index(digests[self._peers.rank]) == self._peers.rank
        )  # of those with the same names one sends them
        return set().union(*self._peers.on_all(lambda: own if first else []))

    def _pass_over(self, path: Path, problems: list[str], manifest: Manifest | None = None) -> str:
        line = f"{path.name}: {'; '.join(problems)}"
        done = self._folder.quarantine(path, problems, manifest)
        log_line(f"a checkpoint is passed over: {line}; {done}", sys.stdout)
        step = manifest.step if manifest else checkpoints.step_of(path.name)
        self._events(events.PassedOver(checkpoint=path.name, step=step, problems=tuple(problems)))
        return line

    def _require_nothing_lost(self, passed_over: list[str], changed: bool) -> None:
        aside = self._folder.quarantined()
        if not changed and (self._start_over or not (passed_over or aside)):
            return
        raise CheckpointError(
            f"no checkpoint in {self.folder} is sound:\n"
            + "".join(f"  {line}\n" for line in passed_over)
            + "".join(f"  kept: {name}\n" for name in aside)
            + "`checkpoint verify` shows what is wrong with each. To start from the beginning nevertheless set "
            "checkpoint.start_over=true, or another checkpoint.dir"
        )

    def _doubts(self, manifest: Manifest) -> list[str]:
        now = {"world_size": self._peers.world_size, "torch": torch.__version__}
        return checkpoints.differences({"world_size": manifest.world_size, "torch": manifest.torch}, now)

    def _damages(self, path: Path, manifest: Manifest) -> list[str]:
        if not self._verify:
            return []
        rank, world_size = self._peers.rank, self._peers.world_size

        def look() -> list[str]:
            mine = checkpoints.shares(checkpoints.blocks(manifest), world_size)[rank]
            return checkpoints.wrong_checksums(path, mine, self._threads, self._read_timeout)

        return self._problems(look)

    def _problems(self, look: Callable[[], list[str]]) -> list[str]:
        try:
            return [problem for found in self._peers.on_all(look) for problem in found]
        except Damaged as error:
            return [str(error)]


def _tensors_of(wanted: LoadTarget | None, fault: Exception | None) -> Collection[str]:
    if wanted is None:
        assert fault is not None
        raise fault
    return wanted.tensors


def _accept(opened: Opened, everyone: set[str], loaded: Loaded, accept: Callable[[Loaded], None]) -> None:
    opened.require_fit(everyone)
    accept(loaded)


def _before_optimizers(checkpointer: Checkpointer) -> Callable[..., None]:
    known = weakref.ref(checkpointer)

    def hook(*_: object) -> None:
        if (alive := known()) is not None:
            alive.staged()

    return hook

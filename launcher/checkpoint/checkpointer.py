"""Checkpoints of a training: saved in the background, published whole, loaded at any number of ranks.

A save goes through these steps; all of them run in a thread of their own, so that training goes on meanwhile:

    1. the ranks agree on what is saved, and rank 0 makes a fresh temporary folder
       (and writes state in it meanwhile, if it is small)
    2. each rank copies what it will write (`staged` waits for this)
    3. each rank writes its files; on disk, with checksums
    4. rank 0 writes the manifest, asks the fence, renames the folder into place, removes what is not kept
    5. all ranks learn how it went; see saving.py

The format is that of format.py. Large or sharded state is written by torch.distributed.checkpoint; of
what is the same on all ranks each writes a part. Small state without a divided tensor is one file of rank 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from launcher.checkpoint import files
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.agreement import Peers, SavesFail
from launcher.checkpoint.folder import Folder, Retention
from launcher.checkpoint.format import CheckpointError, Damaged, Manifest, Misfit, SaveFailed
from launcher.checkpoint.loading import Loaded, Opened
from launcher.checkpoint.saving import Outcome, Save, Writer
from launcher.checkpoint.staging import Staging
from launcher.checkpoint.state import Content, merge, plain, python_number
from launcher.checkpoint.stateful import expanded, restore
from launcher.runs import events
from launcher.runs.event_writer import Events, current_attempt
from launcher.worker import heartbeat, threads
from launcher.worker.process_group import Env

__all__ = ["Checkpointer", "Loaded", "merge"]


class Checkpointer:
    """Saves and loads the checkpoints of one folder. All ranks make one and call its methods in the same order."""

    def __init__(
        self,
        folder: Path,
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
    ) -> None:
        """Makes the folder, and removes what killed saves of this attempt and of earlier ones have left there.

        Args:
            folder: where the checkpoints are; no one else may be able to write there.
            env: this rank.
            identity: facts (JSON types) that must be equal for the state to fit: the model's shape, the optimizer, the
                data set. What differs is listed when a checkpoint is refused for it.
            keep: newest sound checkpoints that are kept; 1 or more.
            best: metric by which one more is kept.
            best_is: which value of it is the best: `max` or `min`.
            background: write while training goes on.
            verify: compare checksums when loading.
            attempt: number of the attempt.
            fence: called on rank 0 before a checkpoint is published; raises if this attempt has lost the run.
            read_timeout: seconds for which a read that fails is tried again.
            start_over: begin anew where there are checkpoints and none of them is sound, instead of raising.
            timeout: seconds for which the slowest rank is awaited in a save or a load.
            max_failures: saves in a row that may fail; then SavesFail is raised. 0: any number.
            check_replicas: at the first save compare what ranks hold under one name, and refuse what differs.

        Raises:
            CheckpointError: the folder cannot be made or written to, or others can write to it.
            Unavailable: the file system gives an error that may pass.
        """
        if keep < 1 or best_is not in ("max", "min"):
            raise ValueError(f"keep={keep}, best_is={best_is!r}: keep at least 1; best_is is max or min")
        self.folder = folder
        self.cost = 0.0  # seconds from the call of the slowest save until it was published
        self._identity = _json(identity, "identity")
        self._folder = Folder(folder, attempt, Retention(keep, best, best_is), read_timeout)
        self._read_timeout, self._start_over = read_timeout, start_over
        # MPI's ranks have no store to make another group with, and one group is not for two threads.
        own_group = env.world_size > 1 and env.backend != "mpi"
        self._background = background and (own_group or env.world_size == 1)
        self._peers = Peers(env.rank, env.world_size, timeout, own_group=own_group)
        self._verify, self._first = verify, env.rank == 0
        self._check_replicas, self._compared = check_replicas, False
        self._max_failures, self._failures, self._why = max_failures, 0, ""
        self._threads = min(8, threads.cores(os.environ, env.local_world_size))
        self._events = Events(current_attempt() if self._first else None, "checkpoint")
        self._writer = Writer(self._folder, self._peers, self._identity, fence, self._events)
        self._staging = Staging()
        self._save: Save | None = None
        self._final: str | None = None  # why no later save can do better
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
        """Saves the state as it is now. All ranks must call it with the same step.

        In the background, large tensors are still being copied when this returns: call `staged` before any of them
        changes. Optimizers of torch.optim do so by themselves before each step, and tensors of up to 1 MiB (a batch
        norm's, say) are copied at once, as long as they have no more than 16 MiB together.

        A save that fails is told (with all ranks that failed, and as the event `save_failed`) and does not end the
        training, unless `wait`, or it is one of `max_failures` in a row; the earlier checkpoints stay.

        Args:
            step: steps of the run that are done.
            state: nested dicts of tensors, DTensors, numbers, text, and objects with a `state_dict` and a
                `load_state_dict` (models, optimizers). What several ranks have under one name must be the
                same on all of them; a name may be there on some ranks only.
            rank_state: this rank's own (random number generators): tensors, numbers, text, lists.
            extra: small facts in JSON types (the sample cursor, the epoch).
            metrics: of the model as it is now.
            wait: return when it is published.

        Returns:
            Seconds that training was kept waiting.

        Raises:
            SaveFailed: it failed, and `wait` (or not `background`).
            SavesFail: so have the last `max_failures`.
            CheckpointError: an earlier save found that the attempt has lost the run, or that the state cannot be saved.
        """
        began = time.perf_counter()
        self.wait()
        self._settle()
        still = wait or not self._background
        save = Save(step, {}, {}, check_values=self._check_replicas, started=began)
        try:
            save.extra, save.metrics = _json(extra or {}, "extra"), _json(metrics or {}, "metrics")
            save.content = Content.of(expanded(state)[0])
            save.rank_state = None if rank_state is None else plain(dict(rank_state), "rank_state")
            save.compare = self._check_replicas and not self._compared
            save.copying = self._staging.start(save.content.tensors, still=still)
        except (TypeError, ValueError) as error:
            save.fault, save.final = str(error), True
        except Exception as error:  # no memory, say: told to the others, who would wait for this rank
            save.fault = files.words(error)
        self._save = save
        if still:
            with heartbeat.alive():
                self._run(save)
            self._save = None
            if save.failure is not None:
                raise save.failure
        else:
            # Not a daemon: a process that ends completes it first.
            save.thread = threading.Thread(target=self._run, args=(save,), name="checkpoint")
            save.thread.start()
        save.blocked += time.perf_counter() - began
        return time.perf_counter() - began

    def staged(self) -> float:
        """Waits until the state of the last save may change; returns the seconds that took."""
        save = self._save
        if save is None or save.staged.is_set():
            return 0.0
        began = time.perf_counter()
        save.staged.wait()
        waited = time.perf_counter() - began
        save.blocked += waited
        return waited

    def wait(self) -> None:
        """Waits until the last save is published, or has failed (which has been told by then).

        Raises:
            CheckpointError: no later save can do better: the attempt has lost the run, or the state cannot be saved.
        """
        save, self._save = self._save, None
        if save is not None and save.thread is not None and save.thread.is_alive():
            with heartbeat.alive():
                save.thread.join()
        self._folder.wait()
        if self._final is not None:
            raise CheckpointError(self._final)

    def close(self) -> None:
        """Waits for the last save and gives back what was taken; only `wait`'s errors."""
        try:
            self.wait()
        finally:
            self._hook.remove()
            self._staging.forget_all_but(())
            self._peers.close()

    def _run(self, save: Save) -> None:
        """The whole of a save; never raises."""
        broken = False
        try:
            outcome = self._writer.write(save)
        except Exception as error:  # the group failed: what other ranks have seen is known when all are through
            broken = True
            outcome = Outcome()
            if not save.published:
                outcome = Outcome(failure=files.words(error), exception=type(error).__name__)
        finally:
            save.staged.set()
        if outcome.failure is None:
            self.cost = max(self.cost, outcome.seconds)
        else:
            told = f"the checkpoint of step {save.step} was not saved: {outcome.failure}"
            save.failure = SaveFailed(told)
            self._why = outcome.failure
            if outcome.final:
                self._final = told
            if self._first or broken:
                _say(told if self._first else f"rank {self._peers.rank}: {told}")
            if self._first:
                self._events(
                    events.SaveFailed(
                        step=save.step, exception=outcome.exception, error=outcome.failure, final=outcome.final
                    )
                )  # fmt: skip
        self._peers.ended(published=outcome.failure is None, broken=broken)

    def _settle(self) -> None:
        """What all ranks do before the next save: they agree on how the last one ended.

        Raises:
            SavesFail: as many in a row have failed as may.
        """
        with heartbeat.alive():
            last = self._peers.settle()
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

    def load(self, state: Mapping[str, Any], *, strict: bool = False) -> Loaded | None:
        """Reads the checkpoint that was published last into the tensors of `state`, on each rank its own part.

        | a checkpoint | what is done |
        |---|---|
        | is torn, cut short, changed or not ours | named (event `passed_over`), renamed, kept; the one before is used |
        | cannot be read now | tried again for `read_timeout` seconds, then Unavailable |
        | is sound and does not fit | refused: going on without it would not be what its owner means |

        Top-level parts of the state that `state` does not have are left out.

        Args:
            state: nested dicts with a tensor in each place where the checkpoint has one, of the same type and shape.
                Objects with a `state_dict` and a `load_state_dict` are given their whole state back.
            strict: refuse a checkpoint of another world size or another version of torch: the result could differ.

        Returns:
            What belongs to it; None: there is no checkpoint, or none that can be used and `start_over`.

        Raises:
            Misfit: of another model or configuration (what differs is listed), or of a newer format. No tensor has
                been changed.
            Unavailable: the folder or a checkpoint cannot be read now. Nothing was changed.
            CheckpointError: others can write to it, or there are checkpoints and none of them is sound.
        """
        self.wait()
        self._settle()
        whole, objects = expanded(state)
        with heartbeat.alive():
            loaded = self._load(Content.of(whole), strict)
        if loaded is not None:
            restore(objects, whole, loaded.values)
        return loaded

    def _load(self, content: Content, strict: bool) -> Loaded | None:
        passed_over: list[str] = []
        left: list[tuple[Path, Manifest]] = []  # on rank 0
        changed = False  # some tensors of the state may be

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
                if manifest.kind != checkpoints.DCP:  # of those nobody has said what they are of
                    files.refuse(path, checkpoints.differences(manifest.identity, self._identity))
                if strict:
                    files.refuse(path, self._doubts(manifest))
            return path, manifest, problems

        everyone = self._names(content)
        passed_over += self._peers.on_first(begin)
        while (chosen := self._peers.on_first(choose)) is not None:
            path, manifest, problems = chosen
            opened = Opened(path, manifest, content, everyone, self._peers, self._read_timeout)
            problems = problems or self._damages(path, manifest)
            if not problems:
                problems = self._problems(opened.open)
                if not problems:
                    changed = True
                    problems = self._problems(opened.read)
                if problems and self._verify and manifest.torch != torch.__version__:
                    raise Misfit(
                        f"{path} is as it was written (its checksums are right), and torch {torch.__version__} cannot "
                        f"read it: use torch {manifest.torch}, which wrote it ({'; '.join(problems)})"
                    )
            if not problems:
                self._folder.went_on_from(manifest)
                return Loaded(
                    manifest.step, path, manifest.extra, manifest.metrics, opened.rank_state, manifest.world_size,
                    opened.values, tuple(passed_over),
                )  # fmt: skip
            passed_over.append(self._peers.on_first(partial(self._pass_over, path, problems, manifest)))
        self._peers.on_first(partial(self._require_nothing_lost, passed_over, changed))
        return None

    def _names(self, content: Content) -> set[str]:
        """The names of the tensors of all ranks: of a pipeline each has those of its stage."""
        if len(set(self._peers.on_all(content.digest))) == 1:
            return set(content.tensors)
        return set().union(*self._peers.on_all(lambda: list(content.tensors)))

    def _pass_over(self, path: Path, problems: list[str], manifest: Manifest | None = None) -> str:
        """Rank 0: keeps one that is wrong under another name, and tells."""
        line = f"{path.name}: {'; '.join(problems)}"
        done = self._folder.set_aside(path, problems, manifest)
        _say(f"a checkpoint is passed over: {line}; {done}")
        step = manifest.step if manifest else checkpoints.step_of(path.name)
        self._events(events.PassedOver(checkpoint=path.name, step=step, problems=tuple(problems)))
        return line

    def _require_nothing_lost(self, passed_over: list[str], changed: bool) -> None:
        """Rank 0: a training that has saved does not begin anew because nothing of that can be used."""
        aside = self._folder.aside()
        if (not passed_over and not aside) or (self._start_over and not changed):
            return
        raise CheckpointError(
            f"no checkpoint in {self.folder} is sound:\n"
            + "".join(f"  {line}\n" for line in passed_over)
            + "".join(f"  kept: {name}\n" for name in aside)
            + "`checkpoint verify` tells what is wrong with each. To begin anew nevertheless set "
            "checkpoint.start_over=true, or another checkpoint.dir"
        )

    def _doubts(self, manifest: Manifest) -> list[str]:
        """Why the result could differ from that of a run that was never interrupted."""
        now = {"world_size": self._peers.world_size, "torch": torch.__version__}
        return checkpoints.differences({"world_size": manifest.world_size, "torch": manifest.torch}, now)

    def _damages(self, path: Path, manifest: Manifest) -> list[str]:
        """What all ranks together find wrong with the data, each looking at its share."""
        if not self._verify:
            return []
        rank, world_size = self._peers.rank, self._peers.world_size

        def look() -> list[str]:
            mine = checkpoints.share(checkpoints.blocks(manifest), rank, world_size)
            return checkpoints.wrong_checksums(path, mine, self._threads, self._read_timeout)

        return self._problems(look)

    def _problems(self, look: Callable[[], list[str]]) -> list[str]:
        """What the function tells on all ranks, and what is wrong with the checkpoint on any of them."""
        try:
            return [problem for told in self._peers.on_all(look) for problem in told]
        except Damaged as error:
            return [str(error)]


def _before_optimizers(checkpointer: Checkpointer) -> Callable[..., None]:
    known = weakref.ref(checkpointer)

    def hook(*_: object) -> None:
        if (alive := known()) is not None:
            alive.staged()

    return hook


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the log may be on the disk that is full
        print(f"launcher: {text}", flush=True)


def _json(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """As it comes back from JSON, so that it can be compared with what was saved.

    Raises:
        TypeError: it holds something else than JSON types.
    """
    try:
        return dict(json.loads(json.dumps(dict(values), default=python_number)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of JSON types: {error}") from None

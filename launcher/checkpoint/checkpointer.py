"""Checkpoints of a training: saved in the background, published whole, loaded at any number of ranks.

A save goes through these steps; all of them run in a thread of their own, so that training goes on meanwhile:

    1. the ranks agree on what is saved, and rank 0 makes a fresh temporary folder
       (and writes state in it meanwhile, if it is small)
    2. each rank copies what it will write (`staged` waits for this)
    3. each rank writes its files; on disk, with checksums
    4. rank 0 writes the manifest, asks the fence, renames the folder into place, removes what is not kept
    5. all ranks learn how it went

The format is that of format.py. Large or sharded state is written by torch.distributed.checkpoint; of
what is the same on all ranks each writes a part. Small state without a divided tensor is one file of rank 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from launcher import __version__
from launcher.checkpoint import files
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.agreement import Peers
from launcher.checkpoint.folder import Folder, Retention, fsync_folder
from launcher.checkpoint.format import (
    MANIFEST,
    RANKS_FILE,
    SHARDED,
    SINGLE,
    STATE_FILE,
    VALUES_FILE,
    CheckpointError,
    Damaged,
    File,
    Manifest,
    SaveFailed,
)
from launcher.checkpoint.loading import Loaded, Opened
from launcher.checkpoint.staging import Copying, Staging
from launcher.checkpoint.state import Content, merge, owners, size_of
from launcher.node import pulse
from launcher.node.events import Events, current_attempt
from launcher.node.process_group import Env
from launcher.worker.torch_compat import DTensor, destroy_without_gil

__all__ = ["Checkpointer", "Loaded", "merge"]

SMALL = 50_000_000  # bytes up to which state that is the same on all ranks is one file of rank 0
SLACK = 1 << 20  # bytes beyond the tensors for which there must be space
TIMEOUT = timedelta(hours=1)  # in which the slowest rank must have written its part


@dataclass
class _Save:
    """One save, from the call to its end."""

    step: int
    extra: dict[str, Any]
    metrics: dict[str, float]
    content: Content | None = None
    copying: Copying | None = None
    rank_state: dict[str, Any] | None = None
    fault: str | None = None  # what is wrong with what the caller gave
    started: float = field(default_factory=time.perf_counter)
    blocked: float = 0.0
    staged: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    published: bool = False
    failure: SaveFailed | None = None


@dataclass(frozen=True)
class _Offer:
    """What one rank would save."""

    step: int
    size: int
    sharded: bool
    digest: str
    rank_state: dict[str, Any] | None
    fault: str | None


@dataclass(frozen=True)
class _Agreement:
    """What all ranks do."""

    kind: str
    temporary: str
    same: bool  # all ranks hold the same tensors


@dataclass(frozen=True)
class _Outcome:
    seconds: float = 0.0
    size: int = 0
    failure: str | None = None
    final: bool = False  # no later save can do better


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
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if own_group else None
        destroy_without_gil(self._group)
        self._peers = Peers(env.rank, env.world_size, self._group)
        self._verify, self._attempt, self._fence = verify, attempt, fence
        self._first = env.rank == 0
        self._threads = max(1, min(8, len(os.sched_getaffinity(0)) // env.local_world_size))
        self._events = Events(current_attempt() if self._first else None, "checkpoint")
        self._staging = Staging()
        self._save: _Save | None = None
        self._plain = False  # the state is known to be readable without pickle
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

        A save that fails is told (on rank 0, and as the event `save_failed`) and does not end the training, unless
        `wait`; the earlier checkpoints stay.

        Args:
            step: steps of the run that are done.
            state: nested dicts of tensors, DTensors, numbers, text; what is no tensor is taken from rank 0.
            rank_state: this rank's own (random number generators): tensors, numbers, text, lists.
            extra: small facts in JSON types (the sample cursor, the epoch).
            metrics: of the model as it is now.
            wait: return when it is published.

        Returns:
            Seconds that training was kept waiting.

        Raises:
            SaveFailed: it failed, and `wait` (or not `background`).
            CheckpointError: an earlier save found that the attempt has lost the run, or that the state cannot be saved.
        """
        began = time.perf_counter()
        self.wait()
        still = wait or not self._background
        save = _Save(step, {}, {}, started=began)
        try:
            save.extra, save.metrics = _json(extra or {}, "extra"), _json(metrics or {}, "metrics")
            save.content = Content.of(state)
            save.rank_state = None if rank_state is None else dict(rank_state)
            if not self._plain:  # a later one is of the same kind
                files.require_plain(save.content.values, "state")
                files.require_plain(save.rank_state, "rank_state")
                self._plain = True
            save.copying = self._staging.start(save.content.tensors, still=still)
        except (TypeError, ValueError) as error:
            save.fault = str(error)
        self._save = save
        if still:
            with pulse.alive():
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
            with pulse.alive():
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
            if self._group is not None and dist.is_initialized():
                dist.destroy_process_group(self._group)
            self._group = None

    def _run(self, save: _Save) -> None:
        """The whole of a save; never raises."""
        try:
            outcome = self._write(save)
        except Exception as error:  # a lost rank breaks the group; then every rank is for itself
            outcome = _Outcome() if save.published else _Outcome(failure=files.words(error))
        finally:
            save.staged.set()
        if outcome.failure is None:
            self.cost = max(self.cost, outcome.seconds)
            return
        told = f"the checkpoint of step {save.step} was not saved: {outcome.failure}"
        save.failure = SaveFailed(told)
        if outcome.final:
            self._final = told
        if self._first:
            _say(told)
            self._events("save_failed", step=save.step, reason=outcome.failure)

    def _write(self, save: _Save) -> _Outcome:
        temporary = self.folder / checkpoints.temporary(save.step, self._attempt)  # rank 0's counts
        early = self._begin(save, temporary)
        try:
            offers = self._peers.gather(self._offer(save))
            agreement = self._peers.on_first(lambda: self._agree(save, offers, temporary, early))
            temporary = self.folder / agreement.temporary
            if agreement.kind == SINGLE:
                if not self._first:
                    save.staged.set()
                return self._peers.on_first(lambda: self._write_single(save, temporary, offers, early))
            written = self._peers.on_all(lambda: self._write_sharded(save, temporary, agreement.same))
            return self._peers.on_first(lambda: self._conclude(save, temporary, _joined(written)))
        except CheckpointError as error:
            return _Outcome(failure=str(error), final=isinstance(error, _Final))
        finally:
            if early is not None:
                with contextlib.suppress(Exception):  # told by _write_single
                    early.close()
            if self._first:
                shutil.rmtree(temporary, ignore_errors=True)

    def _begin(self, save: _Save, temporary: Path) -> files.SmallFile | None:
        """Rank 0 starts to write small state of its own accord: the ranks nearly always agree."""
        content, copying = save.content, save.copying
        if not self._first or content is None or copying is None or content.sharded or content.size > SMALL:
            return None

        def make() -> dict[str, Any]:
            self._require_space(content.size + SLACK)
            temporary.mkdir(mode=0o700)
            tensors = copying.finish(list(content.tensors))
            save.staged.set()
            return {"tensors": tensors, "paths": content.paths, "values": content.values}

        return files.SmallFile(temporary / STATE_FILE, make, alone=save.thread is None)

    def _offer(self, save: _Save) -> _Offer:
        content = save.content
        if content is None:
            return _Offer(save.step, 0, False, "", None, save.fault)
        return _Offer(
            save.step, content.size, content.sharded, content.digest(),
            None if content.sharded or content.size > SMALL else save.rank_state, save.fault,
        )  # fmt: skip

    def _agree(self, save: _Save, offers: list[_Offer], temporary: Path, early: files.SmallFile | None) -> _Agreement:
        """Rank 0: looks whether the ranks save the same, and for space, and makes the temporary folder."""
        for rank, offer in enumerate(offers):
            if offer.fault is not None:
                raise _Final(f"rank {rank}: {offer.fault}")
            if offer.step != save.step:
                raise CheckpointError(f"rank {rank} saves step {offer.step}, and rank 0 step {save.step}")
        same = len({offer.digest for offer in offers}) == 1
        if same and offers[0].size <= SMALL and not any(offer.sharded for offer in offers):
            return _Agreement(SINGLE, temporary.name, same)
        self._require_space((offers[0].size if same else sum(offer.size for offer in offers)) + SLACK)
        if early is not None:  # begun in vain: other ranks hold other tensors
            with contextlib.suppress(Exception):
                early.close()
        temporary.mkdir(mode=0o700, exist_ok=True)
        (temporary / STATE_FILE).unlink(missing_ok=True)
        return _Agreement(SHARDED, temporary.name, same)

    def _require_space(self, needed: int) -> None:
        free = _free(self.folder)
        if free < needed:
            raise CheckpointError(f"no space in {self.folder}: {needed} bytes are needed, and {free} are free")

    def _write_single(
        self, save: _Save, temporary: Path, offers: list[_Offer], early: files.SmallFile | None
    ) -> _Outcome:
        """Rank 0: what has been begun, and the ranks' own states."""
        assert early is not None
        written = {STATE_FILE: early.file()}
        if any(offer.rank_state is not None for offer in offers):
            files.save_file(temporary / RANKS_FILE, [offer.rank_state for offer in offers], written)
        manifest = self._describe(save, temporary, SINGLE, written)
        early.close()
        return self._publish(save, temporary, manifest)

    def _write_sharded(self, save: _Save, temporary: Path, same: bool) -> dict[str, File]:
        """This rank's part: divided tensors, its share of the others, its own state."""
        assert save.content is not None and save.copying is not None
        peers, content = self._peers, save.content
        written: dict[str, File] = {}
        mine = list(content.tensors)
        if same and peers.many:
            whole = {name: size_of(tensor) for name, tensor in content.tensors.items() if _is_whole(tensor)}
            owner = owners(whole, peers.world_size)
            mine = [name for name in content.tensors if owner.get(name, peers.rank) == peers.rank]
        tensors = save.copying.finish(mine)
        save.staged.set()
        error: Exception | None = None
        try:
            if save.rank_state is not None:
                files.save_file(temporary / f"rank-{peers.rank}.pt", save.rank_state, written)
            if self._first:
                rest = {"paths": content.paths, "values": content.values}
                files.save_file(temporary / VALUES_FILE, rest, written)
        except Exception as failure:  # the others are waiting for this rank in what follows
            error = failure
        files.save_sharded(temporary, tensors, peers.group, peers.many, written)
        if error is not None:
            raise error
        return written

    def _conclude(self, save: _Save, temporary: Path, written: dict[str, File]) -> _Outcome:
        """Rank 0: what follows when all ranks have written."""
        return self._publish(save, temporary, self._describe(save, temporary, SHARDED, written))

    def _describe(self, save: _Save, temporary: Path, kind: str, written: dict[str, File]) -> Manifest:
        """Rank 0: the manifest, on disk."""
        manifest = Manifest(
            step=save.step, kind=kind, world_size=self._peers.world_size, attempt=self._attempt,
            identity=self._identity, extra=save.extra, metrics=save.metrics, files=written,
            torch=torch.__version__, launcher=__version__,
        )  # fmt: skip
        manifest = self._folder.describe(manifest)
        problems = checkpoints.wrong_sizes(temporary, manifest)
        if problems:
            raise CheckpointError("; ".join(problems))
        with files.hashed(temporary / MANIFEST, {}) as stream:
            stream.write(manifest.text().encode())
        return manifest

    def _publish(self, save: _Save, temporary: Path, manifest: Manifest) -> _Outcome:
        """Rank 0: makes a checkpoint of the temporary folder."""
        fsync_folder(temporary)
        if self._fence is not None:
            try:
                self._fence()
            except OSError:  # nobody can tell; it may be otherwise at the next save
                raise
            except Exception as error:
                raise _Final(str(error)) from None
        path = self._folder.publish(temporary, manifest)
        save.published = True
        seconds = time.perf_counter() - save.started
        blocked = save.blocked if save.thread is not None else seconds
        self._events(
            "saved", step=save.step, seconds=round(seconds, 4), blocked=round(blocked, 4), bytes=manifest.size,
            checkpoint=str(path),
        )  # fmt: skip
        return _Outcome(seconds, manifest.size)

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
        with pulse.alive():
            return self._load(Content.of(state), strict)

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
                files.refuse(path, checkpoints.differences(manifest.identity, self._identity))
                if strict:
                    files.refuse(path, self._doubts(manifest))
            return path, manifest, problems

        passed_over += self._peers.on_first(begin)
        while (chosen := self._peers.on_first(choose)) is not None:
            path, manifest, problems = chosen
            opened = Opened(path, manifest, content, self._peers, self._read_timeout)
            problems = problems or self._damages(path, manifest) or self._problems(opened.open)
            if not problems:
                changed = True
                problems = self._problems(opened.read)
            if not problems:
                self._folder.went_on_from(manifest)
                return Loaded(
                    manifest.step, path, manifest.extra, manifest.metrics, opened.rank_state, manifest.world_size,
                    opened.values, tuple(passed_over),
                )  # fmt: skip
            passed_over.append(self._peers.on_first(partial(self._pass_over, path, problems, manifest)))
        self._peers.on_first(partial(self._require_nothing_lost, passed_over, changed))
        return None

    def _pass_over(self, path: Path, problems: list[str], manifest: Manifest | None = None) -> str:
        """Rank 0: keeps one that is wrong under another name, and tells."""
        line = f"{path.name}: {'; '.join(problems)}"
        done = self._folder.set_aside(path, problems, manifest)
        _say(f"a checkpoint is passed over: {line}; {done}")
        self._events("passed_over", reason=line)
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


class _Final(CheckpointError):
    """Later saves would fail in the same way."""


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
        return dict(json.loads(json.dumps(dict(values))))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of JSON types: {error}") from None


def _free(folder: Path) -> int:
    """Bytes that may still be written."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _is_whole(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, DTensor)


def _joined(written: list[dict[str, File]]) -> dict[str, File]:
    return {name: file for each in written for name, file in each.items()}

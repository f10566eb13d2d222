"""Saves: takes a rank's state, and brings it by local and collective steps to a published checkpoint.

Each step of `Writer.write` is either local or collective. If a local step fails on one rank, all ranks get its error
before the next collective step. So no rank waits in a collective for a rank that has failed.

| step | on | what it does |
|---|---|---|
| offer | each rank | describes to rank 0 what the rank would save, and what is wrong with it |
| agree | rank 0 | compares the offers, chooses the kind of checkpoint, checks space, makes a temporary folder |
| compare | all ranks together | at the first save of a process: refuse different tensors of ranks under one name |
| write | each rank | copies its tensors (then training may change the state), writes them and its rank_state |
| publish | rank 0 | writes metadata and manifest, calls the fence, renames the folder |

With pipeline parallelism ranks have different tensors. Ranks that would save the same are a group, which has the
number of its lowest rank; that rank tells rank 0 what the group has, so that what is sent grows with the groups.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from launcher import __version__
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import state, storage
from launcher.checkpoint.collectives import Peers, combined_error, one_line
from launcher.checkpoint.folder import CheckpointFolder, fsync_folder
from launcher.checkpoint.format import CheckpointError, File, Manifest
from launcher.checkpoint.loading import expanded
from launcher.checkpoint.state import Content, facts, local_part, owned, plain, size_of
from launcher.runs import lease_and_locks
from launcher.runs.directory import Events
from launcher.runs.events import Saved
from launcher.torch_compat import DTensor, with_local
from launcher.worker import heartbeat

# bytes; a state of at most this size that is the same on all ranks is one file, written by rank 0. The rank_states of
# all ranks together may have this size, too: they are another file, all of which each rank reads
SMALL = 50_000_000
SLACK = 1 << 20  # bytes of free space required beyond the tensors
AT_ONCE = 1 << 20  # bytes; tensors of at most this size are copied before `start` returns,
AT_ONCE_ALL = 1 << 24  # bytes; but not more than this in total


class Staging:
    """Buffers in CPU memory for copies of tensors. The next save reuses them, so the kernel need not find new pages."""

    def __init__(self, buffers: Mapping[str, Tensor] | None = None) -> None:
        self._copies: dict[str, Tensor] = dict(buffers or {})
        # One for each device: torch has 32, which it gives out in turn, and some of a new one each time would be NCCL's
        self.streams: dict[torch.device, Any] = {}

    def start(self, tensors: Mapping[str, Tensor], *, still: bool = False) -> Copying:
        """Copies small tensors, which may change. `finish` of what it returns copies the others, in any thread.

        On a GPU the copies have the values that the tensors have at this point of the current stream.
        still: nothing changes any until they are written: `finish` copies all but those contiguous in CPU memory.
        """
        copied = {name: tensor for name, tensor in tensors.items() if _is_plain(tensor)} if still else {}
        tensors, total = dict(tensors), 0
        # First what a forward pass changes, before any optimizer waits: statistics, and buffers of other layers, which
        # are mostly smaller than weights
        sizes = {name: local_part(tensor).nbytes for name, tensor in tensors.items()}
        for name, size in sorted(sizes.items(), key=lambda each: (not state.is_statistic(each[0]), each[1])):
            tensor = tensors[name]
            if not still and size <= AT_ONCE and total + size <= AT_ONCE_ALL:
                total += size
                module = _streams_of(local_part(tensor).device)
                try:  # on the device, so that nothing waits for what is queued there
                    here = None if module is None else local_part(tensor).clone()
                except torch.cuda.OutOfMemoryError:  # of any kind of device
                    here = None
                if here is not None:
                    tensors[name] = with_local(here, tensor) if isinstance(tensor, DTensor) else here
                    continue
                copied[name] = self.copy(name, tensor)
                if module is not None:
                    module.current_stream(local_part(tensor).device).synchronize()
        ready = {}
        for device in {local_part(tensor).device for tensor in tensors.values()}:
            if (module := _streams_of(device)) is not None:
                with module.device(device):
                    ready[device] = module.Event()
                    ready[device].record(module.current_stream(device))
        return Copying(self, tensors, copied, ready)

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """Returns a copy of a tensor, or of a DTensor's shard, in a buffer; from a GPU it may still be running."""
        here = local_part(tensor)
        known = self._copies.get(name)
        if known is None or known.shape != here.shape or known.dtype != here.dtype:
            known = torch.empty(here.shape, dtype=here.dtype, device="cpu", pin_memory=_pins(here.device))
            self._copies[name] = known
        known.copy_(here, non_blocking=_streams_of(here.device) is not None)
        # The constructor is used since from_local() would move the copy to the mesh's device.
        return with_local(known, tensor) if isinstance(tensor, DTensor) else known

    def forget_all_but(self, names: Iterable[str]) -> None:
        for name in set(self._copies) - set(names):
            del self._copies[name]


@dataclass
class Copying:
    staging: Staging  # owner of the buffers
    tensors: dict[str, Tensor]  # the tensors to copy, by name; of the small ones on a device, copies there
    copied: dict[str, Tensor]  # copies that are complete, by name
    ready: dict[torch.device, Any]  # for each device the event after which its tensors have the values to save

    def wait(self) -> None:
        """Waits until the tensors have the values to save."""
        for event in self.ready.values():
            event.synchronize()

    def finish(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Completes the copies of the tensors with these names; then training may change all. Called once."""
        # A new thread's current device and streams are those of device 0, whatever this rank's device is. So a stream
        # is made for each device, and made current on that device.
        self.staging.forget_all_but(names)
        streams = self.staging.streams
        with contextlib.ExitStack() as stack:
            for device, event in self.ready.items():
                module = _streams_of(device)
                stack.enter_context(module.device(device))
                if device not in streams:
                    streams[device] = module.Stream(device)
                streams[device].wait_event(event)
            copies = {}
            for name in names:
                device = local_part(self.tensors[name]).device
                if name in self.copied:
                    copies[name] = self.copied[name]
                    continue
                with _streams_of(device).stream(streams[device]) if device in streams else contextlib.nullcontext():
                    copies[name] = self.staging.copy(name, self.tensors[name])
            for device in self.ready:
                streams[device].synchronize()
        return copies


def _pins(device: torch.device) -> bool:
    return device.type == "cuda" or (_streams_of(device) is not None and hasattr(torch, "accelerator"))


def pinned(tensors: Mapping[str, Tensor]) -> int:
    """Returns the number of bytes that copies of these tensors take in pinned memory: torch rounds to powers of 2."""
    there = (here.nbytes for here in map(local_part, tensors.values()) if _pins(here.device))
    return sum(1 << (size - 1).bit_length() for size in there if size)


def _is_plain(tensor: Tensor) -> bool:
    here = local_part(tensor)
    return here.is_cpu and here.is_contiguous() and here.untyped_storage().nbytes() == here.nbytes


def _streams_of(device: torch.device) -> Any:
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if all(hasattr(module, name) for name in ("Stream", "Event", "device", "current_stream")) else None


# -- The state of one rank, on its way to a checkpoint or to memory


@dataclass
class Snapshot:
    """A rank's state after a step, while it is saved. An error is kept, since the other ranks wait for this one."""

    step: int  # steps of the run that are done
    extra: dict[str, Any] = field(default_factory=dict)  # extra, metrics, rank_state: as given to `Checkpointer.save`
    metrics: dict[str, float] = field(default_factory=dict)
    rank_state: dict[str, Any] | None = None
    content: Content | None = None  # the state; None if this rank has a `fault`
    copying: Copying | None = None  # the copies of its tensors, or of those that this rank saves; None like `content`
    fault: str | None = None  # why this rank's state cannot be saved; None: it can
    final: bool = False  # whether the fault will also be there at the next step
    began: float = field(default_factory=time.perf_counter)  # by time.perf_counter()
    blocked: float = 0.0  # seconds for which training was blocked so far
    _staged: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None  # None: the training's own

    @contextlib.contextmanager
    def keeps_faults(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            self.fault, self.final = str(error), True
        except RecursionError:
            self.fault, self.final = "the state is nested too deeply to be saved", True
        except Exception as error:  # out of memory, for example
            self.fault = one_line(error)

    def take(
        self, state: Mapping[str, Any], rank_state: Mapping[str, Any] | None, extra: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> Content:  # fmt: skip
        """Copies all but the tensors of the state, which the returned content has; arguments: as of `save`."""
        self.extra, self.metrics = facts(extra, "extra"), facts(metrics, "metrics")
        self.content = Content.of(expanded(state)[0])
        self.rank_state = None if rank_state is None else plain(expanded(rank_state)[0], "rank_state")
        return self.content

    def run(self, function: Callable[[], object], name: str) -> None:
        """Calls a function in a thread, for which a process that ends waits."""
        self.thread = threading.Thread(target=function, name=name)
        self.thread.start()
        self.blocked += time.perf_counter() - self.began

    def copied(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Returns the copies of these tensors (None: of all); from then on the state may change."""
        assert self.copying is not None
        copies = self.copying.finish(list(self.copying.tensors) if names is None else names)
        self.release()
        return copies

    def release(self) -> None:
        self._staged.set()

    def staged(self, *, complete: bool = False) -> float:
        """Waits until the state may change, or until the save is complete; returns the seconds waited."""
        began = time.perf_counter()
        self._staged.wait()
        if complete:
            self.join()
        waited = time.perf_counter() - began
        self.blocked += waited
        return waited

    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def join(self) -> None:
        if self.thread is not None and self.is_alive():
            with heartbeat.alive():
                self.thread.join()


# -- one save, in a thread


class Final(CheckpointError):
    """A save failed for a reason for which all later saves would fail, too."""


@dataclass
class Save(Snapshot):
    compare: bool = False  # whether ranks compare the tensors that they have under equal names
    published: bool = False  # whether the checkpoint was published; known on rank 0 only


@dataclass(frozen=True)
class _Offer:
    # Digests are equal on ranks that would save the same

    step: int  # steps of the run that are done
    size: int = 0  # bytes of all tensors
    small: bool = False  # whether rank 0 can write all of it: no tensor is sharded, and see `SMALL`
    names: str = ""  # digest of names, types and shapes of all tensors
    values: str = ""  # digest of the values that are not tensors
    # the sum over all ranks is 0 if none has other bytes than others under one name; see `ReplicaTable.differences`
    difference: int = 0
    rank_state: dict[str, Any] | None = None  # this rank's own state, if it is small. fault, final: as in `Save`
    fault: str | None = None
    final: bool = False


@dataclass(frozen=True)
class _Agreement:
    # What rank 0 has decided that all ranks do in a save

    kind: str  # kind of checkpoint: SINGLE or SHARDED
    temporary: str  # name of the temporary folder
    compare: bool  # whether ranks find out which of their tensors differ, since some do
    groups: tuple[int, ...] = ()  # the group of each rank, if there is more than one: names or values differ


@dataclass
class Writer:
    folder: CheckpointFolder
    peers: Peers
    identity: dict[str, Any]
    check_values: bool  # whether values that are not tensors must be the same under equal names
    fence: Callable[[], None]
    events: Events

    def write(self, save: Save) -> float:
        """Writes and publishes a checkpoint, on all ranks; returns the seconds from the call of the save.

        Raises CheckpointError: it is not published; the same on all ranks. Other errors: the process group failed.
        """
        temporary = self.folder.path / checkpoints.temporary(save.step, self.folder.attempt)  # rank 0's is used
        try:
            offer, table = self._offer(save)
            offers = self.peers.gather(offer)
            agreement = self.peers.on_first(lambda: self._agree(offers, temporary))
            temporary = self.folder.path / agreement.temporary
            content = save.content
            assert content is not None
            rest = content.rest
            elsewhere: dict[str, int] = {}
            if groups := agreement.groups:
                contents = self.peers.gather(rest if groups[self.peers.rank] == self.peers.rank else None)
                firsts = {rank: each for rank, each in enumerate(contents) if each is not None}
                elsewhere = self.peers.on_first(lambda: _common(firsts))
                group, mine = groups[self.peers.rank], content.tensors.items()
                size = sum(tensor.nbytes for name, tensor in mine if elsewhere.get(name, group) == group)
                sizes = self.peers.gather(size if group == self.peers.rank else 0)
                self.peers.on_first(lambda: self._require_space(sum(sizes)))
                self.peers.on_first(lambda: rest.update(_united(firsts, groups, self.check_values)))
            if agreement.compare:
                self._compare(table or state.ReplicaTable({}, {}), groups, elsewhere)
            if agreement.kind == checkpoints.SINGLE:
                if self.peers.rank != 0:
                    save.release()
                return self.peers.on_first(lambda: self._publish_single(save, rest, temporary, offers))
            written = self.peers.on_each(lambda: self._write(save, content, groups, elsewhere, rest, temporary))
            return self.peers.on_first(lambda: self._publish_sharded(save, temporary, written))
        finally:
            if self.peers.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)

    # -- this rank's offer

    def _offer(self, save: Save) -> tuple[_Offer, state.ReplicaTable | None]:
        # Raises nothing, since rank 0 waits for the offer
        content, copying = save.content, save.copying
        if content is None or copying is None or save.fault is not None:
            return _Offer(save.step, fault=save.fault or "it has nothing to save", final=save.final), None
        try:
            table, sums = None, dict[int, int]()
            if save.compare and self.peers.many:
                copying.wait()
                table = state.ReplicaTable.of(copying.tensors, copying.copied)
                sums = table.differences(self.peers.rank, self.peers.world_size)
            small = not content.sharded and content.size <= SMALL
            small = small and self.peers.world_size * size_of(save.rank_state) <= SMALL
            offer = _Offer(
                save.step, content.size, small, content.digest(),
                hashlib.sha256(repr(content.values).encode()).hexdigest(), sum(sums.values()),
                save.rank_state if small else None,
            )  # fmt: skip
            return offer, table
        except Exception as error:
            return _Offer(save.step, fault=one_line(error)), None

    def _like(self, groups: Sequence[int]) -> tuple[int, Sequence[int]]:
        # This rank's group, and the ranks in it.
        group = groups[self.peers.rank] if groups else 0
        return group, [rank for rank, known in enumerate(groups) if known == group] or range(self.peers.world_size)

    def _compare(self, table: state.ReplicaTable, groups: Sequence[int], elsewhere: Collection[str]) -> None:
        # The ranks of a group compare by sums, and for some of those that differ by hashes; the groups compare what
        # several of them have (`elsewhere`) by hashes.
        rank, (group, like) = self.peers.rank, self._like(groups)
        buckets = state.unequal_buckets(table.differences(like.index(rank), len(like)), self.peers.total)
        tables = self.peers.gather(table.only(buckets, elsewhere if rank == group else ()))
        self.peers.on_first(lambda: _refuse(state.replica_conflicts(tables)))

    # -- agreement

    def _agree(self, offers: list[_Offer], temporary: Path) -> _Agreement:
        faults = {rank: offer.fault for rank, offer in enumerate(offers) if offer.fault is not None}
        if faults:
            kind = Final if all(offers[rank].final for rank in faults) else CheckpointError
            raise kind(str(combined_error(faults, 0)))
        steps = {offer.step for offer in offers}
        if len(steps) > 1:
            shown = ", ".join(f"rank {rank} saves step {offer.step}" for rank, offer in enumerate(offers[:8]))
            raise CheckpointError(f"ranks save different steps: {shown}")
        groups = _groups([(offer.names, offer.values) for offer in offers])
        if not any(groups):
            groups = ()
        compare = sum(offer.difference for offer in offers) % (1 << 64) != 0
        if not groups:
            self._require_space(offers[0].size)
        temporary.mkdir(mode=0o700)
        single = not groups and all(offer.small for offer in offers)
        return _Agreement(checkpoints.SINGLE if single else checkpoints.SHARDED, temporary.name, compare, groups)

    def _require_space(self, size: int) -> None:
        if (free := shutil.disk_usage(self.folder.path).free) < (needed := SLACK + size):
            raise CheckpointError(f"no space in {self.folder.path}: {needed} bytes are needed, and {free} are free")

    # -- large or sharded state: all ranks

    def _write(
        self, save: Save, content: Content, groups: tuple[int, ...], elsewhere: Mapping[str, int],
        rest: dict[str, Any], temporary: Path,
    ) -> tuple[dict[str, File], list[storage.Part]]:  # fmt: skip
        rank, written = self.peers.rank, dict[str, File]()
        group, like = self._like(groups)
        mine = {
            name: tensor
            for name, tensor in content.tensors.items()
            if isinstance(tensor, DTensor) or elsewhere.get(name, group) == group
        }
        copies = save.copied(owned(mine, like.index(rank), len(like)))
        if save.rank_state is not None:
            storage.save_file(temporary / checkpoints.rank_file(rank), save.rank_state, written)
        if rank == 0:
            storage.save_file(temporary / checkpoints.VALUES_FILE, rest, written)
        return written, storage.write_tensors(temporary, copies, rank, written)

    # -- rank 0

    def _publish_single(self, save: Save, rest: dict[str, Any], temporary: Path, offers: list[_Offer]) -> float:
        written: dict[str, File] = {}
        storage.save_file(temporary / checkpoints.STATE_FILE, {"tensors": save.copied(), **rest}, written)
        if any(offer.rank_state is not None for offer in offers):
            storage.save_file(temporary / checkpoints.RANKS_FILE, [offer.rank_state for offer in offers], written)
        return self._publish(save, temporary, checkpoints.SINGLE, written)

    def _publish_sharded(
        self, save: Save, temporary: Path, written: list[tuple[dict[str, File], list[storage.Part]]]
    ) -> float:
        joined = {name: file for each, _ in written for name, file in each.items()}
        storage.write_metadata(temporary, (part for _, parts in written for part in parts), joined)
        return self._publish(save, temporary, checkpoints.SHARDED, joined)

    def _publish(self, save: Save, temporary: Path, kind: str, written: dict[str, File]) -> float:
        manifest = self.folder.describe(Manifest(
            save.step, kind, self.peers.world_size, self.folder.attempt, self.identity, save.extra, save.metrics,
            written, torch=torch.__version__, launcher=__version__,
        ))  # fmt: skip
        if problems := checkpoints.wrong_sizes(temporary, manifest):
            raise CheckpointError("; ".join(problems))
        with storage.hashed_file(temporary / checkpoints.MANIFEST, {}) as stream:
            stream.write(manifest.text().encode())
        fsync_folder(temporary)
        self._require_run()
        path = self.folder.publish(temporary, manifest, self._require_run)
        save.published = True
        seconds = time.perf_counter() - save.began
        blocked = save.blocked if save.thread is not None else seconds
        self.events(Saved(
            step=save.step, seconds=round(seconds, 4), blocked=round(blocked, 4), bytes=manifest.size,
            checkpoint=str(path),
        ))  # fmt: skip
        return seconds

    def _require_run(self) -> None:
        try:
            self.fence()
            lease_and_locks.require_folder(self.folder.path)
        except OSError:  # transient: the next save may work
            raise
        except Exception as error:
            raise Final(str(error)) from None


def _groups(digests: Sequence[Any]) -> tuple[int, ...]:
    lowest: dict[Any, int] = {}
    return tuple(lowest.setdefault(digest, rank) for rank, digest in enumerate(digests))


def _common(contents: Mapping[int, dict[str, Any]]) -> dict[str, int]:
    holders: dict[str, list[int]] = {}
    for group, each in contents.items():
        for name in each["paths"]:
            holders.setdefault(name, []).append(group)
    several = [(name, groups) for name, groups in holders.items() if len(groups) > 1]
    return {name: groups[number % len(groups)] for number, (name, groups) in enumerate(several)}


def _united(contents: Mapping[int, dict[str, Any]], groups: Sequence[int], check: bool) -> dict[str, Any]:
    values, lines = state.merged_values({group: each["values"] for group, each in contents.items()}, groups)
    if check:
        _refuse(lines)
    joined = {
        what: {key: item for each in contents.values() for key, item in each[what].items()}
        for what in ("paths", "lists")
    }
    return {**joined, "values": values}


def _refuse(lines: list[str]) -> None:
    if lines:
        raise Final(state.conflict_error(lines))

"""The steps of one save, local and collective, from copies of the state to the published checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from launcher import __version__
from launcher.checkpoint import files, state
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.agreement import Peers
from launcher.checkpoint.folder import CheckpointFolder, fsync_folder
from launcher.checkpoint.format import (
    RANKS_FILE,
    SHARDED,
    SINGLE,
    STATE_FILE,
    VALUES_FILE,
    CheckpointError,
    File,
    Manifest,
    SaveFailed,
)
from launcher.checkpoint.staging import Snapshot
from launcher.checkpoint.state import Content, owned
from launcher.runs.event_writer import Events
from launcher.runs.events import Saved
from launcher.torch_compat import DTensor

# -- One save, from each rank's state to a published checkpoint; runs in a thread
#
# Each step is either local or collective. If a local step fails on one rank, all ranks get its error before the next
# collective step. So no rank waits in a collective for a rank that has failed.
#
# | step | on | what it does |
# |---|---|---|
# | offer | each rank | describes to rank 0 what the rank would save, and what is wrong with it |
# | agree | rank 0 | compares the offers, chooses the kind of checkpoint, checks space, makes a temporary folder |
# | compare | all ranks together | at the first save of a process: refuse different tensors of ranks under one name |
# | prepare | each rank | copies what the rank writes (then training may change the state) |
# | write | each rank | writes its tensors, its rank_state, and rank 0 the values that are not tensors |
# | publish | rank 0 | writes metadata and manifest, calls the fence, renames the folder |
#
# With pipeline parallelism ranks have different tensors. Ranks that would save the same are a group, which has the
# number of its lowest rank; that rank tells rank 0 what the group has, so that what is sent grows with the groups.


SMALL = 50_000_000  # bytes; a state of at most this size that is the same on all ranks is one file, written by rank 0
SLACK = 1 << 20  # bytes of free space required beyond the tensors


class Final(CheckpointError):
    """A save failed for a reason for which all later saves would fail, too."""


@dataclass
class Save(Snapshot):
    """One save on this rank, from the call to its end."""

    compare: bool = False  # whether ranks compare the tensors that they have under equal names
    check_values: bool = True  # whether values that are not tensors must be the same under equal names
    published: bool = False  # whether the checkpoint was published; known on rank 0 only
    failure: SaveFailed | None = None  # the error, if the save has failed


@dataclass(frozen=True)
class SaveOutcome:
    """The result of a save; the same on all ranks."""

    seconds: float = 0.0  # from the call of the save until the checkpoint was published
    size: int = 0  # size of the checkpoint in bytes
    failure: str | None = None  # why the save failed, as text; None if it succeeded
    exception: str = ""  # name of the error's class, if the save failed
    final: bool = False  # whether all later saves would fail, too


@dataclass(frozen=True)
class _Offer:
    # Digests are equal on ranks that would save the same

    step: int  # steps of the run that are done
    size: int = 0  # bytes of all tensors
    sharded: bool = False  # whether a tensor is sharded over ranks
    names: str = ""  # digest of names, types and shapes of all tensors
    values: str = ""  # digest of the values that are not tensors
    # the sum over all ranks is 0 if none has other bytes than others under one name; see `replicas.Table.differences`
    difference: int = 0
    rank_state: dict[str, Any] | None = None  # this rank's own state, if the rest is small. fault, final: as in `Save`
    fault: str | None = None
    final: bool = False


@dataclass(frozen=True)
class _Agreement:
    # What rank 0 has decided that all ranks do in a save

    kind: str  # kind of checkpoint: SINGLE or SHARDED
    temporary: str  # name of the temporary folder
    same: bool  # whether the tensors of all ranks have the same names, types and shapes
    compare: bool  # whether ranks find out which of their tensors differ, since some do
    groups: tuple[int, ...] = ()  # the group of each rank, if there is more than one: names or values differ


class Writer:
    """Writes the saves of one Checkpointer."""

    def __init__(
        self,
        folder: CheckpointFolder,
        peers: Peers,
        identity: Mapping[str, Any],
        fence: Callable[[], None] | None,
        events: Events,
    ) -> None:
        self._folder, self._peers, self._identity = folder, peers, identity
        self._fence, self._events = fence, events
        self._first = peers.rank == 0

    def write(self, save: Save) -> SaveOutcome:
        """Writes and publishes a checkpoint, on all ranks; the result has the ranks' errors.

        Raises Exception: the process group failed; the save may have succeeded on some ranks only.
        """
        temporary = self._folder.path / checkpoints.temporary(save.step, self._folder.attempt)  # rank 0's is used
        early: files.SmallFile | None = None
        table: state.ReplicaTable | None = None
        try:
            offer, table, early = self._offer(save, temporary)
            offers = self._peers.gather(offer)
            agreement = self._peers.on_first(lambda: self._agree(offers, temporary, early))
            temporary = self._folder.path / agreement.temporary
            content = save.content
            assert content is not None
            rest = content.rest
            elsewhere: dict[str, int] = {}
            if groups := agreement.groups:
                contents = self._peers.gather(rest if groups[self._peers.rank] == self._peers.rank else None)
                firsts = {rank: each for rank, each in enumerate(contents) if each is not None}
                elsewhere = self._peers.on_first(lambda: _common(firsts))
                self._peers.on_first(lambda: rest.update(_united(firsts, groups, save.check_values)))
            if agreement.compare:
                self._compare(table or state.ReplicaTable({}, {}), groups, elsewhere)
            if agreement.kind == SINGLE:
                if not self._first:
                    save.release()
                return self._peers.on_first(lambda: self._publish_single(save, temporary, offers, early))
            written = self._peers.on_each(lambda: self._write(save, content, groups, elsewhere, rest, temporary))
            return self._peers.on_first(lambda: self._publish_sharded(save, temporary, written))
        except CheckpointError as error:
            return SaveOutcome(failure=str(error), exception=type(error).__name__, final=isinstance(error, Final))
        finally:
            if early is not None:
                with contextlib.suppress(Exception):  # _publish_single has raised it
                    early.close()
            if self._first:
                shutil.rmtree(temporary, ignore_errors=True)

    # -- this rank's offer

    def _offer(self, save: Save, temporary: Path) -> tuple[_Offer, state.ReplicaTable | None, files.SmallFile | None]:
        # Raises nothing, since rank 0 waits for the offer
        content, copying, early = save.content, save.copying, None
        if content is None or copying is None or save.fault is not None:
            return _Offer(save.step, fault=save.fault or "it has nothing to save", final=save.final), None, None
        try:
            table, sums = None, dict[int, int]()
            if save.compare and self._peers.many:
                table = state.ReplicaTable.of(content.tensors, copying.copied)
                sums = table.differences(self._peers.rank, self._peers.world_size)
            small = not content.sharded and content.size <= SMALL
            if self._first and small:
                early = self._begin(save, content, temporary)
            return (
                _Offer(
                    save.step, content.size, content.sharded, content.digest(),
                    hashlib.sha256(repr(content.values).encode()).hexdigest(), sum(sums.values()),
                    save.rank_state if small else None,
                ),
                table,
                early,
            )  # fmt: skip
        except Exception as error:
            return _Offer(save.step, fault=files.one_line(error)), None, early

    def _begin(self, save: Save, content: Content, temporary: Path) -> files.SmallFile:
        # The ranks will nearly always agree on a single file
        def make() -> dict[str, Any]:
            self._require_space(content.size + SLACK)
            temporary.mkdir(mode=0o700)
            return {"tensors": save.copied(), **content.rest}

        return files.SmallFile(temporary / STATE_FILE, make, alone=save.thread is None)

    def _like(self, groups: Sequence[int]) -> tuple[int, Sequence[int]]:
        # This rank's group, and the ranks in it.
        group = groups[self._peers.rank] if groups else 0
        return group, [rank for rank, known in enumerate(groups) if known == group] or range(self._peers.world_size)

    def _compare(self, table: state.ReplicaTable, groups: Sequence[int], elsewhere: Collection[str]) -> None:
        # The ranks of a group compare by sums, and for some of those that differ by hashes; the groups compare what
        # several of them have (`elsewhere`) by hashes.
        rank, (group, like) = self._peers.rank, self._like(groups)
        buckets = state.unequal_buckets(table.differences(like.index(rank), len(like)), self._peers.total)
        tables = self._peers.gather(table.only(buckets, elsewhere if rank == group else ()))
        self._peers.on_first(lambda: _refuse(state.replica_conflicts(tables)))

    # -- agreement

    def _agree(self, offers: list[_Offer], temporary: Path, early: files.SmallFile | None) -> _Agreement:
        # If the checkpoint is not to be a single file, the file `early` that `_begin` has started is removed
        faults = {rank: offer.fault for rank, offer in enumerate(offers) if offer.fault is not None}
        if faults:
            kind = Final if all(offers[rank].final for rank in faults) else CheckpointError
            raise kind(str(files.combined_error(faults, 0)))
        steps = {offer.step for offer in offers}
        if len(steps) > 1:
            shown = ", ".join(f"rank {rank} saves step {offer.step}" for rank, offer in enumerate(offers[:8]))
            raise CheckpointError(f"ranks save different steps: {shown}")
        same = len({offer.names for offer in offers}) == 1
        values = len({offer.values for offer in offers}) == 1
        groups = () if same and values else _groups([(offer.names, offer.values) for offer in offers])
        compare = sum(offer.difference for offer in offers) % (1 << 64) != 0
        if same and offers[0].size <= SMALL and not any(offer.sharded for offer in offers) and not groups:
            return _Agreement(SINGLE, temporary.name, same, compare)
        self._require_space((offers[0].size if same else sum(offer.size for offer in offers)) + SLACK)
        if early is not None:  # not needed, since the checkpoint is not a single file
            with contextlib.suppress(Exception):
                early.close()
        temporary.mkdir(mode=0o700, exist_ok=True)
        (temporary / STATE_FILE).unlink(missing_ok=True)
        return _Agreement(SHARDED, temporary.name, same, compare, groups)

    def _require_space(self, needed: int) -> None:
        free = _free(self._folder.path)
        if free < needed:
            raise CheckpointError(f"no space in {self._folder.path}: {needed} bytes are needed, and {free} are free")

    # -- large or sharded state: all ranks

    def _write(
        self,
        save: Save,
        content: Content,
        groups: tuple[int, ...],
        elsewhere: Mapping[str, int],
        rest: dict[str, Any],
        temporary: Path,
    ) -> tuple[dict[str, File], list[files.Part]]:
        rank, written = self._peers.rank, dict[str, File]()
        group, like = self._like(groups)
        mine = {
            name: tensor
            for name, tensor in content.tensors.items()
            if isinstance(tensor, DTensor) or elsewhere.get(name, group) == group
        }
        copies = save.copied(owned(mine, like.index(rank), len(like)))
        if save.rank_state is not None:
            files.save_file(temporary / checkpoints.rank_file(rank), save.rank_state, written)
        if self._first:
            files.save_file(temporary / VALUES_FILE, rest, written)
        return written, files.write_tensors(temporary, copies, rank, written)

    # -- rank 0

    def _publish_single(
        self, save: Save, temporary: Path, offers: list[_Offer], early: files.SmallFile | None
    ) -> SaveOutcome:
        assert early is not None
        written = {STATE_FILE: early.file()}
        if any(offer.rank_state is not None for offer in offers):
            files.save_file(temporary / RANKS_FILE, [offer.rank_state for offer in offers], written)
        return self._publish(save, temporary, SINGLE, written, early)

    def _publish_sharded(
        self, save: Save, temporary: Path, written: list[tuple[dict[str, File], list[files.Part]]]
    ) -> SaveOutcome:
        joined = {name: file for each, _ in written for name, file in each.items()}
        files.write_metadata(temporary, (part for _, parts in written for part in parts), joined)
        return self._publish(save, temporary, SHARDED, joined)

    def _publish(
        self, save: Save, temporary: Path, kind: str, written: dict[str, File], early: files.SmallFile | None = None
    ) -> SaveOutcome:
        manifest = self._folder.describe(
            Manifest(
                step=save.step, kind=kind, world_size=self._peers.world_size, attempt=self._folder.attempt,
                identity=dict(self._identity), extra=save.extra, metrics=save.metrics, files=written,
                torch=torch.__version__, launcher=__version__,
            )
        )  # fmt: skip
        files.write_manifest(temporary, manifest)
        if early is not None:
            early.close()
        fsync_folder(temporary)
        if self._fence is not None:
            try:
                self._fence()
            except OSError:  # transient: the next save may work
                raise
            except Exception as error:
                raise Final(str(error)) from None
        path = self._folder.publish(temporary, manifest, self._fence)
        save.published = True
        seconds = time.perf_counter() - save.began
        blocked = save.blocked if save.thread is not None else seconds
        self._events(
            Saved(
                step=save.step, seconds=round(seconds, 4), blocked=round(blocked, 4), bytes=manifest.size,
                checkpoint=str(path),
            )
        )  # fmt: skip
        return SaveOutcome(seconds, manifest.size)


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


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize

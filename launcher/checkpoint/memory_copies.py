"""Checkpoints in memory: every few steps ranks copy their state into memory of their agent, which outlives them.

No rank starts a copy before all ranks have completed the last one: of the last two copies one is complete on all of
them whenever ranks die. `memory_format` describes the format, and chooses what is loaded.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.binding import hardware
from launcher.checkpoint import memory_format
from launcher.checkpoint.collectives import Peers, one_line
from launcher.checkpoint.format import CheckpointError, Damaged
from launcher.checkpoint.saving import Snapshot, Staging, pinned
from launcher.checkpoint.state import ReplicaTable, bytes_of, is_statistic, local_part, nested, size_of
from launcher.formatting import log_line
from launcher.runs import events
from launcher.runs.directory import Events, current_attempt
from launcher.worker import heartbeat, shared_with_agent
from launcher.worker.process_group import Env

T = TypeVar("T")
PIECE = 1 << 30  # most bytes that are sent at once
ENDED = 5.0  # seconds within which its agent ends a rank because another one is gone
MEASURED = 5  # steps at most, the last ones between copies, of which the median is taken; and one copy less


@dataclass
class _Copy(Snapshot):
    # One copy on this rank, while it is made

    layout: str = ""
    whole: float = 0.0  # seconds until it was complete on all ranks
    computed: float = 0.0  # CPU seconds of its thread, if training computes on the same cores
    every: int = 0  # what the ranks have agreed on: steps until the next copy,
    single: bool = False  # whether they have different tensors,
    failed: bool = False  # whether it failed on some rank,
    end: str = ""  # and why there are no more copies
    pairs: tuple[memory_format.Pair, ...] = ()  # what it is written to


@dataclass(frozen=True)
class Kept:
    """A copy of all ranks, as it was given to `MemoryCheckpoints.keep`."""

    step: int
    state: dict[Any, Any]  # empty where another rank of the node has the same
    rank_state: dict[str, Any] | None  # None: another number of ranks has made the copy
    shared: bool  # whether the state is the same on all ranks; then each agent's first rank has it
    received: int  # number of ranks' copies that another node has sent


_in_use = False  # whether an object of this process has the memory


class MemoryCheckpoints:
    """The checkpoints in memory of one training. All ranks make one, and call its methods in the same order."""

    def __init__(self, env: Env, lineage: str, every: int | None, *, peers: bool, timeout: float, check: bool) -> None:
        # lineage: digest of what must be equal for a copy to fit. check: whether to compare the ranks' tensors at first
        global _in_use
        self._env, self._lineage, self._auto = env, lineage, every is None
        self.every = every or 1  # steps between two copies; 0: no more copies are made
        self.group = Peers(env.rank, env.world_size, timeout, own_group=env.world_size > 1).open()
        self._events = Events(current_attempt() if env.rank == 0 else None, "checkpoint")
        self._round = int(os.environ.get("LAUNCHER_ROUND", "0"))
        self._check, self._first = check, True
        self._mode = memory_format.WHOLE  # how tensors are divided over ranks
        self._copy: _Copy | None = None
        self._pinned = Staging()  # of tensors on a GPU: training waits until they are here, not in the agent's memory
        self._costs: tuple[tuple[float, float], ...] = ()  # `blocked` and `whole` of the last copies
        self._steps: tuple[float, ...] = ()  # seconds of the steps between them
        self._failures = 0  # copies in a row that have failed
        self._last: tuple[int, float] | None = None  # step of the last copy, and since when it blocks training no more
        self._bad: set[memory_format.Held] = set()
        self._indices: dict[memory_format.Header, dict[str, Any]] = {}  # of the copies that `fetch` has verified
        self.leads, self.first_rank = False, env.rank
        self._kept = False  # whether a copy was made in this round
        self._unpaired = False  # whether some agent has the only copy of what was loaded
        self._uses = False  # whether it has the memory; one object of a process has
        here = None if _in_use else shared_with_agent.shared_memory()
        firsts = self.group.on_all(lambda: None if here is None else env.rank - here[1])
        if here is None or None in firsts:
            if env.rank == 0:
                log_line(
                    "no copies in memory: checkpoint.memory is 0, no agent is there, or another Checkpointer has it",
                    sys.stdout,
                )
            self.every = 0
            self._pairs: dict[str, memory_format.Pair] = {}
            return
        self._first_ranks = [first for first in firsts if first is not None]
        _in_use = self._uses = True
        self._file, place = here
        self.leads, self.first_rank = place == 0, env.rank - place
        # The same shift on all ranks, also where nodes have different numbers of ranks
        of_nodes = Counter(env.node_ranks)
        self._peer = max(of_nodes.values()) if peers and len(of_nodes) > 1 else 0
        numbers = {memory_format.REPLICA: 0, memory_format.OWN: 2 + 4 * place, memory_format.PEER: 4 + 4 * place}
        self._pairs = {kind: memory_format.Pair(self._file, number) for kind, number in numbers.items()}

    # -- making a copy

    def due(self, step: int) -> bool:
        """Returns whether to make a copy after this step; the same on all ranks."""
        every = self.every * 2 ** min(self._failures, 10)  # a failure may pass, or not
        return bool(every) and (self._last is None or step >= self._last[0] + every)

    def keep(
        self, step: int, state: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        rank_state: Mapping[str, Any] | None, extra: Mapping[str, Any], metrics: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Copies the current state (or what `state` returns). Large tensors may still be being copied; see `staged`."""
        self._kept, entered = True, time.perf_counter()
        waits = self._copy is not None and self._copy.is_alive()  # which is a cost of copies that are too many
        if self._last is not None:
            done, since = self._last
            since += 0.0 if self._copy is None else self._copy.blocked
            # Before the wait, because the thread of the last copy wants to know
            self._steps = (*self._steps, (time.perf_counter() - since) / max(1, step - done))[-MEASURED:]
        self.wait()
        if not self.due(step):
            return
        copy = _Copy(step)
        if not waits:
            copy.began = entered
        with copy.keeps_faults():
            content = copy.take(state() if callable(state) else state, rank_state, extra, metrics)
        began = time.perf_counter()
        if self._first and not self._begins(copy):
            return
        copy.began += time.perf_counter() - began  # which other copies do not cost
        whole = self._mode == memory_format.WHOLE
        kinds = [memory_format.OWN] + [memory_format.PEER] * bool(self._peer)
        kinds += [memory_format.REPLICA] * (whole and self.leads)
        copy.pairs = tuple(self._pairs[kind] for kind in kinds)
        for pair in copy.pairs:
            pair.turn()
        if copy.fault is None:
            with copy.keeps_faults():
                kept = content.tensors if self.leads or not whole else _statistics(content.tensors)
                pair = self._pairs[memory_format.REPLICA if whole and self.leads else memory_format.OWN]
                staging = self._pinned if pinned(kept) else Staging(pair.newest.buffers(kept) if kept else {})
                copy.copying = staging.start(kept)
        self._copy, self._last = copy, (step, copy.began)
        copy.run(partial(self._run, copy), "memory-checkpoint")

    def _begins(self, copy: _Copy) -> bool:
        # Before the first copy: how the tensors are divided over ranks, and whether there is memory for the copies

        def needs() -> memory_format.Needs:
            if copy.content is None or copy.fault is not None:
                raise CheckpointError(copy.fault)
            tensors, difference = copy.content.tensors, 0
            if self._check and self.group.many and self._mode != memory_format.SINGLE:
                table = ReplicaTable.of(tensors, {})
                difference = sum(table.differences(self._env.rank, self._env.world_size).values())
            return memory_format.Needs(
                self._env.node_rank, self.leads, self._free(), self._held_bytes() if self.leads else 0,
                sum(local_part(tensor).nbytes for tensor in tensors.values()), size_of(copy.rank_state),
                pinned(tensors), copy.content.sharded, difference,
            )  # fmt: skip

        try:
            ranks = self.group.on_all(needs)
        except CheckpointError as error:
            self._failures, self._last = self._failures + 1, (copy.step, copy.began)
            self._say(f"the copy of step {copy.step} in memory failed: {error}")
            return False
        except Exception as error:
            self._await_end()
            self._end(one_line(error))
            return False
        self._first = False
        single = self._mode == memory_format.SINGLE or sum(each.difference for each in ranks) % (1 << 64)
        sharded = any(each.sharded for each in ranks)
        self._mode = memory_format.SINGLE if single else memory_format.SHARDS if sharded else memory_format.WHOLE
        share = memory_format.AUTO_FREE if self._auto else memory_format.MOST_FREE
        if why := memory_format.missing(ranks, self._mode, self._peer, share):
            self._end(why)
        elif self._mode == memory_format.SINGLE and self.leads:
            for slot in self._pairs[memory_format.REPLICA].slots:
                slot.free()
        return not why

    def _free(self) -> int | None:
        # Bytes; where the file is not in anonymous memory its file system is a limit, too
        found = hardware.free_memory()
        system = os.fstatvfs(self._file)
        there = [system.f_bavail * system.f_frsize] if system.f_blocks else []
        return min([*there, *([] if found is None else [found])], default=None)

    def _held_bytes(self) -> int:
        return os.fstat(self._file).st_blocks * 512

    def _end(self, why: str) -> None:
        self.every = 0
        self._say(f"no copies in memory from here on, only checkpoints on disk: {why}")

    def _say(self, line: str) -> None:
        if self._env.rank == 0:
            log_line(line, sys.stdout)

    def _run(self, copy: _Copy) -> None:
        began = time.perf_counter()
        try:
            if copy.content is not None and copy.fault is None:
                self._write(copy)
        except Exception as error:
            copy.fault = one_line(error)
        finally:
            copy.release()
        try:
            if self._peer:
                self._exchange()
            copy.computed = time.thread_time() if self._env.device.type == "cpu" else 0.0
            self._agree(copy, (copy.blocked + copy.computed, time.perf_counter() - began))
        except Exception as error:  # the group failed: a rank is gone, and the round ends
            copy.end = f"rank {self._env.rank}: {one_line(error)}"
            self.group.close()  # so that the others do not wait for this rank
        copy.whole = time.perf_counter() - began

    def _write(self, copy: _Copy) -> None:
        content = copy.content
        assert content is not None
        tensors = copy.copied()
        mode = self._mode
        digest = hashlib.sha256(content.digest().encode())
        if mode == memory_format.WHOLE:
            digest.update(repr(content.values).encode())
        copy.layout = digest.hexdigest()[:15]
        header = memory_format.Header(
            self._lineage, mode, copy.layout, self._round, copy.step, self._env.rank, self._env.world_size, self.every
        )  # fmt: skip
        rest = {**content.rest, "extra": copy.extra, "metrics": copy.metrics}
        own = {"rank_state": copy.rank_state}
        if mode != memory_format.WHOLE:
            self._pairs[memory_format.OWN].newest.seal(header, tensors, {**rest, **own})
            return
        if self.leads:
            self._pairs[memory_format.REPLICA].newest.seal(header, tensors, rest)
            tensors = _statistics(tensors)
        self._pairs[memory_format.OWN].newest.seal(header, tensors, own)

    def _exchange(self) -> None:
        # Sends this rank's own copy to a rank of the next node, and receives one from the node before
        own, slot = self._pairs[memory_format.OWN].newest, self._pairs[memory_format.PEER].newest
        rank, size = self._env.rank, self._env.world_size
        to, source = (rank + self._peer) % size, (rank - self._peer) % size
        header, others = own.header(), torch.zeros(memory_format.HEADER, dtype=torch.uint8, device="cpu")
        self._pass(own.head, to, others, source)
        data = bytes(bytes_of(others))
        received = memory_format.Header.of(data)
        room = slot.body(0 if received is None else received.size)
        self._pass(own.body(0 if header is None else header.size), to, room, source)
        slot.write_header(data)

    def _pass(self, mine: Tensor, to: int, others: Tensor, source: int) -> None:
        works = [dist.irecv(piece, source, self.group.group) for piece in others.split(PIECE) if len(piece)]
        works += [dist.isend(piece, to, self.group.group) for piece in mine.split(PIECE) if len(piece)]
        for work in works:
            if work is not None:
                work.wait()

    def _agree(self, copy: _Copy, cost: tuple[float, float]) -> None:
        # Also makes sure that all ranks have completed this copy before any begins the next one
        layout = int(copy.layout or "0", 16)
        votes = torch.tensor([copy.fault is not None, self._proposal(cost), layout, -layout], device="cpu")
        if self.group.many:
            dist.all_reduce(votes, dist.ReduceOp.MAX, self.group.group)
        fault, every, high, low = votes.tolist()
        copy.failed = bool(fault)
        copy.single = not fault and high != -low and self._mode == memory_format.WHOLE
        copy.every = every

    def _proposal(self, cost: tuple[float, float]) -> int:
        if not self._auto or not self._steps:
            return self.every
        # What this copy costs is known in full later. The slow ones count: they cost the most, and training would wait
        # for the end of one
        blocked, whole = zip(*(self._costs or (cost,)), strict=True)
        return memory_format.interval(statistics.fmean(blocked), max(whole), statistics.median(self._steps))

    def staged(self) -> float:
        # With checkpoint.memory=1 the last copy must be complete before another step is done, or two are done again.
        # Auto measures what a copy blocks without that; what is only being sent was complete when it was loaded
        copy = self._copy
        waited = 0.0 if copy is None else copy.staged(complete=self._each_step and copy.content is not None)
        if copy is not None and copy.end:
            self._await_end()
        return waited

    @property
    def _each_step(self) -> bool:
        return self.every == 1 and not self._auto

    def _await_end(self) -> None:
        # The group failed: most likely a rank is gone, and the next step would be one more that is done again
        if self._each_step:
            with heartbeat.alive():
                time.sleep(ENDED)

    def wait(self) -> None:
        """Waits until the last copy is complete on all ranks, or one of them has failed."""
        copy, self._copy = self._copy, None
        if copy is None:
            return
        began = time.perf_counter()
        copy.join()
        if copy.layout:  # else it was only sent
            self._costs = (*self._costs, (copy.blocked + copy.computed, copy.whole))[1 - MEASURED :]
        self._last = copy.step, copy.began + copy.blocked + time.perf_counter() - began
        self._failures = self._failures + 1 if copy.failed else 0
        if copy.failed or copy.single:  # the next one takes its place, and not that of the copy before
            for pair in copy.pairs:
                pair.last = 1 - pair.last
        if copy.single:  # which needs more memory
            self._mode, self._first = memory_format.SINGLE, True
        self.every = copy.every or self.every
        if copy.fault is not None:
            what = f"the copy of step {copy.step} in memory failed on rank {self._env.rank}"
            log_line(f"{what}: {copy.fault}", sys.stdout)
        if copy.end:
            self._end(copy.end)

    def close(self) -> None:
        """Waits for the last copy, and releases the memory and the process group."""
        global _in_use
        try:
            self.wait()
        finally:
            _in_use = _in_use and not self._uses
            self._uses = False
            self.group.close()

    # -- loading

    def newest(self, least: int) -> Kept | None:
        """Returns the newest sound copy, for a trainer that makes its state from files; None: there is none.

        All ranks must call it. Sharded states, and what would not fit into the node's memory twice, count as none.
        least: on rank 0, the first step that is of use.
        """

        def take(source: memory_format.Source) -> Kept:
            found: list[Kept] = []
            self.group.on_all(partial(self._take, source, found))
            return found[0]

        found = self.load(least, take)
        return None if found is None else found[1]

    def load(
        self, least: int, use: Callable[[memory_format.Source], T], *, whole: bool = True
    ) -> tuple[memory_format.Source, T] | None:
        """Returns what `use` makes of the newest copies that are sound, on all ranks; None: there are none.

        use: raises CheckpointError, the same on all ranks, if they are of no use; then older ones are tried.
        whole: whether it uses all of the state, which is as equal on all ranks then as it was.
        """
        while self._pairs and not self._kept:  # who goes back after this round made a copy wants the disk
            source, problems = self.find(least)
            self.report(problems)
            if source is None:
                break
            try:
                if problems := self.fetch(source):
                    self.report(problems, source.step)
                    continue
                found = use(source)
            except CheckpointError as error:  # the disk may be of use
                self.report([str(error)], source.step)
                self._bad |= {each.held for each in source.transfers}
                continue
            self.keep_only(source)
            self._unpaired = source.world_size == self._env.world_size and not source.paired
            if self._auto:
                self.every = source.transfers[0].held.header.every
            if whole:
                self._mode, self._check = source.mode, False
            return source, found
        return None

    def share(self, step: int) -> None:
        """Sends what was loaded to the peers, which may lack it: else the next node that is lost has the only copy.

        All ranks call it when all have loaded. Until `wait` the group is in use.
        """
        if self._unpaired and self._peer:
            copy = self._copy = _Copy(step, pairs=(self._pairs[memory_format.PEER],))
            copy.pairs[0].turn()
            copy.run(partial(self._run, copy), "memory-checkpoint")
        self._unpaired = False

    def _take(self, source: memory_format.Source, found: list[Kept]) -> None:
        if source.mode == memory_format.SHARDS:
            raise CheckpointError("they are sharded")
        index, tensors, rank_state = self.opened(source)
        shared, state = source.mode == memory_format.WHOLE, {}
        if self.leads or not shared:
            needed = 2 * sum(each.nbytes for each in tensors.values()) * (1 if shared else self._env.local_world_size)
            if why := memory_format.shortage(needed, self._free()):
                raise CheckpointError(why)
            # tensors of their own: torch.save would write all of the memory for each
            own = {name: tensor.clone() for name, tensor in tensors.items()}
            state = nested(own, index["paths"], index["values"], index["lists"])
        found.append(Kept(source.step, state, rank_state, shared, source.moved))

    def find(self, least: int) -> tuple[memory_format.Source | None, list[str]]:
        """Returns the newest step that can be loaded (`choose`), and a line for each damaged copy."""
        found = self.group.gather(self._held())
        lines = [line for _, lines in found for line in lines]
        held = [each for there, _ in found for each in there if each not in self._bad]

        def newest() -> tuple[memory_format.Source | None, list[str]]:
            source = memory_format.choose(held, self._first_ranks, least) if self._pairs else None
            chosen = (-1, -1) if source is None else (source.round, source.step)
            there = {each.header.step for each in held if each.header.age > chosen}
            for step in sorted(step for step in there if step >= least):
                log_line(f"the copies of step {step} in memory are not complete, and are not loaded", sys.stdout)
            return source, lines

        return self.group.on_first(newest)

    def _held(self) -> tuple[list[memory_format.Held], list[str]]:
        held, lines = [], []
        for kind, pair in self._pairs.items():
            for slot in pair.slots if self.leads or kind != memory_format.REPLICA else ():
                try:
                    header = slot.header()
                    if header is not None and header.lineage != self._lineage:
                        lines.append(
                            f"a copy in memory ({kind}, held by rank {self._env.rank}): it is of another training"
                        )
                    elif header is not None:
                        held.append(memory_format.Held(self._env.rank, kind, header))
                except Damaged as error:
                    lines.append(f"a copy in memory ({kind}, held by rank {self._env.rank}): {error}")
                    slot.erase()
        return held, lines

    def fetch(self, source: memory_format.Source) -> list[str]:
        """Brings what each rank needs to its own agent; returns a line for each damaged copy.

        Raises CheckpointError, the same on all ranks: some node has no memory for what it needs.
        """
        rank = self._env.rank
        mine = {(each.held.kind, each.held) for each in source.transfers if each.held.holder == rank}
        if lines := self._damaged(mine):
            return lines
        if source.mode != memory_format.WHOLE and source.world_size != self._env.world_size:
            return []
        moves = [each for each in source.transfers if each.moves]
        sent = {each.held.header for each in moves if each.sender == rank}
        if not moves:
            return []
        self._require_room([each for each in moves if each.to == rank], sent)
        for each in moves:
            if rank in (each.sender, each.to):
                self._move(each, sent)
        return self._damaged([(each.kind, each.held) for each in moves if each.to == rank])

    def _require_room(
        self, coming: Sequence[memory_format.Transfer], sent: Collection[memory_format.Header]
    ) -> None:  # fmt: skip
        def room() -> tuple[int, int, int | None]:
            for each in coming:
                self._slot_for(each, sent).body(each.held.header.size)
            free = self._free()
            size = sum(each.held.header.size for each in coming)
            return self._env.node_rank, size, None if free is None else free + self._held_bytes()

        ranks, wanted = self.group.on_all(room), Counter[int]()
        for node, size, _ in ranks:
            wanted[node] += size
        if why := next(filter(None, (memory_format.shortage(wanted[node], free) for node, _, free in ranks)), ""):
            raise CheckpointError(why)

    def _slot_for(
        self, transfer: memory_format.Transfer, sent: Collection[memory_format.Header]
    ) -> memory_format.MemorySlot:  # fmt: skip
        slots = self._pairs[transfer.kind].slots
        return next((each for each in slots if each.header() not in sent), slots[0])

    def _damaged(self, there: Iterable[tuple[str, memory_format.Held]]) -> list[str]:
        # Returns a line for each damaged copy, which counts no more. there: this rank's, with the pair that has each
        def look() -> list[tuple[memory_format.Held, str]]:
            wrong = []
            for kind, held in there:
                try:
                    self._indices[held.header] = memory_format.sound_index(self._body(kind, held.header), held.header)
                except Damaged as error:
                    wrong.append((held, str(error)))
            return wrong

        wrong = [each for found in self.group.on_all(look) for each in found]
        self._bad |= {held for held, _ in wrong}
        return [
            f"a copy of step {held.header.step} in memory ({held.kind} of rank {held.header.rank}, held by rank "
            f"{held.holder}): {why}"
            for held, why in wrong
        ]

    def _body(self, kind: str, header: memory_format.Header) -> Tensor:
        return self._pairs[kind].find(header).body(header.size)

    def _move(self, transfer: memory_format.Transfer, sent: Collection[memory_format.Header]) -> None:
        # sent: the copies that other ranks get from this one, which stay where they are
        held, rank = transfer.held, self._env.rank
        header = held.header
        body = torch.empty(0, device="cpu")
        if transfer.sender == rank:
            body = self._body(held.kind if held.holder == rank else transfer.kind, header)
        if transfer.to != rank:
            for piece in body.split(PIECE):
                dist.send(piece, transfer.to, self.group.group)
            return
        slot = self._slot_for(transfer, sent)
        slot.erase()
        target = slot.body(header.size)
        if transfer.sender == rank:
            target.copy_(body)
        else:
            for piece in target.split(PIECE):
                dist.recv(piece, transfer.sender, self.group.group)
        slot.write_header(header.data())

    def keep_only(self, source: memory_format.Source | None) -> None:
        """Erases all copies but those of a step: the one that was loaded from memory; None: from disk."""
        for kind, pair in self._pairs.items():
            if self.leads or kind != memory_format.REPLICA:
                pair.keep_only(None if source is None else (source.round, source.step), self._env.rank)
        self._indices.clear()
        self._last = None

    def part(
        self, kind: str, rank: int | None, source: memory_format.Source
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns index and tensors of a copy of this agent, which was verified; rank: whose it is, if that matters."""
        for slot in self._pairs[kind].slots:
            header = slot.header()
            if header is not None and header.age == (source.round, source.step) and rank in (None, header.rank):
                body = slot.body(header.size)
                index = self._indices.get(header) or memory_format.index_of(body, header)
                return index, memory_format.tensors_in(body, index)
        raise Damaged(f"the copy of step {source.step} is gone")

    def opened(self, source: memory_format.Source) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any] | None]:
        """Returns index and tensors of this rank's copy, or of its agent's replica, and the rank's own state."""
        rank = self._env.rank if source.world_size == self._env.world_size else None
        if source.mode != memory_format.WHOLE:
            index, tensors = self.part(memory_format.OWN, rank, source)
            return index, tensors, index["rank_state"]
        index, tensors = self.part(memory_format.REPLICA, None, source)
        if rank is None:
            return index, tensors, None
        own, statistics = self.part(memory_format.OWN, rank, source)
        return index, tensors | statistics, own["rank_state"]

    def report(self, problems: Sequence[str], step: int | None = None) -> None:
        """Logs and records on rank 0 why copies are not used."""
        if problems and self._env.rank == 0:
            log_line(f"copies in memory are not used: {'; '.join(problems)}", sys.stdout)
            self._events(events.PassedOver(checkpoint="memory", step=step, problems=tuple(problems)))

    def first_index(self, source: memory_format.Source) -> dict[str, Any]:
        """Returns on all ranks the index of one rank's copy."""
        held = source.transfers[0].held

        def index() -> dict[str, Any] | None:
            if held.holder != self._env.rank:
                return None
            return memory_format.index_of(self._body(held.kind, held.header), held.header)

        return next(each for each in self.group.on_all(index) if each is not None)

    def pieces(self, source: memory_format.Source) -> Iterator[tuple[Tensor, memory_format.Header]]:
        """Yields body and header of the copies of all ranks, one after the other, on all ranks, which take all."""
        largest = max(each.held.header.size for each in source.transfers)
        rooms: list[Tensor] = []  # on each rank: an error of one is raised on all before anything is sent
        self.group.on_all(lambda: rooms.append(torch.empty(largest, dtype=torch.uint8, device="cpu")))
        for each in source.transfers:
            header = each.held.header
            body = rooms[0][: header.size]
            if each.held.holder == self._env.rank:
                body = self._body(each.held.kind, header)
            for piece in body.split(PIECE) if self.group.many else ():
                dist.broadcast(piece, each.held.holder, self.group.group)
            yield body, header


def _statistics(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # What differs between ranks although they have the same tensors: each keeps its own as well
    return {name: tensor for name, tensor in tensors.items() if is_statistic(name)}

"""Finds the ranks that block the others on GPUs, from NCCL's flight recorder.

On GPUs the stacks of ranks show little: collectives are enqueued, and all ranks hang where they next wait for their GPU
(`loss.item()`). The flight recorder shows which collectives each rank has enqueued, and which of them its GPU has
started and finished. A thread of torch dumps it to a file when something is written to a named pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE). This works while the main thread waits in C, as long as it has released the
interpreter's lock, as `.item()` and `torch.cuda.synchronize()` do. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.failures.codes import CollectiveSign
from launcher.formatting import ranges
from launcher.runs.events import BlockedCollective

ENTRIES = 2000  # the last collectives that each rank keeps in its recorder; torch's default
TIMEOUT = 4.0  # seconds to wait for the dumps; torch polls the pipe once a second, and then collects all stacks
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@dataclass(frozen=True)
class Group:
    """A rank's collectives in one process group."""

    name: str  # name of the process group; the same on all of its ranks
    enqueued: int  # sequence number of the last collective that the rank has enqueued; 0: none
    # sequence number of the first collective that the rank's GPU has not finished; None: all are finished
    pending: int | None = None
    operation: str = ""  # operation of the pending collective (`nccl:all_reduce`); empty if none is pending
    started: bool = False  # whether the rank's GPU has started the pending collective


@dataclass(frozen=True)
class Recorder:
    """What a rank's flight recorder shows: its collectives in each of its process groups."""

    rank: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Suspect:
    """A rank to blame for a hang, and the collective that it blocks."""

    rank: int
    collective: BlockedCollective


def blame(recorders: Sequence[Recorder]) -> list[Suspect]:
    """Returns the ranks that block the others. Pure; in each group the first row that applies decides.

    C is the first collective of the group that is not finished on every rank:

    | what the recorders show | to blame |
    |---|---|
    | some ranks have enqueued C, others have not | the ranks that have not |
    | the ranks have enqueued different operations as C | the ranks whose operation differs from the majority's |
    | C has finished on some GPUs only | the ranks on whose GPU it has not |
    | C has started on some GPUs only | the ranks on whose GPU it has not: earlier work there does not finish |
    | anything else | no rank |

    A rank to blame in one group is left out if it waits in another group for a rank to blame there; if that leaves out
    all ranks, none is left out.
    """
    accused: dict[int, Suspect] = {}
    waiting: set[int] = set()  # ranks that wait in a group for a rank to blame there
    groups: dict[str, dict[int, Group]] = {}  # by name and rank
    for recorder in recorders:
        for group in recorder.groups:
            groups.setdefault(group.name, {})[recorder.rank] = group
    for name, seen in groups.items():
        found = _in_group(name, seen)
        for rank, collective in found.items():
            accused.setdefault(rank, Suspect(rank, collective))
        if found:
            waiting |= {rank for rank, group in seen.items() if rank not in found and group.pending is not None}
    causes = [suspect for rank, suspect in accused.items() if rank not in waiting]
    return sorted(causes or accused.values(), key=lambda suspect: suspect.rank)


def _in_group(name: str, seen: Mapping[int, Group]) -> dict[int, BlockedCollective]:
    pending = [group.pending for group in seen.values() if group.pending is not None]
    if not pending:
        return {}
    number = min(pending)
    callers = {rank: group for rank, group in seen.items() if group.pending == number}
    operations = Counter(group.operation for group in callers.values()).most_common()
    usual, count = operations[0]

    def blamed(
        ranks: Iterable[int], sign: CollectiveSign, waiting: Iterable[int] = (), called: str = ""
    ) -> dict[int, BlockedCollective]:
        blocked = BlockedCollective(
            sign=sign, operation=_short(usual), number=number, group=name, waiting=ranges(sorted(waiting)),
            called=_short(called),
        )  # fmt: skip
        return dict.fromkeys(ranks, blocked)

    if absent := [rank for rank, group in seen.items() if group.enqueued < number]:
        return blamed(absent, CollectiveSign.NOT_CALLED, waiting=callers)
    if len(operations) > 1:
        called, others = operations[1]
        if count == others:  # no side is in the majority
            return {}
        differ = [rank for rank, group in callers.items() if group.operation != usual]
        return blamed(differ, CollectiveSign.OTHER_CALLED, called=called)
    if len(callers) < len(seen):
        return blamed(callers, CollectiveSign.NOT_FINISHED)
    begun = [rank for rank, group in callers.items() if group.started]
    if 0 < len(begun) < len(callers):
        return blamed(callers.keys() - begun, CollectiveSign.NOT_BEGUN, waiting=begun)
    return {}


def _short(operation: str) -> str:
    return operation.rpartition(":")[2]


# -- torch's dumps


class _PlainOnly(pickle.Unpickler):
    """Unpickles only dicts, lists, strings and numbers, of which a dump consists; refuses all that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight recorder's dump")


def parse(rank: int, dump: bytes) -> Recorder:
    """Parses the pickle that torch writes as a rank's dump.

    A collective is finished when its entry's state is `completed`; gloo's, when the entry is marked as retired.

    Raises ValueError: the bytes are not a dump, or are incomplete.
    """
    try:
        entries = _PlainOnly(io.BytesIO(dump)).load().get("entries", [])
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for entry in entries:
            if not entry.get("is_p2p", False):
                groups.setdefault(str(entry["process_group"][0]), []).append(entry)
        return Recorder(rank, tuple(_group(name, found) for name, found in groups.items()))
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, IndexError, TypeError, UnicodeError) as error:
        raise ValueError(f"not a flight recorder's dump: {error}") from None


def _group(name: str, entries: Sequence[Mapping[str, Any]]) -> Group:
    enqueued = max(int(entry["collective_seq_id"]) for entry in entries)
    open_ones = [entry for entry in entries if not _is_done(entry)]
    if not open_ones:
        return Group(name, enqueued)
    first = min(open_ones, key=lambda entry: int(entry["collective_seq_id"]))
    return Group(
        name, enqueued, int(first["collective_seq_id"]), str(first["profiling_name"]), first["state"] == "started"
    )


def _is_done(entry: Mapping[str, Any]) -> bool:
    retired = bool(entry.get("retired")) and str(entry["profiling_name"]).startswith("gloo:")
    return entry["state"] == "completed" or retired


def to_json(recorder: Recorder) -> str:
    """Returns a Recorder as JSON, to send it to another agent."""
    return json.dumps(asdict(recorder))


def from_json(text: str) -> Recorder:
    """Returns the Recorder that `to_json` has written."""
    value = json.loads(text)
    return Recorder(value["rank"], tuple(Group(**group) for group in value["groups"]))


class Recorders:
    """In an agent: requests and reads the flight recorders of its ranks.

    variables: environment variables to set in the ranks before they start.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], *, renamed: bool) -> None:
        """Chooses the paths of pipes and dumps.

        folder: private directory on this node that outlives the ranks; the caller removes it.
        environ: environment of the agent; variables that the user has set there are kept.
        renamed: whether torch has `torch._C._distributed_c10d._dump_fr_trace`. Such a torch also reads the variables
            under their new names (TORCH_FR_...), and warns about the old ones.
        """
        size = "TORCH_FR_BUFFER_SIZE" if renamed else "TORCH_NCCL_TRACE_BUFFER_SIZE"
        wanted = {
            size: str(ENTRIES),
            "TORCH_NCCL_ENABLE_TIMING": "1",  # without it torch does not record whether a GPU has started a collective
            _PIPE: f"{folder}/ask-",
            _FILE: f"{folder}/dump-",
        }
        if renamed:
            wanted["TORCH_FR_DUMP_TEMP_FILE"] = environ.get(_FILE, wanted[_FILE])
        self.variables = {name: value for name, value in wanted.items() if name not in environ}
        self._pipe = environ.get(_PIPE, wanted[_PIPE])
        self._file = environ.get("TORCH_FR_DUMP_TEMP_FILE" if renamed else _FILE) or environ.get(_FILE, wanted[_FILE])

    def take(self, ranks: Sequence[int], timeout: float = TIMEOUT) -> list[str]:
        """Requests the dumps of these ranks, and waits for them at most `timeout` seconds.

        Returns:
            For each rank its Recorder as `to_json` writes it; empty if the rank has none, or did not respond in time.
        """
        found = dict.fromkeys(ranks, "")
        asked = [rank for rank in ranks if self._request(rank)]
        deadline = time.monotonic() + timeout
        while asked:
            for rank in list(asked):
                with contextlib.suppress(OSError, ValueError):  # the dump does not exist yet, or is incomplete
                    found[rank] = to_json(parse(rank, Path(f"{self._file}{rank}").read_bytes()))
                    asked.remove(rank)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return list(found.values())

    def _request(self, rank: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._file}{rank}")
        try:
            pipe = os.open(f"{self._pipe}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # the rank does not use NCCL, or no longer reads the pipe
            return False
        with contextlib.suppress(OSError):
            os.write(pipe, b"dump\n")
        os.close(pipe)
        return True

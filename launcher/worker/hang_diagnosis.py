"""Which ranks hang, and where: their stacks, and NCCL's flight recorder.

On GPUs the stacks of ranks show little: collectives are enqueued, and all ranks hang where they next wait for their GPU
(`loss.item()`). The flight recorder shows which collectives each rank has enqueued, and which of them its GPU has
started and finished. A thread of torch dumps it to a file when something is written to a named pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE), unless the main thread holds the GIL. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import re
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import processes
from launcher.failures.known_errors import main_thread
from launcher.files.json_types import from_json
from launcher.formatting import name_ranks
from launcher.runs.events import Accused

ENTRIES = 2000  # the last collectives that each rank keeps in its recorder; torch's default
TIMEOUT = 4.0  # seconds to wait for the dumps; torch polls the pipe once a second, and then collects all stacks
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@dataclass(frozen=True)
class CollectiveGroup:
    name: str  # name of the process group; the same on all of its ranks
    enqueued: int  # sequence number of the last collective that the rank has enqueued; 0: none
    # sequence number of the first collective that the rank's GPU has not finished; None: all are finished
    pending: int | None = None
    operation: str = ""  # operation of the pending collective (`nccl:all_reduce`); empty if none is pending
    started: bool = False  # whether the rank's GPU has started the pending collective


@dataclass(frozen=True)
class Recorder:
    rank: int
    groups: tuple[CollectiveGroup, ...]


def blame_by_collectives(recorders: Sequence[Recorder]) -> dict[int, str]:
    """Returns the ranks that block the others, and how, as text. In each group the first row that applies decides.

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
    accused: dict[int, str] = {}
    waiting: set[int] = set()  # ranks that wait in a group for a rank to blame there
    groups: dict[str, dict[int, CollectiveGroup]] = {}  # by name and rank
    for recorder in recorders:
        for group in recorder.groups:
            groups.setdefault(group.name, {})[recorder.rank] = group
    for name, seen in groups.items():
        found = _in_group(name, seen)
        accused = found | accused
        if found:
            waiting |= {rank for rank, group in seen.items() if rank not in found and group.pending is not None}
    causes = {rank: does for rank, does in accused.items() if rank not in waiting}
    return dict(sorted((causes or accused).items()))


def _in_group(name: str, seen: Mapping[int, CollectiveGroup]) -> dict[int, str]:
    pending = [group.pending for group in seen.values() if group.pending is not None]
    if not pending:
        return {}
    number = min(pending)
    callers = {rank: group for rank, group in seen.items() if group.pending == number}
    operations = Counter(group.operation for group in callers.values()).most_common()
    usual, count = operations[0]
    what = f"{_short(usual)} (number {number} of process group {name})"
    if absent := [rank for rank, group in seen.items() if group.enqueued < number]:
        return dict.fromkeys(absent, f"has not called {what}, in which {_waiting(callers)}")
    if len(operations) > 1:
        called, others = operations[1]
        if count == others:  # no side is in the majority
            return {}
        differ = [rank for rank, group in callers.items() if group.operation != usual]
        return dict.fromkeys(differ, f"has called {_short(called)} where the others have called {what}")
    if len(callers) < len(seen):
        return dict.fromkeys(callers, f"does not finish {what}, which the others have finished")
    begun = [rank for rank, group in callers.items() if group.started]
    if 0 < len(begun) < len(callers):
        does = f"has called {what}, but its GPU does not begin it, and {_waiting(begun)} in it"
        return dict.fromkeys(callers.keys() - begun, does)
    return {}


def _waiting(ranks: Collection[int]) -> str:
    return f"{name_ranks(ranks)} wait{'s' if len(ranks) == 1 else ''}"


def _short(operation: str) -> str:
    return operation.rpartition(":")[2]


class _PlainOnly(pickle.Unpickler):
    # Refuses all that could run code: a dump consists of dicts, lists, strings and numbers

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight recorder's dump")


def parse(rank: int, dump: bytes) -> Recorder:
    """Parses the pickle that torch writes as a rank's dump; raises ValueError if it is incomplete or something else."""
    try:
        entries = _PlainOnly(io.BytesIO(dump)).load().get("entries", [])
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for entry in entries:
            if not entry.get("is_p2p", False):
                groups.setdefault(str(entry["process_group"][0]), []).append(entry)
        return Recorder(rank, tuple(_group(name, found) for name, found in groups.items()))
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, IndexError, TypeError, UnicodeError) as error:
        raise ValueError(f"not a flight recorder's dump: {error}") from None


def _group(name: str, entries: Sequence[Mapping[str, Any]]) -> CollectiveGroup:
    enqueued = max(int(entry["collective_seq_id"]) for entry in entries)
    open_ones = [entry for entry in entries if not _is_done(entry)]
    if not open_ones:
        return CollectiveGroup(name, enqueued)
    first = min(open_ones, key=lambda entry: int(entry["collective_seq_id"]))
    return CollectiveGroup(
        name, enqueued, int(first["collective_seq_id"]), str(first["profiling_name"]), first["state"] == "started"
    )


def _is_done(entry: Mapping[str, Any]) -> bool:
    retired = bool(entry.get("retired")) and str(entry["profiling_name"]).startswith("gloo:")
    return entry["state"] == "completed" or retired


class Recorders:
    """In an agent: reads the flight recorders of its ranks, which start with these variables."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *, renamed: bool) -> None:
        # folder: private, on this node, outlives the ranks. environ: what the user has set there is kept. renamed:
        # whether torch has `_dump_fr_trace`; it then also reads TORCH_FR_..., and warns about the old names.
        size = "TORCH_FR_BUFFER_SIZE" if renamed else "TORCH_NCCL_TRACE_BUFFER_SIZE"
        wanted = {
            size: str(ENTRIES),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",  # older torch looks at the pipe each 8 minutes otherwise
            "TORCH_NCCL_ENABLE_TIMING": "1",  # without it torch does not record whether a GPU has started a collective
            _PIPE: f"{folder}/ask-",
            _FILE: f"{folder}/dump-",
        }
        if renamed:
            wanted["TORCH_FR_DUMP_TEMP_FILE"] = environ.get(_FILE, wanted[_FILE])
        self.variables = {name: value for name, value in wanted.items() if name not in environ}
        self._pipe = environ.get(_PIPE, wanted[_PIPE])
        self._file = environ.get("TORCH_FR_DUMP_TEMP_FILE" if renamed else _FILE) or environ.get(_FILE, wanted[_FILE])

    def take(self, ranks: Sequence[int], timeout: float = TIMEOUT) -> list[Recorder | None]:
        """Requests the dumps of these ranks, and returns what they show; None: none in `timeout` seconds."""
        found: dict[int, Recorder | None] = dict.fromkeys(ranks)
        asked = [rank for rank in ranks if self._request(rank)]
        deadline = time.monotonic() + timeout
        while asked:
            for rank in list(asked):
                with contextlib.suppress(OSError, ValueError):  # the dump does not exist yet, or is incomplete
                    found[rank] = parse(rank, Path(f"{self._file}{rank}").read_bytes())
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


# -- Finds the ranks to blame for a hang. All are silent: one that hangs blocks the others in their next collective


SIGNAL = signal.SIGQUIT  # makes a rank write its stacks; trainings have handlers of their own for other signals
WRITES = 1.0  # seconds to wait for the ranks' stacks
MOST_BLAMED = 16  # at most so many ranks are named as the cause of a hang
# Where a rank waits for others: in a collective, in DDP's or autograd's engine, in the agreement on a stop.
_WAITS = re.compile(r"/torch/(distributed/|autograd/graph\.py)|/launcher/worker/(stop|process_group)\.py")


@dataclass(frozen=True)
class HangReport:
    rank: int  # global rank
    host: str  # name of the rank's node
    step: int  # steps of the run that the rank has done
    state: str  # the kernel's state letter of its process (man 5 proc); empty if gone
    stack: str  # stacks of its threads as faulthandler writes them, or its `newest_frame`; empty if it wrote none
    recorder: Recorder | None = None  # its flight recorder, if it has one


@dataclass(frozen=True)
class Blamed:
    ranks: tuple[Accused, ...]  # at most MOST_BLAMED; empty if there were no reports
    does: str  # what they do, as text; empty: they have exited with 0, and all others wait for ranks
    step: int | None = None  # steps of the run that the slowest of them has done; None if there were no reports
    frame: str = ""  # newest frame of the first of them; empty: it has written none


def suspects(reports: Sequence[HangReport]) -> tuple[list[HangReport], str]:
    """Returns the ranks to blame for a hang (all if no row applies), and `Blamed.does`.

    The first two rows decide if they apply to any rank; else the first other row that applies to some ranks but not to
    all. Ranks that have ended (with 0, or they would have failed) are left out of the other rows.

    | a rank is to blame if it | evidence |
    |---|---|
    | has ended, and all others wait for ranks | it has no process; their stacks |
    | is stopped, or waits for a device or a file server | process state T, t or D |
    | wrote no stacks | its interpreter does not run |
    | blocks a collective on the GPUs | the flight recorders; see `blame_by_collectives` |
    | is outside of every collective | its stack; the others wait for it in a collective |
    | has done fewer steps than others | its number of steps |
    """
    ended = [each for each in reports if not each.state]
    reports = [each for each in reports if each.state] or reports
    if len(ended) not in (0, len(reports)) and all(waits(each.stack) for each in reports):
        return ended, ""
    stopped = [each for each in reports if each.state in ("T", "t", "D")]
    if stopped:
        device = stopped[0].state == "D"
        return stopped, "waits for a device or a file server (state D)" if device else "is stopped (state T)"
    lowest = min((each.step for each in reports), default=0)
    blocks = blame_by_collectives([each.recorder for each in reports if each.recorder])
    outside = "is in no collective, and others wait for it in one"
    for chosen, does in (
        ([each for each in reports if not each.stack], "does not even write its stack"),
        ([each for each in reports if each.rank in blocks], next(iter(blocks.values()), "")),
        ([each for each in reports if not waits(each.stack)], outside),
        ([each for each in reports if each.step == lowest], "is behind the others"),
    ):
        if chosen and len(chosen) < len(reports):
            return chosen, does
    return list(reports), "is silent, as are all others"


def waits(stack: str) -> bool:
    """Returns whether the main thread waits for other ranks: in a collective, or in the agreement on a stop."""
    return bool(_WAITS.search(newest_frame(stack)))


def newest_frame(stack: str) -> str:
    """Returns the line of the main thread's newest frame: all that a leader of many ranks can take of a stack."""
    main = main_thread(stack)
    return next((line for line in main if line.lstrip().startswith("File ")), "".join(main[:1]))


def blame(reports: Iterable[Mapping[str, Any]]) -> Blamed:
    guilty, does = suspects([from_json(report, HangReport) for report in reports])
    ranks = tuple(Accused(host=each.host, rank=each.rank) for each in guilty[:MOST_BLAMED])
    frame = newest_frame(guilty[0].stack) if guilty else ""
    return Blamed(ranks, does, min((each.step for each in guilty), default=None), frame)


class Stacks:
    """Files for the stacks of one agent's ranks, in memory: a rank that hangs may be unable to write to a disk."""

    def __init__(self, ranks: int) -> None:
        self._files = [processes.memory_file(f"stacks-{place}") for place in range(ranks)]

    def clear(self) -> None:
        for file in self._files:
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)  # the ranks share the position

    def file(self, place: int) -> int:
        """Returns the descriptor of a rank's file, for `serve` in the rank. place: index among the agent's ranks."""
        return self._files[place]

    def take(self, pids: Sequence[int]) -> list[tuple[str, str]]:
        """Returns each rank's state letter (man 5 proc), and its stacks; empty: it wrote none in WRITES seconds."""
        self.clear()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid > 0 and _survives(pid):  # kill(0) would signal this process's group
                    os.kill(pid, SIGNAL)
        deadline, sizes = time.monotonic() + WRITES, [-1] * len(pids)
        while time.monotonic() < deadline:
            before, sizes = sizes, [os.fstat(file).st_size for file in self._files]
            if all(sizes) and sizes == before:
                break
            time.sleep(0.05)
        return [
            (processes.state(pid), os.pread(file, 1 << 20, 0).decode(errors="replace"))
            for pid, file in zip(pids, self._files, strict=True)
        ]


def serve(file: int) -> None:
    """In a rank: installs the handler of `SIGNAL` that writes the stacks of all threads to `Stacks.file`."""
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def _survives(pid: int) -> bool:
    # Returns whether a process handles or ignores `SIGNAL` (man 5 proc, SigCgt and SigIgn), which would kill others
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it is gone
        return False
    masks = re.findall(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (SIGNAL - 1) & 1 for mask in masks)

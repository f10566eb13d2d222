"""The checks that a node makes alone in a preflight. `failures.preflight_text` makes the text of their results.

They run in processes that the agent forks (see `preflight.attempt`): a device or a file system that hangs must not hang
the agent, and an agent must never touch a GPU, since ranks are forked from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import torch

from launcher.checkpoint import format as checkpoints
from launcher.config.schema import Device, LaunchMode
from launcher.failures.codes import CheckCode
from launcher.failures.symptoms import LOST_PEER
from launcher.runs.events import NOTHING, Observation
from launcher.spec.plan import JobPlan
from launcher.worker import devices, nccl_report

MIB = 2**20
# Free bytes in a directory: below LEAST a check fails, below ENOUGH it warns.
LEAST, ENOUGH = 16 * MIB, 1024 * MIB
LEAST_TMP, ENOUGH_TMP = 16 * MIB, 256 * MIB
LEAST_SHM, ENOUGH_SHM = MIB, 64 * MIB  # ENOUGH_SHM is per rank: NCCL and data loaders keep buffers there
SHM = Path("/dev/shm")  # noqa: S108
WRITTEN = 65536  # bytes of the test file that is written to a directory
SEEN = 10.0  # timeout until a file of another node is visible, in seconds; NFS caches may delay it
SIDE = 256  # rows and columns of the matrices that a device multiplies
BUSY = 0.1  # share of a GPU's memory that other processes may use without a warning
_SYMPTOM = re.compile(LOST_PEER.pattern + r"|[Tt]imed? ?out|no response|wait timeout", re.DOTALL)


class Level(str, Enum):
    """How a check ended."""

    FINE = "fine"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """The result of a check on one node."""

    name: str  # device, space, run_dir, clock, all_reduce, fabric or reach
    level: Level = Level.FINE  # how it ended
    found: Observation = NOTHING  # what is wrong or, for a check that is fine, what was measured: a code with fields
    ms: float = 0.0  # duration in milliseconds
    # the ranks (for all_reduce) or the indices of the agents (for run_dir and reach) that seem to be the cause
    accused: tuple[int, ...] = ()
    looked: int = 0  # for run_dir and reach, number of agents that the check tried to see or reach
    symptom: bool = False  # whether the error may only be the effect of a missing or late rank elsewhere


class Problem(Exception):
    """A check has failed, or warns. The attributes are fields of the `Check` that the caller makes from it."""

    def __init__(
        self, found: Observation, level: Level = Level.FAILED, accused: Sequence[int] = (), looked: int = 0
    ) -> None:
        super().__init__(found)
        self.found, self.level, self.accused, self.looked = found, level, tuple(accused), looked


def check(name: str, look: Callable[[], Observation]) -> Check:
    """Runs a check (returns what it measured, or raises Problem) with its duration; other errors fail it as well."""
    began = time.monotonic()
    try:
        outcome = Check(name, found=look())
    except Problem as problem:
        outcome = Check(name, problem.level, problem.found, accused=problem.accused, looked=problem.looked)
    except Exception as error:  # drivers and file systems raise anything
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        found = Observation(code=CheckCode.ERROR, error=message)
        outcome = Check(name, Level.FAILED, found, symptom=bool(_SYMPTOM.search(str(error))))
    return replace(outcome, ms=round(1000 * (time.monotonic() - began), 1))


# -- devices


def wants_gpus(plan: JobPlan) -> bool:
    """Returns whether the ranks of a run need a GPU: its device is cuda or xpu, or auto with gpus_per_node."""
    return plan.workload.device in (Device.cuda.value, Device.xpu.value) or (
        plan.workload.device == Device.auto.value and plan.gpus_per_node > 0
    )


def require_devices(plan: JobPlan, there: int) -> None:
    """Raises Problem if a process sees fewer GPUs than asked for (with launch=tasks, perhaps its own only: none)."""
    if not wants_gpus(plan):
        return
    wanted = 1 if plan.launch.mode == LaunchMode.tasks.value else max(plan.gpus_per_node, 1)
    if there < wanted:
        raise Problem(Observation(code=CheckCode.FEW_GPUS, count=there, of=plan.gpus_per_node))


def device(plan: JobPlan, local_rank: int) -> torch.device:
    """Returns the device that a rank will use, as `process_group.init` chooses it; Problem: there are too few GPUs."""
    seen = devices.find_accelerators(os.environ)
    count = seen.count if plan.workload.device in (Device.auto.value, seen.kind) else 0
    require_devices(plan, count)
    return torch.device(seen.kind, local_rank % count) if count else torch.device("cpu")


def compute(where: torch.device) -> Observation:
    """Multiplies two matrices on a device, and returns an Observation of code COMPUTES with the device's name.

    The elements are small integers, so the product is exact in any floating-point format.
    Raises Problem: the product is wrong (FAILED), or other processes use more than BUSY of the GPU's memory (WARNING).
    """
    if (there := devices.module(where)) is not None:
        there.set_device(where)
    memory = devices.memory(where)
    rows = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    left, right = rows % 7, rows.T % 5
    known = left.double() @ right.double()
    product = (left.to(where, torch.float32) @ right.to(where, torch.float32)).cpu().double()
    if wrong := int((product != known).sum()):
        raise Problem(Observation(code=CheckCode.COMPUTES_WRONG, device=str(where), count=wrong, of=SIDE * SIDE))
    if memory is not None and memory[1] - memory[0] > BUSY * memory[1]:
        used, total = memory[1] - memory[0], memory[1]
        in_use = Observation(code=CheckCode.GPU_IN_USE, device=str(where), used=used, total=total)
        raise Problem(in_use, Level.WARNING)
    return Observation(code=CheckCode.COMPUTES, device=devices.name(where) or "cpu")


def fabric(log: Path, expects: Mapping[str, Sequence[str]]) -> Observation:
    """Returns NCCL's network (NETWORK); Problem: it is not what `cluster.expects` says."""
    found = nccl_report.read(log)
    if wrong := nccl_report.mismatch(found, expects):
        raise Problem(Observation(code=CheckCode.OTHER_NETWORK, mismatch=wrong))
    return Observation(code=CheckCode.NETWORK, network=found)


# -- space


def judge_space(key: str, folder: str, free: int, files: int, least: int, enough: int) -> Observation:
    """Returns the free space of a directory as an Observation of code SPACE, if there is enough.

    key: config key or variable to set if there is too little. files: that can still be created; -1: not counted.
    Raises Problem: less than `least` bytes are free, or fewer than 10 files can be created (FAILED); less than `enough`
        bytes are free (WARNING).
    """
    little = Observation(code=CheckCode.LITTLE_SPACE, path=folder, key=key, free=free)
    if 0 <= files < 10:
        raise Problem(Observation(code=CheckCode.FEW_FILES, path=folder, key=key, count=files))
    if free < least:
        raise Problem(replace(little, least=least))
    if free < enough:
        raise Problem(little, Level.WARNING)
    return Observation(code=CheckCode.SPACE, path=folder, free=free)


def space(key: str, folder: Path, least: int, enough: int) -> Observation:
    """Returns the free space of a directory, or of its nearest parent, if it can be written to; as `judge_space`."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise Problem(Observation(code=CheckCode.NO_DIRECTORY, path=str(there), key=key))
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".preflight-") as file:
            file.write(bytes(WRITTEN))
            file.flush()
            os.fsync(file.fileno())  # some file systems report a full quota only here
    except OSError as error:
        raise Problem(_not_written(error, there, key)) from None
    has = os.statvfs(there)
    return judge_space(key, str(there), has.f_bavail * has.f_frsize, has.f_favail if has.f_files else -1, least, enough)


def _not_written(error: OSError, folder: Path, key: str) -> Observation:
    # Returns why a file could not be written to a directory that the user sets with `key`
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = CheckCode.FULL if full else CheckCode.NOT_WRITABLE
    return Observation(code=code, path=str(folder), key=key, error=error.strerror or str(error))


def temporary() -> Observation:
    """Returns the free space of TMPDIR, as `space`, or raises Problem."""
    folder = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  # tempfile would silently choose another folder
    if not folder.is_dir():
        raise Problem(Observation(code=CheckCode.NO_TMPDIR, path=str(folder)))
    return space("TMPDIR (cluster.environment)", folder, LEAST_TMP, ENOUGH_TMP)


def shared_memory(ranks: int) -> Observation:
    """Returns the free shared memory (/dev/shm) of a node with so many ranks, as `judge_space`."""
    has = os.statvfs(SHM)
    return judge_space(
        "a container's --shm-size", str(SHM), has.f_bavail * has.f_frsize, -1, LEAST_SHM, ENOUGH_SHM * ranks
    )


def checkpoint_space(plan: JobPlan, *, first: bool) -> Observation:
    """Returns the free space of the checkpoint folder, as `space`.

    On the first node, the check fails if one more checkpoint as large as the newest one would not fit, and warns if two
    would not. The others share the folder, and only have to be able to write to it.
    """
    folder = Path(plan.checkpoint.dir)
    newest = _newest_size(folder) if first else 0
    return space("checkpoint.dir", folder, max(LEAST, newest), max(ENOUGH, 2 * newest))


def _newest_size(folder: Path) -> int:
    # Looks at no other file
    with contextlib.suppress(checkpoints.Unavailable):
        for path in checkpoints.candidates(folder):
            with contextlib.suppress(checkpoints.CheckpointError):
                return checkpoints.read(path).size
    return 0


# -- the run directory, which all nodes share


def write_mine(folder: Path, index: int, text: str) -> Observation:
    """Writes this agent's file `member-INDEX`, for other nodes, to the attempt's private directory `preflight`.

    Raises Problem: the file cannot be written, or the file system does not keep its owner and mode.
    """
    path = folder / f"member-{index}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        status = path.stat()
    except OSError as error:
        raise Problem(_not_written(error, folder, "runs_dir")) from None
    judge_owner(path, status.st_uid, os.getuid(), status.st_mode)
    return Observation(code=CheckCode.FILE_WRITTEN, path=str(path))


def judge_owner(path: Path, owner: int, me: int, mode: int) -> None:
    """Raises Problem for a file of mode 0600 that now has another owner (mapped ids), or that others can write to."""
    if owner != me:
        raise Problem(Observation(code=CheckCode.OTHER_OWNER, path=str(path), owner=owner, user=me))
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Problem(Observation(code=CheckCode.OTHER_MODE, path=str(path), mode=stat.S_IMODE(mode)))


def see(folder: Path, texts: Mapping[int, str], timeout: float) -> Observation:
    """Waits until the files of other agents have these texts, by index; Problem: accuses agents whose file has not."""
    deadline, left = time.monotonic() + timeout, dict(texts)
    while True:
        for index in list(left):
            with contextlib.suppress(OSError):
                if (folder / f"member-{index}").read_text() == left[index]:
                    del left[index]
        if not left:
            return Observation(code=CheckCode.FILES_SEEN, count=len(texts))
        if time.monotonic() > deadline:
            missing = Observation(code=CheckCode.NOT_SHARED, path=str(folder), seconds=timeout)
            raise Problem(missing, accused=sorted(left), looked=len(texts))
        os.scandir(folder).close()  # refreshes NFS's cache
        time.sleep(0.05)

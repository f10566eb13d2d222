"""The checks that a node makes alone in a preflight. A failed check says what is wrong and what to do about it.

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
from launcher.failures.symptoms import LOST_PEER
from launcher.formatting import format_size, plural
from launcher.spec.plan import JobPlan
from launcher.worker import accelerator, devices, nccl_report
from launcher.worker.nccl_report import MismatchCode

MIB = 2**20
# Free bytes in a directory: below LEAST a check fails, below ENOUGH it warns.
LEAST, ENOUGH = 16 * MIB, 1024 * MIB
LEAST_TMP, ENOUGH_TMP = 16 * MIB, 256 * MIB
LEAST_SHM, ENOUGH_SHM = MIB, 64 * MIB  # ENOUGH_SHM is per rank: NCCL and data loaders keep buffers there
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
    """The result of a check on one node.

    Attributes:
        name: device, space, run_dir, clock, all_reduce, fabric or reach.
        level: how it ended.
        words: what is wrong, and what to do; for a check that is fine, what was measured.
        ms: duration in milliseconds.
        accused: the ranks (for all_reduce) or the indices of the agents (for run_dir and reach) that seem to be the
            cause.
        looked: for run_dir and reach, number of agents that the check tried to see or reach.
        symptom: whether the error may only be the effect of a missing or late rank elsewhere.
    """

    name: str
    level: Level = Level.FINE
    words: str = ""
    ms: float = 0.0
    accused: tuple[int, ...] = ()
    looked: int = 0
    symptom: bool = False


class Problem(Exception):
    """Raised by a check that fails or warns. The fields are those of `Check`."""

    def __init__(self, words: str, level: Level = Level.FAILED, accused: Sequence[int] = (), looked: int = 0) -> None:
        super().__init__(words)
        self.level, self.accused, self.looked = level, tuple(accused), looked


def check(name: str, look: Callable[[], str]) -> Check:
    """Runs a check and returns its result, with its duration. Any error but a Problem makes it a failed check.

    Args:
        name: name of the check.
        look: makes the check; returns text about what it measured, or raises Problem.
    """
    began = time.monotonic()
    try:
        outcome = Check(name, words=look())
    except Problem as problem:
        outcome = Check(name, problem.level, str(problem), accused=problem.accused, looked=problem.looked)
    except Exception as error:  # drivers and file systems raise anything
        words = str(error).strip().partition("\n")[0] or type(error).__name__
        outcome = Check(name, Level.FAILED, words, symptom=bool(_SYMPTOM.search(str(error))))
    return replace(outcome, ms=round(1000 * (time.monotonic() - began), 1))


# -- devices


def wants_gpus(plan: JobPlan) -> bool:
    """Returns whether the ranks of a run need a GPU: its device is cuda or xpu, or auto with gpus_per_node. Pure."""
    return plan.workload.device in (Device.cuda.value, Device.xpu.value) or (
        plan.workload.device == Device.auto.value and plan.gpus_per_node > 0
    )


def require_devices(plan: JobPlan, there: int) -> None:
    """Compares the number of GPUs that a process sees with the requested number. Pure.

    Args:
        plan: the run's plan.
        there: number of GPUs that torch sees.

    Raises:
        Problem: there are too few. In launch mode `tasks` one is enough: the scheduler may show each rank its own only.
    """
    if not wants_gpus(plan):
        return
    wanted = 1 if plan.launch.mode == LaunchMode.tasks.value else max(plan.gpus_per_node, 1)
    if there < wanted:
        raise Problem(
            f"torch sees {plural(there, 'GPU')}, and gpus_per_node={plan.gpus_per_node} asks for "
            f"{max(plan.gpus_per_node, 1)}: see what `nvidia-smi` (`rocm-smi`, `xpu-smi`) says there"
        )


def device(plan: JobPlan, local_rank: int) -> torch.device:
    """Returns the device that a rank will use, chosen as `process_group.init` does.

    Raises:
        Problem: there are too few GPUs.
    """
    seen = devices.find_accelerators(os.environ)
    count = seen.count if plan.workload.device in (Device.auto.value, seen.kind) else 0
    require_devices(plan, count)
    return torch.device(seen.kind, local_rank % count) if count else torch.device("cpu")


def compute(where: torch.device) -> str:
    """Multiplies two matrices on a device, and returns the device's name.

    The elements are small integers, so the product is exact in any floating-point format.

    Raises:
        Problem: the product is wrong (FAILED), or other processes use more than BUSY of the GPU's memory (WARNING).
    """
    if (there := accelerator.module(where)) is not None:
        there.set_device(where)
    memory = accelerator.memory(where)
    rows = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    left, right = rows % 7, rows.T % 5
    known = left.double() @ right.double()
    product = (left.to(where, torch.float32) @ right.to(where, torch.float32)).cpu().double()
    if wrong := int((product != known).sum()):
        raise Problem(f"{where} computes wrong: {wrong} of {SIDE * SIDE} elements of a product of matrices; replace it")
    if memory is not None and memory[1] - memory[0] > BUSY * memory[1]:
        used = f"{(memory[1] - memory[0]) / 2**30:.1f} of {memory[1] / 2**30:.0f} GiB"
        raise Problem(f"{used} of the memory of {where} are in use: does a process of another job live?", Level.WARNING)
    return accelerator.name(where) or "cpu"


def fabric(log: Path, expects: Mapping[str, Sequence[str]]) -> str:
    """Compares the network that NCCL chose with the one that the cluster expects; returns NCCL's choice as text.

    Args:
        log: NCCL's log file of this rank.
        expects: `cluster.expects`.

    Raises:
        Problem: NCCL chose another network.
    """
    found = nccl_report.read(log)
    if wrong := nccl_report.mismatch(found, expects):
        raise Problem(mismatch_text(wrong))
    return found.text if found is not None else "NCCL wrote no log"


def mismatch_text(wrong: nccl_report.Mismatch) -> str:
    """Returns text for the user about a network that the site does not expect, and what to do. Pure."""
    wanted = " or ".join(wrong.accepted)
    todo = {
        MismatchCode.NO_PLUGIN: "it found no plug-in (libnccl-net.so); put its folder on LD_LIBRARY_PATH in "
                                "cluster.setup",
        MismatchCode.NOT_FOUND: f"{'; '.join(wrong.fabric.missing)}; see NCCL_DEBUG=INFO, and cluster.environment",
        MismatchCode.CHOSEN: "set NCCL_NET in cluster.environment, and see NCCL_DEBUG=INFO",
    }[wrong.code]  # fmt: skip
    return f"{wrong.fabric.text}, and this cluster expects {wrong.name} {wanted} (cluster.expects): {todo}"


# -- space


def judge_space(what: str, folder: str, free: int, files: int, least: int, enough: int) -> str:
    """Judges the free space of a directory, and returns it as text. Pure.

    Args:
        what: config key or variable to set if there is too little space.
        folder: the directory.
        free: free bytes.
        files: number of files that can still be created; -1: the file system does not count them.
        least: bytes below which the check fails.
        enough: bytes below which the check warns.

    Raises:
        Problem: less than `least` bytes are free, or fewer than 10 files can be created (FAILED); less than `enough`
            bytes are free (WARNING).
    """
    has = f"{folder} has {free / MIB:,.0f} MiB free"
    if 0 <= files < 10:
        raise Problem(f"{folder} takes {files} more files: remove some, or set {what} to another file system")
    if free < least:
        raise Problem(f"{has}, less than {format_size(least)}: free some, or set {what} to another file system")
    if free < enough:
        raise Problem(f"{has}: free some, or set {what} to another file system", Level.WARNING)
    return has


def space(what: str, folder: Path, least: int, enough: int) -> str:
    """Checks that a small file can be written to a directory and that it has free space; returns the space as text.

    If the directory does not exist yet, its nearest existing parent is checked. The arguments are those of
    `judge_space`.

    Raises:
        Problem: as by `judge_space`; or the directory cannot be written to.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise Problem(f"{there} is no folder: set {what} to one")
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".preflight-") as file:
            file.write(bytes(WRITTEN))
            file.flush()
            os.fsync(file.fileno())  # some file systems report a full quota only here
    except OSError as error:
        why = "its file system is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise Problem(f"{there} cannot be written to ({why}): set {what} to a folder that can") from None
    has = os.statvfs(there)
    return judge_space(
        what, str(there), has.f_bavail * has.f_frsize, has.f_favail if has.f_files else -1, least, enough
    )


def temporary(ranks: int) -> str:
    """Checks the space for temporary files (TMPDIR) and in shared memory (/dev/shm); returns both as text.

    Args:
        ranks: number of ranks on this node.

    Raises:
        Problem: TMPDIR does not exist, or one of the two has too little space.
    """
    folder = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  # tempfile would silently choose another folder
    if not folder.is_dir():
        raise Problem(f"TMPDIR={folder} is not there: make it in cluster.setup, or set it in cluster.environment")
    results = [space("TMPDIR (cluster.environment)", folder, LEAST_TMP, ENOUGH_TMP)]
    shared = Path("/dev/shm")  # noqa: S108
    if shared.is_dir():
        has = os.statvfs(shared)
        results.append(judge_space("a container's --shm-size", str(shared), has.f_bavail * has.f_frsize, -1, LEAST_SHM,
                                   ENOUGH_SHM * ranks))  # fmt: skip
    return "; ".join(results)


def checkpoint_space(plan: JobPlan) -> str:
    """Checks the space for checkpoints, and returns it as text.

    The check fails if a checkpoint of the newest one's size would not fit, and warns if two would not.

    Raises:
        Problem: as by `space`.
    """
    folder, newest = Path(plan.checkpoint.dir), 0
    with contextlib.suppress(checkpoints.Unavailable):
        newest = next((each.size for each in checkpoints.sound(folder).values()), 0)
    return space("checkpoint.dir", folder, max(LEAST, newest), max(ENOUGH, 2 * newest))


# -- the run directory, which all nodes share


def write_mine(folder: Path, index: int, text: str) -> str:
    """Writes this agent's file `member-INDEX` to the attempt's directory `preflight`. Returns "".

    Args:
        folder: the directory; it is created with mode 0700.
        index: index of the agent.
        text: content of the file.

    Raises:
        Problem: the file cannot be written, or the file system does not keep its owner and mode.
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
        raise Problem(f"{folder} cannot be written to ({error.strerror}): set runs_dir to a shared folder") from None
    return judge_owner(path, status.st_uid, os.getuid(), status.st_mode)


def judge_owner(path: Path, owner: int, me: int, mode: int) -> str:
    """Checks the owner and mode of a file that was created with mode 0600. Returns "". Pure.

    Args:
        path: the file.
        owner: user id of the file's owner.
        me: user id of this process.
        mode: mode of the file.

    Raises:
        Problem: the file belongs to another user (the file system maps ids), or others can write to it.
    """
    if owner != me:
        raise Problem(
            f"{path} belongs to user {owner} and was made by {me}: ids are mapped there; set runs_dir elsewhere"
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Problem(
            f"{path} has mode {stat.S_IMODE(mode):o} and was made with 600: set runs_dir to another file system"
        )
    return ""


def see(folder: Path, texts: Mapping[int, str], timeout: float) -> str:
    """Waits until the files of other agents are visible, and returns their number as text.

    Args:
        folder: the attempt's directory `preflight`.
        texts: expected content of each file, by the agent's index.
        timeout: seconds.

    Raises:
        Problem: some files are missing or have other content; accuses their agents.
    """
    deadline, left = time.monotonic() + timeout, dict(texts)
    while True:
        for index in list(left):
            with contextlib.suppress(OSError):
                if (folder / f"member-{index}").read_text() == left[index]:
                    del left[index]
        if not left:
            return f"{plural(len(texts), 'file')} of other nodes seen"
        if time.monotonic() > deadline:
            raise Problem(
                f"{folder} does not show what other nodes write within {timeout:g} s: is it on a file system that "
                "all nodes share? Set runs_dir to one", accused=sorted(left), looked=len(texts),
            )  # fmt: skip
        os.scandir(folder).close()  # refreshes NFS's cache
        time.sleep(0.05)

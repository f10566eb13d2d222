"""Which accelerators a rank sees, and which device it computes on.

If a GPU was asked for and is missing, that is an error, never a reason to train on the CPU. The workloads of this
repository see one GPU per rank, so that no thread can use another rank's by mistake: CUDA's current device is
per thread, and initially 0. Users' programs and functions see all GPUs of the node, since they are written for
torchrun's contract: LOCAL_RANK is the index of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from launcher import errors
from launcher.config.schema import Device, VisibleDevices
from launcher.spec.plan import JobPlan

ASKED = "LAUNCHER_GPUS_PER_NODE"  # for a rank, and a program that it executes: how many GPUs the run asked for
# The variables that limit what a process sees, by the kind of torch build. If several are set, the last one is
# narrowed. ROCm applies ROCR_VISIBLE_DEVICES first; the others count within the remaining devices.
_MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
}
_NO_DEVICES = ("", "-1", "NoDevFiles")  # the last one is Slurm's


class BackendError(errors.LauncherError):
    """The backend or device that was asked for is not available here; a retry would fail too."""

    exit_code = errors.NO_RETRY


def torch_build() -> str:
    """The kind of accelerator that this torch was built for: cuda, hip or xpu; empty for CPUs only."""
    found = next((kind for kind in ("hip", "cuda", "xpu") if getattr(torch.version, kind, None)), "")
    return found or ("xpu" if torch.xpu._is_compiled() else "")  # before 2.5 torch.version did not tell


# -- what a rank sees


def variables(plan: JobPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to set in a rank before torch uses an accelerator; `environ` must contain LOCAL_RANK already."""
    changes = visible_device_changes(
        environ,
        local_rank=int(environ["LOCAL_RANK"]),
        ranks=int(environ["LOCAL_WORLD_SIZE"]),
        gpus_per_node=plan.gpus_per_node if plan.workload.device != Device.cpu.value else 0,
        wanted=VisibleDevices(plan.launch.visible_devices),
        own_code=plan.own_code,
        build=torch_build(),
    )
    return {ASKED: str(plan.gpus_per_node), **changes}


def visible_device_changes(
    environ: Mapping[str, str],
    *,
    local_rank: int,
    ranks: int,
    gpus_per_node: int,
    wanted: VisibleDevices,
    own_code: bool,
    build: str,
) -> dict[str, str]:
    """The variables that make a rank see one device only. Pure; the first row that applies decides.

    | launch.visible_devices | the node | the rank sees |
    |---|---|---|
    | all; or auto, and the ranks run the user's own code | | all that is there |
    | otherwise | no GPUs were asked for, or torch is CPU-only and no mask is set | all that is there |
    | | the mask names one device, or none (the scheduler gave each task its own) | all that is there |
    | | the mask names fewer devices than the node has ranks | all that is there: `choose_device` refuses |
    | | the mask names enough | its entry at the index of the local rank, unchanged (number, UUID, MIG) |
    | | no mask is set, and there are as many GPUs as ranks | the GPU with the number of the local rank |

    Args:
        environ: variables of the rank.
        local_rank: of this rank.
        ranks: number of ranks on the node.
        gpus_per_node: GPUs that the run asked for on each node.
        wanted: launch.visible_devices.
        own_code: whether the ranks run the user's own program or function.
        build: see `torch_build`.

    Returns:
        The variables to set.
    """
    if wanted is VisibleDevices.all or (wanted is VisibleDevices.auto and own_code) or not gpus_per_node:
        return {}
    mask = _mask(environ, build)
    if mask is None:
        return {}
    shown = environ.get(mask)
    entries = [str(number) for number in range(gpus_per_node)] if shown is None else _entries(shown)
    already = shown is not None and len(entries) < 2
    return {} if already or len(entries) < ranks else {mask: entries[local_rank]}


def _mask(environ: Mapping[str, str], build: str) -> str | None:
    """The mask to narrow. With a CPU-only torch, which may not be the program's, the one that is set."""
    known = _MASKS.get(build) or tuple(name for names in reversed(_MASKS.values()) for name in names)
    there = [name for name in known if name in environ]
    if there:
        return there[-1]
    return {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}.get(build)


def _entries(mask: str) -> list[str]:
    """The devices of a mask; a driver ignores everything from the first invalid entry on."""
    entries = []
    for entry in mask.split(","):
        if entry.strip() in _NO_DEVICES:
            break
        entries.append(entry.strip())
    return entries


# -- the device of a rank


@dataclass(frozen=True)
class Accelerators:
    """The accelerators that this process sees.

    Attributes:
        kind: their torch.device type (cuda on ROCm as well); empty if torch was built for CPUs only.
        count: how many there are.
        torch: torch's version.
        mask: the variables that limit what the process sees, with their values.
        error: the driver's message if it found none.
    """

    kind: str
    count: int
    torch: str
    mask: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        """A description for errors."""
        if not self.kind:
            return f"torch {self.torch} was built for CPUs only"
        error = f"; the driver says: {self.error}" if self.error else ""
        return f"torch {self.torch} finds {self.count or 'none'} with {self.mask}{error}"


def find_accelerators(environ: Mapping[str, str]) -> Accelerators:
    """The accelerators that this process sees now."""
    build = torch_build()
    names = _MASKS.get(build, ())
    mask = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
    kind = "cuda" if build == "hip" else build
    if not kind:
        return Accelerators("", 0, torch.__version__)
    device_module = getattr(torch, kind)
    count, error = device_module.device_count(), ""
    if not count:
        try:
            device_module.init()
        except Exception as failed:  # RuntimeError, and AssertionError of some builds
            error = str(failed).partition("\n")[0]
    return Accelerators(kind, count, torch.__version__, mask or f"{names[-1]} not set", error)


def choose_device(
    wanted: str, asked: int, seen: Accelerators, *, rank: int, local_rank: int, ranks: int, host: str
) -> tuple[str, int | None]:
    """The type and the index of a rank's device. Pure; the first row that applies decides.

    A run that asked for GPUs uses no more of those that it sees: a machine without a scheduler shows them all.

    | device | GPUs asked for | GPUs seen, at most as many as asked for | result |
    |---|---|---|---|
    | cpu | | | the CPU |
    | cuda, xpu | | accelerators of another kind, or none | refused |
    | auto | some | none | refused |
    | auto | none | none | the CPU |
    | not cpu | | more than one, but fewer than the node has ranks | refused |
    | not cpu | | one | that one; ranks that share it are found when they join |
    | not cpu | | enough | the one with the number of the local rank |

    Args:
        wanted: auto, cpu, cuda or xpu.
        asked: GPUs on each node that the run asked for; 0 outside of a run.
        seen: by this process.
        rank, local_rank: of this rank.
        ranks: number of ranks on its node.
        host: its node.

    Raises:
        BackendError: the device that was asked for is not available.
    """
    if wanted == Device.cpu.value or (wanted == Device.auto.value and not asked and not seen.count):
        return "cpu", None
    if not seen.count or wanted not in (Device.auto.value, seen.kind):
        key = f"gpus_per_node={asked} with device={wanted}" if asked else f"device={wanted}"
        raise BackendError(
            f"{key} asks for a GPU, and rank {rank} on {host} sees no GPU: {seen.text}. Compare with `nvidia-smi` "
            "(`rocm-smi`, `xpu-smi`) there, and with what the scheduler was asked for (gpus_per_node, "
            "cluster.gpu_directive); to compute on the CPU set workload.device=cpu"
        )
    count = min(seen.count, asked) if asked else seen.count
    if 1 < count < ranks:
        raise BackendError(
            f"{ranks} ranks on {host} with {count} GPUs: use procs_per_node={count} or workload.device=cpu"
        )
    return seen.kind, local_rank % count

"""What a rank asks of its device, whatever its kind: CUDA, ROCm (which torch calls cuda too), XPU, or the CPU.

torch has a module for each kind (torch.cuda, torch.xpu) with functions of the same names. They are used rather than
torch.accelerator, which is there since torch 2.6 only and would look for the kind that a rank knows. A function that
an older module lacks counts as a feature that the device lacks.
"""

from __future__ import annotations

from typing import Any

import torch

# By type of device: the backend that torch.distributed has for it. Its collectives are queued on the device's current
# stream; those of the others are done when a call, or its wait(), returns.
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
ON_STREAM = {"nccl": "cuda", "xccl": "xpu"}


def module(device: torch.device) -> Any:
    """torch's module for a device's kind; None: it is the CPU."""
    return None if device.type == "cpu" else getattr(torch, device.type)


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if (there := module(device)) is not None:
        there.synchronize(device)


def name(device: torch.device) -> str:
    """The model of an accelerator; empty: it is the CPU."""
    there = module(device)
    return "" if there is None else str(there.get_device_name(device))


def memory(device: torch.device) -> tuple[int, int] | None:
    """Bytes of an accelerator's memory that are free, and all; None: it is the CPU, or this torch cannot tell."""
    found = getattr(module(device), "mem_get_info", None)
    if found is None:
        return None
    free, total = found(device)
    return int(free), int(total)


def has_bfloat16(device: torch.device) -> bool:
    """Whether an accelerator computes in bfloat16 itself; on the CPU False."""
    there = module(device)
    if device.type == "cuda":
        return bool(there.is_bf16_supported(including_emulation=False))
    supported = getattr(there, "is_bf16_supported", None)
    return bool(supported is not None and supported())


def seed(value: int) -> None:
    """Seeds the generator of this process's current accelerator, if it uses one."""
    kinds = (torch.cuda, torch.xpu) if torch.xpu._is_compiled() else (torch.cuda,)
    for there in kinds:
        if there.is_initialized():
            there.manual_seed(value)


def has_backend(backend: str) -> bool:
    """Whether this torch has xccl, or another backend by its name: `torch.distributed.is_NAME_available`."""
    available = getattr(torch.distributed, f"is_{backend}_available", None)
    return bool(available is not None and available())


def of_backend(backend: str) -> torch.device:
    """The device of the tensors that a backend takes from this process: its current one, or the CPU."""
    kind = ON_STREAM.get(backend)
    return torch.device("cpu") if kind is None else torch.device(kind, getattr(torch, kind).current_device())

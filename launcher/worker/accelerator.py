"""The same calls for every type of device: CUDA, ROCm (which torch calls cuda too), XPU, and the CPU.

torch has a module for each type (torch.cuda, torch.xpu) with functions of the same names. They are used instead of
torch.accelerator, which needs torch 2.6 and would detect a type that the rank knows already. If an older torch lacks a
function, the device counts as lacking the feature.
"""

from __future__ import annotations

from typing import Any

import torch

# The backend of torch.distributed for each type of device. Collectives of the backends in ON_STREAM are queued on the
# device's current stream. Those of other backends are complete when the call, or its wait(), returns.
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
ON_STREAM = {"nccl": "cuda", "xccl": "xpu"}


def module(device: torch.device) -> Any:
    """Returns torch's module for a device's type (torch.cuda, torch.xpu); None for the CPU."""
    return None if device.type == "cpu" else getattr(torch, device.type)


def synchronize(device: torch.device) -> None:
    """Waits until an accelerator has finished all queued work. Returns at once for the CPU."""
    if (there := module(device)) is not None:
        there.synchronize(device)


def name(device: torch.device) -> str:
    """Returns the model name of an accelerator; empty for the CPU."""
    there = module(device)
    return "" if there is None else str(there.get_device_name(device))


def memory(device: torch.device) -> tuple[int, int] | None:
    """Returns an accelerator's free and total memory in bytes; None for the CPU, or if this torch cannot tell."""
    found = getattr(module(device), "mem_get_info", None)
    if found is None:
        return None
    free, total = found(device)
    return int(free), int(total)


def has_bfloat16(device: torch.device) -> bool:
    """Returns whether an accelerator computes in bfloat16 without emulation; False for the CPU."""
    there = module(device)
    if device.type == "cuda":
        return bool(there.is_bf16_supported(including_emulation=False))
    supported = getattr(there, "is_bf16_supported", None)
    return bool(supported is not None and supported())


def current() -> torch.device:
    """Returns the current accelerator, if this process has initialized one; else the CPU."""
    kinds = {"cuda": torch.cuda, "xpu": torch.xpu} if torch.xpu._is_compiled() else {"cuda": torch.cuda}
    for kind, there in kinds.items():
        if there.is_initialized():
            return torch.device(kind, there.current_device())
    return torch.device("cpu")


def seed(value: int) -> None:
    """Seeds the random generator of the current accelerator, if this process has initialized one."""
    if (there := module(current())) is not None:
        there.manual_seed(value)


def has_backend(backend: str) -> bool:
    """Returns whether this torch was built with a backend such as xccl (`torch.distributed.is_NAME_available`)."""
    available = getattr(torch.distributed, f"is_{backend}_available", None)
    return bool(available is not None and available())


def of_backend(backend: str) -> torch.device:
    """Returns the device on which a backend needs tensors: the current GPU or XPU for nccl and xccl, else the CPU."""
    kind = ON_STREAM.get(backend)
    return torch.device("cpu") if kind is None else torch.device(kind, getattr(torch, kind).current_device())

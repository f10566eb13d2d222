"""Copies of a state, made while training continues, which training cannot change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.state import local_part, size_of
from launcher.torch_compat import DTensor

AT_ONCE = 1 << 20  # bytes; tensors up to this size are copied before a save returns,
AT_ONCE_ALL = 1 << 24  # up to this total size


class Staging:
    """Copies in CPU memory, reused by the next save, so that the kernel need not find new pages."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def start(self, tensors: Mapping[str, Tensor], *, still: bool = False) -> Copying:
        """Copies the small tensors; `finish` of the result copies the others, perhaps in another thread.

        The copies have the values at this moment on a GPU's current stream.

        Args:
            tensors: whole and sharded ones, by name.
            still: whether nothing changes them until they are written; then tensors in CPU memory are not copied.
        """
        copied = {name: tensor for name, tensor in tensors.items() if _is_plain(tensor)} if still else {}
        total = 0
        for name, tensor in tensors.items():
            size = size_of(local_part(tensor))
            if name not in copied and size <= AT_ONCE and total + size <= AT_ONCE_ALL:
                total += size
                copied[name] = self.copy(name, tensor)
        ready = {}
        for device, module in _devices(tensors):
            with module.device(device):
                ready[device] = module.Event()
                ready[device].record(module.current_stream(device))
        for event in ready.values():
            event.synchronize()  # so that the small tensors may change
        return Copying(self, dict(tensors), copied, ready)

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """Copies this rank's shard to contiguous CPU memory; a copy from a GPU may still be running on return.

        It runs on the current stream of the tensor's device.
        """
        here = local_part(tensor)
        known = self._copies.get(name)
        if known is None or known.shape != here.shape or known.dtype != here.dtype:
            known = torch.empty(here.shape, dtype=here.dtype, pin_memory=_pins(here.device))
            self._copies[name] = known
        known.copy_(here, non_blocking=_streams_of(here.device) is not None)
        # The constructor is used since from_local() would move the copy to the mesh's device.
        return DTensor(known, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else known

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Frees the memory of all other copies."""
        for name in set(self._copies) - set(names):
            del self._copies[name]


@dataclass
class Copying:
    """The copies of one save.

    Attributes:
        staging: has the buffers.
        tensors: to be copied, by name.
        copied: those that are copied already.
        ready: by device, the event after which its tensors have the values to save.
    """

    staging: Staging
    tensors: dict[str, Tensor]
    copied: dict[str, Tensor]
    ready: dict[torch.device, Any]

    def finish(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Completes the copies of these tensors and returns them. May run in another thread than the training.

        After the first call training may change the tensors: later calls return the copies of the first call, and must
        not ask for other names.

        A new thread's current device and streams are those of device 0, whatever this rank's device is. So a stream is
        made for each device, and made current on that device.
        """
        self.staging.forget_all_but(names)
        streams: dict[torch.device, Any] = {}
        with contextlib.ExitStack() as stack:
            for device, event in self.ready.items():
                module = _streams_of(device)
                stack.enter_context(module.device(device))
                streams[device] = module.Stream(device)
                streams[device].wait_event(event)
            copies = {}
            for name in names:
                if name in self.copied:
                    copies[name] = self.copied[name]
                    continue
                device = local_part(self.tensors[name]).device
                if device in streams:
                    with _streams_of(device).stream(streams[device]):
                        copies[name] = self.staging.copy(name, self.tensors[name])
                else:
                    copies[name] = self.staging.copy(name, self.tensors[name])
            for stream in streams.values():
                stream.synchronize()
        self.copied.update(copies)
        return copies


def _pins(device: torch.device) -> bool:
    """Whether memory of the host is pinned for copies from this device: until torch 2.6, for CUDA and ROCm alone."""
    return device.type == "cuda" or (_streams_of(device) is not None and hasattr(torch, "accelerator"))


def _streams_of(device: torch.device) -> Any:
    """The torch module with this kind of device's streams (torch.cuda); None if copies from it are synchronous."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if all(hasattr(module, name) for name in ("Stream", "Event", "device", "current_stream")) else None


def _devices(tensors: Mapping[str, Tensor]) -> list[tuple[torch.device, Any]]:
    """The devices of these tensors with asynchronous copies, and the modules with their streams."""
    found = dict.fromkeys(local_part(tensor).device for tensor in tensors.values())
    return [(device, module) for device in found if (module := _streams_of(device)) is not None]


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is in CPU memory in the form in which it is written, and fills its storage."""
    here = local_part(tensor)
    return here.is_cpu and here.is_contiguous() and here.untyped_storage().nbytes() == size_of(here)

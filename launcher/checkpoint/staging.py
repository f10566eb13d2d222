"""Copies a state to CPU memory while training continues, so that training may change it before it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.state import local_part, size_of
from launcher.torch_compat import DTensor

AT_ONCE = 1 << 20  # bytes; tensors of at most this size are copied before `start` returns,
AT_ONCE_ALL = 1 << 24  # bytes; but not more than this in total


class Staging:
    """Buffers in CPU memory for copies of tensors. The next save reuses them, so the kernel need not find new pages."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def start(self, tensors: Mapping[str, Tensor], *, still: bool = False) -> Copying:
        """Copies the small tensors. `finish` of the returned object copies the others, perhaps in another thread.

        On a GPU the copies have the values that the tensors have at this point of the current stream.

        tensors: whole and sharded tensors, by name.
        still: whether nothing changes the tensors until they are written. Contiguous tensors in CPU memory are then not
            copied.
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
        """Copies a tensor, or this rank's shard of it, to the buffer for its name, in contiguous CPU memory.

        A copy from a GPU is queued on the current stream of the tensor's device, and may still be running on return.

        Returns the copy; for a DTensor a DTensor whose shard is in CPU memory.
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
        """Frees the buffers of all names that are not given."""
        for name in set(self._copies) - set(names):
            del self._copies[name]


@dataclass
class Copying:
    """The copies of one save, partly still to be made."""

    staging: Staging  # owner of the buffers
    tensors: dict[str, Tensor]  # the tensors to copy, by name
    copied: dict[str, Tensor]  # copies that are complete, by name
    ready: dict[torch.device, Any]  # for each device the event after which its tensors have the values to save

    def finish(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Completes the copies of the tensors with these names, and returns them. May run in any thread.

        After the first call training may change the tensors. Later calls return the same copies, and must not ask for
        other names.
        """
        # A new thread's current device and streams are those of device 0, whatever this rank's device is. So a stream
        # is made for each device, and made current on that device.
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
    return device.type == "cuda" or (_streams_of(device) is not None and hasattr(torch, "accelerator"))


def _streams_of(device: torch.device) -> Any:
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if all(hasattr(module, name) for name in ("Stream", "Event", "device", "current_stream")) else None


def _devices(tensors: Mapping[str, Tensor]) -> list[tuple[torch.device, Any]]:
    found = dict.fromkeys(local_part(tensor).device for tensor in tensors.values())
    return [(device, module) for device in found if (module := _streams_of(device)) is not None]


def _is_plain(tensor: Tensor) -> bool:
    here = local_part(tensor)
    return here.is_cpu and here.is_contiguous() and here.untyped_storage().nbytes() == size_of(here)

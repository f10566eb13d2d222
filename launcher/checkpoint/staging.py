"""Copies of a state that training cannot change, made while training goes on."""

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
AT_ONCE_ALL = 1 << 24  # as long as all of them together are not larger than this


class Staging:
    """Copies in CPU memory that are used again for the next save, so that the kernel need not find pages anew."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def start(self, tensors: Mapping[str, Tensor], *, still: bool = False) -> Copying:
        """Copies the small ones; the others are copied by the result's `finish`, perhaps in another thread.

        The values are those at this moment on the current stream of a GPU.

        Args:
            tensors: whole ones and divided ones, by name.
            still: nothing changes them until they are written, so what is in CPU memory is not copied at all.
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
            event.synchronize()  # so that the small ones may change
        return Copying(self, dict(tensors), copied, ready)

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's part, contiguous, in CPU memory; a copy from a GPU may still be under way.

        It runs on the current stream of the tensor's device.
        """
        here = local_part(tensor)
        known = self._copies.get(name)
        if known is None or known.shape != here.shape or known.dtype != here.dtype:
            known = torch.empty(here.shape, dtype=here.dtype, pin_memory=here.is_cuda)
            self._copies[name] = known
        known.copy_(here, non_blocking=_streams_of(here.device) is not None)
        # The constructor, because from_local() would move the copy to the mesh's device.
        return DTensor(known, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else known

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Gives memory back."""
        for name in set(self._copies) - set(names):
            del self._copies[name]


@dataclass
class Copying:
    """The copies of one save.

    Attributes:
        staging: where they go.
        tensors: what is copied, by name.
        copied: what is copied already.
        ready: by device the event after which its tensors have the values that are saved.
    """

    staging: Staging
    tensors: dict[str, Tensor]
    copied: dict[str, Tensor]
    ready: dict[torch.device, Any]

    def finish(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The copies of these tensors, all done. May run in another thread than the training.

        After the first call the training may change the tensors: a later call gives the same copies of those that the
        first one has made, and must not ask for others.

        That thread has a current device and current streams of its own: those of device 0, whatever this rank's is. So
        for each device a stream is made, and made current, on that very device.
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


def _streams_of(device: torch.device) -> Any:
    """The module with the streams of this kind of device (torch.cuda); None: copies from it are waited for."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if all(hasattr(module, name) for name in ("Stream", "Event", "device", "current_stream")) else None


def _devices(tensors: Mapping[str, Tensor]) -> list[tuple[torch.device, Any]]:
    """The devices of these tensors from which copies are not waited for, and the modules with their streams."""
    found = dict.fromkeys(local_part(tensor).device for tensor in tensors.values())
    return [(device, module) for device in found if (module := _streams_of(device)) is not None]


def _is_plain(tensor: Tensor) -> bool:
    """Whether it lies in CPU memory as it would be written, with nothing around it."""
    here = local_part(tensor)
    return here.is_cpu and here.is_contiguous() and here.untyped_storage().nbytes() == size_of(here)

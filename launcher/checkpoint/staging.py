"""Copies of a state that training cannot change, made while training goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from launcher.checkpoint.state import local_part, size_of

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
        event = None
        if any(tensor.is_cuda for tensor in tensors.values()):
            event = torch.cuda.Event()
            event.record()
            event.synchronize()  # so that the small ones may change
        return Copying(self, dict(tensors), copied, event)

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's part, contiguous, in CPU memory; a copy from a GPU may still be under way."""
        here = local_part(tensor)
        known = self._copies.get(name)
        if known is None or known.shape != here.shape or known.dtype != here.dtype:
            known = torch.empty(here.shape, dtype=here.dtype, pin_memory=here.is_cuda)
            self._copies[name] = known
        known.copy_(here, non_blocking=True)
        # The constructor, because from_local() would move the copy to the mesh's device.
        return DTensor(known, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else known

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Gives memory back."""
        for name in set(self._copies) - set(names):
            del self._copies[name]


@dataclass
class Copying:
    """The copies of one save."""

    staging: Staging
    tensors: dict[str, Tensor]
    copied: dict[str, Tensor]
    event: torch.cuda.Event | None

    def finish(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The copies of these tensors, all done."""
        self.staging.forget_all_but(names)
        if self.event is None:
            return self._copies(names)
        stream = torch.cuda.Stream()
        stream.wait_event(self.event)
        with torch.cuda.stream(stream):
            copies = self._copies(names)
        stream.synchronize()
        return copies

    def _copies(self, names: Sequence[str]) -> dict[str, Tensor]:
        copied, staging = self.copied, self.staging
        return {name: copied[name] if name in copied else staging.copy(name, self.tensors[name]) for name in names}


def _is_plain(tensor: Tensor) -> bool:
    """Whether it lies in CPU memory as it would be written, with nothing around it."""
    here = local_part(tensor)
    return here.is_cpu and here.is_contiguous() and here.untyped_storage().nbytes() == size_of(here)

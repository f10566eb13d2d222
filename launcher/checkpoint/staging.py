"""Takes a rank's state, for a checkpoint or for a copy in memory: copies of its tensors, and what else is saved.

Both are made by a thread, while training continues (`Snapshot.run`). It lets the training change the state as soon as
the tensors are copied (`staged`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from launcher.checkpoint.files import one_line
from launcher.checkpoint.loading import expanded
from launcher.checkpoint.state import Content, facts, local_part, plain, size_of
from launcher.torch_compat import DTensor, with_local
from launcher.worker import heartbeat

AT_ONCE = 1 << 20  # bytes; tensors of at most this size are copied before `start` returns,
AT_ONCE_ALL = 1 << 24  # bytes; but not more than this in total


class Staging:
    """Buffers in CPU memory for copies of tensors. The next save reuses them, so the kernel need not find new pages."""

    def __init__(self, buffers: Mapping[str, Tensor] | None = None) -> None:
        self._copies: dict[str, Tensor] = dict(buffers or {})

    def start(self, tensors: Mapping[str, Tensor], *, still: bool = False) -> Copying:
        """Copies the small tensors. `finish` of the returned object copies the others, perhaps in another thread.

        On a GPU the copies have the values that the tensors have at this point of the current stream.
        still: nothing changes the tensors until they are written: those contiguous in CPU memory are not copied.
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
        """Returns a copy of a tensor, or of a DTensor's shard, in this name's buffer in contiguous CPU memory.

        A copy from a GPU is queued on the current stream of the tensor's device, and may still be running on return.
        """
        here = local_part(tensor)
        known = self._copies.get(name)
        if known is None or known.shape != here.shape or known.dtype != here.dtype:
            known = torch.empty(here.shape, dtype=here.dtype, pin_memory=_pins(here.device))
            self._copies[name] = known
        known.copy_(here, non_blocking=_streams_of(here.device) is not None)
        # The constructor is used since from_local() would move the copy to the mesh's device.
        return with_local(known, tensor) if isinstance(tensor, DTensor) else known

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

        After the first call training may change the tensors. Later calls must not ask for other names.
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


# -- The state of one rank, on its way to a checkpoint or to memory


@dataclass
class Snapshot:
    """A rank's state after a step, while it is saved. An error is kept, since the other ranks wait for this one."""

    step: int  # steps of the run that are done
    extra: dict[str, Any] = field(default_factory=dict)  # extra, metrics, rank_state: as given to `Checkpointer.save`
    metrics: dict[str, float] = field(default_factory=dict)
    rank_state: dict[str, Any] | None = None
    content: Content | None = None  # the state; None if this rank has a `fault`
    copying: Copying | None = None  # the copies of its tensors, or of those that this rank saves; None like `content`
    fault: str | None = None  # why this rank's state cannot be saved; None: it can
    final: bool = False  # whether the fault will also be there at the next step
    began: float = field(default_factory=time.perf_counter)  # by time.perf_counter()
    blocked: float = 0.0  # seconds for which training was blocked so far
    _staged: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None  # None: the training's own

    @contextlib.contextmanager
    def keeps_faults(self) -> Iterator[None]:
        """Context manager: an error becomes this rank's fault."""
        try:
            yield
        except (TypeError, ValueError) as error:
            self.fault, self.final = str(error), True
        except RecursionError:
            self.fault, self.final = "the state is nested too deeply to be saved", True
        except Exception as error:  # out of memory, for example
            self.fault = one_line(error)

    def take(
        self, state: Mapping[str, Any], rank_state: Mapping[str, Any] | None, extra: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> Content:  # fmt: skip
        """Copies all but the tensors of the state, which the returned content has; arguments: as of `save`."""
        self.extra, self.metrics = facts(extra, "extra"), facts(metrics, "metrics")
        self.content = Content.of(expanded(state)[0])
        self.rank_state = None if rank_state is None else plain(expanded(rank_state)[0], "rank_state")
        return self.content

    def run(self, function: Callable[[], None], name: str) -> None:
        """Calls a function in a thread, for which a process that ends waits."""
        self.thread = threading.Thread(target=function, name=name)
        self.thread.start()
        self.blocked += time.perf_counter() - self.began

    def copied(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Returns the copies of the tensors with these names (None: all); from then on the state may change."""
        assert self.copying is not None
        copies = self.copying.finish(list(self.copying.tensors) if names is None else names)
        self.release()
        return copies

    def release(self) -> None:
        """Lets training change the state."""
        self._staged.set()

    def staged(self) -> float:
        """Waits until the state may change; returns the seconds waited."""
        if self._staged.is_set():
            return 0.0
        began = time.perf_counter()
        self._staged.wait()
        waited = time.perf_counter() - began
        self.blocked += waited
        return waited

    def join(self) -> None:
        """Waits for the end of the thread."""
        if self.thread is not None and self.thread.is_alive():
            with heartbeat.alive():
                self.thread.join()

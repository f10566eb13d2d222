"""A fake of torch.cuda without a GPU: it records streams, events and copies, and runs them as late as a GPU may.

Work in a stream runs only when the code waits for the stream or for an event in it. So a missing wait shows: the target
of a copy keeps its old bytes if the code waits for another stream, and a copy that does not wait for the kernels that
write its source copies the old bytes.

As in CUDA, the current device and the current stream of each device belong to a thread, and a new thread starts on
device 0 and on default streams. A copy runs on the current stream of its tensor's device, whatever device is current.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

_numbers = itertools.count()


@dataclass(frozen=True)
class Call:
    """A call that was recorded: `copy`, `record`, `wait` or `synchronize`, with its device, stream and thread."""

    what: str
    device: int
    stream: int
    thread: str


class Stream:
    """A stream: work in order, of which the first `done` items have run."""

    def __init__(self, cuda: FakeCuda, device: int, default: bool = False) -> None:
        self.cuda, self.device_index, self.default = cuda, device, default
        self.number = next(_numbers)
        self.work: list[Callable[[], object]] = []
        self.done = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)

    def put(self, work: Callable[[], object]) -> None:
        self.work.append(work)

    def run(self, until: int | None = None) -> None:
        """Runs all work before position `until`."""
        until = len(self.work) if until is None else until
        while self.done < until:
            self.done += 1
            self.work[self.done - 1]()

    def wait_event(self, event: Event) -> None:
        self.cuda.note("wait", self)
        at = event.at
        if at is not None:  # waiting for an event that was not recorded does nothing, as in CUDA
            self.put(lambda: at[0].run(at[1]))

    def wait_stream(self, other: Stream) -> None:
        event = self.cuda.event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        self.cuda.note("synchronize", self)
        self.run()


class Event:
    """An event: a position in a stream of the device on which it was first recorded."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.at: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.cuda.current_stream()
        if self.at is not None and self.at[0].device_index != stream.device_index:
            raise RuntimeError(f"an event of cuda:{self.at[0].device_index} is recorded on cuda:{stream.device_index}")
        self.cuda.note("record", stream)
        self.at = stream, len(stream.work)

    def synchronize(self) -> None:
        if self.at is not None:
            self.at[0].run(self.at[1])


class Tensor(torch.Tensor):
    """A tensor on a fake device; its data is in `data_`, and changes when its stream runs."""

    data_: torch.Tensor
    cuda_: FakeCuda

    @staticmethod
    def __new__(cls, data: torch.Tensor, device: int, cuda: FakeCuda) -> Tensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.shape, dtype=data.dtype, device=torch.device("cuda", device)
        )
        made.data_, made.cuda_ = data, cuda
        return made  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:
        return f"Tensor(cuda:{self.device.index})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Tensor(args[0].data_, args[0].device.index, args[0].cuda_)
        if func is torch.ops.aten.copy_.default and isinstance(args[1], Tensor):
            args[1].cuda_.copy(args[0], args[1], blocks=not (len(args) > 2 and args[2]))
            return args[0]
        if func is torch.ops.aten.clone.default:
            made = Tensor(torch.zeros_like(args[0].data_), args[0].device.index, args[0].cuda_)
            source = args[0].data_
            made.cuda_.current_stream(made.device).put(lambda: made.data_.copy_(source))
            return made
        raise NotImplementedError(f"{func}: not made for this fake")


@dataclass
class FakeCuda:
    """The fake of torch.cuda; `calls` are recorded in order."""

    devices: int = 2
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._local = threading.local()
        self._defaults = [Stream(self, device, default=True) for device in range(self.devices)]

    def note(self, what: str, stream: Stream) -> None:
        self.calls.append(Call(what, stream.device_index, stream.number, threading.current_thread().name))

    # -- of this thread

    def current_device(self) -> int:
        return int(getattr(self._local, "device", 0))

    def set_device(self, device: Any) -> None:
        self._local.device = self._index(device)

    def current_stream(self, device: Any = None) -> Stream:
        index = self._index(device)
        return self._streams().get(index, self._defaults[index])

    def _streams(self) -> dict[int, Stream]:
        if not hasattr(self._local, "streams"):
            self._local.streams = {}
        streams: dict[int, Stream] = self._local.streams
        return streams

    def _index(self, device: Any) -> int:
        if isinstance(device, torch.device):
            device = device.index
        return self.current_device() if device is None else int(device)

    # -- torch.cuda's names

    def event(self, **_: Any) -> Event:
        return Event(self)

    def stream(self, device: Any = None, **_: Any) -> Stream:
        return Stream(self, self._index(device))

    @contextlib.contextmanager
    def on_device(self, device: Any) -> Iterator[None]:
        before = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self.set_device(before)

    @contextlib.contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        """Like torch.cuda.stream: the stream's device becomes the current one too."""
        index = stream.device_index
        before = self.current_stream(index)
        with self.on_device(index):
            self._streams()[index] = stream
            try:
                yield
            finally:
                self._streams()[index] = before

    def synchronize(self, device: Any = None) -> None:
        self.current_stream(device).run()

    # -- for tests

    def tensor(self, data: torch.Tensor, device: int) -> Tensor:
        return Tensor(data, device, self)

    def kernel(self, tensor: Tensor, value: float) -> None:
        """Adds a kernel that fills a tensor to the current stream of its device."""
        self.current_stream(tensor.device).put(lambda: tensor.data_.fill_(value))

    def copy(self, target: torch.Tensor, source: Tensor, *, blocks: bool) -> None:
        stream = self.current_stream(source.device)
        self.note("copy", stream)
        stream.put(lambda: target.copy_(source.data_))
        if blocks:
            stream.run()


def install(monkeypatch: pytest.MonkeyPatch, devices: int = 2) -> FakeCuda:
    """Replaces torch.cuda by a fake in all threads, and returns it."""
    fake = FakeCuda(devices)
    for name, value in {
        "Event": fake.event, "Stream": fake.stream, "stream": fake.on_stream, "device": fake.on_device,
        "current_stream": fake.current_stream, "current_device": fake.current_device, "set_device": fake.set_device,
        "synchronize": fake.synchronize, "is_available": lambda: True, "device_count": lambda: devices,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k).zero_())
    return fake

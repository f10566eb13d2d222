"""Copies of a state from GPUs: on the right device and stream, after what makes it, before what changes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from launcher.checkpoint.saving import AT_ONCE, AT_ONCE_ALL, Staging, pinned
from tests.fakes import cuda
from tests.fakes.cuda import FakeCuda

LARGE = AT_ONCE // 4 + 1  # elements


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return cuda.install(monkeypatch)


def in_thread(function: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), name="checkpoint")
    thread.start()
    thread.join()
    (result,) = found
    return result


@pytest.mark.parametrize("devices", [(0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("elements", [3, LARGE])
def test_what_is_copied_is_what_was_there_at_the_call(fake: FakeCuda, devices: tuple[int, ...], elements: int) -> None:
    fake.set_device(devices[0])  # of the rank; a new thread is on device 0
    tensors = {f"w{device}": fake.tensor(torch.zeros(elements), device) for device in devices}
    for tensor in tensors.values():
        fake.kernel(tensor, 5.0)  # queued, as all that a training does
    copying = Staging().start(tensors)
    copies = in_thread(lambda: copying.finish(list(tensors)))
    written = {name: copy.clone() for name, copy in copies.items()}
    for tensor in tensors.values():
        fake.kernel(tensor, -1.0)  # the next step
        fake.synchronize(tensor.device)
    for found in (written, copies):
        assert {name: copy.unique().tolist() for name, copy in found.items()} == {name: [5.0] for name in tensors}


def test_each_device_has_a_stream_of_its_own_which_does_not_hold_up_the_training(fake: FakeCuda) -> None:
    fake.set_device(1)
    tensors = {f"w{device}": fake.tensor(torch.zeros(LARGE), device) for device in (0, 1)}
    copying = Staging().start(tensors)
    fake.calls.clear()
    in_thread(lambda: copying.finish(list(tensors)))
    copies = [call for call in fake.calls if call.what == "copy"]
    assert {call.thread for call in copies} == {"checkpoint"}
    assert len({call.stream for call in copies}) == 2
    assert not {call.stream for call in copies} & {fake.current_stream(device).number for device in (0, 1)}
    for call in copies:
        assert [other.what for other in fake.calls if other.stream == call.stream] == ["wait", "copy", "synchronize"]


def test_all_saves_copy_on_one_stream_of_a_device(fake: FakeCuda) -> None:
    """Torch gives out 32 in turn: with a new one for each save, some would copy on NCCL's, and hold up all ranks."""
    tensor, staging = fake.tensor(torch.zeros(LARGE), 1), Staging()
    for _ in range(3):
        in_thread(lambda: staging.start({"w": tensor}).finish(["w"]))
    assert len({call.stream for call in fake.calls if call.what == "copy"}) == 1


def test_small_tensors_may_change_as_soon_as_the_save_returns(fake: FakeCuda) -> None:
    fake.set_device(1)
    small = fake.tensor(torch.zeros(3), 1)
    fake.kernel(small, 5.0)
    copying = Staging().start({"small": small})
    fake.kernel(small, -1.0)
    assert fake.current_stream(1).done == 0  # the training does not wait for what it has queued
    fake.synchronize(1)
    assert in_thread(lambda: copying.finish(["small"]))["small"].tolist() == [5.0] * 3


@pytest.mark.parametrize("kind", ["optimizer", "many layers"])
def test_what_a_forward_pass_changes_is_copied_at_once_beside_any_number_of_weights(kind: str) -> None:
    """No optimizer waits for the copy before a forward pass, which changes the statistics of a batch norm."""
    size = {"optimizer": AT_ONCE, "many layers": 1024}[kind] // 4
    weights = {f"{kind}.{number}": torch.zeros(size) for number in range(AT_ONCE_ALL // 4 // size + 1)}
    buffers = {"norm.running_mean": torch.zeros(2048), "norm.num_batches_tracked": torch.tensor(0)}
    state = {**weights, **buffers}
    copying = Staging().start(state)
    for buffer in buffers.values():
        buffer += 1
    copies = in_thread(lambda: copying.finish(list(state)))
    assert {name: int(copies[name].sum()) for name in buffers} == dict.fromkeys(buffers, 0)


@pytest.mark.parametrize("still", [True, False])
def test_a_save_needs_no_memory_on_a_device_that_is_full(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, still: bool
) -> None:
    def clone(_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    monkeypatch.setattr(cuda.Tensor, "clone", clone)
    small = fake.tensor(torch.zeros(3), 1)
    fake.kernel(small, 5.0)
    copying = Staging().start({"small": small}, still=still)
    if not still:
        fake.kernel(small, -1.0)
        fake.synchronize(1)
    assert in_thread(lambda: copying.finish(["small"]))["small"].tolist() == [5.0] * 3


def test_a_copy_on_another_devices_stream_is_seen_by_the_fake(fake: FakeCuda) -> None:
    """What the tests above rely on: waiting for the wrong stream leaves stale bytes."""
    tensor, target = fake.tensor(torch.ones(3), 1), torch.zeros(3)
    stream = torch.cuda.Stream()  # of device 0
    with torch.cuda.stream(stream):
        target.copy_(tensor, non_blocking=True)
    stream.synchronize()
    assert target.tolist() == [0.0] * 3
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(1))
    with pytest.raises(RuntimeError, match="an event of cuda:1 is recorded on cuda:0"):
        event.record()
    event.synchronize()
    assert target.tolist() == [1.0] * 3


def test_pinned_memory_is_counted_as_torch_takes_it(fake: FakeCuda) -> None:
    """Its allocator rounds each block to a power of two: a node that counts less is out of memory."""
    sizes = {"1 byte": 1, "a power": 1 << 20, "3 MiB": 3 << 20, "none": 0}
    tensors: dict[str, torch.Tensor] = {
        name: fake.tensor(torch.zeros(size, dtype=torch.uint8), 0) for name, size in sizes.items()
    }
    assert pinned({**tensors, "on the CPU": torch.zeros(5)}) == 1 + (1 << 20) + (4 << 20)


def test_copies_are_in_cpu_memory_wherever_a_program_makes_its_tensors() -> None:
    state = {"w": torch.zeros(3)}
    with torch.device("meta"):  # as by torch.set_default_device("cuda")
        saved = Staging().start(state).finish(["w"])
    assert saved["w"].tolist() == [0.0] * 3


def test_what_nothing_changes_is_not_copied() -> None:
    """A save at the stop of a training on CPUs must not need the memory of its state once more."""
    whole = torch.zeros(LARGE)
    state = {"whole": whole, "part": whole[1:], "small": torch.zeros(3)}
    saved = Staging().start(state, still=True).finish(list(state))
    assert {name for name in state if saved[name].data_ptr() == state[name].data_ptr()} == {"whole", "small"}

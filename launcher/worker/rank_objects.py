"""Sends objects between ranks, as pickles with a MAC.

Unpickling executes whatever the sender chose, and gloo accepts whoever connects as a rank (docs/security.md). So these
functions replace torch's `all_gather_object` and the like: they unpickle only data with a MAC made with the secret that
the ranks of a job share. All ranks of the process group `group` (None: the default group) must call the same function.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import pickle
from collections.abc import Sequence
from functools import cache
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.files import shared_secret
from launcher.runs.event_writer import current_attempt
from launcher.worker import devices

MAC = hashlib.sha256().digest_size  # bytes
SMALL = 1 << 10  # bytes; a broadcast up to this size is one message
HEAD = 192  # bytes of the first message of a gather; most values are smaller, and need no second one
LENGTH = 8  # bytes of the length at the start of a message
FEW = 64  # most ranks whose values are sent one after the other

T = TypeVar("T")


class NotFromARank(RuntimeError):
    """Received data has no valid MAC, so it was not sent by a rank of this job."""


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns the ranks' values in order on rank 0, [] on others; raises NotFromARank for a wrong MAC."""
    heads, rest, sizes = _heads(value, group)
    first = dist.get_rank() == 0
    rests = _one_by_one(rest, sizes, group, keep=first)
    if rests is None:
        rests = [torch.empty_like(rest) for _ in sizes] if first else []
        dist.gather(rest, rests or None, dst=0, group=group)
    return [_open_parts(*parts) for parts in zip(heads, rests, sizes, strict=True)] if first else []


def all_gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns the ranks' values in order, on every rank; raises NotFromARank for a wrong MAC."""
    heads, rest, sizes = _heads(value, group)
    rests = _one_by_one(rest, sizes, group, keep=True)
    if rests is None:
        rests = [torch.empty_like(rest) for _ in sizes]
        dist.all_gather(rests, rest, group=group)
    return [_open_parts(*parts) for parts in zip(heads, rests, sizes, strict=True)]


def broadcast(value: T | None, group: dist.ProcessGroup | None = None) -> T:
    """Returns rank 0's value on every rank, a small one in one message; raises NotFromARank for a wrong MAC."""
    device = _device(group)
    sealed = _seal(value) if dist.get_rank() == 0 else b""
    head = _tensor(len(sealed).to_bytes(LENGTH, "big") + sealed[: SMALL - LENGTH], SMALL, device)
    dist.broadcast(head, src=0, group=group)
    data = _bytes(head)
    size = int.from_bytes(data[:LENGTH], "big")
    if size > SMALL - LENGTH:
        rest = _tensor(sealed[SMALL - LENGTH :], size - (SMALL - LENGTH), device)
        dist.broadcast(rest, src=0, group=group)
        data += _bytes(rest)
    return cast(T, _open(data[LENGTH : LENGTH + size]))


def _heads(value: object, group: dist.ProcessGroup | None) -> tuple[list[bytes], Tensor, list[int]]:
    # Returns the beginnings of all ranks' values, the rest of this rank's, as long as the longest, and all sizes
    device, sealed = _device(group), _seal(value)
    data = len(sealed).to_bytes(LENGTH, "big") + sealed
    mine = _tensor(data[:HEAD], HEAD, device)
    received = torch.empty(dist.get_world_size(group) * HEAD, dtype=torch.uint8, device=device)
    dist.all_gather([*received.split(HEAD)], mine, group=group)
    whole = _bytes(received)  # one copy from the GPU
    heads = [whole[start : start + HEAD] for start in range(0, len(whole), HEAD)]
    sizes = [int.from_bytes(head[:LENGTH], "big") for head in heads]
    return [head[LENGTH:] for head in heads], _tensor(data[HEAD:], max(0, LENGTH + max(sizes) - HEAD), device), sizes


def _one_by_one(
    rest: Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None, *, keep: bool
) -> list[Tensor] | None:  # fmt: skip
    # Returns what follows each rank's first message, if few ranks have something; else None. A collective of all would
    # take the longest value times the number of ranks: 5 GiB on a node of 4,096 ranks if one has 150 KiB.
    left = [max(0, LENGTH + size - HEAD) for size in sizes]
    holders = [rank for rank, length in enumerate(left) if length]
    if len(holders) > min(FEW, len(sizes) // 4):
        return None
    rests = [rest[:0] for _ in sizes]
    for rank in holders:
        mine = rank == dist.get_rank(group)
        received = rest[: left[rank]] if mine else torch.empty(left[rank], dtype=torch.uint8, device=rest.device)
        dist.broadcast(received, src=rank if group is None else dist.get_global_rank(group, rank), group=group)
        rests[rank] = received if keep else rest[:0]
    return rests


def _open_parts(head: bytes, rest: Tensor, size: int) -> T:  # type: ignore[type-var]
    return _open((head + _bytes(rest))[:size])


def _device(group: dist.ProcessGroup | None) -> torch.device:
    return devices.of_backend(dist.get_backend(group))


def _tensor(data: bytes, size: int, device: torch.device) -> Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8).to(device)


def _bytes(tensor: Tensor) -> bytes:
    tensor = tensor.cpu()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


# -- MACs


def _seal(value: object) -> bytes:
    data = pickle.dumps(value)
    return _mac(data) + data


def _open(sealed: bytes) -> T:  # type: ignore[type-var]  # the sender's value may have any type
    if not hmac.compare_digest(sealed[:MAC], _mac(sealed[MAC:])):
        raise NotFromARank(
            "an object that another rank should have sent does not carry the secret of this job's ranks. Outside of a "
            f"run, set {shared_secret.VARIABLE} to the same random text on all ranks, unless they share the home folder"
        )
    return cast(T, pickle.loads(sealed[MAC:]))  # noqa: S301  # made by a rank of this job


def _mac(data: bytes) -> bytes:
    return hmac.new(_secret(), b"launcher ranks\0" + data, hashlib.sha256).digest()


@cache
def _secret() -> bytes:
    attempt = current_attempt()
    return attempt.run.secret() if attempt else shared_secret.of_user()

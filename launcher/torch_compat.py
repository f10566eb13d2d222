"""Differences between torch 2.4 and the newest version. All other code is written for the newest version.

Those in torch.distributed.checkpoint are in `checkpoint.storage`. Features are detected instead of comparing versions,
since vendors' builds have version numbers of their own. Names that torch has moved are imported from here.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

__all__ = [
    "DTensor", "FSDPModule", "MixedPrecisionPolicy", "Replicate", "Shard", "all_gather_single",
    "compute_local_shape_and_global_offset", "destroy_without_gil", "distribute_tensor", "fake_group",
    "fsdp_computes_on", "fully_shard", "local_part", "reduce_scatter_single", "store_on", "with_local",
]  # fmt: skip

# The modules that may have each name, the newest first: DTensor became public in 2.5, FSDP2 in 2.6. They are imported
# on first use, since importing FSDP is slow.
_TENSOR = ("torch.distributed.tensor", "torch.distributed._tensor")
_FSDP = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_PLACES = {
    "DTensor": _TENSOR,
    "Replicate": _TENSOR,
    "Shard": _TENSOR,
    "distribute_tensor": _TENSOR,
    "compute_local_shape_and_global_offset": tuple(f"{module}._utils" for module in _TENSOR),
    "FSDPModule": _FSDP,
    "MixedPrecisionPolicy": _FSDP,
    "fully_shard": _FSDP,
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for place in _PLACES[name]:
        try:
            found = globals()[name] = getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):
            continue
        return found
    raise ImportError(f"torch {torch.__version__} has {name} in none of {', '.join(_PLACES[name])}")


def local_part(whole: Tensor, like: DTensor) -> Tensor:
    """Returns this rank's shard of a full tensor, as a view, by `like`'s placements.

    distribute_tensor(src_data_rank=None) returns the same, but communicates in versions before 2.7.
    """
    locate = cast(Any, __getattr__("compute_local_shape_and_global_offset"))
    shape, offset = locate(like.shape, like.device_mesh, like.placements)
    for dim, (start, length) in enumerate(zip(offset, shape, strict=True)):
        whole = whole.narrow(dim, start if length else 0, length)
    return whole


def with_local(local: Tensor, like: DTensor) -> DTensor:
    """Returns the DTensor of a shard of `like`'s shape and type, without an operation: DTensor's take milliseconds."""
    return cast(Any, __getattr__("DTensor"))(local, like._spec, requires_grad=False)


def fsdp_computes_on(device: torch.device) -> bool:
    """Returns whether `fully_shard` works on a device. It needs stream events, which CPUs lack in torch 2.4 to 2.6."""
    return device.type != "cpu" or hasattr(torch.cpu.Stream, "record_event")


# -- stores


def store_on(listener: socket.socket, host: str, timeout: timedelta) -> Store:
    """Starts a TCPStore server at this address, on a socket that listens already, and which it then owns.

    The libuv server accepts a listening socket since torch 2.8. Before that it refuses, and prints an error that cannot
    be caught. The older server accepts one in every version, but is slower with many ranks.
    Raises NotImplementedError: neither server of this torch accepts the socket.
    """
    # Trying libuv first would print that error. Stores got queues in the same version, so look for these.
    servers = (True, False) if hasattr(Store, "queue_push") else (False, True)
    for libuv in servers:
        try:
            store = TCPStore(
                host, listener.getsockname()[1], is_master=True, wait_for_workers=False, timeout=timeout,
                master_listen_fd=listener.fileno(), use_libuv=libuv,
            )  # fmt: skip
        except NotImplementedError:  # raised before the store takes the socket
            continue
        listener.detach()
        return store
    raise NotImplementedError(f"torch {torch.__version__} makes no TCPStore on a socket that is already listening")


# -- process groups

# Some version after 2.6 renamed these; the newest torch has both names.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextlib.contextmanager
def fake_group(ranks: int) -> Iterator[None]:
    """Makes the default process group, as if of rank 0, with collectives that do nothing; it starts no thread."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    hook = sys.excepthook  # torch takes one that prints the rank
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        yield
    finally:
        sys.excepthook = hook
        if dist.is_initialized():  # also where the last part of making it fails (TORCH_DIST_INIT_BARRIER=1)
            dist.destroy_process_group()


def destroy_without_gil(group: object) -> None:
    """Prevents a deadlock when a gloo group is destroyed. Call it once for each group.

    The group's destructor joins the threads that ran its collectives, and before torch 2.8 it does so with the GIL
    held. A thread that still has to drop its last reference to a tensor waits for the GIL, and both wait for ever. The
    destructor of the backend alone releases the GIL in every version, so the backend is kept until the group is gone.
    """
    if not isinstance(group, dist.ProcessGroup):  # new_group() on a rank that is not in the group
        return
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # the group has no CPU backend, so no gloo
        return
    weakref.finalize(group, lambda _: None, backend).atexit = False

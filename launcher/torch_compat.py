"""What differs between torch 2.4 and the newest, in one place; everything else calls torch as the newest has it.

What concerns torch.distributed.checkpoint is in `torch_compat_dcp`, for its import takes seconds.

Features are looked for, and versions never compared: vendors' builds have numbers of their own. What torch has moved is
imported from here by its name of today, from where this torch has it. Each entry says what it is for; when 2.4 is no
longer supported, these two files go away.
"""

from __future__ import annotations

import importlib
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
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
    "compute_local_shape_and_global_offset", "destroy_without_gil", "distribute_tensor", "fsdp_computes_on",
    "fully_shard", "local_part", "reduce_scatter_single", "store_on", "without_crc32",
]  # fmt: skip

# Where they are, the newest place first: DTensor became public in 2.5, FSDP2 in 2.6. Imported at first use, since FSDP
# takes a while to import.
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
    """This rank's part of a tensor that every rank has whole, divided as `like` is; a view.

    As distribute_tensor(src_data_rank=None) does it, without communication; before 2.7 it always sends.
    """
    locate = cast(Any, __getattr__("compute_local_shape_and_global_offset"))
    shape, offset = locate(like.shape, like.device_mesh, like.placements)
    for dim, (start, length) in enumerate(zip(offset, shape, strict=True)):
        whole = whole.narrow(dim, start if length else 0, length)
    return whole


def fsdp_computes_on(device: torch.device) -> bool:
    """Whether `fully_shard` can: for CPUs it records events on streams, which torch 2.4 to 2.6 do not have there."""
    return device.type != "cpu" or hasattr(torch.cpu.Stream, "record_event")


# -- stores


def store_on(listener: socket.socket, host: str, timeout: timedelta) -> Store:
    """A TCPStore that serves whoever connects to a socket that listens already.

    Its libuv server takes such a socket since torch 2.8. Before, it refuses, and prints an error that cannot be caught;
    the older server, slower with many ranks, takes it in every version.

    Args:
        listener: belongs to the store from now on.
        host: the address that the socket is bound to, or one of this host's if it is bound to all.
        timeout: for the store's operations.
    """
    # Not by the refusal, which prints. Queues came to stores in the same version.
    servers = (True, False) if hasattr(Store, "queue_push") else (False, True)
    for libuv in servers:
        try:
            store = TCPStore(
                host, listener.getsockname()[1], is_master=True, wait_for_workers=False, timeout=timeout,
                master_listen_fd=listener.fileno(), use_libuv=libuv,
            )  # fmt: skip
        except NotImplementedError:  # said before the socket was taken
            continue
        listener.detach()
        return store
    raise NotImplementedError(f"torch {torch.__version__} makes no TCPStore on a socket that listens already")


# -- process groups

# Their names before some version after 2.6; the newest torch has both.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def destroy_without_gil(group: object) -> None:
    """Makes sure that a group of gloo can be destroyed; call it once for each group that was made.

    Its destructor joins the threads that have run its collectives, and before torch 2.8 holds the GIL meanwhile. A
    thread that has yet to drop the last reference to a tensor needs the GIL, and then both wait for ever. The
    destructor of the backend alone gives the GIL back in every version, so the backend is let go after the group.
    """
    if not isinstance(group, dist.ProcessGroup):  # new_group() on a rank that is not in the group
        return
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # it has none for the CPU, and so no gloo
        return
    _let_go_after(group, backend)


def _let_go_after(owner: object, held: object) -> None:
    """Keeps `held` until `owner` is gone."""
    weakref.finalize(owner, lambda _: None, held).atexit = False


# -- torch.save


@contextmanager
def without_crc32() -> Iterator[None]:
    """torch.save takes no checksums of its own meanwhile, in the whole process; before 2.6 it always does."""
    if not hasattr(torch.serialization, "set_crc32_options"):
        yield
        return
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)

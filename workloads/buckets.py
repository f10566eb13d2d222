"""Averages gradients over ranks in buckets, like DistributedDataParallel but after the backward pass, not during it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class GradientBuckets:
    """Averages the gradients of parameters over all ranks, with one all_reduce per bucket.

    Buckets are filled from the last parameter to the first, as the backward pass finishes them. A bucket has neighbours
    of one type and device. Each gradient is multiplied by 1 / world size before it is summed, as in
    DistributedDataParallel, so that two ranks get bitwise the same weights with both. With more ranks the order of the
    sums may differ.

    parameters: parameters of the model; those without requires_grad are ignored.
    bucket_mb: largest size of a bucket in MiB, unless it has a single parameter.
    Raises ValueError: bucket_mb is not above 0.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], bucket_mb: float) -> None:
        if bucket_mb <= 0:
            raise ValueError(f"workload.bucket_mb={bucket_mb} is not above 0: set it to 1 or so")
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        self.buckets = [_Bucket(group) for group in _groups(wanted[::-1], bucket_mb * 2**20)]

    def average(self) -> None:
        """Replaces every gradient with its mean over all ranks. All ranks must call it."""
        world_size = dist.get_world_size()
        for bucket in self.buckets:
            bucket.fill(1 / world_size)
            dist.all_reduce(bucket.flat)
            bucket.empty()


class _Bucket:
    """Parameters of one type and device, and a flat tensor for all their gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.flat = torch.empty(
            sum(parameter.numel() for parameter in parameters), dtype=parameters[0].dtype, device=parameters[0].device
        )
        pieces = self.flat.split([parameter.numel() for parameter in parameters])
        self.views = [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]

    def fill(self, factor: float) -> None:
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:  # not used in this rank's forward pass
                view.zero_()
            else:
                torch.mul(parameter.grad, factor, out=view)

    def empty(self) -> None:
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)


def _groups(parameters: list[nn.Parameter], limit: float) -> list[list[nn.Parameter]]:
    groups: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        last = groups[-1][-1] if groups else None
        fits = last is not None and filled + size <= limit and _kind(last) == _kind(parameter)
        if fits:
            groups[-1].append(parameter)
            filled += size
        else:
            groups.append([parameter])
            filled = size
    return groups


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device

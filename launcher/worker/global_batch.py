"""Chooses the samples of each step in an order that does not depend on the number of ranks, and each rank's share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor


class GlobalBatchSampler:
    """Chooses the samples of each step as a pure function of (seed, epoch, step), whatever the world size.

    An epoch is a new permutation of all samples, cut into global batches of `batch_size`. The last samples, fewer than
    `batch_size`, are not used in that epoch. Each rank takes a contiguous share of each global batch; the sizes of
    shares differ by at most one sample.

    With `micro_batches` the global batch is cut into that many micro-batches, and each rank takes whole ones. Their
    sizes differ by at most one sample and do not depend on the world size.

    Attributes:
        steps_per_epoch: number of global batches in an epoch.
        sizes: number of samples of each of this rank's micro-batches; without micro-batches, of its whole share.

    Raises:
        ValueError: the data set is smaller than one batch, the batch has fewer samples than there are ranks or
            micro-batches, or there are fewer micro-batches than ranks.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int, rank: int, world_size: int,
        device: torch.device | str = "cpu", micro_batches: int | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        if batch_size < world_size:
            raise ValueError(
                f"workload.batch_size={batch_size} leaves some of the {world_size} ranks without a sample: "
                f"set it to {world_size} or more"
            )
        if micro_batches is not None and not world_size <= micro_batches <= batch_size:
            raise ValueError(
                f"train.micro_batches={micro_batches} must be from {world_size} (the number of ranks) to {batch_size} "
                "(workload.batch_size). A run keeps it for its whole life: the weights depend on it"
            )
        if size < batch_size:
            raise ValueError(
                f"the training set has {size} samples, fewer than workload.batch_size={batch_size}: "
                f"set it to {size} or less"
            )
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.rank, self.world_size, self.device = rank, world_size, device
        self.micro_batches = micro_batches
        self.steps_per_epoch = size // batch_size
        parts = world_size if micro_batches is None else micro_batches
        first, last = (rank, rank + 1) if micro_batches is None else share(micro_batches, rank, world_size)
        bounds = [share(batch_size, part, parts) for part in range(first, last)]
        self._first, self._last = bounds[0][0], bounds[-1][1]
        self.sizes = [end - begin for begin, end in bounds]
        self._order: tuple[int, Tensor] | None = None

    @property
    def weight(self) -> float:
        """Factor by which to multiply the sum of this rank's per-sample losses.

        The mean of the ranks' gradients then equals the gradient of the mean loss over the global batch, even if shares
        differ in size: mean_r(W / B x sum_r) = sum / B, with world size W and batch size B.
        """
        return self.world_size / self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Returns the indices of all samples in the order of an epoch, int64 [size]."""
        if self._order is None or self._order[0] != epoch:
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
            # Always drawn on the CPU: a GPU's generator draws another permutation for the same seed.
            self._order = epoch, torch.randperm(self.size, generator=generator).to(self.device)
        return self._order[1]

    def global_batch(self, epoch: int, step: int) -> Tensor:
        """Returns the indices of all ranks' samples at a step of an epoch, int64 [batch_size]; raises IndexError."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} is not one of the {self.steps_per_epoch} steps of an epoch")
        return self.order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]

    def batch(self, epoch: int, step: int) -> Tensor:
        """Returns the indices of this rank's samples at a step of an epoch, int64 [sum of `sizes`]."""
        return self.global_batch(epoch, step)[self._first : self._last]

    def batches(self, epoch: int, step: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Yields (step, indices of this rank's samples) for each step of the epoch from `step` on."""
        for following in range(step, self.steps_per_epoch):
            yield following, self.batch(epoch, following)

    def locate(self, global_step: int) -> tuple[int, int]:
        """Returns (epoch, step within the epoch) of the step that follows the first `global_step` steps of the run."""
        return divmod(global_step, self.steps_per_epoch)


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Returns a rank's share of `count` items as a half-open range (first, end). Shares differ by at most one item."""
    return count * rank // world_size, count * (rank + 1) // world_size

"""Averages gradients over ranks: in buckets, or bitwise the same at any world size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.checkpoint.resumable import share
from launcher.torch_compat import all_gather_single
from launcher.worker import devices


class GradientBuckets:
    """Averages the gradients of parameters over all ranks, with one all_reduce per bucket of about `bucket_mb` MiB.

    Buckets are filled from the last parameter to the first, as the backward pass finishes them. Each gradient is
    multiplied by 1 / world size before it is summed, as in DistributedDataParallel, so that two ranks get bitwise the
    same weights with both.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], bucket_mb: float) -> None:
        if bucket_mb <= 0:
            raise ValueError(f"workload.bucket_mb={bucket_mb} is not above 0: set it to 1 or so")
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        self.buckets = _groups(wanted[::-1], bucket_mb * 2**20)

    def average(self) -> None:
        """Replaces every gradient with its mean over all ranks. All ranks must call it."""
        factor = 1 / dist.get_world_size()
        for bucket in self.buckets:
            # Zeros for parameters that are not used in this rank's forward pass
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            flat = torch.cat([part.flatten() for part in parts]).mul_(factor)
            dist.all_reduce(flat)
            for parameter, piece in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                parameter.grad = piece.view_as(parameter)


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


# -- Sums gradients so that weights are bitwise the same at any world size: in a tree that does not depend on the ranks
#
# The value of a floating-point sum depends on its order, and the result of a matrix product on the shape of the batch.
# So the global batch is cut into M micro-batches (leaves) at any number of ranks, each leaf's gradients are computed
# separately, and they are added along one fixed binary tree over the leaves:
#
#                  [0,8)                    a node [a,b) is the sum of [a,m) and [m,b), with m = (a + b) // 2
#             [0,4)     [4,8)
#          [0,2) [2,4) [4,6) [6,8)
#          0   1 2   3 4   5 6   7
#
# Each rank has a range of neighbouring leaves. First it sums the largest subtrees inside its range. Then all ranks sum
# the upper part of the tree together. If the ranks can pair up along the tree (4 ranks, 8 leaves), they exchange sums
# in pairs. Otherwise each rank collects one slice of the sums of all subtrees, adds them along the tree and sends the
# result to all ranks.


T = TypeVar("T")
Node = tuple[int, int]  # a node of the tree: the half-open range of the leaves below it

SMALL = 1 << 20  # bytes up to which pairs exchange whole vectors, in fewer messages with more bytes


def subtrees(first: int, stop: int, root: Node) -> list[Node]:
    """Returns the fewest tree nodes below `root` that together have exactly its leaves in range(first, stop)."""
    begin, end = root
    if stop <= begin or end <= first:
        return []
    if first <= begin and end <= stop:
        return [root]
    middle = (begin + end) // 2
    return subtrees(first, stop, (begin, middle)) + subtrees(first, stop, (middle, end))


def inner_nodes(node: Node) -> list[Node]:
    """Returns a tree node and all below it, without leaves; each comes after the tree nodes below it."""
    begin, end = node
    if end - begin == 1:
        return []
    middle = (begin + end) // 2
    return [*inner_nodes((begin, middle)), *inner_nodes((middle, end)), node]


def add_up(node: Node, known: Callable[[Node], T | None], add: Callable[[T, T], T]) -> T:
    """Returns the value of a tree node: if known (as of all leaves), this; else the sum of its left and right child."""
    if (value := known(node)) is not None:
        return value
    begin, end = node
    middle = (begin + end) // 2
    left = add_up((begin, middle), known, add)
    return add(left, add_up((middle, end), known, add))


def meets_in_pairs(parts: Sequence[Sequence[Node]]) -> bool:
    """Returns whether ranks can add their sums in pairs: neighbouring ranks, then pairs of them, up the tree.

    They can if the numbers of ranks and of leaves are powers of two, and in some other cases.
    """
    nodes = [part[0] for part in parts]
    if any(len(part) != 1 for part in parts) or len(nodes) & (len(nodes) - 1):
        return False
    while len(nodes) > 1:
        pairs = list(zip(nodes[::2], nodes[1::2], strict=True))
        if any(middle != (begin + end) // 2 for (begin, middle), (_, end) in pairs):
            return False
        nodes = [(begin, end) for (begin, _), (_, end) in pairs]
    return True


class TreeReduction:
    """Sums one vector per leaf over all leaves along the tree. ValueError: there are fewer leaves than ranks."""

    def __init__(self, leaves: int) -> None:
        self.leaves, self.rank, self.world_size = leaves, dist.get_rank(), dist.get_world_size()
        if leaves < self.world_size:
            raise ValueError(
                f"train.micro_batches={leaves} is fewer than the {self.world_size} ranks: use at most {leaves}, or "
                f"begin a new run with train.micro_batches={self.world_size} or more (the weights depend on it)"
            )
        self.own_leaves = range(*share(leaves, self.rank, self.world_size))
        # The subtrees of each rank, in order; together they are the leaves of the upper part of the tree.
        everyone = range(self.world_size)
        self.parts = [subtrees(*share(leaves, rank, self.world_size), (0, leaves)) for rank in everyone]
        self.mine = self.parts[self.rank]  # those that this rank's leaves make up
        self.pairs = meets_in_pairs(self.parts)
        self._buffers: dict[str, Tensor] = {}

    def reduce(self, sums: Sequence[Tensor]) -> Tensor:
        """Returns the sum over all leaves, [n], valid until the next call. All ranks must call it.

        sums: the sum of each of this rank's subtrees (`mine`), each [n]; may be overwritten.
        """
        if self.world_size == 1:
            return sums[0]
        # gloo's point-to-point and all_to_all do not take GPU tensors.
        through_cpu = sums[0].device.type != "cpu" and dist.get_backend() not in devices.ON_STREAM
        here = [one.cpu() for one in sums] if through_cpu else list(sums)
        total = self._in_pairs(here[0]) if self.pairs else self._in_slices(here)
        return total.to(sums[0].device) if through_cpu else total

    def _in_pairs(self, total: Tensor) -> Tensor:
        # Floating-point addition is commutative, so both partners get the same bits. Of a large vector each partner
        # adds one half, and the halves are exchanged afterwards (recursive halving and doubling; Thakur, Rabenseifner,
        # Gropp, "Optimization of collective communication operations in MPICH", 2005).
        halve = total.numel() * total.element_size() > SMALL
        kept, levels = total, []
        received = self._buffer("received", total, tuple(total.shape))
        distance = 1
        while distance < self.world_size:
            peer = self.rank ^ distance
            if halve:
                middle = kept.numel() // 2
                low, high = kept[:middle], kept[middle:]
                kept, given = (low, high) if self.rank < peer else (high, low)
                levels.append((peer, kept, given))
            else:
                given = kept
            theirs = received[: kept.numel()]
            self._exchange(peer, given, theirs)
            kept.add_(theirs)
            distance *= 2
        for peer, ours, theirs in reversed(levels):
            self._exchange(peer, ours, theirs)
        return total

    def _exchange(self, peer: int, given: Tensor, received: Tensor) -> None:
        both = [dist.P2POp(dist.isend, given, peer), dist.P2POp(dist.irecv, received, peer)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def _in_slices(self, sums: Sequence[Tensor]) -> Tensor:
        # Each rank receives one slice of the sums of all subtrees, adds them along the tree, and sends the result to
        # all ranks.
        count, number = sums[0].numel(), len(sums)
        size = -(-count // self.world_size)
        nodes = [node for parts in self.parts for node in parts]
        given = self._buffer("given", sums[0], (self.world_size, number, size))
        collected = self._buffer("collected", sums[0], (len(nodes), size))
        total = self._buffer("total", sums[0], (self.world_size, size))
        whole = count // size  # slices; the last one may be shorter
        for index, one in enumerate(sums):
            given[:whole, index] = one[: whole * size].view(whole, size)
            if whole * size < count:
                given[whole, index, : count - whole * size] = one[whole * size :]
        dist.all_to_all_single(
            collected.view(-1), given.view(-1), [len(parts) * size for parts in self.parts],
            [number * size] * self.world_size,
        )  # fmt: skip
        by_node = dict(zip(nodes, collected, strict=True))
        mine = add_up((0, self.leaves), by_node.get, Tensor.add_)
        all_gather_single(total.view(-1), mine)
        return total.view(-1)[:count]

    def _buffer(self, name: str, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        # The buffer is reused at each step, since new memory pages would take as long as adding
        known = self._buffers.get(name)
        if known is None or known.shape != shape or known.dtype != like.dtype or known.device != like.device:
            known = self._buffers[name] = like.new_zeros(shape)
        return known


class InvariantGradients:
    """Sums the gradients of the global batch along the tree, and puts them into `.grad` of the parameters.

        gradients.begin()
        for leaf in gradients.own_leaves:
            seed_generators(seed, step, leaf)
            loss(leaf).backward()
            gradients.leaf_done()
        gradients.end()

    leaves: micro-batches of the global batch. ValueError: fewer than ranks, or parameters of several types or devices.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], leaves: int) -> None:
        self.tree = TreeReduction(leaves)
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "none"
            raise ValueError(f"train.invariant needs parameters of one type on one device, and there are {found}")
        # A flat vector for each of this rank's subtrees.
        count = sum(parameter.numel() for parameter in self.parameters)
        self._flat = [self.parameters[0].detach().new_zeros(count) for _ in self.tree.mine]
        # For each number of leaves that are done, the nodes that can be added then, from the leaves up.
        self._completed: dict[int, list[Node]] = {}
        for node in (inner for root in self.tree.mine for inner in inner_nodes(root)):
            self._completed.setdefault(node[1], []).append(node)
        self._sums: dict[Node, list[Tensor]] = {}
        self._leaf = self.own_leaves.start

    @property
    def own_leaves(self) -> range:
        """Indices of this rank's micro-batches in the global batch."""
        return self.tree.own_leaves

    def begin(self) -> None:
        """Resets the gradients, before the first micro-batch of a step."""
        self._sums.clear()
        self._leaf = self.own_leaves.start
        for parameter in self.parameters:
            parameter.grad = None

    def leaf_done(self) -> None:
        """Adds a micro-batch's gradients to the tree, after its backward pass."""
        self._sums[self._leaf, self._leaf + 1] = self._take()
        self._leaf += 1
        for begin, end in self._completed.get(self._leaf, ()):
            middle = (begin + end) // 2
            left, right = self._sums.pop((begin, middle)), self._sums.pop((middle, end))
            torch._foreach_add_(left, right)
            self._sums[begin, end] = left

    def end(self) -> None:
        """Puts the sum over all ranks into `.grad`, after the last micro-batch. All ranks must call it."""
        for flat, node in zip(self._flat, self.tree.mine, strict=True):
            torch._foreach_copy_(self._views(flat), self._sums.pop(node))
        total = self.tree.reduce(self._flat)
        for parameter, view in zip(self.parameters, self._views(total), strict=True):
            parameter.grad = view

    def _take(self) -> list[Tensor]:
        taken = []
        for parameter in self.parameters:
            # Zeros if a leaf does not use a parameter.
            taken.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            parameter.grad = None
        return taken

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([parameter.numel() for parameter in self.parameters])
        return [piece.view_as(parameter) for piece, parameter in zip(pieces, self.parameters, strict=True)]

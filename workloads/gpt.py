"""A GPT-like language model over bytes, sharded over the ranks by FSDP2, and its windows of text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from launcher.torch_compat import DTensor, FSDPModule, MixedPrecisionPolicy, fully_shard, local_part, with_local
from workloads import texts


@dataclass(frozen=True)
class Part:
    """The training or validation part of a text, cut into windows: the samples of a language model.

    Window i has the tokens from i * context to (i + 1) * context, both included. Its inputs are all but the last one,
    its targets all but the first one, so two windows share no target.
    """

    tokens: Tensor  # the text, uint8 [length], on one device
    context: int  # number of inputs of a window

    def __len__(self) -> int:
        """Returns the number of windows."""
        return texts.windows(len(self.tokens), self.context)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the inputs and targets of the windows of these indices, both int64 [n, context]."""
        offsets = torch.arange(self.context + 1, device=chosen.device)
        windows = self.tokens[chosen.unsqueeze(1) * self.context + offsets].long()
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Corpus:
    """A text, divided into its training and validation parts."""

    train: Part  # the training part
    validation: Part  # the validation part
    sha256: str  # SHA-256 of the whole text


def load_text(text: texts.Text, context: int, device: torch.device | str = "cpu") -> Corpus:
    """Reads a text onto a device, and divides it; raises TextError if it cannot be read, or has changed."""
    content = texts.read(text)
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    cut = texts.split(len(content), context)
    return Corpus(Part(tokens[:cut], context), Part(tokens[cut:], context), hashlib.sha256(content).hexdigest())


def printable(text: bytes) -> str:
    """Returns a text for a terminal, with all unprintable characters but line breaks replaced."""
    decoded = text.decode("utf-8", errors="replace")
    return "".join(each if each == "\n" or each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in decoded)


# -- The model; its first weights do not depend on the ranks
#
# Pre-norm blocks of causal attention and MLP as in GPT-2 (Radford et al., 2019), with learned positions and no biases.


VOCABULARY = 256  # a token is a byte
SPREAD = 0.02  # standard deviation of the initial weights


class Block(nn.Module):
    """Attention and MLP, each added to its input: [n, tokens, width] -> [n, tokens, width]."""

    def __init__(self, width: int, heads: int, drop: float = 0.0, recompute: bool = False) -> None:
        super().__init__()
        self.heads, self.drop, self.recompute = heads, drop, recompute
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        # Inside the module that FSDP wraps, so that recomputing does not gather the weights a second time.
        if self.recompute and torch.is_grad_enabled():
            again: Tensor = checkpoint(self._forward, features, use_reentrant=False)
            return again
        return self._forward(features)

    def _forward(self, features: Tensor) -> Tensor:
        features = features + self._dropped(self.out(self._attend(self.attention_norm(features))))
        return features + self._dropped(self.down(gelu(self.up(self.mlp_norm(features)))))

    def _attend(self, features: Tensor) -> Tensor:
        samples, tokens, width = features.shape
        parts = self.qkv(features).view(samples, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        drop = self.drop if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, dropout_p=drop, is_causal=True)
        return mixed.transpose(1, 2).reshape(samples, tokens, width)

    def _dropped(self, features: Tensor) -> Tensor:
        return dropout(features, self.drop, self.training) if self.drop else features


class GPT(nn.Module):
    """The language model: bytes int64 [n, tokens] -> scores of the next byte after each, [n, tokens, 256].

    heads: number of attention heads; divides `width`.
    recompute: whether the backward pass recomputes activations, to save memory.
    """

    def __init__(
        self, layers: int, heads: int, width: int, context: int, drop: float = 0.0, recompute: bool = False
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, drop, recompute) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            features = block(features)
        scores: Tensor = self.head(self.norm(features))
        return scores


class Sharded(GPT, FSDPModule):
    """Type of the result of `shard`, for mypy: fully_shard changes the class of a module to a class like this one."""


def shard(model: GPT, mesh: DeviceMesh, compute: torch.dtype | None) -> Sharded:
    """Shards the weights of each block, and those outside of blocks, over all ranks. Changes the model, and returns it.

    model: the model, created on the meta device, without memory; call `initialise` next.
    compute: type to compute in; None: float32, as the weights. Gradients are reduced in float32 in any case.
    """
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    assert isinstance(model, FSDPModule)
    return model  # type: ignore[return-value]  # its class is made by fully_shard


@torch.no_grad()
def initialise(model: Sharded, seed: int, device: torch.device) -> None:
    """Allocates a model of the meta device and initialises its weights, the same at any number of ranks.

    Every rank draws each whole parameter on the CPU, from a generator seeded with the seed and the parameter's name,
    and keeps its shard. So neither the sharding nor the device changes the weights, no rank ever holds the whole model,
    and nothing is sent. As in GPT-2, weights whose results are added to the blocks' inputs are divided by the square
    root of the number of these additions.
    """
    # As model.to_empty(), without operations of DTensors, which take milliseconds.
    model._apply(lambda shard: with_local(torch.empty_like(shard.to_local(), device=device), shard))
    residuals = 2 * len(model.blocks)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # the scales of norms
            whole = torch.ones(parameter.shape)
        else:
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
            spread = SPREAD / residuals**0.5 if name.endswith(("out.weight", "down.weight")) else SPREAD
            whole = torch.empty(parameter.shape).normal_(0, spread, generator=generator)
        assert isinstance(parameter, DTensor)
        parameter.to_local().copy_(local_part(whole, parameter))


@torch.no_grad()
def write(model: nn.Module, context: int, start: bytes, count: int, seed: int, device: torch.device) -> bytes:
    """Returns `count` bytes that the model writes after `start`, sampled at temperature 0.8. All ranks must call it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = list(start)
    for _ in range(count):
        window = torch.tensor([tokens[-context:]], device=device)
        likely = (model(window)[0, -1].float().cpu() / 0.8).softmax(0)
        tokens.append(int(torch.multinomial(likely, 1, generator=generator)))
    return bytes(tokens[len(start) :])

"""Trains a small language model whose weights are sharded over the ranks: the workload `fsdp_lm`.

Each rank has a shard of every weight, with its gradient and optimizer state. FSDP2 gathers the weights of a block for
its forward and backward pass, and reduces its gradients so that each rank gets those of its shard.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy, dropout, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from launcher import Resumable, evaluated, progress
from launcher.binding import hardware
from launcher.checkpoint.resumable import GlobalBatchSampler, generator_of, seed_generators, share
from launcher.config.schema import FSDPLm
from launcher.formatting import plural
from launcher.plan.plan import JobPlan
from launcher.torch_compat import (
    DTensor,
    FSDPModule,
    MixedPrecisionPolicy,
    fake_group,
    fsdp_computes_on,
    fully_shard,
    local_part,
    with_local,
)
from launcher.worker import devices
from launcher.worker.main import workload_config
from launcher.worker.stop import Settings, settings
from workloads import text_data, training
from workloads.across_ranks import WorkloadError, gather, introduce, same_everywhere, say, together

if TYPE_CHECKING:
    from launcher import Env


# -- The windows of a text


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
        return text_data.windows(len(self.tokens), self.context)

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


def load_text(text: text_data.Text, context: int, device: torch.device | str = "cpu") -> Corpus:
    """Reads a text onto a device, and divides it; raises TextError if it cannot be read, or has changed."""
    content = text_data.read(text)
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    cut = text_data.split(len(content), context)
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
    """The language model: bytes int64 [n, tokens] -> scores of the next byte after each, [n, tokens, 256]."""

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

    model: the model, created on the meta device, without memory.
    compute: type to compute in; None: float32, as the weights. Gradients are reduced in float32 in any case.
    """
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    assert isinstance(model, FSDPModule)
    return model  # type: ignore[return-value]  # its class is made by fully_shard


@torch.no_grad()
def initialise(model: Sharded, seed: int) -> None:
    """Initialises the weights of a model, the same at any number of ranks.

    Every rank draws each whole parameter on the CPU, from a generator seeded with the seed and the parameter's name,
    and keeps its shard. So neither the sharding nor the device changes the weights, no rank ever holds the whole model,
    and nothing is sent. As in GPT-2, weights whose results are added to the blocks' inputs are divided by the square
    root of the number of these additions.
    """
    residuals = 2 * len(model.blocks)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # the scales of norms
            whole = torch.ones(parameter.shape)
        else:
            spread = SPREAD / residuals**0.5 if name.endswith(("out.weight", "down.weight")) else SPREAD
            whole = torch.empty(parameter.shape).normal_(0, spread, generator=generator_of(seed, name))
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


# -- The training


def compute_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Returns the type to compute in; None: float32. Unlike training.autocast_dtype it allows bfloat16 on any CPU."""
    if precision == "bfloat16" and device.type == "cpu":
        return torch.bfloat16
    return training.autocast_dtype(precision, device)


def perplexity(loss: float) -> float:
    """Returns e to the power of the loss: the number of equally likely next bytes that corresponds to this loss."""
    return float(torch.tensor(loss, dtype=torch.float64).exp())


class Trainer:
    """One training run on this rank. `run` loads or draws the weights, and is the training loop.

    Raises WorkloadError: a setting is not valid, the text is missing, or this torch's FSDP does not support CPUs.
    """

    def __init__(self, config: FSDPLm, env: Env, run: Settings | None = None) -> None:
        self.config, self.env = config, env
        self.settings = settings() if run is None else run
        if not fsdp_computes_on(env.device):
            raise WorkloadError(
                f"FSDP of torch {torch.__version__} computes on GPUs alone, and this rank has a CPU: "
                "ask for gpus_per_node=..., or use a newer torch (2.13 does)"
            )
        self.text, self.corpus = self.load()
        self.threads = training.set_threads(config.threads, env)
        self.dtype = compute_dtype(config.precision.value, env.device)
        training.be_deterministic(env.device)
        self.build()

    def load(self) -> tuple[text_data.Text, Corpus]:
        """Checks the settings and loads the text; raises WorkloadError if any rank lacks it, or has a different one."""

        def read() -> tuple[text_data.Text, Corpus]:
            found = text_data.find(self.config.text)
            text_data.check(self.config, found, self.settings.train.invariant)
            return found, load_text(found, self.config.context, self.env.device)

        found, corpus = together(read, self.env)
        same_everywhere("the text", corpus.sha256, self.env)
        return found, corpus

    def build(self) -> None:
        config, env = self.config, self.env
        try:
            self.sampler = GlobalBatchSampler(
                len(self.corpus.train), config.batch_size, config.seed, env.rank, env.world_size, env.device
            )
        except ValueError as error:
            raise WorkloadError(str(error)) from error
        self.at_once = config.micro_batch_size or math.ceil(config.batch_size / env.world_size)
        self.passes = self.passes_for(config.batch_size)
        model = _made.pop() if _made else make_model(config)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.model = shard(model, DeviceMesh(env.device.type, torch.arange(env.world_size)), self.dtype)
        # As model.to_empty(), without operations of DTensors, which take milliseconds.
        self.model._apply(lambda shard: with_local(torch.empty_like(shard.to_local(), device=env.device), shard))
        seed_generators(config.seed, 0, env.rank)  # each rank has other samples, and so needs other dropout
        groups: list[dict[str, Any]] = [
            {"params": [each for each in self.model.parameters() if each.dim() > 1]},
            {"params": [each for each in self.model.parameters() if each.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
        )
        self.weight = torch.tensor(self.sampler.weight / config.context, device=env.device)
        self.losses = training.LossLog(config.batch_size * config.context, env.world_size, env.rank)
        self.loss: float | None = None  # mean of the last log line
        self.val_loss: float | None = None  # of the last evaluation
        self.evaluated = 0  # steps done at the last evaluation
        precision = str(self.dtype or torch.float32).removeprefix("torch.")
        self.resumable = Resumable(
            {"model": self.model, "optimizer": self.optimizer, "trainer": self}, identity=self.identity(),
            unlike={"workload.precision": precision, "workload.micro_batch_size": config.micro_batch_size},
            seed=config.seed, env=env, run=self.settings,
        )  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """Returns facts about this training. A checkpoint with other values is refused."""
        keys = (
            "layers", "heads", "width", "context", "dropout", "steps", "batch_size", "lr", "warm_up", "weight_decay",
            "clip", "seed",
        )  # fmt: skip
        return {f"workload.{key}": getattr(self.config, key) for key in keys} | {"text": self.corpus.sha256}

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the training, but for the steps, for a checkpoint. All ranks must call it."""
        last = {"loss": self.loss, "val_loss": self.val_loss, "evaluated": self.evaluated}
        return last | {"losses": self.losses.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss, self.val_loss, self.evaluated = state["loss"], state["val_loss"], state["evaluated"]
        self.losses.restore(state["losses"])

    def passes_for(self, windows: int) -> int:
        """Returns the forward passes of each rank for `windows` of all ranks together: equal, as all gather weights."""
        return math.ceil(math.ceil(windows / self.env.world_size) / self.at_once)

    def step(self, step: int, chosen: Tensor) -> None:
        """Does one optimizer step (of the run, from 0) on this rank's windows: their indices, int64 [n]."""
        for group in self.optimizer.param_groups:
            group["lr"] = training.learning_rate(step, self.config.steps, self.config.lr, self.config.warm_up)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.env.device)
        for number in range(self.passes):
            summed = self.summed_loss(self.corpus.train, chosen[slice(*share(len(chosen), number, self.passes))])
            summed.backward(self.weight)
            total += summed.detach()
        self.clip()
        self.optimizer.step()
        self.losses.add(step, total)

    def summed_loss(self, part: Part, chosen: Tensor) -> Tensor:
        """Returns the sum of the losses of all tokens of some windows; 0 if there are none. All ranks must call it.

        FSDP averages the gradients of the ranks. Multiplied by `self.weight`, the gradients of these sums become the
        mean over the global batch, even if ranks have unequal shares.
        """
        none = len(chosen) == 0
        # A rank without windows computes one that does not count: the other ranks need its shard of the weights.
        inputs, targets = part.batch(chosen.new_zeros(1) if none else chosen)
        scores = self.model(inputs).float()
        summed = cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
        return summed * 0.0 if none else summed

    @torch.no_grad()
    def clip(self) -> None:
        """Scales the gradients down if their norm over all weights is above workload.clip. All ranks must call it."""
        if not self.config.clip:
            return
        gradients = [part.grad.to_local() for part in self.model.parameters() if isinstance(part.grad, DTensor)]
        squares = torch.stack(torch._foreach_norm(gradients)).square().sum()
        dist.all_reduce(squares)
        torch._foreach_mul_(gradients, (self.config.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0))

    @torch.no_grad()
    def evaluate(self, step: int) -> None:
        """Evaluates windows that are evenly spread over the validation part, after `step` steps of all ranks."""
        config, env, part = self.config, self.env, self.corpus.validation
        count = min(config.eval_windows, len(part))
        first, last = share(count, env.rank, env.world_size)
        mine = torch.arange(first, last, device=env.device) * len(part) // count
        passes = self.passes_for(count)
        sums = torch.zeros(2, dtype=torch.float64, device=env.device)
        self.model.eval()
        for number in range(passes):
            chosen = mine[slice(*share(len(mine), number, passes))]
            sums[0] += self.summed_loss(part, chosen)
            sums[1] += len(chosen)
            self.resumable.boundary(step)
        self.model.train()
        self.model.reshard()  # the root's weights stay gathered after a forward pass otherwise
        dist.all_reduce(sums)
        total, windows = sums.tolist()
        if windows != count:
            raise WorkloadError(f"evaluation counted {windows:g} windows, and should have {count}")
        loss = total / (count * config.context)
        self.val_loss, self.evaluated = loss, step
        if env.rank == 0:
            say(
                f"step {step}/{config.steps} validation loss {loss:.4f} perplexity {perplexity(loss):.2f} "
                f"({plural(count, 'window')})"
            )
            evaluated(step, val_loss=round(loss, 4), perplexity=round(perplexity(loss), 3))
        self.resumable.evaluated(step, {"val_loss": loss, "perplexity": perplexity(loss)})

    def log(self, done: int) -> None:
        """Prints on rank 0 the mean loss since the last call, after `done` steps. All ranks must call it."""
        self.loss, speed = self.losses.look()
        if self.env.rank == 0:
            rate = self.optimizer.param_groups[0]["lr"]
            say(f"step {done}/{self.config.steps} loss {self.loss:.4f} lr {rate:.5f} {speed:,.0f} tokens/s")
            values = {"loss": round(self.loss, 4), "lr": round(rate, 7), "tokens_per_s": round(speed)}
            progress(done, self.config.steps, **values)

    def announce(self) -> None:
        introduce(self.env)
        gather(None, self.env)
        if self.env.rank == 0:
            config, corpus = self.config, self.corpus
            say(
                f"text {self.text.name}: {len(corpus.train.tokens):,} bytes for training, "
                f"{len(corpus.validation.tokens):,} for validation"
            )
            say(
                f"{plural(config.layers, 'layer')}, {plural(config.heads, 'head')}, width {config.width}: "
                f"{self.parameters:,} parameters, divided over {self.env.world_size}"
            )
            accumulated = "" if self.passes == 1 else f" in {self.passes} passes"
            say(
                f"{plural(config.steps, 'step')} of {plural(config.batch_size, 'window')} of {config.context} tokens"
                f"{accumulated}, {self.dtype or torch.float32}, {plural(self.threads, 'thread')} a rank"
            )

    def conclude(self) -> None:
        """Prints on rank 0 workload.sample bytes of text that the trained model writes. All ranks must call it."""
        if not self.config.sample:
            return
        self.model.eval()
        written = write(self.model, self.config.context, b"\n", self.config.sample, self.config.seed, self.env.device)
        self.model.train()
        self.model.reshard()
        if self.env.rank == 0:
            say(f"the model writes:\n{printable(written)}")

    def run(self) -> dict[str, float | int | str]:
        """Trains for all remaining steps; returns the metrics of the run (see `main`)."""
        config = self.config
        started, evaluating = time.perf_counter(), 0.0
        self.announce()
        done = first = self.resumable.load()
        if not done:  # else they would only be replaced
            initialise(self.model, config.seed)
        begun = time.perf_counter()
        self.losses.resume_clock()
        while True:
            if self.evaluated != done and (done == config.steps or done % config.eval_every == 0):
                clock = time.perf_counter()
                self.evaluate(done)
                evaluating += time.perf_counter() - clock
                self.losses.resume_clock()
            if done == config.steps:
                break
            self.step(done, self.sampler.batch(*self.sampler.locate(done)))
            done += 1
            if done % config.log_every == 0 or done == config.steps:
                self.log(done)
            self.resumable.boundary(done)
        training_time = time.perf_counter() - begun - evaluating
        self.resumable.finish(done)
        weights = training.weights_sha256(self.model)
        self.conclude()
        assert self.loss is not None and self.val_loss is not None  # of the last step
        return {
            "loss": self.loss,
            "val_loss": self.val_loss,
            "perplexity": perplexity(self.val_loss),
            "tokens_per_s": (done - first) * config.batch_size * config.context / training_time,
            "steps": done,
            "parameters": self.parameters,
            "text": self.text.name,
            "seconds": time.perf_counter() - started,
            "weights_sha256": weights,
        }


_made: list[GPT] = []  # by `before_ranks`, in the agent and so in the ranks that it forks


def make_model(config: FSDPLm) -> GPT:
    """Returns the model on the meta device, without memory."""
    with torch.device("meta"):
        return GPT(config.layers, config.heads, config.width, config.context, config.dropout, config.recompute)


def before_ranks(plan: JobPlan) -> None:
    """Does once a node what all ranks need: the model, and what torch caches when a block is sharded."""
    config = workload_config(plan)
    assert isinstance(config, FSDPLm)
    # A GPU must not be used before a fork, and torch asks CUDA here whether there is one
    if plan.gpus_per_node == 0 and not (devices.torch_build() and hardware.device_files()):
        size = plan.world_size + 1  # in a mesh of the ranks' size torch would cache results with this agent's rank
        with fake_group(size):
            shard(make_model(replace(config, layers=1)), DeviceMesh("cpu", torch.arange(size)), None)
    _made.append(make_model(config))


def main(config: FSDPLm, env: Env) -> dict[str, Any]:
    """Trains the model; returns the metrics of the run, of which tokens_per_s and seconds are of the last attempt."""
    return Trainer(config, env).run()

"""Trains a small language model whose weights are sharded over the ranks: the workload `fsdp_lm`.

Each rank has a shard of every weight, with its gradient and optimizer state. FSDP2 gathers the weights of a block for
its forward and backward pass, and reduces its gradients so that each rank gets those of its shard.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy

from launcher import Resumable, evaluated, progress
from launcher.checkpoint.resumable import GlobalBatchSampler, seed_generators, share
from launcher.errors import ConfigError
from launcher.torch_compat import DTensor, fsdp_computes_on
from launcher.worker.stop import Settings, settings
from workloads import gpt, texts, training
from workloads.ranks import WorkloadError, gather, introduce, same_everywhere, say, together

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import FSDPLm


def compute_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Returns the type to compute in; None: float32. Unlike training.autocast_dtype it allows bfloat16 on any CPU."""
    if precision == "bfloat16" and device.type == "cpu":
        return torch.bfloat16
    return training.autocast_dtype(precision, device)


def perplexity(loss: float) -> float:
    """Returns e to the power of the loss: the number of equally likely next bytes that corresponds to this loss."""
    return float(torch.tensor(loss, dtype=torch.float64).exp())


class Trainer:
    """One training run on this rank. `run` is the training loop, and calls the other methods.

    run: settings of the run; None: those of the run that this process belongs to.
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

    def load(self) -> tuple[texts.Text, gpt.Corpus]:
        """Checks the settings and loads the text; raises WorkloadError if any rank lacks it, or has a different one."""

        def read() -> tuple[texts.Text, gpt.Corpus]:
            found = texts.find(self.config.text)
            texts.check(self.config, found, self.settings.train.invariant)
            return found, gpt.load_text(found, self.config.context, self.env.device)

        found, corpus = together(read, self.env, ConfigError)
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
        with torch.device("meta"):
            model = gpt.GPT(config.layers, config.heads, config.width, config.context, config.dropout, config.recompute)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.model = gpt.shard(model, DeviceMesh(env.device.type, torch.arange(env.world_size)), self.dtype)
        gpt.initialise(self.model, config.seed, env.device)
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
        self.resumable = Resumable(
            {"model": self.model, "optimizer": self.optimizer, "trainer": self},
            identity=self.identity(),
            unlike={
                "workload.precision": str(self.dtype or torch.float32).removeprefix("torch."),
                "workload.micro_batch_size": config.micro_batch_size,
            },
            seed=config.seed,
            env=env,
            run=self.settings,
        )
        self.resumable.pace.watch_blocks(self.model, self.model.blocks)

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

    def summed_loss(self, part: gpt.Part, chosen: Tensor) -> Tensor:
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
                f"({count} windows)"
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
                f"{config.layers} layers, {config.heads} heads, width {config.width}: {self.parameters:,} parameters, "
                f"divided over {self.env.world_size}"
            )
            accumulated = "" if self.passes == 1 else f" in {self.passes} passes"
            say(
                f"{config.steps} steps of {config.batch_size} windows of {config.context} tokens{accumulated}, "
                f"{self.dtype or torch.float32}, {self.threads} threads a rank"
            )

    def conclude(self) -> None:
        """Prints on rank 0 workload.sample bytes of text that the trained model writes. All ranks must call it."""
        if not self.config.sample:
            return
        self.model.eval()
        written = gpt.write(
            self.model, self.config.context, b"\n", self.config.sample, self.config.seed, self.env.device
        )
        self.model.train()
        self.model.reshard()
        if self.env.rank == 0:
            say(f"the model writes:\n{gpt.printable(written)}")

    def run(self) -> dict[str, float | int | str]:
        """Trains for all remaining steps; returns the metrics of the run (see `main`)."""
        config = self.config
        started, evaluating = time.perf_counter(), 0.0
        self.announce()
        done = first = self.resumable.load()
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


def main(config: FSDPLm, env: Env) -> dict[str, Any]:
    """Trains the model, and returns the metrics of the run.

    The metrics are loss (mean of the steps of the last log line), val_loss and perplexity on the validation part,
    tokens_per_s, steps, parameters, text, seconds and weights_sha256. tokens_per_s and seconds are those of the last
    attempt.
    """
    return Trainer(config, env).run()

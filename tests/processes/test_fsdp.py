"""fsdp_lm in real ranks: sums that do not depend on how they are shared out, and resuming at any number of ranks."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy

from launcher import Env
from launcher.agent.workers import preload
from launcher.checkpoint.loading import expanded
from launcher.checkpoint.state import Content
from launcher.config.schema import FSDPLm, Precision
from launcher.torch_compat import fake_group
from launcher.worker.stop import Settings
from tests.markers import ci
from tests.processes.workload_ranks import RankResult, run_ranks
from tests.torch_features import needs_fsdp_on_cpus
from tests.unit.plans import plan_of, run_settings
from workloads import fsdp, training
from workloads.across_ranks import WorkloadError
from workloads.fsdp import Trainer, compute_dtype, main

pytestmark = needs_fsdp_on_cpus

# Widths and batches that divide evenly by no number of ranks, so that every part has another size.
SMALL = FSDPLm(
    name="fsdp_lm", entry="", seed=3, layers=2, heads=2, width=18, context=10, batch_size=7, steps=8, dropout=0.0,
    eval_every=4, eval_windows=9, log_every=3, sample=0, threads=1,
)  # fmt: skip


def with_weights(config: FSDPLm, env: Env) -> Trainer:
    """A trainer with its first weights, which `run` draws if there is no checkpoint."""
    trainer = Trainer(config, env, Settings())
    fsdp.initialise(trainer.model, config.seed)
    return trainer


def small(**changes: Any) -> FSDPLm:
    return dataclasses.replace(SMALL, **changes)


def whole_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.full_tensor() for name, value in sorted(model.state_dict().items())}


def gradients(config: FSDPLm, env: Env) -> dict[str, Any]:
    """The gradient of the first global batch, whole, beside that of one process with the whole model."""
    trainer = with_weights(config, env)
    single = fsdp.GPT(config.layers, config.heads, config.width, config.context)
    with torch.no_grad():
        single.load_state_dict(whole_parameters(trainer.model))
    found: dict[str, torch.Tensor] = {}
    trainer.clip = lambda: found.update(  # type: ignore[method-assign]
        {name: weights.grad.full_tensor() for name, weights in trainer.model.named_parameters()}  # type: ignore
    )
    trainer.step(0, trainer.sampler.batch(0, 0))
    inputs, targets = trainer.corpus.train.batch(trainer.sampler.global_batch(0, 0))
    loss = cross_entropy(single(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    worst = max((found[name] - weights.grad).abs().max() for name, weights in single.named_parameters())
    mean, _ = trainer.losses.look()
    return {
        "worst": float(worst),
        "largest": float(max(gradient.abs().max() for gradient in found.values())),
        "loss": (mean, loss.item()),
        "passes": trainer.passes,
    }


def gradients_of_all(configs: list[FSDPLm], env: Env) -> dict[str, Any]:
    return {"all": [gradients(config, env) for config in configs]}


@pytest.mark.parametrize(
    ("ranks", "passes", "cases"),
    [
        (1, [1, 4], [{}, {"micro_batch_size": 2}]),
        (2, [1, 1], [{}, {"recompute": True}]),
        # Shares of 2, 2 and 3 windows: all in two passes; in three, in which two ranks once have nothing.
        (3, [2, 3], [{"micro_batch_size": 2}, {"micro_batch_size": 1}]),
    ],
)
def test_the_gradient_is_that_of_the_whole_batch(ranks: int, passes: list[int], cases: list[dict[str, Any]]) -> None:
    for result in run_ranks(gradients_of_all, [small(**changes) for changes in cases], ranks):
        assert [metrics["passes"] for metrics in result.metrics["all"]] == passes
        for metrics in result.metrics["all"]:
            assert metrics["largest"] > 0.01
            assert metrics["worst"] < 1e-6
            assert metrics["loss"][0] == pytest.approx(metrics["loss"][1], rel=1e-6)


def first_weights(config: FSDPLm, env: Env) -> dict[str, Any]:
    trainer = with_weights(config, env)
    mine = sum(weights.to_local().numel() for weights in trainer.model.parameters())  # type: ignore[attr-defined]
    whole = fsdp.GPT(config.layers, config.heads, config.width, config.context)
    whole.load_state_dict(whole_parameters(trainer.model))
    return {
        "sha256": training.weights_sha256(trainer.model),
        "whole": training.weights_sha256(whole),
        "mine": mine,
        "all": trainer.parameters,
        "spread": float(whole.blocks[1].up.weight.std()),  # type: ignore[union-attr, arg-type]
        "residual": float(whole.blocks[1].down.weight.std()),  # type: ignore[union-attr, arg-type]
        "other": training.weights_sha256(with_weights(dataclasses.replace(config, seed=4), env).model),
    }


def test_the_first_weights_are_the_same_at_any_number_of_ranks() -> None:
    config = small(width=48)
    results = {ranks: [each.metrics for each in run_ranks(first_weights, config, ranks)] for ranks in (1, 3, 4)}
    assert len({metrics["sha256"] for of_ranks in results.values() for metrics in of_ranks}) == 1
    for ranks, of_ranks in results.items():
        assert sum(metrics["mine"] for metrics in of_ranks) == of_ranks[0]["all"]
        assert max(metrics["mine"] for metrics in of_ranks) < 1.2 * of_ranks[0]["all"] / ranks
    metrics = results[1][0]
    assert metrics["sha256"] == metrics["whole"]
    assert metrics["spread"] == pytest.approx(0.02, rel=0.1)
    assert metrics["residual"] == pytest.approx(0.01, rel=0.1)
    assert metrics["sha256"] != metrics["other"]


def clipped(config: FSDPLm, env: Env) -> dict[str, Any]:
    """The norm of the whole gradient before and after it is limited to 0.5, and to nothing."""
    norms = []
    for limit in (0.5, 0.0):
        trainer = with_weights(dataclasses.replace(config, clip=limit), env)
        clip = trainer.clip

        def watched(trainer: Trainer = trainer, clip: Callable[[], None] = clip) -> None:
            for act in (lambda: None, clip):
                act()
                squares = [weights.grad.full_tensor().pow(2).sum() for weights in trainer.model.parameters()]  # type: ignore
                norms.append(float(torch.stack(squares).sum().sqrt()))

        trainer.clip = watched  # type: ignore[method-assign]
        trainer.step(0, trainer.sampler.batch(0, 0))
    return {"norms": norms}


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_norm_of_the_whole_gradient_is_limited(ranks: int) -> None:
    for result in run_ranks(clipped, SMALL, ranks):
        before, after, *unlimited = result.metrics["norms"]
        assert before > 0.8
        assert after == pytest.approx(0.5, rel=1e-4)
        assert unlimited == [before, before]


class CutError(Exception):
    """The attempt is over."""


@dataclasses.dataclass
class Attempts:
    """What `attempts` does: one training after the other, each in its folder, cut before it does this step."""

    config: FSDPLm
    cuts: tuple[tuple[Path, int | None], ...]
    every: int = 3


def attempts(plan: Attempts, env: Env) -> dict[str, Any]:
    """Each attempt's metrics, and what it was given: (step, samples of all ranks, learning rate, loss)."""
    told: list[dict[str, Any]] = []
    for number, (folder, cut) in enumerate(plan.cuts):
        run = run_settings(checkpoint_dir=folder, every_steps=plan.every, attempt=number)
        trainer = Trainer(plan.config, env, run)
        seen: list[Any] = []
        step = trainer.step

        def watched(done: int, chosen: torch.Tensor, *, cut=cut, trainer=trainer, seen=seen, step=step) -> None:  # type: ignore
            if done == cut:
                raise CutError
            step(done, chosen)
            samples: list[Any] = [None] * env.world_size
            torch.distributed.all_gather_object(samples, chosen.tolist())
            loss = torch.stack([trainer.losses._pending[-1]]).double()
            torch.distributed.all_reduce(loss)
            rate = trainer.optimizer.param_groups[0]["lr"]
            seen.append(
                (done, [one for theirs in samples for one in theirs], rate, loss.item() / trainer.losses.batch_size)
            )

        trainer.step = watched  # type: ignore[method-assign]
        metrics: dict[str, Any] = {}
        try:
            metrics = trainer.run()
        except CutError:
            trainer.resumable.close()
        told.append({"metrics": metrics, "seen": seen})
    return {"attempts": told}


def told(results: list[RankResult]) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = results[0].metrics["attempts"]
    return attempts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where no one else can write."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        ci(1, {}),
        (2, {"precision": Precision.bfloat16}),
        ci(3, {"dropout": 0.2, "recompute": True}),
        ci(4, {"micro_batch_size": 1}),
    ],
)
def test_a_resumed_training_is_bitwise_equal(folder: Path, ranks: int, changes: dict[str, Any]) -> None:
    # Cut after the save at 6, which is between two log lines and after an evaluation.
    a, b = folder / "a", folder / "b"
    plan = Attempts(small(log_every=5, **changes), ((a, None), (b, 7), (b, 7), (b, None)), every=6)
    undisturbed, *cut = told(run_ranks(attempts, plan, ranks))
    assert [[step for step, *_ in each["seen"]] for each in cut] == [[0, 1, 2, 3, 4, 5, 6], [6], [6, 7]]
    assert cut[0]["seen"][:6] + cut[2]["seen"] == undisturbed["seen"] == cut[0]["seen"] + cut[2]["seen"][1:]
    expected, metrics = undisturbed["metrics"], cut[2]["metrics"]
    for name in ("weights_sha256", "loss", "val_loss", "perplexity", "steps", "parameters", "text"):
        assert metrics[name] == expected[name], name


def test_other_numbers_of_ranks_go_on_with_the_same_batches(folder: Path) -> None:
    """Late weights cannot be compared: sums in another order grow apart."""
    undisturbed = told(run_ranks(attempts, Attempts(SMALL, ((folder / "a", None),)), 2))[0]["seen"]
    seen: list[Any] = []
    printed = []
    for ranks, cut in ((2, 4), (3, 7), (1, None)):
        results = run_ranks(attempts, Attempts(SMALL, ((folder / "b", cut),), every=1), ranks)
        seen += told(results)[0]["seen"]
        printed.append(results[0].printed)
    assert [step for step, *_ in seen] == list(range(8))
    for (step, samples, rate, loss), (_, their_samples, their_rate, their_loss) in zip(seen, undisturbed, strict=True):
        assert (samples, rate) == (their_samples, their_rate), step
        assert loss == pytest.approx(their_loss, rel=1e-4), step
    assert "continues after step 4 (step-000000004, saved by 2 ranks)" in printed[1]
    assert "continues after step 7 (step-000000007, saved by 3 ranks)" in printed[2]


def resharded(plan: Attempts, env: Env) -> dict[str, Any]:
    """The whole state after loading."""
    trainer = Trainer(plan.config, env, run_settings(checkpoint_dir=plan.cuts[0][0]))
    step = trainer.resumable.load()
    tensors = Content.of({"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}).tensors
    whole = {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).tolist()
        for name, value in tensors.items()
    }
    trainer.resumable.close()
    return {"step": step, "whole": json.dumps(whole, sort_keys=True), "evaluated": trainer.evaluated}


def test_the_whole_state_is_loaded_at_any_number_of_ranks(folder: Path) -> None:
    plan = Attempts(SMALL, ((folder / "a", 7),), every=6)
    run_ranks(attempts, plan, 3)
    results = [each.metrics for ranks in (3, 1, 4) for each in run_ranks(resharded, plan, ranks)]
    for metrics in results:
        assert (metrics["step"], metrics["evaluated"]) == (6, 4)
        assert metrics["whole"] == results[0]["whole"]
    assert ".exp_avg_sq" in results[0]["whole"]
    assert '.step": 6.0' in results[0]["whole"]


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(folder: Path) -> None:
    run_ranks(attempts, Attempts(SMALL, ((folder / "a", 4),)), 1)
    results = run_ranks(attempts, Attempts(small(width=20, lr=1.0), ((folder / "a", None),)), 2, fails=True)
    for result in results:
        assert "workload.width" in result.error and "18" in result.error and "20" in result.error
        assert "workload.lr" in result.error
        assert "workload.heads" not in result.error


def learns(config: FSDPLm, env: Env) -> dict[str, Any]:
    trainer = Trainer(config, env, Settings())
    metrics = trainer.run()
    types = {str(tensor.dtype) for tensor in trainer.model.state_dict().values()}
    return {**metrics, "types": sorted(types)}


@pytest.mark.parametrize("precision", [ci(Precision.float32), Precision.bfloat16])
def test_it_learns_and_writes(precision: Precision) -> None:
    config = small(width=32, steps=40, batch_size=16, lr=0.01, eval_every=20, log_every=10, sample=30,
                   precision=precision)  # fmt: skip
    results = run_ranks(learns, config, 2)
    metrics = results[0].metrics
    assert metrics["val_loss"] < 3.6  # bytes that are all equally likely: log(256) = 5.5
    assert metrics["loss"] < 3.6
    assert metrics["perplexity"] == pytest.approx(2.718281828 ** metrics["val_loss"])
    assert metrics["types"] == ["torch.float32"]
    assert metrics["tokens_per_s"] > 0
    assert results[0].progress == [(10, 40), (20, 40), (30, 40), (40, 40)]
    assert results[1].progress == []
    lines = results[0].printed.splitlines()
    assert any(line.startswith("step 20/40 validation loss ") for line in lines)
    assert f"{precision.value}, 1 thread a rank" in results[0].printed
    writes = results[0].printed.partition("the model writes:\n")[2]
    assert len(writes.strip("\n")) >= 20
    assert "the model writes" not in results[1].printed


def evaluated(config: FSDPLm, env: Env) -> dict[str, Any]:
    trainer = with_weights(config, env)
    trainer.evaluate(1)
    return {"val_loss": trainer.val_loss}


def test_an_evaluation_counts_each_window_once_at_any_number_of_ranks() -> None:
    losses = [
        run_ranks(evaluated, small(eval_windows=windows, micro_batch_size=micro), ranks)[0].metrics["val_loss"]
        for windows, micro, ranks in ((9, None, 1), (9, 1, 2))
    ]
    assert losses == pytest.approx([losses[0]] * 2, rel=1e-6)
    few = run_ranks(evaluated, small(eval_windows=2), 4)[0].metrics["val_loss"]  # two ranks have none
    assert few == pytest.approx(losses[0], rel=0.05) and few != losses[0]


def saved_in_an_evaluation(config: FSDPLm, env: Env) -> dict[str, Any]:
    """Names and shapes of what would be saved before an evaluation and at each of its boundaries."""
    trainer = with_weights(config, env)
    trainer.step(0, trainer.sampler.batch(0, 0))

    def saved() -> list[str]:
        tensors = Content.of(expanded(trainer.resumable._state)[0]).tensors
        return sorted(f"{name} {type(tensor).__name__} {tuple(tensor.shape)}" for name, tensor in tensors.items())

    seen = [saved()]
    trainer.resumable.boundary = lambda step: seen.append(saved())  # type: ignore[method-assign]
    trainer.evaluate(1)
    trainer.step(1, trainer.sampler.batch(0, 1))
    return {"seen": [*seen, saved()], "known": len(trainer.optimizer.state)}


def test_what_is_saved_in_an_evaluation_is_the_whole_state() -> None:
    """There the weights outside of blocks are gathered, and the optimizer knows those that are not."""
    for result in run_ranks(saved_in_an_evaluation, small(micro_batch_size=1, eval_windows=4), 2):
        seen = result.metrics["seen"]
        assert len(seen) == 4 and seen[1:] == seen[:1] * 3
        assert any(each.startswith("optimizer.state.0.exp_avg DTensor") for each in seen[0])
        assert result.metrics["known"] == len([each for each in seen[0] if each.startswith("model.")])


def test_what_agents_cache_for_their_ranks_holds_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a mesh torch caches results that have that mesh, and so the agent's rank in it."""
    found: list[object] = []
    propagator = importlib.import_module("torch.distributed.tensor._sharding_prop").ShardingPropagator
    original = propagator.propagate_op_sharding_non_cached

    def counted(self: object, operation: object) -> object:
        found.append(operation)
        return original(self, operation)

    monkeypatch.setattr(propagator, "propagate_op_sharding_non_cached", counted)
    config = small(entry="workloads.fsdp:main")
    plan = plan_of(workload=config, nodes=2, procs_per_node=2)
    preload(config.entry, plan)
    assert found, "nothing was cached"
    assert not torch.distributed.is_initialized()
    for ranks in range(1, plan.world_size + 1):
        found.clear()
        with torch.device("meta"):
            model = fsdp.GPT(config.layers, config.heads, config.width, config.context)
        with fake_group(ranks):
            fsdp.shard(model, DeviceMesh("cpu", torch.arange(ranks)), None)
        assert found, f"{ranks} ranks: the results are the agent's"


def test_what_cannot_be_trained_is_refused_on_all_ranks(tmp_path: Path) -> None:
    for result in run_ranks(main, small(batch_size=1), 2, fails=True):
        assert "workload.batch_size=1 leaves some of the 2 ranks without a sample" in result.error
    for result in run_ranks(main, small(text=str(tmp_path / "no")), 2, fails=True):
        assert "WorkloadError: ranks 0-1 on node0: workload.text=" in result.error
        assert "is not there" in result.error


def invariant(config: FSDPLm, env: Env) -> None:
    Trainer(config, env, run_settings(invariant=True))


def test_invariant_is_refused_on_the_ranks() -> None:
    (result,) = run_ranks(invariant, SMALL, 1, fails=True)
    assert "train.invariant=true is not offered by fsdp_lm" in result.error


def test_bfloat16_is_for_any_cpu_and_never_chosen_there() -> None:
    cpu = torch.device("cpu")
    assert compute_dtype("auto", cpu) is compute_dtype("float32", cpu) is None
    assert compute_dtype("bfloat16", cpu) is torch.bfloat16


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    for result in run_ranks(main, small(lr=1e30, clip=0.0), 2, fails=True):
        assert "the loss of step" in result.error
        assert WorkloadError.__name__ in result.error

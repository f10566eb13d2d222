"""What a checkpoint has is restored whole, into objects made anew, or its load is refused by name."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher import Env
from launcher.checkpoint import Checkpointer, merge, saving
from launcher.checkpoint.format import CheckpointError, Misfit
from launcher.runs.directory import Attempt, Events, Run
from launcher.runs.events import Restored, every
from tests.launch import ROOT

# torch 2.4 has no `no_dist`, and newer ones warn without it.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
Make = Callable[..., Checkpointer]


@pytest.fixture(params=["single", "sharded"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes Checkpointers of one rank over one folder, which write either kind of checkpoint, and closes them."""
    if request.param == "sharded":
        monkeypatch.setattr(saving, "SMALL", 0)
    made: list[Checkpointer] = []

    def new(**changes: Any) -> Checkpointer:
        made.append(Checkpointer(tmp_path / "checkpoints", ALONE, identity={}, read_timeout=0, **changes))
        return made[-1]

    yield new
    for each in made:
        each.close()


class Net(nn.Module):
    """Has a frozen parameter, one that no loss depends on, an embedding and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.linear = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.norm = nn.BatchNorm1d(2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(self.embedding(words)) * self.scale + self.frozen)


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    one, *others = model.parameters()
    return [{"params": [one], "lr": 0.01}, {"params": others}]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "plain SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(two_groups(model), lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "AdamW": lambda model: torch.optim.AdamW(two_groups(model), amsgrad=True, weight_decay=0.1),
    "Adam, foreach": lambda model: torch.optim.Adam(model.parameters(), foreach=True),
    "Adam, fused": lambda model: torch.optim.Adam(model.parameters(), fused=True),
    "a tensor as rate": lambda model: torch.optim.AdamW(two_groups(model), lr=torch.tensor(0.1)),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.1),
    "ASGD": lambda model: torch.optim.ASGD(model.parameters()),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters()),
    "LBFGS": lambda model: torch.optim.LBFGS(
        [each for each in model.parameters() if each.requires_grad], history_size=3, line_search_fn="strong_wolfe"
    ),
}  # fmt: skip


class Loop:
    """A loop of one's own: model, optimizer, scheduler, scaler."""

    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = OPTIMIZERS[kind](self.model)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.epoch = 0

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": self.model, "optim": {"optimizer": self.optimizer, "scheduler": self.scheduler},
            "scaler": self.scaler, "epoch": self.epoch,
        }  # fmt: skip

    def train(self, *steps: int) -> None:
        for step in steps:
            words = (torch.arange(4) + step) % 5

            def closure(words: torch.Tensor = words) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = self.scaler.scale(self.model(words).square().mean())
                loss.backward()
                return loss

            if isinstance(self.optimizer, torch.optim.LBFGS):  # the scaler takes no closures
                self.optimizer.step(closure)
            else:
                closure()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()
            self.epoch = step

    def all(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(), "scaler": self.scaler.state_dict(),
        }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal bit for bit, type for type, key for key."""
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(one.detach().view(-1).view(torch.uint8), other.detach().view(-1).view(torch.uint8))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)  # NaN is not equal to itself


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_objects_made_anew_get_all_that_was_saved_and_go_on_as_if_nothing_had_happened(make: Make, kind: str) -> None:
    loop = Loop(kind, seed=1)
    loop.train(1, 2, 3)
    make().save(3, loop.state, wait=True)
    saved = copy.deepcopy(loop.all())
    fresh = Loop(kind, seed=2)
    generator = torch.get_rng_state()
    loaded = make().load(fresh.state)
    assert loaded is not None and loaded.values["epoch"] == 3
    assert same(fresh.all(), saved)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in fresh.model.parameters())
    loop.train(4, 5)
    fresh.train(4, 5)
    assert same(fresh.all(), loop.all())


def test_an_optimizer_that_has_done_steps_gets_what_was_saved_and_nothing_else(make: Make) -> None:
    """At the save one parameter had no gradient yet, or none had."""
    loop = Loop("AdamW", seed=1)
    make().save(0, loop.state, wait=True)
    saved = copy.deepcopy(loop.all())
    loop.train(1, 2)
    momentum = loop.optimizer.state[loop.model.linear.weight]
    assert momentum
    assert make().load(loop.state) is not None
    assert same(loop.all(), saved) and loop.optimizer.state_dict()["state"] == {}


def test_memory_of_an_optimizers_state_is_used_again(make: Make) -> None:
    loop = Loop("momentum", seed=1)
    loop.train(1)
    checkpointer = make()
    checkpointer.save(1, loop.state, wait=True)
    momentum = loop.optimizer.state[loop.model.linear.weight]["momentum_buffer"]
    loop.train(2)
    assert checkpointer.load(loop.state) is not None
    assert loop.optimizer.state[loop.model.linear.weight]["momentum_buffer"].data_ptr() == momentum.data_ptr()


def test_an_optimizer_is_as_fresh_as_before_if_nothing_is_loaded(make: Make) -> None:
    loop = Loop("AdamW", seed=1)
    assert make().load(loop.state) is None
    assert loop.optimizer.state_dict()["state"] == {}
    other = nn.Linear(1, 1)
    make().save(1, {**loop.state, "model": other}, wait=True)
    with pytest.raises(Misfit):
        make().load(loop.state)
    assert loop.optimizer.state_dict()["state"] == {}


def test_averages_of_another_type_than_their_parameters_keep_it(make: Make) -> None:
    """torch's load_state_dict casts them to bfloat16."""

    def made(fill: float) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weights = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
        optimizer.state[weights]["momentum_buffer"] = torch.full((4,), fill)
        return weights, optimizer

    _, before = made(1 / 3)
    make().save(1, {"optimizer": before}, wait=True)
    weights, after = made(0.0)
    make().load({"optimizer": after})
    assert same(after.state[weights]["momentum_buffer"], torch.full((4,), 1 / 3))


class Shadow:
    """An exponential moving average, as libraries have them: a list of tensors, which is empty at first."""

    def __init__(self) -> None:
        self.shadow: list[torch.Tensor] = []
        self.pair: tuple[Any, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "pair": self.pair, "nested": [{"x": each} for each in self.shadow]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow, self.pair = state["shadow"], state["pair"]
        self.nested = state["nested"]


def test_lists_come_back_as_lists_also_to_an_object_that_has_none_yet(make: Make) -> None:
    shadow = Shadow()
    shadow.shadow = [torch.arange(float(number)) for number in range(12)]
    shadow.pair = (torch.ones(2), "text", [torch.zeros(1), None], {3: torch.ones(1)})
    make().save(1, {"ema": shadow}, wait=True)
    fresh = Shadow()
    assert make().load({"ema": fresh}) is not None
    assert same([fresh.shadow, fresh.pair], [shadow.shadow, shadow.pair])
    assert same(fresh.nested, [{"x": each} for each in shadow.shadow])


def test_an_object_gets_its_tensors_in_whatever_shape_they_were(make: Make) -> None:
    loader, fresh = Shadow(), Shadow()
    loader.shadow, fresh.shadow = [torch.randperm(9)], [torch.zeros(3), torch.zeros(4)]
    make().save(1, {"loader": loader}, wait=True)
    assert make().load({"loader": fresh}) is not None
    assert same(fresh.shadow, loader.shadow)


def test_each_state_that_a_run_continued_from_is_known_whatever_it_saved_since(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    attempt = Attempt(Run(tmp_path), 0)
    attempt.events_file("checkpoint").parent.mkdir(parents=True)
    checkpointer, state = make(), {"weight": torch.zeros(1)}
    for step in range(1, 4):
        checkpointer.save(step, state, wait=True)
        checkpointer.load(state)
    checkpointer.save(4, state, wait=True)
    Events(attempt, "checkpoint")(Restored(step=9))  # as the version before has written it
    assert [each.step for each in every(attempt.latest_events(), Restored)] == [1, 2, 3, 9]


# -- what is not restored is refused


def refused(make: Make, saved: dict[str, Any], now: dict[str, Any], **options: Any) -> str:
    make().save(1, saved, wait=True)
    with pytest.raises(Misfit) as error:
        make().load(now, **options)
    return str(error.value)


def test_a_dict_without_room_for_what_was_saved_is_refused_with_what_to_do(make: Make) -> None:
    """What everybody writes who knows torch.save: nothing can be filled into the empty state of a fresh optimizer."""
    loop, fresh = Loop("AdamW", seed=1), Loop("AdamW", seed=2)
    loop.train(1)
    before = copy.deepcopy(fresh.all())
    text = refused(
        make,
        {"model": loop.model.state_dict(), "opt": loop.optimizer.state_dict()},
        {"model": fresh.model.state_dict(), "opt": fresh.optimizer.state_dict()},
    )
    assert "opt.state.0.exp_avg: in the checkpoint, not in the state" in text
    assert 'give the object itself ({"optimizer": optimizer}) instead of its state_dict()' in text
    assert same(fresh.all(), before)


def test_roots_that_the_state_lacks_are_refused(make: Make) -> None:
    loop = Loop("AdamW", seed=1)
    loop.train(1)
    text = refused(make, loop.state, {"model": loop.model, "optim": {}})
    assert "\n  scaler: in the checkpoint, not in the state" in text
    assert "\n  epoch: in the checkpoint, not in the state" in text
    assert "optim.optimizer.state.0.exp_avg: in the checkpoint, not in the state" in text


def test_an_object_that_the_checkpoint_lacks_is_refused(make: Make) -> None:
    """A scheduler would begin anew in the middle of the training."""
    loop = Loop("AdamW", seed=1)
    text = refused(make, {"model": loop.model}, {"model": loop.model, "scheduler": loop.scheduler})
    assert "\n  scheduler: not in the checkpoint" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.add_module("more", nn.Linear(1, 1)), "model.more.weight: not in the checkpoint"),
        (lambda model: delattr(model, "unused"), "model.unused: in the checkpoint, not in the state"),
        (lambda model: setattr(model, "unused", nn.Parameter(torch.ones(3))), r"model.unused: shape \(2,\) in the"),
        (lambda model: model.double(), "model.scale: torch.float32 in the checkpoint, torch.float64 now"),
    ],
)
def test_another_model_is_refused_and_nothing_changes(make: Make, change: Any, words: str) -> None:
    loop, fresh = Loop("AdamW", seed=1), Loop("AdamW", seed=2)
    loop.train(1)
    make().save(1, loop.state, wait=True)
    change(fresh.model)
    before = copy.deepcopy(fresh.all())
    with pytest.raises(Misfit, match=words):
        make().load(fresh.state)
    assert same(fresh.all(), before)


def test_an_optimizer_of_other_parameters_is_refused_and_nothing_changes(make: Make) -> None:
    loop, fresh = Loop("momentum", seed=1), Loop("momentum", seed=2)
    loop.train(1)
    fresh.optimizer = torch.optim.SGD(fresh.model.linear.parameters(), lr=0.1, momentum=0.9)
    before = copy.deepcopy(fresh.all())
    text = refused(make, loop.state, fresh.state)
    assert "optim.optimizer: groups of 1 and 7 parameters in the checkpoint, of 2 now" in text
    assert same(fresh.all(), before)


def test_a_tensor_where_an_optimizer_is_now_is_refused(make: Make) -> None:
    make().save(1, {"optimizer": torch.ones(2)}, wait=True)
    with pytest.raises(Misfit, match="optimizer: groups of no parameters in the checkpoint, of 1 now"):
        make().load({"optimizer": torch.optim.SGD([torch.zeros(2, requires_grad=True)])})


def test_an_object_that_does_not_take_its_state_is_named(make: Make) -> None:
    class Picky(Shadow):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("tempo")

    make().save(1, {"data": {"loader": Shadow()}}, wait=True)
    with pytest.raises(CheckpointError, match=r"data\.loader \(Picky\) does not take the state .*KeyError: 'tempo'"):
        make().load({"data": {"loader": Picky()}})


# -- only a part


def test_a_part_can_be_loaded_and_what_is_left_out_is_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    loop, fresh = Loop("AdamW", seed=1), Loop("AdamW", seed=2)
    loop.train(1)
    make().save(1, loop.state, wait=True)
    before = copy.deepcopy(fresh.all())
    loaded = make().load(fresh.state, only=["model", "optim.scheduler"])
    assert loaded is not None and set(loaded.values) == {"optim"} and set(loaded.values["optim"]) == {"scheduler"}
    after = fresh.all()
    assert same(after["model"], loop.all()["model"]) and same(after["scheduler"], loop.all()["scheduler"])
    assert same([after["optimizer"], after["scaler"]], [before["optimizer"], before["scaler"]])
    assert "only model, optim.scheduler loaded from step-000000001" in capsys.readouterr().out
    assert make().load({"model": fresh.model}, only=["model"]) is not None


@pytest.mark.parametrize("name", ["mode", "model.linear.weigh", "optim.optimizer"])
def test_a_part_that_does_not_exist_is_refused(make: Make, name: str) -> None:
    loop = Loop("AdamW", seed=1)
    text = refused(make, {"model": loop.model}, loop.state, only=["model", name])
    assert f"{name}: not in the checkpoint" in text


# -- wrappers, plain values


@pytest.mark.parametrize(("name", "value"), [("best", None), ("scaler", {}), ("n.x", None), ("n.y", False)])
def test_a_part_may_be_none_or_empty(make: Make, name: str, value: Any) -> None:
    state = {"w": torch.ones(3), "best": None, "scaler": {}, "n": {"x": None, "y": False, "z": 1}}
    make().save(1, state, wait=True)
    loaded = make().load(state, only=[name])
    first, *inner = name.split(".")
    assert loaded is not None and loaded.values == {first: {inner[0]: value} if inner else value}


def test_a_compiled_model_has_the_names_of_the_model(make: Make) -> None:
    loop, fresh = Loop("AdamW", seed=1), Loop("AdamW", seed=2)
    compiled = torch.compile(loop.model, backend="eager")  # nothing runs it, and the default takes seconds to import
    make().save(1, {"model": compiled}, wait=True)
    assert make().load({"model": fresh.model}) is not None
    assert same(fresh.model.state_dict(), loop.model.state_dict())


def test_values_of_plain_dicts_are_returned_all(make: Make) -> None:
    saved = {"counters": {"epoch": 3, "seen": [1, 2], "best": {"loss": 0.5}}, "w": torch.ones(2), "text": "x"}
    make().save(1, saved, wait=True)
    now = {"counters": {}, "w": torch.zeros(2), "text": ""}
    loaded = make().load(now)
    assert loaded is not None and same(merge(now, loaded.values), saved)


def test_a_merged_state_has_the_objects_and_saves_them_again(make: Make) -> None:
    loop = Loop("AdamW", seed=1)
    loop.train(1)
    checkpointer = make()
    checkpointer.save(1, loop.state, wait=True)
    loaded = checkpointer.load(loop.state)
    assert loaded is not None
    state = merge(loop.state, loaded.values)
    assert state == {**loop.state, "epoch": 1}


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "checkpoints-and-restarts.md").read_text()
    page = page.partition("## In your own code")[2].partition(":\n")[2]
    lines = [line for line in page.partition("\nAll ranks")[0].splitlines() if line.strip()]
    assert all(line.startswith("    ") for line in lines)
    monkeypatch.setattr("launcher.init", lambda: ALONE, raising=False)

    def attempt(steps: int) -> dict[str, Any]:
        loop = Loop("AdamW", seed=steps)
        names = {
            "torch": torch, "folder": str(tmp_path / "checkpoints"), "model": loop.model, "optimizer": loop.optimizer,
            "scheduler": loop.scheduler, "steps": steps, "train": lambda *_: loop.train(1),
        }  # fmt: skip
        exec(textwrap.dedent("\n".join(lines)), names)
        return names

    attempt(2)
    names = attempt(3)
    assert names["loaded"].step == 2 and names["state"]["optimizer"] is names["optimizer"]
    assert names["scheduler"].last_epoch == 3 and names["optimizer"].state[names["model"].scale]["step"] == 3


@pytest.mark.parametrize("form", [str, Path, lambda path: type("Fs", (), {"__fspath__": lambda self: str(path)})()])
def test_the_folder_is_any_kind_of_path(tmp_path: Path, form: Any) -> None:
    checkpointer = Checkpointer(form(tmp_path / "checkpoints"), ALONE, identity={})
    checkpointer.save(1, {"w": torch.ones(1)}, wait=True)
    assert checkpointer.load({"w": torch.zeros(1)}) is not None
    checkpointer.close()
    assert checkpointer.folder == tmp_path / "checkpoints"


class Halved(nn.Linear):
    """Loads half of the weight that was saved."""

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict({**state_dict, "weight": state_dict["weight"] / 2}, *args, **kwargs)


def halved_by_a_hook() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_load_state_dict_pre_hook(lambda _, state, *rest: state.update(weight=state["weight"] / 2))
    return model


@pytest.mark.parametrize(
    ("build", "factor"), [(Net, 1.0), (lambda: Halved(2, 2), 0.5), (halved_by_a_hook, 0.5)], ids=["net", "own", "hook"]
)
def test_a_module_keeps_its_parameters_and_its_hooks_are_called(
    make: Make, build: Callable[[], nn.Module], factor: float
) -> None:
    """Its tensors are filled in place: load_state_dict copies none of them, unless it may have something to change."""
    model, fresh = build(), build()
    make().save(1, {"model": model}, wait=True)
    called: list[int] = []
    fresh.register_load_state_dict_post_hook(lambda *_: called.append(1))
    before = [*fresh.parameters(), *fresh.buffers()]
    assert make().load({"model": fresh}) is not None
    assert list(map(id, [*fresh.parameters(), *fresh.buffers()])) == list(map(id, before))
    assert called == [1]
    assert all(each.requires_grad == (name != "frozen") for name, each in fresh.named_parameters())
    for name, saved in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], saved * factor if name == "weight" else saved), name

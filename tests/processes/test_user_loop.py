"""A state machine over a user's loop: whatever is killed or changed, what is loaded is bitwise what was saved, or an
error by name."""

from __future__ import annotations

import copy
import os
import pathlib
import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import nn

from launcher import Env, Resumable
from launcher.checkpoint import saving
from launcher.checkpoint.format import CheckpointError, Misfit
from launcher.checkpoint.resumable import generators, seed_generators
from tests.unit.checkpoint.test_load import same
from tests.unit.plans import run_settings

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
KEEP = 2


class Killed(BaseException):
    """The process has died in a system call; nothing of what it would do later is done."""


class Mortal:
    """Kills the process at its n-th call that changes files; a write is torn. Then each further one does nothing."""

    CALLS = ("write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.last = 0, float("inf")
        owners = [os, accessor] if (accessor := getattr(pathlib, "_NormalAccessor", None)) else [os]
        for owner in owners:  # Python 3.10: paths have functions of their own
            for name in self.CALLS:
                if hasattr(owner, name):
                    monkeypatch.setattr(owner, name, staticmethod(self._call(name, getattr(owner, name))))

    def _call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "write" and arguments[0] <= 2:  # what it prints
                return real(*arguments, **options)
            self.calls += 1
            if self.calls == self.last and name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if self.calls >= self.last:
                raise Killed
            return real(*arguments, **options)

        return call

    def dies_after(self, calls: float) -> None:
        self.calls, self.last = 0, calls


class Loader:
    def __init__(self) -> None:
        self.left = torch.randperm(7)

    def __next__(self) -> int:
        if len(self.left) == 0:
            self.left = torch.randperm(7)
        first, self.left = self.left[0], self.left[1:]
        return int(first)

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


OPTIMIZERS: tuple[Callable[..., torch.optim.Optimizer], ...] = (
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    lambda parameters: torch.optim.LBFGS(parameters, max_iter=2, history_size=2),
)


class Loop:
    """What a user writes."""

    def __init__(self, kind: int, width: int = 3) -> None:
        self.model = nn.Sequential(nn.Linear(2, width), nn.Dropout(0.2), nn.Linear(width, 1))
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.loader, self.counts = Loader(), {"words": [], "best": {"loss": 1.0}}
        self.generator = torch.Generator().manual_seed(kind)
        self.state: dict[str, Any] = {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "counts": self.counts,
            "generator": self.generator,
        }  # fmt: skip
        self.rank_state: dict[str, Any] = {"loader": self.loader}

    def step(self) -> None:
        data = torch.randn(4, 2, generator=self.generator) * next(self.loader) / 7

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.model(data).square().mean()
            loss.backward()
            return loss

        loss = float(self.optimizer.step(closure))  # type: ignore[arg-type]
        self.scheduler.step()
        self.counts["words"].append(random.randrange(9))
        self.counts["best"]["loss"] = min(loss, float(numpy.random.random()))

    def all(self) -> dict[str, Any]:
        states = {name: item.state_dict() for name, item in self.state.items() if hasattr(item, "state_dict")}
        own = {"loader": self.loader.state_dict(), "generator": self.generator.get_state(), "counts": self.counts}
        return copy.deepcopy({**states, **own, "default": generators(torch.device("cpu"))})


CHANGES: dict[str, Callable[[Loop], Any]] = {
    "scheduler: in the checkpoint, not in the state": lambda loop: loop.state.pop("scheduler"),
    "generator: in the checkpoint, not in the state": lambda loop: loop.state.pop("generator"),
    "more: not in the checkpoint": lambda loop: loop.state.update(more=Loader()),
    "model.0.weight: shape": lambda loop: loop.state.update(model=Loop(0, width=4).model),
    "optimizer: groups of 4 parameters in the checkpoint, of 2 now": lambda loop: loop.state.update(
        optimizer=torch.optim.SGD(loop.model[0].parameters())
    ),
    "of each rank": lambda loop: loop.rank_state.pop("loader"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore:torch.distributed is dis")
class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.patch = pytest.MonkeyPatch()
        self.disk = Mortal(self.patch)
        begin = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            begin(thread)
            if thread.name == "checkpoint-retention":  # else the order of two threads decides where the process dies
                thread.join()

        self.patch.setattr(threading.Thread, "start", start)
        self.saved: dict[int, dict[str, Any]] = {}  # by step, what was saved last under it
        self.sure = self.done = 0  # step of the newest save that was completed; steps done
        self.torn = False  # a byte of the newest checkpoint has changed since then

    @initialize(kind=st.sampled_from(range(len(OPTIMIZERS))), small=st.sampled_from((0, saving.SMALL)))
    def begin(self, kind: int, small: int) -> None:
        self.kind = kind
        self.patch.setattr(saving, "SMALL", small)
        self.start()
        assert self.training.load() == 0

    def start(self) -> None:
        seed_generators(len(self.saved))
        self.loop = Loop(self.kind)
        self.training = self.of(self.loop)

    def of(self, loop: Loop) -> Resumable:
        run = run_settings(
            checkpoint_dir=self.folder / "it", every_steps=1, keep=KEEP, background=False, read_timeout=0
        )
        return Resumable(loop.state, loop.rank_state, env=ALONE, run=run)

    def step(self) -> None:
        self.loop.step()
        self.done += 1
        self.saved[self.done] = self.loop.all()

    @rule(steps=st.integers(1, 3))
    def trains(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.training.boundary(self.done)
            self.sure, self.torn = self.done, False

    @rule(calls=st.integers(1, 45), finishes=st.booleans())
    def is_killed_in_a_save(self, calls: int, finishes: bool) -> None:
        self.step()
        self.disk.dies_after(calls)
        try:
            self.training.finish(self.done) if finishes else self.training.boundary(self.done)
            self.sure, self.torn = self.done, False  # it needed fewer calls
        except Killed:
            pass
        self.resumes()

    @rule()
    def resumes(self) -> None:
        self.disk.dies_after(float("inf"))
        newest, self.done = self.done, 0
        self.start()
        try:
            self.done = self.training.load()
        except CheckpointError as error:
            assert self.torn and "is sound" in str(error)
            return self.gives_up()
        assert self.torn or self.sure <= self.done <= max(newest, self.sure)
        if self.done:
            assert same(self.loop.all(), self.saved[self.done])
        self.sure, self.torn = self.done, False
        return None

    @precondition(lambda self: self.sure and not self.torn)
    @rule(words=st.sampled_from(sorted(CHANGES)))
    def is_refused_with_another_state(self, words: str) -> None:
        other = Loop(self.kind)
        CHANGES[words](other)
        training = self.of(other)
        with pytest.raises(Misfit, match=words):
            training.load()
        training.close()

    @precondition(lambda self: self.sure)
    @rule(file=st.integers(0, 3), place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
    def has_a_changed_byte(self, file: int, place: int, bit: int) -> None:
        self.training.close()
        newest = max((self.folder / "it").glob("step-*"))
        files = sorted(newest.iterdir())
        path = files[file % len(files)]
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 1 << bit
        path.write_bytes(content)
        self.torn = True
        self.resumes()

    def gives_up(self) -> None:
        """None is sound: the user begins anew."""
        shutil.rmtree(self.folder / "it")
        self.saved.clear()
        self.sure, self.torn = 0, False
        self.start()

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder, ignore_errors=True)


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None, phases=(Phase.generate,))
TestUserLoop = Machine.TestCase

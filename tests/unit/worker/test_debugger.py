"""breakpoint() in a rank: who stops, what the prompt can do, and how the rank goes on or ends."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pdb
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from launcher.config.schema import Debug
from launcher.errors import ConfigError
from launcher.plan.plan import JobPlan, as_dict, from_dict
from launcher.worker import debugger, user_script
from tests.launch import ROOT, until
from tests.unit.plans import bare_plan, plan_of
from tests.unit.worker.test_debug_console import Terminal


@pytest.mark.parametrize(
    ("keys", "ranks"),
    [
        ({}, ()),
        ({"rank": 0}, (0,)),
        ({"rank": [3, 1, 3]}, (1, 3)),
        ({"rank": "all"}, (0, 1, 2, 3)),
        ({"rank": 2, "post_mortem": True}, (2,)),
        ({"post_mortem": True}, (0, 1, 2, 3)),
    ],
)
def test_ranks_that_stop(keys: dict[str, Any], ranks: tuple[int, ...]) -> None:
    plan = plan_of(nodes=2, procs_per_node=2, debug=Debug(**keys))
    assert (plan.debug.ranks, plan.debugs) == (ranks, bool(ranks))
    assert from_dict(json.loads(json.dumps(as_dict(plan)))) == plan


@pytest.mark.parametrize("rank", [4, "0", "some", True, 1.5, [0, 4]])
def test_ranks_that_are_none(rank: Any) -> None:
    with pytest.raises(ConfigError, match=r"debug.rank=.* it must be a rank below 4, a list \(\[0,1\]\), or all"):
        plan_of(nodes=2, procs_per_node=2, debug=Debug(rank=rank))


# -- in a rank


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobPlan]:
    """This process as rank 0 of a run whose rank 0 stops."""
    (tmp_path / "attempts/0/events").mkdir(parents=True)
    sockets = Path("/tmp") / f"launcher-test-{os.getpid()}-{time.monotonic_ns()}"
    sockets.mkdir(mode=0o700)
    for name, value in {
        "RANK": "0", "LAUNCHER_RUN_DIR": str(tmp_path), "LAUNCHER_ATTEMPT": "0", "LAUNCHER_HOSTS": "node1,node2",
        "NODE_RANK": "1", "LAUNCHER_DEADLINE": str(time.time() + 3600), debugger.SOCKETS: str(sockets),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr(debugger, "_debugger", None)
    monkeypatch.setattr(debugger, "_logged", set())
    monkeypatch.setattr(debugger, "_ranks", ())
    yield bare_plan(run_dir=str(tmp_path), debug={"ranks": (0,), "post_mortem": True})
    if debugger._debugger is not None:
        debugger._debugger._console.end()
    for path in sockets.iterdir():
        path.unlink()
    sockets.rmdir()


# Since Python 3.13 set_trace stops at its own line, before that at the next one.
STOPS_AT_CALL = sys.version_info >= (3, 13)


def in_thread(plan: JobPlan, work: Callable[[], Any]) -> Callable[[], Any]:
    """Does a rank's work in a thread; what is returned ends it, and returns or raises what that did."""
    ended: list[Any] = []

    def run() -> None:
        try:
            with debugger.Watched(plan.debug.post_mortem):
                ended.append(work())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> Any:
        thread.join(60)
        assert not thread.is_alive()
        if isinstance(ended[0], BaseException):
            raise ended[0]
        return ended[0]

    return end


def events(plan: JobPlan) -> list[dict[str, Any]]:
    path = Path(plan.run_dir, "attempts/0/events/debug-0.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def terminal(plan: JobPlan) -> Terminal:
    """Comes to the breakpoint when it is there."""
    until(lambda: events(plan), "the breakpoint")
    return Terminal(Path(events(plan)[0]["socket"]))


def until_prompt(end: Terminal) -> str:
    """What is shown before the next prompt."""
    shown = ""
    while True:
        message = end.receive()
        assert message is not None, shown
        assert "bye" not in message, message
        if "prompt" in message:
            return shown
        shown += str(message.get("text", ""))


def twice() -> int:
    debugger._debugger_of_rank().set_trace(sys._getframe())
    first = 1
    debugger._debugger_of_rank().set_trace(sys._getframe())
    second = 2
    return first + second


def test_a_step_may_lead_to_another_breakpoint(rank: JobPlan) -> None:
    ended = in_thread(rank, twice)
    user = terminal(rank)
    until_prompt(user)
    for line in ("n",) * (2 + STOPS_AT_CALL) + ("p 1", "interact"):
        user.send(line=line)
        shown = until_prompt(user)
        if line == "n":
            assert "test_debugger.py" in shown
    assert "takes any Python statement" in shown
    user.send(line="c")
    assert ended() == 3
    user.leave()


def adds(plan: JobPlan) -> int:
    factor = 1
    debugger._debugger_of_rank().set_trace(sys._getframe())
    total = factor + 1
    return total  # noqa: RET504 - a line to step to


def test_a_variable_is_looked_at_and_changed(rank: JobPlan) -> None:
    ended = in_thread(rank, lambda: adds(rank))
    user = terminal(rank)
    shown = until_prompt(user)
    assert "rank 0 on node2, process" in shown
    assert "its job ends in 00:5" in shown
    if STOPS_AT_CALL:
        user.send(line="n")
        shown = until_prompt(user)
    assert "-> total = factor + 1" in shown
    user.send(line="factor = 41")
    assert until_prompt(user) == ""
    user.send(line="n")
    assert "-> return total" in until_prompt(user)
    user.send(line="run")
    assert "cannot be started again" in until_prompt(user)
    user.send(line="c")
    assert ended() == 42
    assert user.receive() == {"runs": True}
    assert [event["event"] for event in events(rank)] == ["breakpoint", "continued"] * (2 + STOPS_AT_CALL)
    first = events(rank)[0]
    assert (first["rank"], first["host"], first.get("post_mortem")) == (0, "node2", None)
    assert first["where"].startswith("tests/unit/worker/test_debugger.py:")
    user.leave()


def test_q_ends_the_rank_with_a_cause(rank: JobPlan) -> None:
    ended = in_thread(rank, lambda: adds(rank))
    user = terminal(rank)
    until_prompt(user)
    user.send(line="q")
    with pytest.raises(
        debugger.DebuggerQuit, match=r"at the debugger's prompt \(q\) in tests/unit/worker/test_debugger.py"
    ):
        ended()
    user.leave()


@pytest.mark.parametrize("leave", ["c", "q"])
def test_an_exception_that_nobody_catches_is_looked_at_and_goes_on(rank: JobPlan, leave: str) -> None:
    def divide(by: int) -> float:
        return 1 / by

    ended = in_thread(rank, lambda: divide(0))
    user = terminal(rank)
    assert "ZeroDivisionError: division by zero" in until_prompt(user)
    user.send(line="p by")
    assert until_prompt(user) == "0\n"
    user.send(line=leave)
    with pytest.raises(ZeroDivisionError):
        ended()
    assert events(rank)[0]["post_mortem"] is True
    user.leave()


def test_frames_above_the_workload_are_not_shown(rank: JobPlan) -> None:
    def _run_workload() -> int:
        return adds(rank)

    ended = in_thread(rank, _run_workload)
    user = terminal(rank)
    until_prompt(user)
    user.send(line="w")
    shown = until_prompt(user)
    assert "adds()" in shown
    assert "run()" not in shown
    user.send(line="c")
    assert ended() == 2
    user.leave()


def makes_debugger(dist: Any) -> str:
    """By which name torch makes its debugger."""
    return "_make_distributed_pdb" if hasattr(dist, "_make_distributed_pdb") else "_DistributedPdb"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `install` changes is as it was afterwards."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    class NoTerminal:
        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", NoTerminal())
    for where, name in (
        (sys, "breakpointhook"), (pdb, "set_trace"), (dist, "breakpoint"), (dist, makes_debugger(dist)),
        (distributed_c10d, "default_pg_timeout"), (distributed_c10d, "default_pg_nccl_timeout"),
        (dist.breakpoint, "__defaults__"),
    ):  # fmt: skip
        monkeypatch.setattr(where, name, getattr(where, name))
    return dist


def test_other_ranks_pass_it_over_and_say_so_once(
    rank: JobPlan, hooks: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    debugger.install(**debugger.install_arguments(rank))
    for _ in range(3):
        breakpoint()
        pdb.set_trace()
    words = capsys.readouterr().err.splitlines()
    assert len(words) == 2
    assert all("rank 1 ignores breakpoint() in tests/unit/worker/test_debugger.py:" in line for line in words)
    assert all("(debug.rank=0)" in line for line in words)


def test_without_debug_rank_all_pass_it_over(rank: JobPlan, hooks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    debugger.install([])
    breakpoint()
    hooks.breakpoint(rank=0)
    assert capsys.readouterr().err.count("(add debug.rank=0 to stop)") == 2


def test_groups_made_without_a_time_have_all_of_it(rank: JobPlan, hooks: Any) -> None:
    from torch.distributed import distributed_c10d

    debugger.install(**debugger.install_arguments(rank))
    assert distributed_c10d._get_default_timeout(hooks.Backend("gloo")) == timedelta(seconds=debugger.FOREVER)
    time = inspect.signature(hooks.breakpoint).parameters.get("timeout_s")  # torch 2.4 and 2.6 set no time
    assert time is None or time.default is None
    assert isinstance(getattr(hooks, makes_debugger(hooks))(), debugger.Debugger)


def test_torch_is_seen_to_when_a_program_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, seen = f"later_{os.getpid()}", []
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(debugger, "_install_torch", lambda module: seen.append(module.value))
    monkeypatch.setattr(sys, "meta_path", [debugger._AfterImport(name), *sys.meta_path])
    importlib.import_module(name)
    assert seen == [1]
    monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("ranks", "typed", "code", "printed"),
    [
        ([0], ["factor = 41", "c"], 0, "42"),
        ([0], ["q"], 93, "DebuggerQuit: it was ended at the debugger's prompt"),
        ([1], [], 0, "rank 0 ignores breakpoint() in"),
        ([], [], 0, "add debug.rank=0 to stop"),
    ],
)
def test_a_program_of_ones_own(
    rank: JobPlan, tmp_path: Path, ranks: list[int], typed: list[str], code: int, printed: str
) -> None:
    program = tmp_path / "own.py"
    program.write_text("factor = 1\nbreakpoint()\nprint(factor + 1)\n")
    told = {"debug": {"launcher": str(ROOT), "ranks": ranks, "post_mortem": False}}
    process = subprocess.Popen(
        [sys.executable, user_script.__file__, "script", str(program)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env={**os.environ, "LAUNCHER_PROGRAM": json.dumps(told)},
    )  # fmt: skip
    if typed:
        until(lambda: events(rank), "the breakpoint")
        user = Terminal(Path(events(rank)[0]["socket"]))
        for line in typed:
            until_prompt(user)
            user.send(line=line)
        user.leave()
    assert printed in process.communicate(timeout=60)[0]
    assert process.returncode == code


def test_another_debugger_that_was_chosen_is_left_alone(
    rank: JobPlan, hooks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sys.breakpointhook
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    debugger.install(**debugger.install_arguments(rank))
    assert sys.breakpointhook is before

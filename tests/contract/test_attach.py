"""`attach` to ranks of a running job, on every scheduler: stacks, a shell, and the debugger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.schedulers import on
from tests.contract.test_runs import processes_of
from tests.launch import PYTHON, ROOT, Launcher
from tests.terminal import Terminal

pytestmark = [
    pytest.mark.timeout(240),
    on("local", ci=("slurm",), never=("third", "allocation")),
]


@pytest.fixture(autouse=True)
def nothing_left(launcher: Launcher) -> Iterator[None]:
    """Ends the run after the test, even if the test has failed."""
    yield
    launcher("cancel", "latest")
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 30)


def attach(launcher: Launcher, *options: str) -> Terminal:
    words = [*launcher.prefix, PYTHON, "-m", "launcher", "attach", "latest", *options]
    return Terminal(words, launcher.environ, ROOT)


def waits(launcher: Launcher, rank: int) -> None:
    """Waits until a rank has stopped at a breakpoint."""
    launcher.until(lambda: f"launcher: rank {rank} on " in launcher.printed(), f"rank {rank} at its breakpoint")


def test_a_rank_is_debugged_while_the_others_wait(launcher: Launcher) -> None:
    """The debugger takes longer than launch.timeout and launch.hang_timeout, which must have no effect meanwhile."""
    submitted = launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.breakpoints:main", "nodes=2", "debug.rank=0",
        "launch.timeout=1", "launch.hang_timeout=1", "wait=false",
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr
    waits(launcher, 0)
    passed = "rank 1 ignores breakpoint() in tests/chaos/breakpoints.py:14 (debug.rank=0)"
    launcher.until(lambda: passed in launcher.printed(), "rank 1 goes on")

    stacks = launcher("attach", "latest", "--stack")
    assert stacks.returncode == 0, stacks.stderr
    assert "in the debugger, which waits for `attach --debug`" in stacks.stdout
    assert "dist.all_reduce(total)" in stacks.stdout

    shell = attach(launcher, "--shell", "--rank", "1")
    shell.expect("does not affect the run")
    shell.type("echo rank=$RANK of $WORLD_SIZE in $PWD; exit 7\n")
    shell.expect(f"rank=1 of 2 in {ROOT}\n")
    assert shell.end() in (0, 7)

    wrong = launcher("attach", "latest", "--debug", "--rank", "1")
    assert wrong.returncode == 1
    assert "rank 1 does not wait at a breakpoint" in wrong.stderr
    assert "rank 0 in tests/chaos/breakpoints.py:1" in wrong.stderr

    first = attach(launcher, "--debug")
    first.expect("tests/chaos/breakpoints.py(1")  # its line; before Python 3.13 the one after it
    first.expect("(Pdb) ")
    first.type("factor = 10.0\n")
    first.expect("(Pdb) ")
    first.hang_up()  # and it waits

    again = attach(launcher, "--debug")
    again.expect("(Pdb) ")
    again.type("p factor\n")
    again.expect("10.0\n(Pdb) ")
    again.type("c\n")
    again.expect("rank 0 continues")
    again.type("\x03")
    assert again.end() == 0

    launcher.until(lambda: "launcher: rank 1 on " in launcher.printed(), "rank 1 at torch's breakpoint")
    second = attach(launcher, "--debug")
    second.expect("(Pdb) ")
    second.type("up\n")
    second.expect("-> dist.breakpoint(rank=1)\n(Pdb) ")
    second.type("p factor\n")
    second.expect("1.0\n(Pdb) ")
    second.type("c\n")
    second.expect("rank 1 has ended")
    assert second.end() == 0
    assert launcher("wait", "latest", "-q").returncode == 0, launcher.printed()
    result = launcher.last().result()
    assert result is not None
    assert result["total"] == 12.0
    over = launcher("attach", "latest", "--stack")
    assert over.returncode == 1
    assert "is done, so there is no rank to attach to" in over.stderr

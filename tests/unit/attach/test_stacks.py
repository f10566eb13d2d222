"""Stacks of many ranks: equal ones are one group, the odd ones come first, and only the user's frames are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.cli import attach

# As faulthandler writes it: threads in any order, the main one last, the newest frame of each first.
OTHER_THREAD = """Thread 0x00007f0a (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

"""
WAITS = (
    OTHER_THREAD
    + """Current thread 0x00007f0b (most recent call first):
  File "/venv/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{program}", line 2 in main
  File "/home/me/launcher/worker/main.py", line 112 in _run_workload
  File "/home/me/launcher/worker/main.py", line 75 in run_rank
"""
)
LOADS = """Current thread 0x00007f0b (most recent call first):
  File "{program}", line 1 in load
  File "{program}", line 2 in main
  File "/home/me/launcher/worker/main.py", line 112 in _run_workload
"""
DEBUGGED = """Current thread 0x00007f0b (most recent call first):
  File "/home/me/launcher/worker/debugger.py", line 120 in _next
  File "/usr/lib/python3.11/pdb.py", line 337 in user_line
  File "/usr/lib/python3.11/bdb.py", line 90 in trace_dispatch
  File "{program}", line 2 in main
  File "/home/me/launcher/worker/main.py", line 112 in _run_workload
"""
PROGRAM = """Current thread 0x00007f0b (most recent call first):
  File "{program}", line 2 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "/home/me/launcher/worker/user_script.py", line 132 in run_module
  File "/home/me/launcher/worker/user_script.py", line 164 in <module>
"""
BEFORE = """Current thread 0x00007f0b (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/home/me/launcher/worker/main.py", line 101 in _run_workload
"""


def report(rank: int, stack: str, *, host: str = "node1", step: int = -1, state: str = "S") -> dict[str, Any]:
    return {"rank": rank, "host": host, "pid": 100 + rank, "step": step, "state": state, "stack": stack}


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("batch = next(batches)\ndist.all_reduce(loss)\n")
    return str(path)


def test_the_odd_rank_comes_first_and_equal_ones_once(program: str) -> None:
    waits = WAITS.format(program=program)
    reports = [report(rank, waits, host=f"node{rank // 2}", step=7) for rank in (0, 2, 3)]
    groups = attach.group_stacks([*reports, report(1, LOADS.format(program=program), step=6)])
    assert [[each["rank"] for each in group.ranks] for group in groups] == [[1], [0, 2, 3]]
    assert attach.stack_lines(groups[0]) == [
        "rank 1 on node1, process 101, after step 6:",
        f'  File "{program}", line 2, in main', "    dist.all_reduce(loss)",
        f'  File "{program}", line 1, in load', "    batch = next(batches)",
    ]  # fmt: skip
    assert attach.stack_lines(groups[1])[0] == "ranks 0,2-3 on node0, node1, after step 7:"


@pytest.mark.parametrize(
    ("stack", "names"),
    [
        ("", []),
        (WAITS, ["main", "all_reduce"]),
        (DEBUGGED, ["main", attach.DEBUGGER.name]),
        (PROGRAM, ["<module>"]),
        (BEFORE, ["_call_with_frames_removed"]),  # the workload is being imported
        ('  File "x.py", line ??? in f\n', ["f"]),
    ],
)
def test_frames_from_the_workload_on(stack: str, names: list[str]) -> None:
    assert [frame.name for frame in attach.parse_stacks(stack)] == names


def test_ranks_without_a_stack_are_told_by_their_process() -> None:
    groups = attach.group_stacks([report(0, "", state="D"), report(1, "", state=""), report(2, "", state="R")])
    assert [attach.stack_lines(group) for group in groups] == [
        ["rank 0 on node1, process 100: no stack; its process waits for a device or a file server (state D)"],
        ["rank 1 on node1, process 101: no stack; its process is gone"],
        ["rank 2 on node1, process 102: no stack; its process wrote none (state R)"],
    ]

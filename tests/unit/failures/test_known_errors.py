"""Tracebacks and stacks are found in what a rank has printed, and shortened to the user's own frames."""

from __future__ import annotations

import pytest

from launcher.failures.codes import EndKind
from launcher.failures.known_errors import (
    before_crash,
    before_traceback,
    crash_lines,
    first_line,
    kind_of,
    last_error,
    last_traceback,
    own_frames,
)

IMPORT = """Traceback (most recent call last):
  File "/usr/lib/python3.11/importlib/__init__.py", line 126, in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
           ^^^^^^^^^^^^^^^^^^^
  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import
  File "/home/me/train.py", line 3, in <module>
    import flash_attn
ModuleNotFoundError: No module named 'flash_attn'"""


def test_the_import_machinery_is_not_shown() -> None:
    assert own_frames(IMPORT).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 3, in <module>',
        "    import flash_attn",
        "ModuleNotFoundError: No module named 'flash_attn'",
    ]  # fmt: skip


def test_of_a_long_traceback_runs_of_library_frames_are_a_line() -> None:
    library = "".join(
        f'  File "/venv/lib/python3.11/site-packages/torch/{n}.py", line {n}, in f\n    x\n' for n in range(9)
    )
    trace = f'Traceback (most recent call last):\n  File "/home/me/a.py", line 1, in main\n    go()\n{library}E: no'
    assert own_frames(trace).splitlines() == [
        "Traceback (most recent call last):", '  File "/home/me/a.py", line 1, in main', "    go()",
        "  ... 8 frames of libraries",
        '  File "/venv/lib/python3.11/site-packages/torch/8.py", line 8, in f', "    x", "E: no",
    ]  # fmt: skip
    short = trace.replace(library, library[: library.index('  File "/venv/lib/python3.11/site-packages/torch/3')])
    assert own_frames(short) == short


def test_a_log_up_to_its_last_chain_of_tracebacks() -> None:
    head = "Traceback (most recent call last):"
    log = ["a", head, "  x", "K: 1", "b", head, "  y", "", "During handling of the above exception, another exception "
           "occurred:", "", head, "  z", "E: 2"]  # fmt: skip
    assert before_traceback(log) == log[:5]
    assert before_traceback(["a"]) == ["a"]
    assert last_traceback([*log, "words after it"]) == "\n".join(log[5:])
    assert last_traceback(["a"]) == ""


def test_where_a_rank_crashed() -> None:
    log = ["step 1", "Fatal Python error: Segmentation fault", "", "Thread 0x1 (most recent call first):",
           '  File "/usr/lib/python3.11/threading.py", line 3 in wait', "",
           "Current thread 0x2 (most recent call first):", '  File "/home/me/a.py", line 9 in load',
           '  File "/src/launcher/worker/main.py", line 88 in _run_workload', '  File "/x.py", line 1 in run', "",
           "Extension modules: numpy (total: 1)"]  # fmt: skip
    assert crash_lines(log) == ('File "/home/me/a.py", line 9 in load',)
    assert before_crash(log) == ["step 1"]
    assert crash_lines(["all is well"]) == ()


def test_the_last_error_of_a_log() -> None:
    head = "Traceback (most recent call last):\n  File\n"
    assert last_error(f"{head}KeyError: 1\nwords\n{head}A.B: no\n") == "A.B: no"
    assert last_error("all is well\n") == ""


NCCL = "NCCL error in: /torch/csrc/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.5"
SEGMENT = (
    "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left on device (28)"
)


@pytest.mark.parametrize(
    ("text", "line", "kind"),
    [
        (f"{NCCL}\nncclSystemError: System call failed. \nLast error:\n{SEGMENT}\n", f"{NCCL}: {SEGMENT}",
         EndKind.SHARED_MEMORY),
        (f"{NCCL}\nncclInvalidUsage: no.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0\nmore",
         f"{NCCL}: Duplicate GPU detected : rank 1 and rank 0", None),
        (f"{NCCL}\nncclSystemError: x\nLast error:\n", NCCL, None),
        ("no such file\nor folder", "no such file", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_an_error_of_nccl_is_told_with_its_cause(text: str, line: str, kind: EndKind | None) -> None:
    assert first_line(text) == line
    assert kind_of(line) is kind

"""A rank that becomes the user's own program: what it executes, what it finds, how it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.agent import supervisor
from launcher.agent.supervisor import StopChecker
from launcher.config.schema import Program
from launcher.failures.codes import StopReason
from launcher.failures.known_errors import LOST_PEER
from launcher.job.requeue import further
from launcher.plan.plan import JobPlan
from launcher.runs import user_checkpoints
from launcher.worker import main as worker
from launcher.worker import shared_with_agent, user_script
from launcher.worker.shared_with_agent import WorkerError
from tests.unit.plans import bare_plan, plan_of

PYTHON = sys.executable


def plan(**keys: Any) -> JobPlan:
    fields = {name: keys.pop(name) for name in ("procs_per_node", "cpus_per_proc") if name in keys}
    return plan_of(workload=Program("program", "m:f", seed=0, **keys), **fields)


@pytest.mark.parametrize(
    ("keys", "executable", "words"),
    [
        (
            {"script": "train.py", "args": ["--lr", "0.1"]},
            False,
            [PYTHON, "-u", "*", "script", "train.py", "--lr", "0.1"],
        ),
        ({"module": "pkg.mod", "args": []}, False, [PYTHON, "-u", "*", "module", "pkg.mod"]),
        ({"script": "t.py", "python": "/opt/bin/python"}, False, ["/opt/bin/python", "-u", "*", "script", "t.py"]),
        ({"script": "/bin/echo", "args": ["a b"]}, True, ["/bin/echo", "a b"]),
    ],
)
def test_what_a_rank_executes(keys: dict[str, Any], executable: bool, words: list[str]) -> None:
    told = worker.command(plan(**keys).workload.params, PYTHON, executable=executable)
    assert told == [user_script.__file__ if word == "*" else word for word in words]


def test_a_program_of_this_folder_is_not_searched_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert worker.command(plan(script="a.out").workload.params, PYTHON, executable=True) == [str(tmp_path / "a.out")]


@pytest.mark.parametrize(
    ("procs", "cpus", "environ", "threads"),
    [
        (1, 1, {}, None),  # as torchrun: nothing to share
        (2, 1, {}, "1"),
        (1, 4, {}, "4"),
        (2, 3, {}, "3"),
        (2, 3, {"OMP_NUM_THREADS": "7"}, None),  # which is kept
    ],
)
def test_ranks_share_the_cpus_of_their_node(
    procs: int, cpus: int, environ: dict[str, str], threads: str | None
) -> None:
    found = worker.variables(plan(script="t.py", procs_per_node=procs, cpus_per_proc=cpus), environ, 0, 0)
    assert found.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(("attempt", "lives", "told"), [(0, 0, "0"), (1, 0, "1"), (0, 2, "1"), (3, 1, "1")])
def test_a_program_knows_whether_it_was_started_before(attempt: int, lives: int, told: str) -> None:
    assert worker.variables(plan(script="t.py"), {}, attempt, lives)["LAUNCHER_RESTART"] == told


# -- a script is run as `python` itself runs it


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script's text or a module by the bootstrap, or by python alone."""

    def call(text: str, *arguments: str, bare: bool = False, module: str = "") -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "code"
        (folder / "pkg").mkdir(parents=True, exist_ok=True)
        (folder / "pkg" / "__init__.py").touch()
        (folder / "beside.py").write_text("VALUE = 7\n")
        (folder / "train.py").write_text(text)
        (folder / "pkg" / "train.py").write_text(text)
        words = ["-m", f"pkg.{module}"] if module else ["code/train.py"]
        if not bare:
            words = [user_script.__file__, *(("module", f"pkg.{module}") if module else ("script", "code/train.py"))]
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "LAUNCHER"))
        }
        with open(tmp_path / "report", "w+b") as report:
            settings = {"lost_peer": LOST_PEER.pattern, "delay": 0.0, "report": report.fileno()}
            environ["LAUNCHER_PROGRAM"] = json.dumps({**settings, "descriptors": [report.fileno()]})
            return subprocess.run(
                [PYTHON, "-u", *words, *arguments], cwd=folder if module else tmp_path, env=environ, text=True,
                capture_output=True, timeout=120, check=False, pass_fds=[report.fileno()],
            )  # fmt: skip

    return call


SHOWS = """
import __main__, os, pickle, sys
if __name__ == "__main__":
    class Local: pass
    print(sys.argv, __file__, __name__, __package__, __spec__ and __spec__.name)
    print(sys.path[:2], __main__.SHOWN if "SHOWN" in vars(__main__) else None)
    SHOWN = 1
    assert vars(__main__)["SHOWN"] == 1 and pickle.loads(pickle.dumps(Local())).__class__ is Local
    assert not [name for name in sys.modules if name.startswith(("torch", "launcher"))]
"""


@pytest.mark.parametrize("module", ["", "train"])
def test_it_finds_what_python_would_give_it(run: Callable[..., Any], module: str) -> None:
    ours, pythons = (run(SHOWS, "--lr", "0.1", bare=bare, module=module) for bare in (False, True))
    assert pythons.returncode == 0, pythons.stderr
    assert (ours.stdout, ours.stderr, ours.returncode) == (pythons.stdout, pythons.stderr, 0)


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no data')",
        "import os; os._exit(75)",
        "import atexit; atexit.register(print, 'at exit')",
        "import threading; threading.Thread(target=print, args=('late',)).start()",
        "import beside; print(beside.VALUE); raise ValueError('banana')",
        "def f(:",
        "import sys\nsys.stdin.read()\nopen('no/such/file')",
        "import multiprocessing as mp\ndef f(n): print('child', n)\n"
        "if __name__ == '__main__':\n p = mp.get_context('spawn').Process(target=f, args=(5,)); p.start(); p.join()",
        "import multiprocessing as mp\nmp.set_start_method('spawn')",
    ],
)
def test_it_ends_as_it_would_under_python(run: Callable[..., Any], text: str) -> None:
    ours, pythons = run(text), run(text, bare=True)
    assert (ours.returncode, ours.stdout, ours.stderr) == (pythons.returncode, pythons.stdout, pythons.stderr)


def test_a_segmentation_fault_leaves_its_stack(run: Callable[..., Any]) -> None:
    done = run("def crashes():\n    import ctypes\n    ctypes.string_at(0)\ncrashes()")
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert 'train.py", line 3 in crashes' in done.stderr


def reported(tmp_path: Path) -> WorkerError:
    with open(tmp_path / "report", "rb") as file:
        _, error = shared_with_agent.read_report(file.fileno())
    assert error is not None
    return error


def test_its_error_is_reported_without_our_frames(run: Callable[..., Any], tmp_path: Path) -> None:
    text = "def inner():\n    raise ValueError('banana')\ninner()\n"
    done = run(text)
    error = reported(tmp_path)
    assert error.line == "ValueError: banana"
    assert not error.lost_peer
    assert "ValueError: banana" in done.stderr
    assert error.traceback == done.stderr == run(text, bare=True).stderr


def test_words_for_sys_exit_are_reported(run: Callable[..., Any], tmp_path: Path) -> None:
    assert run("import sys; sys.exit('no such file: weights.pt')").stderr == "no such file: weights.pt\n"
    error = reported(tmp_path)
    assert (error.code, error.line) == ("sys.exit", "sys.exit('no such file: weights.pt')")


def test_nothing_is_reported_of_an_exit_code(run: Callable[..., Any], tmp_path: Path) -> None:
    for text in ("sys.exit(3)", "\ntry: 1 / 0\nexcept ArithmeticError: sys.exit(2)"):
        run(f"import sys; {text}")
        assert (tmp_path / "report").read_bytes() == b""


APP = """import hydra
@hydra.main(version_base=None)
def main(config): raise ValueError("banana")
main()
"""
PARSER = """import argparse, sys
class Parser(argparse.ArgumentParser):
    def all(self): raise ValueError("not used: ['--foo']")
Parser().all()
"""


@pytest.mark.parametrize(
    ("text", "arguments", "code", "line"),
    [
        (PARSER, (), "usage", "ValueError: not used: ['--foo']"),
        (APP, (), "raised", "ValueError: banana"),
        (APP, ("lr=0.1",), "usage", "ConfigCompositionException: Could not override 'lr'."),
        (APP, ("lr=[",), "usage", "OverrideParseException: no viable alternative at input '['"),
    ],
)
def test_the_error_behind_an_exit_of_hydra_and_one_of_a_parser_of_arguments_are_reported(
    run: Callable[..., Any], tmp_path: Path, text: str, arguments: tuple[str, ...], code: str, line: str
) -> None:
    assert run(text, *arguments).returncode == 1
    error = reported(tmp_path)
    assert (error.code, error.line, error.lost_peer) == (code, line, False)


def test_a_server_that_refuses_is_an_error_with_its_traceback(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/weights')\n")
    error = reported(tmp_path)
    assert (error.code, error.type, error.lost_peer) == ("raised", "URLError", False)
    assert error.line == "URLError: <urlopen error [Errno 111] Connection refused>"
    assert error.traceback == done.stderr
    assert f'File "{tmp_path}/code/train.py", line 2, in <module>' in done.stderr


LOST = """
class DistNetworkError(RuntimeError): pass
DistNetworkError.__module__ = "torch.distributed"
raise DistNetworkError("Failed to recv, got 0 bytes")
"""


def test_one_that_lost_another_rank_shows_its_traceback_too(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run(LOST)
    error = reported(tmp_path)
    assert (done.returncode, error.code, error.lost_peer) == (1, "lost peer", True)
    assert error.traceback == done.stderr
    assert done.stderr.startswith("Traceback (most recent call last):")


def test_a_report_has_a_bound_and_is_json_whatever_the_error_says(run: Callable[..., Any], tmp_path: Path) -> None:
    run("raise ValueError('x' * (1 << 22) + chr(0xd800))")
    assert (tmp_path / "report").stat().st_size < io_bounds.REPORT_BYTES
    error = reported(tmp_path)
    assert error.message.startswith("xxxx")
    assert "characters left out" in error.message
    assert error.message.endswith("\\ud800")


def test_an_error_that_has_no_text_is_reported(run: Callable[..., Any], tmp_path: Path) -> None:
    run("class Bad(Exception):\n def __str__(self): raise TypeError('no')\nraise Bad()\n")
    assert reported(tmp_path).type == "Bad"


def test_no_module_of_the_launchers_folder_hides_one_of_pythons(run: Callable[..., Any]) -> None:
    done = run("import sys; print([each for each in sys.path if each.endswith('launcher/worker')])")
    assert done.stdout == "[]\n"


# -- what counts as progress


def files_of(tmp_path: Path, checkpoint: str | None = None) -> JobPlan:
    (tmp_path / "work" / "out").mkdir(parents=True)
    params = {**plan(script="t.py").workload.params, "checkpoint": checkpoint}
    return bare_plan(
        workdir=str(tmp_path / "work"),
        checkpoint={"dir": str(tmp_path / "run" / "checkpoints")},
        workload={"kind": "Program", "params": params},
    )


@pytest.mark.parametrize(
    ("checkpoint", "file", "counts"),
    [
        (None, "run/checkpoints/any.bin", True),
        (None, "run/checkpoints/deep/er/any", True),
        (None, "work/snapshot.pt", True),
        (None, "work/model.safetensors", True),
        (None, "work/log.txt", False),
        (None, "work/out/last.pt", False),  # only the folder itself is looked at
        ("out", "work/out/last.bin", True),
        ("out/*.bin", "work/out/last.bin", True),
        ("out/*.bin", "work/out/last.txt", False),
        ("state.bin", "work/state.bin", True),
        ("state.bin", "work/snapshot.pt", False),
        ("state.bin", "run/checkpoints/any.bin", True),
    ],
)
def test_what_a_program_saves_is_noticed(tmp_path: Path, checkpoint: str | None, file: str, counts: bool) -> None:
    mine = files_of(tmp_path, checkpoint)
    assert user_checkpoints.newest(mine) == -1
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, ns=(5, 5))
    assert user_checkpoints.newest(mine) == (5 if counts else -1)


@pytest.mark.parametrize(
    ("ends", "steps"),
    [
        ([], []),
        ([(3, -1), (3, -1), (9, -1)], [3, 3, 9]),  # no files: the steps themselves
        ([(-1, 5), (-1, 5), (-1, 5)], [0, 0, 0]),
        ([(-1, -1), (-1, 5)], [-1, 0]),
        ([(-1, 5), (-1, 9), (-1, 9), (-1, 11)], [0, 1, 1, 2]),
        ([(10, 5), (12, 5), (11, 5), (11, 6)], [0, 1, 1, 2]),
    ],
)
def test_how_far_attempts_got(ends: list[tuple[int, int]], steps: list[int]) -> None:
    assert further(ends) == steps


# -- when it is told to stop


@given(st.floats(0, 1e4), st.floats(1, 1e3), st.floats(-1e3, 1e5))
def test_ranks_get_the_grace_or_what_the_deadline_leaves(grace: float, lead: float, left: float) -> None:
    found = supervisor.exit_time(grace, lead, left)
    assert 0 <= found <= grace
    if left > 0 and found < grace:
        assert found == max(0.0, left - min(supervisor.RESERVED, lead / 2))


def minding(tmp_path: Path, left: float, *, first: bool = True) -> StopChecker:
    mine = bare_plan(
        run_dir=str(tmp_path),
        resume={"lead": 60},
        workload={"kind": "Program", "params": plan(script="t.py").workload.params},
    )
    return StopChecker(mine, {"LAUNCHER_DEADLINE": str(time.time() + left)}, first=first, now=time.monotonic())


@pytest.mark.parametrize(("left", "reason"), [(10.0, StopReason.TIME_LIMIT), (10_000.0, None)])
def test_a_program_is_told_before_its_time_is_up(tmp_path: Path, left: float, reason: StopReason | None) -> None:
    assert minding(tmp_path, left).reason(time.monotonic()) is reason


@pytest.mark.parametrize(("first", "reason"), [(True, StopReason.STOP_FILE), (False, None)])
def test_the_first_agent_looks_for_the_stop_file(tmp_path: Path, first: bool, reason: StopReason | None) -> None:
    (tmp_path / "stop").touch()
    assert minding(tmp_path, 10_000, first=first).reason(time.monotonic()) is reason


def test_without_a_deadline_only_the_file_counts(tmp_path: Path) -> None:
    mine = bare_plan(run_dir=str(tmp_path), workload={"kind": "Program", "params": plan(script="t.py").workload.params})
    assert StopChecker(mine, {}, first=True, now=time.monotonic()).reason(time.monotonic()) is None
    assert StopChecker(mine, {}, first=True, now=time.monotonic()).exit_time(0.0) == mine.launch.grace


# -- its place in the agent's memory


def test_a_program_finds_its_slot_and_what_it_starts_does_not() -> None:
    from launcher.worker import heartbeat

    signs = heartbeat.Pulse(2)
    source = (
        "import subprocess, sys\nfrom launcher.worker import heartbeat as pulse\n"
        "slot = pulse.mine()\nslot.listen()\nslot.beat(41)\n"
        "sys.exit(subprocess.call([sys.executable, '-c', 'import sys; from launcher.worker import heartbeat as pulse; "
        "sys.exit(pulse.mine() is not None)'], close_fds=False))"
    )
    os.set_inheritable(signs.share(), True)
    pid = os.fork()
    if pid == 0:
        os.environ["LAUNCHER_PULSE"] = f"{os.getpid()}:{signs.share()}:1"
        os.execv(PYTHON, [PYTHON, "-c", source])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    nobody, mine = signs.signs()
    assert (nobody.listens, nobody.step, mine.listens, mine.step) == (False, -1, True, 41)


def test_every_way_to_tell_a_program_is_a_signal() -> None:
    from launcher.config.schema import StopSignal

    assert all(each.value in signal.Signals.__members__ for each in StopSignal)

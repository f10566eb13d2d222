"""Programs of tests are what programs are, though a process forks them that has torch already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import warm_python
from tests.launch import ROOT, until

TELL = """
import os, resource, signal, sys
print(sys.argv, os.getcwd(), os.environ.get("NAME"), oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_CORE)[0])
print(open("/proc/self/environ").read().count("NAME=value"), "torch" in sys.modules, signal.getsignal(signal.SIGUSR1))
"""
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture
def python() -> str:
    return warm_python.python()


def start(python: str, code: str, folder: Path, environment: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-u", "-c", code, "launcher.agent", "RUN"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={"PATH": os.environ["PATH"], "NAME": "value", **environment}, umask=0o027,
    )  # fmt: skip


@pytest.mark.parametrize("forked", [True, False])
def test_it_is_like_a_python_that_nobody_has_forked(python: str, tmp_path: Path, forked: bool) -> None:
    (tmp_path / "sitecustomize.py").touch()
    agent = start(python, TELL, tmp_path, {} if forked else {"PYTHONPATH": str(tmp_path)})
    out, err = agent.communicate(timeout=60)
    assert (agent.returncode, err) == (0, "")
    assert out.splitlines() == [
        f"['-c', 'launcher.agent', 'RUN'] {tmp_path} value 0o27 0",
        f"1 {forked} 0",
    ]


PROGRAM = """
import os, signal, sys
import launcher
print(sys.argv, sys.path[0], os.getcwd(), os.environ.get("NAME"), __name__, vars(sys.modules["__main__"]) is globals())
print([open(f"/proc/self/{each}").read().strip("\\0").split("\\0")[1:] for each in ("cmdline", "environ")])
print("torch" in sys.modules, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(input() if len(sys.argv) < 3 else sorted(map(int, os.listdir("/proc/self/fd")))[:-1], end="")
not_closed = open("end", "w")
not_closed.write(str(os.getpid()))
"""


@pytest.mark.parametrize("way", ["script", "module", "code"])
def test_programs_are_like_those_of_a_new_python(python: str, tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "sub").mkdir()
    words = {"script": ["../program.py"], "module": ["-m", "program"], "code": ["-c", PROGRAM]}[way]
    told = []
    for each in (python, sys.executable):
        done = subprocess.run(
            [each, *words, "1"], cwd=tmp_path / "sub", input="from stdin", capture_output=True, text=True, timeout=60,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "NAME": "value", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "sub/end").read_text().isdigit(), "what the program did not close is written"
        told.append(done.stdout)
    assert told[0] == told[1].replace("False True", "True True"), "the second one has not imported torch"


RANK = """
import atexit, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
atexit.register(print, "not reached")
kept, closed = os.open("kept", os.O_WRONLY | os.O_CREAT), open("closed", "w")
os.set_inheritable(kept, True)
print(os.getpid(), kept, closed.fileno())
words = [sys.executable, "-u", os.environ["SCRIPT"], "script", "program.py", "a b"]
sys.stdout.flush()
os.execvpe(words[0], words, {**os.environ, "NAME": "another"})
"""
RANKS_PROGRAM = """
import os, signal, sys
print(os.getpid(), *[each for each in range(3, 9) if os.path.exists(f"/proc/self/fd/{each}")])
print(sys.argv, os.environ["NAME"], "torch" in sys.modules)
print(*[int(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGUSR1)], flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_rank_that_executes_a_program_goes_on_as_its_python(python: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RANKS_PROGRAM)
    agent = start(python, RANK, tmp_path, {"SCRIPT": str(ROOT / "launcher/worker/user_script.py")})
    out, err = agent.communicate(timeout=60)
    assert (agent.returncode, err) == (-signal.SIGTERM, "")
    before, after, *more = out.splitlines()
    pid, kept, closed = before.split()
    assert after.split()[0] == pid
    assert kept in after.split()[1:] and closed not in after.split()[1:]
    assert more == ["['program.py', 'a b'] another True", "0 1"]


@pytest.mark.parametrize(
    ("code", "ends"), [("raise SystemExit(93)", 93), ("import os; os.kill(os.getpid(), 9)", -9), ("1 / 0", 1)]
)
def test_it_ends_as_its_agent_does(python: str, tmp_path: Path, code: str, ends: int) -> None:
    agent = start(python, code, tmp_path)
    _, err = agent.communicate(timeout=60)
    assert agent.returncode == ends
    assert ("ZeroDivisionError" in err) == (ends == 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_agent(python: str, tmp_path: Path, number: int) -> None:
    agent = start(python, WAIT, tmp_path)
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert pid != agent.pid
    agent.send_signal(number)
    assert agent.wait(30) == -number
    until(lambda: not Path(f"/proc/{pid}/exe").exists(), "its end")
    agent.communicate()

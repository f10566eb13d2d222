"""Agents of tests are what agents are, though a process forks them that has torch already."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import warm_python
from tests.launch import until

TELL = """
import os, resource, signal, sys
print(sys.argv, os.getcwd(), os.environ.get("NAME"), oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_CORE)[0])
print(open("/proc/self/environ").read().count("NAME=value"), "torch" in sys.modules, signal.getsignal(signal.SIGHUP))
"""
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def python() -> str:
    found = warm_python.python()
    until((Path(found).parents[1] / "socket").exists, "a Python with torch")
    return found


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

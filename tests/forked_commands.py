"""Runs the launcher's commands in forks of a process that has imported what they import.

A new Python imports for half a second before a command begins. Tests of commands as processes of their own (terminals,
start-up, signals, an allocation's shell) start them anew. What Hydra makes of the files of conf/ is shared (see
`hydra_cache`). The commands here look at a run more often than a user's.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pkgutil
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from launcher.config import scheduler_table
from tests import hydra_cache, warm_python

PRELOADED = (
    "launcher.cli", "launcher.submission", "launcher.sweeps", "launcher.schedulers", "hydra._internal.core_plugins",
)  # fmt: skip
PAUSE = 0.5  # seconds between two looks at a run
_servers = threading.local()  # one a thread, because a server runs one command at a time


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m launcher ARGUMENTS` in a folder; as subprocess.run, and without a terminal or standard input.

    prefix: `nsenter ...` with the namespaces to run it in.
    """
    servers = _servers.__dict__
    server = servers.get(shlex.join(prefix))
    if server is None or server.process.poll() is not None:
        server = servers[shlex.join(prefix)] = _Server(prefix)
    return server.run(arguments, folder, environment, timeout)


class _Server:
    def __init__(self, prefix: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [*prefix, warm_python.python(), "-m", "tests.forked_commands"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            os.umask(umask := os.umask(0))
            request = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
            request |= {"umask": umask, "out": out.name, "err": err.name}
            print(json.dumps(request), file=self.process.stdin, flush=True)
            pid = int(self.process.stdout.readline())
            late = threading.Event()
            alarm = threading.Timer(timeout, lambda: (late.set(), os.kill(pid, signal.SIGKILL)))
            alarm.start()
            code = int(self.process.stdout.readline())
            alarm.cancel()
            printed = [Path(file.name).read_bytes().decode() for file in (out, err)]
        if late.is_set():
            raise subprocess.TimeoutExpired(list(arguments), timeout, *printed)
        return subprocess.CompletedProcess(list(arguments), code, *printed)


def _serve() -> None:
    for package in map(importlib.import_module, PRELOADED):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("jinja2")
    _look_often()
    with hydra_cache.shared():
        _compose()
        assert "torch" not in sys.modules, "a fork would copy it"
        for line in sys.stdin:
            if (pid := os.fork()) == 0:
                _command(**json.loads(line))
            print(pid, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _compose() -> None:
    # What most tests choose, so that the forks find it composed
    from hydra.core.hydra_config import HydraConfig

    from launcher.config import compose

    os.environ["LAUNCHER_CONFIG_DIR"] = os.devnull  # as in most tests, the user has no files
    with compose.registered(lambda: 0):
        for cluster, workload in itertools.product(("local", "slurm", "pbs", "sge"), ("collective", "program")):
            compose.by_hydra([f"cluster={cluster}", f"workload={workload}"])
    HydraConfig.instance().cfg = None


def _look_often() -> None:
    # At a run's end its command would sleep for seconds, as it does when a run takes long
    from launcher.cli import wait
    from launcher.monitoring import run_status

    wait.interval = lambda *_: PAUSE
    run_status.SCHEDULER_INTERVAL = PAUSE


def _command(
    arguments: list[str], folder: str, environment: dict[str, str], umask: int, out: str, err: str
) -> NoReturn:
    code = 1
    try:
        os.umask(umask)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[1:1] = folders = environment.get("PYTHONPATH", "").split(os.pathsep)
        if set(folders) - {str(warm_python.HERE.parents[1])}:  # others may have packages with schedulers
            scheduler_table.entry_points_of.cache_clear()
        sys.argv[1:] = arguments
        runpy.run_module("launcher", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()

"""Imports torch, and forks a process for each request of a `client`, which goes on as Python with its arguments."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.warm_python.client import ANSWER, ARGUMENTS, CATCHABLE, ENVIRONMENT, LENGTH, area, facts

LIBRARIES = (
    "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.nn.parallel",
    "submitit.core.submission", "submitit.slurm.slurm", "numpy", "yaml", "jinja2", "omegaconf",
)  # fmt: skip
MOST = 250  # descriptors of a request
ROOM_ABOVE = 500  # descriptors from this number on are this process's own, while those of a request are put in place
# A process with these variables would import something else, or something in another way.
OWN = ("LD_", "MKL_", "TORCH_LOGS", "TORCH_DISTRIBUTED_DEBUG", "PYTHON")
HARMLESS = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


def serve(path: str) -> str:
    """Answers requests; in the fork of one, returns the code that it shall execute."""
    own = json.loads(json.dumps(facts()))
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    listening, ready = socket.socket(socket.AF_UNIX), selectors.DefaultSelector()
    listening.bind(path)
    os.chmod(path, 0o600)
    listening.listen(64)
    clients: dict[int, socket.socket] = {}
    for each in (listening.fileno(), wakes, 0):
        ready.register(each, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fd == 0:  # who has started this is gone
                for pid in clients:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            if key.fd == wakes:
                os.read(wakes, 4096)
                _reap(clients, ready)
                continue
            if key.fd != listening.fileno():  # a client was killed
                ready.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)
                continue
            client, _ = listening.accept()
            request, descriptors = _read(client)
            pid = None
            if request is None or not _is_alike(request, own):
                client.sendall(ANSWER.pack(0))
                client.close()
            elif (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                ready.close()
                for each in (listening, client, *clients.values()):
                    each.detach()
                return _become(request, descriptors)
            for number in descriptors:
                os.close(number)
            if pid is not None:
                client.sendall(ANSWER.pack(pid))
                clients[pid] = client
                ready.register(client, selectors.EVENT_READ, pid)


def _read(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(client, LENGTH.size, MOST)
    if len(head) < LENGTH.size:
        return None, descriptors
    (left,), data = LENGTH.unpack(head), b""
    while len(data) < left and (more := client.recv(1 << 16)):
        data += more
    return json.loads(data) if len(data) == left else None, descriptors


def _reap(clients: dict[int, socket.socket], ready: selectors.BaseSelector) -> None:
    for pid, client in list(clients.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del clients[pid]
            if client.fileno() in ready.get_map():
                ready.unregister(client)
            with contextlib.suppress(OSError):
                client.sendall(ANSWER.pack(os.waitstatus_to_exitcode(status)))
            client.close()


def _is_alike(request: dict[str, Any], own: dict[str, Any]) -> bool:
    environment = request["environment"]
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return (
        request["facts"] == own
        and not any(name.startswith(OWN) and name not in HARMLESS for name in environment)
        and not any(os.path.exists(f"{folder}/sitecustomize.py") for folder in folders)
        and _bytes_of(environment) is not None
    )


def _bytes_of(environment: dict[str, str]) -> bytes | None:
    # None: there is no room for it
    data = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    begin, end = area(ENVIRONMENT)
    return data if len(data) < end - begin else None


def _show(field: int, data: bytes) -> None:
    # in /proc/PID/environ or cmdline, of this process and its forks
    begin, end = area(field)
    ctypes.memmove(begin, data[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def _become(request: dict[str, Any], descriptors: list[int]) -> str:
    # Makes a fork what the client would be if it had become Python; returns the code of `-c`
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, ROOM_ABOVE) for each in descriptors]
    os.closerange(0, ROOM_ABOVE)
    for each, wanted in zip(high, request["descriptors"], strict=True):
        os.dup2(each, wanted, inheritable=True)
        os.close(each)
    environment = request["environment"]
    arguments = request["arguments"]
    os.environ.clear()
    os.environ.update(environment)
    _show(ENVIRONMENT, _bytes_of(environment) or b"")
    _show(ARGUMENTS, b"".join(os.fsencode(each) + b"\0" for each in arguments))
    os.chdir(request["folder"])
    os.umask(request["umask"])
    if os.getgroups() != request["groups"]:
        os.setgroups(request["groups"])
    os.nice(request["nice"] - os.nice(0))
    for number, limits in request["limits"].items():
        if tuple(limits) != resource.getrlimit(int(number)):
            resource.setrlimit(int(number), limits)
    for number in CATCHABLE:
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", write_through=True) for number in (1, 2)
    )
    sys.path[0:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which libgomp reads when it is loaded
        (library,) = Path(str(sys.modules["torch"].__file__)).parent.glob("lib/libgomp*")
        ctypes.CDLL(str(library)).omp_set_num_threads(int(threads))
    sys.executable, sys.orig_argv, sys.argv = arguments[0], arguments, ["-c", *arguments[4:]]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "launcher", "workloads")]:
        del sys.modules[name]
    return str(arguments[3])


if __name__ == "__main__":
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    code = serve(sys.argv[1])
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})

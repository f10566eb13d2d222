"""Imports torch, and forks a process for each request of a `client`, which goes on as Python with its arguments."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
from typing import Any

from tests.warm_python import new_python
from tests.warm_python.client import ANSWER, LENGTH, NAMESPACES, facts

LIBRARIES = (
    "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.nn.parallel",
    "submitit.core.submission", "submitit.slurm.slurm", "numpy", "yaml", "jinja2", "omegaconf",
)  # fmt: skip
PACKAGES = (
    "launcher.agent", "launcher.checkpoint", "launcher.job", "launcher.rendezvous", "launcher.runs",
    "launcher.schedulers", "launcher.worker", "workloads",
)  # fmt: skip
MOST = 250  # descriptors of a request
ROOM_ABOVE = 500  # descriptors from this number on are this process's own, while those of a request are put in place


def serve(listening: socket.socket) -> list[str]:
    """Answers requests; in the fork of one, returns its arguments."""
    own = json.loads(json.dumps(facts()))
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ready = selectors.DefaultSelector()
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
                _send(client, 0)
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
                _send(client, pid)
                clients[pid] = client
                ready.register(client, selectors.EVENT_READ, pid)


def _send(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it was killed
        client.sendall(ANSWER.pack(number))


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
            _send(client, os.waitstatus_to_exitcode(status))
            client.close()


def _is_alike(request: dict[str, Any], own: dict[str, Any]) -> bool:
    return bool(request["facts"] == own) and new_python.can_be(request["arguments"], request["environment"])


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    # Makes a fork what the client would be if it had become Python; returns its arguments
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, ROOM_ABOVE) for each in descriptors]
    os.closerange(0, ROOM_ABOVE)
    for each, wanted in zip(high, request["descriptors"], strict=True):
        os.dup2(each, wanted, inheritable=True)
        os.close(each)
    _enter_namespaces(request["pid"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    if os.getgroups() != request["groups"]:
        os.setgroups(request["groups"])
    os.nice(request["nice"] - os.nice(0))
    os.sched_setaffinity(0, request["processors"])
    for number, limits in request["limits"].items():
        if tuple(limits) != resource.getrlimit(int(number)):
            resource.setrlimit(int(number), limits)
    new_python.become(request["arguments"], request["environment"], request["ignored"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    return list(request["arguments"])


def _enter_namespaces(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    files = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for name, file in zip(NAMESPACES, files, strict=True):
        if not os.path.samefile(f"/proc/{pid}/ns/{name}", f"/proc/self/ns/{name}") and libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), f"a fork cannot enter a namespace: {name}")
    for file in files:
        os.close(file)


if __name__ == "__main__":
    for name in LIBRARIES:
        importlib.import_module(name)
    new_python.import_ahead(PACKAGES)
    gc.freeze()
    new_python.run(serve(socket.socket(fileno=int(sys.argv[1]))))

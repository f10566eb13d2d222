"""Which errors say that another rank is gone: told by their type and by where they were raised."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from launcher.failures.known_errors import LOST_PEER
from launcher.worker import user_script
from tests import warm_python
from tests.launch import ROOT

GLOO = "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:38276."
OLD_GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer"
STORE = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:2, remote process exited or there was a network error, NCCL version 2.21"


def torchs(name: str) -> type[RuntimeError]:
    """A stand-in for an exception of torch.distributed: as in torch, all are RuntimeErrors."""
    return type(name, (RuntimeError,), {"__module__": "torch.distributed"})


def natively(error: BaseException) -> Any:
    """A call that raises it in C, as a call of torch does."""
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    future.set_exception(error)
    loop.close()
    return future.result


def caught(call: Any, *modules: str) -> BaseException:
    """What calling it raises; it is called from functions of these modules, the outermost first."""
    for module in reversed(modules):
        scope: dict[str, Any] = {"__name__": module, "inner": call}
        exec("def outer():\n    return inner()", scope)
        call = scope["outer"]
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def raising(error: BaseException) -> Any:
    def call() -> None:
        raise error

    return call


def reraising(error: BaseException, cause: BaseException) -> Any:
    def call() -> None:
        raise error from cause

    return call


C10D, ENGINE, OPS = "torch.distributed.distributed_c10d", "torch.autograd.graph", "torch._ops"
USER = "__main__"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        # type, raised by, words
        (caught(natively(RuntimeError(GLOO)), USER, "torch.distributed.c10d_logger", C10D), True),
        (caught(natively(RuntimeError(OLD_GLOO)), USER, C10D), True),
        (caught(natively(RuntimeError(GLOO)), USER, "torch._tensor", "torch.autograd", ENGINE), True),
        (caught(natively(RuntimeError(GLOO)), USER, "torch.distributed._functional_collectives", OPS), True),
        (caught(natively(RuntimeError(GLOO)), USER), True),  # work.wait()
        (caught(natively(RuntimeError("Tensors must be of the same shape")), USER, C10D), False),
        (caught(natively(RuntimeError("Connection refused")), USER), False),  # of some other library
        (caught(natively(RuntimeError("Connection refused")), USER, "torch.utils.data"), False),
        (caught(natively(RuntimeError("Connection refused")), C10D, USER), False),  # a hook that torch has called
        (caught(raising(RuntimeError(GLOO)), USER), False),
        (caught(raising(RuntimeError("gloo: Connection reset by peer")), USER), False),
        (caught(natively(torchs("DistNetworkError")(STORE)), USER), True),
        (caught(natively(torchs("DistBackendError")(NCCL)), USER, C10D), True),
        (caught(natively(torchs("DistBackendError")("NCCL error: unhandled cuda error, out of memory")), USER), False),
        (caught(natively(torchs("DistStoreError")("wait timeout after 3000ms, keys: /0")), USER, C10D), False),
        (caught(raising(ConnectionRefusedError(111, "Connection refused")), USER), False),
        (caught(raising(ConnectionRefusedError(111, "Connection refused")), USER, C10D), False),
        (caught(raising(ConnectionResetError(104, "Connection reset by peer")), USER), False),
        (caught(raising(BrokenPipeError(32, "Broken pipe")), USER), False),
        (caught(raising(type("DistNetworkError", (RuntimeError,), {"__module__": "mine"})(GLOO)), USER), False),
        (caught(raising(ValueError("banana")), USER), False),
        (caught(reraising(ValueError("step 3"), caught(natively(RuntimeError(GLOO)), C10D)), USER), True),
        (caught(reraising(RuntimeError(GLOO), ValueError("banana")), USER), False),
    ],
)
def test_a_lost_peer(error: BaseException, lost: bool) -> None:
    assert user_script.lost_peer(error, LOST_PEER.pattern) is lost


def test_a_server_that_cannot_be_reached_is_an_ordinary_error() -> None:
    """The most common error of nodes without a way to the internet."""
    error = caught(lambda: urllib.request.urlopen("http://127.0.0.1:9/weights", timeout=5))
    assert "Connection refused" in str(error)
    assert not user_script.lost_peer(error, LOST_PEER.pattern)


# -- what torch really raises

LOSES = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from launcher.agent.workers import WorkerGroup
from launcher.rendezvous.rounds import Placement
from launcher.worker import shared_with_agent
shared_with_agent.SYMPTOM_DELAY = 0.0

def refused(t):
    import urllib.request
    urllib.request.urlopen("http://127.0.0.1:9/weights")

CASES = {
    "all_reduce": dist.all_reduce,
    "wait": lambda t: dist.all_reduce(t, async_op=True).wait(),
    "recv": lambda t: dist.recv(t, 1),
    "backward": None,
    "barrier": lambda t: dist.barrier(),
    "refused": refused,
    "misused": lambda t: dist.all_reduce(t, op=dist.ReduceOp.BAND),
}

def run(name, place, folder):
    store = dist.FileStore(f"{folder}/store-{name}", 2)
    dist.init_process_group("gloo", store=store, rank=place, world_size=2)
    call = CASES[name]
    if name == "backward":  # the peer is gone when the gradients are reduced
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        loss = model(torch.ones(2, 4)).sum()
        call = lambda t: loss.backward()
    dist.barrier()
    if place == 1:
        os._exit(0)
    time.sleep(0.1)
    call(torch.ones(4))

folder, told = sys.argv[1], {}
for number, name in enumerate(CASES):
    group = WorkerGroup(Path(folder, "logs"))
    group.start([Placement(place, place, {}) for place in range(2)], lambda me: run(name, me.place, folder), round_number=number)
    assert group.reap(60) == [], name
    error = {each.place: each.error for each in group.poll()}[0]
    group.close()
    told[name] = None if error is None else [error.lost_peer, error.type, error.traceback]
print(json.dumps(told))
"""  # noqa: E501


def test_what_torch_raises_when_a_peer_is_gone(tmp_path: Path) -> None:
    (tmp_path / "loses.py").write_text(LOSES)
    done = subprocess.run(
        [warm_python.python(), tmp_path / "loses.py", tmp_path],
        env={"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name: each[0] for name, each in told.items()} == {
        "all_reduce": True, "wait": True, "recv": True, "backward": True, "barrier": True, "refused": False,
        "misused": False,
    }, done.stderr  # fmt: skip
    logs = tmp_path / "logs"
    for number, (_, _, trace) in enumerate(told.values()):
        assert trace.startswith("Traceback (most recent call last):")
        path = logs / (f"rank-0.round-{number}.err" if number else "rank-0.err")
        assert trace in path.read_text()  # also a lost peer's is always shown


# -- a user's module is imported in the rank only

MULTIPLIES = "import torch\nONES = torch.ones(2000, 2000) @ torch.ones(2000, 2000)\n"
STARTS = """
import importlib, sys
from pathlib import Path
import torch
from launcher.agent.workers import WorkerGroup, preload
from launcher.rendezvous.rounds import Placement

preload("mine:main")

def run(me):
    mine = importlib.import_module("mine")
    return {"value": float((mine.ONES @ mine.ONES)[0, 0])}

group = WorkerGroup(Path(sys.argv[1], "logs"))
group.start([Placement(place, place, {}) for place in range(2)], run)
assert group.reap(float(sys.argv[2])) == [], "the ranks hang"
print([each.returned["value"] for each in group.poll()])
group.close()
"""


def test_a_module_that_computes_when_it_is_imported_does_not_hang(tmp_path: Path) -> None:
    """A matrix product starts OpenMP's threads, which a fork of that process would not have, and wait for."""
    (tmp_path / "mine.py").write_text(MULTIPLIES)
    done = subprocess.run(
        [warm_python.python(), "-c", STARTS, tmp_path, "60"],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "2"}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == f"[{2000.0**3}, {2000.0**3}]\n", done.stderr

"""What differs between versions of torch: every way is taken on every version, as far as it can be."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import socket
import sys
import tarfile
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from launcher import Env, torch_compat
from launcher.checkpoint import storage
from launcher.config.schema import FSDPLm
from launcher.worker.stop import Settings
from workloads import fsdp
from workloads.across_ranks import WorkloadError

SECOND = timedelta(seconds=10)


@pytest.mark.parametrize("name", sorted(torch_compat._PLACES))
def test_what_torch_has_moved_is_found(name: str) -> None:
    assert getattr(torch_compat, name).__name__ == name


def test_the_newest_place_comes_first_and_a_missing_one_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"Tensor": ("torch.no_such_module", "torch.distributed", "torch"), "gone": ("torch.nn", "torch.fx")}
    monkeypatch.setattr(torch_compat, "_PLACES", places)
    assert torch_compat.Tensor is Tensor
    with pytest.raises(ImportError, match=r"has gone in none of torch\.nn, torch\.fx"):
        torch_compat.__getattr__("gone")
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        torch_compat.__getattr__("other")


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_a_store_serves_on_a_socket_that_listens(address: str) -> None:
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    store = torch_compat.store_on(listener, "127.0.0.1", SECOND)
    assert listener.fileno() == -1  # it is the store's now
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=SECOND)
    client.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize(("queues", "libuv"), [(True, [True]), (False, [False])])
@pytest.mark.parametrize("refused", [False, True])
def test_the_server_that_takes_a_socket_is_tried_first(
    monkeypatch: pytest.MonkeyPatch, queues: bool, libuv: list[bool], refused: bool
) -> None:
    tried = []

    def make(*_: object, use_libuv: bool, **__: object) -> str:
        tried.append(use_libuv)
        if refused and len(tried) == 1:
            raise NotImplementedError
        return "store"

    monkeypatch.setattr(torch_compat, "TCPStore", make)
    monkeypatch.setattr(torch_compat, "Store", type("Store", (), {"queue_push": None} if queues else {}))
    listener = socket.create_server(("127.0.0.1", 0))
    descriptor = socket.socket(fileno=socket.dup(listener.fileno()))
    assert torch_compat.store_on(listener, "127.0.0.1", SECOND) == "store"
    assert tried == libuv + [not libuv[0]] * refused
    descriptor.close()


def test_a_store_that_takes_no_socket_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(torch_compat, "TCPStore", make)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(NotImplementedError, match="makes no TCPStore"),
    ):
        torch_compat.store_on(listener, "127.0.0.1", SECOND)


class Thing:
    """Something whose end can be seen."""


class Group(dist.ProcessGroup):
    def __init__(self, backend: Thing) -> None:
        super().__init__(0, 1)
        self.backend = weakref.ref(backend)

    def _get_backend(self, device: torch.device) -> Any:
        return self.backend()


def test_the_backend_of_a_group_is_kept_until_the_group_is_gone() -> None:
    ended: list[str] = []
    backend = Thing()
    group = Group(backend)
    weakref.finalize(backend, ended.append, "backend")
    torch_compat.destroy_without_gil(group)
    weakref.finalize(group, ended.append, "group")
    del backend
    gc.collect()
    assert ended == []
    del group
    gc.collect()
    assert ended == ["group", "backend"]


def test_what_is_no_group_is_passed_over() -> None:
    for value in (None, -100):
        torch_compat.destroy_without_gil(value)


def test_fsdp_on_cpus_is_refused_where_torch_has_it_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "Stream", type("Stream", (), {}))
    cpu = torch.device("cpu")
    assert torch_compat.fsdp_computes_on(torch.device("cuda")) and not torch_compat.fsdp_computes_on(cpu)
    env = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", cpu, "test", (0,))
    with pytest.raises(WorkloadError, match="GPUs alone"):
        fsdp.Trainer(FSDPLm(name="fsdp_lm", entry=""), env, Settings())
    monkeypatch.setattr(torch.cpu, "Stream", type("Stream", (), {"record_event": None}))
    assert torch_compat.fsdp_computes_on(cpu)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    warnings.simplefilter("ignore")  # without a process group, newer versions of torch want `no_dist`
    dcp.save({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}, checkpoint_id=tmp_path / "saved")
    return tmp_path / "saved"


def read(path: Path, into: dict[str, Tensor]) -> None:
    storage.load_tensors(path, storage.read_metadata(path), into)


def test_tensors_come_back(saved: Path) -> None:
    into = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    read(saved, into)
    assert into["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and into["b"].tolist() == [1, 1, 1, 1]


class Poison:
    """When it is unpickled, a file is made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_nothing_but_tensors_is_made_from_the_files(saved: Path, tmp_path: Path) -> None:
    metadata = pickle.loads((saved / ".metadata").read_bytes())
    torch.save(Poison(tmp_path / "executed"), saved / "__0_0.distcp")
    size = (saved / "__0_0.distcp").stat().st_size
    for where in metadata.storage_data.values():
        where.offset, where.length = 0, size
    (saved / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(storage.Damaged, match=r"(?i)weights.?only|unsupported"):
        read(saved, {"a": torch.zeros(2, 3)})
    assert not (tmp_path / "executed").exists()


# -- what is loaded


class Runs:
    """A pickle of it runs a command where it is read without a check."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("it-ran",)


def _saved(**options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": torch.ones(3), "steps": [1]}, stream, **options)
    return stream.getvalue()


def _torchscript() -> bytes:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch want another way
        torch.jit.save(torch.jit.trace(Module(), torch.ones(1)), stream)
    return stream.getvalue()


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            archive.addfile(tarfile.TarInfo(name))
    return stream.getvalue()


def test_what_torch_save_writes_is_loaded_from_where_the_stream_stands() -> None:
    stream = io.BytesIO(_saved())
    assert storage.load_saved(stream)["steps"] == [1]
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        saved = io.BytesIO()
        torch.save(Runs(), saved)
        saved.seek(0)
        storage.load_saved(saved)
    assert not Path("it-ran").exists()


@pytest.mark.parametrize(
    "make",
    [
        bytes, lambda: b"PK", lambda: b"PK\3\4" + bytes(100), lambda: bytes(100), lambda: pickle.dumps(Runs()),
        lambda: _saved(_use_new_zipfile_serialization=False), _tar, lambda: b"x" + _saved(), lambda: _saved()[:-40],
        _torchscript,
    ],
)  # fmt: skip
def test_everything_else_is_refused_before_torch_looks_at_it(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until torch 2.6 torch.load executes some of these in spite of weights_only=True."""
    data = make()
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it came to torch.load"))
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        storage.load_saved(io.BytesIO(data))


def test_nothing_else_of_the_launcher_loads_what_it_has_not_just_saved() -> None:
    root = Path(torch_compat.__file__).parent
    callers = [str(each.relative_to(root)) for each in root.rglob("*.py") if "torch.load(" in each.read_text()]
    texts, fresh = {"cli/checkpoint.py", "integrations/lightning.py"}, {"checkpoint/state.py"}
    assert {*callers} - texts - fresh == {"checkpoint/storage.py"}


@pytest.mark.parametrize("barrier", ["0", "1"])
def test_nothing_is_left_of_a_group_that_sends_nothing(barrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", barrier)
    hook = sys.excepthook
    with contextlib.suppress(Exception), torch_compat.fake_group(3):
        assert dist.get_world_size() == 3
    assert not dist.is_initialized()
    assert sys.excepthook is hook

"""What ranks unpickle was made by one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launcher import Env
from launcher.worker import process_group
from launcher.worker.process_group import MAC, NotFromARank
from tests.launch import ROOT
from tests.processes.workload_ranks import run_ranks

SIZES = [0, process_group.SMALL - 200, process_group.SMALL, 1 << 20]  # of a text


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LAUNCHER_SECRET", "sixteen letters!")
    process_group._secret.cache_clear()
    yield
    process_group._secret.cache_clear()


def exchange(config: dict[str, Any], env: Env) -> dict[str, Any]:
    found = []
    for size in SIZES:
        mine = (env.rank, "x" * (size + env.rank))
        gathered = [rank for rank, _ in process_group.gather(mine)]
        everyone = [len(text) - size for _, text in process_group.all_gather(mine)]
        found.append([gathered, everyone, len(process_group.broadcast(mine)[1]) - size])
    return {"found": found}


def test_ranks_exchange_objects_of_any_size() -> None:
    for rank, result in enumerate(run_ranks(exchange, {}, 3)):
        assert result.metrics["found"] == [[[0, 1, 2] if rank == 0 else [], [0, 1, 2], 0]] * len(SIZES)


def exchange_few(config: dict[str, Any], env: Env) -> dict[str, Any]:
    collectives = []
    for name in ("gather", "all_gather", "broadcast"):
        real = getattr(dist, name)
        setattr(dist, name, lambda *a, name=name, real=real, **k: (collectives.append(name), real(*a, **k))[1])
    found = []
    group = dist.new_group([1, 2, 3, 4, 5])
    for holders in ([], [3], [0, 5], [0, 1, 2, 3, 4, 5]):
        mine = "x" * (1000 + env.rank) if env.rank in holders else ""
        gathered = [len(text) for text in process_group.gather(mine)]
        everyone = [len(text) for text in process_group.all_gather(mine)]
        inner = [len(text) for text in process_group.all_gather(mine, group)] if 0 < env.rank < 6 else []
        found.append([gathered, everyone, inner])
    return {"found": found, "collectives": collectives}


def test_long_values_of_few_ranks_take_no_memory_for_those_of_others() -> None:
    results = run_ranks(exchange_few, {}, 8)
    for rank, result in enumerate(results):
        for holders, (gathered, everyone, inner) in zip(
            ([], [3], [0, 5], [0, 1, 2, 3, 4, 5]), result.metrics["found"], strict=True
        ):
            lengths = [1000 + each if each in holders else 0 for each in range(8)]
            assert gathered == (lengths if rank == 0 else [])
            assert everyone == lengths
            assert inner == (lengths[1:6] if 0 < rank < 6 else [])
        names = result.metrics["collectives"]
        assert names.count("gather") == 1, "only where most ranks have a long value"


def pretend(config: dict[str, Any], env: Env) -> dict[str, Any]:
    """Rank 1 is a stranger, who knows all but the secret."""
    if env.rank == 1:
        process_group._secret.cache_clear()
        process_group._mac = lambda data: bytes(MAC)
        _, rest, _ = process_group._heads(Evil(config["proof"] + config["more"]), None)
        if len(rest):
            dist.gather(rest, None, dst=0)
        return {}
    try:
        process_group.gather("mine")
    except NotFromARank as error:
        return {"refused": str(error)}
    return {}


class Evil:
    """When it is unpickled, a file is made."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


@pytest.mark.parametrize("more", ["", "n" * 200])  # with all in the first message, or a second one
def test_what_a_stranger_sends_is_not_unpickled(tmp_path: Path, more: str) -> None:
    first, _ = run_ranks(pretend, {"proof": str(tmp_path / "ran"), "more": more}, 2)
    assert "does not carry the secret of this job's ranks" in first.metrics["refused"]
    assert not (tmp_path / f"ran{more}").exists()


def test_values_of_all_sizes_arrive() -> None:
    sizes = [0, 1, *range(process_group.HEAD - 80, process_group.HEAD + 3), 1 << 20]
    for rank, each in enumerate(run_ranks(sent, sizes, 3)):
        assert each.metrics["all"] == [[size + other for other in range(3)] for size in sizes]
        assert each.metrics["first"] == (each.metrics["all"] if rank == 0 else [[]] * len(sizes))


def sent(sizes: list[int], env: Env) -> dict[str, Any]:
    mine = [b"x" * (size + env.rank) for size in sizes]
    return {
        "all": [[len(each) for each in process_group.all_gather(value)] for value in mine],
        "first": [[len(each) for each in process_group.gather(value)] for value in mine],
    }


@pytest.mark.parametrize("part", ["mac", "data", "all", "other secret"])
def test_an_altered_object_is_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = process_group._seal({"a": torch.ones(2)})
    process_group._open(sealed)
    altered = {"mac": b"\1" + sealed[1:], "data": sealed[:-1] + b"!", "all": b"", "other secret": sealed}[part]
    if part == "other secret":
        monkeypatch.setenv("LAUNCHER_SECRET", "another sixteen!")
        process_group._secret.cache_clear()
    with pytest.raises(NotFromARank):
        process_group._open(altered)


@pytest.mark.parametrize("package", ["launcher", "workloads"])
def test_no_module_lets_torch_unpickle_what_ranks_send(package: str) -> None:
    calls = re.compile(r"\w*(gather_object|object_list)\(")
    modules = [*(ROOT / package).rglob("*.py")]
    assert modules and not [path for path in modules if calls.search(path.read_text())]

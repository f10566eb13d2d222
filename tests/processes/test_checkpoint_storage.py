"""Several ranks write a checkpoint through torch's own interface, and others read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

from launcher import Env
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.storage import LauncherReader, LauncherWriter
from launcher.torch_compat import Shard, distribute_tensor
from tests.fakes.checkpoint_files import changed
from tests.processes.workload_ranks import run_ranks


def shards(value: float, env: Env) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (env.world_size,))
    whole = torch.arange(7).add(value).float().unsqueeze(1).repeat(1, 4)
    return {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "same": torch.full((5,), value), "step": int(value)}


def save_ranks(config: str, env: Env) -> dict[str, Any]:
    dcp.save(shards(5, env), storage_writer=LauncherWriter(config, 5))
    return {}


def load_ranks(config: str, env: Env) -> dict[str, Any]:
    into = shards(-1, env)
    compared: list[str] = []
    wrong = checkpoints.wrong_checksums

    def see(path: Path, found: list[checkpoints.Block], *others: Any) -> list[str]:
        compared.extend(block.name for block in found)
        return wrong(path, found, *others)

    checkpoints.wrong_checksums = see  # type: ignore[assignment]
    try:
        dcp.load(into, storage_reader=LauncherReader(config))
    except dcp.CheckpointException as error:
        return {"error": str(error)}
    weight = into["weight"].full_tensor()[:, 0].tolist()
    return {"weight": weight, "same": into["same"].tolist(), "step": into["step"], "compared": compared}


def test_several_ranks_write_and_others_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    run_ranks(save_ranks, str(folder), 3)
    path = folder / "step-000000005"
    assert changed(path) == [] and checkpoints.read(path).world_size == 3
    assert {f"__{rank}_0.distcp" for rank in range(3)} <= checkpoints.read(path).files.keys()
    compared = []
    for result in run_ranks(load_ranks, str(folder), 2):
        mine = result.metrics.pop("compared")
        assert result.metrics == {"weight": [5.0 + row for row in range(7)], "same": [5.0] * 5, "step": 5}
        assert len(mine) == 2  # of four files with a block each
        compared += mine
    assert sorted(compared) == sorted(checkpoints.read(path).files)
    data = bytearray((path / "__1_0.distcp").read_bytes())
    data[500] ^= 1
    (path / "__1_0.distcp").write_bytes(data)
    for result in run_ranks(load_ranks, str(folder), 2):
        assert "__1_0.distcp has changed since it was written" in result.metrics["error"]

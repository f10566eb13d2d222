"""Differences between torch 2.4 and the newest version in reading checkpoints; see `torch_compat`."""

from __future__ import annotations

import functools
import io
import pathlib
import pickle
import warnings
from typing import IO, Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.futures import Future

# The filter stays, since saves run in threads, and catch_warnings() changes the filters of all threads.
warnings.filterwarnings("ignore", message="TypedStorage is deprecated", module=r"torch\.distributed\.checkpoint")


def load_saved(stream: IO[bytes]) -> Any:
    """Returns on the CPU what torch.save has written, with weights_only=True; raises UnpicklingError.

    Everything else is refused before torch.load: until torch 2.6 it executes code in a TorchScript archive and in files
    of older formats in spite of weights_only=True (CVE-2025-32434).
    """
    start = stream.tell()
    head = stream.read(4)
    stream.seek(start)
    if head != b"PK\3\4":
        raise pickle.UnpicklingError("it is no zip archive, as torch.save writes")
    names = torch._C.PyTorchFileReader(stream).get_all_records()  # as torch.load sees the archive
    if "data.pkl" not in names or "constants.pkl" in names:  # by the latter torch.load knows TorchScript
        raise pickle.UnpicklingError("it is no archive that torch.save writes")
    stream.seek(start)
    return torch.load(stream, map_location="cpu", weights_only=True)


@functools.cache
def _torch_load_runs_pickles() -> bool:
    buffer = io.BytesIO()
    torch.save(pathlib.PurePosixPath("."), buffer)
    buffer.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.load(buffer)  # safe: written above
    except pickle.UnpicklingError:
        return False
    return True


class PlainReader(FileSystemReader):
    """A FileSystemReader that reads tensors only. Before torch 2.6, its base class executes any pickle in the files."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the parts of tensors that `plan` lists, and hands them to `planner`."""
        if not _torch_load_runs_pickles():
            return super().read_data(plan, planner)
        for item in plan.items:
            where = self.storage_data[item.storage_index]
            with self.fs.create_stream(self.fs.concat_path(self.path, where.relative_path), "rb") as stream:
                stream.seek(where.offset)
                content = io.BytesIO(stream.read(where.length))
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, content)
                continue
            saved = load_saved(content)
            part = narrow_tensor_by_index(saved, item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise ValueError(f"{item.storage_index.fqn}: {tuple(part.size())} where {tuple(target.size())} fits")
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

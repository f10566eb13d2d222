"""Differences in torch.distributed.checkpoint between torch 2.4 and the newest version; see `torch_compat`."""

from __future__ import annotations

import functools
import io
import pathlib
import pickle
import warnings

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.futures import Future

# The filter stays, since saves run in threads, and catch_warnings() changes the filters of all threads.
warnings.filterwarnings("ignore", message="TypedStorage is deprecated", module=r"torch\.distributed\.checkpoint")


@functools.cache
def _torch_load_runs_pickles() -> bool:
    """Returns whether torch.load executes pickles by default, as it does before 2.6."""
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
            saved = torch.load(content, map_location="cpu", weights_only=True)
            part = narrow_tensor_by_index(saved, item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise ValueError(f"{item.storage_index.fqn}: {tuple(part.size())} where {tuple(target.size())} fits")
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

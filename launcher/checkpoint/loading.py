"""Reads one checkpoint into the tensors of a state, on all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from launcher.checkpoint import files
from launcher.checkpoint.agreement import Peers
from launcher.checkpoint.format import DCP, RANKS_FILE, SINGLE, STATE_FILE, VALUES_FILE, Damaged, Manifest
from launcher.checkpoint.state import Kind, fill, is_named, named_part, nested
from launcher.checkpoint.state import Path as Keys
from launcher.checkpoint.stateful import Wanted


@dataclass(frozen=True)
class Loaded:
    """What `Checkpointer.load` returns: all of a checkpoint but its tensors, which `load` has filled in place."""

    step: int  # steps of the run that were done when the checkpoint was saved
    path: Path  # folder of the checkpoint. extra, metrics: as given to `save`
    extra: dict[str, Any]
    metrics: dict[str, float]
    # this rank's `rank_state`, as given to `save`; None: another number of ranks saved the checkpoint
    rank_state: dict[str, Any] | None
    world_size: int  # number of ranks that saved the checkpoint
    values: dict[Any, Any]  # the state without its tensors; `merge(state, values)` puts both together
    # a line for each newer checkpoint that could not be used: its name, and what is wrong with it
    passed_over: tuple[str, ...] = ()


class Opened:
    """A checkpoint while it is read, in steps: `open`, `require_fit`, `read`, `restore`.

    tensors: the tensors to fill, by name, after `open`.
    values: the values that are not tensors, after `open`.
    rank_state: this rank's state, after `open`; None: another number of ranks saved the checkpoint.
    """

    def __init__(
        self, path: Path, manifest: Manifest, wanted: Wanted, everyone: Collection[str], peers: Peers, timeout: float
    ) -> None:
        self._path, self._manifest, self._wanted, self._peers = path, manifest, wanted, peers
        self._everyone = everyone  # names of the tensors of all ranks' states
        self._timeout = timeout
        self._whole: Mapping[str, torch.Tensor] | None = None
        self._metadata: Metadata | None = None
        self._saved: dict[str, Kind] = {}
        self._paths: dict[str, Keys] = {}
        self._lists: dict[Keys, str] = {}
        self._pickled: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.values: dict[Any, Any] = {}
        self.rank_state: dict[str, Any] | None = None

    def open(self) -> list[str]:
        """Reads everything except the tensors of a sharded checkpoint, and chooses the tensors to fill.

        Returns an empty list: the problems are raised.
        Raises Damaged: the checkpoint is not valid.
        Raises Unavailable: the checkpoint cannot be read now.
        """
        path, rank = self._path, self._peers.rank
        same = self._manifest.world_size == self._peers.world_size
        if self._manifest.kind == SINGLE:
            rest = files.load_file(path / STATE_FILE, self._timeout)
            if same and RANKS_FILE in self._manifest.files:
                self.rank_state = files.load_file(path / RANKS_FILE, self._timeout)[rank]
        else:
            self._metadata = metadata = files.read_metadata(path, self._timeout)
            saved = files.saved_tensors(metadata)
            if self._manifest.kind == DCP:
                known = metadata.planner_data or {}
                rest = {"values": {}, "paths": {name: known.get(name, (name,)) for name in saved}}
                self._pickled = [name for name in metadata.state_dict_metadata if name not in saved]
            else:
                rest = files.load_file(path / VALUES_FILE, self._timeout)
            if same and f"rank-{rank}.pt" in self._manifest.files:
                self.rank_state = files.load_file(path / f"rank-{rank}.pt", self._timeout)
        try:
            if self._manifest.kind == SINGLE:
                self._whole = rest["tensors"]
                saved = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in rest["tensors"].items()}
            self.values, self._lists = rest["values"], rest.get("lists", {})
            self._paths = {name: rest["paths"][name] for name in saved if is_named(name, self._wanted.only)}
            self._saved = {name: saved[name] for name in self._paths}
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{path} holds no state: {error}") from None
        self.tensors = self._wanted.to_fill(self._saved, self._paths, self._everyone)
        return []

    def require_fit(self, everyone: Collection[str]) -> list[str]:
        """Compares the checkpoint with the state.

        everyone: names of the tensors that all ranks fill, and the top-level keys of all ranks' states.
        Returns an empty list: the problems are raised.
        Raises Misfit: something in the checkpoint would not be restored; the text lists everything.
        """
        only = self._wanted.only
        roots = {name: str(path[0]) for name, path in self._paths.items()}
        roots |= {str(key): str(key) for key in named_part(self.values, only)}
        pickled = [name for name in self._pickled if is_named(name, only)]
        files.refuse(
            self._path,
            [
                *files.misfits(self._saved, self.tensors, roots, everyone),
                *self._wanted.misfits(self.values, self._paths),
                *(f"{name}: {files.PICKLED}" for name in pickled),
            ],
        )
        return []

    def read(self) -> list[str]:
        """Fills the tensors, after `require_fit`.

        Returns an empty list: the problems are raised.
        Raises Damaged: the data does not match the metadata.
        Raises Unavailable: the checkpoint cannot be read now.
        """
        if self._whole is None:
            assert self._metadata is not None
            files.load_tensors(self._path, self._metadata, self.tensors, self._timeout)
            return []
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                fill(tensor, self._whole[name])
        return []

    def restore(self) -> None:
        """Gives the objects of the state theirs, after `read`; raises CheckpointError if one does not take it."""
        self._wanted.restore(nested(self.tensors, self._paths, self.values, self._lists))

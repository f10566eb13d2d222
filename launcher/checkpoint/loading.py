"""Reads one checkpoint into the tensors of a state, on all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from launcher.checkpoint import files
from launcher.checkpoint.agreement import Peers
from launcher.checkpoint.format import DCP, RANKS_FILE, SINGLE, STATE_FILE, VALUES_FILE, Damaged, Manifest
from launcher.checkpoint.state import Content, fill


@dataclass(frozen=True)
class Loaded:
    """What `Checkpointer.load` returns: everything in a checkpoint besides tensors, which `load` has filled in place.

    Attributes:
        step: steps of the run that were done when the checkpoint was saved.
        path: folder of the checkpoint.
        extra, metrics: as given to `save`.
        rank_state: this rank's `rank_state`, as given to `save`; None: another number of ranks saved the checkpoint.
        world_size: number of ranks that saved the checkpoint.
        values: the state without its tensors; `merge(state, values)` puts both together.
        passed_over: a line for each newer checkpoint that could not be used: its name, and what is wrong with it.
    """

    step: int
    path: Path
    extra: dict[str, Any]
    metrics: dict[str, float]
    rank_state: dict[str, Any] | None
    world_size: int
    values: dict[Any, Any]
    passed_over: tuple[str, ...] = ()


class Opened:
    """A checkpoint while it is read: `open` checks and reads everything but tensors, `read` fills the tensors.

    Attributes:
        values: the values that are not tensors, after `open`.
        rank_state: this rank's state, after `open`; None: another number of ranks saved the checkpoint.
    """

    def __init__(
        self, path: Path, manifest: Manifest, wanted: Content, everyone: Collection[str], peers: Peers, timeout: float
    ) -> None:
        self._path, self._manifest, self._wanted, self._peers = path, manifest, wanted, peers
        self._everyone = everyone  # names of the tensors of all ranks' states
        self._timeout = timeout
        self._tensors: Mapping[str, torch.Tensor] | None = None
        self.values: dict[Any, Any] = {}
        self.rank_state: dict[str, Any] | None = None

    def open(self) -> list[str]:
        """Reads everything except the tensors of a sharded checkpoint, and compares names and shapes with the state.

        Returns:
            An empty list: the problems are raised.

        Raises:
            Damaged: the checkpoint is not valid.
            Unavailable: the checkpoint cannot be read now.
            Misfit: the checkpoint does not fit the state.
        """
        path, rank = self._path, self._peers.rank
        same = self._manifest.world_size == self._peers.world_size
        if self._manifest.kind == SINGLE:
            state = files.load_file(path / STATE_FILE, self._timeout)
            try:
                self._tensors, self.values = state["tensors"], state["values"]
                saved = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state["tensors"].items()}
            except (KeyError, TypeError, AttributeError) as error:
                raise Damaged(f"{path / STATE_FILE} is no state: {error}") from None
            if same and RANKS_FILE in self._manifest.files:
                self.rank_state = files.load_file(path / RANKS_FILE, self._timeout)[rank]
        else:
            saved = files.saved_tensors(files.read_metadata(path, self._timeout))
            if self._manifest.kind != DCP:  # there the caller's planner has pickled the values
                self.values = files.load_file(path / VALUES_FILE, self._timeout)["values"]
            if same and f"rank-{rank}.pt" in self._manifest.files:
                self.rank_state = files.load_file(path / f"rank-{rank}.pt", self._timeout)
        files.require_fit(path, saved, self._wanted.tensors, self._everyone)
        return []

    def read(self) -> list[str]:
        """Fills the tensors of the state. All ranks must call it, after `open`.

        Returns:
            An empty list: the problems are raised.

        Raises:
            Damaged: the data does not match the metadata.
            Unavailable: the checkpoint cannot be read now.
        """
        if self._tensors is None:
            files.load_sharded(self._path, self._wanted.tensors, self._peers.group, self._peers.many, self._timeout)
            return []
        with torch.no_grad():
            for name, tensor in self._wanted.tensors.items():
                fill(tensor, self._tensors[name])
        return []

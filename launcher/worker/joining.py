"""Compares the ranks of a run before they make a process group: torch, NCCL, backends, devices.

Every rank writes its facts into the store. The last rank to do so reads and compares all of them, and writes the
refusals, if any, which every rank reads. So requests and bytes grow linearly with the number of ranks, not with its
square.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from launcher.formatting import name_ranks
from launcher.worker import rank_objects
from launcher.worker.devices import BackendError

_SHOWN = 4  # an error lists at most so many values, and so many hosts of each


class RanksDiffer(BackendError):
    """The ranks cannot work together, since they differ; the text says which ranks have which values."""


@dataclass(frozen=True)
class Facts:
    """Facts about one rank that are compared with those of the other ranks."""

    rank: int  # rank, host: global rank, and name of the rank's node
    host: str
    device: str
    gpu: str  # an id of the rank's GPU that is unique among all nodes; empty: unknown, or the rank computes on the CPU
    backend: str
    torch: str  # torch, git: version of torch, and the commit that it was built from
    git: str
    nccl: str  # version of NCCL; empty with other backends


@dataclass(frozen=True)
class Refusal:
    """A reason why ranks cannot work together: they differ, or share a GPU."""

    what: str  # the reason, as the start of a sentence
    # the values, each with the facts of the ranks that have it; for a difference the commonest value first
    holders: tuple[tuple[str, tuple[Facts, ...]], ...]
    fix: str  # what the user can do, as a sentence

    @property
    def text(self) -> str:
        """Error text for the user: the reason, which ranks have which values, and what to do."""
        shown = [f"{value or 'none'} on {_who(ranks)}" for value, ranks in self.holders[:_SHOWN]]
        if len(self.holders) > _SHOWN:
            shown.append(f"and {len(self.holders) - _SHOWN} more")
        return f"{self.what}: {'; '.join(shown)}. {self.fix}"


def _who(ranks: Sequence[Facts]) -> str:
    hosts = list(dict.fromkeys(each.host for each in ranks))
    shown = ", ".join(hosts[:_SHOWN]) + (f" and {len(hosts) - _SHOWN} more nodes" if len(hosts) > _SHOWN else "")
    return f"{name_ranks(each.rank for each in ranks)} ({shown})"


_SAME_SOFTWARE = "Give all nodes the same environment (env.activate, env.archive, env.container, cluster.setup)"


def compare(facts: Sequence[Facts]) -> list[Refusal]:
    """Returns the reasons why these ranks cannot work together; empty if they can.

    | difference | refused |
    |---|---|
    | types of device | yes |
    | backends | yes |
    | versions of torch | yes |
    | the same version of torch, built from different commits | yes |
    | versions of NCCL | yes |
    | none, but two ranks use one GPU (a MIG slice counts as a GPU) | yes |
    | none, and two GPUs on different nodes have the same index or PCI address | no |
    | none, and GPUs cannot be identified, or there are none | no |
    """
    refusals = []
    versions = _by(facts, "torch")
    for name, what, fix in (
        ("device", "The ranks have different devices", "See what `nvidia-smi` says there, or set workload.device"),
        ("backend", "The ranks have different backends", "Set workload.backend"),
        ("torch", "The ranks have different versions of torch", _SAME_SOFTWARE),
        ("git", "The ranks have torch of the same version, built from different commits", _SAME_SOFTWARE),
        ("nccl", "The ranks have different versions of NCCL", _SAME_SOFTWARE),
    ):
        holders = _by(facts, name)
        if len(holders) > 1 and not (name == "git" and len(versions) > 1):
            refusals.append(Refusal(what, tuple(sorted(holders.items(), key=lambda each: -len(each[1]))), fix))
    shared = {gpu: ranks for gpu, ranks in _by(facts, "gpu").items() if gpu and len(ranks) > 1}
    if shared:
        fix = "Use as many ranks as GPUs: procs_per_node equal to gpus_per_node"
        refusals.append(Refusal("Several ranks use one GPU", tuple(shared.items()), fix))
    return refusals


def _by(facts: Iterable[Facts], name: str) -> dict[str, tuple[Facts, ...]]:
    found: dict[str, list[Facts]] = {}
    for each in facts:
        found.setdefault(getattr(each, name), []).append(each)
    return {value: tuple(ranks) for value, ranks in found.items()}


def facts_of(rank: int, host: str, device: torch.device, backend: str, environ: Mapping[str, str]) -> Facts:
    """Returns the facts about this rank. `environ`: the rank's environment, of which the masks identify its GPU."""
    gpu = ""
    if device.type != "cpu":
        properties = getattr(torch, device.type).get_device_properties(device)
        index = device.index or 0
        if device.type == "xpu":
            gpu = xpu_identity(index, environ.get("ZE_AFFINITY_MASK", ""), host)
        else:
            gpu = gpu_identity(properties, index, environ.get("CUDA_VISIBLE_DEVICES", ""), host)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else ""
    git = str(getattr(torch.version, "git_version", None) or "")
    return Facts(rank, host, device.type, gpu, backend, torch.__version__, git, nccl)


def gpu_identity(properties: Any, index: int, mask: str, host: str) -> str:
    """Returns an id of a GPU that is unique among all nodes. Pure; the first row that applies decides.

    | known | result |
    |---|---|
    | the mask names a MIG slice | the slice's name: with some drivers its UUID is that of the whole GPU |
    | a UUID | the UUID |
    | a PCI address | the host and the address, since other hosts have the same addresses |
    | nothing | empty |

    index: index of the device among those that the rank sees.
    mask: value of CUDA_VISIBLE_DEVICES; empty if it is not set.
    """
    entries = [entry.strip() for entry in mask.split(",")]
    if index < len(entries) and entries[index].startswith("MIG-"):
        return entries[index]
    if uuid := str(getattr(properties, "uuid", "") or ""):
        return uuid
    address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if address[1] is None:
        return ""
    return f"{host} PCI " + ":".join(f"{part or 0:x}" for part in address)


def xpu_identity(index: int, mask: str, host: str) -> str:
    """Returns an id of an XPU that is unique among all nodes: the host, and the XPU's entry in ZE_AFFINITY_MASK.

    An XPU may be one tile of a card. The UUID would not do, since tiles of a card share it.

    index: index of the XPU among those that the rank sees.
    mask: value of ZE_AFFINITY_MASK; empty if it is not set.
    """
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    return f"{host} XPU {entries[index] if index < len(entries) else index}"


# -- through the store


def share_facts(store: dist.Store, facts: Facts, world_size: int) -> None:
    """Writes this rank's facts into the store. The last of `world_size` ranks compares all, and writes the refusals."""
    store.set(f"joined/{facts.rank}", json.dumps(asdict(facts)))
    if store.add("joined", 1) == world_size:
        found = store.multi_get([f"joined/{rank}" for rank in range(world_size)])
        refusals = compare([Facts(**json.loads(each)) for each in found])
        store.set("all joined", json.dumps([refusal.text for refusal in refusals]))


def require_alike(store: dist.Store) -> None:
    """Reads the result of the comparison, which must be in the store already; see `share_facts`.

    Raises RanksDiffer: the ranks cannot work together.
    """
    _require_none(json.loads(store.get("all joined")))


def require_alike_in_group(facts: Facts) -> None:
    """Compares all ranks through their process group, for MPI, which has no store. All ranks must call it.

    Raises RanksDiffer: the ranks cannot work together.
    """
    everyone = rank_objects.gather(facts)
    _require_none(rank_objects.broadcast([refusal.text for refusal in compare(everyone)]))


def _require_none(refused: Sequence[str]) -> None:
    if refused:
        raise RanksDiffer(" ".join(f"{text}." for text in refused))

"""Chooses the node of each chunk of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.pbs.stand_in.resources import Chunk, Request, size_in_bytes

CONSUMED = ("ncpus", "ngpus", "mem")
Amounts = Mapping[str, int]


@dataclass(frozen=True)
class Node:
    """A node and its resources (ncpus, ngpus, and mem in kb).

    Attributes:
        host: its name.
        total: the amount of each resource.
        free: the free amount of each resource.
        whole: whether no job runs on the node.
    """

    host: str
    total: Amounts
    free: Amounts
    whole: bool = True


@dataclass(frozen=True)
class Refusal:
    """Why a job cannot start now, as its attribute `comment` (scheduler/misc.c, translate_fail_code)."""

    comment: str


def needs(chunk: Chunk) -> dict[str, int]:
    """Returns the amounts of resources that a chunk takes from its node; mem in kb."""
    return {"ncpus": chunk.number("ncpus"), "ngpus": chunk.number("ngpus"), "mem": chunk.mem_kb}


def place(request: Request, nodes: Sequence[Node]) -> list[str] | Refusal:
    """Returns the host of each chunk, in order, or why the job cannot start.

    | place | the chunks go |
    |---|---|
    | scatter | each to a node of its own |
    | pack | all to one node |
    | free | each to the first node where it fits |
    """
    exclusive = "excl" in request.values.get("place", "")
    usable = [node for node in nodes if node.whole or not exclusive]
    if refusal := _never(request, nodes):
        return refusal
    if request.place == "pack":
        for node in usable:
            if _assign(request.chunks, [node], scatter=False):
                return [node.host] * len(request.chunks)
        return _lacking(request, nodes, together=True)
    hosts = _assign(request.chunks, usable, scatter=request.place in ("scatter", "vscatter"))
    if hosts:
        return hosts
    if request.place in ("scatter", "vscatter") and len(request.chunks) > 1:
        return Refusal("Not Running: Not enough free nodes available")
    return _lacking(request, nodes, together=False)


def _assign(chunks: Sequence[Chunk], nodes: Sequence[Node], *, scatter: bool) -> list[str]:
    left = {node.host: dict(node.free) for node in nodes}
    hosts: list[str] = []
    for chunk in chunks:
        wanted = needs(chunk)
        wishes = {chunk.items[name] for name in ("host", "vnode") if name in chunk.items}
        for host, free in left.items():
            fits = all(free[name] >= amount for name, amount in wanted.items())
            if fits and wishes <= {host} and not (scatter and host in hosts):
                hosts.append(host)
                for name, amount in wanted.items():
                    free[name] -= amount
                break
        else:
            return []
    return hosts


def _never(request: Request, nodes: Sequence[Node]) -> Refusal | None:
    """Returns why a job can never start, even if the nodes were idle; None: it can start at some time."""
    if request.place in ("scatter", "vscatter") and len(request.chunks) > len(nodes):
        return Refusal("Can Never Run: Not enough total nodes available")
    names = [node.host for node in nodes]
    for chunk in request.chunks:
        host = chunk.items.get("host", chunk.items.get("vnode", names[0]))
        if host not in names:
            asked = f"host ({host} != {','.join(names)})"
            return Refusal(f"Can Never Run: Insufficient amount of resource: {asked}")
        for name, amount in needs(chunk).items():
            if amount > sum(node.total[name] for node in nodes):
                return Refusal(f"Can Never Run: {_amounts(name, chunk.items[name], nodes)}")
    return None


def _lacking(request: Request, nodes: Sequence[Node], *, together: bool) -> Refusal:
    """Returns a refusal that names the first resource of which no node has enough now.

    Args:
        request: the job's request.
        nodes: all nodes.
        together: whether all chunks go to one node, which needs the sum of their amounts.
    """
    for name in CONSUMED:
        wanted = [needs(chunk)[name] for chunk in request.chunks]
        most = sum(wanted) if together else max(wanted)
        if most > max(node.free[name] for node in nodes):
            return Refusal(f"Not Running: {_amounts(name, f'{most}kb' if name == 'mem' else str(most), nodes)}")
    return Refusal("Not Running: Insufficient amount of resource: ncpus ")


def _amounts(name: str, asked: str, nodes: Sequence[Node]) -> str:
    """Returns the text about a lacking resource, with the requested, available and total amounts if they explain it."""
    free, total = sum(node.free[name] for node in nodes), sum(node.total[name] for node in nodes)
    text = f"Insufficient amount of resource: {name} "
    size = name == "mem"
    if (size_in_bytes(asked) // 1024 if size else int(asked)) <= free:
        return text
    unit = "kb" if size else ""
    return f"{text}(R: {asked} A: {free}{unit} T: {total}{unit})"

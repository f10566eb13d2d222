"""Runs as the launcher leaves them, for the tests of the report page: written by the launcher's own writers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.runs.directory import Run
from tests.unit.plans import plan_of, with_fields

BEGIN = 1795282000.0
CONDITIONS = {
    "hosts": ["node1", "node2"], "world_size": 4, "nodes": 2, "ranks_per_node": [2, 2], "backend": "gloo",
    "backend_version": None, "interface": "eth0", "device": "cpu", "device_name": "AMD EPYC 9354", "torch": "2.13.0",
    "python": "3.11.7", "iterations": 20, "warmup": 5, "time": BEGIN, "run": "run-1",
    "environment": {"GLOO_SOCKET_IFNAME": "eth0"},
}  # fmt: skip
ROOF = {"socket": 1.18e9, "memory": 9.6e9, "how": "one TCP stream from node1 to node2; a copy of 64 MiB in memory"}


def make_run(folder: Path, name: str = "run-1", *, results: Any = None, config: Any = None, **facts: Any) -> Run:
    """A run that is done, without any attempt."""
    run = Run.create(folder / name)
    plan = with_fields(plan_of(), run_id=name, run_dir=str(run.path), checkpoint={"dir": str(run.path / "saved")})
    overrides = ["workload=ddp_mnist", "nodes=2", "workload.lr=0.1"]
    known = {"launcher": "0.1.0", "python": "3.11.7", "host": "login1", "commit": "0123abc", "overrides": overrides}
    run.write_record(plan, {"nodes": 2, "workload": {"lr": 0.1}} if config is None else config, {**known, **facts})
    if results is not None:
        (run.path / "results.json").write_text(json.dumps(results))
    return run


def write_events(path: Path, *events: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


NEEDED: dict[str, dict[str, Any]] = {
    "submitted": {"job": "7"}, "started": {"job": "7"}, "ended": {"code": 0}, "met": {"ranks": 4, "members": 2},
    "restart": {"code": "signalled", "rank": 1, "host": "node1", "signal": "SIGKILL"},
}  # fmt: skip


def at(after: float, event: str, /, **values: Any) -> dict[str, Any]:
    """An event so many seconds after BEGIN, as a file has it; what it must have and is not given is NEEDED's."""
    return {"time": BEGIN + after, "event": event, **NEEDED.get(event, {}), **values}


def trained(folder: Path, name: str = "run-1", *, rate: float = 1.0, words: str = "", **more: Any) -> Run:
    """A training of two attempts: the first was stopped after step 60, and what it did after step 50 is done again."""
    run = make_run(folder, name, **more)
    write_events(run.path / "journal.jsonl", at(0, "submitting", token="t"), at(1, "submitted", job="7"))
    for number, (begin, first, last) in enumerate(((30.0, 1, 60), (120.0, 51, 100))):
        events = run.path / "attempts" / str(number) / "events"
        code = 75 if number == 0 else 0
        write_events(
            events / "script.jsonl", at(begin, "started", job="7", host="node1"), at(begin + 71, "ended", code=code)
        )
        for node in range(2):
            met = at(begin + 5, "met", ranks=4, members=2, interface="eth0", host=f"node{node + 1}", torch="2.13.0")
            write_events(events / f"node-{node}.jsonl", {**met, "round": 0})
        steps = []
        for step in range(first, last + 1):
            loss = 2.3 * math.exp(-step * rate / 15) + 0.02
            values = {"epoch": 1, "loss": loss, "lr": 0.1 * (1 - step / 101), "images_per_s": 9000 + 50 * (step % 7)}
            steps.append(at(begin + 5 + step - first, "progress", step=step, total=100, values=values))
            if step % 10 == 0:
                found = {"accuracy": 1 - loss / 3, "test_loss": loss + 0.1}
                steps.append(at(begin + 5 + step - first, "evaluated", step=step, values=found))
        write_events(events / "rank-0.jsonl", *steps)
        saved = at(begin + 60, "saved", step=last // 50 * 50, seconds=0.02, blocked=0.01, bytes=52202)
        write_events(events / "checkpoint.jsonl", saved)
        if number == 0:
            write_events(events / "stop.jsonl", at(begin + 69, "stop", reason="time_limit", step=60))
            write_events(events / "requeue.jsonl", at(begin + 72, "continues", what="here", reason="resumable"))
    run.write_result({"accuracy": 0.98, "loss": 0.02 / rate, "dataset": "digits"})
    (run.path / "output-7.log").write_text(f"[0] step 1/100 loss 2.2\n[1] hello\n{words}\n")
    return run


def collective_results(
    speed: float = 1.0,
    ops: Sequence[str] = ("all_reduce", "all_gather", "broadcast"),
    powers: Sequence[int] = range(10, 27, 2),
) -> dict[str, Any]:
    """A sweep over sizes, as on a slow network: a latency, and a bandwidth that larger messages come near to."""
    factors = {"all_reduce": 1.5, "all_gather": 0.75, "broadcast": 1.0}
    rows = []
    for op in ops:
        for power in powers:
            size, factor = 2**power, factors.get(op, 1.0)
            for place in ("out", "in"):
                seconds = (180e-6 + size * factor / 1.02e9) / speed * (1.04 if place == "in" else 1)
                algbw = size / seconds
                rows.append({
                    "op": op, "group": "world", "ranks": "4", "n": 4, "size": size, "count": size // 4,
                    "dtype": "float32", "redop": "sum" if op == "all_reduce" else "", "root": None, "place": place,
                    "async": False, "iterations": 20, "algbw": algbw, "busbw": algbw * factor, "wrong": 0,
                    "checked": size // 4, "missing": "",
                    "seconds": {"min": seconds * 0.9, "median": seconds, "p99": seconds * 1.4, "mean": seconds * 1.05},
                })  # fmt: skip
    return {"format": 1, "workload": "collective", "conditions": CONDITIONS, "roof": ROOF, "rows": rows,
            "matrix": None, "complete": True, "reason": ""}  # fmt: skip


def p2p_results(nodes: int = 6, slow: int | None = 3, speed: float = 1.0) -> dict[str, Any]:
    """Ping-pong and one-way bandwidth over sizes, and the matrix of all pairs with one slow node."""
    rows = []
    for pattern in ("pingpong", "bandwidth"):
        for power in range(3, 23, 2):
            size = 2**power
            seconds = (90e-6 + size / 1.1e9) / speed
            rows.append({
                "pattern": pattern, "size": size, "count": size // 4, "dtype": "float32", "messages": 64,
                "window": 64 if pattern == "bandwidth" else 1, "iterations": 20, "wrong": 0, "checked": size // 4,
                "seconds": {"min": seconds * 0.9, "median": seconds, "p99": seconds * 1.4, "mean": seconds * 1.05},
                "latency": seconds / 2 if pattern == "pingpong" else None, "bandwidth": size / seconds,
            })  # fmt: skip
    hosts = [f"node{place + 1}" for place in range(nodes)]

    def cell(i: int, j: int, normal: float, bad: float) -> float | None:
        if i == j:
            return None
        return (bad if slow in (i, j) else normal) * (1 + 0.03 * math.sin(7 * i + 3 * j))

    bandwidth = [[cell(i, j, 1.1e9 * speed, 0.31e9) for j in range(nodes)] for i in range(nodes)]
    latency = [[cell(i, j, 48e-6, 130e-6) for j in range(nodes)] for i in range(nodes)]
    pairs = [
        {"a": hosts[slow], "b": hosts[other], "bandwidth": bandwidth[slow][other], "latency": latency[slow][other],
         "ratio": 0.28, "against": "median"}
        for other in range(nodes) if slow is not None and other != slow
    ] if slow is not None else []  # fmt: skip
    matrix = {
        "ranks": list(range(nodes)), "hosts": hosts, "size": 2**20, "latency": latency, "bandwidth": bandwidth,
        "median": {"latency": 48e-6, "bandwidth": 1.1e9}, "slow": pairs,
        "suspects": [] if slow is None else [hosts[slow]], "exclude": "" if slow is None else hosts[slow],
    }  # fmt: skip
    return {"format": 1, "workload": "p2p", "conditions": CONDITIONS, "roof": ROOF, "rows": rows, "matrix": matrix,
            "complete": True, "reason": ""}  # fmt: skip

"""`python -m benchmarks`: every claim about speed, measured now on this machine, as one table."""

from __future__ import annotations

import importlib
import sys

from benchmarks.measure import Result

MODULES = (
    "login_node", "sub_commands", "start_up", "scale", "training_input", "checkpoint", "stop", "invariant", "restart",
    "preflight", "rendezvous", "pbs", "fabric", "sweep", "logs", "status",
)  # fmt: skip


def table(results: list[Result]) -> str:
    """claim | ratio | target | met"""
    rows = [("claim", "ratio", "target", "met"), *(result.shown for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main() -> int:
    """Runs the benchmarks one after the other; returns 1 if a target was missed."""
    results: list[Result] = []
    for name in MODULES:
        for result in importlib.import_module(f"benchmarks.{name}").results():
            print(result.line, file=sys.stderr, flush=True)
            results.append(result)
    print(table(results))
    return 0 if all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
